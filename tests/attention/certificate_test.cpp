// SPDX-License-Identifier: MIT

// The certified error of each row: the formula, and that no row errs by more.

#include "poslsh/attention/certificate.hpp"

#include "poslsh/attention/attention.hpp"
#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random_matrix.hpp"

#include <vector>

namespace certificate_test {

using namespace poslsh;
using namespace poslsh::test;

namespace {

/// The formula, dense and in long double: scores must fit.
template <class T, class Bias>
Vector<double> definition(const Inputs<T>& x, const Bias& bias, const MeanMask& mask,
                          const AttentionOptions& options) {
  using Real = long double;
  Vector<double> bounds(x.q.rows());
  const Real scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(x.q.cols())));
  const MeanOfMasks mean{mask.hashes()};
  for (Index i = 0; i < x.q.rows(); ++i) {
    const Index query = first_query(options, x.q.rows(), x.k.rows()) + i;
    Real difference = 0, whole = options.sink ? std::exp(static_cast<Real>(*options.sink)) : 0, largest = 0;
    bool any = false;
    for (Index j = 0; j < x.k.rows(); ++j) {
      const Index key = options.key_offset + j;
      if (!sees(options, query, key)) continue;
      any = true;
      Real score = scale * x.q.row(i).template cast<Real>().dot(x.k.row(j).template cast<Real>());
      if (options.softcap) score = *options.softcap * std::tanh(score / *options.softcap);
      const Real exact = std::exp(static_cast<Real>(bias.log_weight(query, key)));
      const Real weight = std::exp(static_cast<Real>(mean.log_weight(query, key)));
      difference += std::abs(exact - weight) * std::exp(score);
      whole += exact * std::exp(score);
      for (Index f = 0; f < x.v.cols(); ++f)
        largest = (std::max)(largest, std::abs(static_cast<Real>(x.v(j, f))));
    }
    bounds[i] = any ? static_cast<double>(2 * largest * (difference / whole + options.tolerance)) : 0;
  }
  return bounds;
}

/// The largest distance of outputs from each other in each row.
template <class T>
Vector<double> row_errors(const Matrix<T>& a, const Matrix<T>& b) {
  if (a.cols() == 0) return Vector<double>::Zero(a.rows());
  return (a.template cast<double>() - b.template cast<double>()).cwiseAbs().rowwise().maxCoeff();
}

/// What attention and its certificate say of each other, or nothing.
template <class T, class Bias>
std::string broken_certificate(const Inputs<T>& x, const Bias& bias, const MeanMask& mask,
                               const AttentionOptions& options) {
  const Vector<double> bounds = output_error_certificate(x.q, x.k, x.v, bias, mask, options);
  const Vector<double> errors = row_errors(attention(x.q, x.k, x.v, bias, options).values,
                                           attention(x.q, x.k, x.v, mask, options).values);
  const double rounding = 200 * static_cast<double>(std::numeric_limits<T>::epsilon()) *
                          (x.v.size() > 0 ? static_cast<double>(x.v.cwiseAbs().maxCoeff()) : 0);
  for (Index i = 0; i < errors.size(); ++i)
    if (!(errors[i] <= bounds[i] + rounding))
      return "row " + std::to_string(i) + " errs by " + std::to_string(errors[i]) + ", certified " +
             std::to_string(bounds[i]);
  return "";
}

MeanMask random_mask(Dice& dice, double sigma) {
  return MeanMask(draw_hashes(
      LaplaceKernel{sigma}, dice.pick<Index>({1, 7, 64}), static_cast<std::uint64_t>(dice.below(1000)),
      dice.pick({Sampling::independent, Sampling::stratified, Sampling::importance, Sampling::mixture})));
}

struct Shape {
  Index queries, keys, head_dim, value_dim;
};

Shape random_shape(Dice& dice) {
  return {dice.pick<Index>({0, 1, 31, 32, 33, 100, 200}),
          dice.pick<Index>({0, 1, 50, 300, 511, 512, 513, 700}), dice.pick<Index>({1, 5, 16, 33}),
          dice.pick<Index>({0, 1, 4})};
}

AttentionOptions random_options(Dice& dice, const Shape& shape) {
  AttentionOptions options;
  options.threads = dice.pick({1, 2, 3});
  options.causal = dice.chance(0.5);
  if (dice.chance(0.4)) options.scale = dice.pick({0.0, 1.0, -0.3});
  if (dice.chance(0.4)) options.key_offset = dice.pick<Index>({-7, 1000, Index{1} << 40});
  if (dice.chance(0.4))
    options.query_offset =
        options.key_offset + dice.pick<Index>({-shape.queries, -5, 0, shape.keys / 2, shape.keys + 40});
  if (dice.chance(0.3)) options.window_left = dice.below(400);
  if (dice.chance(0.3)) options.window_right = dice.below(400);
  if (dice.chance(0.3)) options.softcap = dice.pick({0.5, 30.0});
  if (dice.chance(0.3)) options.sink = dice.pick({-infinity, -3.0, 0.0, 4.0});
  if (dice.chance(0.3)) options.tolerance = dice.pick({0.3, 1e-3, 1e-9});
  return options;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("The certificate is its formula under every option", "", Scalars) {
  Index empty = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    Dice dice(seed);
    const Shape shape = random_shape(dice);
    const AttentionOptions options = random_options(dice, shape);
    const double sigma = dice.pick({0.5, 6.0, 90.0});
    const MeanMask mask = random_mask(dice, sigma);
    const auto x = normal_inputs<TestType>(shape.queries, shape.keys, shape.head_dim, shape.value_dim, seed);
    const Vector<double> expected = definition(x, AlibiBias{1 / sigma}, mask, options);
    const Vector<double> got = output_error_certificate(x.q, x.k, x.v, 1 / sigma, mask, options);
    CAPTURE(seed, shape.queries, shape.keys, shape.head_dim, options.causal);
    REQUIRE(got.size() == shape.queries);
    for (Index i = 0; i < got.size(); ++i) {
      empty += expected[i] == 0;
      if (got[i] == expected[i]) continue;
      if (!(std::abs(got[i] / expected[i] - 1) < 1e-10))
        FAIL("row " << i << ": " << got[i] << ", not " << expected[i]);
    }
  }
  CHECK(empty > 100);
}

TEMPLATE_LIST_TEST_CASE("No row errs by more than its certificate", "", Scalars) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    Dice dice(seed);
    const Shape shape = random_shape(dice);
    const AttentionOptions options = random_options(dice, shape);
    const double sigma = dice.pick({0.5, 6.0, 90.0});
    const MeanMask mask = random_mask(dice, sigma);
    auto x = normal_inputs<TestType>(shape.queries, shape.keys, shape.head_dim, shape.value_dim, seed + 1000);
    x.q *= static_cast<TestType>(dice.pick({0.3, 1.0, 5.0}));
    CAPTURE(seed, shape.queries, shape.keys, shape.head_dim, options.causal, options.tolerance);
    REQUIRE(broken_certificate(x, AlibiBias{1 / sigma}, mask, options) == "");
  }
}

TEST_CASE("The certificate holds where the masks were drawn for another kernel altogether") {
  const auto x = normal_inputs<double>(200, 200, 8, 3, 4);
  const MeanMask mask(draw_hashes(LaplaceKernel{3}, 5, 1));
  REQUIRE(broken_certificate(x, AlibiBias{0.01}, mask, {}) == "");
  REQUIRE(broken_certificate(x, AlibiBias{2}, mask, {.causal = true}) == "");
  REQUIRE(broken_certificate(x, AlibiBias{0.1, -0.05}, mask, {}) == "");
  REQUIRE(broken_certificate(x, AlibiBias{0}, mask, {}) == "");
  REQUIRE(broken_certificate(x, KernelBias{PowerKernel{1, 0.5}}, mask, {}) == "");
}

TEST_CASE("The certificate of a heavy-tailed kernel is its formula, and holds") {
  const KernelBias<PowerKernel> bias{{0.5, 1}};
  const auto x = normal_inputs<double>(100, 600, 8, 3, 4);
  for (const Sampling sampling : {Sampling::independent, Sampling::mixture}) {
    const MeanMask mask(draw_hashes(bias.kernel, 64, 3, sampling));
    const Vector<double> expected = definition(x, bias, mask, {.causal = true});
    const Vector<double> got = output_error_certificate(x.q, x.k, x.v, bias, mask, {.causal = true});
    REQUIRE((got.array() / expected.array() - 1).abs().maxCoeff() < 1e-10);
    REQUIRE(broken_certificate(x, bias, mask, {.causal = true}) == "");
  }
}

TEST_CASE("Keys outside the support count in full") {
  // Two keys of equal scores, one outside: 2 v exp(-slope) / (1 + exp(-slope)), reached by values v and -v up
  // to a half.
  Inputs<double> x{Matrix<double>::Zero(1, 4), Matrix<double>::Zero(2, 4), Matrix<double>(2, 1)};
  x.v << 3, -3;
  const MeanMask alone(std::vector<PositionHash>{{1, 0}});
  const double far = std::exp(-0.5);
  const Vector<double> bounds = output_error_certificate(x.q, x.k, x.v, 0.5, alone);
  REQUIRE(bounds[0] == Approx(6 * far / (1 + far)).epsilon(1e-14));
  REQUIRE(broken_certificate(x, AlibiBias{0.5}, alone, {}) == "");
  // No visible key inside the support: Tt = 0.
  REQUIRE(output_error_certificate(x.q, x.k, x.v, 0.5, alone, {.query_offset = 5})[0] ==
          Approx(6).epsilon(1e-14));
}

TEST_CASE("More draws certify less error, down to what decides nothing") {
  const auto x = normal_inputs<double>(256, 256, 16, 4, 8);
  double previous = infinity;
  for (const Index samples : {16, 256, 4096}) {
    const MeanMask mask(draw_hashes(LaplaceKernel{8}, samples, 2));
    const double mean = output_error_certificate(x.q, x.k, x.v, 1.0 / 8, mask, {.causal = true}).mean();
    CAPTURE(samples, mean);
    REQUIRE(mean < previous / 2);
    previous = mean;
  }
  REQUIRE(previous < 0.2);
}

TEST_CASE("Scores at the limit of float and weights beyond that of double are certified") {
  auto x = normal_inputs<float>(40, 300, 8, 3, 5);
  const MeanMask mask(draw_hashes(LaplaceKernel{16}, 32, 2));
  const auto flat = output_error_certificate(x.q, x.k, x.v, 1.0 / 16, mask, {.scale = 0});
  // Equal scores of 1e37, negative or positive, leave the weights as they are.
  for (const float size : {1e37f, -1e37f}) {
    Matrix<float> q = Matrix<float>::Zero(40, 8), k = Matrix<float>::Zero(300, 8);
    q.col(0).setConstant(size);
    k.col(0).setOnes();
    const auto huge = output_error_certificate(q, k, x.v, 1.0 / 16, mask, {.scale = 1});
    REQUIRE(huge == flat);
    k(100, 0) = size > 0 ? 1.5f : 0.5f;  // one key of higher score: all that counts
    const auto one = output_error_certificate(q, k, x.v, 1.0 / 16, mask, {.scale = 1});
    for (Index i = 0; i < 40; ++i) {
      const double exact = std::exp(-static_cast<double>(260 + i - 100) / 16),
                   mean = mask.weight(260 + i, 100);
      REQUIRE(one[i] == Approx(2 * x.v.cwiseAbs().maxCoeff() * std::abs(exact - mean) / exact).epsilon(1e-6));
    }
  }
  // Scores of 1e75 in double.
  x.q *= 1e37f;
  x.k *= 5e37f;
  const auto bounds = output_error_certificate(x.q, x.k, x.v, 1.0 / 16, mask, {.scale = 1});
  REQUIRE(bounds.allFinite());
  // 10^9 tokens away L* is 0 in double, though not beside itself; no block reaches there: the bound is 2 max
  // |v|.
  const auto y = normal_inputs<float>(40, 300, 8, 3, 5);
  const auto far = output_error_certificate(y.q, y.k, y.v, 1.0 / 16, mask, {.query_offset = 1'000'000'000});
  REQUIRE((far.array() - 2 * static_cast<double>(y.v.cwiseAbs().maxCoeff())).abs().maxCoeff() < 1e-6);
  // One block of all positions does: L* is nothing beside it.
  const MeanMask all(std::vector<PositionHash>(1));
  REQUIRE((output_error_certificate(y.q, y.k, y.v, 1.0 / 16, all, {.query_offset = 1'000'000'000}).array() ==
           infinity)
              .all());
}

TEST_CASE("What a row may not see leaves no trace in its certificate, what it sees that is NaN does") {
  auto x = normal_inputs<double>(100, 100, 8, 3, 6);
  const MeanMask mask(draw_hashes(LaplaceKernel{16}, 32, 2));
  const Vector<double> clean = output_error_certificate(x.q, x.k, x.v, 1.0 / 16, mask, {.causal = true});
  x.k(60, 2) = not_a_number;
  x.v(80, 1) = infinity;
  x.v(90, 1) = not_a_number;
  const Vector<double> got = output_error_certificate(x.q, x.k, x.v, 1.0 / 16, mask, {.causal = true});
  for (Index i = 0; i < 100; ++i)
    if (i < 60)
      REQUIRE(got[i] == clean[i]);
    else
      REQUIRE(std::isnan(got[i]));
  x.k(60, 2) = 0;
  const Vector<double> values = output_error_certificate(x.q, x.k, x.v, 1.0 / 16, mask, {.causal = true});
  REQUIRE(values[79] < 100);
  REQUIRE(values[80] == infinity);
  REQUIRE(std::isnan(values[95]));
}

TEST_CASE("The certificate has the same bits for any number of threads and any expression") {
  const auto x = normal_inputs<float>(300, 700, 16, 4, 9);
  const MeanMask mask(draw_hashes(LaplaceKernel{16}, 32, 2));
  const AttentionOptions three{.causal = true, .threads = 3};
  const Vector<double> one = output_error_certificate(x.q, x.k, x.v, 0.0625, mask, {.causal = true});
  REQUIRE(same_numbers(output_error_certificate(x.q, x.k, x.v, 0.0625, mask, three), one));
  const Eigen::MatrixXf by_columns = x.k;
  REQUIRE(same_numbers(
      output_error_certificate(x.q * 1.0f, by_columns, x.v.block(0, 0, 700, 4), 0.0625, mask, three), one));
}

TEST_CASE("The certificate refuses what attention refuses") {
  const auto x = normal_inputs<double>(4, 6, 3, 2, 1);
  const MeanMask mask(std::vector<PositionHash>(1));
  const auto certify = [&](double slope, const AttentionOptions& options) {
    return output_error_certificate(x.q, x.k, x.v, slope, mask, options);
  };
  REQUIRE_NOTHROW(certify(1, {}));
  REQUIRE_THROWS_WITH(certify(infinity, {}), "poslsh: slope is inf; it must be finite, at least -2^64");
  REQUIRE_THROWS_WITH(certify(1, {.threads = 0}), "poslsh: threads is 0; it must be at least 1");
  REQUIRE_THROWS_WITH(certify(1, {.softcap = -1}), "poslsh: softcap is -1; it must be positive and finite");
  REQUIRE_THROWS_WITH(output_error_certificate(x.v, x.k, x.v, 1.0, mask),
                      "poslsh: columns of k is 3; it must be head_dim, the columns of q");
  REQUIRE_THROWS_WITH(output_error_certificate(x.q, x.k, x.q, 1.0, mask),
                      "poslsh: rows of v is 4; it must be tokens, the rows of k");
  REQUIRE_THROWS_WITH(output_error_certificate(x.q, x.k, x.v, KernelBias{LaplaceKernel{-1}}, mask),
                      "poslsh: sigma is -1; it must be positive and finite");
}

}  // namespace certificate_test
