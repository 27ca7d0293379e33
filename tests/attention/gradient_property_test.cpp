// SPDX-License-Identifier: MIT

// Gradients over hundreds of random calls: linear in the derivative by the values, and blind to later tokens.

#include "poslsh/attention/blockwise_backward.hpp"
#include "support/catch.hpp"
#include "support/random_calls.hpp"
#include "support/random_gradients.hpp"

#include <type_traits>

namespace gradient_property_test {

using namespace poslsh::test;
using poslsh::attention_backward;
using poslsh::AttentionGradients;
using poslsh::AttentionOptions;
using poslsh::blockwise_attention_backward;
using poslsh::Index;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::Merge;

namespace {

/// Runs check(gradients) with each way to compute them, a function of inputs, derivative, bias and options.
template <class Bias, class Check>
void each_way_back(const Bias&, Check&& check) {
  check([](const auto& x, const auto& g, const Bias& bias, const AttentionOptions& options) {
    return attention_backward(x.q, x.k, x.v, attention(x.q, x.k, x.v, bias, options), g, bias, options);
  });
  if constexpr (std::is_same_v<Bias, MeanMask>)
    for (const Merge way : {Merge::ratio, Merge::mean})
      check([way](const auto& x, const auto& g, const Bias& bias, const AttentionOptions& options) {
        const auto forward = blockwise_attention(x.q, x.k, x.v, bias.hashes(), options, way);
        return blockwise_attention_backward(x.q, x.k, x.v, bias.hashes(), forward, g, options, way);
      });
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("Gradients are linear in the derivative by the values", "", Scalars) {
  Index slopes = 0, sinks = 0;
  each_call<TestType>(9000, 20000, [&](std::uint64_t seed, Dice& dice, const Call& call, const auto& x, const auto& bias) {
    AttentionOptions options = call.options;
    if (dice.chance(0.3)) options.tolerance = 0x1p-12;
    const Combination<TestType> sum(dice, call.queries, call.value_dim, seed);
    each_way_back(bias, [&](const auto& back) {
      const AttentionGradients<TestType> got = back(x, sum.whole, bias, options);
      const AttentionGradients<TestType> of_u = back(x, sum.u, bias, options), of_w = back(x, sum.w, bias, options);
      // By values that are all derived alike, dV holds the sums of the weights of each key.
      const Matrix<TestType> ones = Matrix<TestType>::Ones(call.queries, call.value_dim);
      const Matrix<TestType> masses = back(x, ones, bias, options).dv;
      const double mass = masses.size() == 0 ? 0 : static_cast<double>(masses.maxCoeff());
      const GradientSizes sizes = gradient_sizes(x, options, sum.size(), mass);
      // A sum over queries rounds once a query, up or down.
      const double units = 4 + std::sqrt(static_cast<double>(call.queries));
      const auto check = [&](const char* name, double error, double size) {
        const double needed = error / size / static_cast<double>(std::numeric_limits<TestType>::epsilon());
        CAPTURE(name, needed);
        REQUIRE((needed <= units || error == 0));
      };
      check("dq", distance(got.dq, sum.of(of_u.dq, of_w.dq)), sizes.q);
      check("dk", distance(got.dk, sum.of(of_u.dk, of_w.dk)), sizes.k);
      check("dv", distance(got.dv, sum.of(of_u.dv, of_w.dv)), sizes.v);
      check("dslope", std::abs(got.dslope - sum.of(of_u.dslope, of_w.dslope)), sizes.slope);
      check("dright_slope", std::abs(got.dright_slope - sum.of(of_u.dright_slope, of_w.dright_slope)), sizes.slope);
      check("dsink", std::abs(got.dsink - sum.of(of_u.dsink, of_w.dsink)), sizes.sink);
      slopes += got.dslope != 0 || got.dright_slope != 0;
      sinks += got.dsink != 0;
    });
  });
  CHECK(slopes > 15);
  CHECK(sinks > 30);
}

TEMPLATE_LIST_TEST_CASE("Under causality the gradient by a query does not change a bit with later tokens", "", Scalars) {
  Index rows = 0;
  each_call<TestType>(9500, 20000, [&](std::uint64_t seed, Dice& dice, const Call& call, const auto& x, const auto& bias) {
    AttentionOptions options = call.options;
    options.causal = true;
    const Matrix<TestType> g = normal_matrix<TestType>(call.queries, call.value_dim, seed, 3);
    const LaterTokens<TestType> later(dice, call, options, x, seed);
    Matrix<TestType> other_g = g;
    other_g.bottomRows(call.queries - later.kept_queries) *= later.size;
    CAPTURE(later.kept_queries, later.kept_keys, later.size);
    each_way_back(bias, [&](const auto& back) {
      const Matrix<TestType> before = back(x, g, bias, options).dq, after = back(later.changed, other_g, bias, options).dq;
      REQUIRE(same_numbers(after.topRows(later.kept_queries), before.topRows(later.kept_queries)));
    });
    rows += later.kept_keys > 0 ? later.kept_queries : 0;
  });
  CHECK(rows > 2000);
}

}  // namespace gradient_property_test
