// SPDX-License-Identifier: MIT

// Tiles left out within the tolerance: never more mass than promised, whatever the data, and really left out.

#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random_matrix.hpp"

#include <poslsh/poslsh.hpp>

#include <functional>
#include <map>

namespace skipping_test {

using namespace poslsh;
using namespace poslsh::test;

namespace {

/// Inputs that try to break a bound.
const std::map<std::string, std::function<void(Inputs<double>&)>> adversaries = {
    {"unit normal", [](Inputs<double>&) {}},
    {"a huge key far away", [](Inputs<double>& x) { x.k.row(3) *= 40; }},
    {"one outlier token in the middle", [](Inputs<double>& x) { x.k.row(x.k.rows() / 2) *= 40; }},
    {"equal keys", [](Inputs<double>& x) { x.k.rowwise() = x.k.row(0).eval(); }},
    {"norms that grow", [](Inputs<double>& x) {
       for (Index i = 0; i < x.k.rows(); ++i) x.k.row(i) *= 6.0 * static_cast<double>(i) / static_cast<double>(x.k.rows());
     }},
    {"norms that fall", [](Inputs<double>& x) {
       for (Index i = 0; i < x.k.rows(); ++i)
         x.k.row(i) *= 6.0 * (1 - static_cast<double>(i) / static_cast<double>(x.k.rows()));
     }},
    {"the largest score visited last", [](Inputs<double>& x) {
       x.q.rowwise() = x.q.row(0).eval();
       x.k.row(0) = 30 * x.q.row(0) / x.q.row(0).norm();
     }},
    {"keys far from 0 in one direction", [](Inputs<double>& x) { x.k.rowwise() += 10 * x.k.row(1).eval(); }},
    {"keys of zero", [](Inputs<double>& x) { x.k.setZero(); }},
    {"a value of 1e8 at the far end", [](Inputs<double>& x) { x.v(0, 0) = 1e8; }},
};

/// What the contract promises about a result with skipped tiles, or what of it is broken.
std::string broken_promise(const Inputs<double>& x, const AlibiBias& bias, AttentionOptions options) {
  const double tolerance = options.tolerance;
  const AttentionOutput<double> skipped = attention(x.q, x.k, x.v, bias, options);
  options.tolerance = 0;
  const AttentionOutput<double> full = attention(x.q, x.k, x.v, bias, options);
  const auto visible = visible_pairs(x.q.rows(), x.k.rows(), bias, options);
  for (Index i = 0; i < x.q.rows(); ++i) {
    if (full.log_sum_exp[i] == -infinity) {
      if (skipped.log_sum_exp[i] != -infinity) return "an empty row is not empty";
      continue;
    }
    const double rise = full.log_sum_exp[i] - skipped.log_sum_exp[i];
    if (!(rise <= std::log1p(tolerance) + 1e-12 && rise >= -1e-12)) return "row " + std::to_string(i) + ": lse off by " + std::to_string(rise);
    for (Index f = 0; f < x.v.cols(); ++f) {
      double low = infinity, high = -infinity;
      for (Index j = 0; j < x.k.rows(); ++j)
        if (visible(i, j)) low = std::min(low, x.v(j, f)), high = std::max(high, x.v(j, f));
      const double error = std::abs(skipped.values(i, f) - full.values(i, f));
      const double rounding = 1e-13 * std::max(std::abs(low), std::abs(high));
      if (!(error <= tolerance * (high - low) + rounding))
        return "row " + std::to_string(i) + " errs by " + std::to_string(error / (high - low)) + " of the range";
    }
  }
  return "";
}

Index visited(const Inputs<double>& x, const AlibiBias& bias, const AttentionOptions& options) {
  Matrix<double> values(x.q.rows(), x.v.cols());
  Vector<double> log_sum_exp(x.q.rows());
  return attention_into(x.q, x.k, x.v, bias, options, values, log_sum_exp);
}

}  // namespace

TEST_CASE("Skipped mass stays within the tolerance on adversarial data") {
  for (const auto& [name, spoil] : adversaries)
    for (const double slope : {0.5, 0.05, 0.01})
      for (const double tolerance : {0.3, 1e-3, 1e-8})
        for (const bool causal : {true, false}) {
          Inputs<double> x = normal_inputs<double>(500, 700, 8, 3, 5);
          spoil(x);
          CAPTURE(name, slope, tolerance, causal);
          const std::string wrong = broken_promise(x, {slope}, {.causal = causal, .tolerance = tolerance});
          REQUIRE(wrong.empty());
        }
}

TEST_CASE("Skipped mass stays within the tolerance under every option") {
  Dice dice(8);
  for (int round = 0; round < 120; ++round) {
    const Index queries = 1 + dice.below(400), keys = 1 + dice.below(700);
    Inputs<double> x = normal_inputs<double>(queries, keys, dice.pick<Index>({1, 5, 16, 33}), 2, 100 + static_cast<std::uint64_t>(round));
    std::next(adversaries.begin(), dice.below(static_cast<Index>(adversaries.size())))->second(x);
    AttentionOptions options{.causal = dice.chance(0.5), .tolerance = dice.pick({0.1, 1e-4, 1e-7})};
    if (dice.chance(0.3)) options.key_offset = Index{1} << 40;
    if (dice.chance(0.3)) options.query_offset = options.key_offset + dice.below(900) - 100;
    if (dice.chance(0.3)) options.window_left = dice.below(500);
    if (dice.chance(0.3)) options.window_right = dice.below(500);
    if (dice.chance(0.3)) options.softcap = dice.pick({2.0, 30.0});
    if (dice.chance(0.2)) options.scale = dice.pick({0.0, 1.0, -0.7});
    options.threads = dice.pick({1, 3});
    const AlibiBias bias{dice.pick({1.0, 0.3, 0.03, 0.0}), dice.pick({1.0, 0.1, 0.0, -0.01})};
    CAPTURE(round, queries, keys, bias.slope, bias.right_slope, options.tolerance);
    const std::string wrong = broken_promise(x, bias, options);
    REQUIRE(wrong.empty());
  }
}

TEST_CASE("Far tiles are left out, and a heavy token far away costs its own group only") {
  Inputs<double> x = normal_inputs<double>(4000, 4000, 16, 4, 6);
  const AttentionOptions full{.causal = true}, skip{.causal = true, .tolerance = 1e-6};
  const Index all = visited(x, {0.5}, full), near = visited(x, {0.5}, skip);
  REQUIRE(near * 10 < all);
  x.k.row(5) *= 1000;  // too heavy for most rows to leave out, with 3900 keys between
  const Index with_sink = visited(x, {0.5}, skip);
  REQUIRE(with_sink > near);
  REQUIRE(with_sink * 5 < all);
}

TEST_CASE("Keys are left out from some 30 sigma on, however narrow the groups are beside sigma") {
  // Where each group took what it could get of the tolerance, the last ones had nothing left to take.
  const Inputs<double> x = normal_inputs<double>(192, 16384, 64, 4, 6);
  for (const double sigma : {16.0, 64.0, 128.0, 256.0, 340.0, 400.0, 500.0}) {
    const Index keys = visited(x, {1 / sigma}, {.causal = true, .tolerance = 0x1p-24}) / 192;
    CAPTURE(sigma, keys);
    REQUIRE(static_cast<double>(keys) <= 30 * sigma + 150);
  }
}

TEST_CASE("A bias that does not decay visits every key") {
  const Inputs<double> x = normal_inputs<double>(300, 900, 8, 2, 7);
  for (const AlibiBias bias : {AlibiBias{0}, AlibiBias{-0.001}, AlibiBias{0, -0.001}})
    REQUIRE(visited(x, bias, {.causal = false, .tolerance = 1e-4}) >= 300 * 900);
}

TEST_CASE("A bound that is not finite forces a visit") {
  Inputs<double> x = normal_inputs<double>(600, 600, 8, 2, 9);
  x.k(2, 3) = not_a_number;
  const AttentionOutput<double> skipped = attention(x.q, x.k, x.v, AlibiBias{2}, {.causal = true, .tolerance = 1e-3});
  for (Index i = 2; i < 600; ++i) REQUIRE(std::isnan(skipped.values(i, 0)));
  for (Index i = 0; i < 2; ++i) REQUIRE(std::isfinite(skipped.values(i, 0)));
}

TEST_CASE("Skipped tiles in float agree with the full sweep, for any number of threads") {
  const Inputs<float> x = normal_inputs<float>(3000, 3000, 64, 64, 10);
  for (const double slope : {0.5, 1.0 / 64}) {
    const AttentionOutput<float> full = attention(x.q, x.k, x.v, AlibiBias{slope}, {.causal = true});
    const AttentionOutput<float> one =
        attention(x.q, x.k, x.v, AlibiBias{slope}, {.causal = true, .tolerance = 0x1p-24});
    const AttentionOutput<float> three =
        attention(x.q, x.k, x.v, AlibiBias{slope}, {.causal = true, .tolerance = 0x1p-24, .threads = 3});
    REQUIRE((one.values - full.values).norm() <= 1e-6f * full.values.norm());
    REQUIRE(same_bits(one, three));
  }
}

}  // namespace skipping_test
