// SPDX-License-Identifier: MIT
// Eigen with its products handed to BLAS: they reach attention as expressions, and the result is that of a
// double loop.

#include <cstdio>

#ifndef EIGEN_USE_BLAS

int main() {
  std::puts("no BLAS on this machine");
  return 77;
}

#else

#include "poslsh/poslsh.hpp"

#include <cmath>

namespace {

using namespace poslsh;

constexpr Index tokens = 96, features = 64, head_dim = 32;
constexpr double slope = 0.125;

/// Uniform in [-1/2, 1/2).
template <class T>
Matrix<T> uniform_matrix(Index rows, Index cols, std::uint64_t stream) {
  Matrix<T> matrix(rows, cols);
  for (Index i = 0; i < matrix.size(); ++i)
    matrix.data()[i] = static_cast<T>(random_uniform(1, stream, static_cast<std::uint64_t>(i)) - 0.5);
  return matrix;
}

/// x w, entry by entry.
template <class T>
Matrix<double> project(const Matrix<T>& x, const Matrix<T>& w) {
  Matrix<double> product = Matrix<double>::Zero(x.rows(), w.cols());
  for (Index i = 0; i < x.rows(); ++i)
    for (Index j = 0; j < w.cols(); ++j)
      for (Index f = 0; f < x.cols(); ++f)
        product(i, j) += static_cast<double>(x(i, f)) * static_cast<double>(w(f, j));
  return product;
}

/// The largest difference from causal ALiBi attention by its definition.
template <class T>
double largest_error() {
  const Matrix<T> x = uniform_matrix<T>(tokens, features, 0), to_q = uniform_matrix<T>(features, head_dim, 1),
                  to_k = uniform_matrix<T>(features, head_dim, 2),
                  to_v = uniform_matrix<T>(features, head_dim, 3);
  const AttentionOutput<T> output =
      attention(x * to_q, x * to_k, x * to_v, AlibiBias{slope}, {.causal = true});

  const Matrix<double> q = project(x, to_q), k = project(x, to_k), v = project(x, to_v);
  double worst = 0;
  for (Index i = 0; i < tokens; ++i) {
    double sum = 0;
    Vector<double> values = Vector<double>::Zero(head_dim);
    for (Index j = 0; j <= i; ++j) {
      double score = -slope * static_cast<double>(i - j);
      for (Index f = 0; f < head_dim; ++f)
        score += q(i, f) * k(j, f) / std::sqrt(static_cast<double>(head_dim));
      const double weight = std::exp(score);
      sum += weight;
      for (Index f = 0; f < head_dim; ++f) values[f] += weight * v(j, f);
    }
    for (Index f = 0; f < head_dim; ++f) {
      const double error = std::abs(static_cast<double>(output.values(i, f)) - values[f] / sum);
      if (!(error <= worst)) worst = error;  // NaN too
    }
    const double error = std::abs(output.log_sum_exp[i] - std::log(sum));
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

}  // namespace

int main() {
  const double in_float = largest_error<float>(), in_double = largest_error<double>();
  std::printf("largest error: %.1e in float, %.1e in double\n", in_float, in_double);
  return in_float < 1e-5 && in_double < 1e-13 ? 0 : 1;
}

#endif
