// SPDX-License-Identifier: MIT
#include "poslsh/position/hash.hpp"

#include "support/catch.hpp"
#include "support/statistics.hpp"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <map>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

namespace hash_test {

using namespace poslsh::test;
using Catch::Matchers::ContainsSubstring;
using poslsh::draw_hashes;
using poslsh::Index;
using poslsh::KeyRange;
using poslsh::LaplaceKernel;
using poslsh::PositionHash;
using poslsh::random_uniform;
using poslsh::Sampling;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double level = 1e-6;
constexpr Index last_position = Index{1} << 52;

/// k(x) = (exp(-x/2) + exp(-x/12)) / 2: a kernel as a user may write one.
struct Mixture {
  static double mean(double a, double b) { return (a + b) / 2; }
  double operator()(double x) const { return mean(std::exp(-x / 2), std::exp(-x / 12)); }
  double width_density(double w) const { return w * mean(std::exp(-w / 2) / 4, std::exp(-w / 12) / 144); }
  double width_tail(double w) const {
    return mean((1 + w / 2) * std::exp(-w / 2), (1 + w / 12) * std::exp(-w / 12));
  }
  double width_quantile(double p) const {
    double low = 0, high = 1000;
    for (int step = 0; step < 60; ++step) {
      const double middle = (low + high) / 2;
      (width_tail(middle) > 1 - p ? low : high) = middle;
    }
    return high;
  }
};
static_assert(poslsh::DistanceKernel<Mixture>);

/// A kernel whose widths are what the test says.
struct FixedWidth {
  double width;
  double operator()(double) const { return 1; }
  double width_density(double) const { return 1; }
  double width_tail(double) const { return 1; }
  double width_quantile(double) const { return width; }
};

/// What is wrong about bin and block around a position, or nothing.
std::string fault(const PositionHash& hash, Index position) {
  const Index bin = hash.bin(position);
  const KeyRange block = hash.block(position);
  if (!block.contains(position)) return "the block misses its own position";
  if (hash.bin(position + 1) < bin || hash.bin(position - 1) > bin) return "bins decrease";
  const bool open_begin = block.begin == poslsh::min_position, open_end = block.end == poslsh::max_position;
  if (!open_begin && hash.bin(block.begin) != bin) return "the first position has another bin";
  if (!open_end && hash.bin(block.end - 1) != bin) return "the last position has another bin";
  if (!open_begin && hash.bin(block.begin - 1) == bin) return "the position before has the same bin";
  if (!open_end && hash.bin(block.end) == bin) return "the position behind has the same bin";
  if (open_begin && hash.bin(-last_position) != bin) return "no end on the left, but the bin ends";
  if (open_end && hash.bin(last_position) != bin) return "no end on the right, but the bin ends";
  if (open_begin || open_end || block.size() > 300) return "";
  for (Index inside = block.begin; inside < block.end; ++inside)
    if (hash.bin(inside) != bin || hash.block(inside) != block) return "a position inside disagrees";
  return "";
}

/// Positions of every size up to 2^52 and of both signs, among them the ends and the neighbours of 0.
std::vector<Index> many_positions() {
  std::vector<Index> positions;
  for (Index near = 0; near <= 20; ++near)
    for (const Index position :
         {near, last_position - near, (Index{1} << 40) + near, (Index{1} << 31) - near}) {
      positions.push_back(position);
      positions.push_back(-position);
    }
  for (std::uint64_t i = 0; i < 150; ++i) {
    const double size = std::exp2(52 * random_uniform(5, 0, i));
    positions.push_back(static_cast<Index>(random_uniform(5, 1, i) < 0.5 ? -size : size));
  }
  return positions;
}

const std::vector<double> all_widths = {
    1e-6, 0.5, 1, std::nextafter(1.0, 2.0), 1.5, 2, std::numbers::pi, 1e3, 1e9, 0x1p52, 1e300, infinity};

template <class K>
double mean_weight(const K& kernel, Sampling sampling, Index samples, std::uint64_t seed, Index i, Index j) {
  double sum = 0;
  for (const PositionHash& hash : draw_hashes(kernel, samples, seed, sampling))
    if (hash.bin(i) == hash.bin(j)) sum += hash.weight;
  return sum / static_cast<double>(samples);
}

const std::vector<Sampling> samplings = {Sampling::independent, Sampling::stratified, Sampling::importance};
const std::vector<std::pair<Index, Index>> pairs = {{0, 0},       {0, 1},    {-3, 0},
                                                    {1000, 1007}, {-20, -4}, {5, 35}};

/// E[Mt(i, j)] = k(|i - j|) for every sampling and pair, each mean over seeds within its normal interval.
template <class K>
void require_unbiased(const K& kernel, Index samples) {
  const double part = level / static_cast<double>(samplings.size() * pairs.size());
  for (const Sampling sampling : samplings)
    for (const auto& [i, j] : pairs) {
      const double expected = kernel(static_cast<double>(std::abs(i - j)));
      if (expected < 0.01) continue;  // too few hits for a normal interval
      std::vector<double> weights;
      for (std::uint64_t seed = 0; seed < 4000; ++seed)
        weights.push_back(mean_weight(kernel, sampling, samples, seed, i, j));
      const Interval interval = mean_interval(weights, part);
      CAPTURE(static_cast<int>(sampling), samples, i, j, interval.low, interval.high);
      if (i == j && sampling != Sampling::importance)
        REQUIRE(std::all_of(weights.begin(), weights.end(), [](double weight) { return weight == 1; }));
      else
        REQUIRE(interval.contains(expected));
    }
}

/// The largest m with m | samples and 2 m^2 <= samples, counted down.
Index expected_shifts(Index samples) {
  for (Index m = samples; m > 1; --m)
    if (samples % m == 0 && 2 * m * m <= samples) return m;
  return 1;
}

double gamma_law(double x) { return 1 - (1 + x) * std::exp(-x); }

}  // namespace

// --- One hash --------------------------------------------------------------------------------------------

TEST_CASE("A bin is the floor of (position - shift) / width") {
  const auto bins = [](const PositionHash& hash, Index begin, Index end) {
    std::vector<Index> result;
    for (Index i = begin; i < end; ++i) result.push_back(hash.bin(i));
    return result;
  };
  REQUIRE(bins({1.5, 0.25}, -3, 6) == std::vector<Index>{-3, -2, -1, -1, 0, 1, 1, 2, 3});
  REQUIRE(bins({3, 1}, -3, 8) == std::vector<Index>{-2, -1, -1, -1, 0, 0, 0, 1, 1, 1, 2});
  REQUIRE(bins({4, -1}, -3, 4) == std::vector<Index>{-1, -1, 0, 0, 0, 0, 1});
  REQUIRE(PositionHash{3, 1}.block(2) == KeyRange{1, 4});
  REQUIRE(PositionHash{3, 1}.block(0) == KeyRange{-2, 1});
  REQUIRE(PositionHash{1.5, 0.25}.block(-1) == KeyRange{-1, 1});
}

TEST_CASE("Bin and block agree for every width, shift and position") {
  const std::vector<Index> positions = many_positions();
  for (const double width : all_widths)
    for (std::uint64_t draw = 0; draw < 12; ++draw) {
      const double reach = std::min(width, 0x1p52), u = random_uniform(6, 0, draw);
      // Inside the block of 0, at its ends, of the other sign, and anywhere a hash may be shifted to.
      const double shift = draw == 0   ? 0
                           : draw == 1 ? std::nextafter(reach, 0.0)
                           : draw == 2 ? 0x1p52
                           : draw == 3 ? -0x1p52
                           : draw < 8  ? u * reach
                           : draw < 10 ? -u * reach
                                       : (2 * u - 1) * 0x1p52;
      const PositionHash hash{width, shift};
      REQUIRE_NOTHROW(hash.validate());
      for (const Index position : positions) {
        const std::string wrong = fault(hash, position);
        if (wrong.empty()) continue;
        CAPTURE(width, shift, position, hash.bin(position), hash.block(position).begin,
                hash.block(position).end);
        FAIL(wrong);
      }
    }
}

TEST_CASE("Bins never decrease and blocks follow each other without a gap") {
  for (const double width : {std::nextafter(1.0, 2.0), 1.5, std::numbers::pi, 37.25, 1e3})
    for (const Index start : {Index{-500}, -last_position + 1, last_position - 1000}) {
      const PositionHash hash{width, 0.37 * width};
      CAPTURE(width, start);
      Index in_order = 0;
      for (Index i = start; i < start + 999; ++i) {
        const KeyRange here = hash.block(i), next = hash.block(i + 1);
        in_order += hash.bin(i) <= hash.bin(i + 1) &&
                    (here == next ? here.contains(i + 1) : here.end == next.begin && next.begin == i + 1);
      }
      REQUIRE(in_order == 999);
    }
}

TEST_CASE("A width up to 1 leaves every position alone, an infinite one puts all together") {
  for (const double width : {0x1p-1074, 1e-6, 0.5, 1.0})
    for (const Index position : {-last_position, Index{-1}, Index{0}, Index{7}, last_position}) {
      const PositionHash hash{width, 0.3 * width};
      REQUIRE(hash.block(position) == KeyRange{position, position + 1});
      REQUIRE(hash.bin(position) != hash.bin(position + 1));
    }
  const PositionHash all;
  REQUIRE(all == PositionHash{infinity, 0, 1});
  REQUIRE(all.block(3) == KeyRange{poslsh::min_position, poslsh::max_position});
  REQUIRE(all.bin(-last_position) == all.bin(last_position));
}

TEST_CASE("The block of a valid hash is found at once, also where the shift dwarfs the positions") {
  for (const double width : {0x1p60, 0x1p80, 1e30, 1e300})
    for (const double shift : {0.0, 0.3 * width, width / 2, std::nextafter(width, 0.0), width, -width}) {
      const PositionHash hash{width, shift};
      try {
        hash.validate();
      } catch (const poslsh::Error&) {
        continue;  // refused: nothing to promise
      }
      CAPTURE(poslsh::detail::describe(width), poslsh::detail::describe(shift));
      const std::clock_t begin = std::clock();
      REQUIRE(hash.block(0).contains(0));
      REQUIRE(static_cast<double>(std::clock() - begin) < 0.1 * CLOCKS_PER_SEC);
      for (const Index position : {-last_position, Index{-1}, Index{0}, Index{1}, last_position})
        REQUIRE(fault(hash, position) == "");
    }
}

TEST_CASE("A hash says what is wrong with it") {
  REQUIRE_NOTHROW(PositionHash{}.validate());
  REQUIRE_NOTHROW(PositionHash{0x1p-1074, -0x1p52, 0x1p-1000}.validate());
  REQUIRE_NOTHROW(PositionHash{1, 0, 0x1p1000}.validate());
  REQUIRE_THROWS_AS((PositionHash{0, 0}.validate()), poslsh::Error);
  REQUIRE_THROWS_WITH((PositionHash{0, 0}.validate()), "poslsh: hash width is 0; it must be positive");
  REQUIRE_THROWS_WITH((PositionHash{-2, 0}.validate()), "poslsh: hash width is -2; it must be positive");
  REQUIRE_THROWS_AS((PositionHash{not_a_number, 0}.validate()), poslsh::Error);
  REQUIRE_THROWS_WITH((PositionHash{1, infinity}.validate()),
                      ContainsSubstring("poslsh: hash shift is inf; it must be within +-2^52"));
  REQUIRE_THROWS_AS((PositionHash{1, -0x1.0000000000001p52}.validate()), poslsh::Error);
  REQUIRE_THROWS_AS((PositionHash{1, not_a_number}.validate()), poslsh::Error);
  for (const double weight : {0.0, -1.0, infinity, 0x1p-1001, 0x1p1001})
    REQUIRE_THROWS_WITH(
        (PositionHash{1, 0, weight}.validate()),
        "poslsh: hash weight is " + poslsh::detail::describe(weight) + "; it must be between 2^-1000 and 2^1000");
  REQUIRE_THROWS_AS((PositionHash{1, 0, not_a_number}.validate()), poslsh::Error);
}

// --- The draws: determinism ------------------------------------------------------------------------------

TEST_CASE("The draws have these very bits on every platform") {
  const LaplaceKernel kernel{16};
  const auto drawn = [&](Sampling sampling) { return draw_hashes(kernel, 4, 1, sampling); };
  CHECK(drawn(Sampling::independent) ==
        std::vector<PositionHash>{{0x1.e9895fd00eb7cp+5, 0x1.abe8e8b30d341p+5, 1},
                                  {0x1.ddafb1684b3a9p+4, 0x1.174dbb4127984p+0, 1},
                                  {0x1.2329e030a2468p+5, 0x1.583ed84ce9a69p+3, 1},
                                  {0x1.3225ce4ebb09ap+3, 0x1.1e3a998bdd7ddp+2, 1}});
  CHECK(drawn(Sampling::stratified) ==
        std::vector<PositionHash>{{0x1.c76a2300920cep+3, 0x1.8e155566355dcp+3, 1},
                                  {0x1.5862e0cade558p+4, 0x1.92b9d6c0915bep-1, 1},
                                  {0x1.248f7b6f69983p+5, 0x1.59e5a57c6692bp+3, 1},
                                  {0x1.6f260b05f2771p+5, 0x1.5742cdb009394p+4, 1}});
  CHECK(drawn(Sampling::importance) ==
        std::vector<PositionHash>{{0x1.c76a2300920cep+4, 0x1.8e155566355dcp+4, 0x1.a4bac23a97c8cp+0},
                                  {0x1.5862e0cade558p+5, 0x1.92b9d6c0915bep+0, 0x1.0ab9401c7ad04p+0},
                                  {0x1.248f7b6f69983p+6, 0x1.59e5a57c6692bp+4, 0x1.a09ac3756d873p-2},
                                  {0x1.6f260b05f2771p+6, 0x1.5742cdb009394p+5, 0x1.d13ece2c03f5ap-3}});
}

TEST_CASE("Importance is the default sampling, and stream 0 the default stream") {
  const LaplaceKernel kernel{16};
  REQUIRE(draw_hashes(kernel, 12, 5) == draw_hashes(kernel, 12, 5, Sampling::importance, 0));
}

TEST_CASE("The draws depend on seed and stream only, each of which changes all of them") {
  const LaplaceKernel kernel{16};
  for (const Sampling sampling : samplings) {
    const auto hashes = draw_hashes(kernel, 32, 5, sampling, 9);
    REQUIRE(hashes.size() == 32);
    REQUIRE(draw_hashes(kernel, 32, 5, sampling, 9) == hashes);
    const std::vector<std::vector<PositionHash>> others = {
        draw_hashes(kernel, 32, 6, sampling, 9), draw_hashes(kernel, 32, 5, sampling, 10),
        draw_hashes(kernel, 32, 9, sampling, 5),
        draw_hashes(kernel, 32, 5 + (std::uint64_t{1} << 32), sampling, 9)};
    for (const auto& other : others)
      for (std::size_t r = 0; r < 32; ++r) {
        REQUIRE(other[r].width != hashes[r].width);
        REQUIRE(other[r].shift != hashes[r].shift);
      }
  }
}

TEST_CASE("Fewer independent draws are the first of more") {
  const LaplaceKernel kernel{16};
  auto more = draw_hashes(kernel, 64, 5, Sampling::independent);
  more.resize(17);
  REQUIRE(draw_hashes(kernel, 17, 5, Sampling::independent) == more);
}

TEST_CASE("Neighbouring seeds and streams give independent draws (level 1e-6)") {
  const LaplaceKernel kernel{16};
  const Index samples = 20'000;
  const auto values = [&](std::uint64_t seed, std::uint64_t stream, bool shifts) {
    std::vector<double> result;
    for (const PositionHash& hash : draw_hashes(kernel, samples, seed, Sampling::independent, stream))
      result.push_back(shifts ? hash.shift / hash.width : gamma_law(hash.width / 16));
    return result;
  };
  const double bound = two_sided_normal(level / 5) / std::sqrt(static_cast<double>(samples));
  const auto widths = values(1, 0, false), shifts = values(1, 0, true);
  REQUIRE(std::abs(correlation(widths, values(2, 0, false))) < bound);
  REQUIRE(std::abs(correlation(widths, values(1, 1, false))) < bound);
  REQUIRE(std::abs(correlation(shifts, values(2, 0, true))) < bound);
  REQUIRE(std::abs(correlation(shifts, values(1, 1, true))) < bound);
  REQUIRE(std::abs(correlation(widths, shifts)) < bound);
}

TEST_CASE("Drawing leaves the state of std::rand alone") {
  std::srand(42);
  const std::vector<int> expected = {std::rand(), std::rand(), std::rand()};
  std::srand(42);
  for (const Sampling sampling : samplings)
    REQUIRE(draw_hashes(LaplaceKernel{16}, 100, 1, sampling).size() == 100);
  REQUIRE(std::vector<int>{std::rand(), std::rand(), std::rand()} == expected);
}

// --- The draws: their law --------------------------------------------------------------------------------

TEST_CASE("Independent draws have Gamma(2, sigma) widths and uniform shifts (level 1e-6)") {
  const double sigma = 3.5;
  std::vector<double> widths, shifts;
  for (const PositionHash& hash : draw_hashes(LaplaceKernel{sigma}, 50'000, 8, Sampling::independent)) {
    widths.push_back(hash.width / sigma);
    shifts.push_back(hash.shift / hash.width);
    if (!(hash.weight == 1 && hash.shift >= 0 && hash.shift < hash.width))
      FAIL("weight or shift out of order");
  }
  const double critical = ks_critical(widths.size(), level / 2);
  REQUIRE(ks_statistic(widths, gamma_law) < critical);
  REQUIRE(ks_statistic(shifts, uniform_law) < critical);
}

TEST_CASE("Stratified draws split into one width a stratum and equally spaced shifts") {
  const double sigma = 16;
  for (const Sampling sampling : {Sampling::stratified, Sampling::importance})
    for (const Index samples : {1, 2, 3, 4, 7, 8, 12, 13, 18, 31, 32, 36, 50, 64, 100, 128, 256, 1000}) {
      CAPTURE(static_cast<int>(sampling), samples);
      std::map<double, std::vector<double>> shifts_of;  // by width
      for (const PositionHash& hash : draw_hashes(LaplaceKernel{sigma}, samples, 77, sampling))
        shifts_of[hash.width].push_back(hash.shift / hash.width);
      const Index m = expected_shifts(samples), strata = samples / m;
      REQUIRE(static_cast<Index>(shifts_of.size()) == strata);

      Index stratum = 0;  // widths in increasing order
      for (auto& [width, shifts] : shifts_of) {
        const double stretch = sampling == Sampling::importance ? 2 : 1;
        const double place = gamma_law(width / (stretch * sigma)) * static_cast<double>(strata);
        REQUIRE(place >= static_cast<double>(stratum) - 1e-9);
        REQUIRE(place <= static_cast<double>(stratum) + 1 + 1e-9);
        ++stratum;

        REQUIRE(static_cast<Index>(shifts.size()) == m);
        std::sort(shifts.begin(), shifts.end());
        REQUIRE(shifts.front() >= 0);
        REQUIRE(shifts.front() < 1 / static_cast<double>(m));
        for (std::size_t c = 1; c < shifts.size(); ++c)
          REQUIRE(shifts[c] - shifts[c - 1] == Approx(1 / static_cast<double>(m)).epsilon(1e-10));
      }
    }
}

TEST_CASE("The split takes the largest divisor m of s with 2 m^2 <= s") {
  for (Index samples = 1; samples <= 2000; ++samples)
    if (poslsh::detail::shifts_per_width(samples) != expected_shifts(samples)) FAIL(samples);
  REQUIRE(poslsh::detail::shifts_per_width(1) == 1);
  REQUIRE(poslsh::detail::shifts_per_width(7) == 1);
  REQUIRE(poslsh::detail::shifts_per_width(8) == 2);
  REQUIRE(poslsh::detail::shifts_per_width(18) == 3);
  REQUIRE(poslsh::detail::shifts_per_width(128) == 8);
}

TEST_CASE("Inside its stratum a width is uniform in probability, and so is the shifts' offset (level 1e-6)") {
  const double sigma = 16;
  const Index samples = 32, shifts = 4, strata = 8;
  for (const Sampling sampling : {Sampling::stratified, Sampling::importance}) {
    const double stretch = sampling == Sampling::importance ? 2 : 1;
    std::vector<double> places, offsets;
    for (std::uint64_t seed = 0; seed < 3000; ++seed)
      for (const PositionHash& hash : draw_hashes(LaplaceKernel{sigma}, samples, seed, sampling)) {
        const double offset = hash.shift / hash.width * static_cast<double>(shifts);
        if (offset >= 1) continue;  // one of the equally spaced shifts says it all
        const double place = gamma_law(hash.width / (stretch * sigma)) * static_cast<double>(strata);
        places.push_back(place - std::floor(place));
        offsets.push_back(offset);
      }
    CAPTURE(static_cast<int>(sampling));
    REQUIRE(places.size() == 3000u * static_cast<std::size_t>(strata));
    REQUIRE(ks_statistic(places, uniform_law) < ks_critical(places.size(), level / 5));
    REQUIRE(ks_statistic(offsets, uniform_law) < ks_critical(offsets.size(), level / 5));
    REQUIRE(std::abs(correlation(places, offsets)) <
            two_sided_normal(level / 10) / std::sqrt(static_cast<double>(places.size())));
  }
}

TEST_CASE("Importance draws are twice as wide (level 1e-6) and weighted by 4 exp(-W / (2 sigma))") {
  const double sigma = 5;
  std::vector<double> widths;
  for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
    const PositionHash hash = draw_hashes(LaplaceKernel{sigma}, 1, seed)[0];  // one stratum: the whole law
    widths.push_back(hash.width / (2 * sigma));
    const double weight = 4 * std::exp(-hash.width / (2 * sigma));
    if (!(std::abs(hash.weight / weight - 1) < 1e-14))
      FAIL("seed " << seed << ": " << hash.weight << " not " << weight);
  }
  REQUIRE(ks_statistic(widths, gamma_law) < ks_critical(widths.size(), level));
}

TEST_CASE("Importance weights are the ratio of the densities for any kernel; other samplings weigh 1") {
  const Mixture kernel;
  for (const PositionHash& hash : draw_hashes(kernel, 100, 3, Sampling::importance)) {
    const double stretched = kernel.width_density(hash.width / 2) / 2;
    REQUIRE(hash.weight == Approx(kernel.width_density(hash.width) / stretched).epsilon(1e-14));
  }
  for (const Sampling sampling : {Sampling::independent, Sampling::stratified})
    for (const PositionHash& hash : draw_hashes(kernel, 100, 3, sampling)) REQUIRE(hash.weight == 1);
}

TEST_CASE(
    "Two positions share a bin of an independent draw with probability exp(-distance/sigma) (level 1e-6)") {
  const LaplaceKernel kernel{8};
  const auto hashes = draw_hashes(kernel, 200'000, 21, Sampling::independent);
  for (const auto& [i, j] : pairs) {
    double together = 0;
    for (const PositionHash& hash : hashes) together += hash.bin(i) == hash.bin(j);
    const Interval interval = wilson_interval(together, static_cast<double>(hashes.size()),
                                              level / static_cast<double>(pairs.size()));
    CAPTURE(i, j, interval.low, interval.high);
    REQUIRE(interval.contains(std::exp(-static_cast<double>(std::abs(i - j)) / 8)));
  }
}

TEST_CASE("Every sampling estimates the Laplace kernel without bias (level 1e-6)") {
  require_unbiased(LaplaceKernel{8}, 1);
  require_unbiased(LaplaceKernel{8}, 18);
  require_unbiased(LaplaceKernel{1.5}, 8);
}

TEST_CASE("Every sampling estimates a kernel of the user's without bias (level 1e-6)") {
  require_unbiased(Mixture{}, 8);
}

// --- The draws: bad input and extremes -------------------------------------------------------------------

TEST_CASE("Draws refuse bad input") {
  REQUIRE_THROWS_AS(draw_hashes(LaplaceKernel{16}, 0, 1), poslsh::Error);
  REQUIRE_THROWS_WITH(draw_hashes(LaplaceKernel{16}, 0, 1), "poslsh: samples is 0; it must be between 1 and 2^31");
  REQUIRE_THROWS_WITH(draw_hashes(LaplaceKernel{16}, std::numeric_limits<Index>::max(), 1),
                      "poslsh: samples is 9223372036854775807; it must be between 1 and 2^31");
  REQUIRE_THROWS_WITH(draw_hashes(LaplaceKernel{16}, -4, 1), "poslsh: samples is -4; it must be between 1 and 2^31");
  REQUIRE_THROWS_WITH(draw_hashes(FixedWidth{-2}, 1, 1, Sampling::independent),
                      "poslsh: hash width is -2; it must be positive");
  for (const Sampling sampling : samplings) {
    REQUIRE_THROWS_AS(draw_hashes(FixedWidth{0}, 1, 1, sampling), poslsh::Error);
    REQUIRE_THROWS_AS(draw_hashes(FixedWidth{not_a_number}, 1, 1, sampling), poslsh::Error);
    for (const double sigma : {0.0, -1.0, infinity, not_a_number}) {
      CAPTURE(static_cast<int>(sampling));
      CHECK_THROWS_WITH(
          draw_hashes(LaplaceKernel{sigma}, 8, 1, sampling),
          "poslsh: sigma is " + poslsh::detail::describe(sigma) + "; it must be positive and finite");
    }
  }
}

TEST_CASE("Every draw is a valid hash, however sharp or broad the kernel") {
  for (const Sampling sampling : samplings)
    for (const double sigma : {1e-300, 1e-3, 1.0, 1e6, 1e15, 1e18, 1e300}) {
      CAPTURE(static_cast<int>(sampling), poslsh::detail::describe(sigma));
      for (const PositionHash& hash : draw_hashes(LaplaceKernel{sigma}, 200, 4, sampling)) {
        REQUIRE_NOTHROW(hash.validate());
        REQUIRE(fault(hash, 0) == "");
      }
    }
}

TEST_CASE("An infinite width of a kernel of the user's is one block") {
  const PositionHash hash = draw_hashes(FixedWidth{infinity}, 1, 1, Sampling::independent)[0];
  REQUIRE_NOTHROW(hash.validate());
  REQUIRE(hash.block(0) == KeyRange{poslsh::min_position, poslsh::max_position});
}

}  // namespace hash_test
