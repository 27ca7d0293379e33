// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The streaming kernel: one tile of queries sweeps over the key tiles it can see.

#include "poslsh/attention/head.hpp"
#include "poslsh/attention/skipping.hpp"
#include "poslsh/attention/softmax.hpp"
#include "poslsh/attention/weights.hpp"

#include <cmath>

namespace poslsh::inline POSLSH_SIMD::detail {

/// Sweeps of one thread; holds the scratch of a tile, O(tile (head_dim + value_dim + key_tile)).
template <class T, class S, class B>
class TileSweep {
 public:
  explicit TileSweep(const Head<T, S, B>& head)
      : head_(head),
        bias_(head.bias_rows),
        features_(round_up(head.values.cols, packet_size<T>)) {}

  /// Attention of query rows [first, first + query_tile) or to the end. For each row, store(row, sums, mass) is given
  /// sum_j exp(score_j - mass.maximum) v_j and the same sum without values.
  template <class Store>
  void run(Index first, Store&& store) {
    first_ = first;
    count_ = (std::min)(query_tile, head_.place.queries - first);
    load_queries();
    bias_.queries(first, count_);
    KeyRange reach{max_position, min_position};
    for (Index r = 0; r < count_; ++r) {
      rows_[r] = {};
      visible_[r] = head_.place.visible(bias_.support(r), first + r);
      if (visible_[r].empty()) continue;
      reach = {(std::min)(reach.begin, visible_[r].begin), (std::max)(reach.end, visible_[r].end)};
    }
    if (!reach.empty()) {
      if constexpr (BoundedTail<B>) {
        if (head_.keys.groups)
          visit_outwards(reach);
        else
          visit_all(reach);
      } else {
        visit_all(reach);
      }
    }
    for (Index r = 0; r < count_; ++r) {
      const RunningRow<T>& row = rows_[r];
      const double maximum = static_cast<double>(row.maximum) + head_.bias_rows.reference();
      store(first + r, static_cast<const T*>(&out_[r * features_]), RunningRow<double>{maximum, row.sum, row.empty});
    }
  }

  /// Pairs whose score was computed so far, whole packets counted.
  [[nodiscard]] Index visited_pairs() const { return visited_pairs_; }

 private:
  void load_queries() {
    const Index depth = head_.queries.cols;
    const Index room = (std::min)(query_tile, round_up(count_, score_rows * value_rows));
    queries_.require(room * std::max<Index>(depth, 1));
    scores_.require(room * key_tile<T>);
    out_.require(room * std::max<Index>(features_, 1));
    for (Index r = 0; r < count_; ++r)
      copy_row(head_.queries.row(first_ + r), head_.queries.col_stride, head_.scale, depth, &queries_[r * depth], 1);
    const Index padded = round_up(count_, score_rows);
    std::fill(queries_.data() + count_ * depth, queries_.data() + padded * depth, T(0));
    std::fill(out_.data(), out_.data() + round_up(count_, value_rows) * features_, T(0));
  }

  /// From the queries outwards: the largest scores tend to come first, and later tiles seldom move the maximum.
  void visit_all(KeyRange reach) {
    const Index begin = reach.begin / key_tile<T>, end = (reach.end - 1) / key_tile<T> + 1;
    const Index nearest = std::clamp(key_row(count_ - 1) / key_tile<T>, begin, end - 1);
    for (Index tile = nearest; tile >= begin; --tile) visit(tile * key_tile<T>, key_tile<T>);
    for (Index tile = nearest + 1; tile < end; ++tile) visit(tile * key_tile<T>, key_tile<T>);
  }

  /// The same by groups of keys, leaving out what the tolerance allows. Neighbouring groups are visited together.
  void visit_outwards(KeyRange reach)
    requires BoundedTail<B>
  {
    constexpr Index room = key_tile<T> / key_group;
    SkipTest<T, B> test(*head_.keys.groups, head_.bias, head_.bias_rows.reference(), head_.tolerance,
                        head_.softcap);
    test.start(queries_.data(), head_.queries.cols, key_row(0), count_);
    const Index begin = reach.begin / key_group, end = (reach.end - 1) / key_group + 1;
    const Index low = std::clamp(round_down(key_row(0), key_group) / key_group, begin, end - 1);
    const Index high = std::clamp(round_down(key_row(count_ - 1), key_group) / key_group, low, end - 1);
    const auto take = [&](Index first, Index count) {
      visit(first * key_group, count * key_group);
      test.update(rows_, visible_);
    };
    // One side, nearest group first: groups that must be visited wait until there is room for no more.
    const auto walk = [&](Index group, Index stop, Index step, auto&& skip_rest) {
      Index waiting = 0;
      const auto take_waiting = [&](Index next) {
        if (waiting > 0) take(step > 0 ? next - waiting : next + 1, waiting);
        waiting = 0;
      };
      for (; group != stop && !skip_rest(group); group += step) {
        if (test.skip_group(group))
          take_waiting(group);
        else if (++waiting == room)
          take_waiting(group + step);
      }
      take_waiting(group);
    };
    take(low, high + 1 - low);
    test.limit(high + 1 < end ? 0.5 : 1);
    walk(low - 1, begin - 1, -1, [&](Index group) { return test.skip_up_to(group); });
    test.limit(1);
    walk(high + 1, end, 1, [&](Index group) { return test.skip_from(group); });
  }

  /// The key row at the position of row r of the tile; it need not exist.
  [[nodiscard]] Index key_row(Index r) const { return head_.place.query_position(first_ + r) - head_.place.key_offset; }

  /// Takes in key rows [tile, tile + width): whole panels, at most a key tile of them.
  void visit(Index tile, Index width) {
    width = (std::min)(width, head_.place.keys - tile);
    bool any = false;
    for (Index r = 0; r < query_tile; ++r) {
      local_[r] = {0, 0};
      if (r >= count_) continue;
      const KeyRange range = intersect(visible_[r], {tile, tile + width});
      if (range.empty()) continue;
      local_[r] = {range.begin - tile, range.end - tile};
      any = true;
    }
    if (!any) return;
    bias_.keys(tile, width);
    for (Index r = 0; r < count_; r += score_rows) score_block(tile, r);
    if (count_ == 1 && !std::is_same_v<S, T> && head_.values.col_stride == 1 && head_.values.cols == features_) {
      add_values<T, 1>(&scores_[local_[0].begin], key_tile<T>, head_.values.row(tile + local_[0].begin),
                       head_.values.row_stride, local_[0].size(), out_.data(), features_, features_);
      return;
    }
    const ValueTile<T> values(head_.values, tile, hull(0, count_), copy_);
    values_finite_ = Finite::unknown;
    for (Index r = 0; r < count_; r += value_rows) value_block(values, r);
  }

  /// The smallest range that holds those of rows [first, first + count).
  KeyRange hull(Index first, Index count) const {
    KeyRange all{max_position, min_position};
    for (Index r = first; r < (std::min)(first + count, count_); ++r)
      if (!local_[r].empty())
        all = {(std::min)(all.begin, local_[r].begin), (std::max)(all.end, local_[r].end)};
    return all;
  }

  /// Scores of one block of rows against the panels it sees, then their weights exp(score - maximum) in place.
  void score_block(Index tile, Index first) {
    if (count_ == 1)
      score_rows_of<1>(tile, first);
    else
      score_rows_of<score_rows>(tile, first);
  }

  template <int Rows>
  void score_rows_of(Index tile, Index first) {
    const KeyRange seen = hull(first, Rows);
    if (seen.empty()) return;
    constexpr int W = packet_size<T>;
    const KeyRange done{round_down(seen.begin, W), round_up(seen.end, W)};
    visited_pairs_ += done.size() * std::min<Index>(Rows, count_ - first);
    const bool fused = BiasRows<B, T>::prepared && head_.softcap == 0;
    const Index depth = head_.queries.cols;
    Packet<T> maxima[Rows];
    const T* weights[Rows];
    for (int r = 0; r < Rows; ++r) {
      maxima[r] = pset1<Packet<T>>(-std::numeric_limits<T>::infinity());
      if constexpr (BiasRows<B, T>::prepared) weights[r] = bias_.row((std::min)(first + r, count_ - 1));
    }
    const T* queries = &queries_[first * depth];
    for (Index column = done.begin; column < done.end;) {
      const Index inside = column % panel_keys<T>;
      const Index next = (std::min)(column - inside + panel_keys<T>, done.end);
      const auto* panel = panel_for<Rows>(tile + column) + inside;
      T* scores = &scores_[first * key_tile<T> + column];
      unrolled<score_packets>([&](auto less) POSLSH_INLINE_LAMBDA {
        constexpr int packets = decltype(less)::value + 1;
        if (next - column != packets * W) return;
        score_panel<T, Rows, packets>(
            queries, depth, panel, depth, [&](auto r, auto c, Packet<T> score) POSLSH_INLINE_LAMBDA {
              if constexpr (BiasRows<B, T>::prepared)
                if (fused) score = padd(score, ploadu<Packet<T>>(weights[r] + column + c * W));
              pstoreu(scores + r * key_tile<T> + c * W, score);
              maxima[r] = pmax(maxima[r], score);
            });
      });
      column = next;
    }
    for (Index r = first; r < (std::min)(first + Rows, count_); ++r) {
      const KeyRange range = local_[r];
      if (range.empty()) continue;
      T* scores = &scores_[r * key_tile<T>];
      if (!fused) finish_scores(r, range, scores);
      const bool whole = (fused || UnitWeights<B>) && head_.softcap == 0 && range == done;
      weigh(r, range, scores, whole ? predux_max(maxima[r - first]) : largest(scores, range));
    }
  }

  /// A panel for this many rows: widened once for many, on the way in for one.
  template <int Rows>
  [[nodiscard]] auto panel_for(Index key) {
    if constexpr (Rows == 1)
      return head_.keys.packed.panel(key);
    else
      return head_.keys.packed.panel(key, wide_panel_);
  }

  /// What the product could not do on the way out: the cap, and a bias without prepared rows.
  void finish_scores(Index r, KeyRange range, T* scores) const {
    if (head_.softcap != 0) soft_cap(scores, range, head_.softcap);
    if constexpr (BiasRows<B, T>::prepared) {
      const T* weights = bias_.row(r);
      for (Index j = range.begin; j < range.end; ++j) scores[j] += weights[j];
    } else {
      bias_.add(r, range.begin, scores + range.begin, range.size());
    }
  }

  /// Replaces the scores of a row by exp(score - maximum) and moves its sums to the new maximum.
  void weigh(Index r, KeyRange range, T* scores, T tile_maximum) {
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
    row.sum += static_cast<double>(exponentiate(scores, range, reference));
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
        add_values<T, 1>(&scores_[r * key_tile<T> + local_[r].begin], key_tile<T>,
                         values.data + local_[r].begin * values.stride, values.stride, local_[r].size(),
                         &out_[r * features_], features_, features_);
      return;
    }
    for (Index r = first; r < first + value_rows; ++r) {
      T* weights = &scores_[r * key_tile<T>];
      const KeyRange range = local_[r].empty() ? KeyRange{seen.end, seen.end} : local_[r];
      std::fill(weights + seen.begin, weights + range.begin, T(0));
      std::fill(weights + range.end, weights + seen.end, T(0));
    }
    add_values<T, value_rows>(&scores_[first * key_tile<T> + seen.begin], key_tile<T>,
                              values.data + seen.begin * values.stride, values.stride, seen.size(),
                              &out_[first * features_], features_, features_);
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

  const Head<T, S, B>& head_;
  typename BiasRows<B, T>::Rows bias_;
  Index features_;
  Index first_ = 0, count_ = 0, visited_pairs_ = 0;
  RunningRow<T> rows_[query_tile];
  KeyRange visible_[query_tile], local_[query_tile];
  Buffer<T> queries_, scores_, out_, copy_, wide_panel_;
  Finite values_finite_ = Finite::unknown;
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
