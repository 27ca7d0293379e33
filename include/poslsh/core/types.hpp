// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Indices, matrices and ranges of positions.

#include "poslsh/core/config.hpp"  // IWYU pragma: export

#include <cstddef>
#include <cstdint>
#include <limits>

namespace poslsh::inline POSLSH_SIMD {

/// Every count and position: signed, 64 bits.
using Index = Eigen::Index;
static_assert(sizeof(Index) == 8, "poslsh needs 64-bit indices");

/// Rows are tokens, columns are features (`tokens x features`), row after row in memory.
template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// A column.
template <class T>
using Vector = Eigen::Matrix<T, Eigen::Dynamic, 1>;

/// Stand for "unbounded" in a range of positions. No token lies beyond +-2^52, so a window or an offset added to
/// either cannot overflow.
inline constexpr Index min_position = -(Index{1} << 62);
/// See min_position.
inline constexpr Index max_position = Index{1} << 62;

/// Positions [begin, end); empty when end <= begin.
struct KeyRange {
  Index begin = 0;  ///< the first position
  Index end = 0;    ///< one past the last

  /// Whether it holds no position.
  [[nodiscard]] constexpr bool empty() const { return end <= begin; }
  /// Positions in the range; that of an unbounded one, 2^63, is given as 2^63 - 1.
  [[nodiscard]] constexpr Index size() const {
    if (empty()) return 0;
    const std::uint64_t count = static_cast<std::uint64_t>(end) - static_cast<std::uint64_t>(begin);
    return count >> 63 != 0 ? (std::numeric_limits<Index>::max)() : static_cast<Index>(count);
  }
  /// Whether a position is in the range.
  [[nodiscard]] constexpr bool contains(Index position) const { return begin <= position && position < end; }
  /// Equal ends; two empty ranges may differ.
  friend constexpr bool operator==(const KeyRange&, const KeyRange&) = default;
};

/// The positions in both ranges. An empty result still has ends, which keep their order between neighbouring rows.
[[nodiscard]] constexpr KeyRange intersect(KeyRange a, KeyRange b) {
  return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

namespace detail {

/// The smallest range that holds those of `count` ranges that are not empty; {max_position, min_position} if all are.
[[nodiscard]] constexpr KeyRange hull_of(const KeyRange* ranges, Index count) {
  KeyRange all{max_position, min_position};
  for (Index i = 0; i < count; ++i) {
    const KeyRange range = ranges[i];
    if (range.empty()) continue;
    all = {range.begin < all.begin ? range.begin : all.begin, range.end > all.end ? range.end : all.end};
  }
  return all;
}

}  // namespace detail

}  // namespace poslsh::inline POSLSH_SIMD
