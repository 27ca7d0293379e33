// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Statistics for tests of random draws.
///
/// A level is the probability that a right program fails the check when the seed is drawn anew. The tests fix
/// their seeds, so a check that passes once passes always; the level says how much luck that took. Where
/// several checks share a test, each gets its part of the level (Bonferroni).

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace poslsh::test {

/// The z with P[|N(0, 1)| > z] = level.
inline double two_sided_normal(double level) {
  double low = 0, high = 40;
  for (int step = 0; step < 100; ++step) {
    const double middle = (low + high) / 2;
    (std::erfc(middle / std::sqrt(2.0)) > level ? low : high) = middle;
  }
  return high;
}

struct Interval {
  double low, high;
  [[nodiscard]] bool contains(double value) const { return low <= value && value <= high; }
};

/// Wilson's interval for a probability, from independent trials.
inline Interval wilson_interval(double successes, double trials, double level) {
  const double z = two_sided_normal(level), z2 = z * z / trials, rate = successes / trials;
  const double centre = (rate + z2 / 2) / (1 + z2);
  const double radius = std::sqrt(rate * (1 - rate) * z2 + z2 * z2 / 4) / (1 + z2);
  return {centre - radius, centre + radius};
}

/// Normal interval for a mean, from independent values and their sample variance.
inline Interval mean_interval(const std::vector<double>& values, double level) {
  const double count = static_cast<double>(values.size());
  double mean = 0, squares = 0;
  for (const double value : values) mean += value / count;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double radius = two_sided_normal(level) * std::sqrt(squares / (count - 1) / count);
  return {mean - radius, mean + radius};
}

/// Kolmogorov and Smirnov's statistic: the largest distance between the sample's distribution and the law's.
template <class Law>
double ks_statistic(std::vector<double> sample, Law law) {
  std::sort(sample.begin(), sample.end());
  const double count = static_cast<double>(sample.size());
  double largest = 0;
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const double value = law(sample[i]), below = static_cast<double>(i) / count;
    largest = std::max({largest, value - below, below + 1 / count - value});
  }
  return largest;
}

/// What that statistic exceeds with probability at most level (Dvoretzky, Kiefer, Wolfowitz; Massart's
/// constant).
inline double ks_critical(std::size_t count, double level) {
  return std::sqrt(std::log(2 / level) / (2 * static_cast<double>(count)));
}

inline double uniform_law(double value) { return std::clamp(value, 0.0, 1.0); }

/// Pearson's correlation of two samples of one size. For independent ones it is about N(0, 1/count).
inline double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const double count = static_cast<double>(a.size());
  double mean_a = 0, mean_b = 0, ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    mean_a += a[i] / count;
    mean_b += b[i] / count;
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return ab / std::sqrt(aa * bb);
}

/// Pearson's chi-square of counts against equal expectations.
inline double chi_square(const std::vector<double>& counts) {
  double total = 0, sum = 0;
  for (const double count : counts) total += count;
  const double expected = total / static_cast<double>(counts.size());
  for (const double count : counts) sum += (count - expected) * (count - expected) / expected;
  return sum;
}

/// What chi-square exceeds with probability level (Wilson and Hilferty's cube root).
inline double chi_square_critical(double degrees, double level) {
  const double spread = 2 / (9 * degrees);
  return degrees * std::pow(1 - spread + two_sided_normal(2 * level) * std::sqrt(spread), 3);
}

}  // namespace poslsh::test
