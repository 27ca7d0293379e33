// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Which of the oldest keys no later query can miss, given a bound on its norm.
///
/// Let every later query have |scale q| <= Q, so that the score of key j is within +-b_j, b_j = Q |k_j| (at most the
/// softcap). At the newest position p, with weights exp(-slope (p - j)), let
///     D = sum over dropped keys of exp(b_j - slope (p - j)),  L = sum over all keys of exp(-b_j - slope (p - j)).
/// A query at a later position p' multiplies both by exp(-slope (p' - p)); new keys only add to L. Its mass over dropped
/// keys is at most D, over those it visits at least L - D. Hence D <= tolerance (L - D), kept whenever a key is dropped,
/// bounds the dropped mass by tolerance times the visited one for all time.

#include "poslsh/attention/softmax.hpp"

#include <cmath>

namespace poslsh::inline POSLSH_SIMD::detail {

/// The norm of a row of this length, rounded to a storage type.
template <class S, class T>
double norm_in(const T* row, Index length) {
  double sum = 0;
  for (Index t = 0; t < length; ++t) sum += std::pow(static_cast<double>(static_cast<T>(static_cast<S>(row[t]))), 2);
  return std::sqrt(sum);
}

/// log D and log L of one query head with AlibiBias: bounds may be far beyond the range of exp.
class KeyBudget {
 public:
  /// Without a positive slope and tolerance nothing may be dropped.
  KeyBudget(double slope, double tolerance)
      : slope_(slope), share_(slope > 0 ? std::log(tolerance) - std::log1p(tolerance) : minus_infinity) {}

  /// A new token, whose scores are within +-bound; infinity: it must stay.
  void append(double bound) {
    dropped_ -= slope_;
    all_ = log_add(all_ - slope_, -bound);
  }
  /// Whether a key of this age, which is the oldest, may be dropped: D (1 + tolerance) <= tolerance L.
  [[nodiscard]] bool allows(double bound, Index age) const {
    const double more = with(bound, age);
    const double rounding = 1e-9 * (1 + std::abs(more) + std::abs(all_));
    return more + rounding <= share_ + all_;
  }
  void drop(double bound, Index age) { dropped_ = with(bound, age); }

  double& dropped() { return dropped_; }
  double& all() { return all_; }
  [[nodiscard]] double dropped() const { return dropped_; }
  [[nodiscard]] double all() const { return all_; }

 private:
  [[nodiscard]] double with(double bound, Index age) const {
    return log_add(dropped_, bound - slope_ * static_cast<double>(age));
  }
  double slope_, share_, dropped_ = minus_infinity, all_ = minus_infinity;
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
