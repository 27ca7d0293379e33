// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Inputs laid out as the products want them.

#include "poslsh/attention/micro_kernel.hpp"
#include "poslsh/core/buffer.hpp"
#include "poslsh/core/parallel.hpp"
#include "poslsh/core/strided.hpp"

#include <algorithm>

namespace poslsh::inline POSLSH_SIMD::detail {

/// Queries in a tile: a multiple of the rows of either product.
inline constexpr Index query_tile = 96;
static_assert(query_tile % score_rows == 0 && query_tile % value_rows == 0);

/// Keys in a tile: scores of a tile (147 KB in float) and its keys and values stay in the second-level cache.
template <class T>
inline constexpr Index key_tile = 384;

/// The nearest multiple of unit at or below n, of any sign; at or above n >= 0.
[[nodiscard]] constexpr Index round_down(Index n, Index unit) { return n - (n % unit + unit) % unit; }
[[nodiscard]] constexpr Index round_up(Index n, Index unit) { return (n + unit - 1) / unit * unit; }

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
  } else if (from_stride == 1) {  // Eigen converts whole packets
    Eigen::Map<Vector<T>>(to, count) = Eigen::Map<const Vector<S>>(from, count).template cast<T>();
  } else {
    for (Index t = 0; t < count; ++t) to[t] = static_cast<T>(from[t * from_stride]);
  }
}

/// The key rows of a range, transposed in panels of panel_keys<T> keys: element (t, c) of a panel is feature t of its
/// key c. Panels are counted from key row 0; places past the last row hold 0. Memory: one copy of the keys.
template <class T>
class PackedKeys {
 public:
  /// Packs the panels that meet rows [range.begin, range.end), from T or a narrower storage type.
  template <class S>
  PackedKeys(Strided<const S> keys, KeyRange range, int threads) : depth_(keys.cols) {
    static_assert(key_tile<T> % panel_keys<T> == 0);
    if (range.empty()) return;
    first_ = range.begin / panel_keys<T>;
    const Index panels = round_up(range.end, panel_keys<T>) / panel_keys<T> - first_;
    data_ = Buffer<T>(panels * panel_keys<T> * depth_);
    constexpr Index chunk = 16;
    parallel_for((panels + chunk - 1) / chunk, threads, [&](Index task, int) {
      Buffer<T> rows;
      for (Index p = task * chunk; p < (std::min)(panels, (task + 1) * chunk); ++p) pack(keys, first_ + p, rows);
    });
  }

  /// The panel that holds this key row.
  [[nodiscard]] const T* panel(Index key) const {
    return data_.data() + (key / panel_keys<T> - first_) * panel_keys<T> * depth_;
  }
  [[nodiscard]] Index depth() const { return depth_; }

 private:
  template <class S>
  void pack(Strided<const S> keys, Index panel_index, Buffer<T>& rows) {
    constexpr int W = packet_size<T>;
    const Index begin = panel_index * panel_keys<T>;
    T* panel = data_.data() + (panel_index - first_) * panel_keys<T> * depth_;
    for (Index c = 0; c < panel_keys<T>; c += W) {
      const Strided<const T> packet = readable(keys, begin + c, rows);
      Index t = 0;
      if (packet.rows == W)
        for (; t + W <= depth_; t += W) transpose_square(packet.data + t, packet.row_stride, panel + t * panel_keys<T> + c);
      for (; t < depth_; ++t)
        for (Index lane = 0; lane < W; ++lane)
          panel[t * panel_keys<T> + c + lane] = lane < packet.rows ? packet(lane, t) : T(0);
    }
  }

  /// The (at most) packet of key rows from `first` on with unit feature stride, in place if they lie so.
  template <class S>
  Strided<const T> readable(Strided<const S> keys, Index first, Buffer<T>& rows) {
    const Index count = std::clamp<Index>(keys.rows - first, 0, packet_size<T>);
    if constexpr (std::is_same_v<S, T>)
      if (keys.col_stride == 1) return keys.middle_rows(first, count);
    rows.require(packet_size<T> * depth_);
    for (Index lane = 0; lane < count; ++lane)
      read_row(keys.row(first + lane), keys.col_stride, depth_, rows.data() + lane * depth_);
    return {rows.data(), count, depth_, depth_, 1};
  }

  /// A square of packets: W keys by W features.
  static void transpose_square(const T* from, Index stride, T* to) {
    constexpr int W = packet_size<T>;
    PacketSquare<T> block;
    for (int i = 0; i < W; ++i) block.packet[i] = ploadu<Packet<T>>(from + i * stride);
    if constexpr (W > 1) Eigen::internal::ptranspose(block);
    for (int i = 0; i < W; ++i) pstoreu(to + i * panel_keys<T>, block.packet[i]);
  }

  Buffer<T> data_;
  Index depth_ = 0, first_ = 0;
};

/// A tile of values the product can read: rows of whole packets with unit feature stride, in place where that is how
/// they lie, else copied and padded with zeros.
template <class T>
struct ValueTile {
  const T* data;
  Index stride;

  template <class S>
  ValueTile(Strided<const S> values, Index first, Index count, Buffer<T>& copy) {
    constexpr Index W = packet_size<T>;
    if constexpr (std::is_same_v<S, T>)
      if (values.col_stride == 1 && values.cols % W == 0) {
        data = values.row(first);
        stride = values.row_stride;
        return;
      }
    stride = round_up(values.cols, W);
    copy.require(key_tile<T> * stride);
    for (Index j = 0; j < count; ++j) {
      T* row = &copy[j * stride];
      read_row(values.row(first + j), values.col_stride, values.cols, row);
      std::fill(row + values.cols, row + stride, T(0));
    }
    data = copy.data();
  }

  /// Whether rows [begin, end) hold neither infinity nor NaN in their first `features` places, whole packets.
  [[nodiscard]] bool finite(Index begin, Index end, Index features) const {
    constexpr Index W = packet_size<T>;
    const Packet<T> zero = pset1<Packet<T>>(T(0));
    Packet<T> sum = zero, other = zero;  // x * 0 is 0 for a finite x, else NaN
    for (Index j = begin; j < end; ++j) {
      const T* row = data + j * stride;
      Index f = 0;
      for (; f + 2 * W <= features; f += 2 * W) {
        sum = pmadd(ploadu<Packet<T>>(row + f), zero, sum);
        other = pmadd(ploadu<Packet<T>>(row + f + W), zero, other);
      }
      if (f < features) sum = pmadd(ploadu<Packet<T>>(row + f), zero, sum);
    }
    sum = padd(sum, other);
    return predux(sum) == T(0);
  }
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
