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

/// What is known of the keys of one or more groups, for every query q, also as computed in T; |q| <= norm of q.
/// Each of them has q.k <= |q| norm, and over the keys of each group alone, with b = |q| norm,
///     sum exp(q.k) <= key_group exp((std::min)(b, (std::max)(b, moment_floor) - gain)).
template <class T>
struct KeyBound {
  T norm = 0;
  T gain = 0;
};

/// Where the gain below is taken: it changes little for larger b, and smaller bounds hardly matter.
inline constexpr double moment_floor = 8;

/// For each group of key_group keys, counted from key row 0: its centre c and spread r, with q.k <= q.c + |q| r, and
/// the bound above, each with a margin for rounding. A group with a key that is not finite has infinite bounds.
///
/// The first is Cauchy and Schwarz' inequality about the centre. The gain is from second moments: with rho = largest
/// eigenvalue of the mean of k k^T over norm^2, the inequality e^x <= 1 + x + x^2 (e^b - 1 - b) / b^2 for x <= b gives
///     mean exp(q.k) <= 1 + b + rho (e^b - 1 - b) = e^b (rho + (1 - rho) (1 + b) e^-b),
/// and the bracket falls with b. For keys that spread over many directions rho is small. The eigenvalue is bounded by
/// the norm of the square of the matrix. The same rho holds about the centre, with the spread for the norm.
template <class T>
class KeyGroups {
 public:
  /// Bounds the groups that meet key rows [range.begin, range.end); O(n d), with `moments` O(n d (d + d^2 / 96)).
  template <class S>
  KeyGroups(Strided<const S> keys, KeyRange range, bool moments, int threads) : depth_(keys.cols), moments_(moments) {
    if (range.empty()) return;
    first_ = range.begin / key_group;
    const Index count = (range.end - 1) / key_group + 1 - first_;
    centres_ = Buffer<T>(count * depth_);
    own_.resize(static_cast<std::size_t>(count));
    up_to_.resize(static_cast<std::size_t>(count));
    constexpr Index chunk = 16;
    parallel_for((count + chunk - 1) / chunk, threads, [&](Index task, int) {
      Matrix<T> rows(key_group, depth_);
      for (Index g = task * chunk; g < (std::min)(count, (task + 1) * chunk); ++g) bound(keys, g, rows);
    });
    from_ = up_to_;  // so far, of each group alone
    for (std::size_t g = 1; g < up_to_.size(); ++g) up_to_[g] = either(up_to_[g - 1], up_to_[g]);
    for (std::size_t g = from_.size() - 1; g-- > 0;) from_[g] = either(from_[g + 1], from_[g]);
  }

  [[nodiscard]] const T* centre(Index group) const { return centres_.data() + (group - first_) * depth_; }
  /// The bound about the centre: its norm is the spread.
  [[nodiscard]] KeyBound<T> spread(Index group) const { return own_[at(group)]; }
  /// What holds for this group and all before it, or for it and all behind it.
  [[nodiscard]] KeyBound<T> up_to(Index group) const { return up_to_[at(group)]; }
  [[nodiscard]] KeyBound<T> from(Index group) const { return from_[at(group)]; }

 private:
  [[nodiscard]] std::size_t at(Index group) const { return static_cast<std::size_t>(group - first_); }

  [[nodiscard]] static KeyBound<T> either(KeyBound<T> a, KeyBound<T> b) {
    return {(std::max)(a.norm, b.norm), (std::min)(a.gain, b.gain)};
  }

  template <class S>
  void bound(Strided<const S> keys, Index g, Matrix<T>& rows) {
    const Index begin = (first_ + g) * key_group, count = (std::min)(key_group, keys.rows - begin);
    for (Index j = 0; j < count; ++j)
      read_row(keys.row(begin + j), keys.col_stride, depth_, rows.data() + j * depth_);
    T* centre = centres_.data() + g * depth_;
    Eigen::Map<Eigen::Matrix<T, 1, Eigen::Dynamic>> mean(centre, depth_);
    mean = rows.topRows(count).colwise().sum() / static_cast<T>(count);
    T norm = 0, radius = 0;
    bool finite = true;
    for (Index j = 0; j < count; ++j) {
      const T whole = rows.row(j).squaredNorm(), from_mean = (rows.row(j) - mean).squaredNorm();
      finite = finite && whole < infinity && from_mean < infinity;
      norm = (std::max)(norm, whole);
      radius = (std::max)(radius, from_mean);
    }
    const std::size_t place = static_cast<std::size_t>(g);
    own_[place] = up_to_[place] = {infinity, 0};
    if (!finite) return;
    // Squares below the normal numbers are lost.
    const T lost = std::sqrt(static_cast<T>(depth_) * (std::numeric_limits<T>::min)());
    const T all = std::sqrt(norm) * (1 + rounding()) + lost;
    const T spread = std::sqrt(radius) * (1 + rounding()) + lost + 2 * rounding() * all;
    const T eigenvalue = moments_ ? largest_eigenvalue(rows.topRows(count)) : infinity;
    own_[place] = {spread, gain(eigenvalue, spread)};
    up_to_[place] = {all * (1 + rounding()), gain(eigenvalue, all)};
  }

  /// A bound on the largest eigenvalue of sum k k^T / key_group.
  [[nodiscard]] T largest_eigenvalue(const Eigen::Ref<const Matrix<T>>& rows) const {
    Matrix<T> moment = Matrix<T>::Zero(depth_, depth_), square(depth_, depth_);
    moment.noalias() += rows.transpose() * rows;
    const T trace = moment.trace();
    square.noalias() = moment * moment;
    const T error = static_cast<T>(key_group + 8) * std::numeric_limits<T>::epsilon() * trace;
    return (std::sqrt(square.norm() + rounding() * trace * trace) + error) / static_cast<T>(key_group);
  }

  [[nodiscard]] T gain(T eigenvalue, T norm) const {
    const double rho = static_cast<double>(eigenvalue) / (static_cast<double>(norm) * static_cast<double>(norm));
    if (!(rho < 1)) return 0;
    const double bracket = rho + (1 - rho) * (1 + moment_floor) * std::exp(-moment_floor);
    return static_cast<T>((std::max)(0.0, -std::log(bracket) - 2 * moment_floor * static_cast<double>(rounding())));
  }

  /// Relative error of sums of depth products, and a little.
  [[nodiscard]] T rounding() const { return static_cast<T>(depth_ + 8) * std::numeric_limits<T>::epsilon(); }

  static constexpr T infinity = std::numeric_limits<T>::infinity();
  Index depth_, first_ = 0;
  bool moments_;
  Buffer<T> centres_;
  std::vector<KeyBound<T>> own_, up_to_, from_;
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
