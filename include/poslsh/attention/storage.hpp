// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Rows read from where they lie, perhaps from a type of 16 bits.

#include "poslsh/core/types.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace poslsh::inline POSLSH_SIMD::detail {

/// The type attention computes in: float for the types of 16 bits.
template <class S>
using Compute = std::conditional_t<std::is_same_v<S, Eigen::half> || std::is_same_v<S, Eigen::bfloat16>, float, S>;

/// The bits of the float that these 16 bits are. Exact, infinities and NaN included; without branches, so that
/// compilers make packets of a loop over it.
template <class S>
[[nodiscard]] constexpr std::uint32_t widened_bits(std::uint32_t bits) {
  if constexpr (std::is_same_v<S, Eigen::bfloat16>) {
    return bits << 16;
  } else {
    // The factor moves the exponent's bias, also of denormal numbers.
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(std::bit_cast<float>((bits & 0x7fff) << 13) * 0x1p112f);
    const std::uint32_t not_finite = (bits & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
    return magnitude | not_finite | (bits & 0x8000) << 16;
  }
}

/// to[t to_stride] = factor from[t from_stride] for t < count; fast where both strides are 1.
template <class T>
void copy_row(const T* from, Index from_stride, T factor, Index count, T* to, Index to_stride) {
  if (from_stride == 1 && to_stride == 1)
    for (Index t = 0; t < count; ++t) to[t] = factor * from[t];
  else
    for (Index t = 0; t < count; ++t) to[t * to_stride] = factor * from[t * from_stride];
}

inline constexpr Index widen_step = 16;

/// to[i] = from[i] for i < widen_step: copies and loops of a known size, which are packets at any optimisation.
template <class S>
inline void widen(const S* from, float* to) {
  std::uint16_t narrow[widen_step];
  std::uint32_t wide[widen_step];
  std::memcpy(narrow, static_cast<const void*>(from), sizeof narrow);
  for (Index i = 0; i < widen_step; ++i) wide[i] = widened_bits<S>(narrow[i]);
  std::memcpy(to, wide, sizeof wide);
}

/// to[t] = from[t from_stride] for t < count, perhaps from a narrower storage type.
template <class S, class T>
void read_row(const S* from, Index from_stride, Index count, T* to) {
  if constexpr (std::is_same_v<S, T>) {
    copy_row(from, from_stride, T(1), count, to, 1);
  } else {
    Index t = 0;
    if (from_stride == 1)
      for (; t + widen_step <= count; t += widen_step) widen(from + t, to + t);
    for (; t < count; t += widen_step) {
      S some[widen_step] = {};
      T wide[widen_step];
      const Index rest = (std::min)(widen_step, count - t);
      for (Index i = 0; i < rest; ++i) some[i] = from[(t + i) * from_stride];
      widen(some, wide);
      std::copy_n(wide, rest, to + t);
    }
  }
}

}  // namespace poslsh::inline POSLSH_SIMD::detail
