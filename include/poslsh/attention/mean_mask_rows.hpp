// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The mean mask in one sweep: its rows as piecewise constant log weights.
///
/// A row changes only where one of the s masks enters its next block, about s / (2 sigma) times a query. Queries
/// between two such changes form a run and share one row. Behind a run the weight steps up where a block begins, ahead
/// of it down where one ends. Both are sums from the far end of positive terms only, in double: the steps behind are
/// found from the last run to the first, those ahead from the first to the last, so that edges are only ever added, or
/// dropped whole at the near end.

#include "poslsh/attention/bias_rows.hpp"
#include "poslsh/attention/weight_steps.hpp"
#include "poslsh/mask/block_cursor.hpp"
#include "poslsh/mask/mean_mask.hpp"

#include <algorithm>
#include <cmath>
#include <compare>
#include <span>
#include <utility>
#include <vector>

namespace poslsh::inline POSLSH_SIMD::detail {

template <class T>
class BiasRows<MeanMask, T> {
 public:
  static constexpr bool prepared = true;
  BiasRows(const MeanMask& mask, const Placement& place) : mask_(mask), place_(place) {
    double largest = 0;
    for (const PositionHash& hash : mask.hashes()) largest = (std::max)(largest, hash.weight);
    // Sums relative to the largest weight fit any scalar type; the factor returns through log_sum_exp.
    unit_ = 1 / largest;
    reference_ = std::log(largest / static_cast<double>(mask.samples()));
  }
  void move_to(const Placement& place) { place_ = place; }
  [[nodiscard]] double reference() const { return reference_; }

  class Rows {
   public:
    explicit Rows(const BiasRows& shared) : shared_(shared) {}

    /// Finds the runs of the tile and the steps of each.
    void queries(Index first, Index count) {
      const Index begin = shared_.place_.query_position(first);
      if (count == 1 && shared_.place_.right <= 0) return one_query(begin);
      single_row_ = false;
      find_changes(begin, count);
      for (Index run = 0; run < runs(); ++run) {
        if (run > 0) cross(ends_, 1 - at(run).begin, run, [](const Change& change) { return 1 - change.new_end; });
        at(run).support.end = 1 - ends_.edges().front().position;
        if (shared_.place_.right > 0) at(run).ahead.assign(ends_);
      }
      for (Index run = runs() - 1; run >= 0; --run) {
        at(run).support.begin = begins_.edges().front().position;
        at(run).behind.assign(begins_);
        if (run > 0) cross(begins_, at(run).begin, run, [](const Change& change) { return change.old_begin; });
      }
      make_room();
    }

    /// Writes the row of each run over key rows [first, first + count).
    void keys(Index first, Index count) {
      const Index begin = shared_.place_.key_offset + first, end = begin + count;
      for (Index i = 0; i < runs(); ++i) {
        const Run& run = at(i);
        T* const row = rows_.data() + i * key_tile<T>;
        run.behind.each(begin, (std::min)(run.end, end), [&](Index from, Index to, T weight) {
          fill_ascending(row + (from - begin), row + (to - begin), row + key_tile<T>, weight);
        });
        // Ahead, key j stands at -j, and the edge of a block that ends before e at 1 - e, its last key.
        const Index next = (std::max)(run.end, begin);
        run.ahead.each(1 - end, 1 - next, [&](Index from, Index to, T weight) {
          fill_descending(row + (1 - to - begin), row + (1 - from - begin), row + (next - begin), weight);
        });
      }
    }

    [[nodiscard]] KeyRange support(Index r) const { return runs_[run_of_row_[r]].support; }
    [[nodiscard]] const T* row(Index r) const {
      return rows_.data() + static_cast<Index>(run_of_row_[r]) * key_tile<T>;
    }

   private:
    /// A mask leaves the block [old_begin, at) for [at, new_end).
    struct Change {
      Index at, old_begin, new_end;
      double weight;
    };
    /// Queries at positions [begin, end) share one row.
    struct Run {
      Index begin = 0, end = 0;
      std::size_t first_change = 0, last_change = 0;  ///< the changes at begin
      KeyRange support;
      WeightSteps<T> behind, ahead;
    };

    /// Where a block begins; equal ones in the order of the hashes.
    struct Start {
      Index position;
      std::size_t hash;
      friend auto operator<=>(const Start&, const Start&) = default;  // NOLINT(modernize-use-nullptr): no pointer
    };

    /// Decoding: a run of one query, which sees nothing ahead. The row of the query before serves until a block ends.
    void one_query(Index position) {
      // Until the row is whole, so that what fails in between leaves none behind.
      const bool known = std::exchange(single_row_, false);
      if (runs_.empty()) runs_.emplace_back();
      run_count_ = 1;
      run_of_row_[0] = 0;
      Run& run = at(0);
      const bool same_row = known && run.begin <= position;
      run.begin = position;
      run.end = position + 1;
      if (cursor_.move_to(shared_.mask_.hashes(), position) || !same_row) {
        run.support = cursor_.hull();
        order_begins(!known);
        run.behind.assign(begins_);
        run.ahead = {};
        make_room();
      }
      single_row_ = true;
    }

    /// The edges behind the cursor's position. Unless they are found anew, blocks that have not changed keep their order;
    /// in decoding all others begin beyond them.
    void order_begins(bool anew) {
      const std::vector<KeyRange>& blocks = cursor_.blocks();
      starts_.resize(blocks.size());
      std::size_t kept = 0;
      entered_.clear();
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const Start start = anew ? Start{0, i} : starts_[i];
        const Index begin = blocks[start.hash].begin;
        if (!anew && begin == start.position)
          starts_[kept++] = start;
        else
          entered_.push_back({begin, start.hash});
      }
      std::sort(entered_.begin(), entered_.end());
      std::copy(entered_.begin(), entered_.end(), starts_.begin() + static_cast<std::ptrdiff_t>(kept));
      if (kept > 0 && !entered_.empty() && entered_.front() < starts_[kept - 1]) std::sort(starts_.begin(), starts_.end());
      begins_.clear();
      const std::span<const PositionHash> hashes = shared_.mask_.hashes();
      for (const Start& start : starts_) begins_.append(start.position, hashes[start.hash].weight * shared_.unit_);
    }

    void make_room() {
      if (rows_.size() >= runs() * key_tile<T>) return;
      rows_ = Buffer<T>(runs() * key_tile<T>);
      std::fill(rows_.data(), rows_.data() + rows_.size(), T(0));
    }

    [[nodiscard]] Index runs() const { return run_count_; }
    [[nodiscard]] Run& at(Index run) { return runs_[static_cast<std::size_t>(run)]; }

    /// All changes inside the tile, the runs between them, and the edges ahead of its first and behind its last query.
    void find_changes(Index begin, Index count) {
      const Index end = begin + count;
      changes_.clear();
      begins_.clear();
      ends_.clear();
      const std::span<const PositionHash> hashes = shared_.mask_.hashes();
      cursor_.move_to(hashes, begin);
      for (std::size_t h = 0; h < hashes.size(); ++h) {
        const double weight = hashes[h].weight * shared_.unit_;
        KeyRange block = cursor_.blocks()[h];
        ends_.add(1 - block.end, weight);
        while (block.end < end) {
          const KeyRange next{block.end, hashes[h].block(block.end).end};
          changes_.push_back({next.begin, block.begin, next.end, weight});
          block = next;
        }
        begins_.add(block.begin, weight);
      }
      std::sort(changes_.begin(), changes_.end(), [](const Change& a, const Change& b) { return a.at < b.at; });
      run_count_ = 0;
      std::size_t next = 0;
      for (Index position = begin; position < end; ++position) {
        const std::size_t first = next;
        while (next < changes_.size() && changes_[next].at == position) ++next;
        if (position == begin || first < next) {
          if (static_cast<std::size_t>(run_count_) == runs_.size()) runs_.emplace_back();
          Run& run = at(run_count_++);
          run.begin = position;
          run.first_change = first;
          run.last_change = next;
        }
        at(run_count_ - 1).end = position + 1;
        run_of_row_[position - begin] = static_cast<std::size_t>(run_count_ - 1);
      }
    }

    /// Moves the edges of one side across the start of a run: the blocks that meet there go, their successors come.
    template <class NewEdge>
    void cross(BlockEdges& edges, Index position, Index run, NewEdge&& new_edge) {
      if (edges.edges().back().position == position) edges.drop_nearest();
      for (std::size_t c = at(run).first_change; c < at(run).last_change; ++c)
        edges.add(new_edge(changes_[c]), changes_[c].weight);
    }

    const BiasRows& shared_;
    BlockEdges begins_, ends_;
    BlockCursor cursor_;
    std::vector<Start> starts_, entered_;  ///< of the blocks of a single query, in order; those that it entered
    bool single_row_ = false;  ///< the only run is of a single query that sees nothing ahead, and starts_ are of its blocks
    std::vector<Change> changes_;
    std::vector<Run> runs_;
    Index run_count_ = 0;
    std::size_t run_of_row_[query_tile] = {};
    Buffer<T> rows_;
  };

 private:
  const MeanMask& mask_;
  Placement place_;
  double unit_ = 1, reference_ = 0;
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
