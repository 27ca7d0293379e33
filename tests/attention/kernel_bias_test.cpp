// SPDX-License-Identifier: MIT

// Exact attention under a kernel of the distance.

#include "poslsh/attention/kernel_bias.hpp"

#include "poslsh/attention/attention.hpp"
#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random_matrix.hpp"

namespace kernel_bias_test {

using namespace poslsh;
using namespace poslsh::test;

namespace {

/// A kernel with what DistanceKernel asks for and no more: (exp(-x/3) + exp(-x/70)) / 2.
struct PlainMixture {
  LaplaceKernel near{3}, far{70};
  double operator()(double x) const { return (near(x) + far(x)) / 2; }
  double width_density(double w) const { return (near.width_density(w) + far.width_density(w)) / 2; }
  double width_tail(double w) const { return (near.width_tail(w) + far.width_tail(w)) / 2; }
  double width_quantile(double p) const { return far.width_quantile(p); }  // not asked for here
};
struct Halved : PlainMixture {
  double operator()(double x) const { return PlainMixture::operator()(x) / 2; }
};

static_assert(PositionBias<KernelBias<LaplaceKernel>> && detail::OffsetBias<KernelBias<PowerKernel>>);
static_assert(detail::BoundedTail<KernelBias<PlainMixture>>);

AttentionOptions random_options(Dice& dice, Index queries, Index keys) {
  AttentionOptions options;
  options.threads = dice.pick({1, 2});
  options.causal = dice.chance(0.5);
  if (dice.chance(0.3)) options.scale = dice.pick({0.0, 1.0, -0.3});
  if (dice.chance(0.5)) options.key_offset = dice.pick<Index>({-7, 1000, Index{1} << 40});
  if (dice.chance(0.5))
    options.query_offset = options.key_offset + dice.pick<Index>({-5, 0, keys - queries, keys + 40});
  if (dice.chance(0.3)) options.window_left = dice.below(300);
  if (dice.chance(0.3)) options.window_right = dice.below(300);
  if (dice.chance(0.3)) options.softcap = dice.pick({0.5, 30.0});
  if (dice.chance(0.3)) options.sink = dice.pick({-3.0, 2.0});
  return options;
}

/// The weights from their formula.
template <class LogKernel>
struct Formula {
  LogKernel log_kernel;
  KeyRange support(Index) const { return everywhere; }
  double log_weight(Index query, Index key) const {
    return log_kernel(std::abs(static_cast<double>(key - query)));
  }
};

template <class LogKernel>
Formula(LogKernel) -> Formula<LogKernel>;

/// Calls check with a bias of this kind and its formula.
template <class Check>
void with_kernel(int kind, Check&& check) {
  switch (kind) {
    case 0:
      return check(KernelBias{LaplaceKernel{20}}, Formula{[](double x) { return -x / 20; }});
    case 1:
      return check(KernelBias{PowerKernel{0.3, 1}}, Formula{[](double x) { return -std::log(1 + 0.3 * x); }});
    case 2:
      return check(KernelBias{PowerKernel{0.02, 4}},
                   Formula{[](double x) { return -4 * std::log(1 + 0.02 * x); }});
    default:
      return check(KernelBias{PlainMixture{}},
                   Formula{[](double x) { return std::log((std::exp(-x / 3) + std::exp(-x / 70)) / 2); }});
  }
}
constexpr int kernels = 4;

}  // namespace

TEMPLATE_LIST_TEST_CASE("Attention under a kernel is what its definition says", "", Scalars) {
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    Dice dice(seed);
    const Index queries = dice.below(300), keys = dice.below(500);
    const auto [q, k, v] = normal_inputs<TestType>(queries, keys, dice.pick<Index>({1, 16, 33}), 5, seed);
    const AttentionOptions options = random_options(dice, queries, keys);
    with_kernel(static_cast<int>(seed) % kernels,
                [&, &q = q, &k = k, &v = v](const auto& bias, const auto& formula) {
                  CAPTURE(seed, queries, keys);
                  REQUIRE(fault(attention(q, k, v, bias, options), q, k, v, formula, options, 20) == "");
                });
  }
}

TEST_CASE("A Laplace kernel of sigma is ALiBi of slope 1 / sigma") {
  for (const double sigma : {0.5, 16.0, 1024.0}) {
    const KernelBias<LaplaceKernel> kernel{{sigma}};
    const AlibiBias alibi{1 / sigma};
    for (const Index offset : {Index{0}, Index{1}, Index{-1}, Index{300}, Index{-4000}, Index{1} << 40}) {
      CAPTURE(sigma, offset);
      REQUIRE(kernel.log_weight_at(offset) == Approx(alibi.log_weight_at(offset)).epsilon(1e-15));
      REQUIRE(kernel.log_weight(7, 7 + offset) == kernel.log_weight_at(offset));
      if (offset != 0) REQUIRE(kernel.log_tail(offset) == Approx(alibi.log_tail(offset)).epsilon(1e-14));
    }
    const auto [q, k, v] = normal_inputs<double>(200, 300, 8, 4, 3);
    const AttentionOutput<double> a = attention(q, k, v, kernel), b = attention(q, k, v, alibi);
    REQUIRE(distance(a.values, b.values) < 1e-13);
    REQUIRE(distance(a.log_sum_exp, b.log_sum_exp) < 1e-12);
  }
}

TEST_CASE("The tail of a kernel's weights is bounded where their sum is finite, else infinite") {
  for (const auto& bias : {KernelBias{PowerKernel{0.3, 1.5}}, KernelBias{PowerKernel{2, 3}}})
    for (const Index offset : {1, 2, 50}) {
      double sum = 0;
      for (Index t = 0; t < 100'000; ++t) sum += std::exp(bias.log_weight_at(offset + t));
      CAPTURE(bias.kernel.exponent, offset);
      REQUIRE(std::exp(bias.log_tail(offset)) >= sum);
      REQUIRE(bias.log_tail(-offset) == bias.log_tail(offset));
      if (bias.kernel.exponent == 3) REQUIRE(std::exp(bias.log_tail(offset)) <= 1.7 * sum);
    }
  REQUIRE(KernelBias{PowerKernel{0.3, 1}}.log_tail(5) == infinity);
  REQUIRE(KernelBias{PlainMixture{}}.log_tail(5) == infinity);
}

TEMPLATE_LIST_TEST_CASE("A kernel's weights keep their ratios where the kernel underflows", "", Scalars) {
  // 10^9 tokens away, exp(-x/16) is 0 but its logarithm falls by 1/16 a token as ever.
  const Index gap = 1'000'000'000;
  const auto [q, k, v] = normal_inputs<TestType>(40, 200, 8, 4, 11);
  const KernelBias<LaplaceKernel> bias{{16}};
  REQUIRE(bias.kernel(static_cast<double>(gap)) == 0);
  const auto near = attention(q, k, v, bias, {.query_offset = 200});
  const auto far = attention(q, k, v, bias, {.query_offset = 200 + gap});
  REQUIRE(distance(near.values, far.values) < 1e-5);
  REQUIRE(far.log_sum_exp[3] == Approx(near.log_sum_exp[3] - gap / 16.0).epsilon(1e-12));
}

TEST_CASE("Keys under a kernel are left out within the tolerance only") {
  const auto [q, k, v] = normal_inputs<double>(600, 4000, 8, 3, 21);
  const double range = (v.colwise().maxCoeff() - v.colwise().minCoeff()).maxCoeff();
  const auto check = [&, &q = q, &k = k, &v = v](const auto& bias, double tolerance) {
    AttentionOutput<double> all = attention(q, k, v, bias, {.causal = true}), part = all;
    const Index visited = attention_into(q, k, v, bias, {.causal = true, .tolerance = tolerance}, part.values,
                                         part.log_sum_exp);
    REQUIRE(distance(part.values, all.values) <= tolerance * range + 1e-13);
    const Vector<double> missing = all.log_sum_exp - part.log_sum_exp;
    REQUIRE(missing.minCoeff() >= -1e-13);
    REQUIRE(missing.maxCoeff() <= std::log1p(tolerance) + 1e-13);
    return visited;
  };
  const Index everything = attention_into(q, k, v, NoBias{}, {.causal = true},
                                          Matrix<double>(q.rows(), v.cols()), Vector<double>(q.rows()));
  CHECK(2 * check(KernelBias{LaplaceKernel{16}}, 1e-6) < everything);
  CHECK(2 * check(KernelBias{PowerKernel{1, 4}}, 1e-2) < everything);
  check(KernelBias{PowerKernel{1, 1}}, 1e-2);
  check(KernelBias{PlainMixture{}}, 1e-2);
}

TEST_CASE(
    "The mean mask of a heavy-tailed kernel attends as its definition says, and tends to the kernel's "
    "attention") {
  const auto [q, k, v] = normal_inputs<double>(500, 500, 16, 4, 31);
  for (const PowerKernel kernel : {PowerKernel{1, 1}, PowerKernel{0.1, 1.5}, PowerKernel{1, 0.01}}) {
    const Matrix<double> exact = attention(q, k, v, KernelBias{kernel}, {.causal = true}).values;
    const auto error = [&, &q = q, &k = k, &v = v](Index samples) {
      const MeanMask mask(draw_hashes(kernel, samples, 5));
      const AttentionOutput<double> got = attention(q, k, v, mask, {.causal = true});
      REQUIRE(fault(got, q, k, v, MeanOfMasks{mask.hashes()}, {.causal = true}, 20) == "");
      return (got.values - exact).norm() / exact.norm();
    };
    const double few = error(16), many = error(1024);
    CAPTURE(kernel.scale, kernel.exponent, few, many);
    CHECK(many < 0.08);
    CHECK(many < few / 3);
  }
}

TEST_CASE("A kernel bias checks its kernel") {
  REQUIRE_NOTHROW(KernelBias{PowerKernel{2, 0.3}}.validate());
  REQUIRE_NOTHROW(KernelBias{PlainMixture{}}.validate());
  REQUIRE_THROWS_WITH(KernelBias{LaplaceKernel{-2}}.validate(),
                      "poslsh: sigma is -2; it must be positive and finite");
  REQUIRE_THROWS_WITH((KernelBias{PowerKernel{2, 0}}.validate()),
                      "poslsh: kernel exponent is 0; it must be positive and finite");
  REQUIRE_THROWS_WITH(KernelBias{Halved{}}.validate(), "poslsh: kernel(0) is 0.5; it must be 1");
  const Matrix<double> one = Matrix<double>::Ones(3, 2);
  REQUIRE_THROWS_AS(attention(one, one, one, KernelBias{LaplaceKernel{0}}), Error);
}

}  // namespace kernel_bias_test
