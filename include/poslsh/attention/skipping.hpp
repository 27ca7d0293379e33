// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Which groups of keys a tile of queries may leave out within the tolerance.
///
/// Kin: adaptive computation pruning for the Forgetting Transformer (arXiv 2504.06949), which drops far blocks by a
/// bound on their weights. Here the bound also pays for every key it drops:
///
/// Let m_i, S_i be the running maximum and sum of row i over the keys visited so far, so that S_i exp(m_i) is its
/// visited mass. For a group G of c keys whose exp(q.k) are at most exp(U_i(G)) in the mean (see KeyBound) and whose
/// weights are at most w(G),
///     mass_i(G) <= c w(G) exp(U_i(G)).
/// With B_i = tolerance S_i exp(m_i) and x(G) = max_i (U_i(G) - log B_i) + log(c w(G)), every row has
/// mass_i(G) <= exp(x(G)) B_i. A group is left out only while the sum of exp(x) over all that are, plus its own,
/// is at most 1. B_i only grows as more keys are visited, hence at the end
///     skipped mass of row i <= sum exp(x) B_i <= tolerance x visited mass of row i.
/// All keys beyond a group, on one side, are left out at once by the same argument with the largest norm among them and
/// the sum of the weights of all offsets from there on. Of two sides, the first may use half of the tolerance. From skipped mass e = tolerance x visited mass follows: the log-
/// sum-exp rises by at most log1p(tolerance), and the output moves by the share e / (1 + e) of the distance between two
/// means of visible values, hence by at most tolerance (max - min). A sink is a visible value of 0 there.

#include "poslsh/attention/bias.hpp"
#include "poslsh/attention/key_groups.hpp"
#include "poslsh/attention/softmax.hpp"

namespace poslsh::inline POSLSH_SIMD::detail {

/// A bias whose far weights can be bounded.
template <class B>
concept BoundedTail = OffsetBias<B> && requires(const B& bias, Index offset) {
  { bias.log_tail(offset) } -> std::convertible_to<double>;
};

/// Whether second moments of the keys, which cost some d multiply-adds a key, are likely to save more: where a bias
/// falls steeply, a few groups are all that is ever visited.
template <BoundedTail B>
[[nodiscard]] bool moments_pay(const B& bias, Index depth) {
  const Index step = (std::max)(key_group, depth);
  return bias.log_weight_at(0) - bias.log_weight_at(-step) < 3;
}

/// The test for the tiles of one sweep, one side of a tile after the other.
template <class T, BoundedTail B>
class SkipTest {
 public:
  SkipTest(const KeyGroups<T>& groups, const B& bias, double bias_reference, double tolerance, double softcap)
      : groups_(groups), bias_(bias), reference_(bias_reference), log_tolerance_(std::log(tolerance)),
        log_group_(std::log(static_cast<double>(key_group))),
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
    const T lost = std::sqrt(static_cast<T>(depth) * (std::numeric_limits<T>::min)());  // squares below normal numbers
    for (Index r = 0; r < count; ++r)
      norms_[r] = std::sqrt(dot(queries + r * depth, queries + r * depth)) * (1 + rounding) + lost;
  }

  /// The groups in question from now on may bring what is left out to this share of the tolerance.
  void limit(double share) { limit_ = share; }

  /// Takes in what has been visited: log B_i of each row, rounded down. A row that sees no key at all, or is NaN
  /// already, has nothing to lose.
  void update(const RunningRow<T>* rows, const KeyRange* visible) {
    for (Index r = 0; r < count_; ++r) {
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
    const KeyBound<T> spread = groups_.spread(group);
    const T* centre = groups_.centre(group);
    const T gain = cap_ < infinity ? T(0) : spread.gain;  // a cap moves the mean of the deviations off 0
    T worst = -infinity;
    for (Index r = 0; r < count_; ++r) {
      const T score = dot(queries_ + r * depth_, centre) + eased(norms_[r] * spread.norm, gain);
      if (!take(worst, capped(score) - budgets_[r], score)) return false;
    }
    // A weight that falls with the distance on each side is largest at the ends of a range or nearest to 0.
    const Index low = begin - (first_ + count_ - 1), high = end - 1 - first_;
    const double weight = (std::max)({bias_.log_weight_at(low), bias_.log_weight_at(high),
                                    bias_.log_weight_at(std::clamp<Index>(0, low, high))});
    const double own = static_cast<double>(worst) + weight + log_group_;
    // Were all groups from here on left out one by one, they would take this much. A group that took more than its part
    // of what is left would make those behind it, which weigh less, be visited in its stead.
    const Index nearest = low > 0 ? low : (std::min)(high, Index{0});
    if (nearest != 0 && !affordable(log_add(own, static_cast<double>(worst) + bias_.log_tail(nearest)))) return false;
    return pay(own);
  }

  /// Whether this group and all before it can be left out.
  [[nodiscard]] bool skip_up_to(Index group) {
    const Index nearest = (group + 1) * key_group - 1 - first_;
    return nearest < 0 && skip_rest(groups_.up_to(group), nearest);
  }
  /// Whether this group and all behind it can be left out.
  [[nodiscard]] bool skip_from(Index group) {
    const Index nearest = group * key_group - (first_ + count_ - 1);
    return nearest > 0 && skip_rest(groups_.from(group), nearest);
  }

 private:
  [[nodiscard]] bool skip_rest(KeyBound<T> bound, Index nearest) {
    T worst = -infinity, worst_eased = -infinity;
    for (Index r = 0; r < count_; ++r) {
      const T score = norms_[r] * bound.norm;
      if (!take(worst, (std::min)(cap_, score) - budgets_[r], score)) return false;
      take(worst_eased, (std::min)(cap_, eased(score, bound.gain)) - budgets_[r], score);
    }
    const double tail = bias_.log_tail(nearest);
    // The gain holds over whole groups, with the weight of their nearest key: each but the first weighs less than the
    // mean of the group before it.
    const double by_groups = log_add(bias_.log_weight_at(nearest) + log_group_, tail);
    return pay((std::min)(static_cast<double>(worst) + tail, static_cast<double>(worst_eased) + by_groups));
  }

  /// The bound of a mean over a group, from that of each of its scores; see KeyBound.
  [[nodiscard]] static T eased(T score, T gain) {
    return (std::min)(score, (std::max)(score, static_cast<T>(moment_floor)) - gain);
  }

  /// What a cap makes of a bound on scores: it lowers those above 0 and lifts those below.
  [[nodiscard]] T capped(T score) const {
    if (score >= 0 || !(cap_ < infinity)) return (std::min)(cap_, score);
    return cap_ * std::tanh(score / cap_) * (1 - 8 * std::numeric_limits<T>::epsilon());
  }

  /// worst = max(worst, excess), unless the bound is not finite: then nothing is known, and false.
  static bool take(T& worst, T excess, T score) {
    if (!(std::abs(score) < infinity)) return false;
    if (excess > worst) worst = excess;
    return true;
  }

  [[nodiscard]] bool affordable(double log_share) const { return used_ + std::exp(log_share - reference_) <= limit_; }

  [[nodiscard]] bool pay(double log_share) {
    if (!affordable(log_share)) return false;
    used_ += std::exp(log_share - reference_);
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

  static constexpr T lowest = -std::numeric_limits<T>::infinity();
  static constexpr T infinity = std::numeric_limits<T>::infinity();
  const KeyGroups<T>& groups_;
  const B& bias_;
  double reference_, log_tolerance_, log_group_;
  T cap_;
  const T* queries_ = nullptr;
  Index depth_ = 0, first_ = 0, count_ = 0;
  double used_ = 0, limit_ = 1;
  T norms_[query_tile], budgets_[query_tile];
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
