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

/// Adds the gradients of Merge::mean, draw by draw; returns that by the sink. The forward pass of each draw is computed
/// anew: the mean keeps no log-sum-exp of a draw.
template <class T, class S>
double differentiate_mean(Strided<const T> queries, Strided<const S> keys, Strided<const S> values,
                          std::span<const PositionHash> hashes, Strided<const T> d_values,
                          const AttentionOptions& options, const GradientViews<T>& gradients) {
  const Placement place = detail::place(queries.rows, keys.rows, options);
  double total_weight = 0, d_sink = 0;
  for (const PositionHash& hash : hashes) total_weight += hash.weight;
  AttentionOutput<T> part{Matrix<T>(queries.rows, values.cols), Vector<double>(queries.rows)};
  const AttentionOutput<T>& output = part;
  for (const PositionHash& hash : hashes) {
    const OneMask mask{&hash};
    attend_into<T, S>(queries, keys, values, mask, place, options, strided(part.values), strided(part.log_sum_exp));
    d_sink += differentiate<T, S>(queries, keys, values,
                                  {strided(output.values), strided(output.log_sum_exp), d_values,
                                   static_cast<T>(hash.weight / total_weight)},
                                  mask, place, options, gradients)
                  .sink;
  }
  return d_sink;
}

}  // namespace detail

/// Gradients of blockwise_attention(), see attention_backward().
///
/// Merge::ratio: attention_backward() under MeanMask(hashes), in one sweep over the union of the blocks, from the
/// log-sum-exps of all draws. Merge::mean: the sum over the draws of w_r / sum w times the gradients of the draw's own
/// attention, whose forward pass is computed anew; forward serves for its shape only.
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
  detail::check_merge(merge);
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
