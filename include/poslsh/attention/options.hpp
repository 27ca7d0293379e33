// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Options and result of an attention call, and where its rows stand.

#include "poslsh/core/types.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

namespace poslsh::inline POSLSH_SIMD {

/// Run-time options of every attention function. Defaults are plain full attention.
struct AttentionOptions {
  /// Factor of q.k, within +-2^126; default 1 / sqrt(head_dim). 0 and 1 are honoured.
  std::optional<double> scale = {};
  /// Keys after the query are not visible: the same as window_right = 0 on top of any window.
  bool causal = false;
  /// Absolute position of key row 0, within +-2^52.
  Index key_offset = 0;
  /// Absolute position of query row 0, within +-2^52; default key_offset + keys - queries (aligned at the end).
  std::optional<Index> query_offset = {};
  /// A query at position i sees keys i - window_left .. i + window_right, both inclusive; unset: no limit.
  std::optional<Index> window_left = {};
  /// See window_left.
  std::optional<Index> window_right = {};
  /// score -> softcap tanh(score / softcap), after the scale and before the bias; > 0.
  std::optional<double> softcap = {};
  /// One extra logit in every row's denominator, without a value. -inf equals none.
  std::optional<double> sink = {};
  /// 0: visit every visible key. Else key tiles that provably cannot matter are left out: the skipped mass of a row
  /// stays <= tolerance x its visited row sum, so each output feature errs by at most tolerance x (max - min of that
  /// feature over the row's visible values, and 0 where there is a sink) and log_sum_exp by log1p(tolerance).
  double tolerance = 0;
  /// Threads to use, the caller's included. Output bits do not depend on it.
  int threads = 1;
};

/// Result of an attention call over queries x head_dim, keys x head_dim, keys x value_dim.
template <class T>
struct AttentionOutput {
  Matrix<T> values;            ///< queries x value_dim; a row without visible keys is 0
  Vector<double> log_sum_exp;  ///< of each query: natural log of the softmax denominator; -inf without visible keys (the sink's logit, if any)
};

namespace detail {

/// Where the rows of a call stand, and which keys each query may see before any bias.
struct Placement {
  Index queries = 0, keys = 0;
  Index query_offset = 0, key_offset = 0;
  Index left = max_position, right = max_position;
  Index first_key = 0;  ///< key rows before this one are there no more

  [[nodiscard]] Index query_position(Index row) const { return query_offset + row; }

  /// Visible key rows of a query row whose bias has this support. Ends never decrease with the row, also where it is
  /// empty.
  [[nodiscard]] KeyRange visible(KeyRange support, Index row) const {
    const Index position = query_position(row);
    KeyRange range = intersect(support, {position - left, position + right + 1});
    range = intersect(range, {key_offset + first_key, key_offset + keys});
    return {range.begin - key_offset, range.end - key_offset};
  }
};

/// Checks the options of a call and resolves its positions.
/// \throws Error naming the option
[[nodiscard]] inline Placement place(Index queries, Index keys, const AttentionOptions& options) {
  const auto in_range = [](Index offset) { return offset >= -(Index{1} << 52) && offset <= Index{1} << 52; };
  POSLSH_CHECK(in_range(options.key_offset), "key_offset", options.key_offset, "within +-2^52");
  const Index query_offset = options.query_offset.value_or(options.key_offset + keys - queries);
  POSLSH_CHECK(in_range(query_offset), "query_offset", query_offset, "within +-2^52");
  if (options.scale)  // a number in float too
    POSLSH_CHECK(std::abs(*options.scale) <= 0x1p126, "scale", *options.scale, "finite, within +-2^126");
  if (options.softcap)
    POSLSH_CHECK(*options.softcap > 0 && std::isfinite(*options.softcap), "softcap", *options.softcap,
                 "positive and finite");
  if (options.sink)
    POSLSH_CHECK(*options.sink < std::numeric_limits<double>::infinity(), "sink", *options.sink, "finite or -inf");
  POSLSH_CHECK(options.tolerance >= 0 && std::isfinite(options.tolerance), "tolerance", options.tolerance,
               "finite and at least 0");
  POSLSH_CHECK(options.threads >= 1, "threads", options.threads, "at least 1");
  Placement place{queries, keys, query_offset, options.key_offset};
  if (options.window_left) {
    POSLSH_CHECK(*options.window_left >= 0, "window_left", *options.window_left, "at least 0");
    place.left = (std::min)(*options.window_left, max_position);
  }
  if (options.window_right) {
    POSLSH_CHECK(*options.window_right >= 0, "window_right", *options.window_right, "at least 0");
    place.right = (std::min)(*options.window_right, max_position);
  }
  if (options.causal) place.right = 0;
  return place;
}

/// The factor of q.k.
[[nodiscard]] inline double score_scale(const AttentionOptions& options, Index head_dim) {
  return options.scale.value_or(head_dim > 0 ? 1 / std::sqrt(static_cast<double>(head_dim)) : 1.0);
}

}  // namespace detail
}  // namespace poslsh::inline POSLSH_SIMD
