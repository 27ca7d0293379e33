// SPDX-License-Identifier: MIT
#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "../support/gnuplot.hpp"
#include "../support/validators.hpp"

namespace compare {
namespace {

using poslsh_examples::a_file_name;
using poslsh_examples::between;
using poslsh_examples::whole;

template <class Names, class Project>
std::vector<std::string> names_of(const Names& all, Project name) {
  std::vector<std::string> names;
  names.reserve(std::size(all));
  for (const auto& entry : all) names.emplace_back(entry.*name);
  return names;
}

std::string method_help() {
  std::string text = "Methods to run, default all:";
  for (const MethodName& method : all_methods)
    text += "\n" + std::string(method.name) + ": " + std::string(method.meaning);
  return text;
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void check(const Options& options) {
  if (options.input.empty() && !options.tokens) throw UsageError("give --input FILE or --tokens N");
  if (!options.plot.empty() && !poslsh_examples::is_picture_name(options.plot))
    throw UsageError("--plot: " + options.plot + " ends neither in .png nor in .svg");
  if (!options.plot.empty() && std::none_of(options.methods.begin(), options.methods.end(), draws))
    throw UsageError("--plot shows error against draws, and none of the methods draws");
  for (const std::vector<double>* values : {&options.slopes, &options.sigmas})
    for (const double value : *values)
      if (!std::isfinite(1 / value)) throw UsageError("a slope or sigma is too small: its inverse overflows");
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  std::vector<std::string> methods = names_of(all_methods, &MethodName::name), samplings{"importance"};
  const CLI::Validator count = whole<Index>(1, 1000000, "a number from 1 to 1000000");
  const CLI::Validator positive = between(std::numeric_limits<double>::denorm_min(),
                                          std::numeric_limits<double>::max(), "a positive finite number");

  CLI::App app(
      "Compares ALiBi attention by positional LSH with exact ALiBi attention: time, error and keys visited.\n"
      "Each method runs in the precision of the input; errors are against exact ALiBi attention in double.",
      "compare");
  CLI::Option* input = app.add_option("--input", options.input,
                                      "Activations: a .npy file of float32 or float64, shape\n"
                                      "[query, key, value] x heads x tokens x features");
  CLI::Option* tokens =
      app.add_option("--tokens", options.tokens, "Instead: so many tokens of unit normal data")
          ->transform(whole<Index>(1, 1 << 24, "a number from 1 to 16777216"));
  for (CLI::Option* shape :
       {app.add_option("--head-dim", options.head_dim, "Features a head of generated data, default 64"),
        app.add_option("--heads", options.heads, "Heads of generated data, default 8")})
    shape->transform(whole<Index>(1, 65536, "a number from 1 to 65536"))->needs(tokens);
  tokens->excludes(input);
  CLI::Option* slopes =
      app.add_option("--slopes", options.slopes, "ALiBi slopes, one a head; default: the paper's");
  app.add_option("--sigma", options.sigmas, "Instead: 1 / slope; every head runs with every sigma")
      ->delimiter(',')
      ->check(positive)
      ->excludes(slopes);
  slopes->delimiter(',')->check(positive);
  app.add_flag("--causal", options.causal, "A query sees no later key");
  app.add_option("--methods", methods, method_help())
      ->delimiter(',')
      ->check(CLI::IsMember(names_of(all_methods, &MethodName::name)).description(""));
  app.add_option("--samples", options.samples, "Numbers of draws, default 16,32,64,128,256")
      ->delimiter(',')
      ->transform(count);
  app.add_option("--sampling", samplings, "independent, stratified, importance (the default), mixture")
      ->delimiter(',')
      ->check(CLI::IsMember({"independent", "stratified", "importance", "mixture"}).description(""));
  app.add_option("--seed", options.seed, "First seed of the draws and of generated data, default 1")
      ->transform(poslsh_examples::a_seed());
  app.add_option("--seeds", options.seeds, "Errors are means over so many seeds, default 1")->transform(count);
  app.add_option("--repeat", options.repeat, "Times are medians over so many runs a seed, default 3")
      ->transform(count);
  app.add_option("--threads", options.threads, "Threads, default 1")
      ->transform(whole<Index>(1, 1024, "a number from 1 to 1024"));
  app.add_flag("--per-head", options.per_head, "Print a table for each head too (the CSV always has them)");
  app.add_option("--csv", options.csv, "Write all results to this file")->check(a_file_name());
  app.add_option("--plot", options.plot, "Draw error against draws into this .png or .svg file, by gnuplot")
      ->check(a_file_name());
  app.add_option("--save", options.save, "Write the activations to this .npy file")->check(a_file_name());
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) throw UsageError(error.what());
    app.exit(error);
    return std::nullopt;
  }
  for (const MethodName& method : all_methods)
    if (contains(methods, method.name)) options.methods.push_back(method.kind);
  options.samplings.clear();
  for (const auto& [sampling, name] : all_samplings)
    if (contains(samplings, name)) options.samplings.push_back(sampling);
  check(options);
  return options;
}

}  // namespace compare
