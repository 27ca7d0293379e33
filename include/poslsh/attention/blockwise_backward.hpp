// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Gradients of attention over random blocks, for both merges.

#include "poslsh/attention/backward.hpp"
#include "poslsh/attention/blockwise.hpp"

#include <span>
#include <vector>

namespace poslsh::inline POSLSH_SIMD {
namespace detail {

/// Adds the gradients of one block of a draw, whose part in the values is `share`; returns that by the sink. The forward
/// pass is computed anew: the mean keeps no log-sum-exp of a draw.
template <class T, class S>
double differentiate_block(Strided<const T> queries, Strided<const S> keys, Strided<const S> values,
                           Strided<const T> d_values, T share, const AttentionOptions& local,
                           const GradientViews<T>& gradients) {
  const Placement place = detail::place(queries.rows, keys.rows, local);
  AttentionOutput<T> part{Matrix<T>(queries.rows, values.cols), Vector<double>(queries.rows)};
  attend_into<T, S>(queries, keys, values, NoBias{}, place, local, strided(part.values), strided(part.log_sum_exp));
  const AttentionOutput<T>& output = part;
  return differentiate<T, S>(queries, keys, values,
                             {strided(output.values), strided(output.log_sum_exp), d_values, share}, NoBias{}, place,
                             local, gradients)
      .sink;
}

/// Adds the gradients of Merge::mean, draw by draw; returns that by the sink. Blocks of one draw share no row.
template <class T, class S>
double differentiate_mean(Strided<const T> queries, Strided<const S> keys, Strided<const S> values,
                          std::span<const PositionHash> hashes, Strided<const T> d_values,
                          const AttentionOptions& options, const GradientViews<T>& gradients) {
  const Placement place = detail::place(queries.rows, keys.rows, options);
  double total_weight = 0, d_sink = 0;
  for (const PositionHash& hash : hashes) total_weight += hash.weight;
  for (const PositionHash& hash : hashes) {
    const std::vector<BlockPair> pairs = block_pairs(hash, place);
    std::vector<double> d_sinks(pairs.size());
    parallel_for(static_cast<Index>(pairs.size()), options.threads, [&](Index task, int) {
      const BlockPair& pair = pairs[static_cast<std::size_t>(task)];
      const auto of_queries = [&](const auto& rows) { return rows.middle_rows(pair.queries.begin, pair.queries.size()); };
      const auto of_keys = [&](const auto& rows) { return rows.middle_rows(pair.keys.begin, pair.keys.size()); };
      AttentionOptions local = options;
      local.scale = score_scale(options, queries.cols);
      local.query_offset = place.query_offset + pair.queries.begin;
      local.key_offset = place.key_offset + pair.keys.begin;
      local.threads = 1;
      d_sinks[static_cast<std::size_t>(task)] = differentiate_block<T, S>(
          of_queries(queries), of_keys(keys), of_keys(values), of_queries(d_values),
          static_cast<T>(hash.weight / total_weight), local,
          {of_queries(gradients.dq), of_keys(gradients.dk), of_keys(gradients.dv)});
    });
    for (const double part : d_sinks) d_sink += part;
  }
  return d_sink;
}

}  // namespace detail

/// Gradients of blockwise_attention(), see attention_backward().
///
/// Merge::ratio: attention_backward() under MeanMask(hashes), in one sweep over the union of the blocks, from the
/// log-sum-exps of all draws. Merge::mean: the sum over the draws of w_r / sum w times the gradients of the draw's own
/// attention, whose forward pass is computed anew, block by block; forward serves for its shape only.
///
/// \param q, k, v, hashes, options, merge  as they were given to blockwise_attention()
/// \param forward   its output; \param d_values  queries x value_dim, the derivative by its values
/// \throws Error where blockwise_attention() does, and unless forward and d_values have the shapes of its output
/// Cost: Merge::ratio 10 head_dim flops a pair that shares any block; Merge::mean 14 head_dim flops a pair and draw.
/// Thread safe; the same bits for any number of threads.
template <class Q, class K, class V, class G>
[[nodiscard]] AttentionGradients<detail::Compute<typename Q::Scalar>> blockwise_attention_backward(
    const Eigen::DenseBase<Q>& q, const Eigen::DenseBase<K>& k, const Eigen::DenseBase<V>& v,
    std::span<const PositionHash> hashes, const AttentionOutput<detail::Compute<typename Q::Scalar>>& forward,
    const Eigen::DenseBase<G>& d_values, const AttentionOptions& options = {}, Merge merge = Merge::ratio) {
  using S = typename K::Scalar;
  using T = detail::Compute<typename Q::Scalar>;
  const MeanMask mask(std::vector<PositionHash>(hashes.begin(), hashes.end()));
  if (merge == Merge::ratio) return attention_backward(q, k, v, forward, d_values, mask, options);
  const detail::Viewed<Q, T> query_view(q);
  const detail::Viewed<K> key_view(k);
  const detail::Viewed<V> value_view(v);
  const detail::Viewed<G, T> d_value_view(d_values);
  const detail::Strided<const T> queries = query_view.view();
  const detail::Strided<const S> keys = key_view.view(), values = value_view.view();
  detail::check_shapes(queries, keys, values);
  detail::check_output<T>({detail::strided(forward.values), detail::strided(forward.log_sum_exp), d_value_view.view()},
                          queries.rows, values.cols);
  AttentionGradients<T> gradients{Matrix<T>::Zero(q.rows(), q.cols()), Matrix<T>::Zero(k.rows(), k.cols()),
                                  Matrix<T>::Zero(v.rows(), v.cols())};
  gradients.dsink = detail::differentiate_mean<T, S>(
      queries, keys, values, hashes, d_value_view.view(), options,
      {detail::strided(gradients.dq), detail::strided(gradients.dk), detail::strided(gradients.dv)});
  return gradients;
}

}  // namespace poslsh::inline POSLSH_SIMD
