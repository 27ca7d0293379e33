// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Log weights of a bias as rows that the score product can add to its results on the way out.
///
/// BiasRows<B, T> is what a head prepares once. Its Rows are the state of one sweep: told the tile of queries, then
/// each tile of keys, they give
/// - `support(r)`: the support of row r of the tile, in absolute positions;
/// - `row(r)`: where `prepared`, the log weights of row r from the tile's first key on, less `reference()`. Readable
///   for a whole key tile; places of pairs that are not visible hold anything finite;
/// - `add(r, column, scores, count)`: where not, adds the bias' own log weights to scores in memory.

#include "poslsh/attention/bias.hpp"
#include "poslsh/attention/options.hpp"
#include "poslsh/attention/packing.hpp"

namespace poslsh::inline POSLSH_SIMD::detail {

/// Any bias: no rows are prepared; its own add_log_weights is called row by row.
template <class B, class T>
class BiasRows {
 public:
  static constexpr bool prepared = false;
  BiasRows(const B& bias, const Placement& place) : bias_(bias), place_(place) {}
  void move_to(const Placement& place) { place_ = place; }
  [[nodiscard]] double reference() const { return 0; }

  class Rows {
   public:
    explicit Rows(const BiasRows& shared) : shared_(shared) {}
    void queries(Index first, Index) { first_query_ = first; }
    void keys(Index first, Index) { first_key_ = first; }
    [[nodiscard]] KeyRange support(Index r) const {
      return shared_.bias_.support(shared_.place_.query_position(first_query_ + r));
    }
    void add(Index r, Index column, T* scores, Index count) const {
      if constexpr (!UnitWeights<B>)
        shared_.bias_.add_log_weights(shared_.place_.query_position(first_query_ + r),
                                      shared_.place_.key_offset + first_key_ + column, scores, count);
    }

   private:
    const BiasRows& shared_;
    Index first_query_ = 0, first_key_ = 0;
  };

 private:
  const B& bias_;
  Placement place_;
};

/// A bias of the offset alone: one table of log weights over all offsets in reach; each row is a window of it.
///
/// The table is relative to the reachable offset nearest to 0, so that weights keep their accuracy however far the
/// keys are; the reference goes into log_sum_exp only. O(queries + keys) memory, less under a window.
template <OffsetBias B, class T>
class BiasRows<B, T> {
 public:
  static constexpr bool prepared = true;

  BiasRows(const B& bias, const Placement& place) : bias_(bias) { cover(place, 0); }

  /// The table is made anew, for twice the reach, where the new one leaves it.
  void move_to(const Placement& place) {
    const KeyRange reach = offsets(place);
    const bool known = first_ <= reach.begin && reach.end <= last_ + 1 && nearest(reach) == nearest_;
    if (known || reach.empty())
      place_ = place, shift_ = place.key_offset - place.query_offset;
    else
      cover(place, reach.size());
  }

  [[nodiscard]] double reference() const { return reference_; }

  class Rows {
   public:
    explicit Rows(const BiasRows& shared) : shared_(shared) {}
    void queries(Index first, Index) { first_query_ = first; }
    void keys(Index first, Index) { first_key_ = first; }
    [[nodiscard]] KeyRange support(Index r) const {
      return shared_.bias_.support(shared_.place_.query_position(first_query_ + r));
    }
    [[nodiscard]] const T* row(Index r) const {
      return shared_.table_.data() + (shared_.shift_ + first_key_ - (first_query_ + r) - shared_.base_);
    }

   private:
    const BiasRows& shared_;
    Index first_query_ = 0, first_key_ = 0;
  };

 private:
  /// The offsets between some query and some key it may see.
  [[nodiscard]] static KeyRange offsets(const Placement& place) {
    if (place.queries == 0 || place.keys == 0) return {};
    const Index shift = place.key_offset - place.query_offset;
    return {(std::max)(shift - (place.queries - 1), -place.left), (std::min)(shift + place.keys - 1, place.right) + 1};
  }
  [[nodiscard]] static Index nearest(KeyRange reach) { return std::clamp<Index>(0, reach.begin, reach.end - 1); }

  void cover(const Placement& place, Index spare) {
    place_ = place;
    shift_ = place.key_offset - place.query_offset;
    const KeyRange reach = offsets(place);
    if (reach.empty()) return;
    first_ = 0, last_ = -1;  // no offset at all, until the table is whole: memory or the bias may fail
    nearest_ = nearest(reach);
    reference_ = bias_.log_weight_at(nearest_);
    if (!std::isfinite(reference_)) reference_ = 0;  // the bias need not see that offset
    const Index first = reach.begin - spare;
    const Index last = reach.end - 1 + (reach.end > 1 ? spare : 0);  // under causality nothing ever lies ahead
    base_ = first - margin;
    table_ = Buffer<T>(last - first + 1 + 2 * margin);
    std::fill(table_.data(), table_.data() + margin, T(0));
    for (Index offset = first; offset <= last; ++offset)
      table_[offset - base_] = static_cast<T>(static_cast<double>(bias_.log_weight_at(offset)) - reference_);
    std::fill(table_.data() + table_.size() - margin, table_.data() + table_.size(), T(0));
    first_ = first;
    last_ = last;
  }

  /// A block of rows reads whole panels around what its rows see.
  static constexpr Index margin = panel_keys<T> + score_rows;
  const B& bias_;
  Placement place_;
  Buffer<T> table_;
  Index shift_ = 0, base_ = 0, first_ = 0, last_ = -1, nearest_ = 0;
  double reference_ = 0;
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
