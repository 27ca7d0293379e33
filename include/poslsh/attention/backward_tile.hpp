// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The five products of a backward pass for one tile of queries and one of keys; nothing here depends on the bias.

#include "poslsh/attention/backward_head.hpp"
#include "poslsh/attention/column_kernel.hpp"

namespace poslsh::inline POSLSH_SIMD::detail {

/// Scratch and products of one thread; O(tile (head_dim + value_dim + backward_keys)).
///
/// Told the rows of queries once, then for each tile of keys which of them each row sees, it computes
///   scores Q K^T and dO V^T, for the caller to turn into P and dZ;  dQ += dZ K;  dV += P^T dO and dK += dZ^T Q.
template <class T, class S>
class BackwardTile {
 public:
  BackwardTile(Index head_dim, Index value_dim)
      : depth_(round_up(head_dim, W)), features_(round_up(value_dim, W)),
        queries_(query_tile * row_stride(depth_)), d_values_(query_tile * row_stride(features_)),
        weights_(query_tile * stride), d_scores_(query_tile * stride), d_queries_(query_tile * depth_) {}

  /// Query rows [first, first + count), scaled; derivatives by the values of the same rows, times `share`.
  void load(Strided<const T> queries, T scale, Strided<const T> d_values, T share, Index first, Index count) {
    count_ = count;
    for (Index r = 0; r < query_tile; ++r) {
      T* query = queries_.data() + r * row_stride(depth_);
      T* d_value = d_values_.data() + r * row_stride(features_);
      std::fill(query, query + depth_, T(0));
      std::fill(d_value, d_value + features_, T(0));
      if (r >= count) continue;
      copy_row(queries.row(first + r), queries.col_stride, scale, queries.cols, query, 1);
      copy_row(d_values.row(first + r), d_values.col_stride, share, d_values.cols, d_value, 1);
    }
    rows_finite_ = finite(queries_, depth_) && finite(d_values_, features_);
    std::fill(d_queries_.data(), d_queries_.data() + d_queries_.size(), T(0));
    // Whole blocks of rows are read.
    std::fill(weights_.data() + count * stride, weights_.data() + weights_.size(), T(0));
    std::fill(d_scores_.data() + count * stride, d_scores_.data() + d_scores_.size(), T(0));
  }

  /// Goes to a tile of keys: of its key rows in `keys`, row r sees those in visible[r]. False if no row sees any.
  bool see(Index tile, KeyRange keys, const KeyRange* visible) {
    tile_ = tile;
    seen_ = {backward_keys, 0};
    for (Index r = 0; r < count_; ++r) {
      local_[r] = {std::clamp(visible[r].begin, keys.begin, keys.end) - tile,
                   std::clamp(visible[r].end, keys.begin, keys.end) - tile};
      if (!local_[r].empty())
        seen_ = {(std::min)(seen_.begin, local_[r].begin), (std::max)(seen_.end, local_[r].end)};
    }
    for (Index r = 0; r < count_; r += score_rows) hulls_[r / score_rows] = hull(r, score_rows);
    return !seen_.empty();
  }

  /// Of the tile of keys: the columns that row r sees, and those that some row does.
  [[nodiscard]] KeyRange columns(Index r) const { return local_[r]; }
  [[nodiscard]] KeyRange columns() const { return seen_; }
  /// First the scores of a row and its dO V^T, which the caller replaces by P and dZ; 0 in the columns that other rows
  /// see and it does not.
  [[nodiscard]] T* weights(Index r) { return weights_.data() + r * stride; }
  [[nodiscard]] T* d_scores(Index r) { return d_scores_.data() + r * stride; }
  [[nodiscard]] const T* d_values(Index r) const { return d_values_.data() + r * row_stride(features_); }
  /// dQ of a row so far, before the scale.
  [[nodiscard]] const T* d_queries(Index r) const { return d_queries_.data() + r * depth_; }

  void multiply(const PackedKeys<T, S>& keys, const PackedKeys<T, S>& values) {
    multiply(queries_, row_stride(depth_), keys, weights_);
    multiply(d_values_, row_stride(features_), values, d_scores_);
  }

  /// dQ += dZ K. Where a key that some row does not see is not finite, row by row over the keys it sees.
  void add_to_queries(Strided<const S> key_rows) {
    const ValueTile<T> keys(key_rows, tile_, seen_, copy_);
    enum { unknown, yes, no } finite = unknown;
    for (Index first = 0; first < count_; first += value_rows) {
      const KeyRange range = hull(first, value_rows);
      if (range.empty()) continue;
      const Index rows = std::min<Index>(value_rows, count_ - first);
      bool ragged = false;
      for (Index r = first; r < first + rows; ++r) ragged = ragged || local_[r] != range;
      if (ragged && finite == unknown) finite = keys.finite(seen_.begin, seen_.end, depth_) ? yes : no;
      const auto add = [&](auto block, Index r, KeyRange seen) {
        add_values<T, decltype(block)::value>(d_scores(r) + seen.begin, stride, keys.data + seen.begin * keys.stride,
                                              keys.stride, seen.size(), d_queries_.data() + r * depth_, depth_, depth_);
      };
      if (rows < value_rows / 2 || (ragged && finite == no)) {
        for (Index r = first; r < first + rows; ++r)
          if (!local_[r].empty()) add(std::integral_constant<int, 1>{}, r, local_[r]);
      } else {
        add(std::integral_constant<int, value_rows>{}, first, range);
      }
    }
  }

  /// dV += P^T dO, dK += dZ^T Q.
  void add_to_keys(const GradientRows<T>& dk, const GradientRows<T>& dv) {
    add_to_keys(weights_, d_values_, features_, dv);
    add_to_keys(d_scores_, queries_, depth_, dk);
  }

 private:
  static constexpr Index W = packet_size<T>;
  static_assert(backward_keys % panel_keys<T> == 0 && backward_keys <= key_tile<T> && backward_keys <= 2 * key_group);

  /// An odd number of cache lines, so that a column spreads over all sets of a cache.
  static constexpr Index row_stride(Index features) {
    constexpr Index line = (std::max)(Index{64 / sizeof(T)}, W);
    const Index lines = round_up(features, line) / line;
    return (lines + 1 - lines % 2) * line;
  }
  static constexpr Index stride = row_stride(backward_keys);

  [[nodiscard]] bool finite(const Buffer<T>& rows, Index features) {
    const Strided<const T> view{rows.data(), count_, features, row_stride(features), 1};
    return ValueTile<T>(view, 0, {0, count_}, copy_).finite(0, count_, features);
  }

  /// The smallest range that holds the columns of rows [first, first + count).
  [[nodiscard]] KeyRange hull(Index first, Index count) const {
    return hull_of(local_ + first, (std::min)(count, count_ - first));
  }

  /// Rows times packed ones, where blocks of rows see columns: whole packets.
  void multiply(const Buffer<T>& rows, Index row_stride, const PackedKeys<T, S>& packed, Buffer<T>& to) {
    for (Index begin = seen_.begin - seen_.begin % panel_keys<T>; begin < seen_.end; begin += panel_keys<T>) {
      const T* panel = packed.panel(tile_ + begin, wide_);
      for (Index first = 0; first < count_; first += score_rows) {
        const KeyRange range = intersect(hulls_[first / score_rows], {begin, begin + panel_keys<T>});
        if (range.empty()) continue;
        const Index column = round_down(range.begin, W), width = round_up(range.end, W) - column;
        T* out = to.data() + first * stride + column;
        unrolled<score_packets>([&](auto less) POSLSH_INLINE_LAMBDA {
          constexpr int packets = decltype(less)::value + 1;
          if (width != packets * W) return;
          score_panel<T, score_rows, packets>(rows.data() + first * row_stride, row_stride, panel + (column - begin),
                                              packed.depth(),
                                              [&](auto r, auto c, Packet<T> sum) POSLSH_INLINE_LAMBDA {
                                                pstoreu(out + r * stride + c * W, sum);
                                              });
        });
      }
    }
  }

  /// out += weights^T rows, by slices of features, so that those of the rows stay in the first-level cache. Where rows
  /// that do not see a key are not finite, key by key over the rows that do.
  void add_to_keys(const Buffer<T>& weights, const Buffer<T>& rows, Index features, const GradientRows<T>& out) {
    constexpr Index slice = value_packets * W;
    for (Index f = 0; f < features; f += slice) {
      const auto add = [&](auto block, Index column, KeyRange seeing) {
        if (seeing.empty()) return;
        add_columns<T, decltype(block)::value>(
            weights.data() + seeing.begin * stride + column, stride, rows.data() + seeing.begin * row_stride(features) + f,
            row_stride(features), seeing.size(), out.row(tile_ + column) + f, out.stride(), (std::min)(slice, features - f));
      };
      constexpr std::integral_constant<int, 1> one;
      constexpr std::integral_constant<int, column_keys> several;
      Index column = seen_.begin;
      for (; column + column_keys <= seen_.end; column += column_keys) {
        const KeyRange seeing = rows_seeing(column, column + column_keys - 1);
        if (seeing.empty()) continue;
        const bool ragged =
            local_[seeing.begin].end < column + column_keys || local_[seeing.end - 1].begin > column;
        if (ragged && !rows_finite_)
          for (Index j = column; j < column + column_keys; ++j) add(one, j, rows_seeing(j, j));
        else
          add(several, column, seeing);
      }
      for (; column < seen_.end; ++column) add(one, column, rows_seeing(column, column));
    }
  }

  /// The rows that see some of columns first .. last: contiguous, since both ends of what a row sees never decrease.
  [[nodiscard]] KeyRange rows_seeing(Index first, Index last) const {
    const KeyRange* end = local_ + count_;
    const KeyRange* begin =
        std::partition_point(local_, end, [&](const KeyRange& range) { return range.end <= first; });
    end = std::partition_point(begin, end, [&](const KeyRange& range) { return range.begin <= last; });
    return {begin - local_, end - local_};
  }

  Index depth_, features_;
  Index tile_ = 0, count_ = 0;
  KeyRange local_[query_tile], hulls_[query_tile / score_rows], seen_;
  bool rows_finite_ = true;
  Buffer<T> queries_, d_values_, weights_, d_scores_, d_queries_, copy_, wide_;
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
