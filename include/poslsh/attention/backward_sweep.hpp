// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The backward kernel: one tile of queries sweeps over the keys it visits and leaves its part of each gradient.

#include "poslsh/attention/backward_tile.hpp"
#include "poslsh/attention/weights.hpp"
#include "poslsh/core/turns.hpp"

#include <cmath>

namespace poslsh::inline POSLSH_SIMD::detail {

/// From the scores Z (less their log weights, if given) and dO V^T of a row to P = exp(Z - L) and
/// dZ = P o (dO V^T - D), in place.
template <class T>
void differentiate_row(KeyRange range, const T* log_weights, T log_sum_exp, T mean, T* weights, T* d_scores) {
  const Packet<T> zero = pset1<Packet<T>>(T(0)), means = pset1<Packet<T>>(mean);
  const Packet<T> log_sum_exps = pset1<Packet<T>>(log_sum_exp);
  each_packet<T>(range, [&](Index j, auto&& inside) POSLSH_INLINE_LAMBDA {
    Packet<T> score = ploadu<Packet<T>>(weights + j);
    if (log_weights != nullptr) score = padd(score, ploadu<Packet<T>>(log_weights + j));
    const Packet<T> weight = inside(exp_nonpositive<T>(psub(score, log_sum_exps)), zero);
    pstoreu(weights + j, weight);
    pstoreu(d_scores + j, inside(pmul(weight, psub(ploadu<Packet<T>>(d_scores + j), means)), zero));
  });
}

/// Caps scores, in double as in the forward pass, and keeps the derivative 1 - tanh^2 in `slack`.
template <class T>
void cap_scores(KeyRange range, double cap, T* scores, T* slack) {
  for (Index j = range.begin; j < range.end; ++j) {
    const double tangent = std::tanh(static_cast<double>(scores[j]) / cap);
    scores[j] = static_cast<T>(cap * tangent);
    slack[j] = static_cast<T>(1 - tangent * tangent);
  }
}

/// sum_j d_scores[j] (offset + j) over the range.
template <class T>
[[nodiscard]] double weighted_offsets(const T* d_scores, KeyRange range, Index offset) {
  const Packet<T> zero = pset1<Packet<T>>(T(0));
  Packet<T> sums = zero;
  each_packet<T>(range, [&](Index j, auto&& inside) POSLSH_INLINE_LAMBDA {
    const Packet<T> offsets = Eigen::internal::plset<Packet<T>>(static_cast<T>(offset + j));
    sums = pmadd(inside(ploadu<Packet<T>>(d_scores + j), zero), offsets, sums);
  });
  return static_cast<double>(predux(sums));
}

/// Sweeps of one thread. For each tile of keys, with the log-sum-exps L and D_i = dO_i . O_i known:
///   P = exp(Z - L), dZ = P o (dO V^T - D), dQ += dZ K, dV += P^T dO, dK += dZ^T Q.
template <class T, class S, class B>
class BackwardSweep {
 public:
  BackwardSweep(const BackwardHead<T, S, B>& head, const GradientRows<T>& dk, const GradientRows<T>& dv,
                Strided<T> dq)
      : head_(head), place_(head.forward.place), dk_(dk), dv_(dv), dq_(dq), bias_(head.forward.bias_rows),
        tile_(head.keys.cols, head.output.values.cols), slack_(backward_keys) {}

  /// Query rows [first, first + query_tile) or to the end, over these key rows; turns, if any, are those of the key
  /// tiles for this task. False if another task gave up.
  [[nodiscard]] bool run(Index first, const std::vector<KeyRange>& ranges, Turns* turns, Index task) {
    start(first);
    for (const KeyRange& range : ranges)
      for (Index tile = round_down(range.begin, backward_keys); tile < range.end; tile += backward_keys) {
        const bool seen = tile_.see(tile, intersect(range, {tile, tile + backward_keys}), visible_);
        if (seen) {
          weigh(tile);
          tile_.add_to_queries(head_.keys);
        }
        if (turns != nullptr && !turns->wait(tile / backward_keys, task)) return false;
        if (seen) tile_.add_to_keys(dk_, dv_);
        if (turns != nullptr) turns->pass(tile / backward_keys, task);
      }
    for (Index r = 0; r < count_; ++r)
      for (Index t = 0; t < dq_.cols; ++t) dq_(first + r, t) += head_.forward.scale * tile_.d_queries(r)[t];
    return true;
  }

  /// Of the last tile of queries.
  [[nodiscard]] const ScalarGradients& scalars() const { return scalars_; }

 private:
  void start(Index first) {
    first_ = first;
    count_ = (std::min)(query_tile, place_.queries - first);
    scalars_ = {};
    const ForwardViews<T>& output = head_.output;
    tile_.load(head_.forward.queries, head_.forward.scale, output.d_values, output.share, first, count_);
    bias_.queries(first, count_);
    for (Index r = 0; r < count_; ++r) {
      visible_[r] = place_.visible(bias_.support(r), first + r);
      log_sum_exp_[r] = head_.log_sum_exp(first + r);
      means_[r] = 0;
      for (Index f = 0; f < output.values.cols; ++f)
        means_[r] += static_cast<double>(tile_.d_values(r)[f]) * static_cast<double>(output.values(first + r, f));
      if (head_.sink != minus_infinity) add_sink(r);
    }
  }

  /// The sink takes the weight p of a row and has value 0: its logit's derivative is p (0 - D).
  void add_sink(Index r) {
    const double log_sum_exp = head_.output.log_sum_exp(first_ + r, 0);
    if (visible_[r].empty() && log_sum_exp == head_.sink) return;  // no key: nothing depends on the sink
    scalars_.sink -= std::exp(head_.sink - log_sum_exp) * means_[r];
  }

  /// P and dZ of the queries against a tile of keys.
  void weigh(Index tile) {
    bias_.keys(tile, (std::min)(backward_keys, place_.keys - tile));
    tile_.multiply(head_.forward.keys.packed, head_.values);
    for (Index r = 0; r < count_; ++r) {
      T* weights = tile_.weights(r);
      T* d_scores = tile_.d_scores(r);
      const KeyRange all = tile_.columns(), range = tile_.columns(r).empty() ? KeyRange{all.end, all.end} : tile_.columns(r);
      if (!range.empty()) weigh_row(tile, r, range, weights, d_scores);
      for (T* row : {weights, d_scores}) {
        std::fill(row + all.begin, row + range.begin, T(0));
        std::fill(row + range.end, row + (std::max)(range.end, all.end), T(0));
      }
    }
  }

  /// From scores and dO V^T of a row to P and dZ, in place.
  void weigh_row(Index tile, Index r, KeyRange range, T* weights, T* d_scores) {
    const double cap = head_.forward.softcap;
    if (cap != 0) cap_scores(range, cap, weights, slack_.data());
    const T* log_weights = nullptr;
    if constexpr (BiasRows<B, T>::prepared)
      log_weights = bias_.row(r);
    else if constexpr (!UnitWeights<B>)
      bias_.add(r, range.begin, weights + range.begin, range.size());
    differentiate_row(range, log_weights, log_sum_exp_[r], static_cast<T>(means_[r]), weights, d_scores);
    if constexpr (SlopeBias<B>) add_slopes(tile, r, range, d_scores);
    if (cap != 0)
      for (Index j = range.begin; j < range.end; ++j) d_scores[j] *= slack_[j];
  }

  /// Each pair's dZ times its offset, on the query's side.
  void add_slopes(Index tile, Index r, KeyRange range, const T* d_scores) {
    const Index offset = place_.key_offset + tile - place_.query_position(first_ + r);  // of column 0
    const Index middle = std::clamp(1 - offset, range.begin, range.end);
    scalars_.slope += weighted_offsets(d_scores, {range.begin, middle}, offset);
    scalars_.right_slope -= weighted_offsets(d_scores, {middle, range.end}, offset);
  }

  const BackwardHead<T, S, B>& head_;
  const Placement& place_;
  const GradientRows<T>& dk_;
  const GradientRows<T>& dv_;
  Strided<T> dq_;
  typename BiasRows<B, T>::Rows bias_;
  BackwardTile<T, S> tile_;
  Index first_ = 0, count_ = 0;
  KeyRange visible_[query_tile];
  double means_[query_tile] = {};
  T log_sum_exp_[query_tile];
  ScalarGradients scalars_;
  Buffer<T> slack_;
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
