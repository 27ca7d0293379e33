// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A row of a mean mask on one side of its queries: from edges of blocks to steps of log weights, and into memory.

#include "poslsh/attention/weights.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
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

}  // namespace poslsh::inline POSLSH_SIMD::detail
