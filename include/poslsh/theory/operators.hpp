// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The matrices of Theorem 2.1 as operators: L* x and Mt x without ever forming an n x n matrix.

#include "poslsh/core/strided.hpp"
#include "poslsh/mask/mean_mask.hpp"

#include <vector>

namespace poslsh::inline POSLSH_SIMD {
namespace detail {

/// y = L* x for n rows of `columns` values, one after the other: with r = exp(-1 / sigma),
///   y_i = f_i + b_i,  f_i = x_i + r f_(i-1),  b_i = r (x_(i+1) + b_(i+1)).
inline void apply_kernel(const LaplaceKernel& kernel, Index n, Index columns, const double* x, double* y) {
  const double r = kernel(1);
  for (Index e = 0; e < n * columns; ++e) y[e] = e < columns ? x[e] : x[e] + r * y[e - columns];
  std::vector<double> behind(static_cast<std::size_t>(columns), 0.0);
  for (Index i = n - 2; i >= 0; --i)
    for (Index c = 0; c < columns; ++c) {
      double& sum = behind[static_cast<std::size_t>(c)];
      sum = r * (x[(i + 1) * columns + c] + sum);
      y[i * columns + c] += sum;
    }
}

/// y = Mt x for positions start .. start + n - 1: every row of a block gets the block's sum.
inline void apply_mask(const MeanMask& mask, Index start, Index n, Index columns, const double* x, double* y) {
  using Row = Eigen::RowVectorXd;
  Eigen::Map<Matrix<double>> out(y, n, columns);
  const Eigen::Map<const Matrix<double>> in(x, n, columns);
  out.setZero();
  Row sum(columns);
  for (const PositionHash& hash : mask.hashes())
    for (Index begin = 0; begin < n;) {
      const Index end = (std::min)(hash.block(start + begin).end - start, n);
      if (columns == 1) {
        const double share = hash.weight * in.col(0).segment(begin, end - begin).sum();
        out.col(0).segment(begin, end - begin).array() += share;
      } else {
        sum.setZero();
        for (Index i = begin; i < end; ++i) sum += in.row(i);
        sum *= hash.weight;
        for (Index i = begin; i < end; ++i) out.row(i) += sum;
      }
      begin = end;
    }
  out /= static_cast<double>(mask.samples());
}

/// Any expression as rows that follow each other in memory.
template <class X>
[[nodiscard]] Matrix<double> rows_of_doubles(const Eigen::DenseBase<X>& x) {
  static_assert(std::is_same_v<typename X::Scalar, double>, "vectors must be double");
  return x;
}

}  // namespace detail

namespace theory {

/// L* x with L*(i, j) = exp(-|i - j| / sigma): two exponential recursions, one in each direction.
///
/// \param x  n x vectors, doubles: any Eigen expression, of any size
/// \returns n x vectors. Sums are rounded as they are added; the powers of exp(-1 / sigma) at distance d err
/// relatively by about d units in the last place, where the weight has fallen to exp(-d / sigma)
/// \throws Error unless sigma > 0 and finite. Cost: 5 flops an element; memory of the result and of one copy of x.
template <class X>
[[nodiscard]] Matrix<double> apply(const LaplaceKernel& kernel, const Eigen::DenseBase<X>& x) {
  const Matrix<double> rows = detail::rows_of_doubles(x);
  Matrix<double> result(rows.rows(), rows.cols());
  detail::apply_kernel(kernel, rows.rows(), rows.cols(), rows.data(), result.data());
  return result;
}

/// Mt x over the positions start .. start + n - 1, weights honoured.
///
/// \param x      n x vectors, doubles: any Eigen expression, of any size
/// \param start  position of row 0; both ends within +-2^52
/// \returns n x vectors, each row (1/s) sum_r weight_r times the sum of x over the row's block in draw r
/// \throws Error unless the positions are in range. Cost: 2 s flops an element; memory of the result and of one copy
///   of x.
template <class X>
[[nodiscard]] Matrix<double> apply(const MeanMask& mask, const Eigen::DenseBase<X>& x, Index start = 0) {
  constexpr Index last = Index{1} << 52;
  POSLSH_CHECK(start >= -last && start <= last - x.rows(), "start", start,
               "within +-2^52, the last row's position too");
  const Matrix<double> rows = detail::rows_of_doubles(x);
  Matrix<double> result(rows.rows(), rows.cols());
  detail::apply_mask(mask, start, rows.rows(), rows.cols(), rows.data(), result.data());
  return result;
}

}  // namespace theory
}  // namespace poslsh::inline POSLSH_SIMD
