// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Groups of neighbouring keys as balls, for bounds on scores that have not been computed.

#include "poslsh/attention/packing.hpp"

#include <cmath>
#include <limits>
#include <vector>

namespace poslsh::inline POSLSH_SIMD::detail {

/// Keys in a group: whole panels.
inline constexpr Index key_group = 96;

/// For each group of key_group keys, counted from key row 0: its centre c and a spread r with, for every query q and
/// key k of the group, q.k <= q.c + |q| r, also as computed in T.
///
/// From |k - c| <= radius, Cauchy-Schwarz, and a margin of (d + 8) units of rounding for the two products of length d.
/// A group with a key that is not finite has an infinite spread.
template <class T>
class KeyGroups {
 public:
  /// Bounds the groups that meet key rows [range.begin, range.end); O(n d).
  KeyGroups(Strided<const T> keys, KeyRange range, int threads) : depth_(keys.cols) {
    if (range.empty()) return;
    first_ = range.begin / key_group;
    count_ = (range.end - 1) / key_group + 1 - first_;
    centres_ = Buffer<T>(count_ * depth_);
    spread_.resize(static_cast<std::size_t>(count_));
    up_to_.resize(static_cast<std::size_t>(count_));
    constexpr Index chunk = 16;
    parallel_for((count_ + chunk - 1) / chunk, threads, [&](Index task, int) {
      for (Index g = task * chunk; g < (std::min)(count_, (task + 1) * chunk); ++g) bound(keys, g);
    });
    from_ = up_to_;  // so far, of each group alone
    for (std::size_t g = 1; g < up_to_.size(); ++g) up_to_[g] = (std::max)(up_to_[g - 1], up_to_[g]);
    for (std::size_t g = from_.size() - 1; g-- > 0;) from_[g] = (std::max)(from_[g + 1], from_[g]);
  }

  [[nodiscard]] Index begin() const { return first_; }
  [[nodiscard]] Index end() const { return first_ + count_; }
  [[nodiscard]] const T* centre(Index group) const { return centres_.data() + (group - first_) * depth_; }
  [[nodiscard]] T spread(Index group) const { return spread_[at(group)]; }
  /// A bound b with q.k <= |q| b for every key of this group and all before it, or of it and all behind it.
  [[nodiscard]] T norm_up_to(Index group) const { return up_to_[at(group)]; }
  [[nodiscard]] T norm_from(Index group) const { return from_[at(group)]; }

 private:
  [[nodiscard]] std::size_t at(Index group) const { return static_cast<std::size_t>(group - first_); }

  void bound(Strided<const T> keys, Index g) {
    const Index begin = (first_ + g) * key_group, end = (std::min)(begin + key_group, keys.rows);
    T* centre = centres_.data() + g * depth_;
    double centre_norm = 0;
    for (Index t = 0; t < depth_; ++t) centre[t] = 0;
    for (Index j = begin; j < end; ++j)
      for (Index t = 0; t < depth_; ++t) centre[t] += keys(j, t) / static_cast<T>(end - begin);
    for (Index t = 0; t < depth_; ++t) centre_norm += static_cast<double>(centre[t]) * static_cast<double>(centre[t]);
    double radius = 0;
    for (Index j = begin; j < end; ++j) {
      double distance = 0;
      for (Index t = 0; t < depth_; ++t) {
        const double difference = static_cast<double>(keys(j, t)) - static_cast<double>(centre[t]);
        distance += difference * difference;
      }
      // A NaN fails the comparison, and is then kept as infinity, which nothing exceeds.
      if (!(distance <= radius)) radius = distance < infinity ? distance : infinity;
    }
    const double rounding = static_cast<double>(depth_ + 8) * static_cast<double>(std::numeric_limits<T>::epsilon());
    const double all = std::sqrt(centre_norm) + std::sqrt(radius);
    spread_[static_cast<std::size_t>(g)] = static_cast<T>(std::sqrt(radius) + rounding * all);
    up_to_[static_cast<std::size_t>(g)] = all < infinity ? static_cast<T>(all * (1 + rounding)) : static_cast<T>(infinity);
  }

  static constexpr double infinity = std::numeric_limits<double>::infinity();
  Index depth_, first_ = 0, count_ = 0;
  Buffer<T> centres_;
  std::vector<T> spread_, up_to_, from_;
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
