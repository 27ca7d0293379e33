// SPDX-License-Identifier: MIT

// Any words as the command line of examples/compare or, by the first byte, of examples/decode: options within their documented
// ranges, a UsageError of one line, or help. Words are lines of the input. Nothing is run, no file is opened.

#include "../../examples/compare/options.hpp"
#include "../../examples/decode/options.hpp"
#include "fuzz/support.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <iostream>
#include <set>
#include <sstream>
#include <string_view>

namespace {

using namespace poslsh::fuzz;
using poslsh::Index;
using Words = std::vector<std::string>;

template <class V>
void within(const std::string& flag, V value, double low, double high) {
  require(static_cast<double>(value) >= low && static_cast<double>(value) <= high, flag + " out of range");
}
template <class V>
void all_within(const std::string& flag, const std::vector<V>& values, double low, double high) {
  for (const V value : values) within(flag, value, low, high);
}
/// Not empty, each once, in the order they have where they are declared.
template <class V>
void ordered(const std::string& flag, const std::vector<V>& values) {
  require(!values.empty() && std::adjacent_find(values.begin(), values.end(), std::greater_equal<V>()) == values.end(),
          flag + " are none, or not in order");
}
void picture(const std::string& path) {
  const auto ends = [&](std::string_view extension) { return path.size() > 4 && path.ends_with(extension); };
  require(path.empty() || ends(".png") || ends(".svg"), "--plot has another extension");
}

/// A number written in digits alone means that number.
template <class V>
void says(const Words& words, const std::string& flag, const V& value) {
  const auto names = [&](const std::string& word) { return word == flag || word.starts_with(flag + "="); };
  const auto at = std::find_if(words.begin(), words.end(), names);
  if (at == words.end() || std::count_if(words.begin(), words.end(), names) != 1) return;
  if (*at == flag && at + 1 == words.end()) return;
  const std::string& text = *at == flag ? *(at + 1) : at->substr(flag.size() + 1);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return;
  require(static_cast<std::uint64_t>(value) == number, flag + " " + text + " is taken as " + std::to_string(value));
}

constexpr double million = 1e6;

void check(const compare::Options& options, const Words& words) {
  require(options.input.empty() == options.tokens.has_value(), "--input and --tokens, or neither");
  if (options.tokens) within("--tokens", *options.tokens, 1, 0x1p24);
  within("--head-dim", options.head_dim, 1, 65536);
  within("--heads", options.heads, 1, 65536);
  require(options.slopes.empty() || options.sigmas.empty(), "--slopes and --sigma");
  for (const auto* values : {&options.slopes, &options.sigmas})
    for (const double value : *values)
      require(value > 0 && std::isfinite(value) && std::isfinite(1 / value), "a slope or sigma without an inverse");
  ordered("--methods", options.methods);
  ordered("--sampling", options.samplings);
  require(!options.samples.empty(), "no --samples");
  all_within("--samples", options.samples, 1, million);
  within("--seeds", options.seeds, 1, million);
  within("--repeat", options.repeat, 1, million);
  within("--threads", options.threads, 1, 1024);
  picture(options.plot);
  require(options.plot.empty() || std::any_of(options.methods.begin(), options.methods.end(), compare::draws),
          "--plot without a method that draws");
  if (options.tokens) says(words, "--tokens", *options.tokens);
  says(words, "--head-dim", options.head_dim);
  says(words, "--heads", options.heads);
  says(words, "--samples", options.samples.front());
  says(words, "--seed", options.seed);
  says(words, "--seeds", options.seeds);
  says(words, "--repeat", options.repeat);
  says(words, "--threads", options.threads);
}

void check(const decode::Options& options, const Words& words) {
  ordered("--methods", options.methods);
  within("--tokens", options.tokens, 1, 1e12);
  within("--heads", options.heads, 1, 1024);
  within("--head-dim", options.head_dim, 1, 65536);
  within("--samples", options.samples, 1, million);
  within("--tolerance", options.tolerance, 1e-300, 1);
  if (options.max_query_norm) within("--max-query-norm", *options.max_query_norm, 1e-30, 1e30);
  within("--full-seconds", options.full_seconds, 0, 1e9);
  within("--full-mib", options.full_mib, 1, 0x1p24);
  require(std::set<std::string>{"float", "half", "bfloat16"}.contains(options.storage), "--storage " + options.storage);
  within("--threads", options.threads, 1, 1024);
  picture(options.plot);
  says(words, "--tokens", options.tokens);
  says(words, "--heads", options.heads);
  says(words, "--head-dim", options.head_dim);
  says(words, "--samples", options.samples);
  says(words, "--full-mib", options.full_mib);
  says(words, "--seed", options.seed);
  says(words, "--threads", options.threads);
}

/// What a program prints while this lives.
class Capture {
 public:
  Capture() : out_(std::cout.rdbuf(text_.rdbuf())), error_(std::cerr.rdbuf(text_.rdbuf())) {}
  Capture(const Capture&) = delete;
  ~Capture() {
    std::cout.rdbuf(out_);
    std::cerr.rdbuf(error_);
  }
  [[nodiscard]] std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::streambuf *out_, *error_;
};

template <class UsageError, class Parse>
void run(Parse&& parse, Words words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const Capture printed;
  try {
    const auto options = parse(static_cast<int>(words.size()), arguments.data());
    require(options ? printed.text().empty() : printed.text().find("--help") != std::string::npos,
            "printed: " + printed.text());
    if (options) check(*options, words);
  } catch (const UsageError& error) {
    const std::string text = error.what();
    require(!text.empty() && text.find('\n') == std::string::npos, "message: " + text);
    require(printed.text().empty(), "printed: " + printed.text());
  } catch (const std::exception& error) {
    fail(std::string("no UsageError: ") + error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const bool decodes = data[0] == 'd';
  Words words{"program"};
  std::istringstream lines(std::string(data + 1, data + size));
  for (std::string line; std::getline(lines, line);) words.push_back(line.c_str());  // a word ends at a zero
  if (decodes)
    run<decode::UsageError>(decode::parse_options, words);
  else
    run<compare::UsageError>(compare::parse_options, words);
  return 0;
}
