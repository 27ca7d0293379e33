// SPDX-License-Identifier: MIT

// The bounds of Theorem 2.2: of a row, and of all rows of all inputs at once.

#include "poslsh/theory/output_bounds.hpp"

#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random_matrix.hpp"

#include <vector>

namespace output_bounds_test {

using namespace poslsh;
using namespace poslsh::test;

namespace {

/// The row bound as it is written, over scores that fit.
template <class K>
double definition(const K& kernel, const MeanMask& mask, Index query, Index first_key,
                  const std::vector<double>& scores, double largest_value) {
  long double difference = 0, whole = 0;
  for (std::size_t t = 0; t < scores.size(); ++t) {
    const Index key = first_key + static_cast<Index>(t);
    const long double exact = kernel(std::abs(static_cast<double>(key - query)));
    const long double score = std::exp(static_cast<long double>(scores[t]));
    difference += std::abs(exact - mask.weight(query, key)) * score;
    whole += exact * score;
  }
  return static_cast<double>(2 * largest_value * difference / whole);
}

std::vector<double> normal_scores(Index count, double size, std::uint64_t seed) {
  std::vector<double> scores;
  for (Index t = 0; t < count; ++t)
    scores.push_back(size * random_normal(seed, 0, static_cast<std::uint64_t>(t)));
  return scores;
}

/// max over rows i of a kind of window of sum_j |L* - Mt|(i, j) / sum_j L*(i, j), j from i - left to i +
/// right.
double worst_ratio(const Matrix<double>& exact, const Matrix<double>& mean, Index left, Index right) {
  double worst = 0;
  for (Index i = 0; i < exact.rows(); ++i) {
    const Index begin = (std::max)(Index{0}, i - left), end = (std::min)(exact.rows(), i + right + 1);
    const double whole = exact.row(i).segment(begin, end - begin).sum();
    worst = (std::max)(worst, (exact - mean).row(i).segment(begin, end - begin).cwiseAbs().sum() / whole);
  }
  return worst;
}

}  // namespace

TEST_CASE("The row bound is its formula, for any kernel, mask and range of keys") {
  const auto check = [](const auto& kernel) {
    for (const Sampling sampling : {Sampling::independent, Sampling::importance, Sampling::mixture})
      for (const Index query : {Index{0}, Index{-40}, Index{1} << 40})
        for (const Index before : {0, 7, 90}) {
          const MeanMask mask(draw_hashes(kernel, 12, 3, sampling));
          const std::vector<double> scores = normal_scores(120, 2, 5);
          const double got = theory::output_error_bound(kernel, mask, query, query - before, scores, 1.5);
          CAPTURE(static_cast<int>(sampling), query, before);
          REQUIRE(got == Approx(definition(kernel, mask, query, query - before, scores, 1.5)).epsilon(1e-12));
        }
  };
  check(LaplaceKernel{6});
  check(PowerKernel{0.5, 1});
}

TEST_CASE("The row bound of two keys is what one computes by hand") {
  // L* = 1, exp(-1/2); Mt = 1, 0 with blocks of one; A = 1, e: 2 x 3 exp(1/2) / (1 + exp(1/2)).
  const std::vector<double> scores = {1, 0};
  const MeanMask alone(std::vector<PositionHash>{{1, 0}});
  const double half = std::exp(0.5);
  REQUIRE(theory::output_error_bound(LaplaceKernel{2}, alone, 1, 0, scores, 3) ==
          Approx(6 * half / (1 + half)).epsilon(1e-14));
  // Outside the support altogether, the bound is 2 v.
  REQUIRE(theory::output_error_bound(LaplaceKernel{2}, alone, 9, 0, scores, 3) == Approx(6).epsilon(1e-14));
  // With Mt = L* nothing is left.
  REQUIRE(theory::output_error_bound(LaplaceKernel{2}, alone, 0, 0, std::vector<double>{5}, 3) == 0);
}

TEST_CASE("The row bound holds for the outputs") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Dice dice(seed);
    const double sigma = dice.pick({0.7, 5.0, 60.0});
    const Index keys = 1 + dice.below(150), first_key = dice.below(100) - 50,
                query = first_key + dice.below(200) - 30;
    const MeanMask mask(draw_hashes(
        LaplaceKernel{sigma}, dice.pick<Index>({1, 8, 64}), seed,
        dice.pick({Sampling::independent, Sampling::stratified, Sampling::importance, Sampling::mixture})));
    const std::vector<double> scores = normal_scores(keys, dice.pick({0.0, 1.0, 6.0}), seed);
    const Matrix<double> values = normal_matrix<double>(keys, 3, seed);
    long double exact_sum = 0, mean_sum = 0;
    Vector<long double> exact = Vector<long double>::Zero(3), mean = exact;
    for (Index j = 0; j < keys; ++j) {
      const long double score = std::exp(static_cast<long double>(scores[static_cast<std::size_t>(j)]));
      const double distance = std::abs(static_cast<double>(first_key + j - query));
      const long double a = score * std::exp(-static_cast<long double>(distance) / sigma);
      const long double b = score * mask.weight(query, first_key + j);
      exact_sum += a;
      mean_sum += b;
      exact += a * values.row(j).transpose().cast<long double>();
      mean += b * values.row(j).transpose().cast<long double>();
    }
    exact /= exact_sum;
    if (mean_sum > 0) mean /= mean_sum;
    const double error = static_cast<double>((exact - mean).cwiseAbs().maxCoeff());
    const double bound = theory::output_error_bound(LaplaceKernel{sigma}, mask, query, first_key, scores,
                                                    values.cwiseAbs().maxCoeff());
    CAPTURE(seed, sigma, keys, query, error, bound);
    REQUIRE(error <= bound + 1e-14);
  }
}

TEST_CASE("The row bound knows no overflow and no underflow") {
  const LaplaceKernel kernel{4};
  const MeanMask mask(draw_hashes(kernel, 16, 2));
  const std::vector<double> scores = normal_scores(50, 1, 7);
  const double expected = theory::output_error_bound(kernel, mask, 60, 20, scores, 1);
  REQUIRE(expected > 0.01);
  for (const double shift : {1e4, -1e4, 1e6}) {  // the same but for what rounds off the scores themselves
    std::vector<double> shifted = scores;
    for (double& score : shifted) score += shift;
    REQUIRE(theory::output_error_bound(kernel, mask, 60, 20, shifted, 1) == Approx(expected).epsilon(1e-8));
  }
  // Equal scores of 1e300 leave the weights' differences as they are.
  const std::vector<double> none(50, 0.0), huge(50, 1e300), low(50, -1e300);
  const double flat = theory::output_error_bound(kernel, mask, 60, 20, none, 1);
  REQUIRE(theory::output_error_bound(kernel, mask, 60, 20, huge, 1) == flat);
  REQUIRE(theory::output_error_bound(kernel, mask, 60, 20, low, 1) == flat);
  // One score of 1e300: that key alone counts.
  std::vector<double> one = scores;
  one[35] = 1e300;
  const double ratio = std::abs(kernel(5) - mask.weight(60, 55)) / kernel(5);
  REQUIRE(theory::output_error_bound(kernel, mask, 60, 20, one, 1) == Approx(2 * ratio).epsilon(1e-12));
  // Keys 10^9 away, where exp(-x/4) underflows and no block reaches.
  REQUIRE(theory::output_error_bound(kernel, mask, 1'000'000'000, 20, scores, 1) == Approx(2).epsilon(1e-12));
  REQUIRE(theory::output_error_bound(kernel, mask, 60, 20, std::vector<double>{}, 1) == 0);
  REQUIRE(
      std::isnan(theory::output_error_bound(kernel, mask, 60, 59, std::vector<double>{1, not_a_number}, 1)));
}

TEST_CASE("Keys with a score of -inf, and values of 0 or without bound, leave the row bound a number") {
  const LaplaceKernel kernel{2};
  const MeanMask mask(draw_hashes(kernel, 4, 1)), alone(std::vector<PositionHash>{{1, 0}});
  const auto bound = [&](const MeanMask& of, const std::vector<double>& scores, double largest_value) {
    return theory::output_error_bound(kernel, of, 2, 0, scores, largest_value);
  };
  const double expected = bound(mask, {1, 2}, 1);
  REQUIRE(expected > 0);
  REQUIRE(bound(mask, {1, 2, -infinity}, 1) == expected);
  REQUIRE(theory::output_error_bound(kernel, mask, 2, -1, std::vector<double>{-infinity, 1, 2}, 1) == expected);
  REQUIRE(bound(mask, {-infinity, -infinity}, 1) == 0);
  // Far keys have no weight at all where the kernel has no logarithm beyond -inf.
  REQUIRE(theory::output_error_bound(PowerKernel{1e308, 1e308}, alone, 2, 0, std::vector<double>{5, 5, -infinity}, 1) == 0);
  REQUIRE(bound(mask, {1, 2}, infinity) == infinity);
  REQUIRE(bound(alone, {-infinity, -infinity, 3}, infinity) == 0);  // no difference
  REQUIRE(bound(alone, {-infinity, -infinity, 3}, std::numeric_limits<double>::max()) == 0);
  REQUIRE(theory::output_error_bound(kernel, alone, 5000, 0, std::vector<double>{3, 5}, 0) == 0);
  REQUIRE(theory::output_error_bound(LaplaceKernel{1e-5}, MeanMask(std::vector<PositionHash>(1)), 5, 0, std::vector<double>{3}, 0) == 0);
}

TEST_CASE("The uniform bound is its derivation, summed term by term") {
  for (const double sigma : {0.4, 3.0, 40.0})
    for (const Index n : {2, 30, 2000})
      for (const Index samples : {1, 100, 100'000})
        for (const double failure : {0.3, 1e-6}) {
          const double s = static_cast<double>(samples), count = static_cast<double>(n);
          const double tau = std::log(2 * count * (count - 1) / failure);
          const LaplaceKernel kernel{sigma};
          Index reach = 0;  // the last distance that may be covered
          while (reach < n - 1 && s * kernel.width_tail(static_cast<double>(reach + 1)) > failure / 2)
            ++reach;
          double root = 0, constant = 0, far = 0, whole = 1, near = 1;
          for (Index t = 1; t < n; ++t) {
            const double k = kernel(static_cast<double>(t));
            whole += 2 * k;
            if (t > reach) far += 2 * k;
            root += 2 * std::sqrt(2 * tau * k / s);
            if (t <= reach) constant += 2 * 2 * tau / (3 * s), near += 2 * k;
          }
          const double least = 2 * ((root + far) / whole + constant / near);
          const double bound = theory::uniform_output_error_bound(sigma, n, samples, 0, failure);
          CAPTURE(sigma, n, samples, failure, reach, least, bound);
          REQUIRE(bound >= least * (1 - 1e-12));
          // Real T for a whole one, sums without end for finite ones: little, unless there are few positions.
          if (count > 30 * sigma && sigma >= 3) REQUIRE(bound <= 1.3 * least);
          REQUIRE(theory::uniform_output_error_bound(sigma, n, samples, 1.5, failure) ==
                  Approx(std::exp(3) * bound).epsilon(1e-13));
        }
}

TEST_CASE("The uniform bound has the value one computes by hand") {
  // sigma = 1, n = 3, s = 1000, failure = 0.1: tau = ln 120 = 4.787492, a = 0.0978519, b = 0.00319166, T = 2
  // = n - 1, S = 0.581977, S_T = 0.503215: 2 (2 a / 0.648721 / 2.163953 + 2 b 2 / 2.006430).
  REQUIRE(theory::uniform_output_error_bound(1, 3, 1000, 0, 0.1) == Approx(0.2915453).epsilon(1e-5));
  // n = 100, s = 2, failure = 0.5: tau = 10.5865844, a = 3.25370318, b = 3.52886147, T = 3.60702354, S_T =
  // 0.566186232: 2 (2 a / 0.648721 / 2.163953 + 2 b T / 2.132372 + 2 exp(-T) / 0.632121 / 2.163953).
  REQUIRE(theory::uniform_output_error_bound(1, 100, 2, 0, 0.5) == Approx(33.22749615492967).epsilon(1e-12));
  REQUIRE(theory::uniform_output_error_bound(1, 1, 1, 5, 0.1) == 0);
}

TEST_CASE("The uniform bound falls with the samples, rises with scores and length, and ends anywhere") {
  for (const double sigma : {0.01, 0.5, 16.0, 1000.0})
    for (const double failure : {0.9, 0.1, 1e-10}) {
      double previous = infinity;
      for (Index samples = 1; samples < 3000; ++samples) {
        const double bound = theory::uniform_output_error_bound(sigma, 5000, samples, 1, failure);
        if (!(bound < previous)) FAIL("rises at " << samples << " for sigma " << sigma);
        previous = bound;
      }
    }
  REQUIRE(theory::uniform_output_error_bound(4, 100, 50, 2, 0.1) >
          theory::uniform_output_error_bound(4, 100, 50, 1, 0.1));
  REQUIRE(theory::uniform_output_error_bound(4, 101, 50, 1, 0.1) >
          theory::uniform_output_error_bound(4, 100, 50, 1, 0.1));
  REQUIRE(theory::uniform_output_error_bound(4, 100, 50, 1, 0.1) >
          theory::uniform_output_error_bound(4, 100, 50, 1, 0.2));
  constexpr double least = std::numeric_limits<double>::denorm_min(), most = std::numeric_limits<double>::max();
  for (const double sigma : {least, 1e-300, 1.0, 1e300, most})
    for (const Index n : {Index{2}, Index{1000}, Index{1} << 62})
      for (const double failure : {least, 0.1}) {
        CAPTURE(sigma, n, failure);
        const double bound = theory::uniform_output_error_bound(sigma, n, 64, 1, failure);
        REQUIRE(bound > 0);
        REQUIRE(std::isfinite(bound));
        REQUIRE(theory::uniform_output_error_bound(sigma, n, 64, most, failure) == infinity);
      }
  // For broad kernels all weights are 1: 2 (2 a + b T), T = n - 1.
  const double tau = std::log(2 * 1000.0 * 999 / 0.1);
  REQUIRE(theory::uniform_output_error_bound(most, 1000, 64, 0, 0.1) ==
          Approx(2 * (2 * std::sqrt(2 * tau / 64) + 2 * (2 * tau / (3 * 64)) * 999 / (1 + 2 * 999.0))).epsilon(1e-12));
  REQUIRE(theory::uniform_output_error_bound(4, 100, 50, 1000, 0.1) == infinity);
}

TEST_CASE("Draws exceed the uniform bound no more often than stated, whatever the queries see") {
  const double sigma = 3, failure = 0.2;
  const Index n = 60;
  Matrix<double> exact(n, n);
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < n; ++j) exact(i, j) = std::exp(-std::abs(static_cast<double>(i - j)) / sigma);
  for (const Index samples : {3, 40, 1000}) {
    const double bound = theory::uniform_output_error_bound(sigma, n, samples, 0, failure);
    double above = 0, largest = 0;
    const int trials = 200;
    for (int trial = 0; trial < trials; ++trial) {
      const MeanMask mask(draw_hashes(LaplaceKernel{sigma}, samples, static_cast<std::uint64_t>(trial),
                                      Sampling::independent));
      const Matrix<double> mean = mask.dense(n);
      double ratio = 0;
      for (const auto& [left, right] : {std::pair{n, n}, std::pair{n, Index{0}}, std::pair{Index{0}, n},
                                        std::pair{Index{5}, Index{2}}, std::pair{Index{1}, Index{30}}})
        ratio = (std::max)(ratio, worst_ratio(exact, mean, left, right));
      above += 2 * ratio > bound;
      largest = (std::max)(largest, 2 * ratio);
    }
    CAPTURE(samples, bound, largest);
    REQUIRE(above / trials <= failure);
    REQUIRE(bound <= 12 * largest);  // and it is no idle bound
  }
}

TEST_CASE("The samples asked for an output error are the least that suffice") {
  for (const double sigma : {0.5, 16.0, 256.0})
    for (const Index n : {2, 1000, 1 << 20})
      for (const double score : {0.0, 2.0})
        for (const double error : {0.01, 0.5})
          for (const double failure : {0.5, 1e-6}) {
            const Index samples = theory::samples_for_output_error(sigma, n, score, error, failure);
            CAPTURE(sigma, n, score, error, failure, samples);
            REQUIRE(theory::uniform_output_error_bound(sigma, n, samples, score, failure) <= error);
            if (samples > 1)
              REQUIRE(theory::uniform_output_error_bound(sigma, n, samples - 1, score, failure) > error);
          }
  // exp(4 B) and 1 / error^2, and nearly no n.
  const double base = static_cast<double>(theory::samples_for_output_error(100, 10'000, 0, 0.01, 0.01));
  REQUIRE(static_cast<double>(theory::samples_for_output_error(100, 10'000, 1, 0.01, 0.01)) ==
          Approx(std::exp(4) * base).epsilon(0.02));
  REQUIRE(static_cast<double>(theory::samples_for_output_error(100, 10'000, 0, 0.001, 0.01)) ==
          Approx(100 * base).epsilon(0.02));
  REQUIRE(static_cast<double>(theory::samples_for_output_error(100, 1'000'000, 0, 0.01, 0.01)) < 1.5 * base);
}

TEST_CASE("The output bounds refuse arguments out of range, by name") {
  const MeanMask mask(std::vector<PositionHash>(1));
  CHECK_THROWS_WITH(theory::output_error_bound(LaplaceKernel{1}, mask, 0, 0, std::vector<double>{1}, -1),
                    "poslsh: largest_value is -1; it must be at least 0");
  CHECK_THROWS_WITH(theory::output_error_bound(LaplaceKernel{-1}, mask, 0, 0, std::vector<double>{1}, 1),
                    "poslsh: sigma is -1; it must be positive and finite");
  CHECK_THROWS_WITH(theory::uniform_output_error_bound(0, 4, 1, 1, 0.1),
                    "poslsh: sigma is 0; it must be positive and finite");
  CHECK_THROWS_WITH(theory::uniform_output_error_bound(1, 0, 1, 1, 0.1),
                    "poslsh: n is 0; it must be at least 1");
  CHECK_THROWS_WITH(theory::uniform_output_error_bound(1, 4, 0, 1, 0.1),
                    "poslsh: samples is 0; it must be at least 1");
  CHECK_THROWS_WITH(theory::uniform_output_error_bound(1, 4, 1, -1, 0.1),
                    "poslsh: score_bound is -1; it must be finite and at least 0");
  CHECK_THROWS_WITH(theory::uniform_output_error_bound(1, 4, 1, 1, 1),
                    "poslsh: failure is 1; it must be inside (0, 1)");
  CHECK_THROWS_WITH(theory::samples_for_output_error(1, 4, 1, 0, 0.1),
                    "poslsh: error is 0; it must be positive and finite");
  CHECK_THROWS_WITH(theory::samples_for_output_error(1, 4, 100, 0.1, 0.1),
                    "poslsh: error is 0.1; it must be large enough for 2^52 samples to reach it");
}

}  // namespace output_bounds_test
