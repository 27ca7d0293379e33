// SPDX-License-Identifier: MIT

// Gradients of attention() against central differences and the chain rule, over random shapes, options and biases.

#include "poslsh/attention/backward.hpp"
#include "poslsh/attention/kernel_bias.hpp"
#include "support/biases.hpp"
#include "support/catch.hpp"
#include "support/gradients.hpp"

#include <numbers>
#include <stdexcept>

namespace backward_test {

using namespace poslsh::test;
using Catch::Matchers::ContainsSubstring;
using poslsh::AlibiBias;
using poslsh::attention;
using poslsh::attention_backward;
using poslsh::AttentionGradients;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::FixedBlocks;
using poslsh::Index;
using poslsh::KernelBias;
using poslsh::KeyRange;
using poslsh::LaplaceKernel;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::NoBias;
using poslsh::PowerKernel;
using poslsh::Vector;

namespace {

constexpr int kinds = bias_kinds + 3;

/// As with_bias, with KernelBias and a bias that does not see the query's own position.
template <class Check>
void with_any_bias(int kind, Dice& dice, Check&& check) {
  if (kind < bias_kinds) return with_bias(kind, dice, check);
  if (kind == bias_kinds) return check(KernelBias{LaplaceKernel{dice.pick({0.5, 8.0, 100.0})}}, "KernelBias, Laplace");
  if (kind == bias_kinds + 1)
    return check(KernelBias{PowerKernel{dice.pick({0.1, 1.0}), dice.pick({0.5, 2.0})}}, "KernelBias, power");
  return check(PastBias{dice.pick({0.01, 0.5})}, "PastBias");
}

/// Inputs and the derivative by the values.
template <class T>
struct Problem : Inputs<T> {
  Matrix<T> g;
  Problem(Index queries, Index keys, Index head_dim, Index value_dim, std::uint64_t seed)
      : Inputs<T>(normal_inputs<T>(queries, keys, head_dim, value_dim, seed)),
        g(normal_matrix<T>(queries, value_dim, seed, 3)) {}

  template <class Bias>
  AttentionGradients<T> gradients(const Bias& bias, const AttentionOptions& options = {}) const {
    return attention_backward(this->q, this->k, this->v, attention(this->q, this->k, this->v, bias, options), g, bias,
                              options);
  }
  template <class Bias>
  DenseGradients<Wide<T>> exact(const Bias& bias, const AttentionOptions& options = {}) const {
    return dense_gradients<Wide<T>>(this->q, this->k, this->v, g, bias, options);
  }
  template <class Bias>
  std::string fault(const Bias& bias, const AttentionOptions& options = {}, double units = 8) const {
    return gradient_fault<T>(gradients(bias, options), exact(bias, options), std::is_same_v<Bias, AlibiBias>, units);
  }
};

AttentionOptions random_options(Dice& dice, Index queries, Index keys) {
  AttentionOptions options;
  options.threads = dice.pick({1, 1, 2, 3});
  options.causal = dice.chance(0.4);
  if (dice.chance(0.4)) options.scale = dice.pick({0.0, 0.05, 1.0, -0.3});
  if (dice.chance(0.4)) options.key_offset = dice.pick<Index>({1, -7, 1000, Index{1} << 40}) + dice.below(50);
  if (dice.chance(0.4))
    options.query_offset =
        options.key_offset + dice.pick<Index>({-queries, -5, 0, 3, keys / 2, keys - queries, keys + 4});
  const auto window = [&] { return dice.pick<Index>({0, 1, 5, 100, std::numeric_limits<Index>::max()}); };
  if (dice.chance(0.3)) options.window_left = window();
  if (dice.chance(0.3)) options.window_right = window();
  if (dice.chance(0.3)) options.softcap = dice.pick({0.5, 2.0, 30.0});
  if (dice.chance(0.3)) options.sink = dice.pick({-infinity, -3.0, 0.0, 2.0});
  return options;
}

/// Whether gradients hold nothing but zeros.
template <class T>
bool all_zero(const AttentionGradients<T>& gradients) {
  return (gradients.dq.array() == 0).all() && (gradients.dk.array() == 0).all() && (gradients.dv.array() == 0).all() &&
         gradients.dslope == 0 && gradients.dright_slope == 0 && gradients.dsink == 0;
}

}  // namespace

// --- Against other ways to compute them ----------------------------------------------------------------------

TEST_CASE("Gradients are those of central differences, for every bias and option") {
  Index options_seen[6] = {};
  for (std::uint64_t seed = 0; seed < 270; ++seed) {
    Dice dice(seed);
    const Index queries = 1 + dice.below(7), keys = 1 + dice.below(9);
    Problem<double> x(queries, keys, 1 + dice.below(4), 1 + dice.below(4), seed);
    AttentionOptions options = random_options(dice, queries, keys);
    with_any_bias(static_cast<int>(seed) % kinds, dice, [&](auto bias, const char* name) {
      const auto value = [&] {
        return dense_attention<long double>(x.q, x.k, x.v, bias, options)
            .values.cwiseProduct(x.g.template cast<long double>())
            .sum();
      };
      const AttentionGradients<double> got = x.gradients(bias, options);
      CAPTURE(seed, name, queries, keys, options.causal);
      REQUIRE(close_to(got.dq, central_differences(x.q, value)));
      REQUIRE(close_to(got.dk, central_differences(x.k, value)));
      REQUIRE(close_to(got.dv, central_differences(x.v, value)));
      if constexpr (std::is_same_v<decltype(bias), AlibiBias>) {
        REQUIRE(close_to(got.dslope, central_difference(bias.slope, value)));
        REQUIRE(close_to(got.dright_slope, central_difference(bias.right_slope, value)));
        options_seen[0] += got.dslope != 0;
        options_seen[1] += got.dright_slope != 0;
      } else {
        REQUIRE((got.dslope == 0 && got.dright_slope == 0));
      }
      if (options.sink && std::isfinite(*options.sink)) {
        REQUIRE(close_to(got.dsink, central_difference(*options.sink, value)));
        options_seen[2] += got.dsink != 0;
      } else {
        REQUIRE(got.dsink == 0);
      }
      options_seen[3] += options.softcap && *options.softcap < 1 && !got.dq.isZero();
      options_seen[4] += options.window_left && options.window_right;
      // The chain rule, which checks larger problems, agrees too.
      REQUIRE(x.fault(bias, options) == "");
    });
  }
  for (int i = 0; i < 5; ++i) {
    CAPTURE(i);
    CHECK(options_seen[i] > 5);
  }
}

TEMPLATE_LIST_TEST_CASE("Gradients are those of the chain rule in a wider type, across tiles", "", Scalars) {
  Index rows_without_keys = 0;
  for (std::uint64_t seed = 0; seed < 180; ++seed) {
    Dice dice(seed + 1000);
    const auto tokens = [&] {
      if (dice.chance(0.3)) return 1 + dice.below(600);
      return dice.pick<Index>({1, 5, 6, 7, 8, 47, 48, 49, 95, 96, 97, 191, 192, 193, 383, 385, 500});
    };
    const auto features = [&] { return dice.pick<Index>({1, 3, 16, 17, 48, 64, 80, 130}); };
    Index queries, keys, head_dim, value_dim;
    do {
      queries = tokens(), keys = tokens(), head_dim = features(), value_dim = features();
    } while (queries * keys * (head_dim + value_dim) > 3000000);
    const Problem<TestType> x(queries, keys, head_dim, value_dim, seed);
    const AttentionOptions options = random_options(dice, queries, keys);
    with_any_bias(static_cast<int>(seed) % kinds, dice, [&](const auto& bias, const char* name) {
      CAPTURE(seed, name, queries, keys, head_dim, value_dim, options.causal, options.key_offset);
      const std::string wrong = x.fault(bias, options);
      if (wrong != "") FAIL_CHECK(wrong);
      rows_without_keys += (attention(x.q, x.k, x.v, bias, options).log_sum_exp.array() == -infinity).count();
    });
  }
  CHECK(rows_without_keys > 200);
}

TEMPLATE_LIST_TEST_CASE("Gradients of a long sequence under every bias", "", Scalars) {
  for (int kind = 0; kind < kinds; ++kind) {
    Dice dice(static_cast<std::uint64_t>(kind) + 77);
    const Problem<TestType> x(1000, 1000, 16, 8, 5);
    const AttentionOptions options{.causal = kind % 2 == 0, .key_offset = -400, .threads = 2};
    with_any_bias(kind, dice, [&](const auto& bias, const char* name) {
      CAPTURE(name);
      REQUIRE(x.fault(bias, options) == "");
    });
  }
}

TEST_CASE("Float gradients are close to double ones") {
  const Problem<double> x(700, 900, 64, 32, 8);
  const Matrix<float> q = x.q.cast<float>(), k = x.k.cast<float>(), v = x.v.cast<float>(), g = x.g.cast<float>();
  for (const AttentionOptions& options :
       {AttentionOptions{}, AttentionOptions{.causal = true, .softcap = 3, .sink = 1}}) {
    const AlibiBias bias{0.05, 0.02};
    const AttentionGradients<double> wide = x.gradients(bias, options);
    const AttentionGradients<float> got = attention_backward(q, k, v, attention(q, k, v, bias, options), g, bias, options);
    const auto error = [](const Matrix<float>& a, const Matrix<double>& b) { return (a.cast<double>() - b).norm() / b.norm(); };
    REQUIRE(error(got.dq, wide.dq) < 2e-6);
    REQUIRE(error(got.dk, wide.dk) < 2e-6);
    REQUIRE(error(got.dv, wide.dv) < 1e-6);
    REQUIRE(got.dslope == Approx(wide.dslope).epsilon(1e-5));
    REQUIRE(got.dright_slope == Approx(wide.dright_slope).epsilon(1e-5));
    REQUIRE(got.dsink == Approx(wide.dsink).epsilon(1e-5));
  }
}

// --- Identities ----------------------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("Derivatives by the scores of a row sum to 0, or to the sink's share of the mean", "", Scalars) {
  Problem<TestType> x(150, 210, 8, 5, 31);
  x.k.col(3).setOnes();  // so that dq(i, 3) is the scale times the sum over the row
  const double unit = 100 * static_cast<double>(std::numeric_limits<TestType>::epsilon());
  for (const AttentionOptions& options :
       {AttentionOptions{.scale = 1}, AttentionOptions{.scale = 1, .causal = true, .sink = 2}}) {
    const AlibiBias bias{0.1};
    const AttentionOutput<TestType> forward = attention(x.q, x.k, x.v, bias, options);
    const AttentionGradients<TestType> got = x.gradients(bias, options);
    double d_sink = 0;
    for (Index i = 0; i < 150; ++i) {
      const double mean = static_cast<double>(forward.values.row(i).dot(x.g.row(i)));
      const double share = options.sink ? std::exp(*options.sink - forward.log_sum_exp[i]) : 0;
      REQUIRE(static_cast<double>(got.dq(i, 3)) == Approx(share * mean).margin(unit).epsilon(0));
      d_sink -= share * mean;
    }
    REQUIRE(got.dsink == Approx(d_sink).margin(unit));
  }
}

TEMPLATE_LIST_TEST_CASE("Without a bias, gradients move with the keys", "", Scalars) {
  const Problem<TestType> x(130, 300, 8, 5, 32);
  Eigen::PermutationMatrix<Eigen::Dynamic> shuffle(300);
  for (Index j = 0; j < 300; ++j) shuffle.indices()[j] = static_cast<int>((j * 7 + 5) % 300);
  Problem<TestType> y = x;
  y.k = shuffle * x.k;
  y.v = shuffle * x.v;
  const AttentionGradients<TestType> got = y.gradients(NoBias{}), plain = x.gradients(NoBias{});
  const double unit = 200 * static_cast<double>(std::numeric_limits<TestType>::epsilon());
  REQUIRE(distance(got.dq, plain.dq) < unit);
  REQUIRE(distance(got.dk, Matrix<TestType>(shuffle * plain.dk)) < unit);
  REQUIRE(distance(got.dv, Matrix<TestType>(shuffle * plain.dv)) < unit);
}

TEMPLATE_LIST_TEST_CASE("Gradients scale with the inputs, and do not depend on where positions start", "", Scalars) {
  const Problem<TestType> x(140, 300, 8, 5, 33);
  const AlibiBias bias{0.2, 0.1};
  const AttentionGradients<TestType> plain = x.gradients(bias, {.sink = 0.5});
  Problem<TestType> y = x;
  y.g *= 4;
  const AttentionGradients<TestType> larger = y.gradients(bias, {.sink = 0.5});
  REQUIRE(same_numbers(larger.dq, Matrix<TestType>(4 * plain.dq)));
  REQUIRE(same_numbers(larger.dk, Matrix<TestType>(4 * plain.dk)));
  REQUIRE(same_numbers(larger.dv, Matrix<TestType>(4 * plain.dv)));
  REQUIRE(larger.dslope == 4 * plain.dslope);
  REQUIRE(larger.dright_slope == 4 * plain.dright_slope);
  REQUIRE(larger.dsink == 4 * plain.dsink);
  y = x;
  y.q *= 2;
  y.k /= 2;  // the same scores
  const AttentionGradients<TestType> moved = y.gradients(bias, {.sink = 0.5});
  REQUIRE(same_numbers(moved.dq, Matrix<TestType>(plain.dq / 2)));
  REQUIRE(same_numbers(moved.dk, Matrix<TestType>(2 * plain.dk)));
  REQUIRE(same_numbers(moved.dv, plain.dv));
  REQUIRE(same_bits(plain, x.gradients(bias, {.key_offset = (Index{1} << 51) + 1, .sink = 0.5})));
}

TEMPLATE_LIST_TEST_CASE("Shards of the keys have the gradients of the whole, given the merged output", "", Scalars) {
  const Problem<TestType> x(150, 400, 8, 5, 34);
  const AlibiBias bias{0.05};
  const Index cut = 130;
  const AttentionOptions whole{.query_offset = 250, .sink = 1};
  AttentionOptions left{.query_offset = 250}, right{.key_offset = cut, .query_offset = 250, .sink = 1};
  const Matrix<TestType> k1 = x.k.topRows(cut), v1 = x.v.topRows(cut);
  const Matrix<TestType> k2 = x.k.bottomRows(400 - cut), v2 = x.v.bottomRows(400 - cut);
  for (const bool causal : {false, true}) {
    left.causal = right.causal = causal;
    AttentionOptions all = whole;
    all.causal = causal;
    const AttentionOutput<TestType> forward =
        merge(attention(x.q, k1, v1, bias, left), attention(x.q, k2, v2, bias, right));
    const AttentionGradients<TestType> a = attention_backward(x.q, k1, v1, forward, x.g, bias, left);
    const AttentionGradients<TestType> b = attention_backward(x.q, k2, v2, forward, x.g, bias, right);
    AttentionGradients<TestType> sum{a.dq + b.dq, Matrix<TestType>(400, 8), Matrix<TestType>(400, 5)};
    sum.dk << a.dk, b.dk;
    sum.dv << a.dv, b.dv;
    sum.dslope = a.dslope + b.dslope;
    sum.dright_slope = a.dright_slope + b.dright_slope;
    sum.dsink = a.dsink + b.dsink;
    REQUIRE(gradient_fault<TestType>(sum, x.exact(bias, all), true) == "");
  }
}

// --- Masks ---------------------------------------------------------------------------------------------------

namespace {

/// Whether gradients are NaN exactly where the chain rule over visible pairs is, and elsewhere what they are with 1 in
/// the place of the NaN.
template <class Bias>
std::string trace(const Problem<double>& clean, Matrix<double> Problem<double>::*input, Index row, Index column,
                  const Bias& bias, const AttentionOptions& options) {
  Problem<double> x = clean;
  (x.*input)(row, column) = 1;
  const AttentionGradients<double> without = x.gradients(bias, options);
  (x.*input)(row, column) = not_a_number;
  const AttentionGradients<double> got = x.gradients(bias, options);
  const DenseGradients<long double> expected = x.exact(bias, options);
  const auto compare = [](const Matrix<double>& a, const Matrix<double>& b, const Matrix<long double>& e,
                          const char* name) -> std::string {
    for (Index i = 0; i < a.rows(); ++i)
      for (Index j = 0; j < a.cols(); ++j) {
        const std::string place = std::string(name) + "(" + std::to_string(i) + ", " + std::to_string(j) + ")";
        if (std::isnan(a(i, j)) != std::isnan(e(i, j))) return place + (std::isnan(e(i, j)) ? " hides NaN" : " is NaN");
        if (!std::isnan(a(i, j)) && a(i, j) != b(i, j)) return place + " has changed";
      }
    return "";
  };
  return compare(got.dq, without.dq, expected.dq, "dq") + compare(got.dk, without.dk, expected.dk, "dk") +
         compare(got.dv, without.dv, expected.dv, "dv");
}

}  // namespace

TEST_CASE("NaN behind a mask leaves no trace, and one that is seen spoils only what it reaches") {
  const Index n = 230;
  const Problem<double> x(n, n, 5, 9, 41);
  const auto check = [&](const auto& bias, const AttentionOptions& options) {
    for (const Index row : {Index{0}, Index{3}, Index{100}, Index{194}, n - 1})
      for (auto input : {static_cast<Matrix<double> Problem<double>::*>(&Problem<double>::q),
                         static_cast<Matrix<double> Problem<double>::*>(&Problem<double>::k),
                         static_cast<Matrix<double> Problem<double>::*>(&Problem<double>::v), &Problem<double>::g}) {
        CAPTURE(row, options.causal);
        REQUIRE(trace(x, input, row, 2, bias, options) == "");
      }
  };
  check(AlibiBias{0.1}, {.causal = true});
  check(NoBias{}, {.window_left = 4, .window_right = 2});
  check(AlibiBias{0.1}, {.window_left = 0, .window_right = 0});
  check(FixedBlocks{10}, {});
  check(FixedBlocks{10}, {.causal = true, .softcap = 2});
  check(RaggedBias{}, {.window_left = 20});
  check(MeanMask(poslsh::draw_hashes(LaplaceKernel{3}, 8, 1)), {});
  check(NoBias{}, {.causal = true, .query_offset = -100});  // rows without keys among those with some
  check(AlibiBias{0.1}, {.causal = true, .query_offset = 150, .window_left = 30});
}

TEST_CASE("Keys behind a mask may hold anything, and get gradient 0") {
  Problem<float> x(100, 200, 7, 3, 42);
  const AttentionOptions options{.causal = true, .query_offset = 20};
  const AttentionGradients<float> clean = x.gradients(AlibiBias{0.3}, options);
  for (const double thing : {1e30, infinity, not_a_number}) {
    x.k.bottomRows(80).setConstant(static_cast<float>(thing));
    x.v.bottomRows(80).setConstant(static_cast<float>(-thing));
    const AttentionGradients<float> got = x.gradients(AlibiBias{0.3}, options);
    REQUIRE(same_bits(got, clean));
    REQUIRE((got.dk.bottomRows(80).array() == 0).all());
    REQUIRE((got.dv.bottomRows(80).array() == 0).all());
  }
}

TEMPLATE_LIST_TEST_CASE("case: fully masked", "", Scalars) {
  Problem<TestType> x(120, 90, 6, 4, 43);
  const AttentionOptions nothing{.causal = true, .query_offset = -120, .sink = 1};
  REQUIRE(all_zero(x.gradients(AlibiBias{0.5}, nothing)));
  x.q.setConstant(static_cast<TestType>(not_a_number));
  x.k.setConstant(static_cast<TestType>(not_a_number));
  x.g.setConstant(static_cast<TestType>(infinity));
  REQUIRE(all_zero(x.gradients(AlibiBias{0.5}, nothing)));
  REQUIRE(all_zero(x.gradients(RaggedBias{}, {.causal = true, .query_offset = -120})));

  // Rows without keys change nothing about the others.
  const Problem<TestType> y(120, 90, 6, 4, 44);
  const AttentionOptions some{.causal = true, .query_offset = -50};
  AttentionOptions rest = some;
  rest.query_offset = 0;
  const Index seeing = 70;
  const Matrix<TestType> q = y.q.bottomRows(seeing), g = y.g.bottomRows(seeing);
  const AttentionGradients<TestType> all = y.gradients(AlibiBias{0.5}, some);
  const AttentionGradients<TestType> alone = attention_backward(
      q, y.k, y.v, attention(q, y.k, y.v, AlibiBias{0.5}, rest), g, AlibiBias{0.5}, rest);
  REQUIRE((all.dq.topRows(50).array() == 0).all());
  const double unit = 50 * static_cast<double>(std::numeric_limits<TestType>::epsilon());
  REQUIRE(distance(all.dq.bottomRows(seeing), alone.dq) < unit);
  REQUIRE(distance(all.dk, alone.dk) < unit);
  REQUIRE(distance(all.dv, alone.dv) < unit);
}

// --- Cases from the field ------------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("case: gradients", "", Scalars) {
  const Matrix<TestType> zero = Matrix<TestType>::Zero(2, 3), v{{TestType(0)}, {TestType(1)}};
  const AlibiBias bias{std::numbers::ln2};
  const AttentionOutput<TestType> forward = attention(zero, zero, v, bias, {.causal = true});
  const double unit = std::is_same_v<TestType, float> ? 1e-5 : 1e-12;
  REQUIRE(static_cast<double>(forward.values(1, 0)) == Approx(2.0 / 3).epsilon(unit));
  const Matrix<TestType> last_row = v;
  const auto got = attention_backward(zero, zero, v, forward, last_row, bias, {.causal = true});
  REQUIRE(got.dslope == Approx(2.0 / 9).epsilon(unit));
  REQUIRE(got.dright_slope == 0);
}

TEST_CASE("case: gradients, grouped heads") {
  const Index n = 6, d = 3, heads = 4, group = 2;
  const std::vector<double> slopes = {0.25, 0.0625, 1.0 / 64, 1.0 / 256};
  for (const bool causal : {true, false}) {
    const AttentionOptions options{.causal = causal};
    for (Index key_head = 0; key_head < heads / group; ++key_head) {
      Matrix<double> k = normal_matrix<double>(n, d, 51, static_cast<std::uint64_t>(key_head));
      Matrix<double> v = normal_matrix<double>(n, d, 52, static_cast<std::uint64_t>(key_head));
      std::vector<Matrix<double>> q, g;
      std::vector<AlibiBias> biases;
      for (Index h = 0; h < group; ++h) {
        q.push_back(normal_matrix<double>(n, d, 53, static_cast<std::uint64_t>(key_head * group + h)));
        g.push_back(normal_matrix<double>(n, d, 54, static_cast<std::uint64_t>(key_head * group + h)));
        biases.push_back({slopes[static_cast<std::size_t>(key_head * group + h)]});
      }
      const auto value = [&] {
        long double sum = 0;
        for (std::size_t h = 0; h < q.size(); ++h)
          sum += dense_attention<long double>(q[h], k, v, biases[h], options).values.cwiseProduct(g[h].cast<long double>()).sum();
        return sum;
      };
      Matrix<double> dk = Matrix<double>::Zero(n, d), dv = dk;
      for (std::size_t h = 0; h < q.size(); ++h) {
        const auto got = attention_backward(q[h], k, v, attention(q[h], k, v, biases[h], options), g[h], biases[h], options);
        REQUIRE(close_to(got.dq, central_differences(q[h], value)));
        REQUIRE(close_to(got.dslope, central_difference(biases[h].slope, value)));
        REQUIRE(close_to(got.dright_slope, central_difference(biases[h].right_slope, value)));
        dk += got.dk;
        dv += got.dv;
      }
      REQUIRE(close_to(dk, central_differences(k, value)));
      REQUIRE(close_to(dv, central_differences(v, value)));
    }
  }
}

// --- Tolerance -----------------------------------------------------------------------------------------------

TEST_CASE("Weights left out of a row sum to at most the tolerance") {
  // With the identity for d_values, dV is P^T.
  const Index queries = 130, keys = 1100;
  for (const double slope : {0.5, 0.05, 0.01})
    for (const double tolerance : {0.3, 1e-3, 1e-8})
      for (const int data : {0, 1, 2, 3})
        for (const AttentionOptions& base : {AttentionOptions{.causal = true}, AttentionOptions{.query_offset = 400},
                                             AttentionOptions{.softcap = 2, .sink = 1}}) {
          Problem<double> x(queries, keys, 8, queries, 61);
          if (data == 1) x.k.row(3) *= 40;
          if (data == 2) x.k.rowwise() += 10 * x.k.row(1).eval();
          if (data == 3) x.k.setZero();
          x.g.setIdentity();
          AttentionOptions options = base;
          const AlibiBias bias{slope};
          const AttentionOutput<double> forward = attention(x.q, x.k, x.v, bias, options);
          options.tolerance = tolerance;
          const AttentionGradients<double> got = attention_backward(x.q, x.k, x.v, forward, x.g, bias, options);
          CAPTURE(slope, tolerance, data);
          const Vector<double> masses = got.dv.colwise().sum();
          for (Index i = 0; i < queries; ++i) {
            const double sink = options.sink ? std::exp(*options.sink - forward.log_sum_exp[i]) : 0;
            REQUIRE(masses[i] + sink >= 1 - tolerance - 1e-12);
            REQUIRE(masses[i] + sink <= 1 + 1e-12);
          }
        }
}

TEST_CASE("Far keys are left out, and a heavy one far away costs its own group only") {
  Problem<double> x(2000, 2000, 16, 4, 62);
  const AlibiBias bias{0.5};
  const auto touched = [&](double tolerance) {
    // dV is P^T, whose weights do not underflow: 0 is left out.
    Problem<double> y(1600, 1600, 1, 1600, 63);
    y.g.setIdentity();
    return (y.gradients(AlibiBias{0.5}, {.scale = 0, .causal = true, .tolerance = tolerance}).dv.array() != 0).count();
  };
  REQUIRE(touched(1e-6) * 5 < touched(0));

  x.k.row(5) *= 1000;
  const AttentionOptions full{.causal = true}, skip{.causal = true, .tolerance = 1e-9};
  const AttentionGradients<double> all = x.gradients(bias, full);
  const AttentionGradients<double> some =
      attention_backward(x.q, x.k, x.v, attention(x.q, x.k, x.v, bias, full), x.g, bias, skip);
  REQUIRE(distance(some.dv, all.dv) < 1e-6);
  REQUIRE(distance(some.dk, all.dk) < 1e-5);
  REQUIRE(distance(some.dq, all.dq) < 1e-3);
  REQUIRE(some.dslope == Approx(all.dslope).epsilon(1e-6));
}

TEST_CASE("A bound that is not finite forces a visit backwards") {
  Problem<double> x(600, 600, 8, 2, 64);
  x.k(2, 3) = not_a_number;
  const AttentionGradients<double> got = x.gradients(AlibiBias{2}, {.causal = true, .tolerance = 1e-3});
  for (Index i = 2; i < 600; ++i) REQUIRE(std::isnan(got.dq(i, 0)));
  for (Index i = 0; i < 2; ++i) REQUIRE(std::isfinite(got.dq(i, 0)));
}

// --- Threads, layouts, edges ---------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("The bits of gradients do not depend on the threads", "", Scalars) {
  const Problem<TestType> x(500, 900, 20, 16, 71);
  Dice dice(9);
  for (int kind = 0; kind < kinds; ++kind)
    with_any_bias(kind, dice, [&](const auto& bias, const char* name) {
      for (AttentionOptions options :
           {AttentionOptions{.sink = 0.5}, AttentionOptions{.causal = true},
            AttentionOptions{.query_offset = 200, .window_left = 300, .softcap = 3}, AttentionOptions{.tolerance = 1e-4}}) {
        const AttentionGradients<TestType> one = x.gradients(bias, options);
        for (const int threads : {2, 3}) {
          options.threads = threads;
          CAPTURE(name, threads, options.causal);
          REQUIRE(same_bits(x.gradients(bias, options), one));
        }
      }
    });
}

TEST_CASE("Inputs may lie anywhere, and be of narrower types") {
  const Problem<float> x(130, 220, 21, 13, 72);
  const AlibiBias bias{0.1};
  const AttentionOptions options{.causal = true};
  const AttentionOutput<float> forward = attention(x.q, x.k, x.v, bias, options);
  const AttentionGradients<float> packed = x.gradients(bias, options);
  using Columns = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic>;
  const Columns q = x.q, k = x.k, v = x.v, g = x.g;
  REQUIRE(same_bits(attention_backward(q, k, v, forward, g, bias, options), packed));
  Matrix<float> wide(220, 2 * 34 + 1);
  wide.leftCols(21) = x.k;
  wide.middleCols(21, 13) = x.v;
  REQUIRE(same_bits(attention_backward(x.q, wide.leftCols(21), wide.middleCols(21, 13), forward, x.g, bias, options), packed));
  REQUIRE(same_bits(attention_backward(x.q + Matrix<float>::Zero(130, 21), x.k, x.v, forward, 1 * x.g, bias, options), packed));

  const auto check = [&](const auto& k16, const auto& v16) {
    const Matrix<float> k32 = k16.template cast<float>(), v32 = v16.template cast<float>();
    const AttentionOutput<float> from16 = attention(x.q, k16, v16, bias, options);
    REQUIRE(same_bits(attention_backward(x.q, k16, v16, from16, x.g, bias, options),
                      attention_backward(x.q, k32, v32, attention(x.q, k32, v32, bias, options), x.g, bias, options)));
  };
  check(Matrix<Eigen::half>(x.k.cast<Eigen::half>()), Matrix<Eigen::half>(x.v.cast<Eigen::half>()));
  check(Matrix<Eigen::bfloat16>(x.k.cast<Eigen::bfloat16>()), Matrix<Eigen::bfloat16>(x.v.cast<Eigen::bfloat16>()));
}

TEMPLATE_LIST_TEST_CASE("Gradients without tokens or features are legal", "", Scalars) {
  struct Empty {
    Index queries, keys, head_dim, value_dim;
  };
  for (const Empty& shape : {Empty{0, 0, 4, 3}, Empty{0, 7, 4, 3}, Empty{7, 0, 4, 3}, Empty{7, 5, 4, 0},
                             Empty{7, 5, 0, 3}, Empty{1, 1, 1, 1}, Empty{0, 0, 0, 0}})
    for (int kind = 0; kind < kinds; ++kind) {
      Dice dice(3);
      with_any_bias(kind, dice, [&](const auto& bias, const char* name) {
        const Problem<TestType> x(shape.queries, shape.keys, shape.head_dim, shape.value_dim, 2);
        CAPTURE(name, shape.queries, shape.keys, shape.head_dim, shape.value_dim);
        const AttentionGradients<TestType> got = x.gradients(bias, {.sink = 1, .threads = 2});
        REQUIRE((got.dq.rows() == shape.queries && got.dq.cols() == shape.head_dim));
        REQUIRE((got.dk.rows() == shape.keys && got.dk.cols() == shape.head_dim));
        REQUIRE((got.dv.rows() == shape.keys && got.dv.cols() == shape.value_dim));
        if (shape.head_dim > 0) REQUIRE(x.fault(bias, {.sink = 1, .threads = 2}) == "");
        if (shape.queries == 0 || shape.keys == 0) REQUIRE(all_zero(got));
      });
    }
}

namespace {

/// The message of the Error that a call throws; "no error" if it throws none.
std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const poslsh::Error& error) {
    return error.what();
  }
  return "no error";
}

/// Fails in the midst of a sweep.
struct ThrowingBias : NoBias {
  static constexpr bool unit_weights = false;
  template <class T>
  void add_log_weights(Index query, Index, T*, Index) const {
    if (query == 500) throw std::runtime_error("500");
  }
};

}  // namespace

TEST_CASE("What does not belong together is an Error") {
  const Problem<float> x(5, 6, 3, 2, 81);
  const AttentionOutput<float> forward = attention(x.q, x.k, x.v, NoBias{});
  const auto fails = [&](const AttentionOutput<float>& output, const Matrix<float>& g, const auto& bias,
                         const AttentionOptions& options) {
    return message([&] { static_cast<void>(attention_backward(x.q, x.k, x.v, output, g, bias, options)); });
  };
  REQUIRE(fails(forward, x.g, NoBias{}, {}) == "no error");
  AttentionOutput<float> wrong = forward;
  wrong.values = Matrix<float>(4, 2);
  REQUIRE_THAT(fails(wrong, x.g, NoBias{}, {}), ContainsSubstring("rows of forward.values is 4; it must be"));
  wrong.values = Matrix<float>(5, 3);
  REQUIRE_THAT(fails(wrong, x.g, NoBias{}, {}), ContainsSubstring("columns of forward.values is 3; it must be"));
  wrong = forward;
  wrong.log_sum_exp = Vector<double>(6);
  REQUIRE_THAT(fails(wrong, x.g, NoBias{}, {}), ContainsSubstring("size of forward.log_sum_exp is 6; it must be"));
  REQUIRE_THAT(fails(forward, Matrix<float>(4, 2), NoBias{}, {}), ContainsSubstring("rows of d_values is 4; it must be"));
  REQUIRE_THAT(fails(forward, Matrix<float>(5, 1), NoBias{}, {}), ContainsSubstring("columns of d_values is 1; it must be"));
  REQUIRE_THAT(fails(forward, x.g, NoBias{}, {.softcap = -1}), ContainsSubstring("softcap is -1"));
  REQUIRE_THAT(fails(forward, x.g, NoBias{}, {.threads = 0}), ContainsSubstring("threads is 0"));
  REQUIRE_THAT(fails(forward, x.g, AlibiBias{infinity}, {}), ContainsSubstring("slope is inf"));
  REQUIRE_THAT(fails(forward, x.g, FixedBlocks{0}, {}), ContainsSubstring("size is 0"));
  const Matrix<float> k(6, 2), v(5, 2);
  REQUIRE_THAT(message([&] { static_cast<void>(attention_backward(x.q, k, x.v, forward, x.g, NoBias{})); }),
               ContainsSubstring("columns of k is 2"));
  REQUIRE_THAT(message([&] { static_cast<void>(attention_backward(x.q, x.k, v, forward, x.g, NoBias{})); }),
               ContainsSubstring("rows of v is 5"));
}

TEST_CASE("An exception of a bias reaches the caller, on any number of threads") {
  const Problem<float> x(1000, 1000, 3, 2, 82);
  const AttentionOutput<float> forward = attention(x.q, x.k, x.v, NoBias{});
  for (const int threads : {1, 2, 4})
    REQUIRE_THROWS_AS(attention_backward(x.q, x.k, x.v, forward, x.g, ThrowingBias{}, {.threads = threads}),
                      std::runtime_error);
}

}  // namespace backward_test
