// SPDX-License-Identifier: MIT

// The bounds of Theorem 2.1: their numbers, how they move, their inverses, and draws that must respect them.

#include "poslsh/theory/bounds.hpp"

#include "poslsh/mask/mean_mask.hpp"
#include "support/catch.hpp"

#include <Eigen/Eigenvalues>
#include <limits>
#include <string>
#include <vector>

namespace bounds_test {

using namespace poslsh;
namespace theory = poslsh::theory;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

Matrix<double> kernel_matrix(double sigma, Index n) {
  Matrix<double> matrix(n, n);
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < n; ++j) matrix(i, j) = std::exp(-std::abs(static_cast<double>(i - j)) / sigma);
  return matrix;
}

double norm(const Matrix<double>& symmetric) {
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(symmetric, Eigen::EigenvaluesOnly);
  return solver.eigenvalues().cwiseAbs().maxCoeff();
}

/// Draws that are independent, each from another law with its weight.
template <Sampling sampling>
MeanMask one_by_one(const LaplaceKernel& kernel, Index samples, std::uint64_t seed) {
  std::vector<PositionHash> hashes;
  for (Index r = 0; r < samples; ++r)
    hashes.push_back(draw_hashes(kernel, 1, seed, sampling, static_cast<std::uint64_t>(r))[0]);
  return MeanMask(hashes);
}
template <Sampling sampling>
MeanMask together(const LaplaceKernel& kernel, Index samples, std::uint64_t seed) {
  return MeanMask(draw_hashes(kernel, samples, seed, sampling));
}

/// Every bound as a function of samples and error, for 32 positions and sigma = 4.
struct Bound {
  const char* name;
  double (*value)(Index samples, double error);
};
const std::vector<Bound> tail_bounds = {
    {"spectral", [](Index s, double e) { return theory::spectral_tail_bound(4, 32, s, e); }},
    {"max", [](Index s, double e) { return theory::max_tail_bound(32, s, e); }},
    {"spectral Bernstein",
     [](Index s, double e) { return theory::spectral_bernstein_bound(32, s, e, 20, 8); }},
    {"pair Bernstein", [](Index s, double e) { return theory::pair_bernstein_bound(s, e, 0.3, 4); }},
    {"max Bernstein", [](Index s, double e) { return theory::max_bernstein_bound(32, s, e, 4); }},
};

}  // namespace

TEST_CASE("Psi and the bound of the kernel's norm have their values") {
  REQUIRE(theory::kernel_norm_bound(1) == Approx(2.163953413738653).epsilon(1e-14));
  REQUIRE(theory::psi(1) == Approx(4.163953413738653).epsilon(1e-14));
  REQUIRE(theory::psi(16) == Approx(17 + 32.010416).epsilon(1e-8));
  REQUIRE(theory::kernel_norm_bound(1e12) == Approx(2e12).epsilon(1e-14));
  REQUIRE(theory::kernel_norm_bound(1e-5) == 1);
  REQUIRE(theory::psi(1e-5) == Approx(2.00001).epsilon(1e-14));
}

TEST_CASE("No kernel matrix is above its norm's bound, and long ones come close") {
  for (const double sigma : {0.1, 1.0, 4.0, 16.0}) {
    const double exact = norm(kernel_matrix(sigma, 300)), bound = theory::kernel_norm_bound(sigma);
    CAPTURE(sigma, exact, bound);
    REQUIRE(exact <= bound * (1 + 1e-14));
    REQUIRE(exact > 0.97 * bound);
  }
}

TEST_CASE("The bounds have the values one computes by hand") {
  // Psi = 4.163953413738653: 100 exp(-1000 2^2 / (16.65581365 18.65581365)) = 100 exp(-12.87302...).
  REQUIRE(theory::spectral_tail_bound(1, 100, 1000, 2) == Approx(100 * std::exp(-12.873009)).epsilon(1e-5));
  // a = 1 + ln 200 = 6.298317367: 8.327906827 (0.006298317367 + sqrt(0.00629831737 4.00629831737)).
  REQUIRE(theory::spectral_expectation_bound(1, 100, 1000) == Approx(1.375325).epsilon(1e-5));
  REQUIRE(theory::max_tail_bound(100, 1000, 0.1) == Approx(9900 * std::exp(-20.0)).epsilon(1e-13));
  REQUIRE(theory::spectral_bernstein_bound(10, 300, 3, 5, 8) == Approx(10 * std::exp(-30.0)).epsilon(1e-13));
  REQUIRE(theory::pair_bernstein_bound(400, 0.3, 0.2, 4) == Approx(2 * std::exp(-15.0)).epsilon(1e-13));
  REQUIRE(theory::max_bernstein_bound(20, 400, 0.6, 2) == Approx(420 * std::exp(-30.0)).epsilon(1e-13));
  REQUIRE(theory::importance_norm_bound(16) == Approx(128 * std::exp(-31.0 / 32)).epsilon(1e-13));
  REQUIRE(theory::importance_norm_bound(0.5) == 4);
  REQUIRE(theory::importance_norm_bound(0.01) == 4);
  REQUIRE(theory::importance_norm_bound(16, 3) == Approx(9 * 24 * std::exp(1.0 / 24 - 1)).epsilon(1e-13));
  REQUIRE(theory::mixture_norm_bound(16) == Approx(2 * (24 * std::log(9.0) + 1)).epsilon(1e-13));
  REQUIRE(theory::mixture_norm_bound(16, 1.25) ==
          Approx(2 * 1.5625 * 80 * std::exp(1.0 / 80 - 1)).epsilon(1e-13));
}

TEST_CASE("At error 0 a bound is the number of things that may fail, which says nothing") {
  REQUIRE(theory::spectral_tail_bound(4, 32, 7, 0) == 32);
  REQUIRE(theory::max_tail_bound(32, 7, 0) == 32 * 31);
  REQUIRE(theory::spectral_bernstein_bound(32, 7, 0, 20, 8) == 32);
  REQUIRE(theory::pair_bernstein_bound(7, 0, 0, 1) == 2);
  REQUIRE(theory::max_bernstein_bound(32, 7, 0, 1) == 32 * 33);
  REQUIRE(theory::max_tail_bound(1, 1, 0) == 0);  // one position: nothing may fail
}

TEST_CASE("Bounds fall with the samples and with the error, down to 0") {
  for (const Bound& bound : tail_bounds) {
    CAPTURE(bound.name);
    double previous = infinity;
    for (Index samples = 1; samples <= 1 << 20; samples *= 2) {
      REQUIRE((bound.value(samples, 0.1) < previous || previous == 0));
      previous = bound.value(samples, 0.1);
    }
    previous = infinity;
    for (double error = 0; error < 20; error += 0.05) {
      REQUIRE((bound.value(5, error) < previous || previous == 0));
      previous = bound.value(5, error);
    }
    REQUIRE(bound.value(Index{1} << 50, 1) == 0);
    REQUIRE(bound.value(1, 1e300) == 0);
  }
  double previous = infinity;
  for (Index samples = 1; samples <= 1 << 20; samples *= 2) {
    REQUIRE(theory::spectral_expectation_bound(4, 32, samples) < previous);
    previous = theory::spectral_expectation_bound(4, 32, samples);
  }
  REQUIRE(theory::spectral_expectation_bound(4, 33, 9) > theory::spectral_expectation_bound(4, 32, 9));
  REQUIRE(theory::spectral_expectation_bound(5, 32, 9) > theory::spectral_expectation_bound(4, 32, 9));
}

TEST_CASE("The expectation's bound is where the tail for both signs is 1/e, within its rougher form") {
  for (const double sigma : {0.5, 16.0})
    for (const Index n : {1, 50, 100'000})
      for (const Index samples : {1, 32, 100'000}) {
        const double bound = theory::spectral_expectation_bound(sigma, n, samples);
        const double a = (1 + std::log(2 * static_cast<double>(n))) / static_cast<double>(samples);
        CAPTURE(sigma, n, samples);
        REQUIRE(2 * theory::spectral_tail_bound(sigma, n, samples, bound) ==
                Approx(std::exp(-1)).epsilon(1e-9));
        REQUIRE(bound <= 4 * theory::psi(sigma) * (std::sqrt(a) + a));
      }
}

TEST_CASE("The expectation's bound is above the integral of the tail it comes from") {
  const double sigma = 3;
  const Index n = 40, samples = 70;
  double integral = 0;
  for (double e = 0; e < 600; e += 0.01)
    integral += 0.01 * (std::min)(1.0, 2 * theory::spectral_tail_bound(sigma, n, samples, e));
  const double bound = theory::spectral_expectation_bound(sigma, n, samples);
  REQUIRE(bound >= integral - 0.01);
  REQUIRE(bound <= 1.1 * integral);
}

TEST_CASE("The samples asked for are the least that suffice") {
  for (const double failure : {0.5, 1e-3, 1e-12}) {
    for (const double error : {0.3, 2.0, 40.0})
      for (const double sigma : {0.5, 16.0})
        for (const Index n : {1, 1000, 1 << 20}) {
          const Index samples = theory::samples_for_spectral_error(sigma, n, error, failure);
          CAPTURE(failure, error, sigma, n, samples);
          REQUIRE(theory::spectral_tail_bound(sigma, n, samples, error) <= failure);
          if (samples > 1) REQUIRE(theory::spectral_tail_bound(sigma, n, samples - 1, error) > failure);
        }
    for (const double error : {1e-5, 0.03, 1.0})
      for (const Index n : {1, 2, 1000, 1 << 20}) {
        const Index samples = theory::samples_for_max_error(n, error, failure);
        CAPTURE(failure, error, n, samples);
        REQUIRE(theory::max_tail_bound(n, samples, error) <= failure);
        if (samples > 1) REQUIRE(theory::max_tail_bound(n, samples - 1, error) > failure);
      }
  }
  REQUIRE(theory::samples_for_max_error(1000, 0.05, 0.01) == 3684);  // ln(99900000) / 0.005 = 3683.9
  REQUIRE(theory::samples_for_max_error(1, 1e-9, 0.01) == 1);
}

TEST_CASE("The block size asked for is the least that suffices") {
  for (const double failure : {0.5, 1e-3, 1e-200})
    for (const Index samples : {1, 32, 100'000})
      for (const double sigma : {1e-3, 0.5, 16.0, 1e9}) {
        const LaplaceKernel kernel{sigma};
        const Index size = theory::block_size_bound(kernel, samples, failure);
        const auto fails = [&](Index t) {
          return static_cast<double>(samples) * kernel.width_tail(static_cast<double>(t));
        };
        CAPTURE(failure, samples, sigma, size);
        REQUIRE(size >= 1);
        REQUIRE(fails(size) <= failure);
        if (size > 1) REQUIRE(fails(size - 1) > failure);
      }
  // 32 (1 + t/16) exp(-t/16) is 0.0101 at t = 168 and 0.0096 at 169.
  REQUIRE(theory::block_size_bound(LaplaceKernel{16}, 32, 0.01) == 169);
  // A heavy tail: (1 + t)^-2 (1 + 2 t) <= 1e-6 / 10 at t near 2e7; and one that never falls to that.
  REQUIRE(theory::block_size_bound(PowerKernel{1, 1}, 10, 1e-6) == Approx(2e7).epsilon(1e-6));
  REQUIRE(theory::block_size_bound(PowerKernel{1, 0.1}, 10, 1e-6) == max_position);
}

TEST_CASE("Draws respect the bounds: they exceed an error no more often than stated") {
  const LaplaceKernel kernel{2};
  const Index n = 24, samples = 150;
  const Matrix<double> exact = kernel_matrix(kernel.sigma, n);
  struct Law {
    const char* name;
    MeanMask (*draw)(const LaplaceKernel&, Index, std::uint64_t);
    Index independent;  ///< the samples for Hoeffding's and Bernstein's inequalities
    double max_weight, draw_norm;
  };
  const Index widths = samples / detail::shifts_per_width(samples);
  const double all = static_cast<double>(n), wide = theory::importance_norm_bound(kernel.sigma);
  const double mixed = theory::mixture_norm_bound(kernel.sigma);
  const Law laws[] = {{"independent", together<Sampling::independent>, samples, 1, all},
                      {"stratified", together<Sampling::stratified>, widths, 1, all},
                      {"importance", together<Sampling::importance>, widths, 4, wide},
                      {"mixture", together<Sampling::mixture>, widths, 2, mixed},
                      {"importance, one by one", one_by_one<Sampling::importance>, samples, 4, wide},
                      {"mixture, one by one", one_by_one<Sampling::mixture>, samples, 2, mixed}};
  const int trials = 200;
  const double norm_bound = theory::kernel_norm_bound(kernel.sigma);
  for (const Law& law : laws) {
    std::vector<double> spectral, largest, pair;
    for (int trial = 0; trial < trials; ++trial) {
      const Matrix<double> error =
          law.draw(kernel, samples, static_cast<std::uint64_t>(trial)).dense(n) - exact;
      spectral.push_back(norm(error));
      largest.push_back(error.cwiseAbs().maxCoeff());
      pair.push_back(std::abs(error(3, 8)));
    }
    const auto exceed = [&](const std::vector<double>& errors, double error) {
      double count = 0;
      for (const double measured : errors) count += measured >= error;
      return count / trials;
    };
    CAPTURE(law.name);
    int said_something = 0;
    for (double e = 0; e < 12; e += 0.01) {
      // A frequency may be above its probability by luck: three of its standard deviations.
      const auto check = [&](double frequency, double bound) {
        said_something += bound < 1;
        if (bound < 1) REQUIRE(frequency <= bound + 3 * std::sqrt(bound / trials));
      };
      const Index s = law.independent;
      if (law.max_weight == 1) check(exceed(largest, e), theory::max_tail_bound(n, s, e));
      if (s == samples && law.max_weight == 1)
        check(exceed(spectral, e), 2 * theory::spectral_tail_bound(kernel.sigma, n, s, e));
      check(exceed(spectral, e), 2 * theory::spectral_bernstein_bound(n, s, e, law.draw_norm, norm_bound));
      check(exceed(largest, e), theory::max_bernstein_bound(n, s, e, law.max_weight));
      check(exceed(pair, e), theory::pair_bernstein_bound(s, e, exact(3, 8), law.max_weight));
    }
    REQUIRE(said_something > 1000);
    if (law.draw == &together<Sampling::independent>) {
      double mean = 0;
      for (const double error : spectral) mean += error / trials;
      REQUIRE(mean <= theory::spectral_expectation_bound(kernel.sigma, n, samples));
    }
  }
}

TEST_CASE("Importance and mixture draws stay within the bounds of their norms") {
  for (const double sigma : {0.3, 0.8, 4.0, 100.0})
    for (const double stretch : {1.5, 2.0, 3.0})
      for (const Sampling sampling : {Sampling::importance, Sampling::mixture}) {
        double largest = 0;
        for (const PositionHash& hash : draw_hashes(LaplaceKernel{sigma}, 5000, 3, sampling, 0, stretch)) {
          Index positions = 1;
          for (Index position = 0; position < 50; ++position)
            positions = (std::max)(positions, hash.block(position).size());
          largest = (std::max)(largest, hash.weight * static_cast<double>(positions));
        }
        const bool mixture = sampling == Sampling::mixture;
        const double bound = mixture ? theory::mixture_norm_bound(sigma, stretch)
                                     : theory::importance_norm_bound(sigma, stretch);
        CAPTURE(sigma, stretch, mixture, largest, bound);
        REQUIRE(largest <= bound);
        REQUIRE(largest > 0.3 * bound);
      }
}

TEST_CASE("Blocks respect the bound of their size") {
  const LaplaceKernel kernel{5};
  for (const double failure : {0.3, 0.03}) {
    const Index samples = 20, trials = 1000;
    const Index bound = theory::block_size_bound(kernel, samples, failure);
    double above = 0;
    for (Index trial = 0; trial < trials; ++trial) {
      Index largest = 0;
      for (const PositionHash& hash :
           draw_hashes(kernel, samples, static_cast<std::uint64_t>(trial), Sampling::independent))
        for (Index position = 0; position < 200; position = hash.block(position).end)
          largest = (std::max)(largest, hash.block(position).size());
      above += largest > bound;
    }
    const double trial_count = static_cast<double>(trials);
    REQUIRE(above / trial_count <= failure + 3 * std::sqrt(failure / trial_count));
    REQUIRE(above / trial_count >= failure / 3);  // and the bound is no larger than it must be
  }
}

TEST_CASE("Bernstein's bounds are numbers for arguments of any size") {
  constexpr double least = std::numeric_limits<double>::denorm_min(), most = std::numeric_limits<double>::max();
  const double sizes[] = {least, 1e-310, 1e-200, 1e-25, 1, 1e25, 1e200, most};
  for (const Index samples : {Index{1}, Index{1} << 62})
    for (const double error : {0.0, least, 1e-310, 1e-200, 1e-25, 1.0, 1e25, 1e200, most})
      for (const double size : sizes) {
        CAPTURE(samples, error, size);
        for (const double mean : sizes) {
          const double bound = theory::spectral_bernstein_bound(3, samples, error, size, mean);
          if (!(bound >= 0 && bound <= 3)) FAIL("spectral " << bound << " for mean " << mean);
        }
        for (const double mean : {0.0, least, 1e-25, 1.0}) {
          const double bound = theory::pair_bernstein_bound(samples, error, mean, size);
          if (!(bound >= 0 && bound <= 2)) FAIL("pair " << bound << " for mean " << mean);
        }
      }
  // s e^2 / (2 R (m + e / 3)) = 2e-22, whose quotients alone leave the range of double.
  REQUIRE(theory::spectral_bernstein_bound(1, Index{1} << 62, 1e-25, 1e-310, 1e300) == 1);
}

TEST_CASE("The bounds refuse arguments out of range, by name") {
  for (const double wrong : {0.0, -1.0, infinity, not_a_number}) {
    const std::string is = " is " + detail::describe(wrong) + "; it must be ",
                      finite = is + "positive and finite";
    CHECK_THROWS_WITH(theory::psi(wrong), "poslsh: sigma" + finite);
    CHECK_THROWS_WITH(theory::kernel_norm_bound(wrong), "poslsh: sigma" + finite);
    CHECK_THROWS_WITH(theory::importance_norm_bound(wrong), "poslsh: sigma" + finite);
    CHECK_THROWS_WITH(theory::mixture_norm_bound(wrong), "poslsh: sigma" + finite);
    CHECK_THROWS_WITH(theory::importance_norm_bound(1, wrong), "poslsh: stretch" + is + "above 1 and finite");
    CHECK_THROWS_WITH(theory::mixture_norm_bound(1, wrong), "poslsh: stretch" + is + "above 1 and finite");
    CHECK_THROWS_WITH(theory::spectral_tail_bound(wrong, 1, 1, 1), "poslsh: sigma" + finite);
    CHECK_THROWS_WITH(theory::spectral_expectation_bound(wrong, 1, 1), "poslsh: sigma" + finite);
    CHECK_THROWS_WITH(theory::spectral_bernstein_bound(1, 1, 1, wrong, 1), "poslsh: draw_norm" + finite);
    CHECK_THROWS_WITH(theory::spectral_bernstein_bound(1, 1, 1, 1, wrong), "poslsh: mean_norm" + finite);
    CHECK_THROWS_WITH(theory::max_bernstein_bound(1, 1, 1, wrong), "poslsh: max_weight" + finite);
    CHECK_THROWS_WITH(theory::pair_bernstein_bound(1, 1, 1, wrong), "poslsh: max_weight" + finite);
    const std::string inside = "poslsh: failure" + is + "inside (0, 1)";
    CHECK_THROWS_WITH(theory::samples_for_spectral_error(1, 10, 1, wrong), inside);
    CHECK_THROWS_WITH(theory::samples_for_max_error(10, 1, wrong), inside);
    CHECK_THROWS_WITH(theory::block_size_bound(LaplaceKernel{1}, 10, wrong), inside);
  }
  for (const double wrong : {-1.0, infinity, not_a_number}) {
    const std::string message =
        "poslsh: error is " + detail::describe(wrong) + "; it must be finite and at least 0";
    for (const Bound& bound : tail_bounds) CHECK_THROWS_WITH(bound.value(1, wrong), message);
    CHECK_THROWS_WITH(theory::samples_for_max_error(10, wrong, 0.1), message);
    CHECK_THROWS_WITH(theory::samples_for_spectral_error(1, 10, wrong, 0.1), message);
  }
  for (const Bound& bound : tail_bounds)
    CHECK_THROWS_WITH(bound.value(0, 1), "poslsh: samples is 0; it must be at least 1");
  CHECK_THROWS_WITH(theory::spectral_expectation_bound(1, 1, 0),
                    "poslsh: samples is 0; it must be at least 1");
  CHECK_THROWS_WITH(theory::block_size_bound(LaplaceKernel{1}, 0, 0.1),
                    "poslsh: samples is 0; it must be at least 1");
  CHECK_THROWS_WITH(theory::spectral_tail_bound(1, 0, 1, 1), "poslsh: n is 0; it must be at least 1");
  CHECK_THROWS_WITH(theory::max_tail_bound(-3, 1, 1), "poslsh: n is -3; it must be at least 1");
  CHECK_THROWS_WITH(theory::pair_bernstein_bound(1, 1, 1.5, 1),
                    "poslsh: mean is 1.5; it must be between 0 and 1");
  const std::string too_small =
      "poslsh: error is 1e-09; it must be large enough for 2^52 samples to reach it";
  CHECK_THROWS_WITH(theory::samples_for_max_error(10, 1e-9, 0.1), too_small);
  CHECK_THROWS_WITH(theory::samples_for_spectral_error(1, 10, 1e-9, 0.1), too_small);
  CHECK_THROWS_AS(theory::samples_for_max_error(10, 0, 0.1), Error);
}

}  // namespace bounds_test
