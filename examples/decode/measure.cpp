// SPDX-License-Identifier: MIT
#include "measure.hpp"

#include <algorithm>
#include <chrono>
#include <map>

#include "../support/progress.hpp"
#include "token_source.hpp"

namespace decode {
namespace {

/// Eight records a decade of tokens, the last at the end.
std::vector<Index> record_points(Index tokens) {
  std::vector<Index> points{tokens};
  for (int k = 1; points.back() > 100; ++k) {
    const auto point = static_cast<Index>(std::llround(static_cast<double>(tokens) * std::pow(10, -k / 8.0)));
    if (point < points.back()) points.push_back(point);
  }
  std::reverse(points.begin(), points.end());
  return points;
}

/// The outputs of the last tokens before each record are kept, and compared.
constexpr Index compared = 8;
using Outputs = std::map<Index, std::vector<float>>;  // by token

/// Keys read a token, roughly, in the long run; full counts as what its limits may come to.
double expected_work(Method method, const Options& options) {
  double sigmas = 0;
  for (const double slope : poslsh::alibi_slopes(options.heads)) sigmas += 1 / slope;
  const double score_bound = options.query_bound();  // keys are about sqrt(head_dim) long, and so is the scale
  const double bounded = sigmas * (std::log1p(1 / options.tolerance) + 2 * score_bound);
  return method == Method::mean_mask ? 10 * sigmas : bounded;
}

template <class Bias, class Storage>
void run(Run& run, const std::vector<Bias>& biases, const poslsh::AttentionOptions& attention,
         std::optional<double> query_bound, const Options& options, Outputs& outputs,
         poslsh_examples::Progress& progress) {
  using Clock = std::chrono::steady_clock;
  poslsh::StreamingAttention<float, Bias, Storage> stream(biases, options.heads, options.head_dim, options.head_dim,
                                                          attention, query_bound);
  TokenSource source(options);
  std::vector<float> output(static_cast<std::size_t>(options.heads * options.head_dim));
  const auto out = poslsh::TensorView<float>::heads_first(output.data(), 1, options.heads, 1, options.head_dim);
  const double work = expected_work(run.method, options);
  const std::size_t most_bytes = static_cast<std::size_t>(options.full_mib) << 20;
  double seconds = 0;
  Index token = 0;
  const auto record = [&] {
    Record next{.tokens = token, .seconds = seconds, .bytes = stream.bytes()};
    const Record before = run.records.empty() ? Record{} : run.records.back();
    next.tokens_per_second = static_cast<double>(token - before.tokens) / (seconds - before.seconds);
    for (Index head = 0; head < options.heads; ++head) next.cached_tokens += stream.cached_tokens(head);
    run.records.push_back(next);
  };
  bool ended = false;
  for (const Index point : record_points(options.tokens)) {
    while (token < point && !ended) {
      source.make(token);
      const auto start = Clock::now();
      stream.step(source.queries(), source.keys(), source.values(), out);
      seconds += std::chrono::duration<double>(Clock::now() - start).count();
      if (point - token <= compared) outputs[token] = output;
      ++token;
      ended = run.method == Method::full && (seconds > options.full_seconds || stream.bytes() > most_bytes);
      progress.advance(work);
    }
    record();
    if (ended) break;
  }
  progress.advance(work * static_cast<double>(options.tokens - token));
}

template <class Storage>
Run run_method(Method method, const Options& options, Outputs& outputs, poslsh_examples::Progress& progress) {
  Run result{method, {}};
  poslsh::AttentionOptions attention{.threads = options.threads};
  const std::vector<double> slopes = poslsh::alibi_slopes(options.heads);
  if (method == Method::mean_mask) {
    std::vector<poslsh::MeanMask> masks;
    masks.reserve(slopes.size());
    for (std::size_t head = 0; head < slopes.size(); ++head)
      masks.emplace_back(poslsh::draw_hashes(poslsh::LaplaceKernel{1 / slopes[head]}, options.samples, options.seed,
                                             options.sampling, static_cast<std::uint64_t>(head)));
    run<poslsh::MeanMask, Storage>(result, masks, attention, std::nullopt, options, outputs, progress);
    return result;
  }
  std::vector<poslsh::AlibiBias> biases;
  biases.reserve(slopes.size());
  for (const double slope : slopes) biases.push_back({slope});
  std::optional<double> query_bound;
  if (method == Method::bounded) {
    attention.tolerance = options.tolerance;
    query_bound = options.query_bound();
  }
  run<poslsh::AlibiBias, Storage>(result, biases, attention, query_bound, options, outputs, progress);
  return result;
}

/// ||a - b|| / ||b|| over the tokens before this point that both have; nothing if there is none.
std::optional<double> relative_error(const Outputs& a, const Outputs& b, Index point) {
  double error = 0, norm = 0;
  bool any = false;
  for (auto own = a.lower_bound(point - compared); own != a.end() && own->first < point; ++own) {
    const auto other = b.find(own->first);
    if (other == b.end()) continue;
    any = true;
    for (std::size_t i = 0; i < own->second.size(); ++i) {
      const double right = static_cast<double>(other->second[i]);
      error += std::pow(static_cast<double>(own->second[i]) - right, 2);
      norm += right * right;
    }
  }
  return any && norm > 0 ? std::optional<double>(std::sqrt(error / norm)) : std::nullopt;
}

}  // namespace

std::vector<Run> measure(const Options& options) {
  double total = 0;
  for (const Method method : options.methods)
    total += expected_work(method, options) * static_cast<double>(options.tokens);
  poslsh_examples::Progress progress(total);
  std::vector<Run> runs;
  std::vector<Outputs> outputs;
  for (const Method method : options.methods) {
    Outputs& own = outputs.emplace_back();
    if (options.storage == "half")
      runs.push_back(run_method<Eigen::half>(method, options, own, progress));
    else if (options.storage == "bfloat16")
      runs.push_back(run_method<Eigen::bfloat16>(method, options, own, progress));
    else
      runs.push_back(run_method<float>(method, options, own, progress));
  }
  for (std::size_t run = 0; run < runs.size(); ++run)
    for (Record& record : runs[run].records)
      for (std::size_t exact = 0; exact < run && !record.error; ++exact)
        if (runs[exact].method != Method::mean_mask)
          record.error = relative_error(outputs[run], outputs[exact], record.tokens);
  return runs;
}

}  // namespace decode
