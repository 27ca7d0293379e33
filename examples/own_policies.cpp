// SPDX-License-Identifier: MIT
//
// Every policy of the library replaced by one of your own: the bias, the kernel of the distance, the sampler,
// and the attention inside a block. Each stands beside what the library has, with the relative error between
// the two.

#include <poslsh/poslsh.hpp>

#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

namespace {

using namespace poslsh;

// --- A bias: what PositionBias asks for, see attention/bias.hpp

/// ALiBi inside a window behind the query, nothing beyond: a support, so that attention visits no other key.
struct WindowedAlibi {
  double slope;
  Index window;

  [[nodiscard]] KeyRange support(Index query) const { return {query - window, query + 1}; }
  [[nodiscard]] double log_weight(Index query, Index key) const {
    return support(query).contains(key) ? -slope * static_cast<double>(query - key)
                                        : -std::numeric_limits<double>::infinity();
  }
  template <class T>
  void add_log_weights(Index query, Index first_key, T* scores, Index count) const {
    for (Index t = 0; t < count; ++t)
      scores[t] -= static_cast<T>(slope) * static_cast<T>(query - first_key - t);
  }
};
static_assert(PositionBias<WindowedAlibi>);

// --- A kernel and the law of its bin widths: DistanceKernel, see position/kernel.hpp

/// k(x) = (exp(-x / near) + exp(-x / far)) / 2. A mean of kernels has the mean of their densities and tails.
struct TwoScales {
  LaplaceKernel near, far;

  [[nodiscard]] double operator()(double x) const { return (near(x) + far(x)) / 2; }
  [[nodiscard]] double width_density(double w) const {
    return (near.width_density(w) + far.width_density(w)) / 2;
  }
  [[nodiscard]] double width_tail(double w) const { return (near.width_tail(w) + far.width_tail(w)) / 2; }
  /// It has no closed form: bisection, between the quantiles of the two.
  [[nodiscard]] double width_quantile(double p) const {
    double low = near.width_quantile(p), high = far.width_quantile(p);
    for (int step = 0; step < 60; ++step) {
      const double middle = (low + high) / 2;
      (width_tail(middle) > 1 - p ? low : high) = middle;
    }
    return low;
  }
};
static_assert(DistanceKernel<TwoScales>);

// --- A sampler: any list of PositionHash, see position/hash.hpp

/// Widths and shifts from an additive recurrence, whose points fill the unit square more evenly than random
/// ones (M. Roberts, The unreasonable effectiveness of quasirandom sequences, 2018).
std::vector<PositionHash> even_hashes(const LaplaceKernel& kernel, Index samples) {
  constexpr double g = 1.3247179572447460;  // g^3 = g + 1
  const auto fraction = [](double x) { return x - std::floor(x); };
  std::vector<PositionHash> hashes;
  for (Index r = 0; r < samples; ++r) {
    const double number = static_cast<double>(r) + 0.5;
    const double width = kernel.width_quantile(fraction(number / g));
    hashes.push_back({width, width * fraction(number / (g * g)), 1});  // width, shift, weight
  }
  return hashes;
}

// --- A short-context attention, see attention/blockwise.hpp

/// Softmax attention by its definition, for queries that see at least their own key. It reads no window and
/// no softcap.
const auto plain_attention = [](const auto& q, const auto& k, const auto& v,
                                const AttentionOptions& options) {
  Matrix<float> scores = static_cast<float>(*options.scale) * (q * k.transpose());
  for (Index i = 0; options.causal && i < q.rows(); ++i) {
    const Index seen = *options.query_offset + i + 1 - options.key_offset;
    if (seen < k.rows())
      scores.row(i).tail(k.rows() - seen).setConstant(-std::numeric_limits<float>::infinity());
  }
  const Vector<float> maximum = scores.rowwise().maxCoeff();
  const Matrix<float> weights = (scores.colwise() - maximum).array().exp();
  const Vector<float> sums = weights.rowwise().sum();
  AttentionOutput<float> output;
  output.values = sums.cwiseInverse().asDiagonal() * (weights * v);
  // Each draw counts by its softmax denominator.
  output.log_sum_exp = (maximum.array() + sums.array().log()).cast<double>();
  return output;
};

}  // namespace

int main() {
  const Matrix<float> q = Matrix<float>::Random(512, 64), k = Matrix<float>::Random(512, 64),
                      v = Matrix<float>::Random(512, 64);
  const AttentionOptions causal{.causal = true};
  const double slope = 1.0 / 16;
  bool good = true;
  const auto compare = [&](const char* what, const AttentionOutput<float>& mine,
                           const AttentionOutput<float>& theirs, double bound) {
    const double error = static_cast<double>((mine.values - theirs.values).norm() / theirs.values.norm());
    std::printf("%-60s %.1e\n", what, error);
    good = good && error <= bound;
    return error;
  };

  const WindowedAlibi bias{slope, 64};
  const auto windowed = attention(q, k, v, AlibiBias{slope}, {.causal = true, .window_left = bias.window});
  compare("own bias, beside AlibiBias and window_left:", attention(q, k, v, bias, causal), windowed, 1e-5);

  const TwoScales kernel{{4}, {64}};
  const MeanMask draws(draw_hashes(kernel, 256, /*seed=*/1));
  compare("256 draws for an own kernel, beside its exact KernelBias:", attention(q, k, v, draws, causal),
          attention(q, k, v, KernelBias{kernel}, causal), 0.05);

  const LaplaceKernel laplace{1 / slope};
  const auto exact = attention(q, k, v, AlibiBias{slope}, causal);
  const MeanMask random(draw_hashes(laplace, 256, /*seed=*/1, Sampling::independent));
  const MeanMask even(even_hashes(laplace, 256));
  const double by_chance =
      compare("256 independent draws of the library, beside AlibiBias:", attention(q, k, v, random, causal),
              exact, 0.2);
  compare("256 even draws of an own sampler, beside AlibiBias:", attention(q, k, v, even, causal), exact,
          by_chance);

  const std::vector<PositionHash> hashes = draw_hashes(laplace, 16, /*seed=*/1);
  compare("own attention in the blocks, beside the library's:",
          blockwise_attention(q, k, v, hashes, causal, Merge::ratio, plain_attention),
          blockwise_attention(q, k, v, hashes, causal), 1e-5);
  return good ? 0 : 1;
}
