// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// One head prepared for its backward pass, and which keys each tile of its queries visits.

#include "poslsh/attention/head.hpp"
#include "poslsh/attention/skipping.hpp"

#include <vector>

namespace poslsh::inline POSLSH_SIMD::detail {

/// Keys in a tile of the backward pass: its two tiles of scores, keys, values and their gradients stay in the
/// second-level cache.
inline constexpr Index backward_keys = 192;

/// What the forward pass left, and the derivative by its values, to be multiplied by `share`.
template <class T>
struct ForwardViews {
  Strided<const T> values;
  Strided<const double> log_sum_exp;
  Strided<const T> d_values;
  T share = 1;
};

/// Where gradients are added.
template <class T>
struct GradientViews {
  Strided<T> dq, dk, dv;
};

/// Rows that products can be added to, in whole packets: the caller's where they lie so, else a copy that starts at 0
/// and is added to them at the end.
template <class T>
class GradientRows {
 public:
  explicit GradientRows(Strided<T> rows) : rows_(rows), data_(rows.data), stride_(rows.row_stride) {
    if (rows.col_stride == 1 && rows.cols % packet_size<T> == 0) return;
    stride_ = round_up(rows.cols, packet_size<T>);
    copy_ = Buffer<T>(rows.rows * stride_);
    std::fill(copy_.data(), copy_.data() + copy_.size(), T(0));
    data_ = copy_.data();
  }

  [[nodiscard]] T* row(Index i) const { return data_ + i * stride_; }
  [[nodiscard]] Index stride() const { return stride_; }

  void finish() const {
    if (data_ == rows_.data) return;
    for (Index i = 0; i < rows_.rows; ++i)
      for (Index f = 0; f < rows_.cols; ++f) rows_(i, f) += data_[i * stride_ + f];
  }

 private:
  Strided<T> rows_;
  T* data_;
  Index stride_;
  Buffer<T> copy_;
};

/// Derivatives by single numbers.
struct ScalarGradients {
  double slope = 0, right_slope = 0, sink = 0;
};

/// What sweeps of a backward pass share, read-only.
template <class T, class S, class B>
struct BackwardHead {
  const Head<T, S, B>& forward;
  Strided<const S> keys;
  const PackedKeys<T, S>& values;
  ForwardViews<T> output;
  double sink;  ///< -inf: none

  /// The log-sum-exp of a query row, relative as scores are.
  [[nodiscard]] T log_sum_exp(Index row) const {
    return static_cast<T>(output.log_sum_exp(row, 0) - forward.bias_rows.reference());
  }
  [[nodiscard]] KeyRange visible(Index row) const {
    return forward.place.visible(forward.bias.support(forward.place.query_position(row)), row);
  }
};

/// Adds [begin, end) to ascending ranges.
inline void append(std::vector<KeyRange>& ranges, KeyRange range) {
  if (range.empty()) return;
  if (!ranges.empty() && ranges.back().end == range.begin)
    ranges.back().end = range.end;
  else
    ranges.push_back(range);
}

/// The groups of keys that a tile of queries may not leave out, as ascending ranges of key rows.
///
/// The same test as in the forward pass, but with the mass of each row known from the start: the share of a row's
/// softmax weights that is left out is at most tolerance.
template <class T, class S, BoundedTail B>
[[nodiscard]] std::vector<KeyRange> groups_to_visit(const BackwardHead<T, S, B>& head, Index first, Index count,
                                                    KeyRange reach) {
  const Head<T, S, B>& forward = head.forward;
  const Index depth = forward.queries.cols;
  Buffer<T> queries(count * depth);
  RunningRow<T> rows[query_tile];
  KeyRange visible[query_tile];
  for (Index r = 0; r < count; ++r) {
    copy_row(forward.queries.row(first + r), forward.queries.col_stride, forward.scale, depth,
             queries.data() + r * depth, 1);
    rows[r] = {head.log_sum_exp(first + r), 1, false};
    visible[r] = head.visible(first + r);
  }
  const auto key_row = [&](Index r) { return forward.place.query_position(first + r) - forward.place.key_offset; };
  SkipTest<T, B> test(*forward.keys.groups, forward.bias, forward.bias_rows.reference(), forward.tolerance,
                      forward.softcap);
  test.start(queries.data(), depth, key_row(0), count);
  test.update(rows, visible);
  const Index begin = reach.begin / key_group, end = (reach.end - 1) / key_group + 1;
  const Index low = std::clamp(round_down(key_row(0), key_group) / key_group, begin, end - 1);
  const Index high = std::clamp(round_down(key_row(count - 1), key_group) / key_group, low, end - 1);
  std::vector<Index> behind;
  test.limit(high + 1 < end ? 0.5 : 1);
  for (Index group = low - 1; group >= begin && !test.skip_up_to(group); --group)
    if (!test.skip_group(group)) behind.push_back(group);
  std::vector<KeyRange> ranges;
  const auto take = [&](Index from, Index to) {
    append(ranges, intersect({from * key_group, to * key_group}, reach));
  };
  for (; !behind.empty(); behind.pop_back()) take(behind.back(), behind.back() + 1);
  take(low, high + 1);
  test.limit(1);
  for (Index group = high + 1; group < end && !test.skip_from(group); ++group)
    if (!test.skip_group(group)) take(group, group + 1);
  return ranges;
}

/// The key rows that a tile of queries visits, as ascending ranges; rows that none of its queries sees may be among them.
template <class T, class S, class B>
[[nodiscard]] std::vector<KeyRange> keys_to_visit(const BackwardHead<T, S, B>& head, Index first) {
  const Index count = (std::min)(query_tile, head.forward.place.queries - first);
  const KeyRange reach{head.visible(first).begin, head.visible(first + count - 1).end};
  if (reach.empty()) return {};
  if constexpr (BoundedTail<B>)
    if (head.forward.keys.groups) return groups_to_visit(head, first, count, reach);
  return {reach};
}

}  // namespace poslsh::inline POSLSH_SIMD::detail
