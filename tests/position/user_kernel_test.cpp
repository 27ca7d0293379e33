// SPDX-License-Identifier: MIT

// A kernel of one's own, as an example.
//
// A mixture of two Laplace kernels, k(x) = a exp(-x / near) + (1 - a) exp(-x / far): a sharp peak on a broad
// base, as a head wants it that copies the last tokens and still looks far back. Value, density and tail of a
// mixture are the mixtures of its parts; the quantile has no formula, but the tail decreases, so bisection
// finds it.

#include "poslsh/position/hash.hpp"
#include "support/catch.hpp"
#include "support/statistics.hpp"

#include <cstdlib>
#include <vector>

namespace user_kernel_test {

using namespace poslsh::test;
using poslsh::draw_hashes;
using poslsh::Index;
using poslsh::LaplaceKernel;
using poslsh::PositionHash;
using poslsh::Sampling;

namespace {

class LaplaceMixture {
 public:
  LaplaceMixture(double share, double near, double far) : share_(share), near_{near}, far_{far} {}

  [[nodiscard]] double operator()(double x) const { return mix(near_(x), far_(x)); }
  [[nodiscard]] double width_density(double w) const {
    return mix(near_.width_density(w), far_.width_density(w));
  }
  [[nodiscard]] double width_tail(double w) const { return mix(near_.width_tail(w), far_.width_tail(w)); }
  [[nodiscard]] double width_quantile(double p) const {
    // Between the quantiles of the parts.
    double low = near_.width_quantile(p), high = far_.width_quantile(p);
    for (int step = 0; step < 60; ++step) {
      const double middle = low + (high - low) / 2;
      (width_tail(middle) > 1 - p ? low : high) = middle;
    }
    return high;
  }

 private:
  [[nodiscard]] double mix(double near, double far) const { return share_ * near + (1 - share_) * far; }
  double share_;
  LaplaceKernel near_, far_;
};
static_assert(poslsh::DistanceKernel<LaplaceMixture>);

}  // namespace

TEST_CASE("A mixture of two Laplace kernels can be sampled like any kernel (level 1e-6)") {
  const LaplaceMixture kernel(0.7, 2, 60);
  const double level = 1e-6 / 20;
  for (const Sampling sampling :
       {Sampling::independent, Sampling::stratified, Sampling::importance, Sampling::mixture})
    for (const Index distance : {0, 1, 3, 20, 80}) {
      std::vector<double> weights;
      for (std::uint64_t seed = 0; seed < 3000; ++seed) {
        double sum = 0;
        for (const PositionHash& hash : draw_hashes(kernel, 8, seed, sampling))
          if (hash.bin(5) == hash.bin(5 + distance)) sum += hash.weight / 8;
        weights.push_back(sum);
      }
      const Interval interval = mean_interval(weights, level);
      const double expected = kernel(static_cast<double>(distance));
      CAPTURE(static_cast<int>(sampling), distance, expected, interval.low, interval.high);
      // Weights at distance 0 need not vary.
      REQUIRE(interval.low <= expected + 1e-12);
      REQUIRE(interval.high >= expected - 1e-12);
    }
}

TEST_CASE("Weights of importance draws stay within 4 for a mixture, whose k'' decreases") {
  for (const PositionHash& hash : draw_hashes(LaplaceMixture(0.7, 2, 60), 1000, 1, Sampling::importance)) {
    REQUIRE(hash.weight <= 4);
    REQUIRE(hash.weight > 0);
  }
}

}  // namespace user_kernel_test
