// SPDX-License-Identifier: MIT
#include "measure.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "../support/progress.hpp"

namespace compare {
namespace {

using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::Matrix;
using poslsh::PositionHash;

std::vector<Case> make_cases(std::size_t heads, const Options& options) {
  std::vector<Case> cases;
  if (!options.sigmas.empty()) {
    for (std::size_t group = 0; group < options.sigmas.size(); ++group)
      for (std::size_t head = 0; head < heads; ++head)
        cases.push_back({head, group, 1 / options.sigmas[group]});
    return cases;
  }
  const std::vector<double> slopes =
      options.slopes.empty() ? poslsh::alibi_slopes(static_cast<Index>(heads)) : options.slopes;
  if (slopes.size() != heads)
    throw UsageError("--slopes: " + std::to_string(slopes.size()) + " slopes for " + std::to_string(heads) +
                     " heads; give one a head, or --sigma for every head");
  for (std::size_t head = 0; head < heads; ++head) cases.push_back({head, 0, slopes[head]});
  return cases;
}

std::vector<Method> make_methods(const Options& options) {
  std::vector<Method> methods;
  for (const MethodKind kind : options.methods) {
    if (!draws(kind)) {
      methods.push_back({kind});
      continue;
    }
    for (const poslsh::Sampling sampling : options.samplings)
      for (const Index samples : options.samples) methods.push_back({kind, sampling, samples});
  }
  return methods;
}

Index fixed_block_size(double sigma) {
  return static_cast<Index>(std::clamp(std::round(2 * sigma), 1.0, 0x1p52));
}

/// The keys a query is scored against, as a mean over n tokens.
struct KeyCounts {
  double by_blocks = 0;  ///< block by block, summed over the hashes
  double in_union = 0;   ///< in the union of its blocks
};

KeyCounts count_keys(std::span<const PositionHash> hashes, Index n, bool causal) {
  std::vector<poslsh::KeyRange> reach(static_cast<std::size_t>(n), {n, 0});
  double block_pairs = 0, union_pairs = 0;
  for (const PositionHash& hash : hashes) {
    const poslsh::BlockMask mask(hash, n);
    for (const poslsh::KeyRange& block : mask.blocks()) {
      const auto size = static_cast<double>(block.size());
      block_pairs += causal ? size * (size + 1) / 2 : size * size;
      for (Index i = block.begin; i < block.end; ++i) {
        poslsh::KeyRange& range = reach[static_cast<std::size_t>(i)];
        range = {std::min(range.begin, block.begin), std::max(range.end, block.end)};
      }
    }
  }
  for (Index i = 0; i < n; ++i) {
    const poslsh::KeyRange& range = reach[static_cast<std::size_t>(i)];
    union_pairs += static_cast<double>((causal ? i + 1 : range.end) - range.begin);
  }
  return {block_pairs / static_cast<double>(n), union_pairs / static_cast<double>(n)};
}

KeyCounts count_keys(const Method& method, std::span<const PositionHash> hashes, double sigma, Index n,
                     bool causal) {
  PositionHash fixed;  // one block of everything
  if (method.kind == MethodKind::fixed_blocks) fixed.width = static_cast<double>(fixed_block_size(sigma));
  KeyCounts counts =
      count_keys(draws(method.kind) ? hashes : std::span<const PositionHash>(&fixed, 1), n, causal);
  if (method.kind == MethodKind::blocks_ratio || method.kind == MethodKind::blocks_mean)
    counts.in_union = counts.by_blocks;
  return counts;
}

template <class T>
AttentionOutput<T> attend(const Method& method, const HeadData<T>& head, double slope,
                          const std::vector<PositionHash>& hashes, const AttentionOptions& options) {
  const auto with = [&](const auto& bias) {
    return attention(head.query, head.key, head.value, bias, options);
  };
  const auto by_blocks = [&](poslsh::Merge merge) {
    return poslsh::blockwise_attention(head.query, head.key, head.value, hashes, options, merge);
  };
  switch (method.kind) {
    case MethodKind::exact:
      return with(poslsh::AlibiBias{slope});
    case MethodKind::no_bias:
      return with(poslsh::NoBias{});
    case MethodKind::fixed_blocks:
      return with(poslsh::FixedBlocks{fixed_block_size(1 / slope)});
    case MethodKind::one_sweep:
      return with(poslsh::MeanMask(hashes));
    case MethodKind::blocks_ratio:
      return by_blocks(poslsh::Merge::ratio);
    case MethodKind::blocks_mean:
      return by_blocks(poslsh::Merge::mean);
  }
  return {};
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

/// One head with one slope, and what all methods are held against.
template <class T>
class Bench {
 public:
  Bench(const HeadData<T>& head, const Case& which, const Options& options)
      : head_(head), case_(which), options_(options) {
    attention_options_.causal = options.causal;
    attention_options_.threads = options.threads;
    reference_ = poslsh::attention(head.query.template cast<double>(), head.key.template cast<double>(),
                                   head.value.template cast<double>(), poslsh::AlibiBias{which.slope},
                                   attention_options_)
                     .values;
    largest_value_ = static_cast<double>(head.value.cwiseAbs().maxCoeff());
  }

  Measurement measure(const Method& method) const {
    Measurement measurement;
    std::vector<double> seconds;
    const Index seeds = draws(method.kind) ? options_.seeds : 1;
    for (Index s = 0; s < seeds; ++s) {
      std::vector<PositionHash> hashes;
      AttentionOutput<T> output;
      for (Index r = 0; r < options_.repeat; ++r) {
        const auto start = std::chrono::steady_clock::now();
        if (draws(method.kind))
          hashes =
              poslsh::draw_hashes(poslsh::LaplaceKernel{case_.sigma()}, method.samples,
                                  options_.seed + static_cast<std::uint64_t>(s), method.sampling, case_.head);
        output = attend(method, head_, case_.slope, hashes, attention_options_);
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      }
      measurement.runs.push_back(judge(method, output.values, hashes));
    }
    measurement.seconds = median(std::move(seconds));
    return measurement;
  }

 private:
  Run judge(const Method& method, const Matrix<T>& values, std::span<const PositionHash> hashes) const {
    const Matrix<double> error = values.template cast<double>() - reference_;
    if (!error.allFinite())
      throw UsageError("the activations of head " + std::to_string(case_.head) + " are so large that scores or sums overflow");
    const double largest = error.cwiseAbs().maxCoeff();
    const KeyCounts keys = count_keys(method, hashes, case_.sigma(), reference_.rows(), options_.causal);
    return {error.squaredNorm(), reference_.squaredNorm(),
            largest_value_ > 0 ? largest / largest_value_ : largest, keys.in_union, keys.by_blocks};
  }

  const HeadData<T>& head_;
  const Case& case_;
  const Options& options_;
  AttentionOptions attention_options_;
  Matrix<double> reference_;
  double largest_value_ = 0;
};

/// What a method will cost, roughly, in keys a query: for the progress bar only.
double expected_keys(const Method& method, double sigma, double tokens, const Options& options) {
  if (!draws(method.kind)) return tokens;
  const double in_block = std::min(2 * sigma + 1, tokens);
  const double keys =
      method.kind == MethodKind::one_sweep ? tokens : in_block * static_cast<double>(method.samples);
  return keys * static_cast<double>(options.seeds);
}

}  // namespace

Measurements measure(const AnyActivations& activations, const Options& options) {
  return std::visit(
      [&]<class T>(const Activations<T>& data) {
        Measurements measurements{make_cases(data.heads.size(), options), make_methods(options), {}};
        const auto tokens = static_cast<double>(data.tokens());
        double total = 0;
        for (const Case& which : measurements.cases)
          for (const Method& method : measurements.methods)
            total += expected_keys(method, which.sigma(), tokens, options);
        poslsh_examples::Progress progress(total);
        for (const Case& which : measurements.cases) {
          const Bench<T> bench(data.heads[which.head], which, options);
          for (const Method& method : measurements.methods) {
            measurements.all.push_back(bench.measure(method));
            progress.advance(expected_keys(method, which.sigma(), tokens, options));
          }
        }
        return measurements;
      },
      activations);
}

}  // namespace compare
