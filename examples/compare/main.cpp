// SPDX-License-Identifier: MIT
//
// Compares ALiBi attention by positional LSH with exact ALiBi attention, on activations from a file or made
// up. See `compare --help`.

#include <algorithm>
#include <exception>
#include <new>

#include "../support/output_file.hpp"
#include "options.hpp"
#include "report.hpp"

namespace {

constexpr int bad_input = 2;

int fail(std::string message) {
  std::replace_if(
      message.begin(), message.end(), [](unsigned char c) { return c < ' '; }, ' ');
  std::fprintf(stderr, "compare: %s\n", message.c_str());
  return bad_input;
}

void run(const compare::Options& options) {
  poslsh_examples::check_outputs({options.csv, options.plot, options.save}, {options.input});
  const compare::AnyActivations activations = compare::make_activations(options);
  if (!options.save.empty()) compare::save_activations(activations, options.save);
  const compare::Measurements measurements = compare::measure(activations, options);
  compare::print_tables(measurements, activations, options, stdout);
  if (!options.csv.empty()) compare::write_csv(measurements, activations, options);
  if (!options.plot.empty() && !compare::draw_plot(measurements, options))
    std::fprintf(stderr, "compare: no picture: gnuplot is not installed\n");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::optional<compare::Options> options = compare::parse_options(argc, argv);
    if (options) run(*options);
    poslsh_examples::finish_printing();
    return 0;
  } catch (const std::bad_alloc&) {
    return fail("not enough memory for activations of this size");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}
