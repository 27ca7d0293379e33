// SPDX-License-Identifier: MIT

// The heavy-tailed kernel: its law in both tails, and draws whose widths have no bound worth the name.

#include "poslsh/position/hash.hpp"
#include "support/catch.hpp"
#include "support/statistics.hpp"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

namespace power_kernel_test {

using namespace poslsh::test;
using poslsh::draw_hashes;
using poslsh::Index;
using poslsh::PositionHash;
using poslsh::PowerKernel;
using poslsh::Sampling;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double level = 1e-6;
const std::vector<double> scales = {1e-6, 0.7, 1, 33};
const std::vector<double> exponents = {0.05, 0.5, 1, 1.5, 3, 40, 1e6};
const std::vector<Sampling> samplings = {Sampling::independent, Sampling::stratified, Sampling::importance,
                                         Sampling::mixture};

double relative_error(double got, long double want) { return static_cast<double>(std::abs(got / want - 1)); }

/// x - log(1 + x).
long double minus_log(long double x) {
  if (x > 0.05L) return x - std::log1p(x);
  long double power = x, sum = 0;
  for (int k = 2; k < 20; ++k) sum += (k % 2 == 0 ? 1 : -1) * (power *= x) / k;
  return sum;
}

/// k(x), and P[width > x] = k (1 + p x / (1 + x)), for scale 1.
long double value(long double p, long double x) { return std::exp(-p * std::log1p(x)); }
long double tail(long double p, long double x) { return value(p, x) * (1 + p * x / (1 + x)); }

/// P[width <= x] for scale 1, where nothing cancels: -log of the tail is [p v - log(1 + p v)] + p [log(1 + x)
/// - v] with v = x / (1 + x), and log(1 + x) = -log(1 - v).
long double distribution(long double p, long double x) {
  const long double v = x / (1 + x);
  long double power = v, rest = 0;
  for (int k = 2; k < 40; ++k) rest += (power *= v) / k;
  if (v > 0.2L) rest = std::log1p(x) - v;
  return -std::expm1(-(minus_log(p * v) + p * rest));
}

double mean_weight(const PowerKernel& kernel, Sampling sampling, Index samples, std::uint64_t seed, Index i,
                   Index j) {
  double sum = 0;
  for (const PositionHash& hash : draw_hashes(kernel, samples, seed, sampling))
    if (hash.bin(i) == hash.bin(j)) sum += hash.weight;
  return sum / static_cast<double>(samples);
}

}  // namespace

static_assert(poslsh::DistanceKernel<PowerKernel>);

TEST_CASE("The power kernel is (1 + c x)^-p, and its logarithm goes on where it underflows") {
  for (const double c : scales)
    for (const double p : exponents) {
      const PowerKernel kernel{c, p};
      CAPTURE(c, p);
      REQUIRE(kernel(0) == 1);
      REQUIRE(kernel(infinity) == 0);
      REQUIRE(kernel.log_value(infinity) == -infinity);
      for (const double x : {1e-9, 0.1, 1.0, 2.5, 700.0, 1e12, 1e100, 1e300}) {
        const long double exact = -p * std::log1p(static_cast<long double>(c) * x);
        CAPTURE(x);
        REQUIRE(relative_error(kernel.log_value(x), exact) < 1e-15);
        if (exact > -700)
          REQUIRE(relative_error(kernel(x), std::exp(exact)) < 1e-15 * (1 - static_cast<double>(exact)));
      }
    }
}

TEST_CASE("The power kernel's widths have the density w k'' and the tail k - w k'") {
  for (const double c : scales)
    for (const double p : exponents) {
      const PowerKernel kernel{c, p};
      CAPTURE(c, p);
      REQUIRE(kernel.width_density(0) == 0);
      REQUIRE(kernel.width_density(infinity) == 0);
      REQUIRE(kernel.width_tail(0) == 1);
      REQUIRE(kernel.width_tail(infinity) == 0);
      for (const double w : {1e-9, 0.1, 1.0, 2.5, 700.0, 1e12, 1e100, 1e200}) {
        const long double x = static_cast<long double>(c) * w;
        const long double density = p * (p + 1.0L) * c * x * std::exp(-(p + 2.0L) * std::log1p(x));
        if (density < 1e-290L) continue;
        const double budget = 2e-15 * (1 + p * std::log1p(static_cast<double>(x)));
        CAPTURE(w);
        REQUIRE(relative_error(kernel.width_tail(w), tail(p, x)) < budget);
        REQUIRE(relative_error(kernel.width_density(w), density) < budget);
      }
    }
}

TEST_CASE("The power kernel is the mean overlap of its law, and the density integrates to its tail") {
  for (const double p : {0.5, 1.0, 1.5, 3.0}) {
    const PowerKernel kernel{0.2, p};
    for (const double x : {0.5, 5.0, 80.0}) {
      // Simpson's rule in t = log w: E[(1 - x/w)+] from x on, up to a w beyond which 1 - x/w is 1 to 1e-13.
      const int parts = 40'000;
      const double start = std::log(x), step = (std::log(x) + 30 - start) / parts;
      double overlap = 0, mass = 0;
      for (int i = 0; i <= parts; ++i) {
        const double w = std::exp(start + i * step);
        const double part = (i == 0 || i == parts ? 1
                             : i % 2 == 1         ? 4
                                                  : 2) *
                            step / 3 * w * kernel.width_density(w);
        overlap += part * (1 - x / w);
        mass += part;
      }
      const double rest = kernel.width_tail(std::exp(start + parts * step));
      CAPTURE(p, x);
      REQUIRE(overlap + rest == Approx(kernel(x)).epsilon(1e-10));
      REQUIRE(mass + rest == Approx(kernel.width_tail(x)).epsilon(1e-10));
    }
  }
}

TEST_CASE("The power kernel's quantile inverts the distribution from 1e-15 to 1 - 1e-15") {
  std::vector<double> low, high;
  for (int decade = 1; decade <= 15; ++decade)
    for (const double digit : {1.0, 2.3, 4.9}) low.push_back(digit * std::pow(10, -decade));
  for (const double p : low) high.push_back(1 - p);
  for (double p = 0.01; p < 1; p += 0.01) (p < 0.5 ? low : high).push_back(p);
  for (const double c : scales)
    for (const double exponent : exponents) {
      const PowerKernel kernel{c, exponent};
      CAPTURE(c, exponent);
      for (const double p : low) {
        CAPTURE(p);
        const double width = kernel.width_quantile(p);
        REQUIRE(relative_error(p, distribution(exponent, static_cast<long double>(c) * width)) < 5e-15);
      }
      for (const double p : high) {
        const double width = kernel.width_quantile(p);
        CAPTURE(p, width);
        if (width == infinity) {
          REQUIRE(kernel.width_tail(std::numeric_limits<double>::max()) > 1 - p);
          continue;
        }
        REQUIRE(relative_error(1 - p, tail(exponent, static_cast<long double>(c) * width)) < 2e-14);
      }
    }
}

TEST_CASE("The power kernel's quantile rises from 0 at 0 to infinity at 1") {
  for (const PowerKernel kernel : {PowerKernel{1, 1}, PowerKernel{0.01, 0.2}, PowerKernel{4, 30}}) {
    REQUIRE(kernel.width_quantile(0) == 0);
    REQUIRE(kernel.width_quantile(1) == infinity);
    double before = 0;
    for (int i = 1; i < 20'000; ++i) {
      const double width = kernel.width_quantile(i / 20'000.0);
      if (!(width > before)) FAIL("not above its predecessor at " << i);
      before = width;
    }
    REQUIRE(std::isfinite(before));
  }
  // P[width > 1e300] = 1e-3 (1 + 0.01) for p = 0.01: quantiles beyond the range of double are infinite.
  REQUIRE(PowerKernel{1, 0.01}.width_quantile(0.9) < infinity);
  REQUIRE(PowerKernel{1, 0.01}.width_quantile(0.9999) == infinity);
  REQUIRE(PowerKernel{1, 1e-300}.width_quantile(0.5) == infinity);
}

TEST_CASE("A power kernel of any parameters has numbers for quantiles and sums of its tail") {
  for (const double c : {5e-324, 1e-125, 1.0, 1e308})
    for (const double p : {5e-324, 1e-9, 1.0, 2.0, 1e253, 1e300, 1e308}) {
      const PowerKernel kernel{c, p};
      CAPTURE(c, p);
      double last = 0;
      for (const double probability : {1e-310, 1e-252, 1e-25, 1e-3, 0.5, 1 - 0x1p-53}) {
        const double width = kernel.width_quantile(probability);
        REQUIRE(width >= last);
        last = width;
      }
      for (const double distance : {0.0, 1.0, 100.0, 1e308}) REQUIRE(!std::isnan(kernel.log_tail_sum(distance)));
    }
  REQUIRE(PowerKernel{1e308, 2}.log_tail_sum(100) == -infinity);  // c x is beyond the range of double
}

TEST_CASE("The power kernel with p = s / sigma and scale 1 / s tends to the Laplace kernel") {
  const double sigma = 16, s = 1e9;
  const PowerKernel power{1 / s, s / sigma};
  const poslsh::LaplaceKernel laplace{sigma};
  for (const double x : {0.1, 4.0, 50.0}) {
    REQUIRE(power(x) == Approx(laplace(x)).epsilon(1e-6));
    REQUIRE(power.width_density(x) == Approx(laplace.width_density(x)).epsilon(1e-6));
    REQUIRE(power.width_tail(x) == Approx(laplace.width_tail(x)).epsilon(1e-6));
    REQUIRE(power.stretched_weight(x, 2) == Approx(4 * std::exp(-x / (2 * sigma))).epsilon(1e-6));
  }
  for (const double p : {1e-6, 0.3, 0.9, 1 - 1e-9})
    REQUIRE(power.width_quantile(p) == Approx(laplace.width_quantile(p)).epsilon(1e-6));
}

TEST_CASE("The sum of the tail stays below its bound, which is close for broad kernels") {
  for (const double c : {0.05, 1.0, 20.0})
    for (const double p : {1.5, 2.0, 5.0})
      for (const double x : {0.0, 1.0, 40.0}) {
        const PowerKernel kernel{c, p};
        long double sum = 0;
        const int terms = 200'000;
        for (int t = 0; t < terms; ++t) sum += kernel(x + t);
        const double rest =
            std::pow(1 + c * (x + terms - 0.5), 1 - p) / (c * (p - 1));  // convex: midpoints are below
        const double exact = static_cast<double>(sum) + rest, bound = std::exp(kernel.log_tail_sum(x));
        CAPTURE(c, p, x, exact, bound);
        REQUIRE(bound >= exact * (1 - 1e-7));
        REQUIRE(bound <= exact + kernel(x));
      }
  REQUIRE(PowerKernel{1, 1}.log_tail_sum(5) == infinity);
  REQUIRE(PowerKernel{1, 0.3}.log_tail_sum(5) == infinity);
  REQUIRE(PowerKernel{1, 200}.log_tail_sum(1e6) < -2700);  // no underflow
}

TEST_CASE("A power kernel checks its parameters in every method") {
  for (const double wrong : {0.0, -1.0, infinity, not_a_number}) {
    const std::string is = " is " + poslsh::detail::describe(wrong) + "; it must be positive and finite";
    for (const auto& [kernel, message] : {std::pair{PowerKernel{wrong, 1}, "poslsh: kernel scale" + is},
                                          std::pair{PowerKernel{1, wrong}, "poslsh: kernel exponent" + is}}) {
      CHECK_THROWS_WITH(kernel(1), message);
      CHECK_THROWS_WITH(kernel.log_value(1), message);
      CHECK_THROWS_WITH(kernel.log_tail_sum(1), message);
      CHECK_THROWS_WITH(kernel.width_density(1), message);
      CHECK_THROWS_WITH(kernel.width_tail(1), message);
      CHECK_THROWS_WITH(kernel.stretched_weight(1, 2), message);
      CHECK_THROWS_WITH(kernel.width_quantile(0.3), message);
      CHECK_THROWS_WITH(draw_hashes(kernel, 4, 1), message);
    }
  }
  CHECK_THROWS_WITH((PowerKernel{1, 1}.width_quantile(1.5)),
                    "poslsh: probability is 1.5; it must be between 0 and 1");
  CHECK_THROWS_AS((PowerKernel{1, 1}.width_quantile(not_a_number)), poslsh::Error);
}

// --- Draws -------------------------------------------------------------------------------------------------

TEST_CASE("Widths of a power kernel follow its law (level 1e-6)") {
  const PowerKernel kernel{0.3, 0.8};
  std::vector<double> independent, importance;
  for (const PositionHash& hash : draw_hashes(kernel, 20'000, 8, Sampling::independent))
    independent.push_back(hash.width);
  for (std::uint64_t seed = 0; seed < 20'000; ++seed)
    importance.push_back(draw_hashes(kernel, 1, seed)[0].width / 2);
  const auto law = [&](double width) { return 1 - kernel.width_tail(width); };
  REQUIRE(ks_statistic(independent, law) < ks_critical(independent.size(), level / 2));
  REQUIRE(ks_statistic(importance, law) < ks_critical(importance.size(), level / 2));
}

TEST_CASE("Importance weights of a power kernel are the ratio of densities, between 2^-p and 4") {
  for (const double p : {0.05, 0.5, 1.0, 2.5, 12.0}) {
    const PowerKernel kernel{0.2, p};
    double largest = 0, smallest = 4;
    for (const PositionHash& hash : draw_hashes(kernel, 1000, 3, Sampling::importance)) {
      if (hash.width < 1e150) {  // where the densities do not underflow
        const double ratio = kernel.width_density(hash.width) / (kernel.width_density(hash.width / 2) / 2);
        REQUIRE(hash.weight == Approx(ratio).epsilon(1e-12));
      }
      largest = std::max(largest, hash.weight);
      smallest = std::min(smallest, hash.weight);
    }
    CAPTURE(p, largest, smallest);
    REQUIRE(largest <= 4);
    REQUIRE(largest > 2);
    REQUIRE(smallest >= std::exp2(-p) * (1 - 1e-15));
    REQUIRE(PowerKernel{1, p}.stretched_weight(infinity, 2) == Approx(std::exp2(-p)).epsilon(1e-15));
    REQUIRE(PowerKernel{1, p}.stretched_weight(0, 2) == 4);
  }
}

TEST_CASE("Every draw of a power kernel is a valid hash, however heavy the tail") {
  Index infinite = 0;
  for (const Sampling sampling : samplings)
    for (const double c : {1e-300, 1e-9, 1.0, 1e12, 1e300})
      for (const double p : {1e-3, 0.02, 0.3, 1.0, 40.0, 1e6}) {
        CAPTURE(static_cast<int>(sampling), c, p);
        for (const PositionHash& hash : draw_hashes(PowerKernel{c, p}, 200, 4, sampling)) {
          infinite += hash.width == infinity;
          for (const Index position : {Index{0}, Index{-12345}, Index{1} << 52, -(Index{1} << 52)}) {
            if (hash.block(position).contains(position)) continue;
            CAPTURE(hash.width, hash.shift, position);
            FAIL("a position is not in its own block");
          }
        }
      }
  REQUIRE(infinite > 1000);
}

TEST_CASE("Every sampling estimates a power kernel without bias (level 1e-6)") {
  const std::vector<PowerKernel> kernels = {{1, 1}, {0.1, 1.5}, {0.5, 0.4}};
  const std::vector<Index> distances = {0, 1, 5, 30, 300};
  const double part = level / static_cast<double>(2 * kernels.size() * distances.size() * samplings.size());
  for (const PowerKernel& kernel : kernels)
    for (const Sampling sampling : samplings)
      for (const Index samples : {1, 8})
        for (const Index distance : distances) {
          const double expected = kernel(static_cast<double>(distance));
          if (expected < 0.02) continue;  // too few hits for a normal interval
          std::vector<double> weights;
          for (std::uint64_t seed = 0; seed < 3000; ++seed)
            weights.push_back(mean_weight(kernel, sampling, samples, seed, -7, distance - 7));
          const Interval interval = mean_interval(weights, part);
          CAPTURE(kernel.scale, kernel.exponent, static_cast<int>(sampling), samples, distance, interval.low,
                  interval.high);
          if (distance == 0 && (sampling == Sampling::independent || sampling == Sampling::stratified))
            REQUIRE(std::all_of(weights.begin(), weights.end(), [](double weight) { return weight == 1; }));
          else
            REQUIRE(interval.contains(expected));
        }
}

TEST_CASE("Draws of a power kernel have these very bits on every platform") {
  CHECK(draw_hashes(PowerKernel{0.25, 0.75}, 4, 1) ==
        std::vector<PositionHash>{{0x1.38828b5a3b6c8p+3, 0x1.112b2dc9a0243p+3, 0x1.32fc7b3a828f5p+0},
                                  {0x1.33238060e4828p+4, 0x1.672b26b23078cp-1, 0x1.d784cfec134c4p-1},
                                  {0x1.df2494ccb910cp+5, 0x1.1b3f63f44ac12p+4, 0x1.67c409b61de98p-1},
                                  {0x1.ca2af83e235e5p+6, 0x1.ac5bb5e2957b1p+5, 0x1.4d87321522538p-1}});
  CHECK(draw_hashes(PowerKernel{1e-3, 30}, 4, 1) ==
        std::vector<PositionHash>{{0x1.d991521eab584p+5, 0x1.9df37e1d6e63cp+5, 0x1.9d735ea5aa4aap+0},
                                  {0x1.68d2ea0641449p+6, 0x1.a5f2b96d57872p+1, 0x1.08ebde8ec19ecp+0},
                                  {0x1.37593d9a940e7p+7, 0x1.701c451ccc5cp+5, 0x1.b7df2f0ba6461p-2},
                                  {0x1.8a8abbdf213a4p+7, 0x1.70df3aebb1105p+6, 0x1.05870c3abbc4ap-2}});
}

}  // namespace power_kernel_test
