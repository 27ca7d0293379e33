// SPDX-License-Identifier: MIT

// The budget that says which old keys may go, against its sums in plain arithmetic.

#include "poslsh/model/key_budget.hpp"
#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random_matrix.hpp"

#include <vector>

namespace key_budget_test {

using namespace poslsh::test;
using poslsh::Index;
using poslsh::detail::KeyBudget;

namespace {

/// D and L by their definition, over all keys so far.
struct Sums {
  double slope;
  std::vector<long double> bounds;
  std::size_t dropped = 0;

  [[nodiscard]] long double weight(std::size_t j, long double sign) const {
    const long double age = static_cast<long double>(bounds.size() - 1 - j);
    return std::exp(sign * bounds[j] - static_cast<long double>(slope) * age);
  }
  [[nodiscard]] long double lost(std::size_t count) const {
    long double sum = 0;
    for (std::size_t j = 0; j < count; ++j) sum += weight(j, 1);
    return sum;
  }
  [[nodiscard]] long double least() const {
    long double sum = 0;
    for (std::size_t j = 0; j < bounds.size(); ++j) sum += weight(j, -1);
    return sum;
  }
  [[nodiscard]] Index age() const { return static_cast<Index>(bounds.size() - 1 - dropped); }
};

}  // namespace

TEST_CASE("Keys go exactly while D <= tolerance (L - D)") {
  for (const double slope : {0.02, 0.5, 4.0})
    for (const double tolerance : {1e-12, 1e-3, 0.9, 50.0})
      for (const double size : {0.0, 1.0, 30.0, 3000.0}) {
        Dice dice(static_cast<std::uint64_t>(slope * 100 + size));
        KeyBudget budget(slope, tolerance);
        Sums sums{slope, {}};
        CAPTURE(slope, tolerance, size);
        for (int token = 0; token < 300; ++token) {
          const double bound = size * dice.uniform();
          budget.append(bound);
          sums.bounds.push_back(bound);
          while (sums.dropped < sums.bounds.size()) {
            const double oldest = static_cast<double>(sums.bounds[sums.dropped]);
            const long double lost = sums.lost(sums.dropped + 1), visited = sums.least() - lost;
            const bool may = budget.allows(oldest, sums.age());
            // Neither rounds across the limit but within a hair of it.
            const bool clearly = lost <= (1 - 1e-4L) * static_cast<long double>(tolerance) * visited;
            const bool never = lost > static_cast<long double>(tolerance) * visited;
            REQUIRE_FALSE((may && never));
            REQUIRE_FALSE((!may && clearly));
            if (!may) break;
            budget.drop(oldest, sums.age());
            ++sums.dropped;
          }
        }
        if (size == 0 && 250 * slope > std::log1p(1 / tolerance)) REQUIRE(sums.dropped > 0);
      }
}

TEST_CASE("What was dropped counts on, with weights that fall as the stream goes on") {
  KeyBudget budget(1, 0.1);
  budget.append(0);
  budget.append(0);
  budget.append(0);
  budget.append(0);
  // D = e^-3, L = (1 - e^-4) / (1 - e^-1): D <= 0.1 (L - D), and not with the next key.
  REQUIRE(budget.allows(0, 3));
  budget.drop(0, 3);
  REQUIRE(std::exp(budget.dropped()) == Approx(std::exp(-3.0)));
  REQUIRE(std::exp(budget.all()) == Approx((1 - std::exp(-4.0)) / (1 - std::exp(-1.0))));
  REQUIRE_FALSE(budget.allows(0, 2));
  budget.append(2);
  REQUIRE(std::exp(budget.dropped()) == Approx(std::exp(-4.0)));
  REQUIRE(std::exp(budget.all()) ==
          Approx((1 - std::exp(-4.0)) / (1 - std::exp(-1.0)) * std::exp(-1.0) + std::exp(-2.0)));
}

TEST_CASE("Without a positive slope or a tolerance nothing goes, nor what has no bound") {
  for (const auto& [slope, tolerance] : {std::pair{0.0, 0.5}, {-1.0, 0.5}, {1.0, 0.0}}) {
    KeyBudget budget(slope, tolerance);
    for (int token = 0; token < 2000; ++token) budget.append(0);
    REQUIRE_FALSE(budget.allows(0, 1999));
  }
  KeyBudget budget(1, 0.5);
  REQUIRE_FALSE(budget.allows(0, 0));  // there is nothing yet
  budget.append(infinity);
  for (int token = 0; token < 2000; ++token) budget.append(0);
  REQUIRE_FALSE(budget.allows(infinity, 2000));
  REQUIRE(budget.allows(0, 1999));  // but a key that has one

  // Only keys without a bound: none weighs anything for sure.
  KeyBudget unbounded(1, 0.5);
  for (int token = 0; token < 100; ++token) unbounded.append(infinity);
  REQUIRE_FALSE(unbounded.allows(0, 99));
}

TEST_CASE("Bounds beyond the range of the exponential are weighed all the same") {
  for (const double bound : {800.0, 1e6}) {
    KeyBudget budget(1, 1e-3);
    const Index needed = static_cast<Index>(2 * bound) + 7;  // exp(bound - age) against exp(-bound)
    budget.append(bound);
    for (Index token = 0; token < 4 * needed; ++token) {
      budget.append(bound);
      if (token + 1 < needed) REQUIRE_FALSE(budget.allows(bound, token + 1));
    }
    REQUIRE(budget.allows(bound, 4 * needed));
    if (bound > 1e5) break;
  }
}

}  // namespace key_budget_test
