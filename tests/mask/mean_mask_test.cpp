// SPDX-License-Identifier: MIT
#include "poslsh/mask/mean_mask.hpp"

#include "poslsh/attention/bias.hpp"
#include "support/catch.hpp"

#include <limits>
#include <vector>

namespace mean_mask_test {

using poslsh::draw_hashes;
using poslsh::Index;
using poslsh::KeyRange;
using poslsh::LaplaceKernel;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::PositionHash;
using poslsh::Sampling;

static_assert(poslsh::PositionBias<MeanMask>);

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
const std::vector<Index> origins = {
    0, 5, -300, -(Index{1} << 40), (Index{1} << 40) - 50, (Index{1} << 52) - 20'000};

/// (1/s) sum_r weight_r M_r(i, j) as it is written, in the widest arithmetic there is.
long double definition(std::span<const PositionHash> hashes, Index i, Index j) {
  long double sum = 0;
  for (const PositionHash& hash : hashes)
    if (hash.bin(i) == hash.bin(j)) sum += hash.weight;
  return sum / static_cast<long double>(hashes.size());
}

double relative_error(double got, long double want) {
  if (want == 0) return got == 0 ? 0 : infinity;
  return static_cast<double>(std::abs(got / want - 1));
}

/// A hundred nested blocks around every position, wide ones of weight 1e-12 to narrow ones of weight 1: far
/// weights are small beside near ones.
std::vector<PositionHash> nested_hashes() {
  std::vector<PositionHash> hashes;
  for (int r = 0; r < 100; ++r) {
    const double width = 1.5 + 2.1 * r;
    hashes.push_back({width, poslsh::random_uniform(4, 0, static_cast<std::uint64_t>(r)) * width,
                      std::pow(10.0, -12.0 * r / 99)});
  }
  std::swap(hashes[3], hashes[90]);  // their order must not matter
  std::swap(hashes[0], hashes[50]);
  return hashes;
}

std::vector<std::vector<PositionHash>> many_hashes() {
  std::vector<std::vector<PositionHash>> lists = {
      {{}},                                       // one block of all
      {{0.5, 0}},                                 // every position alone
      {{3, 1}, {3, 1}, {5, 2.5, 0.25}},           // equal ends
      {{4, 0.5}, {}, {1, 0, 2}, {8, 0.5, 1e-9}},  // all extremes at once
      nested_hashes(),
  };
  for (const Sampling sampling : {Sampling::independent, Sampling::stratified, Sampling::importance})
    for (const Index samples : {1, 4, 33, 64}) {
      lists.push_back(draw_hashes(LaplaceKernel{3}, samples, 17, sampling));
      lists.push_back(draw_hashes(LaplaceKernel{20}, samples, 18, sampling));
    }
  lists.push_back(draw_hashes(LaplaceKernel{1e-3}, 16, 1));
  return lists;
}

/// log weights of the keys [begin, end), added to zeros.
template <class T>
std::vector<T> log_weights(const MeanMask& mask, Index query, Index begin, Index end) {
  std::vector<T> scores(static_cast<std::size_t>(end - begin), T{0});
  mask.add_log_weights(query, begin, scores.data(), end - begin);
  return scores;
}

}  // namespace

TEST_CASE("A mean mask keeps its hashes") {
  const auto hashes = draw_hashes(LaplaceKernel{3}, 7, 1);
  const MeanMask mask(hashes);
  REQUIRE(mask.samples() == 7);
  REQUIRE(std::equal(hashes.begin(), hashes.end(), mask.hashes().begin(), mask.hashes().end()));
}

TEST_CASE("The weight of a pair follows the definition anywhere, and its logarithm too") {
  for (const auto& hashes : many_hashes()) {
    const MeanMask mask(hashes);
    for (const Index origin : origins) {
      double worst = 0, worst_log = 0;
      for (Index i = origin; i < origin + 40; i += 3)
        for (Index j = i - 150; j <= i + 150; ++j) {
          const long double expected = definition(hashes, i, j);
          worst = std::max(worst, relative_error(mask.weight(i, j), expected));
          if (expected == 0 && mask.log_weight(i, j) != -infinity) FAIL("a finite logarithm of 0");
          if (expected > 0)
            worst_log = std::max(worst_log,
                                 static_cast<double>(std::abs(mask.log_weight(i, j) - std::log(expected))));
        }
      CAPTURE(hashes.size(), origin);
      REQUIRE(worst < 1e-14);
      REQUIRE(worst_log < 1e-13);
    }
  }
}

TEST_CASE("The weight is positive inside the support and exactly zero outside") {
  for (const auto& hashes : many_hashes()) {
    const MeanMask mask(hashes);
    for (const Index origin : origins) {
      CAPTURE(hashes.size(), origin);
      for (Index i = origin; i < origin + 30; ++i) {
        const KeyRange support = mask.support(i);
        REQUIRE(support.contains(i));
        // Around both ends, or at the end of the world, and all through a short support.
        for (Index near = -5; near < 5; ++near)
          for (const Index end : {support.begin, support.end}) {
            const Index j = std::clamp(end, i - 10'000, i + 10'000) + near;
            if ((mask.weight(i, j) > 0) != support.contains(j)) FAIL("the support of " << i << " at " << j);
          }
        for (Index j = std::max(support.begin, i - 500); j < std::min(support.end, i + 500); ++j)
          if (!(mask.weight(i, j) > 0)) FAIL("a hole in the support of " << i << " at " << j);
      }
    }
  }
}

TEST_CASE("Both ends of the support never decrease") {
  for (const auto& hashes : many_hashes()) {
    const MeanMask mask(hashes);
    for (const Index origin : origins) {
      KeyRange before = mask.support(origin - 1);
      for (Index i = origin; i < origin + 190; ++i) {
        const KeyRange here = mask.support(i);
        if (here.begin < before.begin || here.end < before.end) FAIL("at " << i);
        before = here;
      }
    }
    REQUIRE(mask.support(0).begin <= 0);
  }
}

TEMPLATE_LIST_TEST_CASE("The dense matrix follows the definition", "", Scalars) {
  const double tolerance = 1e-13 + (sizeof(TestType) == 4 ? 1e-7 : 0);
  for (const auto& hashes : many_hashes()) {
    const MeanMask mask(hashes);
    for (const Index n : {0, 1, 2, 3, 5, 13, 127, 257}) {
      const Matrix<TestType> dense = mask.dense<TestType>(n);
      CAPTURE(hashes.size(), n);
      REQUIRE(dense.rows() == n);
      REQUIRE(dense.cols() == n);
      const Index stride = n > 127 ? 7 : 1;
      double worst = 0;
      for (Index i = 0; i < n; i += stride)
        for (Index j = 0; j < n; ++j)
          worst = std::max(worst, relative_error(static_cast<double>(dense(i, j)), definition(hashes, i, j)));
      REQUIRE(worst < tolerance);
      REQUIRE(dense == dense.transpose());
    }
  }
}

TEMPLATE_LIST_TEST_CASE(
    "Adding log weights over any part of the support equals log_weight and touches nothing else", "", Scalars) {
  using T = TestType;
  const T guard = T{12345};
  const double tolerance = sizeof(T) == 4 ? 4e-6 : 1e-13;  // of scores around 30
  for (const auto& hashes : many_hashes()) {
    const MeanMask mask(hashes);
    for (const Index origin : origins)
      for (Index query = origin; query < origin + 20; query += 4) {
        const KeyRange all = mask.support(query);
        const Index begin = std::max(all.begin, query - 160), end = std::min(all.end, query + 160);
        std::vector<std::pair<Index, Index>> parts = {
            {begin, end},       {begin, query}, {begin, query + 1}, {query, end},   {query + 1, end},
            {query, query + 1}, {begin, begin}, {begin, begin + 1}, {end - 1, end}, {end, end}};
        for (std::uint64_t i = 0; i < 4; ++i) {
          const double length = static_cast<double>(end - begin);
          const Index a = begin + static_cast<Index>(poslsh::random_uniform(1, 0, i) * length);
          const Index b = begin + static_cast<Index>(poslsh::random_uniform(1, 1, i) * length);
          parts.emplace_back(std::min(a, b), std::max(a, b));
        }
        for (const auto& [first, last] : parts) {
          const Index count = last - first;
          std::vector<T> scores(static_cast<std::size_t>(count) + 6, guard);
          for (Index t = 0; t < count; ++t)
            scores[static_cast<std::size_t>(t + 3)] = static_cast<T>(t % 5) / 4;
          mask.add_log_weights(query, first, scores.data() + 3, count);
          double worst = 0;
          for (Index t = 0; t < count; ++t) {
            const double expected = static_cast<double>(t % 5) / 4 + mask.log_weight(query, first + t);
            const double error =
                std::abs(static_cast<double>(scores[static_cast<std::size_t>(t + 3)]) - expected);
            if (!(error <= worst)) worst = error;
          }
          const bool untouched = std::count(scores.begin(), scores.begin() + 3, guard) == 3 &&
                                 std::count(scores.end() - 3, scores.end(), guard) == 3;
          if (worst < tolerance && untouched) continue;
          CAPTURE(hashes.size(), query, first, last, worst, untouched);
          FAIL("add_log_weights disagrees");
        }
      }
  }
  SUCCEED();
}

TEST_CASE("Weights down to 1e-12 of the largest keep their relative accuracy") {
  const auto hashes = nested_hashes();
  const MeanMask mask(hashes);
  const Index n = 400;
  const Matrix<double> dense = mask.dense(n);
  double worst_weight = 0, worst_dense = 0, worst_log = 0, worst_added = 0, smallest = 1;
  for (Index i = 0; i < n; i += 9) {
    const KeyRange support = intersect(mask.support(i), KeyRange{0, n});
    const std::vector<double> added = log_weights<double>(mask, i, support.begin, support.end);
    for (Index j = 0; j < n; ++j) {
      const long double expected = definition(hashes, i, j);
      worst_weight = std::max(worst_weight, relative_error(mask.weight(i, j), expected));
      worst_dense = std::max(worst_dense, relative_error(dense(i, j), expected));
      if (expected == 0) continue;
      smallest = std::min(smallest, static_cast<double>(expected));
      // A log weight errs absolutely by what its weight errs relatively.
      const auto log_error = [&](double log) {
        return static_cast<double>(std::abs(log - std::log(expected)));
      };
      worst_log = std::max(worst_log, log_error(mask.log_weight(i, j)));
      worst_added = std::max(worst_added, log_error(added[static_cast<std::size_t>(j - support.begin)]));
    }
  }
  REQUIRE(smallest < 1e-13);
  REQUIRE(mask.weight(0, 0) > 0.01);
  REQUIRE(worst_weight < 1e-13);
  REQUIRE(worst_dense < 1e-13);
  REQUIRE(worst_log < 1e-13);
  REQUIRE(worst_added < 1e-13);
}

TEST_CASE("A mean mask of known weights") {
  const MeanMask mask({{2, 0}, {4, 0, 3}});  // blocks of two, and of four with three times the weight
  Matrix<double> expected(5, 5);
  expected << 2, 2, 1.5, 1.5, 0,  //
      2, 2, 1.5, 1.5, 0,          //
      1.5, 1.5, 2, 2, 0,          //
      1.5, 1.5, 2, 2, 0,          //
      0, 0, 0, 0, 2;
  REQUIRE(mask.dense(5) == expected);
  REQUIRE(mask.weight(2, 0) == 1.5);
  REQUIRE(mask.support(2) == KeyRange{0, 4});
  REQUIRE(mask.support(-1) == KeyRange{-4, 0});
  REQUIRE(mask.log_weight(0, 4) == -infinity);
  REQUIRE(log_weights<double>(mask, 2, 0, 4) ==
          std::vector<double>{std::log(1.5), std::log(1.5), std::log(2.0), std::log(2.0)});
}

TEST_CASE("Stratified and importance draws estimate the kernel better than as many independent ones") {
  const double sigma = 16;
  const Index n = 128;
  const auto mean_square_error = [&](Sampling sampling) {
    double sum = 0;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Matrix<double> mean = MeanMask(draw_hashes(LaplaceKernel{sigma}, 32, seed, sampling)).dense(n);
      for (Index i = 0; i < n; ++i)
        for (Index j = 0; j < n; ++j)
          sum += std::pow(mean(i, j) - std::exp(-static_cast<double>(std::abs(i - j)) / sigma), 2);
    }
    return sum;
  };
  const double independent = mean_square_error(Sampling::independent);
  REQUIRE(mean_square_error(Sampling::stratified) < 0.3 * independent);
  REQUIRE(mean_square_error(Sampling::importance) < 0.6 * independent);  // its diagonal varies
}

TEST_CASE("A mean mask refuses an empty list, invalid hashes and sizes out of range") {
  REQUIRE_THROWS_AS(MeanMask(std::vector<PositionHash>{}), poslsh::Error);
  REQUIRE_THROWS_WITH(MeanMask(std::vector<PositionHash>{}),
                      "poslsh: hashes is an empty list; it must be at least one hash");
  REQUIRE_THROWS_WITH(MeanMask({{2, 0}, {-1, 0}}), "poslsh: hash width is -1; it must be positive");
  REQUIRE_THROWS_WITH(MeanMask({{2, 0}, {2, 0, 0}}),
                      "poslsh: hash weight is 0; it must be between 2^-1000 and 2^1000");
  const MeanMask mask(std::vector<PositionHash>(1));
  REQUIRE_THROWS_WITH(mask.dense(-1), "poslsh: n is -1; it must be between 0 and 2^24");
  REQUIRE_THROWS_WITH(mask.dense((Index{1} << 24) + 1),
                      "poslsh: n is 16777217; it must be between 0 and 2^24");
}

}  // namespace mean_mask_test
