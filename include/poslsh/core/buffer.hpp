// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Scratch memory aligned for any packet.

#include "poslsh/core/types.hpp"

#include <memory>
#include <new>

namespace poslsh::inline POSLSH_SIMD::detail {

/// Uninitialised room for `size` values, aligned to a cache line.
///
/// Not an Eigen vector: Eigen's allocator depends on the instruction set, and two objects built with different ones
/// may come to share it.
template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  explicit Buffer(Index size)
      : data_(static_cast<T*>(::operator new(static_cast<std::size_t>(size) * sizeof(T), alignment))), size_(size) {}

  [[nodiscard]] T* data() { return data_.get(); }
  [[nodiscard]] const T* data() const { return data_.get(); }
  [[nodiscard]] Index size() const { return size_; }
  T& operator[](Index i) { return data_.get()[i]; }
  const T& operator[](Index i) const { return data_.get()[i]; }

  /// Makes room for at least `size` values; what was held is lost when it has to grow.
  void require(Index size) {
    if (size > size_) *this = Buffer(size);
  }

 private:
  static constexpr std::align_val_t alignment{64};
  struct Free {
    void operator()(T* data) const { ::operator delete(data, alignment); }
  };
  std::unique_ptr<T, Free> data_;
  Index size_ = 0;
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
