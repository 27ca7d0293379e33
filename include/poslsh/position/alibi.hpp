// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The slopes of ALiBi (Press, Smith, Lewis: Train short, test long; arXiv 2108.12409).

#include "poslsh/core/types.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

namespace poslsh::inline POSLSH_SIMD {

/// The slope of each head, head 0 first.
///
/// With P the largest power of two <= heads: the first P slopes are 2^(-max_bias k / P), k = 1..P; the rest are the
/// odd terms k = 1, 3, 5, ... of the list for 2P heads. So 8 heads give 1/2, 1/4, ..., 1/256.
/// \param heads at least 1
/// \param max_bias the exponent of the last slope, positive and finite; 8 in the paper
/// \throws Error otherwise
[[nodiscard]] inline std::vector<double> alibi_slopes(Index heads, double max_bias = 8.0) {
  POSLSH_CHECK(heads >= 1 && heads <= Index{1} << 32, "heads", heads, "between 1 and 2^32");
  POSLSH_CHECK(max_bias > 0 && std::isfinite(max_bias), "max_bias", max_bias, "positive and finite");
  const Index power = static_cast<Index>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  std::vector<double> slopes;
  slopes.reserve(static_cast<std::size_t>(heads));
  for (Index k = 1; k <= power; ++k)
    slopes.push_back(std::exp2(-max_bias * static_cast<double>(k) / static_cast<double>(power)));
  for (Index k = 1; static_cast<Index>(slopes.size()) < heads; k += 2)
    slopes.push_back(std::exp2(-max_bias * static_cast<double>(k) / static_cast<double>(2 * power)));
  return slopes;
}

}  // namespace poslsh::inline POSLSH_SIMD
