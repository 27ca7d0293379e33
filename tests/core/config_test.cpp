// SPDX-License-Identifier: MIT
#include "poslsh/core/config.hpp"

#include "support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <limits>

namespace config_test {

namespace {

void check_small(int value) { POSLSH_CHECK(value < 3, "value", value, "below 3"); }

double read_back(const std::string& text) { return std::strtod(text.c_str(), nullptr); }

}  // namespace

TEST_CASE("An error names the argument, its value and what it must be") {
  REQUIRE_NOTHROW(check_small(2));
  REQUIRE_THROWS_AS(check_small(3), poslsh::Error);
  REQUIRE_THROWS_AS(check_small(3), std::invalid_argument);
  REQUIRE_THROWS_WITH(check_small(3), "poslsh: value is 3; it must be below 3");
  REQUIRE_THROWS_WITH(check_small(-3 + 10), "poslsh: value is 7; it must be below 3");
}

TEST_CASE("The check evaluates its condition once and fits an if without braces") {
  int evaluated = 0;
  if (evaluated == 0)
    POSLSH_CHECK(++evaluated > 0, "argument", 0, "counted");
  else
    evaluated = -1;
  REQUIRE(evaluated == 1);
}

TEST_CASE("A failure takes text, integers and floating-point values") {
  using poslsh::detail::fail;
  REQUIRE_THROWS_WITH(fail("list", "empty", "full"), "poslsh: list is empty; it must be full");
  REQUIRE_THROWS_WITH(fail("n", std::int64_t{-1} << 62, "small"),
                      "poslsh: n is -4611686018427387904; it must be small");
  REQUIRE_THROWS_WITH(fail("slope", 0.1, "negative"), "poslsh: slope is 0.1; it must be negative");
  REQUIRE_THROWS_WITH(fail("slope", 0.1f, "negative"), "poslsh: slope is 0.1; it must be negative");
}

TEST_CASE("A described value is the shortest text that reads back as the same value") {
  using poslsh::detail::describe;
  REQUIRE(describe(0.5) == "0.5");
  REQUIRE(describe(-0.0) == "-0");
  REQUIRE(describe(1e300) == "1e+300");
  REQUIRE(describe(std::numeric_limits<double>::infinity()) == "inf");
  REQUIRE(describe(-std::numeric_limits<double>::infinity()) == "-inf");
  REQUIRE(std::isnan(read_back(describe(std::numeric_limits<double>::quiet_NaN()))));
  for (const double value :
       {0.1, 1.0 / 3, std::nextafter(1.0, 2.0), 0x1p-1074, -0x1.fffffffffffffp1023, 0x1p52 + 1}) {
    CAPTURE(describe(value));
    REQUIRE(read_back(describe(value)) == value);
  }
  REQUIRE(describe(0x1p52 + 0.0) == "4503599627370496");
  REQUIRE(describe(std::numeric_limits<std::int64_t>::min()) == "-9223372036854775808");
  REQUIRE(describe(std::numeric_limits<std::uint64_t>::max()) == "18446744073709551615");
  REQUIRE(describe("text") == "text");
  REQUIRE(describe(std::string("more text")) == "more text");
}

}  // namespace config_test
