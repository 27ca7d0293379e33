// SPDX-License-Identifier: MIT

// The mean mask in one sweep against its definition.

#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random_matrix.hpp"

#include <poslsh/poslsh.hpp>

namespace mean_mask_rows_test {

using namespace poslsh;
using namespace poslsh::test;

namespace {

/// In double a weight is a sum of up to s terms, in an order of its own: 1e-12 covers 20000 of them.
void require_close(const Inputs<double>& x, const MeanMask& mask, const AttentionOptions& options) {
  const AttentionOutput<double> out = attention(x.q, x.k, x.v, mask, options);
  const DenseOutput<long double> exact = dense_attention<long double>(x.q, x.k, x.v, mask, options);
  REQUIRE(distance(out.values, exact.values) <= 1e-12);
  REQUIRE(distance(out.log_sum_exp, exact.log_sum_exp) <= 1e-12);
}

}  // namespace

TEST_CASE("One sweep equals the dense mean mask for any draws, shapes and offsets") {
  Dice dice(3);
  for (int round = 0; round < 150; ++round) {
    const Index queries = 1 + dice.below(300), keys = 1 + dice.below(900), samples = dice.pick<Index>({1, 2, 7, 32, 129, 600});
    const double sigma = dice.pick({0.01, 1.0, 4.0, 30.0, 200.0});
    const Sampling sampling = dice.pick({Sampling::independent, Sampling::stratified, Sampling::importance});
    const MeanMask mask(draw_hashes(LaplaceKernel{sigma}, samples, 50 + static_cast<std::uint64_t>(round), sampling));
    AttentionOptions options{.causal = dice.chance(0.5)};
    if (dice.chance(0.4)) options.key_offset = dice.pick<Index>({Index{1} << 40, -(Index{1} << 40), -777});
    if (dice.chance(0.3)) options.query_offset = options.key_offset + dice.below(keys + 200) - 100;
    if (dice.chance(0.3)) options.window_left = dice.below(300);
    if (dice.chance(0.3)) options.softcap = 3;
    options.threads = dice.pick({1, 2});
    CAPTURE(round, queries, keys, samples, sigma, options.causal);
    const Inputs<double> x = normal_inputs<double>(queries, keys, 6, 5, 200 + static_cast<std::uint64_t>(round));
    require_close(x, mask, options);
    const Inputs<float> y{x.q.cast<float>(), x.k.cast<float>(), x.v.cast<float>()};
    REQUIRE(fault(attention(y.q, y.k, y.v, mask, options), y.q, y.k, y.v, mask, options) == "");
  }
}

TEST_CASE("Small far weights keep their relative accuracy in float") {
  // The far key's block weighs 1e-12 of the others; its score is as much higher.
  const MeanMask mask({{1, 0, 1}, {4000, 0, 1e-12}, {8, 0, 3}});
  const Index n = 1000;
  Matrix<float> q = Matrix<float>::Ones(1, 1), k = Matrix<float>::Zero(n, 1), v = Matrix<float>::Zero(n, 1);
  k(0, 0) = 27.631021f;  // log 1e12
  v(0, 0) = 1;
  const AttentionOutput<float> out = attention(q, k, v, mask, {.scale = 1});
  // Key 0 weighs 1e-12 * 1e12, its own block's eight keys 3, the query itself 1 more, the rest 1e-12 each.
  REQUIRE(out.values(0, 0) == Approx(1.0 / (1 + 3 * 8 + 1)).epsilon(1e-5));
}

TEST_CASE("Weights that span more than a float do not overflow it") {
  const MeanMask mask({{1, 0, 1e-200}, {50, 0, 1e200}, {400, 0, 1}});
  const Inputs<float> x = normal_inputs<float>(200, 200, 4, 3, 1);
  const AttentionOutput<float> out = attention(x.q, x.k, x.v, mask);
  REQUIRE(out.values.allFinite());
  REQUIRE(fault(out, x.q, x.k, x.v, mask) == "");
}

TEST_CASE("Many draws cost what their distinct edges cost") {
  // 20000 draws: quadratic bookkeeping would take minutes.
  const MeanMask mask(draw_hashes(LaplaceKernel{8}, 20000, 1));
  const Inputs<double> x = normal_inputs<double>(300, 300, 4, 3, 2);
  require_close(x, mask, {.causal = true});
}

}  // namespace mean_mask_rows_test
