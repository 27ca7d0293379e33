// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A matrix where it lies: any inner and outer stride, no copy.

#include "poslsh/core/types.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace poslsh::inline POSLSH_SIMD::detail {

/// rows x cols values at data[i * row_stride + j * col_stride].
template <class T>
struct Strided {
  T* data = nullptr;
  Index rows = 0, cols = 0;
  Index row_stride = 0, col_stride = 1;

  T& operator()(Index i, Index j) const { return data[i * row_stride + j * col_stride]; }
  T* row(Index i) const { return data + i * row_stride; }
  [[nodiscard]] Strided middle_rows(Index first, Index count) const {
    return {count > 0 ? row(first) : data, count, cols, row_stride, col_stride};
  }
  operator Strided<const T>() const
    requires(!std::is_const_v<T>)
  {
    return {data, rows, cols, row_stride, col_stride};
  }

  /// First byte and one past the last byte touched.
  [[nodiscard]] std::pair<std::uintptr_t, std::uintptr_t> extent() const {
    if (rows == 0 || cols == 0) return {0, 0};
    const Index down = (rows - 1) * row_stride, across = (cols - 1) * col_stride;
    const Index low = std::min<Index>(down, 0) + std::min<Index>(across, 0);
    const Index high = std::max<Index>(down, 0) + std::max<Index>(across, 0);
    return {reinterpret_cast<std::uintptr_t>(data + low), reinterpret_cast<std::uintptr_t>(data + high + 1)};
  }
};

/// Whether two views may share memory (their extents meet).
template <class A, class B>
[[nodiscard]] bool overlap(const Strided<A>& a, const Strided<B>& b) {
  const auto [a_begin, a_end] = a.extent();
  const auto [b_begin, b_end] = b.extent();
  return a_begin < b_end && b_begin < a_end;
}

/// Whether an Eigen expression lies in memory as it is.
template <class Derived>
inline constexpr bool has_memory = (Eigen::internal::traits<Derived>::Flags & Eigen::DirectAccessBit) != 0;

/// The view of an expression with memory.
template <class Derived>
[[nodiscard]] auto strided(Derived& matrix) {
  using T = std::remove_reference_t<decltype(*matrix.data())>;
  // One without values may lie nowhere: no row may be away from there.
  if (matrix.size() == 0) return Strided<T>{matrix.data(), matrix.rows(), matrix.cols(), 0, 1};
  return Strided<T>{matrix.data(), matrix.rows(), matrix.cols(), matrix.rowStride(), matrix.colStride()};
}

/// An expression as a view: in place where it has memory and this scalar type, else evaluated once and kept.
template <class Derived, class T = typename Derived::Scalar>
class Viewed {
 public:
  explicit Viewed(const Eigen::DenseBase<Derived>& expression) : held_(expression.derived().template cast<T>()) {}
  [[nodiscard]] Strided<const T> view() const { return strided(held_); }

 private:
  const Matrix<T> held_;
};
template <class Derived, class T>
  requires(has_memory<Derived> && std::is_same_v<T, typename Derived::Scalar>)
class Viewed<Derived, T> {
 public:
  explicit Viewed(const Eigen::DenseBase<Derived>& expression) : held_(expression.derived()) {}
  [[nodiscard]] Strided<const T> view() const { return strided(held_); }

 private:
  const Derived& held_;
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
