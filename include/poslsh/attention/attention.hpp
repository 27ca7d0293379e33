// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Attention with a positional bias, streaming: memory O(n d), never n x n.

#include "poslsh/attention/mean_mask_rows.hpp"
#include "poslsh/attention/tile_sweep.hpp"

#include <memory>
#include <optional>
#include <vector>

namespace poslsh::inline POSLSH_SIMD {
namespace detail {

/// Checks that q, k and v belong together.
template <class T>
void check_shapes(const Strided<const T>& q, const Strided<const T>& k, const Strided<const T>& v) {
  POSLSH_CHECK(k.cols == q.cols, "columns of k", k.cols, "head_dim, the columns of q");
  POSLSH_CHECK(v.rows == k.rows, "rows of v", v.rows, "tokens, the rows of k");
}

/// The streaming kernel over views; outputs must not overlap inputs, shapes and options have been checked. Returns the
/// number of pairs visited.
template <class T, PositionBias B>
Index attend(Strided<const T> q, Strided<const T> k, Strided<const T> v, const B& bias, const Placement& place,
            const AttentionOptions& options, Strided<T> values, Strided<double> log_sum_exp) {
  if (q.rows == 0) return 0;
  const KeyRange reach{place.visible(bias.support(place.query_position(0)), 0).begin,
                       place.visible(bias.support(place.query_position(q.rows - 1)), q.rows - 1).end};
  const PackedKeys<T> packed(k, reach, options.threads);
  const BiasRows<B, T> bias_rows(bias, place);
  std::optional<KeyGroups<T>> groups;
  if constexpr (BoundedTail<B>)
    if (options.tolerance > 0) groups.emplace(k, reach, moments_pay(bias, q.cols), options.threads);
  const Head<T, B> head{q,
                        v,
                        packed,
                        place,
                        bias,
                        bias_rows,
                        groups ? &*groups : nullptr,
                        static_cast<T>(score_scale(options, q.cols)),
                        options.softcap.value_or(0),
                        options.sink.value_or(minus_infinity),
                        options.tolerance};
  const Index tiles = (q.rows + query_tile - 1) / query_tile;
  std::vector<std::unique_ptr<TileSweep<T, B>>> sweeps(
      static_cast<std::size_t>(std::min<Index>(options.threads, tiles)));
  parallel_for(tiles, options.threads, [&](Index task, int worker) {
    std::unique_ptr<TileSweep<T, B>>& sweep = sweeps[static_cast<std::size_t>(worker)];
    if (!sweep) sweep = std::make_unique<TileSweep<T, B>>(head);
    sweep->run((tiles - 1 - task) * query_tile, values, log_sum_exp);  // under causality the last tiles cost most
  });
  Index visited_pairs = 0;
  for (const std::unique_ptr<TileSweep<T, B>>& sweep : sweeps)
    if (sweep) visited_pairs += sweep->visited_pairs();
  return visited_pairs;
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
  using T = typename Q::Scalar;
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "attention computes in float or double");
  static_assert(std::is_same_v<T, typename K::Scalar> && std::is_same_v<T, typename V::Scalar>,
                "q, k and v must have one scalar type");
  const detail::Viewed<Q> query_view(q);
  const detail::Viewed<K> key_view(k);
  const detail::Viewed<V> value_view(v);
  const detail::Strided<const T> queries = query_view.view(), keys = key_view.view(), tokens = value_view.view();
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
    const Index visited = detail::attend<T>(queries, keys, tokens, bias, place, options, detail::strided(copy.values),
                                            detail::strided(copy.log_sum_exp));
    values = copy.values;
    log_sum_exp = copy.log_sum_exp;
    return visited;
  }
  return detail::attend<T>(queries, keys, tokens, bias, place, options, out, lse);
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
///                 any strides; read in place where they have memory
/// \param bias     NoBias, AlibiBias, FixedBlocks, MeanMask or a type of your own, see PositionBias
/// \param options  see AttentionOptions
/// A key that may not be seen is skipped, never multiplied by zero: NaN behind a mask leaves no trace, NaN at a seen
/// key spoils its own rows only. Scores and sums within a tile are computed in the scalar type, row sums in double.
/// \throws Error on shapes that do not belong together and on options or biases out of range
/// Cost: 4 head_dim flops (with value_dim = head_dim) a visible pair; memory beyond the outputs: one copy of the keys
/// and about half a megabyte a thread. Thread safe; the same bits for any number of threads.
template <class Q, class K, class V, PositionBias B>
[[nodiscard]] AttentionOutput<typename Q::Scalar> attention(const Eigen::DenseBase<Q>& q, const Eigen::DenseBase<K>& k,
                                                            const Eigen::DenseBase<V>& v, const B& bias,
                                                            const AttentionOptions& options = {}) {
  AttentionOutput<typename Q::Scalar> output{Matrix<typename Q::Scalar>(q.rows(), v.cols()), Vector<double>(q.rows())};
  attention_into(q, k, v, bias, options, output.values, output.log_sum_exp);
  return output;
}

}  // namespace poslsh::inline POSLSH_SIMD
