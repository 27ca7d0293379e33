// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Rows read from where they lie, perhaps from a type of 16 bits.

#include "poslsh/attention/simd.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace poslsh::inline POSLSH_SIMD::detail {

/// The type attention computes in: float for the types of 16 bits.
template <class S>
using Compute = std::conditional_t<std::is_same_v<S, Eigen::half> || std::is_same_v<S, Eigen::bfloat16>, float, S>;

/// The bits of the floats that these bits of 16-bit numbers are: `Bits` is std::uint32_t or a vector of them. Exact,
/// infinities and NaN included.
template <class S, class Bits, class Floats>
[[nodiscard]] EIGEN_ALWAYS_INLINE Bits widened_bits(Bits bits) {
  if constexpr (std::is_same_v<S, Eigen::bfloat16>) {
    return bits << 16;
  } else {
    // The factor moves the exponent's bias, also of denormal numbers.
    const Bits magnitude = std::bit_cast<Bits>(std::bit_cast<Floats>((bits & 0x7fff) << 13) * 0x1p112f);
    const Bits not_finite = (((bits & 0x7c00) + 0x400) & 0x8000) * 0xff00;  // 0x7f800000 where the exponent is full
    return magnitude | not_finite | ((bits & 0x8000) << 16);
  }
}

#if defined(__GNUC__) || defined(__clang__)
template <int W>
struct WideningVectors {
  using Narrow [[gnu::vector_size(W * 2)]] = std::uint16_t;
  using Bits [[gnu::vector_size(W * 4)]] = std::uint32_t;
  using Floats [[gnu::vector_size(W * 4)]] = float;
};
#endif

/// A packet of numbers, perhaps from a narrower storage type.
template <class T, class S>
[[nodiscard]] EIGEN_ALWAYS_INLINE Packet<T> load_packet(const S* from) {
  if constexpr (std::is_same_v<S, T>) {
    return ploadu<Packet<T>>(from);
  } else {
    constexpr int W = packet_size<T>;
#if defined(__GNUC__) || defined(__clang__)
    if constexpr (sizeof(Packet<T>) == W * sizeof(T) && W > 1) {
      using Vectors = WideningVectors<W>;
      typename Vectors::Narrow narrow;
      std::memcpy(&narrow, static_cast<const void*>(from), sizeof narrow);
      const typename Vectors::Bits bits = __builtin_convertvector(narrow, typename Vectors::Bits);
      return std::bit_cast<Packet<T>>(widened_bits<S, typename Vectors::Bits, typename Vectors::Floats>(bits));
    }
#endif
    T wide[W];
    for (int i = 0; i < W; ++i)
      wide[i] = std::bit_cast<float>(widened_bits<S, std::uint32_t, float>(std::bit_cast<std::uint16_t>(from[i])));
    return ploadu<Packet<T>>(wide);
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

/// to[t] = from[t from_stride] for t < count, perhaps from a narrower storage type.
template <class S, class T>
void read_row(const S* from, Index from_stride, Index count, T* to) {
  if constexpr (std::is_same_v<S, T>) {
    copy_row(from, from_stride, T(1), count, to, 1);
  } else {
    constexpr Index W = packet_size<T>;
    Index t = 0;
    if (from_stride == 1)
      for (; t + W <= count; t += W) pstoreu(to + t, load_packet<T>(from + t));
    for (; t < count; t += W) {
      S narrow[W] = {};
      T wide[W];
      const Index rest = (std::min)(W, count - t);
      for (Index i = 0; i < rest; ++i) narrow[i] = from[(t + i) * from_stride];
      pstoreu(wide, load_packet<T>(narrow));
      std::copy_n(wide, rest, to + t);
    }
  }
}

}  // namespace poslsh::inline POSLSH_SIMD::detail
