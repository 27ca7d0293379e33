// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Attention with a positional bias, streaming: memory O(n d), never n x n.

#include "poslsh/attention/mean_mask_rows.hpp"
#include "poslsh/attention/tile_sweep.hpp"

#include <memory>
#include <type_traits>
#include <vector>

namespace poslsh::inline POSLSH_SIMD {
namespace detail {

/// Checks that q, k and v belong together.
template <class T, class S>
void check_shapes(const Strided<const T>& q, const Strided<const S>& k, const Strided<const S>& v) {
  POSLSH_CHECK(k.cols == q.cols, "columns of k", k.cols, "head_dim, the columns of q");
  POSLSH_CHECK(v.rows == k.rows, "rows of v", v.rows, "tokens, the rows of k");
}

/// The key rows that some query of a call may see.
template <PositionBias B>
[[nodiscard]] KeyRange reach(const B& bias, const Placement& place) {
  if (place.queries == 0) return {};
  return {place.visible(bias.support(place.query_position(0)), 0).begin,
          place.visible(bias.support(place.query_position(place.queries - 1)), place.queries - 1).end};
}

/// Whether tiles of keys may be skipped, and whether second moments help: what PreparedKeys asks.
template <PositionBias B>
[[nodiscard]] bool may_skip(const AttentionOptions& options) {
  return BoundedTail<B> && options.tolerance > 0;
}
template <PositionBias B>
[[nodiscard]] bool want_moments(const B& bias, Index depth) {
  if constexpr (BoundedTail<B>) return moments_pay(bias, depth);
  return false;
}

/// Stores a finished row where the caller of attention wants it.
template <class T>
void store_row(const T* sums, const RunningRow<double>& mass, double sink, Strided<T> values, Index row,
               double& log_sum_exp) {
  const FinishedRow finished = finish_row(mass, sink);
  // A row without keys holds zeros, and its factor is 0.
  copy_row(sums, 1, static_cast<T>(finished.factor), values.cols, values.row(row), values.col_stride);
  log_sum_exp = finished.log_sum_exp;
}

/// Every tile of a head's queries. Each row goes to store, see TileSweep::run, which may be called from several threads at
/// once. Returns the number of pairs visited.
template <class T, class S, PositionBias B, class Store>
Index sweep_tiles(const Head<T, S, B>& head, int threads, Store&& store) {
  using Sweep = TileSweep<T, S, B>;
  std::vector<std::unique_ptr<Sweep>> sweeps(static_cast<std::size_t>(std::min<Index>(threads, head.tiles())));
  parallel_for(head.tiles(), threads, [&](Index task, int worker) {
    std::unique_ptr<Sweep>& sweep = sweeps[static_cast<std::size_t>(worker)];
    if (!sweep) sweep = std::make_unique<Sweep>(head);
    sweep->run((head.tiles() - 1 - task) * query_tile, store);  // under causality the last tiles cost most
  });
  Index visited_pairs = 0;
  for (const std::unique_ptr<Sweep>& sweep : sweeps)
    if (sweep) visited_pairs += sweep->visited_pairs();
  return visited_pairs;
}

/// The streaming kernel over views; shapes and options have been checked.
template <class T, class S, PositionBias B, class Store>
Index attend(Strided<const T> q, Strided<const S> k, Strided<const S> v, const B& bias, const Placement& place,
             const AttentionOptions& options, Store&& store) {
  const PreparedKeys<T, S> keys(k, reach(bias, place), may_skip<B>(options), want_moments(bias, q.cols), options.threads);
  return sweep_tiles(Head<T, S, B>(q, v, keys, bias, place, options), options.threads, store);
}

/// attend() into the caller's buffers, which must not overlap the inputs.
template <class T, class S, PositionBias B>
Index attend_into(Strided<const T> q, Strided<const S> k, Strided<const S> v, const B& bias, const Placement& place,
                  const AttentionOptions& options, Strided<T> values, Strided<double> log_sum_exp) {
  const double sink = options.sink.value_or(minus_infinity);
  return attend<T, S>(q, k, v, bias, place, options, [&](Index row, const T* sums, const RunningRow<double>& mass) {
    store_row(sums, mass, sink, values, row, log_sum_exp(row, 0));
  });
}

}  // namespace detail

/// Attention of one head into the caller's buffers; see attention().
///
/// \param values       queries x value_dim, any Eigen object with memory: a Matrix, a Map, a block of one
/// \param log_sum_exp  a vector of doubles, one a query
/// The outputs may overlap the inputs (a copy is made then).
/// \returns the number of pairs whose score was computed: those the rows see, whole register blocks counted
/// \throws Error where attention() does, and unless the outputs have these shapes
template <class Q, class K, class V, PositionBias B, class Values, class LogSumExp>
Index attention_into(const Eigen::DenseBase<Q>& q, const Eigen::DenseBase<K>& k, const Eigen::DenseBase<V>& v,
                    const B& bias, const AttentionOptions& options, Values&& values, LogSumExp&& log_sum_exp) {
  using S = typename K::Scalar;
  using T = detail::Compute<typename Q::Scalar>;
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "attention computes in float or double");
  static_assert(std::is_same_v<S, typename V::Scalar> && std::is_same_v<T, detail::Compute<S>>,
                "q, k and v must have one scalar type; or k and v half or bfloat16, and q the same or float");
  const detail::Viewed<Q, T> query_view(q);
  const detail::Viewed<K> key_view(k);
  const detail::Viewed<V> value_view(v);
  const detail::Strided<const T> queries = query_view.view();
  const detail::Strided<const S> keys = key_view.view(), tokens = value_view.view();
  const detail::Strided<T> out = detail::strided(values);
  const detail::Strided<double> lse = detail::strided(log_sum_exp);
  detail::check_shapes(queries, keys, tokens);
  POSLSH_CHECK(out.rows == queries.rows, "rows of values", out.rows, "the rows of q");
  POSLSH_CHECK(out.cols == tokens.cols, "columns of values", out.cols, "value_dim, the columns of v");
  POSLSH_CHECK(lse.rows == queries.rows && lse.cols == 1, "size of log_sum_exp", lse.rows * lse.cols,
               "the rows of q, as one column");
  const detail::Placement place = detail::place(queries.rows, keys.rows, options);
  detail::validate(bias);
  const auto meets_input = [&](const auto& output) {
    return overlap(output, queries) || overlap(output, keys) || overlap(output, tokens);
  };
  if (meets_input(out) || meets_input(lse)) {
    AttentionOutput<T> copy{Matrix<T>(out.rows, out.cols), Vector<double>(lse.rows)};
    const Index visited = detail::attend_into<T, S>(queries, keys, tokens, bias, place, options, detail::strided(copy.values),
                                            detail::strided(copy.log_sum_exp));
    values = copy.values;
    log_sum_exp = copy.log_sum_exp;
    return visited;
  }
  return detail::attend_into<T, S>(queries, keys, tokens, bias, place, options, out, lse);
}

/// Attention of one head with a positional bias:
///
///   values_i = sum_j exp(z_ij - lse_i) v_j,  z_ij = scale q_i.k_j + log w(i, j),  lse_i = log sum_j exp(z_ij),
///
/// over the keys j that query i may see: in the bias' support, inside the window, not after it if causal. With
/// AlibiBias this is exact ALiBi attention; with MeanMask it is positional LSH (T-tilde of Theorem 2.2), the ratio of
/// summed numerators and denominators over all draws, in one sweep.
///
/// \param q, k, v  queries x head_dim, keys x head_dim, keys x value_dim: any Eigen expressions of float or double,
///                 any strides; read in place where they have memory. Eigen::half and Eigen::bfloat16 are storage
///                 types: k and v may be of one of them, and q too or float; all is computed in float.
/// \param bias     NoBias, AlibiBias, FixedBlocks, MeanMask or a type of your own, see PositionBias
/// \param options  see AttentionOptions
/// A key that may not be seen is skipped, never multiplied by zero: NaN behind a mask leaves no trace, NaN at a seen
/// key spoils its own rows only. Scores and sums within a tile are computed in the scalar type, row sums in double.
/// \throws Error on shapes that do not belong together and on options or biases out of range
/// Cost: 4 head_dim flops (with value_dim = head_dim) a visible pair; memory beyond the outputs: one copy of the keys
/// and about half a megabyte a thread. Thread safe; the same bits for any number of threads.
template <class Q, class K, class V, PositionBias B>
[[nodiscard]] AttentionOutput<detail::Compute<typename Q::Scalar>> attention(const Eigen::DenseBase<Q>& q,
                                                                             const Eigen::DenseBase<K>& k,
                                                                             const Eigen::DenseBase<V>& v, const B& bias,
                                                                             const AttentionOptions& options = {}) {
  using T = detail::Compute<typename Q::Scalar>;
  AttentionOutput<T> output{Matrix<T>(q.rows(), v.cols()), Vector<double>(q.rows())};
  attention_into(q, k, v, bias, options, output.values, output.log_sum_exp);
  return output;
}

}  // namespace poslsh::inline POSLSH_SIMD
