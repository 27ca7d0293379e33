// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The register-blocked product of the backward pass: out += P^T X, the left factor read by columns.

#include "poslsh/attention/micro_kernel.hpp"

namespace poslsh::inline POSLSH_SIMD::detail {

/// Keys in a block: one column of the left factor each. Sizes follow the register file, as in micro_kernel.hpp.
inline constexpr int column_keys = value_rows;

/// Asks for memory that is not in a near cache and will soon be written.
template <class T>
EIGEN_ALWAYS_INLINE void prefetch_to_write([[maybe_unused]] const T* place) {
#if defined(__GNUC__) || defined(__clang__)
  __builtin_prefetch(place, 1);
#endif
}

/// out[j, 0 .. Packets) += sum_{r < count} weights[r, j] rows[r, :], in packets of features, j < Keys. The tile's own
/// sum starts at 0, see add_values_block.
template <class T, int Keys, int Packets>
inline void add_columns_block(const T* weights, Index weight_stride, const T* rows, Index row_stride, Index count,
                              T* out, Index out_stride) {
  constexpr int W = packet_size<T>;
  Packet<T> sum[Keys][Packets];
  unrolled<Keys>([&](auto j) POSLSH_INLINE_LAMBDA {
    unrolled<Packets>([&](auto c) POSLSH_INLINE_LAMBDA {
      sum[j][c] = pset1<Packet<T>>(T(0));
      prefetch_to_write(out + j * out_stride + c * W);
    });
  });
  for (Index r = 0; r < count; ++r, weights += weight_stride, rows += row_stride) {
    Packet<T> row[Packets];
    unrolled<Packets>([&](auto c) POSLSH_INLINE_LAMBDA { row[c] = ploadu<Packet<T>>(rows + c * W); });
    unrolled<Keys>([&](auto j) POSLSH_INLINE_LAMBDA {
      const Packet<T> weight = pset1<Packet<T>>(weights[j]);
      unrolled<Packets>([&](auto c) POSLSH_INLINE_LAMBDA { sum[j][c] = pmadd(weight, row[c], sum[j][c]); });
    });
  }
  unrolled<Keys>([&](auto j) POSLSH_INLINE_LAMBDA {
    unrolled<Packets>([&](auto c) POSLSH_INLINE_LAMBDA {
      T* to = out + j * out_stride + c * W;
      pstoreu(to, padd(ploadu<Packet<T>>(to), sum[j][c]));
    });
  });
}

/// The same for any number of features, a whole number of packets.
template <class T, int Keys>
inline void add_columns(const T* weights, Index weight_stride, const T* rows, Index row_stride, Index count, T* out,
                        Index out_stride, Index features) {
  constexpr Index W = packet_size<T>;
  Index f = 0;
  for (; f + value_packets * W <= features; f += value_packets * W)
    add_columns_block<T, Keys, value_packets>(weights, weight_stride, rows + f, row_stride, count, out + f, out_stride);
  const int rest = static_cast<int>((features - f) / W);
  unrolled<value_packets - 1>([&](auto less) {
    constexpr int packets = decltype(less)::value + 1;
    if (rest == packets)
      add_columns_block<T, Keys, packets>(weights, weight_stride, rows + f, row_stride, count, out + f, out_stride);
  });
}

}  // namespace poslsh::inline POSLSH_SIMD::detail
