// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The streaming kernel: one tile of queries sweeps over the key tiles it can see.

#include "poslsh/attention/head.hpp"
#include "poslsh/attention/query_tile.hpp"
#include "poslsh/attention/skipping.hpp"

namespace poslsh::inline POSLSH_SIMD::detail {

/// Sweeps of one thread; holds the scratch of a tile, see QueryTile.
template <class T, class S, class B>
class TileSweep {
 public:
  explicit TileSweep(const Head<T, S, B>& head) : head_(head), bias_(head.bias_rows) {}

  /// Attention of query rows [first, first + query_tile) or to the end. For each row, store(row, sums, mass) is given
  /// sum_j exp(score_j - mass.maximum) v_j and the same sum without values.
  template <class Store>
  void run(Index first, Store&& store) {
    first_ = first;
    count_ = (std::min)(query_tile, head_.place.queries - first);
    tile_.load(head_.queries, head_.scale, first, count_, head_.values.cols);
    bias_.queries(first, count_);
    for (Index r = 0; r < count_; ++r) visible_[r] = head_.place.visible(bias_.support(r), first + r);
    const KeyRange reach = hull_of(visible_, count_);
    if (!reach.empty()) visit_reach(reach);
    for (Index r = 0; r < count_; ++r) {
      const RunningRow<T>& row = tile_.rows()[r];
      const double maximum = static_cast<double>(row.maximum) + head_.bias_rows.reference();
      store(first + r, tile_.sums(r), RunningRow<double>{maximum, row.sum, row.empty});
    }
  }

  /// Pairs whose score was computed so far, whole packets counted.
  [[nodiscard]] Index visited_pairs() const { return tile_.visited_pairs(); }

 private:
  void visit_reach(KeyRange reach) {
    if constexpr (BoundedTail<B>)
      if (head_.keys.groups) return visit_outwards(reach);
    visit_all(reach);
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
    test.start(tile_.queries(), head_.queries.cols, key_row(0), count_);
    const Index begin = reach.begin / key_group, end = (reach.end - 1) / key_group + 1;
    const Index low = std::clamp(round_down(key_row(0), key_group) / key_group, begin, end - 1);
    const Index high = std::clamp(round_down(key_row(count_ - 1), key_group) / key_group, low, end - 1);
    const auto take = [&](Index first, Index count) {
      visit(first * key_group, count * key_group);
      test.update(tile_.rows(), visible_);
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
    if (!tile_.see(tile, width, visible_)) return;
    bias_.keys(tile, width);
    for (Index r = 0; r < count_; r += score_rows) weigh_block(r);
    tile_.add_values_of(head_.values);
  }

  /// Weights of one block of rows, whose scores are still in the first-level cache.
  void weigh_block(Index first) {
    if constexpr (BiasRows<B, T>::prepared) {
      const T* rows[score_rows];
      for (Index r = 0; r < score_rows; ++r) rows[r] = first + r < count_ ? bias_.row(first + r) : rows[r - 1];
      tile_.score(head_.keys.packed, first, head_.softcap, rows);
    } else {
      tile_.score(head_.keys.packed, first, head_.softcap, nullptr);
    }
    constexpr bool add = !BiasRows<B, T>::prepared && !UnitWeights<B>;
    if constexpr (add)
      for (Index r = first; r < (std::min)(first + score_rows, count_); ++r) {
        const KeyRange seen = tile_.columns(r);
        if (!seen.empty()) bias_.add(r, seen.begin, tile_.scores(r) + seen.begin, seen.size());
      }
    tile_.weigh(first, add);
  }

  const Head<T, S, B>& head_;
  typename BiasRows<B, T>::Rows bias_;
  QueryTile<T, S> tile_;
  Index first_ = 0, count_ = 0;
  KeyRange visible_[query_tile];
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
