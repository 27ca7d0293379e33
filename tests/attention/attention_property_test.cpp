// SPDX-License-Identifier: MIT

// attention() against the definition, over random shapes, options and biases.

#include "poslsh/attention/attention.hpp"
#include "support/biases.hpp"
#include "support/catch.hpp"
#include "support/oracle.hpp"

namespace attention_property_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::attention;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::Index;
using poslsh::Matrix;
using poslsh::Vector;

namespace {

/// A number of tokens: small, around the sizes of tiles and register blocks, or anything up to 1000.
Index random_tokens(Dice& dice) {
  if (dice.chance(0.3)) return dice.below(1001);
  return dice.pick<Index>(
      {0, 1, 2, 3, 7, 8, 9, 15, 17, 47, 48, 49, 95, 96, 97, 191, 193, 383, 384, 385, 767, 769, 1000});
}

struct Shape {
  Index queries, keys, head_dim, value_dim;
};

/// The oracle's cost is bounded by drawing again.
Shape random_shape(Dice& dice) {
  const auto features = [&] { return dice.pick<Index>({1, 2, 3, 5, 15, 16, 17, 64, 80, 128, 300}); };
  for (;;) {
    const Shape shape{random_tokens(dice), random_tokens(dice), features(), features()};
    if (shape.queries * shape.keys * (shape.head_dim + shape.value_dim) < 6000000) return shape;
  }
}

AttentionOptions random_options(Dice& dice, const Shape& shape) {
  AttentionOptions options;
  options.threads = dice.pick({1, 1, 2, 3});
  options.causal = dice.chance(0.4);
  if (dice.chance(0.4)) options.scale = dice.pick({0.0, 0.05, 1.0, -0.3});
  if (dice.chance(0.5))
    options.key_offset =
        dice.pick<Index>({1, -7, 1000, Index{1} << 40, -(Index{1} << 40) + 3}) + dice.below(50);
  if (dice.chance(0.5))
    options.query_offset =
        options.key_offset + dice.pick<Index>({-shape.queries, -5, 0, 3, shape.keys / 2,
                                               shape.keys - shape.queries, shape.keys + 40});
  const auto window = [&] {
    return dice.pick<Index>({0, 1, 5, 100, 400, std::numeric_limits<Index>::max()});
  };
  if (dice.chance(0.3)) options.window_left = window();
  if (dice.chance(0.3)) options.window_right = window();
  if (dice.chance(0.3)) options.softcap = dice.pick({0.5, 2.0, 30.0});
  if (dice.chance(0.3)) options.sink = dice.pick({-infinity, -3.0, 0.0, 2.0, 50.0});
  return options;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("Attention is what its definition says, within twice the naive version's errors", "",
                   Scalars) {
  Index rows_without_keys = 0, ragged = 0;
  for (std::uint64_t seed = 0; seed < 360; ++seed) {
    Dice dice(seed);
    const Shape shape = random_shape(dice);
    const AttentionOptions options = random_options(dice, shape);
    const auto [q, k, v] =
        normal_inputs<TestType>(shape.queries, shape.keys, shape.head_dim, shape.value_dim, seed);
    with_bias(static_cast<int>(seed) % bias_kinds, dice,
              [&, &q = q, &k = k, &v = v](const auto& bias, const char* name) {
                const AttentionOutput<TestType> got = attention(q, k, v, bias, options);
                const std::string wrong = fault(got, q, k, v, bias, options);
                const Index empty = (got.log_sum_exp.array() == -infinity).count();
                rows_without_keys += empty;
                ragged += empty > 0 && empty < shape.queries;
                CAPTURE(seed, name, shape.queries, shape.keys, shape.head_dim, shape.value_dim,
                        options.causal);
                if (wrong != "") FAIL_CHECK(wrong);
              });
  }
  // The draws cover what they should: rows without keys, next to rows with keys.
  CHECK(rows_without_keys > 500);
  CHECK(ragged > 20);
}

TEMPLATE_LIST_TEST_CASE("A long sequence is what its definition says under every bias", "", Scalars) {
  const Index n = 1000;
  for (int kind = 0; kind < bias_kinds; ++kind) {
    Dice dice(static_cast<std::uint64_t>(kind) + 77);
    const auto [q, k, v] = normal_inputs<TestType>(n, n, 16, 8, 5);
    const AttentionOptions options{.causal = kind % 2 == 0, .key_offset = -400, .threads = 2};
    with_bias(kind, dice, [&, &q = q, &k = k, &v = v](const auto& bias, const char* name) {
      CAPTURE(name);
      REQUIRE(fault(attention(q, k, v, bias, options), q, k, v, bias, options) == "");
    });
  }
}

TEMPLATE_LIST_TEST_CASE("No tokens or features is legal", "", Scalars) {
  struct Empty {
    Index queries, keys, head_dim, value_dim;
  };
  for (const Empty& shape :
       {Empty{0, 0, 4, 3}, Empty{0, 7, 4, 3}, Empty{7, 0, 4, 3}, Empty{7, 5, 4, 0}, Empty{1, 1, 1, 1}})
    for (int kind = 0; kind < bias_kinds; ++kind) {
      Dice dice(3);
      const auto [q, k, v] =
          normal_inputs<TestType>(shape.queries, shape.keys, shape.head_dim, shape.value_dim, 2);
      with_bias(kind, dice, [&, &q = q, &k = k, &v = v](const auto& bias, const char* name) {
        CAPTURE(name, shape.queries, shape.keys);
        REQUIRE(fault(attention(q, k, v, bias, {.threads = 2}), q, k, v, bias) == "");
      });
    }
  // Without features every score is 0.
  const Matrix<TestType> none(4, 0), v = Matrix<TestType>::Identity(4, 4);
  const AttentionOutput<TestType> got = attention(none, none, v, poslsh::NoBias{});
  REQUIRE((got.values.array() == TestType(0.25)).all());
}

TEMPLATE_LIST_TEST_CASE("Keys far from the queries keep their relative weights", "", Scalars) {
  const Index gap = 1000000000, queries = 120, keys = 500;
  const auto [q, k, v] = normal_inputs<TestType>(queries, keys, 8, 4, 11);
  const poslsh::AlibiBias bias{0.5, 0.25};
  const double unit = 40 * static_cast<double>(std::numeric_limits<TestType>::epsilon());
  for (const bool behind : {true, false})
    for (const Index key_offset : {Index{0}, Index{1} << 41}) {
      // A wider gap takes the same off every log weight, which is how the oracle sees it: without rounding.
      const Index near = behind ? keys : -queries;
      const double shift = -static_cast<double>(gap) * (behind ? bias.slope : bias.right_slope);
      auto exact = dense_attention<Wide<TestType>>(q, k, v, bias, {.query_offset = near});
      const auto naive = dense_attention<TestType>(q, k, v, bias, {.query_offset = near});
      AttentionOutput<TestType> got =
          attention(q, k, v, bias,
                    {.key_offset = key_offset, .query_offset = key_offset + near + (behind ? gap : -gap)});
      const Vector<double> expected = exact.log_sum_exp.template cast<double>().array() + shift;
      CAPTURE(behind, key_offset);
      REQUIRE(distance(got.log_sum_exp, expected) <= unit + 1e-15 * std::abs(shift));
      got.log_sum_exp = exact.log_sum_exp.template cast<double>();
      REQUIRE(fault(got, exact, naive) == "");
    }
}

TEMPLATE_LIST_TEST_CASE("Within a tolerance, errors stay below what was asked for", "", Scalars) {
  const auto [q, k, v] = normal_inputs<TestType>(700, 1800, 8, 3, 21);
  const double rounding = 50 * static_cast<double>(std::numeric_limits<TestType>::epsilon());
  // The bound is by the range of the values a row sees; that of all values is never smaller.
  const double range = static_cast<double>((v.colwise().maxCoeff() - v.colwise().minCoeff()).maxCoeff());
  bool left_out = false;
  for (const poslsh::AlibiBias& bias :
       {poslsh::AlibiBias{0.5}, poslsh::AlibiBias{0.02, 1}, poslsh::AlibiBias{0, 0.2}})
    for (const double tolerance : {1e-12, 1e-4, 0.1, 5.0})
      for (const AttentionOptions& base :
           {AttentionOptions{}, AttentionOptions{.causal = true}, AttentionOptions{.softcap = 1.5, .sink = 1},
            AttentionOptions{.scale = 2, .query_offset = 300, .window_left = 900}}) {
        AttentionOptions options = base;
        AttentionOutput<TestType> all = attention(q, k, v, bias, options), part = all;
        const Index visible = attention_into(q, k, v, bias, options, all.values, all.log_sum_exp);
        options.tolerance = tolerance;
        const Index visited = attention_into(q, k, v, bias, options, part.values, part.log_sum_exp);
        left_out = left_out || 2 * visited < visible;
        CAPTURE(bias.slope, bias.right_slope, tolerance, visible, visited);
        REQUIRE(visited <= visible + visible / 4);
        REQUIRE(distance(part.values, all.values) <= tolerance * range + rounding);
        const Vector<double> missing = all.log_sum_exp - part.log_sum_exp;
        REQUIRE(missing.minCoeff() >= -rounding);
        REQUIRE(missing.maxCoeff() <= std::log1p(tolerance) + rounding);
      }
  REQUIRE(left_out);
}

TEST_CASE("Long rows are summed tile by tile, more accurately than key by key") {
  const Inputs<float> x = normal_inputs<float>(96, 12000, 32, 16, 15);
  const AlibiBias bias{1.0 / 4096};
  const auto exact = dense_attention<double>(x.q, x.k, x.v, bias, {.causal = true});
  const auto naive = dense_attention<float>(x.q, x.k, x.v, bias, {.causal = true});
  const AttentionOutput<float> got = attention(x.q, x.k, x.v, bias, {.causal = true});
  REQUIRE(distance(got.values, exact.values) <= 0.5 * distance(naive.values, exact.values));
}

}  // namespace attention_property_test
