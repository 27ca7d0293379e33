// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Spectral norms of L*, Mt and their difference. Needs Spectra (https://spectralib.org), and exceptions, which Spectra
/// throws; for both reasons it is not in poslsh.hpp.

#include "poslsh/core/random.hpp"
#include "poslsh/theory/operators.hpp"

#include <Spectra/SymEigsSolver.h>
#include <Eigen/Eigenvalues>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace poslsh::inline POSLSH_SIMD {
namespace detail {

/// y = A x as Spectra calls it.
template <class Apply>
struct SpectraOperator {
  using Scalar = double;
  Index size;
  Apply apply;
  [[nodiscard]] Index rows() const { return size; }
  [[nodiscard]] Index cols() const { return size; }
  void perform_op(const double* x, double* y) const { apply(x, y); }
};

/// The largest |eigenvalue| of a Krylov space, from Lanczos' recursion with full orthogonalisation.
struct RitzPair {
  double value = 0;     ///< may be negative
  double residual = 0;  ///< |A x - value x|
  Eigen::VectorXd vector;
};

/// Up to `steps` products from a start on, fewer if the space closes: then the pair is an eigenpair.
template <class Apply>
[[nodiscard]] RitzPair largest_ritz_pair(Index steps, const Eigen::VectorXd& start, Apply&& apply) {
  const Index n = start.size();
  Eigen::MatrixXd basis(n, steps), projection = Eigen::MatrixXd::Zero(steps, steps);
  basis.col(0) = start.normalized();
  Eigen::VectorXd next(n);
  double rest = 0, size = 0;
  Index used = 0;
  while (used < steps) {
    const Eigen::Ref<const Eigen::MatrixXd> known = basis.leftCols(used + 1);
    apply(known.col(used).data(), next.data());
    size = (std::max)(size, next.norm());
    for (int pass = 0; pass < 2; ++pass) {
      const Eigen::VectorXd overlap = known.transpose() * next;  // new: Eigen frees twice what it cannot resize
      next -= known * overlap;
      projection(used, used) += overlap[used];
    }
    rest = next.norm();
    ++used;
    if (!(rest > 1e-13 * size)) {
      rest = 0;
      break;
    }
    if (used < steps) {
      projection(used, used - 1) = rest;
      basis.col(used) = next / rest;
    }
  }
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(projection.topLeftCorner(used, used));
  Index largest = 0;
  solver.eigenvalues().cwiseAbs().maxCoeff(&largest);
  const Eigen::VectorXd weights = solver.eigenvectors().col(largest);
  return {solver.eigenvalues()[largest], rest * std::abs(weights[used - 1]), basis.leftCols(used) * weights};
}

/// The largest |eigenvalue| of a symmetric n x n operator, apply(x, y): y = A x.
///
/// A first Krylov space is our own: of a few dozen positions, or few different eigenvalues, such as a single mask has,
/// it is all there is, and Spectra breaks down where a space closes. If it does not suffice, Spectra's restarts go on.
template <class Apply>
[[nodiscard]] double largest_eigenvalue(double tolerance, const Eigen::VectorXd& start, Apply&& apply,
                                        Index restarts = 1000) {
  POSLSH_CHECK(tolerance > 0 && tolerance < 1, "tolerance", tolerance, "inside (0, 1)");
  constexpr Index steps = 24;
  const Index n = start.size();
  const RitzPair first = largest_ritz_pair((std::min)(n, steps), start, apply);
  if (n <= steps || first.residual <= tolerance * std::abs(first.value)) return std::abs(first.value);
  SpectraOperator<Apply&> symmetric{n, apply};
  Spectra::SymEigsSolver<SpectraOperator<Apply&>> solver(symmetric, 1, steps);
  solver.init(first.vector.data());
  const Index converged = solver.compute(Spectra::SortRule::LargestMagn, restarts, tolerance);
  POSLSH_CHECK(converged == 1, "tolerance", tolerance,
               "large enough to be reached in " + std::to_string(restarts) + " restarts");
  return std::abs(solver.eigenvalues()[0]);
}

/// A start that no eigenvector is orthogonal to, but by bad luck.
[[nodiscard]] inline Eigen::VectorXd random_start(Index n) {
  Eigen::VectorXd start(n);
  for (Index i = 0; i < n; ++i) start[i] = random_uniform(0, 0, static_cast<std::uint64_t>(i)) - 0.5;
  return start;
}

/// sin(pi (i + 1) / (n + 1)), i = 0 .. n-1: nearly the top eigenvector of L* for long sequences.
[[nodiscard]] inline Eigen::VectorXd half_wave(Index n) {
  Eigen::VectorXd wave(n);
  for (Index i = 0; i < n; ++i)
    wave[i] = std::sin(std::numbers::pi * (static_cast<double>(i) + 1) / (static_cast<double>(n) + 1));
  return wave;
}

}  // namespace detail

/// Functions with a tolerance iterate until |A x - value x| <= tolerance x value for a unit vector x: then an
/// eigenvalue lies that close to the value, and where the largest one stands apart, it is right to about the square of
/// that. The value is never above the norm, but by rounding. Up to 24 positions it is exact to rounding. An Error says
/// so if 1000 restarts of 24 steps are not enough. The same bits in every call; memory of some 50 vectors.
namespace theory {

/// ||L*||_2 for n positions, in closed form.
///
/// L* is the matrix of Kac, Murdock and Szegoe (1953), r^|i-j| with r = exp(-1 / sigma). Its inverse is tridiagonal,
/// its top eigenvector cos((j - (n - 1) / 2) t) with t the root of cos((n + 1) t / 2) = r cos((n - 1) t / 2) in (0, pi
/// / (n + 1)), and the norm (1 - r^2) / (1 - 2 r cos t + r^2). Found by bisection, to rounding; O(1).
/// \throws Error unless sigma > 0 and finite and n >= 1
[[nodiscard]] inline double spectral_norm(const LaplaceKernel& kernel, Index n) {
  POSLSH_CHECK(n >= 1, "n", n, "at least 1");
  const double r = kernel(1), gap = -std::expm1(-1 / kernel.sigma);  // 1 - r
  const double count = static_cast<double>(n);
  double low = 0, high = std::numbers::pi / (count + 1);
  for (double middle = high / 2; low < middle && middle < high; middle = low + (high - low) / 2) {
    // cos((n + 1) t / 2) - r cos((n - 1) t / 2), without cancellation.
    const double excess =
        gap * std::cos((count - 1) * middle / 2) - 2 * std::sin(count * middle / 2) * std::sin(middle / 2);
    (excess > 0 ? low : high) = middle;
  }
  const double half = std::sin(high / 2);
  return gap * (1 + r) / (gap * gap + 4 * r * half * half);
}

/// ||Mt||_2 for positions 0 .. n-1, without a matrix; O(n s) a step, some 24 to 100 of them.
/// \throws Error unless n >= 1 and tolerance is inside (0, 1), and if the iterations do not converge
[[nodiscard]] inline double spectral_norm(const MeanMask& mask, Index n, double tolerance = 1e-3) {
  POSLSH_CHECK(n >= 1, "n", n, "at least 1");
  // No entry of Mt is negative, nor is its top eigenvector: it cannot be orthogonal to the half wave.
  return detail::largest_eigenvalue(tolerance, detail::half_wave(n),
                                    [&](const double* x, double* y) { detail::apply_mask(mask, 0, n, 1, x, y); });
}

/// ||L* - Mt||_2 for positions 0 .. n-1, the error of Theorem 2.1, without a matrix; O(n s) a step, some 24 to 100 of
/// them. The difference has eigenvalues of both signs; the largest in magnitude counts.
/// \throws Error unless sigma > 0 and finite, n >= 1 and tolerance is inside (0, 1), and if the iterations do not
///   converge
[[nodiscard]] inline double spectral_error(const LaplaceKernel& kernel, const MeanMask& mask, Index n,
                                           double tolerance = 1e-3) {
  POSLSH_CHECK(n >= 1, "n", n, "at least 1");
  Eigen::VectorXd exact(n);
  return detail::largest_eigenvalue(tolerance, detail::random_start(n), [&](const double* x, double* y) {
    detail::apply_kernel(kernel, n, 1, x, exact.data());
    detail::apply_mask(mask, 0, n, 1, x, y);
    Eigen::Map<Eigen::VectorXd>(y, n) -= exact;
  });
}

/// The spectral norm of a symmetric matrix that is at hand, such as kernel matrix - mask.dense(n), which is faster
/// where s > n; O(n^2) a step. Only symmetric matrices: nothing else is checked but the shape.
/// \throws Error unless the matrix is square and not empty, and where the others do
[[nodiscard]] inline double spectral_norm(const Matrix<double>& symmetric, double tolerance = 1e-3) {
  POSLSH_CHECK(symmetric.rows() == symmetric.cols(), "columns of the matrix", symmetric.cols(), "its rows");
  const Index n = symmetric.rows();
  POSLSH_CHECK(n >= 1, "n", n, "at least 1");
  return detail::largest_eigenvalue(tolerance, detail::random_start(n), [&](const double* x, double* y) {
    Eigen::Map<Eigen::VectorXd>(y, n).noalias() = symmetric * Eigen::Map<const Eigen::VectorXd>(x, n);
  });
}

}  // namespace theory
}  // namespace poslsh::inline POSLSH_SIMD
