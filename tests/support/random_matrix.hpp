// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Random inputs with the same bits everywhere: pure functions of a seed.

#include "poslsh/core/random.hpp"
#include "poslsh/core/types.hpp"

#include <cmath>
#include <initializer_list>
#include <numbers>

namespace poslsh::test {

/// Standard normal, from two uniform draws (Box and Muller).
inline double random_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const double radius = std::sqrt(-2 * std::log(random_uniform(seed, stream, 2 * index)));
  return radius * std::cos(2 * std::numbers::pi * random_uniform(seed, stream, 2 * index + 1));
}

/// rows x cols standard normal values.
template <class T>
Matrix<T> normal_matrix(Index rows, Index cols, std::uint64_t seed, std::uint64_t stream = 0) {
  Matrix<T> matrix(rows, cols);
  for (Index i = 0; i < matrix.size(); ++i)
    matrix.data()[i] = static_cast<T>(random_normal(seed, stream, static_cast<std::uint64_t>(i)));
  return matrix;
}

/// Queries, keys and values of one head.
template <class T>
struct Inputs {
  Matrix<T> q, k, v;
};

/// Standard normal inputs: queries x head_dim, keys x head_dim, keys x value_dim.
template <class T>
Inputs<T> normal_inputs(Index queries, Index keys, Index head_dim, Index value_dim, std::uint64_t seed) {
  return {normal_matrix<T>(queries, head_dim, seed, 0), normal_matrix<T>(keys, head_dim, seed, 1),
          normal_matrix<T>(keys, value_dim, seed, 2)};
}

/// A sequence of choices.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  double uniform() { return random_uniform(seed_, 99, next_++); }
  Index below(Index count) { return static_cast<Index>(uniform() * static_cast<double>(count)); }
  bool chance(double probability) { return uniform() < probability; }
  template <class V>
  V pick(std::initializer_list<V> values) {
    return values.begin()[below(static_cast<Index>(values.size()))];
  }

 private:
  std::uint64_t seed_, next_ = 0;
};

}  // namespace poslsh::test
