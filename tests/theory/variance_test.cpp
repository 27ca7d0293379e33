// SPDX-License-Identifier: MIT

// The variance of a mean mask at one pair of positions, as docs/theory.md derives it for each way to draw,
// against what draws have.

#include "poslsh/mask/mean_mask.hpp"
#include "support/catch.hpp"
#include "support/statistics.hpp"

#include <cmath>
#include <string>
#include <vector>

namespace variance_test {

using namespace poslsh;

namespace {

/// A draw of width w keeps two points at distance x together with probability (1 - x/w)+, the hat.
double hat(double x, double w) { return x < w ? 1 - x / w : 0; }

/// Var of the part of m equally spaced shifts that keep the points together: {t}(1 - {t}) / m^2 with t = m x
/// / w.
double shift_variance(double x, double w, Index m) {
  if (!(x < w)) return 0;
  const double count = static_cast<double>(m), t = count * x / w, part = t - std::floor(t);
  return part * (1 - part) / (count * count);
}

/// The width at a probability, and its weight.
template <DistanceKernel K>
PositionHash width_at(const K& kernel, double probability, Sampling sampling) {
  PositionHash hash{kernel.width_quantile(probability), 0, 1};
  if (sampling == Sampling::importance) {
    hash.width *= 2;
    hash.weight = 2 * kernel.width_density(hash.width) / kernel.width_density(hash.width / 2);
  } else if (sampling == Sampling::mixture) {
    hash.width = detail::mixture_quantile(kernel, probability, hash.width, 3);
    const double plain = kernel.width_density(hash.width),
                 stretched = kernel.width_density(hash.width / 3) / 3;
    hash.weight = 2 * plain / (plain + stretched);
  }
  return hash;
}

/// Var Mt(i, i + x) of draws of which w widths are stratified: over the strata a of probability, with p
/// uniform in one,
///   (1/w^2) sum_a (E_a[weight^2 (hat^2 + shift_variance)] - E_a[weight hat]^2),
/// by the midpoint rule.
template <DistanceKernel K>
double stratified_variance(const K& kernel, double x, Index samples, Sampling sampling) {
  const Index m = detail::shifts_per_width(samples), widths = samples / m;
  const int points = static_cast<int>(8000 / widths);
  double variance = 0;
  for (Index a = 0; a < widths; ++a) {
    double mean = 0, square = 0;
    for (int t = 0; t < points; ++t) {
      const double p = (static_cast<double>(a) + (t + 0.5) / points) / static_cast<double>(widths);
      const auto [width, shift, weight] = width_at(kernel, p, sampling);
      mean += weight * hat(x, width) / points;
      square += weight * weight * (hat(x, width) * hat(x, width) + shift_variance(x, width, m)) / points;
    }
    variance += square - mean * mean;
  }
  return variance / static_cast<double>(widths) / static_cast<double>(widths);
}

/// (Mt(i, i + x) - k(x))^2 for many seeds: their mean is the variance, as the mean of Mt is known.
template <class Draw>
std::vector<double> squared_errors(double kernel_value, Index x, int seeds, Draw draw) {
  std::vector<double> squares;
  for (int seed = 0; seed < seeds; ++seed) {
    const double error =
        MeanMask(draw(static_cast<std::uint64_t>(seed))).weight(1000, 1000 + x) - kernel_value;
    squares.push_back(error * error);
  }
  return squares;
}

constexpr int seeds = 6000;
constexpr double level = 1e-3 / 50;  // of each of the 50 intervals below, two-sided: 1e-3 for all of them

void check(const std::vector<double>& squares, double variance, const std::string& what) {
  INFO(what << ", variance " << variance);
  const test::Interval interval = test::mean_interval(squares, level);
  INFO("interval " << interval.low << " to " << interval.high);
  CHECK(interval.contains(variance));
  CHECK(interval.high - interval.low < 0.5 * variance);  // or the check would say little
}

}  // namespace

TEST_CASE("A pair's variance is k(1 - k)/s for independent draws") {
  const LaplaceKernel laplace{16};
  const PowerKernel power{0.0625, 1};
  for (const Index x : {1, 8, 16, 40}) {
    const auto check_kernel = [&](const auto& kernel, const char* name) {
      const double k = kernel(static_cast<double>(x));
      const auto draw = [&](std::uint64_t seed) {
        return draw_hashes(kernel, 32, seed, Sampling::independent);
      };
      check(squared_errors(k, x, seeds, draw), k * (1 - k) / 32, name + std::to_string(x));
    };
    check_kernel(laplace, "Laplace, distance ");
    check_kernel(power, "power, distance ");
  }
}

TEST_CASE(
    "A pair's variance is (16/9 exp(-3x/(2 sigma)) - exp(-2x/sigma))/s for independent importance draws") {
  const LaplaceKernel kernel{16};
  for (const Index x : {0, 1, 8, 16, 32, 64}) {
    const double distance = static_cast<double>(x), k = kernel(distance);
    const auto draw = [&](std::uint64_t seed) {
      std::vector<PositionHash> hashes;
      for (std::uint64_t r = 0; r < 32; ++r)
        hashes.push_back(draw_hashes(kernel, 1, seed, Sampling::importance, r).front());
      return hashes;
    };
    const double variance = (16.0 / 9 * std::exp(-1.5 * distance / 16) - k * k) / 32;
    check(squared_errors(k, x, seeds, draw), variance, "distance " + std::to_string(x));
  }
}

TEST_CASE("A pair's variance is the sum over the strata for stratified, importance and mixture draws") {
  const LaplaceKernel laplace{16};
  const PowerKernel power{0.0625, 1};
  const struct {
    Sampling sampling;
    const char* name;
  } designs[] = {{Sampling::stratified, "stratified"},
                 {Sampling::importance, "importance"},
                 {Sampling::mixture, "mixture"}};
  for (const auto& design : designs)
    for (const Index samples : {Index{8}, Index{32}})
      for (const Index x : {4, 16, 40}) {
        const Sampling sampling = design.sampling;
        const std::string what =
            design.name + std::string(", s = ") + std::to_string(samples) + ", distance " + std::to_string(x);
        const auto check_kernel = [&](const auto& kernel, const std::string& kernel_name) {
          const double distance = static_cast<double>(x);
          const auto draw = [&](std::uint64_t seed) { return draw_hashes(kernel, samples, seed, sampling); };
          check(squared_errors(kernel(distance), x, seeds, draw),
                stratified_variance(kernel, distance, samples, sampling), kernel_name + what);
        };
        check_kernel(laplace, "Laplace, ");
        check_kernel(power, "power, ");
      }
}

TEST_CASE("One stratum and one shift are one plain draw") {
  const LaplaceKernel kernel{16};
  for (const double x : {1.0, 16.0, 40.0}) {
    const double k = kernel(x);
    CHECK(stratified_variance(kernel, x, 1, Sampling::stratified) == Approx(k * (1 - k)).epsilon(1e-3));
    CHECK(stratified_variance(kernel, x, 1, Sampling::importance) ==
          Approx(16.0 / 9 * std::exp(-1.5 * x / 16) - k * k).epsilon(1e-3));
    // A weight of at most 2, and at most twice that of the stretched law alone.
    CHECK(stratified_variance(kernel, x, 1, Sampling::mixture) < 2 * k - k * k);
    CHECK(stratified_variance(kernel, x, 1, Sampling::mixture) <
          162.0 / 25 * std::exp(-5 * x / (3 * 16)) - k * k);
  }
}

TEST_CASE("Stratified draws obey the bound 1/(4 w^2) + 1/(4 w m^2)") {
  for (const Index samples : {8, 32, 128}) {
    const double m = static_cast<double>(detail::shifts_per_width(samples)),
                 w = static_cast<double>(samples) / m;
    for (const double x : {1.0, 4.0, 16.0, 40.0, 100.0})
      CHECK(stratified_variance(LaplaceKernel{16}, x, samples, Sampling::stratified) <=
            1 / (4 * w * w) + 1 / (4 * w * m * m));
  }
}

}  // namespace variance_test
