// SPDX-License-Identifier: MIT
#include "poslsh/position/hash.hpp"

#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

// Draws from laws that are stretched by other factors than those by default.
namespace stretch_test {

using poslsh::draw_hashes;
using poslsh::Index;
using poslsh::LaplaceKernel;
using poslsh::PositionHash;
using poslsh::Sampling;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// (1 - x / reach)^2 as far as it reaches: widths of density 2 w / reach^2.
struct EndingKernel {
  double reach;
  double operator()(double x) const { return x < reach ? (1 - x / reach) * (1 - x / reach) : 0; }
  double width_density(double w) const { return w < reach ? 2 * w / (reach * reach) : 0; }
  double width_tail(double w) const { return w < reach ? 1 - w * w / (reach * reach) : 0; }
  double width_quantile(double p) const { return reach * std::sqrt(p); }
};

/// What the draws weigh a pair at this distance, over uniform shifts: P[same bin] = 1 - x / w.
double mean_weight(const std::vector<PositionHash>& hashes, double distance) {
  double sum = 0;
  for (const PositionHash& hash : hashes) sum += hash.weight * std::max(0.0, 1 - distance / hash.width);
  return sum / static_cast<double>(hashes.size());
}

}  // namespace

TEST_CASE("Mixture draws are unbiased, and no weight is large") {
  const LaplaceKernel kernel{16};
  for (const double stretch : {1.5, 3.0, 6.0})
    for (const Index samples : {8191, 3 * 1009}) {  // one shift a width, or three
      const std::vector<PositionHash> hashes = draw_hashes(kernel, samples, 9, Sampling::mixture, 0, stretch);
      CAPTURE(stretch, samples);
      REQUIRE(static_cast<Index>(hashes.size()) == samples);
      for (const double distance : {0.0, 1.0, 16.0, 64.0, 120.0})
        REQUIRE(mean_weight(hashes, distance) == Approx(kernel(distance)).epsilon(0.03).margin(2e-5));
      for (const PositionHash& hash : hashes) REQUIRE((hash.weight > 0 && hash.weight <= 2));
    }
  const double width = draw_hashes(kernel, 1, 9, Sampling::mixture).front().width;
  REQUIRE(width > draw_hashes(kernel, 1, 9, Sampling::stratified).front().width);
  REQUIRE(width < 3 * draw_hashes(kernel, 1, 9, Sampling::stratified).front().width);
  REQUIRE(draw_hashes(kernel, 64, 9, Sampling::mixture) ==
          draw_hashes(kernel, 64, 9, Sampling::mixture, 0, 3));
}

TEST_CASE("Importance draws are unbiased for any stretch, and narrower for a smaller one") {
  const LaplaceKernel kernel{16};
  for (const double stretch : {1.0, 1.25, 1.5, 2.0, 3.0}) {
    const std::vector<PositionHash> hashes =
        draw_hashes(kernel, 1 << 14, 9, Sampling::importance, 0, stretch);
    CAPTURE(stretch);
    for (const double distance : {0.0, 1.0, 16.0, 64.0, 100.0})
      REQUIRE(mean_weight(hashes, distance) == Approx(kernel(distance)).epsilon(0.02).margin(2e-4));
    double width = 0;
    for (const PositionHash& hash : hashes) width += hash.width / static_cast<double>(hashes.size());
    REQUIRE(width == Approx(2 * 16 * stretch).epsilon(0.01));
    for (const PositionHash& hash : hashes)
      REQUIRE(hash.weight ==
              Approx(stretch * stretch * std::exp(-hash.width * (1 - 1 / stretch) / 16)).epsilon(1e-9));
  }
  const std::vector<PositionHash> plain = draw_hashes(kernel, 64, 9, Sampling::stratified);
  REQUIRE(draw_hashes(kernel, 64, 9, Sampling::importance, 0, 1) == plain);
  REQUIRE(draw_hashes(kernel, 64, 9, Sampling::stratified, 0, 3) == plain);
  for (const double bad : {0.5, -1.0, not_a_number, infinity})
    REQUIRE_THROWS_WITH(draw_hashes(kernel, 64, 9, Sampling::importance, 0, bad),
                        Catch::Matchers::ContainsSubstring("stretch is"));
}

TEST_CASE("Widths far beyond the kernel's own are drawn with the least weight") {
  for (const double stretch : {16.0, 1e3, 1e6, 1e100})
    for (const Sampling sampling : {Sampling::importance, Sampling::mixture}) {
      if (sampling == Sampling::importance && stretch > 1e3) continue;
      std::vector<PositionHash> hashes;
      CAPTURE(stretch, static_cast<int>(sampling));
      REQUIRE_NOTHROW(hashes = draw_hashes(LaplaceKernel{16}, 4096, 9, sampling, 0, stretch));
      REQUIRE(hashes.size() == 4096);
      double least = infinity;
      for (const PositionHash& hash : hashes) {
        REQUIRE_NOTHROW(hash.validate());
        least = std::min(least, hash.weight);
      }
      if (stretch >= 1e3) REQUIRE(least == 0x1p-1000);
      if (sampling == Sampling::mixture)
        REQUIRE(mean_weight(hashes, 16) == Approx(std::exp(-1)).epsilon(0.05));
    }
}

TEST_CASE("A stretch that leaves next to no draw a weight is refused, whatever the seed") {
  const auto refused = [](double stretch) {
    return "poslsh: stretch is " + poslsh::detail::describe(stretch) +
           "; it must be so small that one draw in 16 weighs more than 2^-1000";
  };
  for (const double stretch : {2e3, 1e6, 1e100})
    for (const std::uint64_t seed : {1u, 2u, 3u})
      REQUIRE_THROWS_WITH(draw_hashes(LaplaceKernel{16}, 64, seed, Sampling::importance, 0, stretch),
                          refused(stretch));
  REQUIRE_NOTHROW(draw_hashes(EndingKernel{40}, 64, 1, Sampling::importance, 0, 3.9));  // 40 sqrt(1/16) = 10
  REQUIRE_THROWS_WITH(draw_hashes(EndingKernel{40}, 64, 1, Sampling::importance, 0, 4.1), refused(4.1));
}

TEST_CASE("A kernel that ends can be drawn from stretched laws too") {
  const EndingKernel kernel{40};
  for (const Sampling sampling : {Sampling::importance, Sampling::mixture}) {
    const std::vector<PositionHash> hashes = draw_hashes(kernel, 8192, 9, sampling);
    CAPTURE(static_cast<int>(sampling));
    for (const double distance : {0.0, 1.0, 10.0, 30.0})
      REQUIRE(mean_weight(hashes, distance) == Approx(kernel(distance)).epsilon(0.02));
    REQUIRE(mean_weight(hashes, 40) < 1e-300);
  }
}

}  // namespace stretch_test
