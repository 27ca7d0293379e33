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
#include "poslsh/attention/weights.hpp"
#include "poslsh/mask/block_cursor.hpp"
#include "poslsh/mask/mean_mask.hpp"

#include <algorithm>
#include <compare>
#include <span>
#include <vector>

namespace poslsh::inline POSLSH_SIMD::detail {

/// The outermost keys of blocks on one side of a run, farthest first, each with the weight of its blocks. Positions
/// count towards the run: they are negated on the side ahead.
class BlockEdges {
 public:
  struct Edge {
    Index position;
    double weight;
  };

  void clear() { edges_.clear(); }
  void add(Index position, double weight) {
    const auto at = std::lower_bound(edges_.begin(), edges_.end(), position,
                                     [](const Edge& edge, Index wanted) { return edge.position < wanted; });
    if (at != edges_.end() && at->position == position)
      at->weight += weight;
    else
      edges_.insert(at, {position, weight});
  }
  /// The same for a position that no edge lies beyond.
  void append(Index position, double weight) {
    if (!edges_.empty() && edges_.back().position == position)
      edges_.back().weight += weight;
    else
      edges_.push_back({position, weight});
  }
  void drop_nearest() { edges_.pop_back(); }
  [[nodiscard]] const std::vector<Edge>& edges() const { return edges_; }

 private:
  std::vector<Edge> edges_;
};

/// One side of a run's row: from positions[k] on, towards the run, the log weight is log_weights[k].
template <class T>
struct WeightSteps {
  std::vector<Index> positions;
  std::vector<T> log_weights;

  void assign(const BlockEdges& edges) {
    positions.clear();
    log_weights.clear();
    double sum = 0;
    for (const BlockEdges::Edge& edge : edges.edges()) {
      sum += edge.weight;
      positions.push_back(edge.position);
      log_weights.push_back(static_cast<T>(sum));
    }
    take_logarithms(log_weights.data(), static_cast<Index>(log_weights.size()));
    sum = 0;
    for (std::size_t k = 0; k < positions.size(); ++k) {  // sums are far larger but for the first few
      sum += edges.edges()[k].weight;
      if (sum >= static_cast<double>((std::numeric_limits<T>::min)())) break;
      log_weights[k] = static_cast<T>(std::log(sum));
    }
  }

  /// Calls fill(from, to, log weight) for each step's part of [begin, end), in order.
  template <class Fill>
  void each(Index begin, Index end, Fill&& fill) const {
    if (begin >= end) return;
    auto step = std::upper_bound(positions.begin(), positions.end(), begin);
    if (step != positions.begin()) --step;
    for (; step != positions.end() && *step < end; ++step) {
      const Index to = std::next(step) == positions.end() ? end : (std::min)(*std::next(step), end);
      fill((std::max)(*step, begin), to, log_weights[static_cast<std::size_t>(step - positions.begin())]);
    }
  }
};

/// Writes a step of a few keys: whole packets from `from` on, if they end before `limit`. What they write beyond `to` is
/// for a later call to write again.
template <class T>
void fill_ascending(T* from, T* to, T* limit, T value) {
  constexpr Index W = packet_size<T>;
  const Packet<T> values = pset1<Packet<T>>(value);
  for (; from < to; from += W) {
    if (limit - from < W) return std::fill(from, to, value);
    pstoreu(from, values);
  }
}

/// The same from the end of a step down.
template <class T>
void fill_descending(T* from, T* to, T* limit, T value) {
  constexpr Index W = packet_size<T>;
  const Packet<T> values = pset1<Packet<T>>(value);
  for (; from < to; to -= W) {
    if (to - limit < W) return std::fill(from, to, value);
    pstoreu(to - W, values);
  }
}

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
      ahead_known_ = true;
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
      friend auto operator<=>(const Start&, const Start&) = default;
    };

    /// Decoding: a run of one query, which sees nothing ahead. The row of the query before serves until a block ends.
    void one_query(Index position) {
      const bool same_row = run_count_ == 1 && !ahead_known_ && at(0).begin <= position;
      if (runs_.empty()) runs_.emplace_back();
      run_count_ = 1;
      run_of_row_[0] = 0;
      Run& run = at(0);
      run.begin = position;
      run.end = position + 1;
      if (!cursor_.move_to(shared_.mask_.hashes(), position) && same_row) return;
      ahead_known_ = false;
      run.support = cursor_.hull();
      order_begins();
      run.behind.assign(begins_);
      run.ahead = {};
      make_room();
    }

    /// The edges behind the cursor's position. Blocks that have not changed keep their order; in decoding all others
    /// begin beyond them.
    void order_begins() {
      const std::vector<KeyRange>& blocks = cursor_.blocks();
      const bool anew = starts_.size() != blocks.size();
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
    bool ahead_known_ = false;        ///< the only run is of a tile that may see keys ahead
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
