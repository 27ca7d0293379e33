// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Inputs of one head, and the same numbers elsewhere in memory: by rows or columns, with gaps, in slices of one buffer.

#include "fuzz/support.hpp"

#include <limits>
#include <vector>

namespace poslsh::fuzz {

struct Shape {
  Index queries, keys, head_dim, value_dim;
};

/// Small ones mostly; no more pairs than the oracle does in a millisecond or so.
inline Shape shape_from(Bytes& bytes) {
  const auto tokens = [&] {
    const Index kind = in_range(bytes, 0, 11);
    return in_range(bytes, 0, kind == 11 ? 900 : kind > 8 ? 110 : 12);
  };
  const auto features = [&] { return in_range(bytes, 0, bytes.ConsumeIntegral<std::uint8_t>() > 176 ? 40 : 5); };
  Shape shape{tokens(), tokens(), features(), features()};
  while (shape.queries * shape.keys * (shape.head_dim + shape.value_dim + 4) > 20000)
    (shape.queries > shape.keys / 8 ? shape.queries : shape.keys) /= 2;
  return shape;
}

template <class S>
Matrix<S> noise_matrix(Index rows, Index cols, std::uint64_t seed) {
  Matrix<S> matrix(rows, cols);
  Noise noise(seed);
  for (Index i = 0; i < matrix.size(); ++i) matrix.data()[i] = static_cast<S>(noise());
  return matrix;
}

/// Queries as T, keys and values as S.
template <class T, class S>
struct Data {
  Matrix<T> q;
  Matrix<S> k, v;
  Data(const Shape& shape, std::uint64_t seed)
      : q(noise_matrix<T>(shape.queries, shape.head_dim, 3 * seed)), k(noise_matrix<S>(shape.keys, shape.head_dim, 3 * seed + 1)),
        v(noise_matrix<S>(shape.keys, shape.value_dim, 3 * seed + 2)) {}
};

template <class S>
using View = Eigen::Map<Matrix<S>, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;

/// rows x cols numbers at strides of their own, in memory that begins and ends with them. Gaps hold NaN.
template <class S>
class Placed {
 public:
  Placed(Index rows, Index cols, Bytes& bytes) : rows_(rows), cols_(cols) {
    const bool by_columns = bytes.ConsumeBool();
    const Index step = in_range(bytes, 1, 3), gap = in_range(bytes, 0, 3);
    inner_ = by_columns ? rows * step + gap : step;
    outer_ = by_columns ? step : cols * step + gap;
    if (rows > 0 && cols > 0) data_.assign(static_cast<std::size_t>((rows - 1) * outer_ + (cols - 1) * inner_ + 1), poison());
  }
  explicit Placed(const Matrix<S>& values, Bytes& bytes) : Placed(values.rows(), values.cols(), bytes) { view() = values; }

  [[nodiscard]] View<S> view() { return {data_.data(), rows_, cols_, {outer_, inner_}}; }

 private:
  static S poison() { return static_cast<S>(std::numeric_limits<float>::quiet_NaN()); }
  Index rows_, cols_, outer_ = 0, inner_ = 0;
  std::vector<S> data_;
};

/// The inputs of a call and room for its output, which may be that of an input.
template <class T, class S>
class PlacedInputs {
 public:
  PlacedInputs(const Data<T, S>& data, Bytes& bytes)
      : q_(data.q, bytes), k_(data.k, bytes), v_(data.v, bytes), out_(data.q.rows(), data.v.cols(), bytes),
        place_(bytes.ConsumeIntegralInRange<int>(0, 3)) {
    if constexpr (std::is_same_v<T, S>) {
      if (place_ != 1) return;
      // One buffer of tokens x (q, k, v), as a layer's input product leaves it.
      const Index width = 2 * data.q.cols() + data.v.cols();
      together_ = Matrix<T>::Constant(std::max(data.q.rows(), data.k.rows()), width, std::numeric_limits<T>::quiet_NaN());
      q_slice() = data.q;
      k_slice(data.k.rows()) = data.k;
      v_slice(data.v.rows()) = data.v;
    }
  }

  [[nodiscard]] View<T> q() { return place_ == 1 && together_.size() > 0 ? q_slice() : q_.view(); }
  [[nodiscard]] View<S> k() { return slice(k_, 1); }
  [[nodiscard]] View<S> v() { return slice(v_, 2); }
  /// Over the queries, or over the values, where it has their shape.
  [[nodiscard]] View<T> output() {
    const View<T> apart = out_.view();
    if (place_ >= 1 && place_ <= 2 && q().cols() == apart.cols()) return q();
    if constexpr (std::is_same_v<T, S>)
      if (place_ >= 1 && place_ <= 2 && v().rows() == apart.rows()) return v();
    return apart;
  }

 private:
  [[nodiscard]] View<T> part(Index rows, Index first, Index cols) {
    return {together_.data() + (together_.size() > 0 ? first : 0), rows, cols, {together_.cols(), 1}};
  }
  [[nodiscard]] View<T> q_slice() { return part(q_.view().rows(), 0, q_.view().cols()); }
  [[nodiscard]] View<T> k_slice(Index rows) { return part(rows, q_.view().cols(), q_.view().cols()); }
  [[nodiscard]] View<T> v_slice(Index rows) { return part(rows, 2 * q_.view().cols(), v_.view().cols()); }
  [[nodiscard]] View<S> slice(Placed<S>& apart, [[maybe_unused]] int which) {
    if constexpr (std::is_same_v<T, S>)
      if (place_ == 1 && together_.size() > 0)
        return which == 1 ? k_slice(apart.view().rows()) : v_slice(apart.view().rows());
    return apart.view();
  }

  Placed<T> q_;
  Placed<S> k_, v_;
  Placed<T> out_;
  int place_;
  Matrix<T> together_;
};

}  // namespace poslsh::fuzz
