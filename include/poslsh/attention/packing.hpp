// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Inputs laid out as the products want them.

#include "poslsh/attention/micro_kernel.hpp"
#include "poslsh/attention/storage.hpp"
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

/// Key rows, transposed in panels of panel_keys<T> keys: element (t, c) of a panel is feature t of its key c. Panels are
/// counted from key row 0; places past the last row hold 0. Kept as S, read as T. Memory: one copy of the keys.
template <class T, class S = T>
class PackedKeys {
 public:
  explicit PackedKeys(Index depth) : depth_(depth) {}

  /// Packs the panels that meet rows [range.begin, range.end).
  PackedKeys(Strided<const S> keys, KeyRange range, int threads) : depth_(keys.cols) {
    static_assert(key_tile<T> % panel_keys<T> == 0);
    if (range.empty()) return;
    first_ = range.begin / panel_keys<T>;
    const Index panels = round_up(range.end, panel_keys<T>) / panel_keys<T> - first_;
    data_ = Buffer<S>(places(panels * panel_keys<T>));
    constexpr Index chunk = 16;
    parallel_for((panels + chunk - 1) / chunk, threads, [&](Index task, int) {
      Scratch scratch;
      for (Index p = task * chunk; p < (std::min)(panels, (task + 1) * chunk); ++p)
        pack(keys, (first_ + p) * panel_keys<T>, data_.data() + p * panel_size(), scratch);
    });
  }

  /// The panel that holds this key row.
  [[nodiscard]] const S* panel(Index key) const {
    return data_.data() + (key / panel_keys<T> - first_) * panel_size();
  }
  /// The same as T, perhaps a copy in `wide`.
  [[nodiscard]] const T* panel(Index key, [[maybe_unused]] Buffer<T>& wide) const {
    if constexpr (std::is_same_v<S, T>) {
      return panel(key);
    } else {
      wide.require(places(panel_keys<T>));
      read_row(panel(key), 1, panel_size(), wide.data());
      return wide.data();
    }
  }
  [[nodiscard]] Index depth() const { return depth_; }

  /// Room for at least `keys` rows, of which the first `kept` keep what they hold.
  void reserve(Index keys, Index kept) {
    const Index size = places(keys);
    if (size <= data_.size()) return;
    Buffer<S> larger(size);
    std::copy_n(data_.data(), round_up(kept, panel_keys<T>) * depth_, larger.data());
    data_ = std::move(larger);
  }
  /// Zeros in the panels of the first `keys` rows.
  void clear(Index keys) { std::fill_n(data_.data(), round_up(keys, panel_keys<T>) * depth_, S(0)); }
  /// Writes key rows [first, first + keys.rows), for which there must be room; panels must be written from their first
  /// key on.
  template <class From>
  void write(Index first, Strided<const From> keys) {
    Scratch scratch;
    for (Index j = 0; j < keys.rows;) {
      const Index inside = (first + j) % panel_keys<T>;
      S* panel = data_.data() + (first + j - inside) * depth_;
      if (inside == 0 && j + panel_keys<T> <= keys.rows) {
        pack(keys, j, panel, scratch);
        j += panel_keys<T>;
        continue;
      }
      if (inside == 0) std::fill_n(panel, panel_size(), S(0));
      for (Index t = 0; t < depth_; ++t) panel[t * panel_keys<T> + inside] = static_cast<S>(keys(j, t));
      ++j;
    }
  }
  /// Key row j becomes what row j + panels panel_keys was, for the first `keys` rows after them.
  void drop_front(Index panels, Index keys) {
    std::copy_n(data_.data() + panels * panel_size(), round_up(keys, panel_keys<T>) * depth_, data_.data());
  }
  /// Feature t of a key row.
  [[nodiscard]] S at(Index key, Index t) const {
    const Index inside = key % panel_keys<T>;
    return data_[(key - inside - first_ * panel_keys<T>) * depth_ + t * panel_keys<T> + inside];
  }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(data_.size()) * sizeof(S); }

 private:
  struct Scratch {
    Buffer<T> rows, panel;
  };
  [[nodiscard]] Index panel_size() const { return panel_keys<T> * depth_; }
  /// Room for so many keys; of one feature where they have none, for places in a panel are counted then too.
  [[nodiscard]] Index places(Index keys) const { return round_up(keys, panel_keys<T>) * (std::max)(depth_, Index{1}); }

  /// Packs key rows from `begin` on into a panel.
  template <class From>
  void pack(Strided<const From> keys, Index begin, S* to, Scratch& scratch) {
    if constexpr (std::is_same_v<S, T>) {
      transpose(keys, begin, to, scratch);
    } else {  // by way of T, whose packets can be transposed
      scratch.panel.require(panel_size());
      transpose(keys, begin, scratch.panel.data(), scratch);
      for (Index i = 0; i < panel_size(); ++i) to[i] = static_cast<S>(scratch.panel[i]);
    }
  }

  template <class From>
  void transpose(Strided<const From> keys, Index begin, T* panel, Scratch& scratch) {
    constexpr int W = packet_size<T>;
    for (Index c = 0; c < panel_keys<T>; c += W) {
      const Strided<const T> packet = readable(keys, begin + c, scratch.rows);
      Index t = 0;
      if (packet.rows == W)
        for (; t + W <= depth_; t += W) transpose_square(packet.data + t, packet.row_stride, panel + t * panel_keys<T> + c);
      for (; t < depth_; ++t)
        for (Index lane = 0; lane < W; ++lane)
          panel[t * panel_keys<T> + c + lane] = lane < packet.rows ? packet(lane, t) : T(0);
    }
  }

  /// The (at most) packet of key rows from `first` on with unit feature stride, in place if they lie so.
  template <class From>
  Strided<const T> readable(Strided<const From> keys, Index first, Buffer<T>& rows) {
    const Index count = std::clamp<Index>(keys.rows - first, 0, packet_size<T>);
    if constexpr (std::is_same_v<From, T>)
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

  Buffer<S> data_;
  Index depth_ = 0, first_ = 0;
};

/// A tile of values the product can read: rows of whole packets with unit feature stride, in place where that is how
/// they lie, else copied and padded with zeros.
template <class T>
struct ValueTile {
  const T* data;
  Index stride;

  /// The tile from row `first` on; only its rows in `range` will be read.
  template <class S>
  ValueTile(Strided<const S> values, Index first, KeyRange range, Buffer<T>& copy) {
    constexpr Index W = packet_size<T>;
    if constexpr (std::is_same_v<S, T>)
      if (values.col_stride == 1 && values.cols % W == 0) {
        data = values.row(first);
        stride = values.row_stride;
        return;
      }
    stride = round_up(values.cols, W);
    copy.require(key_tile<T> * stride);
    for (Index j = range.begin; j < range.end; ++j) {
      T* row = copy.data() + j * stride;
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
