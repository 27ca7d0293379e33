// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What attention asks of a positional bias: which keys, and what log weight.

#include "poslsh/core/types.hpp"

#include <cmath>
#include <concepts>
#include <limits>

namespace poslsh::inline POSLSH_SIMD {

/// A bias gives each pair of absolute positions a weight w(query, key) >= 0, as a logarithm:
/// - `support(query)`: the contiguous keys of positive weight (+-2^62 for no end); both ends never decrease with the
///   query;
/// - `log_weight(query, key)`: log w, for keys in the support;
/// - `add_log_weights(query, first_key, scores, count)`: scores[t] += log w(query, first_key + t) for t < count, in
///   float and in double, called for keys inside the support only.
/// Attention computes softmax_j(score(i, j) + log w(i, j)) over the support. A bias is called from several threads at
/// once and must not change.
///
/// Optional members, each a hint that lets attention do less work:
/// - `validate()`: checks its parameters; attention calls it first;
/// - `static constexpr bool unit_weights = true`: log w is 0 on the whole support;
/// - `log_weight_at(offset)`: log w for key = query + offset, for a bias that depends on the offset alone;
/// - `log_tail(offset)`: for such a bias that is monotone on either side of 0, a bound on the log of the sum of w over
///   all offsets from this one (not 0) outwards, infinity where there is none. Lets AttentionOptions::tolerance work;
/// - `static constexpr bool has_slopes = true`: log w = slope offset at offset <= 0 and -right_slope offset beyond, as
///   for AlibiBias: attention_backward then gives the derivatives by both slopes.
template <class B>
concept PositionBias = requires(const B& bias, Index position, float* floats, double* doubles) {
  { bias.log_weight(position, position) } -> std::convertible_to<double>;
  { bias.support(position) } -> std::convertible_to<KeyRange>;
  bias.add_log_weights(position, position, floats, position);
  bias.add_log_weights(position, position, doubles, position);
};

/// Every key, weight 1: plain softmax attention.
struct NoBias {
  /// See PositionBias.
  static constexpr bool unit_weights = true;
  /// 0.
  [[nodiscard]] double log_weight(Index, Index) const { return 0; }
  /// Every key.
  [[nodiscard]] KeyRange support(Index) const { return {min_position, max_position}; }
  /// Adds 0: does nothing.
  template <class T>
  void add_log_weights(Index, Index, T*, Index) const {}
};

/// ALiBi: log w = -slope (query - key) for keys at or before the query, -right_slope (key - query) for later ones.
///
/// Slopes are per token, finite, and may be 0 or negative. right_slope defaults to slope (the symmetric form).
struct AlibiBias {
  /// See PositionBias.
  static constexpr bool has_slopes = true;
  double slope;                ///< of keys at or before the query
  double right_slope = slope;  ///< of later keys

  /// log w for key = query + offset.
  [[nodiscard]] double log_weight_at(Index offset) const {
    return (offset <= 0 ? slope : -right_slope) * static_cast<double>(offset);
  }
  /// log w(query, key).
  [[nodiscard]] double log_weight(Index query, Index key) const { return log_weight_at(key - query); }
  /// The geometric series exp(-slope |offset|) / (1 - exp(-slope)).
  [[nodiscard]] double log_tail(Index offset) const {
    const double decay = offset < 0 ? slope : right_slope;
    if (!(decay > 0)) return std::numeric_limits<double>::infinity();
    return log_weight_at(offset) - std::log(-std::expm1(-decay));
  }
  /// Every key.
  [[nodiscard]] KeyRange support(Index) const { return {min_position, max_position}; }

  /// See PositionBias.
  template <class T>
  void add_log_weights(Index query, Index first_key, T* scores, Index count) const {
    for (Index t = 0; t < count; ++t) scores[t] += static_cast<T>(log_weight_at(first_key + t - query));
  }

  /// \throws Error unless both slopes are finite and at least -2^64
  void validate() const {
    check(slope, "slope");
    check(right_slope, "right_slope");
  }

 private:
  /// A float holds the log weight at any distance, be it -infinity; what grows may not reach +infinity.
  static void check(double value, const char* name) {
    POSLSH_CHECK(std::isfinite(value) && value >= -0x1p64, name, value, "finite, at least -2^64");
  }
};

/// Blocks [m size, (m + 1) size) of positions, weight 1 inside the query's own: local block attention.
struct FixedBlocks {
  /// See PositionBias.
  static constexpr bool unit_weights = true;
  Index size;  ///< positions in a block

  /// 0 inside the query's block, -infinity outside.
  [[nodiscard]] double log_weight(Index query, Index key) const {
    return support(query).contains(key) ? 0 : -std::numeric_limits<double>::infinity();
  }
  /// The query's block.
  [[nodiscard]] KeyRange support(Index query) const {
    const Index remainder = query % size;  // takes the query's sign
    const Index begin = query - (remainder < 0 ? remainder + size : remainder);
    return {begin, begin + size};
  }
  /// Adds 0: does nothing.
  template <class T>
  void add_log_weights(Index, Index, T*, Index) const {}

  /// \throws Error unless 1 <= size <= 2^52
  void validate() const { POSLSH_CHECK(size >= 1 && size <= Index{1} << 52, "size", size, "between 1 and 2^52"); }
};

namespace detail {

template <class B>
concept UnitWeights = PositionBias<B> && requires { requires B::unit_weights; };

template <class B>
concept OffsetBias = PositionBias<B> && requires(const B& bias, Index offset) {
  { bias.log_weight_at(offset) } -> std::convertible_to<double>;
};

template <class B>
concept SlopeBias = PositionBias<B> && requires { requires B::has_slopes; };

template <PositionBias B>
void validate(const B& bias) {
  if constexpr (requires { bias.validate(); }) bias.validate();
}

}  // namespace detail
}  // namespace poslsh::inline POSLSH_SIMD
