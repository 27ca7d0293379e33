// SPDX-License-Identifier: MIT
#include "poslsh/position/alibi.hpp"

#include "support/catch.hpp"

#include <algorithm>
#include <limits>

namespace alibi_test {

using poslsh::alibi_slopes;
using poslsh::Index;

namespace {

/// The slopes 2^exponent in this order, to the last unit or so.
void require_exponents(const std::vector<double>& slopes, const std::vector<double>& exponents) {
  REQUIRE(slopes.size() == exponents.size());
  for (std::size_t head = 0; head < slopes.size(); ++head) {
    CAPTURE(head);
    REQUIRE(slopes[head] == Approx(std::exp2(exponents[head])).epsilon(4e-16).margin(0));
  }
}

}  // namespace

TEST_CASE("The slopes of a power of two of heads are a geometric sequence") {
  REQUIRE(alibi_slopes(1) == std::vector<double>{0x1p-8});
  REQUIRE(alibi_slopes(2) == std::vector<double>{0x1p-4, 0x1p-8});
  REQUIRE(alibi_slopes(8) ==
          std::vector<double>{0x1p-1, 0x1p-2, 0x1p-3, 0x1p-4, 0x1p-5, 0x1p-6, 0x1p-7, 0x1p-8});
  REQUIRE(alibi_slopes(8, 16) ==
          std::vector<double>{0x1p-2, 0x1p-4, 0x1p-6, 0x1p-8, 0x1p-10, 0x1p-12, 0x1p-14, 0x1p-16});
  require_exponents(alibi_slopes(16),
                    {-0.5, -1, -1.5, -2, -2.5, -3, -3.5, -4, -4.5, -5, -5.5, -6, -6.5, -7, -7.5, -8});
}

TEST_CASE("Other numbers of heads append the odd terms of the doubled sequence") {
  REQUIRE(alibi_slopes(3) == std::vector<double>{1.0 / 16, 1.0 / 256, 1.0 / 4});
  require_exponents(alibi_slopes(12), {-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5});

  std::vector<double> exponents;
  for (int k = 1; k <= 32; ++k) exponents.push_back(-k / 4.0);
  for (int j = 0; j < 8; ++j) exponents.push_back(-(2 * j + 1) / 8.0);
  require_exponents(alibi_slopes(40), exponents);
}

TEST_CASE("For any number of heads the slopes are distinct, below 1, and at least that of the largest bias") {
  for (Index heads = 1; heads <= 130; ++heads) {
    std::vector<double> slopes = alibi_slopes(heads, 5);
    REQUIRE(slopes.size() == static_cast<std::size_t>(heads));
    std::sort(slopes.begin(), slopes.end());
    REQUIRE(std::adjacent_find(slopes.begin(), slopes.end()) == slopes.end());
    REQUIRE(slopes.front() == 0x1p-5);
    REQUIRE(slopes.back() < 1);
  }
}

TEST_CASE("Slopes refuse numbers of heads and largest biases that make no sense") {
  REQUIRE_THROWS_AS(alibi_slopes(0), poslsh::Error);
  REQUIRE_THROWS_WITH(alibi_slopes(0), "poslsh: heads is 0; it must be between 1 and 2^32");
  REQUIRE_THROWS_WITH(alibi_slopes(-8), "poslsh: heads is -8; it must be between 1 and 2^32");
  REQUIRE_THROWS_WITH(alibi_slopes((Index{1} << 32) + 1),
                      "poslsh: heads is 4294967297; it must be between 1 and 2^32");
  REQUIRE_THROWS_WITH(alibi_slopes(8, 0), "poslsh: max_bias is 0; it must be positive and finite");
  REQUIRE_THROWS_WITH(alibi_slopes(8, -8), "poslsh: max_bias is -8; it must be positive and finite");
  constexpr double infinity = std::numeric_limits<double>::infinity();
  REQUIRE_THROWS_WITH(alibi_slopes(8, infinity), "poslsh: max_bias is inf; it must be positive and finite");
  REQUIRE_THROWS_AS(alibi_slopes(8, std::numeric_limits<double>::quiet_NaN()), poslsh::Error);
}

}  // namespace alibi_test
