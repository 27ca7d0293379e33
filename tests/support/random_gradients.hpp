// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Derivatives by the values that are sums of two others, and what rounding gradients is relative to.

#include "support/random_calls.hpp"

namespace poslsh::test {

/// a u + b w in T, and the same of what u and w lead to.
template <class T>
struct Combination {
  T a, b;
  Matrix<T> u, w, whole;

  Combination(Dice& dice, Index rows, Index features, std::uint64_t seed)
      : a(static_cast<T>(dice.pick({1.0, -2.0, 0.3, 50.0}))), b(static_cast<T>(dice.pick({1.0, -1.0, 0.7, -0.01}))),
        u(normal_matrix<T>(rows, features, seed, 11)), w(normal_matrix<T>(rows, features, seed, 12)), whole(of(u, w)) {}

  [[nodiscard]] Matrix<T> of(const Matrix<T>& of_u, const Matrix<T>& of_w) const { return a * of_u + b * of_w; }
  [[nodiscard]] double of(double of_u, double of_w) const {
    return static_cast<double>(a) * of_u + static_cast<double>(b) * of_w;
  }
  /// The largest derivative, in magnitude, if nothing cancels.
  [[nodiscard]] double size() const {
    return u.size() == 0 ? 0 : static_cast<double>((std::abs(a) * u.cwiseAbs() + std::abs(b) * w.cwiseAbs()).maxCoeff());
  }
};

/// What the terms of gradients add up to at most, in magnitude.
struct GradientSizes {
  double q, k, v, slope, sink;
};

/// From derivatives d_values in magnitude, and sums of a key's weights of at most `mass`: weights of a row sum to 1, and
/// a weight times dO.v - dO.O is its derivative by a score.
template <class T>
GradientSizes gradient_sizes(const Inputs<T>& x, const AttentionOptions& options, double d_values, double mass) {
  const auto largest = [](const Matrix<T>& rows) { return rows.size() == 0 ? 0 : static_cast<double>(rows.cwiseAbs().maxCoeff()); };
  const double product = static_cast<double>(x.v.cols()) * d_values * largest(x.v), queries = static_cast<double>(x.q.rows());
  const double scale = std::abs(options.scale.value_or(1 / std::sqrt(static_cast<double>(x.q.cols()))));
  const Index gap = first_query(options, x.q.rows(), x.k.rows()) - options.key_offset;
  const double reach = static_cast<double>(std::abs(gap) + x.q.rows() + x.k.rows());
  return {2 * scale * product * largest(x.k), 2 * scale * product * largest(x.q) * mass, d_values * mass,
          2 * product * queries * reach, product * queries};
}

}  // namespace poslsh::test
