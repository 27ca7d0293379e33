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

#include "poslsh/attention/bias.hpp"

#include <cmath>

namespace poslsh::inline POSLSH_SIMD::detail {

/// D and L of one query head with AlibiBias of positive slope.
class KeyBudget {
 public:
  explicit KeyBudget(double slope) : slope_(slope) {}

  /// A new token, whose scores are within +-bound.
  void append(double bound) {
    dropped_ *= std::exp(-slope_);
    all_ = all_ * std::exp(-slope_) + std::exp(-bound);
  }
  /// Whether a key of this age, which is the oldest, may be dropped.
  [[nodiscard]] bool allows(double bound, Index age, double tolerance) const {
    const double more = dropped_ + mass(bound, age);
    return slope_ > 0 && more <= tolerance * (all_ - more);
  }
  void drop(double bound, Index age) { dropped_ += mass(bound, age); }

  double& dropped() { return dropped_; }
  double& all() { return all_; }

 private:
  [[nodiscard]] double mass(double bound, Index age) const {
    return std::exp(bound - slope_ * static_cast<double>(age));
  }
  double slope_, dropped_ = 0, all_ = 0;
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
