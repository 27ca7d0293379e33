// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Tensors of heads where they lie.

#include "poslsh/core/strided.hpp"

#include <algorithm>
#include <iterator>
#include <string>

namespace poslsh::inline POSLSH_SIMD {

/// A view of batch x heads x tokens x features values with unit feature stride, owned by somebody else:
/// element (b, h, t, f) is data[b batch_stride + h head_stride + t token_stride + f].
///
/// Strides count values and may be anything that keeps the elements inside the caller's memory, also 0 or negative for
/// inputs. The functions that take a view check it; the view itself does not.
template <class T>
struct TensorView {
  T* data = nullptr;  ///< element (0, 0, 0, 0)
  Index batch = 0,    ///< batch items
      heads = 0,      ///< heads of an item
      tokens = 0,     ///< tokens of a head
      features = 0;   ///< features of a token
  Index batch_stride = 0,  ///< values from an item to the next
      head_stride = 0,     ///< from a head to the next
      token_stride = 0;    ///< from a token to the next

  /// A packed buffer in the order batch, heads, tokens, features.
  [[nodiscard]] static TensorView heads_first(T* data, Index batch, Index heads, Index tokens, Index features) {
    return {data, batch, heads, tokens, features, heads * tokens * features, tokens * features, features};
  }
  /// A packed buffer in the order batch, tokens, heads, features.
  [[nodiscard]] static TensorView tokens_first(T* data, Index batch, Index tokens, Index heads, Index features) {
    return {data, batch, heads, tokens, features, tokens * heads * features, features, heads * features};
  }

  /// The same elements, read only.
  operator TensorView<const T>() const
    requires(!std::is_const_v<T>)
  {
    return {data, batch, heads, tokens, features, batch_stride, head_stride, token_stride};
  }

  /// Whether it has no element.
  [[nodiscard]] bool empty() const { return batch == 0 || heads == 0 || tokens == 0 || features == 0; }
};

namespace detail {

/// One head of one batch item. Without elements there may be no memory, and no pointer moves.
template <class T>
[[nodiscard]] Strided<T> head_of(const TensorView<T>& tensor, Index item, Index head) {
  if (tensor.empty()) return {tensor.data, tensor.tokens, tensor.features, 0, 1};
  T* data = tensor.data + item * tensor.batch_stride + head * tensor.head_stride;
  return {data, tensor.tokens, tensor.features, tensor.token_stride, 1};
}

/// Lowest and one past the highest offset of any element, in values.
template <class T>
[[nodiscard]] KeyRange offsets(const TensorView<T>& tensor) {
  if (tensor.empty()) return {};
  KeyRange range{0, tensor.features};
  for (const Index span : {(tensor.batch - 1) * tensor.batch_stride, (tensor.heads - 1) * tensor.head_stride,
                           (tensor.tokens - 1) * tensor.token_stride})
    (span < 0 ? range.begin : range.end) += span;
  return range;
}

/// Whether two tensors may share memory (their extents meet).
template <class A, class B>
[[nodiscard]] bool overlap(const TensorView<A>& a, const TensorView<B>& b) {
  if (a.empty() || b.empty()) return false;
  const KeyRange in_a = offsets(a), in_b = offsets(b);
  const auto address = [](const auto* data, Index offset) { return reinterpret_cast<std::uintptr_t>(data + offset); };
  return address(a.data, in_a.begin) < address(b.data, in_b.end) &&
         address(b.data, in_b.begin) < address(a.data, in_a.end);
}

/// \throws Error unless the sizes are at least 0, all its offsets are within 2^60, and it has memory if it has elements
template <class T>
void check_tensor(const TensorView<T>& tensor, const std::string& name) {
  const auto check_size = [&](Index size, const char* what) {
    POSLSH_CHECK(size >= 0 && size <= Index{1} << 52, what + name, size, "between 0 and 2^52");
  };
  check_size(tensor.batch, "batch of ");
  check_size(tensor.heads, "heads of ");
  check_size(tensor.tokens, "tokens of ");
  check_size(tensor.features, "features of ");
  if (tensor.empty()) return;
  POSLSH_CHECK(tensor.data != nullptr, "data of " + name, "null", "memory, since the tensor has elements");
  const auto check_stride = [&](Index stride, Index count, const char* what) {
    const double span = std::abs(static_cast<double>(stride)) * static_cast<double>(count - 1);
    POSLSH_CHECK(span <= 0x1p58, what + name, stride, "so small that all offsets are within 2^60");
  };
  check_stride(tensor.batch_stride, tensor.batch, "batch_stride of ");
  check_stride(tensor.head_stride, tensor.heads, "head_stride of ");
  check_stride(tensor.token_stride, tensor.tokens, "token_stride of ");
}

/// The same for a tensor to be written, whose rows must not lie on one another.
/// \throws Error also where a stride is less than what the dimensions of smaller strides span
template <class T>
void check_output(const TensorView<T>& tensor, const std::string& name) {
  check_tensor(tensor, name);
  if (tensor.empty()) return;
  struct Dimension {
    Index stride, count;
    const char* name;
  };
  Dimension dimensions[] = {{tensor.token_stride, tensor.tokens, "token_stride of "},
                            {tensor.head_stride, tensor.heads, "head_stride of "},
                            {tensor.batch_stride, tensor.batch, "batch_stride of "}};
  std::stable_sort(std::begin(dimensions), std::end(dimensions), [](const Dimension& a, const Dimension& b) {
    return std::abs(a.stride) < std::abs(b.stride);
  });
  Index span = tensor.features;
  for (const Dimension& dimension : dimensions) {
    if (dimension.count == 1) continue;
    POSLSH_CHECK(std::abs(dimension.stride) >= span, dimension.name + name, dimension.stride,
                 "at least " + std::to_string(span) + ", so that rows do not overlap");
    span += (dimension.count - 1) * std::abs(dimension.stride);
  }
}

}  // namespace detail
}  // namespace poslsh::inline POSLSH_SIMD
