// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The two products and the running softmax of one tile of queries; nothing here depends on the bias' type, so that
/// every bias shares the compiled kernels.

#include "poslsh/attention/packing.hpp"
#include "poslsh/attention/softmax.hpp"
#include "poslsh/attention/weights.hpp"

#include <cmath>

namespace poslsh::inline POSLSH_SIMD::detail {

/// Scratch and sums of one thread, O(tile (head_dim + value_dim + key_tile)).
///
/// Told the rows of queries once, then for each tile of keys which of them each row sees (see()), it computes, block
/// of rows by block of rows, the scores (score()) and their weights (weigh()), and adds the values (add_values()).
template <class T, class S>
class QueryTile {
 public:
  /// Query rows [first, first + count), scaled, without a key so far.
  void load(Strided<const T> queries, T scale, Index first, Index count, Index value_dim) {
    count_ = count;
    depth_ = queries.cols;
    features_ = round_up(value_dim, packet_size<T>);
    const Index room = (std::min)(query_tile, round_up(count, Index{score_rows} * value_rows));
    queries_.require(room * std::max<Index>(depth_, 1));
    scores_.require(room * key_tile<T>);
    out_.require(room * std::max<Index>(features_, 1));
    for (Index r = 0; r < count; ++r)
      copy_row(queries.row(first + r), queries.col_stride, scale, depth_, queries_.data() + r * depth_, 1);
    const Index padded = round_up(count, score_rows);
    std::fill(queries_.data() + count * depth_, queries_.data() + padded * depth_, T(0));
    std::fill(out_.data(), out_.data() + round_up(count, value_rows) * features_, T(0));
    std::fill(rows_, rows_ + count, RunningRow<T>{});
  }

  [[nodiscard]] const T* queries() const { return queries_.data(); }
  /// Of each row: the maximum of its scores so far, the sum of its weights; and its weighted sum of values.
  [[nodiscard]] const RunningRow<T>* rows() const { return rows_; }
  [[nodiscard]] const T* sums(Index r) const { return out_.data() + r * features_; }
  /// Pairs whose score was computed so far, whole packets counted.
  [[nodiscard]] Index visited_pairs() const { return visited_pairs_; }

  /// Goes to key rows [tile, tile + width), whole panels, of which row r sees those in visible[r]. False if none sees
  /// any.
  bool see(Index tile, Index width, const KeyRange* visible) {
    tile_ = tile;
    bool any = false;
    for (Index r = 0; r < round_up(count_, value_rows); ++r) {
      local_[r] = {0, 0};
      if (r >= count_) continue;
      const KeyRange range = intersect(visible[r], {tile, tile + width});
      if (range.empty()) continue;
      local_[r] = {range.begin - tile, range.end - tile};
      any = true;
    }
    return any;
  }

  /// Of the tile of keys: the columns that row r sees, and its scores, from the tile's first column on.
  [[nodiscard]] KeyRange columns(Index r) const { return local_[r]; }
  [[nodiscard]] T* scores(Index r) { return scores_.data() + r * key_tile<T>; }

  /// Scores of the block of score_rows rows from `first`: q.k, capped where softcap != 0, plus the row's log weights,
  /// log_weights[r - first] from the tile's first column on; nullptr: none.
  void score(const PackedKeys<T, S>& keys, Index first, double softcap, const T* const* log_weights) {
    if (count_ == 1)
      score_block<1>(keys, first, softcap, log_weights);
    else
      score_block<score_rows>(keys, first, softcap, log_weights);
  }

  /// Replaces the scores of a block by exp(score - maximum) and moves the rows' sums to their new maxima.
  /// \param changed  the scores are not what score() left
  void weigh(Index first, bool changed) {
    for (Index r = first; r < (std::min)(first + score_rows, count_); ++r) {
      const KeyRange range = local_[r];
      if (range.empty()) continue;
      const bool known = maxima_known_ && !changed && range == done_;
      weigh_row(r, range, known ? maxima_[r - first] : largest(scores(r), range));
    }
  }

  /// Adds the values of the tile, weighted, to each row's sum.
  void add_values_of(Strided<const S> values) {
    if (count_ == 1 && !std::is_same_v<S, T> && values.col_stride == 1 && values.cols == features_) {
      add_values<T, 1>(scores(0) + local_[0].begin, key_tile<T>, values.row(tile_ + local_[0].begin), values.row_stride,
                       local_[0].size(), out_.data(), features_, features_);
      return;
    }
    const ValueTile<T> tile(values, tile_, hull(0, count_), copy_);
    values_finite_ = Finite::unknown;
    for (Index r = 0; r < count_; r += value_rows) value_block(tile, r);
  }

 private:
  /// The smallest range that holds those of rows [first, first + count).
  KeyRange hull(Index first, Index count) const {
    return hull_of(local_ + first, (std::min)(count, count_ - first));
  }

  template <int Rows>
  void score_block(const PackedKeys<T, S>& keys, Index first, double softcap, const T* const* log_weights) {
    const KeyRange seen = hull(first, Rows);
    if (seen.empty()) return;
    constexpr Index W = packet_size<T>;
    done_ = {round_down(seen.begin, W), round_up(seen.end, W)};
    visited_pairs_ += done_.size() * std::min<Index>(Rows, count_ - first);
    const bool fused = log_weights != nullptr && softcap == 0;
    Packet<T> maxima[Rows];
    for (int r = 0; r < Rows; ++r) maxima[r] = pset1<Packet<T>>(-std::numeric_limits<T>::infinity());
    const T* queries = queries_.data() + first * depth_;
    for (Index column = done_.begin; column < done_.end;) {
      const Index inside = column % panel_keys<T>;
      const Index next = (std::min)(column - inside + panel_keys<T>, done_.end);
      const auto* panel = panel_for<Rows>(keys, tile_ + column) + inside;
      T* to = scores(first) + column;
      unrolled<score_packets>([&](auto less) POSLSH_INLINE_LAMBDA {
        constexpr int packets = decltype(less)::value + 1;
        if (next - column != packets * W) return;
        score_panel<T, Rows, packets>(
            queries, depth_, panel, depth_, [&](auto r, auto c, Packet<T> score) POSLSH_INLINE_LAMBDA {
              if (fused) score = padd(score, ploadu<Packet<T>>(log_weights[r] + column + c * W));
              pstoreu(to + r * key_tile<T> + c * W, score);
              maxima[r] = pmax(maxima[r], score);
            });
      });
      column = next;
    }
    for (int r = 0; r < Rows; ++r) maxima_[r] = predux_max(maxima[r]);
    maxima_known_ = softcap == 0;
    if (softcap != 0) cap_scores(first, softcap, log_weights);
  }

  /// A panel for this many rows: widened once for many, on the way in for one.
  template <int Rows>
  [[nodiscard]] auto panel_for(const PackedKeys<T, S>& keys, Index key) {
    if constexpr (Rows == 1)
      return keys.panel(key);
    else
      return keys.panel(key, wide_panel_);
  }

  /// What the product could not do on the way out: the cap, and the log weights that follow it.
  void cap_scores(Index first, double softcap, const T* const* log_weights) {
    for (Index r = first; r < (std::min)(first + score_rows, count_); ++r) {
      soft_cap(scores(r), local_[r], softcap);
      if (log_weights == nullptr) continue;
      for (Index j = local_[r].begin; j < local_[r].end; ++j) scores(r)[j] += log_weights[r - first][j];
    }
  }

  void weigh_row(Index r, KeyRange range, T tile_maximum) {
    RunningRow<T>& row = rows_[r];
    if (tile_maximum > row.maximum) {
      const T shrink = std::exp(row.maximum - tile_maximum);  // 0 for a row without finite scores so far
      row.maximum = tile_maximum;
      row.sum *= static_cast<double>(shrink);
      if (!row.empty)
        for (Index f = 0; f < features_; ++f) out_[r * features_ + f] *= shrink;
    }
    row.empty = false;
    // Where every score so far is -inf or NaN, any finite reference serves: exp gives 0 and NaN again.
    const T reference = row.maximum == -std::numeric_limits<T>::infinity() ? T(0) : row.maximum;
    row.sum += static_cast<double>(exponentiate(scores(r), range, reference));
  }

  /// Adds the values of the tile to one block of rows.
  void value_block(const ValueTile<T>& values, Index first) {
    const KeyRange seen = hull(first, value_rows);
    if (seen.empty()) return;
    const Index rows = std::min<Index>(value_rows, count_ - first);
    bool ragged = false;
    for (Index r = first; r < first + rows; ++r) ragged = ragged || local_[r] != seen;
    // A masked key has weight 0 in the block's product, and 0 x infinity would leave a trace.
    if (rows < value_rows / 2 || (ragged && !finite(values))) {
      for (Index r = first; r < first + rows; ++r)
        add_values<T, 1>(scores(r) + local_[r].begin, key_tile<T>, values.data + local_[r].begin * values.stride,
                         values.stride, local_[r].size(), out_.data() + r * features_, features_, features_);
      return;
    }
    for (Index r = first; r < first + value_rows; ++r) {
      T* weights = scores(r);
      const KeyRange range = local_[r].empty() ? KeyRange{seen.end, seen.end} : local_[r];
      std::fill(weights + seen.begin, weights + range.begin, T(0));
      std::fill(weights + range.end, weights + seen.end, T(0));
    }
    add_values<T, value_rows>(scores(first) + seen.begin, key_tile<T>, values.data + seen.begin * values.stride,
                              values.stride, seen.size(), out_.data() + first * features_, features_, features_);
  }

  /// Whether all values that some row of the tile sees are finite; found out at the first question.
  bool finite(const ValueTile<T>& values) {
    if (values_finite_ == Finite::unknown) {
      const KeyRange seen = hull(0, count_);
      values_finite_ = values.finite(seen.begin, seen.end, features_) ? Finite::yes : Finite::no;
    }
    return values_finite_ == Finite::yes;
  }

  enum class Finite { unknown, yes, no };

  Index tile_ = 0, count_ = 0, depth_ = 0, features_ = 0, visited_pairs_ = 0;
  RunningRow<T> rows_[query_tile];
  KeyRange local_[query_tile];
  KeyRange done_;              ///< columns scored in the last block, whole packets
  T maxima_[score_rows];       ///< the largest of each of its rows over these columns,
  bool maxima_known_ = false;  ///< unless a cap has changed them since
  Buffer<T> queries_, scores_, out_, copy_, wide_panel_;
  Finite values_finite_ = Finite::unknown;
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
