// SPDX-License-Identifier: MIT

// L* x and Mt x against the matrices themselves.

#include "poslsh/theory/operators.hpp"

#include "support/catch.hpp"
#include "support/random_matrix.hpp"

#include <limits>
#include <vector>

namespace operators_test {

using namespace poslsh;
using namespace poslsh::test;

namespace {

const std::vector<Index> sizes = {0, 1, 2, 3, 17, 100, 400};

/// y = W x by the definition; how far the result is off, in units of what rounding may do to a sum of such
/// terms.
template <class Weight>
double error(const Matrix<double>& got, const Matrix<double>& x, Weight weight) {
  double worst = 0;
  for (Index i = 0; i < x.rows(); ++i)
    for (Index c = 0; c < x.cols(); ++c) {
      long double sum = 0, size = 0;
      for (Index j = 0; j < x.rows(); ++j) {
        const long double term = static_cast<long double>(weight(i, j)) * x(j, c);
        sum += term;
        size += std::abs(term);
      }
      const double off = static_cast<double>(std::abs(got(i, c) - sum) / (size + 1e-300L));
      if (!(off <= worst)) worst = off;
    }
  return worst;
}

}  // namespace

TEST_CASE("L* x is the kernel's matrix times x, for any number of vectors") {
  for (const double sigma : {0.01, 1.0, 16.0, 1e6, 1e300})
    for (const Index n : sizes)
      for (const Index vectors : {0, 1, 2, 5}) {
        const Matrix<double> x = normal_matrix<double>(n, vectors, 3);
        const Matrix<double> got = theory::apply(LaplaceKernel{sigma}, x);
        CAPTURE(sigma, n, vectors);
        REQUIRE(got.rows() == n);
        REQUIRE(got.cols() == vectors);
        REQUIRE(error(got, x, [&](Index i, Index j) {
                  return std::exp(-std::abs(static_cast<long double>(i - j)) / sigma);
                }) < 1e-13);
      }
}

TEST_CASE("Mt x is the mean mask's matrix times x, from any first position on") {
  for (const Sampling sampling :
       {Sampling::independent, Sampling::stratified, Sampling::importance, Sampling::mixture})
    for (const double sigma : {0.3, 4.0, 100.0})
      for (const Index n : sizes)
        for (const Index vectors : {0, 1, 2, 5})
          for (const Index start : {Index{0}, Index{-31}, (Index{1} << 52) - 400}) {
            const MeanMask mask(draw_hashes(LaplaceKernel{sigma}, 6, 7, sampling));
            const Matrix<double> x = normal_matrix<double>(n, vectors, 4);
            const Matrix<double> got = theory::apply(mask, x, start);
            CAPTURE(static_cast<int>(sampling), sigma, n, vectors, start);
            REQUIRE(got.rows() == n);
            REQUIRE(got.cols() == vectors);
            REQUIRE(error(got, x, [&](Index i, Index j) { return mask.weight(start + i, start + j); }) <
                    1e-14);
          }
}

TEST_CASE("Mt x honours weights, blocks without end and positions of their own") {
  const MeanMask mask({{2, 0}, {4, 0, 3}, {0.5, 0, 2}, {}});
  Matrix<double> x(5, 1);
  x << 1, 10, 100, 1000, 10000;
  Matrix<double> expected(5, 1);
  expected << 11 + 3 * 1111 + 2 + 11111, 11 + 3 * 1111 + 20 + 11111, 1100 + 3 * 1111 + 200 + 11111,
      1100 + 3 * 1111 + 2000 + 11111, 10000 + 3 * 10000 + 20000 + 11111;
  REQUIRE(theory::apply(mask, x) == expected / 4);
  REQUIRE(theory::apply(mask, x, 1) != expected / 4);
  REQUIRE(theory::apply(mask, x, 4) == expected / 4);  // the bins repeat every four positions
}

TEST_CASE("The operators take any expression of doubles") {
  const Matrix<double> x = normal_matrix<double>(40, 3, 5);
  const MeanMask mask(draw_hashes(LaplaceKernel{4}, 6, 7));
  const Eigen::MatrixXd by_columns = x;
  const Vector<double> one = x.col(1);
  const auto check = [&](const auto& apply) {
    const Matrix<double> expected = apply(x);
    REQUIRE(apply(by_columns) == expected);
    REQUIRE(apply(x + Matrix<double>::Zero(40, 3)) == expected);
    REQUIRE(apply(x.middleCols(0, 3)) == expected);
    REQUIRE((apply(one) - expected.col(1)).norm() < 1e-13);
    REQUIRE((apply(x.transpose().row(1).transpose()) - expected.col(1)).norm() < 1e-13);
  };
  check([&](const auto& any) { return theory::apply(mask, any); });
  check([&](const auto& any) { return theory::apply(LaplaceKernel{4}, any); });
}

TEST_CASE("Far weights keep their accuracy: L* of a unit vector is the kernel") {
  const Index n = 3000;
  Vector<double> unit = Vector<double>::Zero(n);
  unit[0] = 1;
  const Matrix<double> column = theory::apply(LaplaceKernel{5}, unit);
  for (const Index distance : {0, 1, 100, 2999})
    REQUIRE(column(distance, 0) == Approx(std::exp(-static_cast<double>(distance) / 5)).epsilon(1e-12));
}

TEST_CASE("The operators refuse what is out of range") {
  const MeanMask mask(std::vector<PositionHash>(1));
  const Vector<double> x = Vector<double>::Ones(4);
  REQUIRE_THROWS_WITH(theory::apply(LaplaceKernel{0}, x),
                      "poslsh: sigma is 0; it must be positive and finite");
  REQUIRE_THROWS_WITH(
      theory::apply(mask, x, -(Index{1} << 52) - 1),
      "poslsh: start is -4503599627370497; it must be within +-2^52, the last row's position too");
  REQUIRE_THROWS_AS(theory::apply(mask, x, (Index{1} << 52) - 3), Error);
  REQUIRE_NOTHROW(theory::apply(mask, x, (Index{1} << 52) - 4));
}

}  // namespace operators_test
