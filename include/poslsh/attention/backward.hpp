// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Gradients of attention with a positional bias, from its output and log-sum-exps: memory O(n d), never n x n.

#include "poslsh/attention/attention.hpp"
#include "poslsh/attention/backward_sweep.hpp"

#include <memory>
#include <vector>

namespace poslsh::inline POSLSH_SIMD {

/// Derivatives of a number L that depends on the values of an attention call.
template <class T>
struct AttentionGradients {
  Matrix<T> dq,             ///< by q, of its shape
      dk,                   ///< by k
      dv;                   ///< by v
  double dslope = 0;        ///< by AlibiBias::slope, of keys at or before the query; 0 for a bias without slopes
  double dright_slope = 0;  ///< by AlibiBias::right_slope, of later keys; for one tied slope add both
  double dsink = 0;         ///< by AttentionOptions::sink; 0 without one
};

namespace detail {

/// Checks that the output of a forward pass and the derivative by its values belong to it.
template <class T>
void check_output(const ForwardViews<T>& output, Index queries, Index features) {
  POSLSH_CHECK(output.values.rows == queries, "rows of forward.values", output.values.rows, "the rows of q");
  POSLSH_CHECK(output.values.cols == features, "columns of forward.values", output.values.cols,
               "value_dim, the columns of v");
  POSLSH_CHECK(output.log_sum_exp.rows == queries && output.log_sum_exp.cols == 1, "size of forward.log_sum_exp",
               output.log_sum_exp.rows * output.log_sum_exp.cols, "the rows of q, as one column");
  POSLSH_CHECK(output.d_values.rows == queries, "rows of d_values", output.d_values.rows, "the rows of q");
  POSLSH_CHECK(output.d_values.cols == features, "columns of d_values", output.d_values.cols,
               "value_dim, the columns of v");
}

/// Tells others that a task failed, unless it finished.
class TurnsGuard {
 public:
  explicit TurnsGuard(Turns* turns) : turns_(turns) {}
  TurnsGuard(const TurnsGuard&) = delete;
  TurnsGuard& operator=(const TurnsGuard&) = delete;
  ~TurnsGuard() {
    if (turns_ != nullptr && !finished_) turns_->give_up();
  }
  void finish() { finished_ = true; }

 private:
  Turns* turns_;
  bool finished_ = false;
};

/// The backward pass over views; shapes and options have been checked. Adds to the gradients, which must not overlap
/// the inputs, and returns those by single numbers.
///
/// Tiles of queries are the tasks; each keeps its own dQ. To dK and dV of a key tile they add in their turn, so that
/// the order of the sums does not depend on the threads and every product is computed once.
template <class T, class S, PositionBias B>
ScalarGradients differentiate(Strided<const T> q, Strided<const S> k, Strided<const S> v, const ForwardViews<T>& output,
                              const B& bias, const Placement& place, const AttentionOptions& options,
                              const GradientViews<T>& gradients) {
  const KeyRange seen = reach(bias, place);
  const PreparedKeys<T, S> keys(k, seen, may_skip<B>(options), want_moments(bias, q.cols), options.threads);
  const PackedKeys<T, S> values(v, seen, options.threads);
  const Head<T, S, B> forward(q, v, keys, bias, place, options);
  const BackwardHead<T, S, B> head{forward, k, values, output, options.sink.value_or(minus_infinity)};
  const GradientRows<T> dk(gradients.dk), dv(gradients.dv);

  const Index tiles = forward.tiles();
  const auto first_query = [&](Index task) { return (tiles - 1 - task) * query_tile; };  // the last may cost most
  std::vector<std::vector<KeyRange>> visits(static_cast<std::size_t>(tiles));
  parallel_for(tiles, options.threads, [&](Index task, int) {
    visits[static_cast<std::size_t>(task)] = keys_to_visit(head, first_query(task));
  });
  std::unique_ptr<Turns> turns;
  if (options.threads > 1 && tiles > 1) {
    turns = std::make_unique<Turns>(place.keys / backward_keys + 1);
    for (Index task = 0; task < tiles; ++task)
      for (const KeyRange& range : visits[static_cast<std::size_t>(task)])
        for (Index tile = range.begin / backward_keys; tile * backward_keys < range.end; ++tile)
          turns->expect(tile, task);
  }

  using Sweep = BackwardSweep<T, S, B>;
  std::vector<std::unique_ptr<Sweep>> sweeps(static_cast<std::size_t>(std::min<Index>(options.threads, tiles)));
  std::vector<ScalarGradients> parts(static_cast<std::size_t>(tiles));
  parallel_for(tiles, options.threads, [&](Index task, int worker) {
    TurnsGuard guard(turns.get());
    std::unique_ptr<Sweep>& sweep = sweeps[static_cast<std::size_t>(worker)];
    if (!sweep) sweep = std::make_unique<Sweep>(head, dk, dv, gradients.dq);
    const std::size_t place_of_task = static_cast<std::size_t>(task);
    if (!sweep->run(first_query(task), visits[place_of_task], turns.get(), task)) return;
    parts[place_of_task] = sweep->scalars();
    guard.finish();
  });
  dk.finish();
  dv.finish();
  ScalarGradients sum;
  for (const ScalarGradients& part : parts) {
    sum.slope += part.slope;
    sum.right_slope += part.right_slope;
    sum.sink += part.sink;
  }
  return sum;
}

}  // namespace detail

/// Gradients of attention(): with dO = d_values, the derivative of L by the values,
///
///   P_ij = exp(z_ij - lse_i),  D_i = dO_i . values_i,  dz_ij = P_ij (dO_i . v_j - D_i),
///   dV = P^T dO,  dQ = scale dZ' K,  dK = scale dZ'^T Q,
///   dslope = sum_(j <= i) dz_ij (j - i),  dright_slope = sum_(j > i) dz_ij (i - j),  dsink = -sum_i exp(sink - lse_i) D_i,
///
/// over the pairs that attention() sees; dZ' = dZ (1 - tanh^2(score / softcap)) under a softcap, else dZ. A row without
/// visible keys, and a key that no query sees, have gradient 0.
///
/// \param q, k, v, bias, options  as they were given to attention()
/// \param forward   its output. For keys in shards, that of all: merge() of the outputs of the shards; the gradients by
///                  q, slopes and sink are then the sums over the shards
/// \param d_values  queries x value_dim, any Eigen expression of the scalar type of the values
/// A pair that may not be seen is skipped, never multiplied by zero: NaN behind a mask leaves no trace, in q and
/// d_values as little as in k and v. With options.tolerance, keys are left out whose weights P_ij sum to at most
/// tolerance in each row, whether or not the forward pass visited them.
/// \throws Error where attention() does, and unless forward and d_values have the shapes of its output
/// Cost: 10 head_dim flops (with value_dim = head_dim) a visible pair; memory beyond the gradients: a copy each of keys
/// and values, one of their gradients where value_dim or head_dim is not a multiple of the packet, and about half a
/// megabyte a thread. Thread safe; the same bits for any number of threads.
template <class Q, class K, class V, class G, PositionBias B>
[[nodiscard]] AttentionGradients<detail::Compute<typename Q::Scalar>> attention_backward(
    const Eigen::DenseBase<Q>& q, const Eigen::DenseBase<K>& k, const Eigen::DenseBase<V>& v,
    const AttentionOutput<detail::Compute<typename Q::Scalar>>& forward, const Eigen::DenseBase<G>& d_values,
    const B& bias, const AttentionOptions& options = {}) {
  using S = typename K::Scalar;
  using T = detail::Compute<typename Q::Scalar>;
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "gradients are computed in float or double");
  static_assert(std::is_same_v<S, typename V::Scalar> && std::is_same_v<T, detail::Compute<S>>,
                "q, k and v must have one scalar type; or k and v half or bfloat16, and q the same or float");
  static_assert(std::is_same_v<T, detail::Compute<typename G::Scalar>>, "d_values must have the type of the values");
  const detail::Viewed<Q, T> query_view(q);
  const detail::Viewed<K> key_view(k);
  const detail::Viewed<V> value_view(v);
  const detail::Viewed<G, T> d_value_view(d_values);
  const detail::Strided<const T> queries = query_view.view();
  const detail::Strided<const S> keys = key_view.view(), values = value_view.view();
  detail::check_shapes(queries, keys, values);
  const detail::ForwardViews<T> output{detail::strided(forward.values), detail::strided(forward.log_sum_exp),
                                       d_value_view.view()};
  detail::check_output(output, queries.rows, values.cols);
  const detail::Placement place = detail::place(queries.rows, keys.rows, options);
  detail::validate(bias);
  AttentionGradients<T> gradients{Matrix<T>::Zero(q.rows(), q.cols()), Matrix<T>::Zero(k.rows(), k.cols()),
                                  Matrix<T>::Zero(v.rows(), v.cols())};
  const detail::ScalarGradients scalars = detail::differentiate<T, S>(
      queries, keys, values, output, bias, place, options,
      {detail::strided(gradients.dq), detail::strided(gradients.dk), detail::strided(gradients.dv)});
  gradients.dslope = scalars.slope;
  gradients.dright_slope = scalars.right_slope;
  gradients.dsink = scalars.sink;
  return gradients;
}

}  // namespace poslsh::inline POSLSH_SIMD
