// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Logarithm and exponential with the same bits on every platform and compiler.
///
/// The draws rest on them. The C library's differ between versions in the last bit, and a compiler may or may not
/// contract a*b+c, across functions too; here every such pair is written as std::fma, which is correctly rounded
/// everywhere, or its product goes through rounded().
/// Errors stay within 1 unit in the last place for the exponential, 3 for the logarithms, 10 for x - log(1 + x).

#include "poslsh/core/config.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace poslsh::inline POSLSH_SIMD::detail {

inline constexpr double ln2_high = 0x1.62e42fefa38p-1;     // ln 2 to 42 bits: n * ln2_high is exact for |n| < 2^11
inline constexpr double ln2_low = 0x1.ef35793c7673p-45;    // ln 2 - ln2_high
inline constexpr double inverse_ln2 = 0x1.71547652b82fep0;

/// A product that a sum may follow: whether or not this sum is fused with it, it is rounded, and the next cannot be.
inline double rounded(double product) { return product + 0.0; }

/// sum_k z^k / (2k + 3) for 0 <= z <= 0.0296: with s = f / (2 + f), z = s^2, log(1 + f) = 2 s + 2 s z * this.
inline double log_series(double z) {
  double sum = 1.0 / 25;
  for (int odd = 23; odd >= 3; odd -= 2) sum = std::fma(sum, z, 1.0 / odd);
  return sum;
}

/// log(1 + f) for -0.293 <= f <= 0.415.
inline double log_near_one(double f) {
  const double s = f / (2 + f);
  const double z = s * s;
  return std::fma(2 * s * z, log_series(z), 2 * s);
}

/// log(x); -inf at 0, NaN below.
inline double portable_log(double x) {
  if (!(x > 0)) return x == 0 ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  if (!(x < std::numeric_limits<double>::infinity())) return x;
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < 0x1.6a09e667f3bcdp-1) {  // sqrt(1/2)
    mantissa *= 2;
    --exponent;
  }
  const double log_mantissa = log_near_one(mantissa - 1);
  return std::fma(exponent, ln2_high, std::fma(exponent, ln2_low, log_mantissa));
}

/// log(1 + x) with full relative accuracy around 0.
inline double portable_log1p(double x) {
  x = rounded(x);
  return x >= -0.29 && x <= 0.41 ? log_near_one(x) : portable_log(1 + x);
}

/// x - log(1 + x) for x >= 0, with full relative accuracy around 0, where it is x^2/2.
inline double portable_x_minus_log1p(double x) {
  x = rounded(x);
  if (x > 0.41) return x - portable_log(1 + x);
  const double s = x / (2 + x);  // x - 2 s = x s, so nothing cancels
  const double z = s * s;
  return rounded(s * std::fma(-2 * z, log_series(z), x));
}

/// exp(x).
inline double portable_exp(double x) {
  if (!(x <= 709.782712893384)) return x != x ? x : std::numeric_limits<double>::infinity();
  if (x < -745.2) return 0;
  const double n = std::floor(std::fma(x, inverse_ln2, 0.5));
  const double r = std::fma(-n, ln2_low, std::fma(-n, ln2_high, x));
  double sum = 1;  // Horner's form of sum r^k / k! for |r| <= 0.35
  for (int k = 14; k >= 1; --k) sum = std::fma(sum, r / k, 1.0);
  return std::ldexp(sum, static_cast<int>(n));
}

}  // namespace poslsh::inline POSLSH_SIMD::detail
