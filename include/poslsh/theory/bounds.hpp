// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Theorem 2.1 of arXiv 2605.09472 as functions: how far a mean mask Mt of s draws is from its mean L*.
///
/// L*(i, j) = exp(-|i - j| / sigma) over n positions, Mt = (1/s) sum_r weight_r M_r. Bounds of probabilities are
/// returned as the formula gives them: one above 1 says nothing. All are O(1) unless they say otherwise, pure and
/// thread safe.
///
/// Which applies where:
/// - psi, spectral_tail_bound, spectral_expectation_bound, samples_for_spectral_error: Sampling::independent.
/// - max_tail_bound, samples_for_max_error (Hoeffding): weights 1. Independent draws, and stratified ones with their
///   number of widths for `samples`.
/// - the *_bernstein_bound: any weights, hence also widths from another law. Draws that are independent, such as
///   draw_hashes(kernel, 1, seed, Sampling::importance, stream) with a stream each; stratified, importance and mixture
///   draws of one call again with their number of widths.
/// - block_size_bound: any draws, by a union over them.
/// Stratified draws are not independent: the m shifts of one width come together. But the means over the shifts of each
/// of the s/m widths are, though of different laws. Hoeffding's and Bernstein's inequalities allow that: they ask for
/// the ranges, which a mean does not widen, and for the sum of second moments, which is at most that of s/m independent
/// draws.

#include "poslsh/core/types.hpp"
#include "poslsh/position/kernel.hpp"

#include <cmath>

namespace poslsh::inline POSLSH_SIMD {
namespace detail {

inline void check_bound_arguments(Index n, Index samples, double error) {
  POSLSH_CHECK(n >= 1, "n", n, "at least 1");
  POSLSH_CHECK(samples >= 1, "samples", samples, "at least 1");
  POSLSH_CHECK(error >= 0 && std::isfinite(error), "error", error, "finite and at least 0");
}
inline void check_sigma(double sigma) {
  POSLSH_CHECK(sigma > 0 && std::isfinite(sigma), "sigma", sigma, "positive and finite");
}
inline void check_failure(double failure) {
  POSLSH_CHECK(failure > 0 && failure < 1, "failure", failure, "inside (0, 1)");
}

/// error / (mean + error / 3) for error and mean >= 0, not both 0, of any size: neither sum nor quotient overflows.
[[nodiscard]] inline double bernstein_ratio(double error, double mean) {
  return error < mean ? error / mean / (1 + error / mean / 3) : 1 / (mean / error + 1.0 / 3);
}

/// The least s in [1, 2^52] with enough(s), which must stay true once it is; what is wanted needs more: an Error.
template <class Enough>
[[nodiscard]] Index least_samples(double error, Enough&& enough) {
  Index low = 0, high = Index{1} << 52;
  POSLSH_CHECK(enough(high), "error", error, "large enough for 2^52 samples to reach it");
  while (high - low > 1) {
    const Index middle = low + (high - low) / 2;
    (enough(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace detail

/// Theorems 2.1 and 2.2 as functions.
namespace theory {

/// A bound of ||L*||_2 for every n: its rows sum to less than coth(1 / (2 sigma)), about 2 sigma.
/// \throws Error unless sigma > 0 and finite
[[nodiscard]] inline double kernel_norm_bound(double sigma) {
  detail::check_sigma(sigma);
  return 1 / std::tanh(1 / (2 * sigma));
}

/// Psi = 1 + sigma + coth(1 / (2 sigma)), the scale of Theorem 2.1.
/// \throws Error unless sigma > 0 and finite
[[nodiscard]] inline double psi(double sigma) { return 1 + sigma + kernel_norm_bound(sigma); }

/// n exp(-s e^2 / (4 Psi (4 Psi + e))), as the authors' code evaluates it: bounds P[lambda_max(Mt - L*) >= e], and
/// likewise P[lambda_max(L* - Mt) >= e]. P[||Mt - L*||_2 >= e] is at most twice that, by the union over both signs.
///
/// A mask of width w has blocks of at most w + 1 positions, so with w = sigma G, G ~ Gamma(2), and
/// a = 1 + coth(1 / (2 sigma)): ||M - L*|| <= a + sigma G. From E G^k = (k + 1)!,
///   E (a + sigma G)^p <= (p + 1)! Psi^p <= (p!/2) (2 Psi)^(p - 2) 8 Psi^2,
/// the condition of Tropp's Bernstein inequality for subexponential matrices (User-friendly tail bounds for sums of
/// random matrices, 2012, Theorem 6.2) with R = 2 Psi and A^2 = 8 Psi^2.
/// \param error  e >= 0, absolute: ||L*|| itself is about 2 sigma
/// \throws Error unless sigma > 0, n >= 1, samples >= 1 and e >= 0, all finite
[[nodiscard]] inline double spectral_tail_bound(double sigma, Index n, Index samples, double error) {
  detail::check_bound_arguments(n, samples, error);
  const double x = error / (4 * psi(sigma));
  return static_cast<double>(n) * std::exp(-static_cast<double>(samples) * x * (x / (1 + x)));
}

/// A bound of E ||Mt - L*||_2: (2 Psi / s) (a + sqrt(a^2 + 4 a s)) with a = 1 + ln(2 n). It is at most
/// 4 Psi (sqrt(a / s) + a / s).
///
/// Let e(t) = (2 Psi / s) (t + sqrt(t^2 + 4 t s)), the error where s e^2 / (4 Psi (4 Psi + e)) = t. By the tail bound
/// for both signs, P[||Mt - L*|| > e(ln(2n) + t)] <= exp(-t): the norm is dominated by e(ln(2n) + T) with T exponential
/// of mean 1. As e is concave, Jensen gives E e(ln(2n) + T) <= e(ln(2n) + 1).
/// \throws Error unless sigma > 0 and finite, n >= 1 and samples >= 1
[[nodiscard]] inline double spectral_expectation_bound(double sigma, Index n, Index samples) {
  detail::check_bound_arguments(n, samples, 0);
  const double a = 1 + std::log(2 * static_cast<double>(n)), s = static_cast<double>(samples);
  return 2 * psi(sigma) * (a / s + std::sqrt(a / s * (a / s + 4)));
}

/// n (n - 1) exp(-2 s e^2): bounds P[max_ij |Mt - L*|(i, j) >= e], by Hoeffding's inequality for each pair and both
/// signs. For weights 1, with which the diagonal is exact.
/// \throws Error unless n >= 1, samples >= 1 and e >= 0 and finite
[[nodiscard]] inline double max_tail_bound(Index n, Index samples, double error) {
  detail::check_bound_arguments(n, samples, error);
  const double count = static_cast<double>(n);
  return count * (count - 1) * std::exp(-2 * static_cast<double>(samples) * error * error);
}

/// The least s with spectral_tail_bound(sigma, n, s, error) <= failure. For both signs, ask for failure / 2.
/// \param failure  a probability in (0, 1)
/// \throws Error where that does, unless failure is inside (0, 1), and if it would take more than 2^52 samples
[[nodiscard]] inline Index samples_for_spectral_error(double sigma, Index n, double error, double failure) {
  detail::check_failure(failure);
  return detail::least_samples(error,
                               [&](Index samples) { return spectral_tail_bound(sigma, n, samples, error) <= failure; });
}

/// The least s with max_tail_bound(n, s, error) <= failure.
/// \throws Error where that does, unless failure is inside (0, 1), and if it would take more than 2^52 samples
[[nodiscard]] inline Index samples_for_max_error(Index n, double error, double failure) {
  detail::check_failure(failure);
  return detail::least_samples(error, [&](Index samples) { return max_tail_bound(n, samples, error) <= failure; });
}

/// The least t >= 1 with s P[width > t] <= failure: with probability at least 1 - failure, no block of any of s draws
/// holds more than t positions, since one of width w holds at most ceil(w). O(sigma log(s / failure)) for
/// LaplaceKernel; a heavy tail may need more than 2^62, given as max_position.
///
/// \param kernel   of the widths that are drawn; for importance and mixture draws the stretched one, for LaplaceKernel
///                 LaplaceKernel{stretch sigma}
/// \param samples  s >= 1
/// \throws Error unless samples >= 1 and failure is inside (0, 1). Cost: about 100 tails.
template <DistanceKernel K>
[[nodiscard]] Index block_size_bound(const K& kernel, Index samples, double failure) {
  POSLSH_CHECK(samples >= 1, "samples", samples, "at least 1");
  detail::check_failure(failure);
  const auto enough = [&](Index size) {
    return static_cast<double>(samples) * kernel.width_tail(static_cast<double>(size)) <= failure;
  };
  Index low = 0, high = 1;
  while (!enough(high)) {
    if (high == max_position) return max_position;
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    const Index middle = low + (high - low) / 2;
    (enough(middle) ? high : low) = middle;
  }
  return high;
}

// --- Bernstein's inequality, for bounded weights -----------------------------------------------------------

/// n exp(-s e^2 / (2 R (m + e / 3))): bounds P[lambda_max(Mt - L*) >= e], and likewise P[lambda_max(L* - Mt) >= e];
/// twice that bounds P[||Mt - L*||_2 >= e].
///
/// For Y = weight M with 0 <= Y <= R: ||Y - L*|| <= R, and E (Y - L*)^2 <= E Y^2 <= R E Y = R L*. Matrix Bernstein
/// (Tropp 2012, Theorem 1.4) with variance R m, m >= ||L*||. Unlike Theorem 2.1 it needs R: weights that fall faster
/// than widths grow, or n itself.
/// \param draw_norm  R >= weight x positions in a block, for every draw: importance_norm_bound, mixture_norm_bound, or
///                   the largest weight times n
/// \param mean_norm  m >= ||L*||_2; kernel_norm_bound(sigma)
/// \throws Error unless n >= 1, samples >= 1, e >= 0, and R and m are positive, all finite
[[nodiscard]] inline double spectral_bernstein_bound(Index n, Index samples, double error, double draw_norm,
                                                     double mean_norm) {
  detail::check_bound_arguments(n, samples, error);
  POSLSH_CHECK(draw_norm > 0 && std::isfinite(draw_norm), "draw_norm", draw_norm, "positive and finite");
  POSLSH_CHECK(mean_norm > 0 && std::isfinite(mean_norm), "mean_norm", mean_norm, "positive and finite");
  const double rate = static_cast<double>(samples) * detail::bernstein_ratio(error, mean_norm);
  return static_cast<double>(n) * std::exp(-rate * (error / draw_norm) / 2);
}

/// A bound of weight x positions in a block for importance draws of LaplaceKernel with stretch b. A width w has weight
/// b^2 exp(-r w) with r = (1 - 1/b) / sigma, and blocks of at most w + 1 positions; the product is largest at
/// w = 1/r - 1, where it is b^2 exp(r - 1) / r, or for r >= 1 at w = 0, where it is b^2.
/// \throws Error unless sigma > 0 and stretch > 1, both finite
[[nodiscard]] inline double importance_norm_bound(double sigma, double stretch = 2) {
  detail::check_sigma(sigma);
  POSLSH_CHECK(stretch > 1 && std::isfinite(stretch), "stretch", stretch, "above 1 and finite");
  const double rate = (1 - 1 / stretch) / sigma;
  return stretch * stretch * (rate >= 1 ? 1 : std::exp(rate - 1) / rate);
}

/// The same for mixture draws, whose weights 2 / (1 + exp(r w) / b^2) are at most 2 and at most twice those of
/// importance draws: up to w = ln(b^2) / r the product is at most 2 (w + 1), beyond at most 2 b^2 (w + 1) exp(-r w).
/// \throws Error unless sigma > 0 and stretch > 1, both finite
[[nodiscard]] inline double mixture_norm_bound(double sigma, double stretch = 3) {
  const double beyond = 2 * importance_norm_bound(sigma, stretch);
  const double rate = (1 - 1 / stretch) / sigma, meeting = 2 * std::log(stretch) / rate;
  return meeting >= 1 / rate - 1 ? 2 * (meeting + 1) : beyond;
}

/// 2 exp(-s e^2 / (2 W (k + e / 3))): bounds P[|Mt(i, j) - k| >= e] for one pair, k = L*(i, j).
///
/// Y = weight M(i, j) lies in [0, W] and has mean k, hence variance at most W k: Bernstein's inequality, both signs.
/// For far pairs, with small k, much sharper than Hoeffding's.
/// \param mean        k in [0, 1]
/// \param max_weight  W; 1 for unit weights, 2 for mixture draws, 4 (stretch^2) for importance draws
/// \throws Error unless samples >= 1, e >= 0 and finite, 0 <= k <= 1, and W > 0 and finite
[[nodiscard]] inline double pair_bernstein_bound(Index samples, double error, double mean, double max_weight) {
  detail::check_bound_arguments(1, samples, error);
  POSLSH_CHECK(mean >= 0 && mean <= 1, "mean", mean, "between 0 and 1");
  POSLSH_CHECK(max_weight > 0 && std::isfinite(max_weight), "max_weight", max_weight, "positive and finite");
  if (error == 0) return 2;
  const double rate = static_cast<double>(samples) * detail::bernstein_ratio(error, mean);
  return 2 * std::exp(-rate * (error / max_weight) / 2);
}

/// n (n + 1) exp(-s e^2 / (2 W (1 + e / 3))): bounds P[max_ij |Mt - L*|(i, j) >= e] for weights up to W, the diagonal
/// included, which is exact only on average: pair_bernstein_bound over the n (n + 1) / 2 pairs with k <= 1.
/// \throws Error unless n >= 1, samples >= 1, e >= 0 and finite, and W > 0 and finite
[[nodiscard]] inline double max_bernstein_bound(Index n, Index samples, double error, double max_weight) {
  detail::check_bound_arguments(n, samples, error);
  const double count = static_cast<double>(n);
  return count * (count + 1) / 2 * pair_bernstein_bound(samples, error, 1, max_weight);
}

}  // namespace theory
}  // namespace poslsh::inline POSLSH_SIMD
