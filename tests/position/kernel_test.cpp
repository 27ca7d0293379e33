// SPDX-License-Identifier: MIT
#include "poslsh/position/kernel.hpp"

#include "support/catch.hpp"

#include <limits>
#include <vector>

namespace kernel_test {

using poslsh::LaplaceKernel;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
const std::vector<double> sigmas = {1e-3, 0.7, 1, 16, 256, 1e9};

double relative_error(double got, long double want) { return static_cast<double>(std::abs(got / want - 1)); }

/// P[width <= sigma x] = 1 - (1 + x) exp(-x) = exp(-x) (x^2/2! + x^3/3! + ...), where nothing cancels.
long double distribution(long double x) {
  long double term = x * x / 2, sum = 0;
  for (int k = 3; term > sum * 1e-21L; ++k) {
    sum += term;
    term *= x / k;
  }
  return std::exp(-x) * sum;
}

/// P[width > sigma x].
long double tail(long double x) { return (1 + x) * std::exp(-x); }

}  // namespace

static_assert(poslsh::DistanceKernel<LaplaceKernel>);
static_assert(!poslsh::DistanceKernel<double>);

TEST_CASE("The Laplace kernel is exp(-x/sigma)") {
  for (const double sigma : sigmas) {
    const LaplaceKernel kernel{sigma};
    CAPTURE(sigma);
    REQUIRE(kernel(0) == 1);
    REQUIRE(kernel(infinity) == 0);
    for (const double x : {1e-9, 0.1, 1.0, 2.5, 30.0, 700.0}) {
      CAPTURE(x);
      // The quotient is rounded, which exp magnifies by its size.
      REQUIRE(relative_error(kernel(x * sigma), std::exp(-static_cast<long double>(x * sigma) / sigma)) <
              3e-16 * (1 + x));
    }
  }
}

TEST_CASE("The Laplace kernel's widths have the density w/sigma^2 exp(-w/sigma) and its tail") {
  for (const double sigma : sigmas) {
    const LaplaceKernel kernel{sigma};
    CAPTURE(sigma);
    REQUIRE(kernel.width_density(0) == 0);
    REQUIRE(kernel.width_tail(0) == 1);
    REQUIRE(kernel.width_tail(infinity) == 0);
    REQUIRE(kernel.width_tail(1000 * sigma) == 0);
    for (const double x : {1e-9, 0.1, 1.0, 2.5, 30.0, 700.0}) {
      CAPTURE(x);
      const long double exact = static_cast<long double>(x * sigma) / sigma;
      REQUIRE(relative_error(kernel.width_density(x * sigma) * sigma, exact * std::exp(-exact)) <
              6e-16 * (1 + x));
      REQUIRE(relative_error(kernel.width_tail(x * sigma), tail(exact)) < 6e-16 * (1 + x));
    }
  }
}

TEST_CASE("The Laplace kernel's logarithm goes on where it underflows, and so does the sum of its tail") {
  for (const double sigma : sigmas) {
    const LaplaceKernel kernel{sigma};
    CAPTURE(sigma);
    REQUIRE(kernel.log_value(0) == 0);
    REQUIRE(kernel.log_value(5000 * sigma) == Approx(-5000).epsilon(1e-15));
    const double series = -std::log(-std::expm1(-1 / sigma));
    REQUIRE(kernel.log_tail_sum(5000 * sigma) == Approx(series - 5000).epsilon(1e-14));
    if (sigma > 1000) continue;
    for (const double x : {0.0, 1.0, 7.5}) {
      long double sum = 0;
      for (int t = 0; t < 50 * sigma + 50; ++t) sum += std::exp(-(static_cast<long double>(x) + t) / sigma);
      if (sum > 0) REQUIRE(kernel.log_tail_sum(x) == Approx(static_cast<double>(std::log(sum))).epsilon(1e-12));
    }
  }
}

TEST_CASE("The density integrates to 1 and to the mean 2 sigma, by Simpson's rule") {
  for (const double sigma : sigmas) {
    const LaplaceKernel kernel{sigma};
    const int parts = 20'000;
    const double step = 60 * sigma / parts;
    double mass = 0, mean = 0;
    for (int i = 0; i <= parts; ++i) {
      const double coefficient = (i == 0 || i == parts ? 1 : i % 2 == 1 ? 4 : 2) * step / 3;
      mass += coefficient * kernel.width_density(i * step);
      mean += coefficient * kernel.width_density(i * step) * i * step;
    }
    CAPTURE(sigma);
    REQUIRE(mass == Approx(1).epsilon(1e-11));
    REQUIRE(mean == Approx(2 * sigma).epsilon(1e-11));
  }
}

TEST_CASE("The tail falls at the rate of the density, and the kernel is its own law's mean overlap") {
  for (const double sigma : sigmas) {
    const LaplaceKernel kernel{sigma};
    for (const double x : {0.01, 0.3, 1.0, 4.0, 20.0}) {
      CAPTURE(sigma, x);
      const double width = x * sigma, step = 1e-4 * width;
      const double slope = (kernel.width_tail(width - step) - kernel.width_tail(width + step)) / (2 * step);
      REQUIRE(slope == Approx(kernel.width_density(width)).epsilon(1e-5));
      // tail = k - x k'
      const double derivative = (kernel(width + step) - kernel(width - step)) / (2 * step);
      REQUIRE(kernel.width_tail(width) == Approx(kernel(width) - width * derivative).epsilon(1e-5));
    }
  }
}

TEST_CASE("The quantile inverts the distribution with relative accuracy from 1e-15 to 1 - 1e-15") {
  std::vector<double> low, high;
  for (int decade = 1; decade <= 15; ++decade)
    for (const double digit : {1.0, 2.3, 4.9}) low.push_back(digit * std::pow(10, -decade));
  for (const double p : low) high.push_back(1 - p);
  for (double p = 0.01; p < 1; p += 0.01) (p < 0.5 ? low : high).push_back(p);
  for (const double sigma : sigmas) {
    const LaplaceKernel kernel{sigma};
    CAPTURE(sigma);
    for (const double p : low) {
      CAPTURE(p);
      REQUIRE(relative_error(p, distribution(static_cast<long double>(kernel.width_quantile(p)) / sigma)) <
              5e-15);
    }
    for (const double p : high) {  // 1 - p is exact here; the tail magnifies a width's last bit by up to 40
      CAPTURE(p);
      REQUIRE(relative_error(1 - p, tail(static_cast<long double>(kernel.width_quantile(p)) / sigma)) <
              2e-14);
      REQUIRE(relative_error(1 - p, kernel.width_tail(kernel.width_quantile(p))) < 3e-14);
    }
  }
}

TEST_CASE("The quantile rises from 0 at 0 to infinity at 1") {
  const LaplaceKernel kernel{16};
  REQUIRE(kernel.width_quantile(0) == 0);
  REQUIRE(kernel.width_quantile(1) == infinity);
  REQUIRE(kernel.width_quantile(0x1p-53) > 0);
  REQUIRE(kernel.width_quantile(std::nextafter(1.0, 0.0)) < 50 * kernel.sigma);
  double before = 0;
  for (int i = 1; i < 100'000; ++i) {
    const double width = kernel.width_quantile(i / 100'000.0);
    if (!(width > before)) FAIL("not above its predecessor at " << i);
    before = width;
  }
}

TEST_CASE("The quantile refuses what is no probability") {
  const LaplaceKernel kernel{16};
  REQUIRE_THROWS_AS(kernel.width_quantile(-0.5), poslsh::Error);
  REQUIRE_THROWS_WITH(kernel.width_quantile(-0.5), "poslsh: probability is -0.5; it must be between 0 and 1");
  REQUIRE_THROWS_WITH(kernel.width_quantile(1.5), "poslsh: probability is 1.5; it must be between 0 and 1");
  REQUIRE_THROWS_AS(kernel.width_quantile(std::numeric_limits<double>::quiet_NaN()), poslsh::Error);
}

TEST_CASE("Every method refuses a sigma that is not positive and finite") {
  for (const double sigma : {0.0, -1.0, infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
    const LaplaceKernel kernel{sigma};
    const std::string message =
        "poslsh: sigma is " + poslsh::detail::describe(sigma) + "; it must be positive and finite";
    CHECK_THROWS_AS(kernel(1), poslsh::Error);
    CHECK_THROWS_WITH(kernel(1), message);
    CHECK_THROWS_WITH(kernel.log_value(1), message);
    CHECK_THROWS_WITH(kernel.log_tail_sum(1), message);
    CHECK_THROWS_WITH(kernel.width_density(1), message);
    CHECK_THROWS_WITH(kernel.width_tail(1), message);
    for (const double p : {0.0, 0.3, 1.0}) CHECK_THROWS_WITH(kernel.width_quantile(p), message);
  }
}

}  // namespace kernel_test
