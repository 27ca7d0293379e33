// SPDX-License-Identifier: MIT
#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "../support/gnuplot.hpp"
#include "../support/validators.hpp"

namespace decode {
namespace {

constexpr std::array<std::pair<poslsh::Sampling, std::string_view>, 4> all_samplings{{
    {poslsh::Sampling::independent, "independent"},
    {poslsh::Sampling::stratified, "stratified"},
    {poslsh::Sampling::importance, "importance"},
    {poslsh::Sampling::mixture, "mixture"},
}};

template <class Names>
CLI::Validator one_of(const Names& all) {
  std::vector<std::string> names;
  names.reserve(std::size(all));
  for (const auto& name : all) names.emplace_back(name);
  return CLI::IsMember(names).description("");
}

std::string method_help() {
  std::string text = "Methods to run, default all:";
  for (const MethodName& method : all_methods)
    text += "\n" + std::string(method.name) + ": " + std::string(method.meaning);
  return text;
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  using poslsh_examples::between;
  using poslsh_examples::whole;
  Options options;
  std::vector<std::string> methods, method_names;
  for (const MethodName& method : all_methods) method_names.emplace_back(method.name);
  methods = method_names;
  std::string sampling = "importance";

  CLI::App app(
      "Decodes a long stream of unit normal queries, keys and values, one token at a time, through one layer of ALiBi\n"
      "heads: tokens a second, tokens cached and bytes as the stream grows. The data are made up on the fly; only the\n"
      "steps are timed.",
      "decode");
  app.add_option("--methods", methods, method_help())->delimiter(',')->check(one_of(method_names));
  app.add_option("--tokens", options.tokens, "Tokens of the stream, default 1000000")
      ->transform(whole<Index>(1, 1000000000000, "a number from 1 to 1e12"));
  app.add_option("--heads", options.heads, "Heads, with the standard slopes, default 8")
      ->transform(whole<Index>(1, 1024, "a number from 1 to 1024"));
  app.add_option("--head-dim", options.head_dim, "Features a head, default 64")
      ->transform(whole<Index>(1, 65536, "a number from 1 to 65536"));
  app.add_option("--samples", options.samples, "Draws of the mean masks, default 32")
      ->transform(whole<Index>(1, 1000000, "a number from 1 to 1000000"));
  app.add_option("--sampling", sampling, "independent, stratified, importance (the default), mixture")
      ->check(one_of(std::array{"independent", "stratified", "importance", "mixture"}));
  app.add_option("--tolerance", options.tolerance, "Of bounded, default 2^-24")
      ->check(between(1e-300, 1, "a number above 0, at most 1"));
  app.add_option("--max-query-norm", options.max_query_norm,
                 "Of bounded: longer queries are shortened to it, for every method;\ndefault 1.5 sqrt(head_dim)")
      ->check(between(1e-30, 1e30, "a positive number"));
  app.add_option("--full-seconds", options.full_seconds, "full ends when its steps have taken so long, default 120")
      ->check(between(0, 1e9, "a number from 0 to 1e9"));
  app.add_option("--full-mib", options.full_mib, "full ends when its cache takes so many MiB, default 4096")
      ->transform(whole<Index>(1, 1 << 24, "a number from 1 to 16777216"));
  app.add_option("--storage", options.storage, "Of the caches: float (the default), half, bfloat16")
      ->check(one_of(std::array{"float", "half", "bfloat16"}));
  app.add_option("--seed", options.seed, "Of the draws and of the data, default 1")->transform(poslsh_examples::a_seed());
  app.add_option("--threads", options.threads, "Threads, default 1")
      ->transform(whole<Index>(1, 1024, "a number from 1 to 1024"));
  app.add_option("--csv", options.csv, "Write all results to this file")->check(poslsh_examples::a_file_name());
  app.add_option("--plot", options.plot, "Draw them into this .png or .svg file, by gnuplot")
      ->check(poslsh_examples::a_file_name());
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) throw UsageError(error.what());
    app.exit(error);
    return std::nullopt;
  }
  if (!options.plot.empty() && !poslsh_examples::is_picture_name(options.plot))
    throw UsageError("--plot: " + options.plot + " ends neither in .png nor in .svg");
  for (const MethodName& method : all_methods)
    if (std::find(methods.begin(), methods.end(), method.name) != methods.end())
      options.methods.push_back(method.method);
  for (const auto& [kind, name] : all_samplings)
    if (sampling == name) options.sampling = kind;
  return options;
}

}  // namespace decode
