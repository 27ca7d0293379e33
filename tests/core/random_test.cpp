// SPDX-License-Identifier: MIT
#include "poslsh/core/random.hpp"

#include "support/catch.hpp"
#include "support/statistics.hpp"

#include <set>
#include <vector>

namespace random_test {

using poslsh::random_bits;
using poslsh::random_uniform;
using namespace poslsh::test;

namespace {

using Counter = std::array<std::uint32_t, 4>;
using Key = std::array<std::uint32_t, 2>;

constexpr std::uint64_t draws = 100'000;
constexpr double level = 1e-6;

template <class Draw>
std::vector<double> sample(Draw draw) {
  std::vector<double> values;
  for (std::uint64_t i = 0; i < draws; ++i) values.push_back(draw(i));
  return values;
}

}  // namespace

TEST_CASE("Philox gives the known answers of its authors' library, Random123") {
  using poslsh::detail::philox4x32;
  constexpr std::uint32_t ones = 0xffffffff;
  STATIC_REQUIRE(philox4x32({0, 0, 0, 0}, {0, 0}) == Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  REQUIRE(philox4x32(Counter{0, 0, 0, 0}, Key{0, 0}) ==
          Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  REQUIRE(philox4x32(Counter{ones, ones, ones, ones}, Key{ones, ones}) ==
          Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  REQUIRE(philox4x32(Counter{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, Key{0xa4093822, 0x299f31d0}) ==
          Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("Random bits are the first half of Philox's block: seed is the key, index and stream the counter") {
  constexpr std::uint64_t ones = ~std::uint64_t{0};
  STATIC_REQUIRE(random_bits(0, 0, 0) == 0xe169c58d6627e8d5);
  REQUIRE(random_bits(ones, ones, ones) == 0x41c83b0e408f276d);
  REQUIRE(random_bits(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88) == 0x94fdccebd16cfe09);
}

TEST_CASE("Every bit of seed, stream and index matters") {
  std::set<std::uint64_t> seen{random_bits(0, 0, 0)};
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t one = std::uint64_t{1} << bit;
    seen.insert({random_bits(one, 0, 0), random_bits(0, one, 0), random_bits(0, 0, one)});
  }
  REQUIRE(seen.size() == 1 + 3 * 64);
}

TEST_CASE("A uniform draw is the midpoint of the part that its bits name, so never 0 or 1") {
  for (std::uint64_t i = 0; i < draws; ++i) {
    const double u = random_uniform(1, 2, i), scaled = u * 0x1p52;
    const std::uint64_t part = random_bits(1, 2, i) >> 12;
    if (!(u > 0 && u < 1 && scaled - 0.5 == static_cast<double>(part))) FAIL("index " << i << ": " << u);
  }
  STATIC_REQUIRE(random_uniform(1, 2, 3) == random_uniform(1, 2, 3));
}

TEST_CASE("Uniform draws are uniform along index, stream and seed (level 1e-6)") {
  const double critical = ks_critical(draws, level / 3);
  REQUIRE(ks_statistic(sample([](std::uint64_t i) { return random_uniform(7, 0, i); }), uniform_law) <
          critical);
  REQUIRE(ks_statistic(sample([](std::uint64_t i) { return random_uniform(7, i, 0); }), uniform_law) <
          critical);
  REQUIRE(ks_statistic(sample([](std::uint64_t i) { return random_uniform(i, 0, 0); }), uniform_law) <
          critical);
}

TEST_CASE("Every random bit is set half of the time (level 1e-6)") {
  std::vector<double> set(64, 0.0);
  for (std::uint64_t i = 0; i < draws; ++i)
    for (std::size_t bit = 0; bit < 64; ++bit)
      set[bit] += static_cast<double>(random_bits(11, 3, i) >> bit & 1);
  for (std::size_t bit = 0; bit < 64; ++bit) {
    CAPTURE(bit);
    REQUIRE(wilson_interval(set[bit], static_cast<double>(draws), level / 64).contains(0.5));
  }
}

TEST_CASE("Neighbouring seeds, streams and indices give independent draws (level 1e-6)") {
  const auto base = sample([](std::uint64_t i) { return random_uniform(1, 0, 2 * i); });
  const std::vector<std::vector<double>> others = {
      sample([](std::uint64_t i) { return random_uniform(2, 0, 2 * i); }),
      sample([](std::uint64_t i) { return random_uniform(std::uint64_t{1} << 32 | 1, 0, 2 * i); }),
      sample([](std::uint64_t i) { return random_uniform(1, 1, 2 * i); }),
      sample([](std::uint64_t i) { return random_uniform(1, std::uint64_t{1} << 32, 2 * i); }),
      sample([](std::uint64_t i) { return random_uniform(1, 0, 2 * i + 1); }),
      sample([](std::uint64_t i) { return random_uniform(0, 1, 2 * i); }),
  };
  const double part = level / static_cast<double>(2 * others.size());
  for (std::size_t other = 0; other < others.size(); ++other) {
    CAPTURE(other);
    const double bound = two_sided_normal(part) / std::sqrt(static_cast<double>(draws));
    REQUIRE(std::abs(correlation(base, others[other])) < bound);

    std::vector<double> cells(16 * 16, 0.0);
    for (std::size_t i = 0; i < draws; ++i)
      ++cells[static_cast<std::size_t>(base[i] * 16) * 16 + static_cast<std::size_t>(others[other][i] * 16)];
    REQUIRE(chi_square(cells) < chi_square_critical(255, part));
  }
}

}  // namespace random_test
