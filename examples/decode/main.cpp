// SPDX-License-Identifier: MIT
//
// Decodes a stream of a million tokens in bounded memory: positional LSH and exact ALiBi with a bound on the queries,
// beside a cache that keeps everything. See `decode --help`.

#include <algorithm>
#include <exception>
#include <new>

#include "../support/output_file.hpp"
#include "report.hpp"

namespace {

constexpr int bad_input = 2;

int fail(std::string message) {
  std::replace_if(
      message.begin(), message.end(), [](unsigned char c) { return c < ' '; }, ' ');
  std::fprintf(stderr, "decode: %s\n", message.c_str());
  return bad_input;
}

void run(const decode::Options& options) {
  poslsh_examples::check_outputs({options.csv, options.plot});
  const std::vector<decode::Run> runs = decode::measure(options);
  decode::print_table(runs, options, stdout);
  if (!options.csv.empty()) decode::write_csv(runs, options);
  if (!options.plot.empty() && !decode::draw_plot(runs, options))
    std::fprintf(stderr, "decode: no picture: gnuplot is not installed\n");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::optional<decode::Options> options = decode::parse_options(argc, argv);
    if (options) run(*options);
    poslsh_examples::finish_printing();
    return 0;
  } catch (const std::bad_alloc&) {
    return fail("not enough memory for a stream of this size");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}
