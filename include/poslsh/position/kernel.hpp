// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Kernels of a distance that random binning can sample (Rahimi and Recht: Random features for large-scale kernel
/// machines, 2007).

#include "poslsh/core/math.hpp"

#include <cmath>
#include <concepts>

namespace poslsh::inline POSLSH_SIMD {

/// A convex decreasing kernel k with k(0) = 1 and k(inf) = 0, and the law of the bin width that samples it.
///
/// A width w with density w k''(w) and a shift uniform in [0, w) give P[same bin] = E[(1 - x/w)+] = k(x) for two
/// points at distance x. The kernel offers
/// - `k(x)`: its value, x >= 0;
/// - `k.width_density(w)`: w k''(w);
/// - `k.width_tail(w)`: P[width > w] = k(w) - w k'(w);
/// - `k.width_quantile(p)`: the w with P[width <= w] = p, for 0 < p < 1.
template <class K>
concept DistanceKernel = requires(const K& kernel, double x) {
  { kernel(x) } -> std::convertible_to<double>;
  { kernel.width_density(x) } -> std::convertible_to<double>;
  { kernel.width_tail(x) } -> std::convertible_to<double>;
  { kernel.width_quantile(x) } -> std::convertible_to<double>;
};

/// k(x) = exp(-x / sigma), the weight of ALiBi with slope 1 / sigma. Widths follow Gamma(2, sigma): mean 2 sigma.
/// The methods check sigma > 0 and finite. The quantile has the same bits on every platform.
struct LaplaceKernel {
  double sigma;

  /// exp(-x / sigma).
  [[nodiscard]] double operator()(double distance) const { return detail::portable_exp(-distance / checked()); }

  /// w / sigma^2 exp(-w / sigma).
  [[nodiscard]] double width_density(double width) const {
    const double x = width / checked();
    return x < 745 ? x * detail::portable_exp(-x) / sigma : 0;
  }

  /// (1 + w / sigma) exp(-w / sigma).
  [[nodiscard]] double width_tail(double width) const {
    const double x = width / checked();
    return x < 745 ? (1 + x) * detail::portable_exp(-x) : 0;
  }

  /// sigma times the x that solves x - log(1 + x) = -log(1 - p).
  /// \throws Error unless 0 <= p <= 1
  [[nodiscard]] double width_quantile(double probability) const {
    POSLSH_CHECK(probability >= 0 && probability <= 1, "probability", probability, "between 0 and 1");
    const double unit = checked(), y = -detail::portable_log1p(-probability);
    if (y == 0 || y == std::numeric_limits<double>::infinity()) return y;
    // sqrt(2y) + 2y/3 < x < sqrt(2y) + y (Chatzigeorgiou 2013). The function is convex: from the upper bound,
    // Newton's steps come down to the root without overshooting.
    double x = std::sqrt(2 * y) + y;
    for (int step = 0; step < 8; ++step) x = x - (detail::portable_x_minus_log1p(x) - y) * (1 + x) / x;
    return x * unit;
  }

 private:
  double checked() const {
    POSLSH_CHECK(sigma > 0 && std::isfinite(sigma), "sigma", sigma, "positive and finite");
    return sigma;
  }
};

}  // namespace poslsh::inline POSLSH_SIMD
