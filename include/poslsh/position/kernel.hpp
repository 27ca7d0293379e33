// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Kernels of a distance that random binning can sample (Rahimi and Recht: Random features for large-scale kernel
/// machines, 2007).

#include "poslsh/core/math.hpp"

#include <algorithm>
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
/// - `k.width_quantile(p)`: the w with P[width <= w] = p, for 0 < p < 1; may be infinite.
/// Any convex kernel will do, such as a mixture of two of those below. A Gaussian will not: it is concave around 0,
/// where the density would have to be negative.
///
/// Optional members, each computed from the four above where it is missing, or done without:
/// - `k.log_value(x)`: log k(x); keeps far weights apart where k(x) underflows;
/// - `k.log_tail_sum(x)`: a bound on log(k(x) + k(x + 1) + k(x + 2) + ...), infinity where the sum has none; lets exact
///   attention leave out keys within a tolerance;
/// - `k.stretched_weight(w, b)`: density(w) / (density(w / b) / b), the weight of an importance draw of width w; for
///   kernels whose densities underflow at widths that occur. It is at most b^2 where k'' decreases.
template <class K>
concept DistanceKernel = requires(const K& kernel, double x) {
  { kernel(x) } -> std::convertible_to<double>;
  { kernel.width_density(x) } -> std::convertible_to<double>;
  { kernel.width_tail(x) } -> std::convertible_to<double>;
  { kernel.width_quantile(x) } -> std::convertible_to<double>;
};

namespace detail {

/// log k(distance).
template <DistanceKernel K>
[[nodiscard]] double log_value(const K& kernel, double distance) {
  if constexpr (requires { kernel.log_value(distance); })
    return kernel.log_value(distance);
  else
    return std::log(kernel(distance));
}

/// density(width) / (density(width / stretch) / stretch).
template <DistanceKernel K>
[[nodiscard]] double stretched_weight(const K& kernel, double width, double stretch) {
  if constexpr (requires { kernel.stretched_weight(width, stretch); })
    return kernel.stretched_weight(width, stretch);
  else
    return stretch * kernel.width_density(width) / kernel.width_density(width / stretch);
}

}  // namespace detail

/// k(x) = exp(-x / sigma), the weight of ALiBi with slope 1 / sigma. Widths follow Gamma(2, sigma): mean 2 sigma.
/// The methods check sigma > 0 and finite. The quantile has the same bits on every platform.
struct LaplaceKernel {
  double sigma;  ///< the distance at which the weight is 1/e

  /// exp(-x / sigma).
  [[nodiscard]] double operator()(double distance) const { return detail::portable_exp(-distance / checked()); }
  /// -x / sigma.
  [[nodiscard]] double log_value(double distance) const { return -distance / checked(); }
  /// Of the geometric series exp(-x / sigma) / (1 - exp(-1 / sigma)).
  [[nodiscard]] double log_tail_sum(double distance) const {
    return log_value(distance) - std::log(-std::expm1(-1 / sigma));
  }

  /// w / sigma^2 exp(-w / sigma).
  [[nodiscard]] double width_density(double width) const {
    const double x = width / checked();
    return x < 745 ? x * detail::portable_exp(-x) / sigma : 0;
  }

  /// (1 + w / sigma) exp(-w / sigma).
  [[nodiscard]] double width_tail(double width) const {
    const double x = width / checked();
    return x < 745 ? detail::rounded((1 + x) * detail::portable_exp(-x)) : 0;
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

/// k(x) = (1 + c x)^-p with scale c and exponent p: the logarithmic bias -p log(1 + c x) of KERPLE (Chi, Fan, Ramadge,
/// Rudnicky 2022; arXiv 2205.09921).
///
/// Heavy tails: P[width > w] falls like (p + 1) (c w)^-p. Widths have a finite mean, 2 / (c (p - 1)), only for p > 1,
/// and quantiles may be huge; one beyond the range of double is infinite, which is one block of all positions.
/// The methods check scale > 0 and exponent > 0, both finite. Values, tails and densities err relatively by a few units
/// in the last place times 1 + |log k|. The quantile and stretched_weight have the same bits on every platform.
struct PowerKernel {
  double scale;     ///< c
  double exponent;  ///< p

  /// (1 + c x)^-p.
  [[nodiscard]] double operator()(double distance) const { return detail::portable_exp(log_value(distance)); }
  /// -p log(1 + c x).
  [[nodiscard]] double log_value(double distance) const { return -exponent * detail::portable_log1p(scaled(distance)); }
  /// Of k(x) + integral of k from x on = (1 + c x)^-p (1 + (1 + c x) / (c (p - 1))); infinite for p <= 1.
  [[nodiscard]] double log_tail_sum(double distance) const {
    const double x = scaled(distance);
    if (!(exponent > 1)) return std::numeric_limits<double>::infinity();
    if (!(x < std::numeric_limits<double>::infinity())) return -x;
    return log_value(distance) + std::log1p((1 + x) / (scale * (exponent - 1)));
  }

  /// p (p + 1) c^2 w (1 + c w)^(-p - 2).
  [[nodiscard]] double width_density(double width) const {
    const double x = scaled(width);
    if (!(x < std::numeric_limits<double>::infinity())) return 0;
    return scale / (1 + x) * (x / (1 + x)) * (exponent * (*this)(width)) * (exponent + 1);
  }

  /// (1 + c w)^(-p - 1) (1 + (p + 1) c w).
  [[nodiscard]] double width_tail(double width) const {
    return detail::rounded((*this)(width) * (1 + detail::rounded(exponent * share(width))));
  }

  /// The width whose L = log(1 + c w) solves p L - log(1 + p (1 - exp(-L))) = -log(1 - probability).
  /// \throws Error unless 0 <= probability <= 1
  [[nodiscard]] double width_quantile(double probability) const {
    POSLSH_CHECK(probability >= 0 && probability <= 1, "probability", probability, "between 0 and 1");
    const double p = checked(), y = -detail::portable_log1p(-probability);
    if (y == 0) return 0;
    // With v = 1 - exp(-L), L / (1 + L) <= v <= L, the left side F has F' = p (p + 1) v / (1 + p v) >= p v: it is
    // convex, F >= p (L - log(1 + L)) and F >= p L - log(1 + p L). As x - log(1 + x) = z has x < z + sqrt(2z)
    // (Chatzigeorgiou 2013), L < y / p + sqrt(2y) / max(p, sqrt(p)). For small y that is less than sqrt(2) times the
    // root. Newton's steps come down to it without overshooting.
    double log = y / p + std::sqrt(2 * y) / (std::max)(p, std::sqrt(p));
    if (!(log < std::numeric_limits<double>::infinity())) return log;
    // Below the normal numbers, where p is huge, the bound itself has to do.
    for (int step = 0; step < 8 && log >= (std::numeric_limits<double>::min)(); ++step) {
      const Exponential e(log);
      const double pv = std::fma(p, e.complement, 0.0);
      // F = (p v - log(1 + p v)) + p (exp(-L) - 1 + L): both terms are positive.
      const double excess = std::fma(p, e.remainder, detail::portable_x_minus_log1p(pv)) - y;
      log = log - excess * (1 + pv) / (pv * (p + 1));
    }
    return Exponential(log).complement * detail::portable_exp(log) / scale;
  }

  /// b^2 ((1 + c w / b) / (1 + c w))^(p + 2) for the stretch b: from b^2 at 0 down to b^-p.
  [[nodiscard]] double stretched_weight(double width, double stretch) const {
    const double growth = detail::portable_log1p((stretch - 1) * share(width / stretch));
    return stretch * stretch * detail::portable_exp(-(exponent + 2) * growth);
  }

 private:
  /// v = 1 - exp(-x) and exp(-x) - 1 + x for x >= 0, both with full relative accuracy.
  struct Exponential {
    double complement, remainder;
    explicit Exponential(double x) {
      if (x > 1) {
        const double power = detail::portable_exp(-x);
        complement = 1 - power;
        remainder = power + (x - 1);
      } else {
        double sum = 1;  // 1 - x/3 + x^2/(3 4) - ...
        for (int k = 20; k >= 3; --k) sum = std::fma(sum, -x / k, 1.0);
        const double half_square = x * (x / 2);
        complement = std::fma(-half_square, sum, x);
        remainder = std::fma(half_square, sum, 0.0);
      }
    }
  };

  double checked() const {
    POSLSH_CHECK(scale > 0 && std::isfinite(scale), "kernel scale", scale, "positive and finite");
    POSLSH_CHECK(exponent > 0 && std::isfinite(exponent), "kernel exponent", exponent, "positive and finite");
    return exponent;
  }
  /// c x; as std::fma, which no compiler may fuse with a sum that follows.
  double scaled(double distance) const {
    static_cast<void>(checked());
    return std::fma(scale, distance, 0.0);
  }
  /// c w / (1 + c w).
  double share(double width) const {
    const double x = scaled(width);
    return x < std::numeric_limits<double>::infinity() ? x / (1 + x) : 1;
  }
};

}  // namespace poslsh::inline POSLSH_SIMD
