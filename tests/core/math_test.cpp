// SPDX-License-Identifier: MIT
#include "poslsh/core/math.hpp"

#include "poslsh/core/random.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <cfloat>
#include <vector>

namespace math_test {

using namespace poslsh::detail;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr std::uint64_t points = 200'000;

double uniform(std::uint64_t stream, std::uint64_t index) {
  return poslsh::random_uniform(20260, stream, index);
}

/// The distance from the reference in units in the last place of a double.
double ulps(double got, long double want) {
  const double nearest = std::abs(static_cast<double>(want));
  const long double unit = static_cast<long double>(std::nextafter(nearest, infinity)) - nearest;
  return static_cast<double>(std::abs(got - want) / unit);
}

/// The largest error of function against reference over the points x(0), x(1), ...; where long double is no
/// wider than double, the reference itself may err by one unit.
template <class Function, class Reference, class Points>
double worst_ulps(Function function, Reference reference, Points x) {
  double worst = 0;
  for (std::uint64_t i = 0; i < points; ++i) {
    const double argument = x(i);
    const double error = ulps(function(argument), reference(static_cast<long double>(argument)));
    if (!(error <= worst)) worst = error;
  }
  return worst - (LDBL_MANT_DIG > DBL_MANT_DIG ? 0 : 1);
}

long double log_reference(long double x) { return std::log(x); }
long double log1p_reference(long double x) { return std::log1p(x); }
long double exp_reference(long double x) { return std::exp(x); }

/// x - log(1 + x); near 0 by its alternating series, x^2/2 - x^3/3 + ...
long double x_minus_log1p_reference(long double x) {
  if (x > 0.125L) return x - std::log1p(x);
  long double sum = 0;
  for (int k = 30; k >= 2; --k) sum = 1.0L / k - x * sum;
  return x * x * sum;
}

/// A number that changes with any bit of any value (Fowler, Noll, Vo).
struct Digest {
  std::uint64_t state = 14695981039346656037u;
  void add(double value) { state = (state ^ std::bit_cast<std::uint64_t>(value)) * 1099511628211u; }
};

}  // namespace

TEST_CASE("The logarithm errs by at most 2.1 units from the smallest to the largest double") {
  const auto wide = [](std::uint64_t i) {
    return std::ldexp(1 + uniform(0, i), static_cast<int>(uniform(1, i) * 2098) - 1074);
  };
  REQUIRE(worst_ulps(portable_log, log_reference, wide) <= 2.1);
  REQUIRE(worst_ulps(portable_log, log_reference,
                     [](std::uint64_t i) { return 0.5 + 1.5 * uniform(2, i); }) <= 2.1);
  const auto near_one = [](std::uint64_t i) {
    return 1 + (uniform(3, i) - 0.5) * std::exp2(-50 * uniform(4, i));
  };
  REQUIRE(worst_ulps(portable_log, log_reference, near_one) <= 2.1);
  for (const double x :
       {0x1p-1074, 0x1p-1022, 0x1.fffffffffffffp1023, std::nextafter(1.0, 0.0), std::nextafter(1.0, 2.0)}) {
    CAPTURE(x);
    REQUIRE(ulps(portable_log(x), std::log(static_cast<long double>(x))) <= 2.1);
  }
}

TEST_CASE("log(1 + x) errs by at most 3 units, and keeps its relative accuracy around 0") {
  const auto tiny = [](std::uint64_t i) {
    return (i % 2 == 0 ? 0.7 : -0.7) * std::exp2(-900 * uniform(5, i));
  };
  const auto middle = [](std::uint64_t i) { return 2 * uniform(6, i) - 1; };
  const auto large = [](std::uint64_t i) { return std::exp2(1000 * uniform(7, i)); };
  REQUIRE(worst_ulps(portable_log1p, log1p_reference, tiny) <= 3);
  REQUIRE(worst_ulps(portable_log1p, log1p_reference, middle) <= 3);
  REQUIRE(worst_ulps(portable_log1p, log1p_reference, large) <= 3);
}

TEST_CASE("x - log(1 + x) errs by at most 3 units below 0.41 and 10 above, and is x^2/2 at the smallest x") {
  const auto tiny = [](std::uint64_t i) { return 0.41 * std::exp2(-450 * uniform(8, i)); };
  const auto small = [](std::uint64_t i) { return 0.41 * uniform(9, i); };
  const auto above = [](std::uint64_t i) { return 0.41 + 2 * uniform(10, i); };
  const auto large = [](std::uint64_t i) { return std::exp2(1000 * uniform(11, i)); };
  REQUIRE(worst_ulps(portable_x_minus_log1p, x_minus_log1p_reference, tiny) <= 3);
  REQUIRE(worst_ulps(portable_x_minus_log1p, x_minus_log1p_reference, small) <= 3);
  REQUIRE(worst_ulps(portable_x_minus_log1p, x_minus_log1p_reference, above) <= 10);
  REQUIRE(worst_ulps(portable_x_minus_log1p, x_minus_log1p_reference, large) <= 10);
  REQUIRE(portable_x_minus_log1p(0) == 0);
}

TEST_CASE("The exponential errs by at most 1 unit, also where the result is subnormal") {
  const auto wide = [](std::uint64_t i) { return -708 + (708 + 709.7) * uniform(12, i); };
  const auto subnormal = [](std::uint64_t i) { return -745.3 + 40 * uniform(13, i); };
  const auto tiny = [](std::uint64_t i) { return (i % 2 == 0 ? 1 : -1) * std::exp2(-70 * uniform(14, i)); };
  REQUIRE(worst_ulps(portable_exp, exp_reference, wide) <= 1);
  REQUIRE(worst_ulps(portable_exp, exp_reference, subnormal) <= 1);
  REQUIRE(worst_ulps(portable_exp, exp_reference, tiny) <= 1);
}

TEST_CASE("Logarithm and exponential are right at the ends of their domains") {
  REQUIRE(portable_log(0) == -infinity);
  REQUIRE(portable_log(-0.0) == -infinity);
  REQUIRE(std::isnan(portable_log(-1)));
  REQUIRE(std::isnan(portable_log(-infinity)));
  REQUIRE(std::isnan(portable_log(not_a_number)));
  REQUIRE(portable_log(infinity) == infinity);
  REQUIRE(portable_log(1) == 0);

  REQUIRE(portable_log1p(0) == 0);
  REQUIRE(portable_log1p(-1) == -infinity);
  REQUIRE(std::isnan(portable_log1p(-2)));
  REQUIRE(portable_log1p(infinity) == infinity);

  REQUIRE(portable_exp(0) == 1);
  REQUIRE(portable_exp(-infinity) == 0);
  REQUIRE(portable_exp(-746) == 0);
  REQUIRE(portable_exp(-745.13) == 0x1p-1074);
  REQUIRE(portable_exp(infinity) == infinity);
  REQUIRE(portable_exp(710) == infinity);
  REQUIRE(std::isnan(portable_exp(not_a_number)));
}

TEST_CASE("Logarithm and exponential have the same bits everywhere") {
  Digest log, log1p, x_minus_log1p, exp;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    // No sum of a product and a term: a compiler may contract that.
    const double u = uniform(15, i), centred = u - 0.5;
    const int exponent = static_cast<int>(i % 64);
    log.add(portable_log(std::ldexp(u, 32 - exponent)));
    log1p.add(portable_log1p(std::ldexp(centred, exponent == 0 ? 0 : 1 - exponent)));
    log1p.add(portable_log1p(std::ldexp(u, exponent)));
    x_minus_log1p.add(portable_x_minus_log1p(std::ldexp(u, 16 - exponent)));
    exp.add(portable_exp(1480 * centred));
  }
  CHECK(log.state == 0x43f88b81690aac21);
  CHECK(log1p.state == 0x3e6d7c23bf78a946);
  CHECK(x_minus_log1p.state == 0x082a6b82b4a97a3b);
  CHECK(exp.state == 0xe096ea289f861417);
}

}  // namespace math_test
