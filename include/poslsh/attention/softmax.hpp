// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The softmax of a row that arrives in pieces: running maximum and sum, and the merge of finished parts.
///
/// The one file that knows about empty rows and -inf: a row without visible keys has log-sum-exp -inf and value 0.

#include "poslsh/attention/options.hpp"

#include <limits>

namespace poslsh::inline POSLSH_SIMD {
namespace detail {

inline constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

/// A row in progress: the sum of exp(score - maximum) over the keys seen so far.
template <class T>
struct RunningRow {
  T maximum = -std::numeric_limits<T>::infinity();
  double sum = 0;
  bool empty = true;  ///< no key seen; told by count, since a seen key may well score -inf
};

/// What a finished row needs: its factor for sum exp(score - maximum) value, and its log-sum-exp.
struct FinishedRow {
  double factor = 0;
  double log_sum_exp = minus_infinity;
};

/// Closes a row, with the sink's logit (-inf: none) in its denominator.
[[nodiscard]] inline FinishedRow finish_row(const RunningRow<double>& row, double sink) {
  const auto [maximum, sum, empty] = row;
  if (empty) return {0, sink};
  if (sink > maximum) {
    const double shrink = std::exp(maximum - sink);
    const double total = sum * shrink + 1;
    return {shrink / total, sink + std::log(total)};
  }
  const double total = sink == minus_infinity ? sum : sum + std::exp(sink - maximum);
  return {1 / total, maximum + std::log(total)};
}

/// log(exp(a) + exp(b)), -inf where both are.
[[nodiscard]] inline double log_add(double a, double b) {
  const double high = (std::max)(a, b);
  if (high == minus_infinity || a != a || b != b) return a + b;
  return high + std::log1p(std::exp((std::min)(a, b) - high));
}

/// The share of a part in a whole, exp(part - whole); 0 for an empty part.
[[nodiscard]] inline double share(double part, double whole) {
  return part == minus_infinity ? 0 : std::exp(part - whole);
}

}  // namespace detail

/// Attention over the union of two disjoint key sets, from the attentions over each, in any order. A sink must have been given to one part only. Not for outputs of Merge::mean.
///
///   lse = log(exp(lse_a) + exp(lse_b)), values = exp(lse_a - lse) values_a + exp(lse_b - lse) values_b.
/// \throws Error unless both have the same shape
template <class T>
[[nodiscard]] AttentionOutput<T> merge(const AttentionOutput<T>& a, const AttentionOutput<T>& b) {
  POSLSH_CHECK(b.values.rows() == a.values.rows(), "rows of the second output", b.values.rows(), "those of the first");
  POSLSH_CHECK(b.values.cols() == a.values.cols(), "columns of the second output", b.values.cols(),
               "those of the first");
  POSLSH_CHECK(a.log_sum_exp.size() == a.values.rows(), "log_sum_exp of the first output", a.log_sum_exp.size(),
               "one a row");
  POSLSH_CHECK(b.log_sum_exp.size() == b.values.rows(), "log_sum_exp of the second output", b.log_sum_exp.size(),
               "one a row");
  AttentionOutput<T> merged{Matrix<T>(a.values.rows(), a.values.cols()), Vector<double>(a.values.rows())};
  for (Index i = 0; i < a.values.rows(); ++i) {
    const double whole = detail::log_add(a.log_sum_exp[i], b.log_sum_exp[i]);
    const T share_a = static_cast<T>(detail::share(a.log_sum_exp[i], whole));
    const T share_b = static_cast<T>(detail::share(b.log_sum_exp[i], whole));
    merged.log_sum_exp[i] = whole;
    for (Index f = 0; f < a.values.cols(); ++f) {
      // A part without mass has no say, whatever its values: 0 x NaN would.
      if (b.log_sum_exp[i] == detail::minus_infinity)
        merged.values(i, f) = a.values(i, f);
      else if (a.log_sum_exp[i] == detail::minus_infinity)
        merged.values(i, f) = b.values(i, f);
      else
        merged.values(i, f) = share_a * a.values(i, f) + share_b * b.values(i, f);
    }
  }
  return merged;
}

}  // namespace poslsh::inline POSLSH_SIMD
