// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Theorem 2.2 of arXiv 2605.09472 as functions: how far attention under a mean mask is from exact attention.
///
/// With A(i, j) = exp(score(i, j)) over the keys j that query i sees: T* = D*^-1 (L* o A) V and Tt = Dt^-1 (Mt o A) V,
/// D* and Dt the row sums of L* o A and Mt o A. Row i differs by at most
///   |T*_i - Tt_i|_inf <= 2 max_j |v_j|_inf sum_j |L* - Mt|(i, j) A(i, j) / sum_j L*(i, j) A(i, j).
/// Proof. T*_i - Tt_i = sum_j (L* - Mt)(i, j) A(i, j) v_j / D* + Tt_i (Dt - D*) / D*. Tt_i is a mean of values, so
/// either term is at most max |v| sum_j |L* - Mt| A / D*. Keys outside the support of Mt count with L* A. A row
/// without any key inside has Tt_i = 0 and Dt = 0: the bound is then 2 max |v|, and |T*_i| at most half of that. A
/// sink adds the same to D* and Dt, which only helps. This is deterministic: it holds for any Mt, however drawn and
/// weighted, and for any L*.
///
/// This is about exact arithmetic; rounding comes on top. attention/certificate.hpp evaluates it for all rows at once.

#include "poslsh/mask/mean_mask.hpp"
#include "poslsh/theory/bounds.hpp"

#include <algorithm>
#include <span>
#include <vector>

namespace poslsh::inline POSLSH_SIMD::theory {

/// The row bound, for one query and the scores of the keys it sees: 2 v sum |L* - Mt| A / sum L* A with
/// L*(i, j) = kernel(|i - j|).
///
/// \param kernel     of exact attention
/// \param query      position of the query
/// \param first_key  position of the first key it sees; scores[t] belongs to key first_key + t
/// \param scores     after scale and cap, before the bias, of any size, -inf included: all is done in logarithms
/// \param largest_value  v >= max_j |v_j|_inf over those keys
/// \returns 0 without keys or values; infinity where sum L* A underflows beside sum Mt A. The outputs differ by at most 2 v in
/// any case: a larger bound says nothing
/// \throws Error unless largest_value >= 0. Cost O(s keys).
template <DistanceKernel K>
[[nodiscard]] double output_error_bound(const K& kernel, const MeanMask& mask, Index query, Index first_key,
                                        std::span<const double> scores, double largest_value) {
  POSLSH_CHECK(largest_value >= 0, "largest_value", largest_value, "at least 0");
  constexpr double lowest = -std::numeric_limits<double>::infinity();
  double largest_score = lowest;
  for (const double score : scores)
    if (!(score <= largest_score)) largest_score = score;
  if (largest_score == lowest || largest_value == 0) return 0;
  struct Pair {
    double exact, either, gap;  ///< log of L* A and of max(L*, Mt) A, | log L* - log Mt |
  };
  std::vector<Pair> pairs;
  pairs.reserve(scores.size());
  double largest = lowest;
  for (std::size_t t = 0; t < scores.size(); ++t) {
    const Index key = first_key + static_cast<Index>(t);
    const double exact = detail::log_value(kernel, std::abs(static_cast<double>(key - query)));
    const double mean = mask.log_weight(query, key);
    // Relative to the largest score first: beside one of 1e30, differences of weights would be lost.
    const double score = scores[t] - largest_score, either = score + (std::max)(exact, mean);
    if (either == lowest) continue;
    pairs.push_back({score + exact, either, std::abs(exact - mean)});
    largest = (std::max)(largest, either);
  }
  double difference = 0, whole = 0;
  for (const Pair& pair : pairs) {
    difference += std::exp(pair.either - largest) * -std::expm1(-pair.gap);
    whole += std::exp(pair.exact - largest);
  }
  return difference > 0 ? largest_value * (2 * (difference / whole)) : difference;
}

/// What |T*_i - Tt_i|_inf / max_j |v_j|_inf exceeds with probability at most `failure` over the draws, for all rows of
/// all queries, keys and values at once whose scores stay within +-score_bound:
///   2 exp(2 B) rho,  rho >= max over rows of sum_j |L* - Mt|(i, j) / sum_j L*(i, j).
///
/// For independent draws of LaplaceKernel{sigma} with weights 1, queries and keys the same n positions, each query
/// seeing a contiguous range of keys around itself: all, causal, or any window.
///
/// Derivation. In the row bound, exp(-B) <= A <= exp(B). With tau = ln(2 n (n - 1) / failure), Bernstein's inequality
/// for each of the n (n - 1) / 2 pairs (variance k(1 - k) <= k, both signs) gives, but for probability failure / 2,
///   |L* - Mt|(i, j) <= a sqrt(k(t)) + b,  t = |i - j|, a = sqrt(2 tau / s), b = 2 tau / (3 s),  and 0 at t = 0.
/// With T such that s P[width > T] = failure / 2, or T = n - 1 if that is less, but for another failure / 2 no width is
/// above T, and pairs farther apart have Mt = 0 and |L* - Mt| = k. So sum_j |L* - Mt| / sum_j L* is at most the sum of
/// three ratios sum_t f(t) / sum_t k(t): f = a sqrt(k); f = b, both sums up to T only; and f = k beyond T, else 0. In
/// each, f / k rises with t from 0: a range that reaches farther has the larger ratio, and of two sides the farther-
/// reaching one may be taken for both. Hence, with S = 1 / (exp(1 / sigma) - 1), the sum of k(t) over t >= 1, and
/// S_T = (1 - exp(-T / sigma)) S,
///   rho = 2 a / (exp(1 / (2 sigma)) - 1) / (1 + 2 S) + 2 b T / (1 + 2 S_T)
///       + 2 exp(-T / sigma) / (1 - exp(-1 / sigma)) / (1 + 2 S),  the last term left out if T = n - 1.
/// It falls as s grows. For sigma >> 1 it is about 2 a + b T / sigma: samples grow like exp(4 B) ln(n / failure) /
/// error^2, whatever n and sigma are otherwise.
///
/// \param score_bound  B >= 0
/// \throws Error unless sigma > 0, n >= 1, samples >= 1, B >= 0, all finite, and failure is inside (0, 1)
[[nodiscard]] inline double uniform_output_error_bound(double sigma, Index n, Index samples, double score_bound,
                                                       double failure) {
  detail::check_sigma(sigma);
  detail::check_bound_arguments(n, samples, 0);
  POSLSH_CHECK(score_bound >= 0 && std::isfinite(score_bound), "score_bound", score_bound, "finite and at least 0");
  detail::check_failure(failure);
  if (n == 1) return 0;
  const double count = static_cast<double>(n), s = static_cast<double>(samples);
  const double tau = std::log(2 * count * (count - 1)) - std::log(failure);
  const double a = std::sqrt(2 * tau / s), b = 2 * tau / (3 * s);
  // s (1 + x) exp(-x) = failure / 2 at x = T / sigma: Newton's steps as in LaplaceKernel's quantile.
  const double y = std::log(2 * s) - std::log(failure);
  double x = std::sqrt(2 * y) + y;
  for (int step = 0; step < 8; ++step) x -= (detail::portable_x_minus_log1p(x) - y) * (1 + x) / x;
  const double reach = (std::min)(sigma * x, count - 1);

  // With r = exp(-1 / sigma), S = r / (1 - r): no sum overflows, however large sigma is.
  const double root = std::exp(-1 / (2 * sigma)), r = std::exp(-1 / sigma);
  const double near = 2 * a * (root + r) / (1 + r);
  const double middle = 2 * b * reach / (1 + 2 * r * (std::expm1(-reach / sigma) / std::expm1(-1 / sigma)));
  const double far = reach < count - 1 ? 2 * std::exp(-reach / sigma) / (1 + r) : 0;
  // What underflows to 0 would not be a bound.
  const double rho = (std::max)(near + middle + far, (std::numeric_limits<double>::min)());
  return 2 * std::exp(2 * score_bound) * rho;
}

/// The least s with uniform_output_error_bound(sigma, n, s, score_bound, failure) <= error: so many independent draws
/// make every output row right within error x max |v|, with probability at least 1 - failure.
/// \param error  relative to max |v|; above 2 it says nothing
/// \throws Error where that does, unless error > 0 and finite, and if it would take more than 2^52 samples
[[nodiscard]] inline Index samples_for_output_error(double sigma, Index n, double score_bound, double error,
                                                    double failure) {
  POSLSH_CHECK(error > 0 && std::isfinite(error), "error", error, "positive and finite");
  return detail::least_samples(error, [&](Index samples) {
    return uniform_output_error_bound(sigma, n, samples, score_bound, failure) <= error;
  });
}

}  // namespace poslsh::inline POSLSH_SIMD::theory
