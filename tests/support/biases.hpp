// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Biases as users may write them, and one of every kind for property tests.

#include "poslsh/attention/bias.hpp"
#include "poslsh/mask/mean_mask.hpp"
#include "support/random_matrix.hpp"

#include <cmath>
#include <limits>

namespace poslsh::test {

/// m with m size <= position < (m + 1) size.
inline Index floor_divide(Index position, Index size) {
  const Index quotient = position / size;
  return quotient * size > position ? quotient - 1 : quotient;
}

/// A user's bias without any hint: weights that follow no rule, a support that moves in steps.
struct RaggedBias {
  [[nodiscard]] double log_weight(Index query, Index key) const {
    return 2 * random_uniform(7, static_cast<std::uint64_t>(query), static_cast<std::uint64_t>(key)) - 1;
  }
  [[nodiscard]] KeyRange support(Index query) const {
    return {10 * floor_divide(query - 50, 10), 16 * floor_divide(query + 90, 16)};
  }
  template <class T>
  void add_log_weights(Index query, Index first_key, T* scores, Index count) const {
    for (Index t = 0; t < count; ++t) scores[t] += static_cast<T>(log_weight(query, first_key + t));
  }
};

/// A user's bias of the offset alone, w = 1 - |offset| / reach: nothing is defined outside its support.
struct TriangleBias {
  Index reach;
  [[nodiscard]] double log_weight_at(Index offset) const {
    const double distance = static_cast<double>(offset < 0 ? -offset : offset);
    return std::log(1 - distance / static_cast<double>(reach));
  }
  [[nodiscard]] double log_weight(Index query, Index key) const { return log_weight_at(key - query); }
  [[nodiscard]] KeyRange support(Index query) const { return {query - reach + 1, query + reach}; }
  template <class T>
  void add_log_weights(Index query, Index first_key, T* scores, Index count) const {
    for (Index t = 0; t < count; ++t) scores[t] += static_cast<T>(log_weight(query, first_key + t));
  }
};

/// ALiBi over the keys before the query, without its own: log w = -infinity at offset 0.
struct PastBias {
  double slope;
  [[nodiscard]] double log_weight_at(Index offset) const {
    return offset < 0 ? slope * static_cast<double>(offset) : -std::numeric_limits<double>::infinity();
  }
  [[nodiscard]] double log_weight(Index query, Index key) const { return log_weight_at(key - query); }
  [[nodiscard]] KeyRange support(Index query) const { return {min_position, query}; }
  template <class T>
  void add_log_weights(Index query, Index first_key, T* scores, Index count) const {
    for (Index t = 0; t < count; ++t) scores[t] += static_cast<T>(log_weight(query, first_key + t));
  }
};

inline std::vector<PositionHash> random_hashes(Dice& dice) {
  const double sigma = dice.pick({0.4, 3.0, 40.0, 1000.0});
  return draw_hashes(LaplaceKernel{sigma}, dice.pick<Index>({1, 5, 64}),
                     static_cast<std::uint64_t>(dice.below(1000)),
                     dice.pick({Sampling::independent, Sampling::stratified, Sampling::importance}));
}

inline constexpr int bias_kinds = 6;

/// Calls check(bias, name) with a bias of this kind.
template <class Check>
void with_bias(int kind, Dice& dice, Check&& check) {
  switch (kind) {
    case 0:
      return check(NoBias{}, "NoBias");
    case 1: {
      const double slope = dice.pick({0.0, 0.004, 0.25, 3.0, -0.02});
      return dice.chance(0.5)
                 ? check(AlibiBias{slope}, "AlibiBias")
                 : check(AlibiBias{slope, dice.pick({0.0, 0.06, -0.01})}, "AlibiBias, two slopes");
    }
    case 2:
      return check(FixedBlocks{dice.pick<Index>({1, 7, 64, 100, 1000000})}, "FixedBlocks");
    case 3:
      return check(MeanMask(random_hashes(dice)), "MeanMask");
    case 4:
      return check(RaggedBias{}, "RaggedBias");
    default:
      return check(TriangleBias{dice.pick<Index>({1, 30, 500})}, "TriangleBias");
  }
}

}  // namespace poslsh::test
