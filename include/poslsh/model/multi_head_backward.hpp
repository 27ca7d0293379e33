// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Gradients of multi_head_attention().

#include "poslsh/attention/backward.hpp"
#include "poslsh/model/multi_head.hpp"

namespace poslsh::inline POSLSH_SIMD {

/// Derivatives by the numbers of one bias and by the sink, over all rows that used it; see AttentionGradients.
struct HeadGradients {
  double dslope = 0,     ///< see AttentionGradients::dslope
      dright_slope = 0,  ///< see AttentionGradients::dright_slope
      dsink = 0;         ///< see AttentionGradients::dsink
};

namespace detail {

template <class T>
void set_zero(const TensorView<T>& tensor) {
  for (Index item = 0; item < tensor.batch; ++item)
    for (Index head = 0; head < tensor.heads; ++head)
      for (Index row = 0; row < tensor.tokens; ++row)
        std::fill_n(head_of(tensor, item, head).row(row), tensor.features, T(0));
}

template <class A, class B>
void check_same_shape(const TensorView<A>& tensor, const TensorView<B>& wanted, const char* name, const char* rule) {
  POSLSH_CHECK(tensor.batch == wanted.batch, (std::string("batch of ") + name).c_str(), tensor.batch, rule);
  POSLSH_CHECK(tensor.heads == wanted.heads, (std::string("heads of ") + name).c_str(), tensor.heads, rule);
  POSLSH_CHECK(tensor.tokens == wanted.tokens, (std::string("tokens of ") + name).c_str(), tensor.tokens, rule);
  POSLSH_CHECK(tensor.features == wanted.features, (std::string("features of ") + name).c_str(), tensor.features, rule);
}

}  // namespace detail

/// Gradients of multi_head_attention() by q, k, v and the numbers of each bias: those of attention_backward() for each
/// head of each sequence, summed over the query heads that share keys and over the rows that share a bias.
///
/// \param q, k, v, biases, options  as they were given to multi_head_attention()
/// \param out, log_sum_exp  what it left: batch x query heads x queries x value_dim, and batch x query heads x queries
/// \param d_out       of the shape of out: the derivative of a number L by it
/// \param dq, dk, dv  of the shapes of q, k and v; overwritten. They must not overlap the inputs or each other.
/// \returns one entry a bias
/// A row of no sequence, a row without visible keys and a key that no query sees have gradient 0; what out and d_out hold
/// in a row of no sequence is not read.
/// \throws Error where multi_head_attention() does, on other shapes, and on outputs that overlap an input
/// Cost and memory: those of attention_backward() a head; of few heads one at a time, else of as many as there are
/// threads. The same bits for any number of threads. Thread safe.
template <class T, PositionBias B, class Storage = T>
std::vector<HeadGradients> multi_head_attention_backward(
    TensorView<const std::type_identity_t<T>> q, TensorView<const std::type_identity_t<Storage>> k,
    TensorView<const std::type_identity_t<Storage>> v, TensorView<const std::type_identity_t<T>> out,
    const double* log_sum_exp, TensorView<const std::type_identity_t<T>> d_out, TensorView<T> dq,
    TensorView<std::type_identity_t<T>> dk, TensorView<std::type_identity_t<T>> dv, std::span<const B> biases,
    const MultiHeadOptions& options = {}) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "gradients are computed in float or double");
  static_assert(std::is_same_v<detail::Compute<Storage>, T>, "Storage is T, or for float half or bfloat16");
  detail::check_heads<T, Storage, B>(q, k, v, biases);
  detail::check_tensor(out, "out");
  detail::check_tensor(d_out, "d_out");
  const TensorView<const T> value_shape{nullptr, q.batch, q.heads, q.tokens, v.features};
  detail::check_same_shape(out, value_shape, "out", "that of multi_head_attention()'s output");
  detail::check_same_shape(d_out, value_shape, "d_out", "that of multi_head_attention()'s output");
  detail::check_same_shape(dq, q, "dq", "that of q");
  detail::check_same_shape(dk, k, "dk", "that of k");
  detail::check_same_shape(dv, v, "dv", "that of v");
  detail::check_output(dq, "dq");
  detail::check_output(dk, "dk");
  detail::check_output(dv, "dv");
  const auto check_apart = [&](const TensorView<T>& gradient, const char* name) {
    POSLSH_CHECK(!detail::overlap(gradient, q) && !detail::overlap(gradient, k) && !detail::overlap(gradient, v) &&
                     !detail::overlap(gradient, out) && !detail::overlap(gradient, d_out),
                 name, "an input", "memory of its own");
  };
  check_apart(dq, "overlap of dq");
  check_apart(dk, "overlap of dk");
  check_apart(dv, "overlap of dv");
  POSLSH_CHECK(!detail::overlap(dq, dk) && !detail::overlap(dq, dv) && !detail::overlap(dk, dv), "overlap of dq, dk and dv",
               "another gradient", "memory of their own");
  const std::vector<detail::Sequence> all = detail::sequences(q.batch, q.tokens, k.tokens, options);
  std::vector<HeadGradients> numbers(biases.size());
  detail::set_zero(dq);
  detail::set_zero(dk);
  detail::set_zero(dv);
  if (q.batch == 0 || q.heads == 0 || q.tokens == 0) return numbers;
  POSLSH_CHECK(log_sum_exp != nullptr, "log_sum_exp", "null", "that of multi_head_attention()");
  const auto lse_view = TensorView<const double>::heads_first(log_sum_exp, q.batch, q.heads, q.tokens, 1);

  const Index group = q.heads / k.heads;
  std::vector<detail::ScalarGradients> parts(all.size() * static_cast<std::size_t>(q.heads));
  const auto part_of = [&](std::size_t sequence, Index head) {
    return sequence * static_cast<std::size_t>(q.heads) + static_cast<std::size_t>(head);
  };
  // Heads that share keys add to the same gradients, one after the other. No two groups share any: packed sequences are
  // rows of one item, and padding leaves rows of one head.
  detail::each_group(all, k.heads, options.attention.threads, [&](std::size_t number, Index key_head, int threads) {
    const detail::Sequence& sequence = all[number];
    const Index item = sequence.item;
    AttentionOptions own = options.attention;
    own.threads = threads;
    for (Index head = key_head * group; head < (key_head + 1) * group; ++head) {
      const auto of_queries = [&](const auto& tensor) {
        return detail::rows_of_head(tensor, item, head, sequence.queries);
      };
      const auto of_keys = [&](const auto& tensor) {
        return detail::rows_of_head(tensor, item, key_head, sequence.keys);
      };
      parts[part_of(number, head)] = detail::differentiate<T, Storage>(
          of_queries(q), of_keys(k), of_keys(v), {of_queries(out), of_queries(lse_view), of_queries(d_out)},
          biases[detail::bias_number(biases.size(), q.heads, item, head)], sequence.place, own,
          {of_queries(dq), of_keys(dk), of_keys(dv)});
    }
  });
  for (std::size_t m = 0; m < all.size(); ++m)
    for (Index head = 0; head < q.heads; ++head) {
      const detail::ScalarGradients& part = parts[part_of(m, head)];
      HeadGradients& sum = numbers[detail::bias_number(biases.size(), q.heads, all[m].item, head)];
      sum.dslope += part.slope;
      sum.dright_slope += part.right_slope;
      sum.dsink += part.sink;
    }
  return numbers;
}

/// The same with the biases in a vector.
template <class T, PositionBias B, class Storage = T>
std::vector<HeadGradients> multi_head_attention_backward(
    TensorView<const std::type_identity_t<T>> q, TensorView<const std::type_identity_t<Storage>> k,
    TensorView<const std::type_identity_t<Storage>> v, TensorView<const std::type_identity_t<T>> out,
    const double* log_sum_exp, TensorView<const std::type_identity_t<T>> d_out, TensorView<T> dq,
    TensorView<std::type_identity_t<T>> dk, TensorView<std::type_identity_t<T>> dv, const std::vector<B>& biases,
    const MultiHeadOptions& options = {}) {
  return multi_head_attention_backward<T, B, Storage>(q, k, v, out, log_sum_exp, d_out, dq, dk, dv,
                                                      std::span<const B>(biases), options);
}

}  // namespace poslsh::inline POSLSH_SIMD
