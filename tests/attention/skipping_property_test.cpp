// SPDX-License-Identifier: MIT

// Tiles left out within a tolerance, over hundreds of random calls on inputs made against the bounds: what may be left out
// holds one end of the range of values, and what is promised holds in every row.

#include "poslsh/attention/kernel_bias.hpp"
#include "support/catch.hpp"
#include "support/random_calls.hpp"

#include <algorithm>

namespace skipping_property_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::attention;
using poslsh::attention_into;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::Index;
using poslsh::KernelBias;
using poslsh::LaplaceKernel;
using poslsh::Matrix;
using poslsh::PowerKernel;
using poslsh::Vector;

namespace {

constexpr int adversaries = 9;

/// Spoils inputs whose queries all look in one direction. Rows are counted from the first key; `last` is that of the last
/// query; log_weight(offset) is the bias.
template <class LogWeight>
void spoil(int kind, Inputs<double>& x, Dice& dice, double scale, double tolerance, Index last, const LogWeight& log_weight) {
  const Index keys = x.k.rows(), depth = x.k.cols();
  const Matrix<double> direction = x.q.row(0) / x.q.row(0).norm();
  const double length = dice.pick({0.5, 2.0});
  x.q = length * direction.replicate(x.q.rows(), 1) + 0.01 * x.q;
  const double to_score = std::abs(scale) < 1e-9 ? 0 : 1 / (scale * length);  // of a key along the direction
  const auto along = [&](Index key, double score) { x.k.row(key) = score * to_score * direction; };
  const auto penalty = [&](Index key) { return -log_weight(key - last); };
  switch (kind) {
    case 0:  // huge keys far away, aligned with the queries
      for (Index j = 0; j < keys / 3; ++j)
        if (dice.chance(0.1)) along(j, dice.pick({5.0, 30.0, 200.0}));
      break;
    case 1: {  // one far key whose score just beats its penalty, or just does not
      const Index key = dice.below(keys);
      along(key, penalty(key) + dice.pick({-6.0, -1.0, 0.0, 1.0, 6.0}));
      break;
    }
    case 2:  // two clusters in opposite directions
      for (Index j = 0; j < keys; ++j) x.k.row(j) = 0.1 * x.k.row(j) + (dice.chance(0.5) ? 8.0 : -8.0) * direction;
      break;
    case 3:  // norms sorted, the largest at one end
    case 4:
      for (Index j = 0; j < keys; ++j)
        x.k.row(j) *= 8 * static_cast<double>(kind == 3 ? j + 1 : keys - j) / static_cast<double>(keys);
      break;
    case 5:  // all scores equal
      x.k.rowwise() = x.k.row(0).eval();
      break;
    case 6:  // scores that make up for every weight: all keys matter alike
      for (Index j = 0; j < keys; ++j) along(j, penalty(j));
      break;
    case 7: {  // far groups of which each alone is well within the tolerance, all of them are not
      double near = 0;
      for (Index j = 0; j < keys; ++j) near += std::abs(j - last) < 96 ? std::exp(-penalty(j)) : 0;
      const double each = std::log(tolerance * near * dice.pick({0.1, 0.3, 0.45, 0.9}) / 96);
      // Bounds are those of 96 keys from a multiple on: with one score for all they are tight.
      for (Index j = 0; j < keys; ++j) along(j, std::abs(j - last) < 96 ? 0 : penalty(j < last ? j / 96 * 96 + 95 : j / 96 * 96) + each);
      break;
    }
    default:  // zeros, with a large key here and there
      x.k.setZero();
      for (Index j = 0; j < keys; ++j)
        if (dice.chance(0.02)) x.k.row(j).setConstant(6 / std::sqrt(static_cast<double>(depth)));
  }
}

/// What the contract promises of a result with tiles left out, or what of it is broken; `full` is without, in double.
template <class T, class Bias>
std::string broken_promise(const AttentionOutput<T>& part, const AttentionOutput<double>& full, const Inputs<T>& x,
                           const Bias& bias, const AttentionOptions& options) {
  const Rounding<T> rounding(x, options);
  const auto visible = visible_pairs(x.q.rows(), x.k.rows(), bias, options);
  for (Index i = 0; i < x.q.rows(); ++i) {
    const double lse = full.log_sum_exp[i], slack = rounding.of_log_sum_exp(lse);
    if (lse == -infinity) {
      if (part.log_sum_exp[i] != lse || !part.values.row(i).isZero(0)) return "an empty row is not empty";
      continue;
    }
    const double rise = lse - part.log_sum_exp[i];
    if (!(rise <= std::log1p(options.tolerance) + slack && rise >= -slack))
      return "row " + std::to_string(i) + ": log_sum_exp off by " + std::to_string(rise);
    for (Index f = 0; f < x.v.cols(); ++f) {
      double low = infinity, high = -infinity;
      for (Index j = 0; j < x.k.rows(); ++j)
        if (visible(i, j)) low = std::min(low, static_cast<double>(x.v(j, f))), high = std::max(high, static_cast<double>(x.v(j, f)));
      if (low > high) low = high = 0;
      if (options.sink) low = std::min(low, 0.0), high = std::max(high, 0.0);  // a sink's value is 0
      const double error = std::abs(static_cast<double>(part.values(i, f)) - full.values(i, f));
      if (!(error <= options.tolerance * (high - low) + rounding.of_values(lse)))
        return "row " + std::to_string(i) + " errs by " + std::to_string(error / (high - low) / options.tolerance) + " of the tolerance";
    }
  }
  return "";
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("Within any tolerance, on inputs made against the bounds, errors stay below what was asked for", "",
                   Scalars) {
  Index left_out[adversaries] = {}, calls[adversaries] = {};
  for (std::uint64_t seed = 0; seed < 360; ++seed) {
    Dice dice(seed + 8000);
    const int kind = static_cast<int>(seed) % adversaries;
    const bool many_groups = kind == 7;
    const Index queries = 1 + dice.below(many_groups ? 8 : 70), keys = many_groups ? 900 + dice.below(900) : 1 + dice.below(900);
    AttentionOptions options{.causal = dice.chance(0.5), .tolerance = std::exp2(-1 - static_cast<double>(dice.below(40)))};
    if (dice.chance(0.3)) options.scale = dice.pick({0.0, 1.0, -0.7});
    if (dice.chance(0.3)) options.key_offset = Index{1} << 40;
    if (dice.chance(0.3)) options.query_offset = options.key_offset + dice.below(keys + 100) - 50;
    if (dice.chance(0.2)) options.window_left = dice.below(500);
    if (dice.chance(0.2)) options.window_right = dice.below(500);
    if (dice.chance(0.2)) options.softcap = dice.pick({2.0, 30.0});
    if (dice.chance(0.2)) options.sink = dice.pick({-5.0, 1.0});
    Inputs<double> wide = normal_inputs<double>(queries, keys, dice.pick<Index>({1, 5, 16}), 3, seed);
    const Index last = first_query(options, queries, keys) + queries - 1 - options.key_offset;
    const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(wide.q.cols())));
    const auto check = [&](const auto& bias) {
      spoil(kind, wide, dice, scale, options.tolerance, last, [&](Index offset) { return bias.log_weight_at(offset); });
      // Near and far keys stand at the ends of the range of one value, so that what is left out counts in full.
      for (Index j = 0; j < keys; ++j) wide.v(j, 0) = std::abs(j - last) > keys / 4 ? 1 : -1;
      wide.v.col(1).setConstant(3);
      const Inputs<TestType> x{wide.q.cast<TestType>(), wide.k.cast<TestType>(), wide.v.cast<TestType>()};
      AttentionOptions all = options;
      all.tolerance = 0;
      AttentionOutput<TestType> got{Matrix<TestType>(queries, 3), Vector<double>(queries)};
      const Index visible = attention_into(x.q, x.k, x.v, bias, all, got.values, got.log_sum_exp);
      const Index visited = attention_into(x.q, x.k, x.v, bias, options, got.values, got.log_sum_exp);
      left_out[kind] += visited < visible;
      ++calls[kind];
      const AttentionOutput<double> full =
          attention(x.q.template cast<double>(), x.k.template cast<double>(), x.v.template cast<double>(), bias, all);
      CAPTURE(seed, kind, queries, keys, options.tolerance, options.causal, visible, visited);
      REQUIRE(broken_promise(got, full, x, bias, options) == "");
    };
    const double slope = many_groups ? 0.01 : dice.pick({1.0, 0.3, 0.05});
    switch (dice.below(4)) {
      case 0:
        check(KernelBias{LaplaceKernel{1 / slope}});
        break;
      case 1:
        check(KernelBias{PowerKernel{slope, dice.pick({2.0, 6.0})}});
        break;
      default:
        check(AlibiBias{slope, dice.pick({slope, 1.0, 0.1, 0.0})});
    }
  }
  for (int kind = 0; kind < adversaries; ++kind) {
    CAPTURE(kind);
    if (kind != 6) CHECK(5 * left_out[kind] > calls[kind]);
  }
}

TEMPLATE_LIST_TEST_CASE("A cap lifts scores far below 0, and far keys are left out by what it makes of them", "", Scalars) {
  Inputs<TestType> x = normal_inputs<TestType>(96, 1500, 1, 3, 1);
  x.q.setOnes();
  const Index near = 200;
  x.k.topRows(1500 - near).setConstant(-60);  // -2 under the cap
  x.k.bottomRows(near).setZero();
  x.v.col(0) << Matrix<TestType>::Ones(1500 - near, 1), -Matrix<TestType>::Ones(near, 1);
  const AlibiBias bias{0.02};
  const AttentionOptions all{.scale = 1, .causal = true, .softcap = 2};
  const AttentionOutput<double> full = attention(x.q.template cast<double>(), x.k.template cast<double>(), x.v.template cast<double>(), bias, all);
  for (const double tolerance : {0x1p-30, 0x1p-10, 0.1}) {
    AttentionOptions options = all;
    options.tolerance = tolerance;
    CAPTURE(tolerance);
    REQUIRE(broken_promise(attention(x.q, x.k, x.v, bias, options), full, x, bias, options) == "");
  }
}

}  // namespace skipping_property_test
