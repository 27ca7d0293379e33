// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Which groups of keys a tile of queries may leave out within the tolerance.
///
/// Kin: adaptive computation pruning for the Forgetting Transformer (arXiv 2504.06949), which drops far blocks by a
/// bound on their weights. Here the bound also pays for every key it drops:
///
/// Let m_i, S_i be the running maximum and sum of row i over the keys visited so far, so that S_i exp(m_i) is its
/// visited mass. For a group G of c keys with q.k <= U_i(G) and weights at most w(G),
///     mass_i(G) <= c w(G) exp(U_i(G)).
/// With B_i = tolerance S_i exp(m_i) and x(G) = max_i (U_i(G) - log B_i) + log(c w(G)), every row has
/// mass_i(G) <= exp(x(G)) B_i. A group is left out only while the sum of exp(x) over all that are, plus its own,
/// is at most 1. B_i only grows as more keys are visited, hence at the end
///     skipped mass of row i <= sum exp(x) B_i <= tolerance x visited mass of row i.
/// All keys beyond a group, on one side, are left out at once by the same argument with the largest norm among them and
/// the sum of the weights of all offsets from there on. From skipped mass e = tolerance x visited mass follows: the log-
/// sum-exp rises by at most log1p(tolerance), and the output moves by the share e / (1 + e) of the distance between two
/// means of visible values, hence by at most tolerance (max - min).

#include "poslsh/attention/bias.hpp"
#include "poslsh/attention/key_groups.hpp"
#include "poslsh/attention/softmax.hpp"

namespace poslsh::inline POSLSH_SIMD::detail {

/// A bias whose far weights can be bounded.
template <class B>
concept BoundedTail = OffsetBias<B> && requires(const B& bias, Index offset) {
  { bias.log_tail(offset) } -> std::convertible_to<double>;
};

template <class T, BoundedTail B>
class SkipTest {
 public:
  SkipTest(const KeyGroups<T>& groups, const B& bias, double bias_reference, double tolerance, double softcap)
      : groups_(groups), bias_(bias), reference_(bias_reference), log_tolerance_(std::log(tolerance)),
        cap_(softcap > 0 ? static_cast<T>(softcap) : std::numeric_limits<T>::infinity()) {}

  /// A new tile: `count` scaled queries of `depth` features, the first at key row `first` (its distance to key row j
  /// is j - first).
  void start(const T* queries, Index depth, Index first, Index count) {
    queries_ = queries;
    depth_ = depth;
    first_ = first;
    count_ = count;
    used_ = 0;
    const T rounding = static_cast<T>(depth + 8) * std::numeric_limits<T>::epsilon();
    for (Index r = 0; r < count; ++r)
      norms_[r] = std::sqrt(dot(queries + r * depth, queries + r * depth)) * (1 + rounding);
  }

  /// Takes in what has been visited: log B_i of each row, rounded down. A row that sees no key at all, or is NaN
  /// already, has nothing to lose.
  void update(const RunningRow<T>* rows, const KeyRange* visible) {
    for (Index r = 0; r < count_; ++r) {
      constexpr T infinity = std::numeric_limits<T>::infinity();
      const RunningRow<T>& row = rows[r];
      if (visible[r].empty() || row.sum != row.sum) {
        budgets_[r] = infinity;
      } else if (row.empty || !(std::abs(row.maximum) < infinity)) {
        budgets_[r] = -infinity;
      } else {
        const T margin = T(1e-5) + 8 * std::numeric_limits<T>::epsilon() * std::abs(row.maximum);
        budgets_[r] = row.maximum + static_cast<T>(std::log(row.sum) + log_tolerance_) - margin;
      }
    }
  }

  /// Whether this group can be left out; if so it counts as left out.
  [[nodiscard]] bool skip_group(Index group) {
    const Index begin = group * key_group, end = begin + key_group;
    const T spread = groups_.spread(group);
    const T* centre = groups_.centre(group);
    T worst = -std::numeric_limits<T>::infinity();
    for (Index r = 0; r < count_; ++r) {
      const T score = dot(queries_ + r * depth_, centre) + norms_[r] * spread;
      if (!take(worst, (std::min)(cap_, score) - budgets_[r], score)) return false;
    }
    // A weight that falls with the distance on each side is largest at the ends of a range or nearest to 0.
    const Index low = begin - (first_ + count_ - 1), high = end - 1 - first_;
    const double weight = (std::max)({bias_.log_weight_at(low), bias_.log_weight_at(high),
                                    bias_.log_weight_at(std::clamp<Index>(0, low, high))});
    return pay(static_cast<double>(worst) + weight + std::log(static_cast<double>(key_group)));
  }

  /// Whether this group and all before it can be left out.
  [[nodiscard]] bool skip_up_to(Index group) {
    const Index nearest = (group + 1) * key_group - 1 - first_;
    return nearest < 0 && skip_rest(groups_.norm_up_to(group), nearest);
  }
  /// Whether this group and all behind it can be left out.
  [[nodiscard]] bool skip_from(Index group) {
    const Index nearest = group * key_group - (first_ + count_ - 1);
    return nearest > 0 && skip_rest(groups_.norm_from(group), nearest);
  }

 private:
  [[nodiscard]] bool skip_rest(T norm, Index nearest_offset) {
    T worst = -std::numeric_limits<T>::infinity();
    for (Index r = 0; r < count_; ++r) {
      const T score = norms_[r] * norm;
      if (!take(worst, (std::min)(cap_, score) - budgets_[r], score)) return false;
    }
    return pay(static_cast<double>(worst) + bias_.log_tail(nearest_offset));
  }

  /// worst = max(worst, excess), unless the bound is not finite: then nothing is known, and false.
  static bool take(T& worst, T excess, T score) {
    if (!(std::abs(score) < std::numeric_limits<T>::infinity())) return false;
    if (excess > worst) worst = excess;
    return true;
  }

  [[nodiscard]] bool pay(double log_share) {
    const double share = std::exp(log_share - reference_);
    if (!(used_ + share <= 1)) return false;
    used_ += share;
    return true;
  }

  [[nodiscard]] T dot(const T* a, const T* b) const {
    constexpr Index W = packet_size<T>;
    Packet<T> sums = pset1<Packet<T>>(T(0));
    Index t = 0;
    for (; t + W <= depth_; t += W) sums = pmadd(ploadu<Packet<T>>(a + t), ploadu<Packet<T>>(b + t), sums);
    T sum = predux(sums);
    for (; t < depth_; ++t) sum += a[t] * b[t];
    return sum;
  }

  const KeyGroups<T>& groups_;
  const B& bias_;
  double reference_, log_tolerance_;
  T cap_;
  const T* queries_ = nullptr;
  Index depth_ = 0, first_ = 0, count_ = 0;
  double used_ = 0;
  T norms_[query_tile], budgets_[query_tile];
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
