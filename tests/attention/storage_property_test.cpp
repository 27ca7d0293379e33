// SPDX-License-Identifier: MIT

// Keys and values of 16 bits, over hundreds of random calls: the bits of the same numbers in float, and errors no larger
// than the rounding of the inputs explains.

#include "poslsh/attention/blockwise_backward.hpp"
#include "support/catch.hpp"
#include "support/gradients.hpp"
#include "support/random_calls.hpp"

#include <type_traits>

namespace storage_property_test {

using namespace poslsh::test;
using Eigen::bfloat16;
using Eigen::half;
using poslsh::AlibiBias;
using poslsh::attention;
using poslsh::attention_backward;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::blockwise_attention;
using poslsh::FixedBlocks;
using poslsh::Index;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::Merge;

namespace {

/// check(seed, dice, call, inputs, bias) for random calls under the biases that 16-bit kernels are compiled for.
template <class Check>
void each_stored_call(std::uint64_t first_seed, Index most_pairs, Check&& check) {
  for (std::uint64_t seed = first_seed; seed < first_seed + cases; ++seed) {
    Dice dice(seed);
    Call call = random_call(dice, most_pairs);
    if (dice.chance(0.3)) call.options.tolerance = 0x1p-10;
    Inputs<float> x = call.inputs<float>(seed);
    x.k *= dice.pick({1.0f, 1.0f, 3.0f, 1e-3f, 1e-6f});
    x.v *= dice.pick({1.0f, 1.0f, 100.0f, 1e-6f});
    CAPTURE(seed, call.queries, call.keys, call.head_dim, call.value_dim, call.options.causal, call.options.tolerance);
    if (seed % 3 == 0) check(seed, dice, call, x, AlibiBias{dice.pick({0.5, 0.02}), dice.pick({0.5, 0.1})});
    if (seed % 3 == 1) check(seed, dice, call, x, FixedBlocks{dice.pick<Index>({1, 7, 64, 1000})});
    if (seed % 3 == 2) check(seed, dice, call, x, MeanMask(random_hashes(dice)));
  }
}

/// Half of the distance between 1 and the next number; and the most that a rounded number below the normal ones errs by.
template <class S>
constexpr double unit_roundoff = std::is_same_v<S, half> ? 0x1p-11 : 0x1p-8;
template <class S>
constexpr double smallest_error = std::is_same_v<S, half> ? 0x1p-25 : 0x1p-134;

}  // namespace

TEMPLATE_TEST_CASE("Stored keys and values give the bits of the same numbers in float", "", half, bfloat16) {
  each_stored_call(11000, 20000, [](std::uint64_t seed, Dice& dice, const Call& call, const auto& x, const auto& bias) {
    const AttentionOptions& options = call.options;
    const Matrix<TestType> q = x.q.template cast<TestType>(), k = x.k.template cast<TestType>(), v = x.v.template cast<TestType>();
    const bool stored_queries = dice.chance(0.5);
    const Inputs<float> wide{stored_queries ? Matrix<float>(q.template cast<float>()) : x.q, k.template cast<float>(),
                             v.template cast<float>()};
    using Bias = std::decay_t<decltype(bias)>;
    const auto check = [&](const auto& queries) {
      const AttentionOutput<float> narrow = attention(queries, k, v, bias, options);
      const AttentionOutput<float> expected = attention(wide.q, wide.k, wide.v, bias, options);
      REQUIRE(same_bits(narrow, expected));
      if constexpr (std::is_same_v<Bias, MeanMask>)
        for (const Merge way : {Merge::ratio, Merge::mean})
          REQUIRE(same_bits(blockwise_attention(queries, k, v, bias.hashes(), options, way),
                            blockwise_attention(wide.q, wide.k, wide.v, bias.hashes(), options, way)));
      if constexpr (std::is_same_v<Bias, AlibiBias>) {
        const Matrix<float> g = normal_matrix<float>(call.queries, call.value_dim, seed, 3);
        REQUIRE(same_bits(attention_backward(queries, k, v, narrow, g, bias, options),
                          attention_backward(wide.q, wide.k, wide.v, expected, g, bias, options)));
      }
    };
    if (stored_queries)
      check(q);
    else
      check(x.q);
  });
}

TEMPLATE_TEST_CASE("Stored keys and values cost what their rounding explains, in every row", "", half, bfloat16) {
  // A stored number is x (1 + e) + s with |e| <= u, the unit roundoff, and |s| <= the smallest error. A score moves by at
  // most r = scale max_j sum_t |q_t| (u |k_jt| + s), caps only lessen that, a weight by a factor within exp(+-2 r), and
  //   |output error| <= (exp(2 r) - 1 + u) max |v| + s,   |error of log_sum_exp| <= r.
  const double u = unit_roundoff<TestType>, s = smallest_error<TestType>;
  Index rows = 0;
  each_stored_call(12000, 20000, [&](std::uint64_t, Dice&, const Call& call, const auto& x, const auto& bias) {
    AttentionOptions options = call.options;
    options.tolerance = 0;
    if (call.keys == 0) return;
    const AttentionOutput<float> got =
        attention(x.q, x.k.template cast<TestType>(), x.v.template cast<TestType>(), bias, options);
    const Matrix<double> q = x.q.template cast<double>(), k = x.k.template cast<double>(), v = x.v.template cast<double>();
    const AttentionOutput<double> exact = attention(q, k, v, bias, options);
    const Rounding<float> rounding(x, options);
    const double scale = std::abs(options.scale.value_or(1 / std::sqrt(static_cast<double>(call.head_dim))));
    const Matrix<double> shifts = q.cwiseAbs() * (k.cwiseAbs().array() * u + s).matrix().transpose();
    const double largest = v.cwiseAbs().maxCoeff();
    for (Index i = 0; i < call.queries; ++i) {
      const double r = scale * shifts.row(i).maxCoeff(), lse = exact.log_sum_exp[i];
      CAPTURE(i, r);
      REQUIRE(distance(got.values.row(i), exact.values.row(i)) <= (std::expm1(2 * r) + u) * largest + s + rounding.of_values(lse));
      REQUIRE(distance(got.log_sum_exp.segment(i, 1), exact.log_sum_exp.segment(i, 1)) <= r + rounding.of_log_sum_exp(lse));
      rows += lse > -infinity;
    }
  });
  CHECK(rows > 2000);
}

}  // namespace storage_property_test
