// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The two register-blocked products of a tile: scores = Q K^T and output += P V.
///
/// Sizes follow the register file. With 32 registers, scores use 8 rows x 3 packets of keys and values 6 rows x 4
/// packets of features (24 accumulators); with 16, 4 x 3 and 6 x 2 (12 accumulators).

#include "poslsh/attention/storage.hpp"

namespace poslsh::inline POSLSH_SIMD::detail {

inline constexpr int score_rows = many_registers ? 8 : 4;
inline constexpr int score_packets = 3;
inline constexpr int value_rows = 6;
inline constexpr int value_packets = many_registers ? 4 : 2;

/// Keys in a packed panel: one column block of the score product.
template <class T>
inline constexpr Index panel_keys = score_packets * packet_size<T>;

/// finish(r, c, packet): packet c of sum_t queries[r, t] panel[t, :], for r < Rows and c < Packets; the panel holds
/// `depth` rows of panel_keys keys, as T or narrower.
template <class T, int Rows, int Packets, class S, class Finish>
EIGEN_ALWAYS_INLINE void score_panel(const T* queries, Index query_stride, const S* panel, Index depth,
                                     Finish&& finish) {
  constexpr int W = packet_size<T>;
  Packet<T> sum[Rows][Packets];
  unrolled<Rows>([&](auto r) POSLSH_INLINE_LAMBDA {
    unrolled<Packets>([&](auto c) POSLSH_INLINE_LAMBDA { sum[r][c] = pset1<Packet<T>>(T(0)); });
  });
  for (Index t = 0; t < depth; ++t, panel += panel_keys<T>) {
    Packet<T> keys[Packets];
    unrolled<Packets>([&](auto c) POSLSH_INLINE_LAMBDA { keys[c] = load_packet<T>(panel + c * W); });
    unrolled<Rows>([&](auto r) POSLSH_INLINE_LAMBDA {
      const Packet<T> query = pset1<Packet<T>>(queries[r * query_stride + t]);
      unrolled<Packets>([&](auto c) POSLSH_INLINE_LAMBDA { sum[r][c] = pmadd(query, keys[c], sum[r][c]); });
    });
  }
  unrolled<Rows>([&](auto r) POSLSH_INLINE_LAMBDA {
    unrolled<Packets>([&](auto c) POSLSH_INLINE_LAMBDA { finish(r, c, sum[r][c]); });
  });
}

/// out[r, 0 .. Packets) += sum_{j < count} weights[r, j] values[j, :], in packets of features, r < Rows.
/// The tile's own sum starts at 0: added one by one to a long row's total, its terms would lose half their accuracy.
template <class T, int Rows, int Packets, class S>
inline void add_values_block(const T* weights, Index weight_stride, const S* values, Index value_stride, Index count,
                             T* out, Index out_stride) {
  constexpr int W = packet_size<T>;
  Packet<T> sum[Rows][Packets];
  unrolled<Rows>([&](auto r) POSLSH_INLINE_LAMBDA {
    unrolled<Packets>([&](auto c) POSLSH_INLINE_LAMBDA { sum[r][c] = pset1<Packet<T>>(T(0)); });
  });
  for (Index j = 0; j < count; ++j, values += value_stride) {
    Packet<T> value[Packets];
    unrolled<Packets>([&](auto c) POSLSH_INLINE_LAMBDA { value[c] = load_packet<T>(values + c * W); });
    unrolled<Rows>([&](auto r) POSLSH_INLINE_LAMBDA {
      const Packet<T> weight = pset1<Packet<T>>(weights[r * weight_stride + j]);
      unrolled<Packets>([&](auto c) POSLSH_INLINE_LAMBDA { sum[r][c] = pmadd(weight, value[c], sum[r][c]); });
    });
  }
  unrolled<Rows>([&](auto r) POSLSH_INLINE_LAMBDA {
    unrolled<Packets>([&](auto c) POSLSH_INLINE_LAMBDA {
      T* to = out + r * out_stride + c * W;
      pstoreu(to, padd(ploadu<Packet<T>>(to), sum[r][c]));
    });
  });
}

/// The same for any number of features, a whole number of packets.
template <class T, int Rows, class S>
inline void add_values(const T* weights, Index weight_stride, const S* values, Index value_stride, Index count,
                       T* out, Index out_stride, Index features) {
  constexpr Index W = packet_size<T>;
  Index f = 0;
  for (; f + value_packets * W <= features; f += value_packets * W)
    add_values_block<T, Rows, value_packets>(weights, weight_stride, values + f, value_stride, count, out + f,
                                             out_stride);
  const int rest = static_cast<int>((features - f) / W);
  unrolled<value_packets - 1>([&](auto less) {
    constexpr int packets = decltype(less)::value + 1;
    if (rest == packets)
      add_values_block<T, Rows, packets>(weights, weight_stride, values + f, value_stride, count, out + f, out_stride);
  });
}

}  // namespace poslsh::inline POSLSH_SIMD::detail
