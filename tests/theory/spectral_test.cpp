// SPDX-License-Identifier: MIT

// Spectral norms without a matrix, against those of the matrix.

#if __has_include(<Spectra/SymEigsSolver.h>)

#include "poslsh/theory/spectral.hpp"

#include "poslsh/mask/block_mask.hpp"
#include "support/catch.hpp"

#include <Eigen/Eigenvalues>
#include <limits>
#include <vector>

namespace spectral_test {

using namespace poslsh;

namespace {

Matrix<double> kernel_matrix(double sigma, Index n) {
  Matrix<double> matrix(n, n);
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < n; ++j) matrix(i, j) = std::exp(-std::abs(static_cast<double>(i - j)) / sigma);
  return matrix;
}

/// Of all eigenvalues: the one of largest magnitude, with its sign.
double extreme_eigenvalue(const Matrix<double>& symmetric) {
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(symmetric, Eigen::EigenvaluesOnly);
  const double low = solver.eigenvalues().minCoeff(), high = solver.eigenvalues().maxCoeff();
  return -low > high ? low : high;
}
double norm(const Matrix<double>& symmetric) { return std::abs(extreme_eigenvalue(symmetric)); }

const std::vector<Index> sizes = {1, 2, 3, 10, 24, 25, 26, 60, 300};

}  // namespace

TEST_CASE("The kernel's norm in closed form is that of its matrix") {
  for (const double sigma : {0.01, 0.5, 2.0, 16.0, 1000.0, 1e9})
    for (const Index n : sizes) {
      CAPTURE(sigma, n);
      REQUIRE(theory::spectral_norm(LaplaceKernel{sigma}, n) ==
              Approx(norm(kernel_matrix(sigma, n))).epsilon(1e-13));
    }
}

TEST_CASE("The kernel's norm grows to coth(1 / (2 sigma)) with the length, and to the length with sigma") {
  REQUIRE(theory::spectral_norm(LaplaceKernel{16}, Index{1} << 40) ==
          Approx(1 / std::tanh(1.0 / 32)).epsilon(1e-13));
  REQUIRE(theory::spectral_norm(LaplaceKernel{1e300}, 1000) == Approx(1000).epsilon(1e-13));
  REQUIRE(theory::spectral_norm(LaplaceKernel{1e-300}, 1000) == Approx(1).epsilon(1e-15));
  double previous = 0;
  for (Index n = 1; n < 5000; n = 1 + 3 * n / 2) {
    const double norm = theory::spectral_norm(LaplaceKernel{40}, n);
    REQUIRE(norm > previous);
    REQUIRE(norm < 1 / std::tanh(1.0 / 80));
    previous = norm;
  }
}

TEST_CASE("The mean mask's norm and its error are those of the matrices") {
  for (const Sampling sampling :
       {Sampling::independent, Sampling::stratified, Sampling::importance, Sampling::mixture})
    for (const double sigma : {0.4, 5.0, 80.0})
      for (const Index samples : {1, 16})
        for (const Index n : sizes) {
          const LaplaceKernel kernel{sigma};
          const MeanMask mask(draw_hashes(kernel, samples, 11, sampling));
          const Matrix<double> mean = mask.dense(n), difference = kernel_matrix(sigma, n) - mean;
          CAPTURE(static_cast<int>(sampling), sigma, samples, n);
          REQUIRE(theory::spectral_norm(mask, n, 1e-7) == Approx(norm(mean)).epsilon(1e-7));
          REQUIRE(theory::spectral_error(kernel, mask, n, 1e-7) == Approx(norm(difference)).epsilon(1e-7));
          REQUIRE(theory::spectral_norm(difference, 1e-7) == Approx(norm(difference)).epsilon(1e-7));
          // The default, coarser: never above, and at most as far below as it says.
          const double error = theory::spectral_error(kernel, mask, n);
          REQUIRE(error <= norm(difference) * (1 + 1e-12));
          REQUIRE(error >= norm(difference) * (1 - 1e-3));
        }
}

TEST_CASE("The error's largest eigenvalue may be of either sign") {
  // One draw of narrow blocks lacks the kernel's far weights; one of a single block has too much everywhere.
  const LaplaceKernel kernel{20};
  const Index n = 200;
  const Matrix<double> exact = kernel_matrix(20, n);
  for (const PositionHash& hash : {PositionHash{2, 0.5}, PositionHash{}}) {
    const MeanMask mask(std::vector<PositionHash>{hash});
    const double extreme = extreme_eigenvalue(exact - mask.dense(n));
    REQUIRE((hash.width == 2) == (extreme > 0));
    REQUIRE(theory::spectral_error(kernel, mask, n, 1e-8) == Approx(std::abs(extreme)).epsilon(1e-8));
  }
}

TEST_CASE(
    "A mask of few different blocks, whose Krylov spaces close at once, has the norm of its largest block") {
  for (const Index n : {25, 40, 300, 5000})
    for (const PositionHash& hash : {PositionHash{1, 0}, PositionHash{4, 0}, PositionHash{2.5, 0.3},
                                     PositionHash{33, 7}, PositionHash{}}) {
      Index largest = 0;
      const BlockMask blocks(hash, n);
      for (const KeyRange& block : blocks.blocks()) largest = (std::max)(largest, block.size());
      const MeanMask mask(std::vector<PositionHash>{hash, hash});
      CAPTURE(n, hash.width);
      for (const double tolerance : {1e-2, 1e-4, 1e-9})
        REQUIRE(theory::spectral_norm(mask, n, tolerance) ==
                Approx(static_cast<double>(largest)).epsilon(tolerance));
      REQUIRE(theory::spectral_error(LaplaceKernel{1e-3}, mask, n) ==
              Approx(static_cast<double>(largest - 1)).epsilon(1e-8).margin(1e-12));
    }
}

TEST_CASE("A difference of zero has norm zero, and one position the difference of its weight") {
  const MeanMask alone(std::vector<PositionHash>{{1, 0}});
  for (const Index n : sizes) REQUIRE(theory::spectral_error(LaplaceKernel{1e-3}, alone, n) == 0);
  const MeanMask heavy(std::vector<PositionHash>{{5, 0, 3.5}});
  REQUIRE(theory::spectral_error(LaplaceKernel{4}, heavy, 1) == 2.5);
  REQUIRE(theory::spectral_norm(heavy, 1) == 3.5);
  REQUIRE(theory::spectral_norm(heavy, 2) == Approx(7).epsilon(1e-14));
  // [[1 - 3.5, k - 3.5], ...]: eigenvalues 1 + k - 7 and 1 - k.
  REQUIRE(theory::spectral_error(LaplaceKernel{4}, heavy, 2) == Approx(6 - std::exp(-0.25)).epsilon(1e-14));
}

TEST_CASE(
    "A long sequence agrees with itself: the error is within the sum of the norms, and repeats its bits") {
  const Index n = 50'000;
  const LaplaceKernel kernel{64};
  const MeanMask mask(draw_hashes(kernel, 16, 3));
  const double error = theory::spectral_error(kernel, mask, n), own = theory::spectral_norm(mask, n);
  const double exact = theory::spectral_norm(kernel, n);
  REQUIRE(std::abs(own - exact) <= error * (1 + 2e-3) + 1e-3 * own);
  REQUIRE(error > 0.05 * exact);
  REQUIRE(error < exact);
  REQUIRE(theory::spectral_error(kernel, mask, n) == error);
}

TEST_CASE("Spectral norms refuse bad input and say when they do not converge") {
  const MeanMask mask(draw_hashes(LaplaceKernel{5}, 8, 1));
  REQUIRE_THROWS_WITH(theory::spectral_norm(LaplaceKernel{5}, 0), "poslsh: n is 0; it must be at least 1");
  REQUIRE_THROWS_WITH(theory::spectral_norm(LaplaceKernel{-5}, 3),
                      "poslsh: sigma is -5; it must be positive and finite");
  REQUIRE_THROWS_WITH(theory::spectral_norm(mask, 0), "poslsh: n is 0; it must be at least 1");
  REQUIRE_THROWS_WITH(theory::spectral_error(LaplaceKernel{5}, mask, -2),
                      "poslsh: n is -2; it must be at least 1");
  REQUIRE_THROWS_WITH(theory::spectral_error(LaplaceKernel{0}, mask, 9),
                      "poslsh: sigma is 0; it must be positive and finite");
  REQUIRE_THROWS_WITH(theory::spectral_norm(Matrix<double>(2, 3)),
                      "poslsh: columns of the matrix is 3; it must be its rows");
  REQUIRE_THROWS_WITH(theory::spectral_norm(Matrix<double>(0, 0)), "poslsh: n is 0; it must be at least 1");
  for (const double wrong : {0.0, 1.0, -1.0, std::numeric_limits<double>::quiet_NaN()})
    REQUIRE_THROWS_WITH(theory::spectral_norm(mask, 30, wrong),
                        "poslsh: tolerance is " + detail::describe(wrong) + "; it must be inside (0, 1)");
  // A spectrum so dense at its end that one restart cannot tell its eigenvalues apart.
  const auto even = [](const double* x, double* y) {
    for (Index i = 0; i < 2000; ++i) y[i] = static_cast<double>(i) * x[i];
  };
  REQUIRE_THROWS_WITH(detail::largest_eigenvalue(1e-9, detail::random_start(2000), even, 1),
                      "poslsh: tolerance is 1e-09; it must be large enough to be reached in 1 restarts");
  REQUIRE(detail::largest_eigenvalue(1e-9, detail::random_start(2000), even) == Approx(1999).epsilon(1e-9));
}

#endif

}  // namespace spectral_test
