// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Random calls of attention for property tests, small and around the sizes of tiles, and what rounding may cost them.

#include "poslsh/attention/blockwise.hpp"
#include "support/biases.hpp"
#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random_matrix.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace poslsh::test {

/// Shapes and options of one call.
struct Call {
  Index queries = 1, keys = 1, head_dim = 1, value_dim = 1;
  AttentionOptions options = {};

  template <class T>
  [[nodiscard]] Inputs<T> inputs(std::uint64_t seed) const {
    return normal_inputs<T>(queries, keys, head_dim, value_dim, seed);
  }
};

inline Index call_tokens(Dice& dice) {
  if (dice.chance(0.5)) return dice.below(60);
  return dice.pick<Index>({1, 7, 8, 47, 48, 95, 96, 97, 150, 191, 193, 383, 385, 450});
}

/// Anything at all within so many pairs, without a tolerance.
inline Call random_call(Dice& dice, Index most_pairs = 30000) {
  Call call;
  do {
    call.queries = call_tokens(dice);
    call.keys = call_tokens(dice);
  } while (call.queries * call.keys > most_pairs);
  call.head_dim = dice.pick<Index>({1, 2, 3, 8, 16, 17});
  call.value_dim = dice.pick<Index>({1, 2, 3, 8, 17});
  AttentionOptions& options = call.options;
  options.threads = dice.pick({1, 1, 1, 1, 1, 2});
  options.causal = dice.chance(0.4);
  if (dice.chance(0.3)) options.scale = dice.pick({0.0, 1.0, -0.3});
  if (dice.chance(0.4)) options.key_offset = dice.pick<Index>({1, -7, 1000, (Index{1} << 40) + 3}) + dice.below(50);
  if (dice.chance(0.4))
    options.query_offset = options.key_offset + dice.pick<Index>({-5, 0, 3, call.keys / 2, call.keys - call.queries, call.keys + 40});
  if (dice.chance(0.3)) options.window_left = dice.pick<Index>({0, 5, 100});
  if (dice.chance(0.3)) options.window_right = dice.pick<Index>({0, 5, 100});
  if (dice.chance(0.2)) options.softcap = dice.pick({0.5, 30.0});
  if (dice.chance(0.3)) options.sink = dice.pick({-3.0, 0.0, 2.0});
  return call;
}

/// A random order of 0 .. count - 1.
inline std::vector<Index> random_order(Dice& dice, Index count) {
  std::vector<Index> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), Index{0});
  for (Index i = count - 1; i > 0; --i) std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(dice.below(i + 1))]);
  return order;
}

/// These rows of a matrix, in this order.
template <class T>
Matrix<T> rows_in(const Matrix<T>& matrix, const std::vector<Index>& order) {
  Matrix<T> rows(static_cast<Index>(order.size()), matrix.cols());
  for (Index i = 0; i < rows.rows(); ++i) rows.row(i) = matrix.row(order[static_cast<std::size_t>(i)]);
  return rows;
}

/// How far apart two results may be that differ in their rounding only: some units of what the logits of a row, in
/// magnitude, lose in T. A log weight that counts is no larger than the row's log-sum-exp and the scores together.
template <class T>
class Rounding {
 public:
  explicit Rounding(const Inputs<T>& x, const AttentionOptions& options = {}, double units = 4)
      : unit_(units * static_cast<double>(std::numeric_limits<T>::epsilon())) {
    const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(x.q.cols())));
    largest_score_ = std::abs(scale) * longest(x.q) * longest(x.k);
    if (options.softcap) largest_score_ = std::min(largest_score_, *options.softcap);
    largest_value_ = x.v.size() == 0 ? 0 : static_cast<double>(x.v.cwiseAbs().maxCoeff());
  }

  [[nodiscard]] double of_log_sum_exp(double log_sum_exp) const {
    return unit_ * (1 + 2 * largest_score_ + (std::isfinite(log_sum_exp) ? std::abs(log_sum_exp) : 0));
  }
  [[nodiscard]] double of_values(double log_sum_exp) const { return of_log_sum_exp(log_sum_exp) * largest_value_; }

  /// Where a result is further from another, or nothing.
  [[nodiscard]] std::string unlike(const AttentionOutput<T>& got, const AttentionOutput<T>& wanted) const {
    if (got.values.rows() != wanted.values.rows() || got.values.cols() != wanted.values.cols()) return "shape of values";
    for (Index i = 0; i < got.values.rows(); ++i) {
      const double lse = wanted.log_sum_exp[i];
      const double value_error = distance(got.values.row(i), wanted.values.row(i));
      const double lse_error = distance(got.log_sum_exp.segment(i, 1), wanted.log_sum_exp.segment(i, 1));
      if (!(value_error <= of_values(lse)))
        return "row " + std::to_string(i) + ": values differ by " + std::to_string(value_error / of_values(lse)) + " of what they may";
      if (!(lse_error <= of_log_sum_exp(lse)))
        return "row " + std::to_string(i) + ": log_sum_exp differs by " + std::to_string(lse_error / of_log_sum_exp(lse)) + " of what it may";
    }
    return "";
  }

 private:
  [[nodiscard]] static double longest(const Matrix<T>& rows) {
    return rows.size() == 0 ? 0 : static_cast<double>(rows.rowwise().norm().maxCoeff());
  }
  double unit_, largest_score_ = 0, largest_value_ = 0;
};

inline constexpr std::uint64_t cases = 200;

/// One random call after the other, of each kind of bias in turn: check(seed, dice, call, inputs, bias).
template <class T, class Check>
void each_call(std::uint64_t first_seed, Index most_pairs, Check&& check) {
  for (std::uint64_t seed = first_seed; seed < first_seed + cases; ++seed) {
    Dice dice(seed);
    const Call call = random_call(dice, most_pairs);
    const Inputs<T> x = call.inputs<T>(seed);
    with_bias(static_cast<int>(seed) % bias_kinds, dice, [&](const auto& bias, const char* name) {
      const AttentionOptions& options = call.options;
      CAPTURE(seed, name, call.queries, call.keys, call.head_dim, call.value_dim, options.causal, options.key_offset,
              options.query_offset.value_or(-1), options.window_left.value_or(-1), options.window_right.value_or(-1));
      check(seed, dice, call, x, bias);
    });
  }
}

/// Runs check(result) with attention, and for a mean mask with blockwise attention in both merges as well; each time as
/// a function of inputs, bias and options.
template <class Bias, class Check>
void each_way(const Bias&, Check&& check) {
  check([](const auto& x, const Bias& bias, const AttentionOptions& options) { return attention(x.q, x.k, x.v, bias, options); });
  if constexpr (std::is_same_v<Bias, MeanMask>)
    for (const Merge way : {Merge::ratio, Merge::mean})
      check([way](const auto& x, const Bias& bias, const AttentionOptions& options) {
        return blockwise_attention(x.q, x.k, x.v, bias.hashes(), options, way);
      });
}

/// Inputs of a causal call with other queries, keys and values from some position on: normal ones of this size, which may
/// be infinite or NaN. Rows of the kept queries must not change.
template <class T>
struct LaterTokens {
  Index kept_queries, kept_keys;
  T size;
  Inputs<T> changed;

  LaterTokens(Dice& dice, const Call& call, const AttentionOptions& options, const Inputs<T>& x, std::uint64_t seed) {
    const Index first = first_query(options, call.queries, call.keys);
    const Index cut = std::max(first, options.key_offset) + dice.below(std::max<Index>(std::min(call.queries, call.keys), 1));
    kept_queries = std::clamp<Index>(cut - first, 0, call.queries);
    kept_keys = std::clamp<Index>(cut - options.key_offset, 0, call.keys);
    size = static_cast<T>(dice.pick({1.0, 1e30, infinity, not_a_number}));
    changed = call.template inputs<T>(seed + 100000);
    for (Matrix<T>* rows : {&changed.q, &changed.k, &changed.v}) *rows *= size;
    changed.q.topRows(kept_queries) = x.q.topRows(kept_queries);
    changed.k.topRows(kept_keys) = x.k.topRows(kept_keys);
    changed.v.topRows(kept_keys) = x.v.topRows(kept_keys);
  }
};

}  // namespace poslsh::test
