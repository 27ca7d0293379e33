// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Attention with positional bias as a differentiable PyTorch operator.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <poslsh/poslsh.hpp>

#include <span>
#include <vector>

namespace poslsh_torch {

using poslsh::Index;

/// What poslsh::MultiHeadOptions says, with memory of its own, since the backward pass comes later; see there.
struct LayerOptions {
  poslsh::AttentionOptions attention = {};
  std::vector<poslsh::KeyRange> valid_keys = {};
  std::vector<Index> query_starts = {}, key_starts = {};
};

namespace detail {

/// The tensor with unit stride of features: itself wherever possible.
inline at::Tensor readable(const at::Tensor& tensor) {
  return tensor.dim() == 4 && (tensor.stride(3) == 1 || tensor.size(3) <= 1) ? tensor : tensor.contiguous();
}

/// A batch x heads x tokens x features tensor where it lies.
template <class T>
poslsh::TensorView<T> view(const at::Tensor& tensor) {
  return {tensor.data_ptr<std::remove_const_t<T>>(), tensor.size(0),   tensor.size(1),   tensor.size(2),
          tensor.size(3),                            tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

/// Uninitialised batch x heads x tokens x features whose memory has the order batch, tokens, heads: joining the heads of
/// a token costs nothing.
inline at::Tensor tokens_first(const at::Tensor& like, Index features) {
  const Index heads = like.size(1), tokens = like.size(2);
  return at::empty_strided({like.size(0), heads, tokens, features},
                           {tokens * heads * features, features, heads * features, 1}, like.options());
}

inline void check(const at::Tensor& tensor, const at::Tensor& q, const char* name) {
  TORCH_CHECK(tensor.defined() && tensor.dim() == 4, name, " must be batch x heads x tokens x features");
  TORCH_CHECK(tensor.device().is_cpu() && tensor.layout() == at::kStrided, name, " must be a dense tensor on the CPU");
  TORCH_CHECK(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble, name,
              " must be float or double, not ", tensor.scalar_type());
  TORCH_CHECK(tensor.scalar_type() == q.scalar_type(), name, " must have the type of q, ", q.scalar_type(), ", not ",
              tensor.scalar_type());
}

inline void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  check(q, q, "q");
  check(k, q, "k");
  check(v, q, "v");
}

/// run(T()) for the type of a tensor.
template <class Run>
void dispatch(const at::Tensor& tensor, Run&& run) {
  if (tensor.scalar_type() == at::kFloat)
    run(float());
  else
    run(double());
}

/// What a call keeps for its backward pass beside tensors.
template <class B>
struct Call : torch::CustomClassHolder {
  Call(std::vector<B> all, LayerOptions layer) : biases(std::move(all)), own(std::move(layer)) {}

  [[nodiscard]] poslsh::MultiHeadOptions options() const {
    return {own.attention, own.valid_keys, own.query_starts, own.key_starts};
  }

  std::vector<B> biases;
  LayerOptions own;
};

template <class Kept>
const Kept& kept(torch::autograd::AutogradContext& context) {
  return static_cast<const Kept&>(*context.saved_data["call"].toCapsule());
}

/// The kernels hand back plain numbers, of which PyTorch could not differentiate further.
inline void refuse_second_derivatives() {
  TORCH_CHECK(!at::GradMode::is_enabled(), "attention has no second derivatives: backward without create_graph");
}

using OptionalTensor = c10::optional<at::Tensor>;

/// multi_head_attention and its backward pass. slopes, right_slopes and sink, if any, are tensors whose values are in the
/// call already: they only receive gradients.
template <class B>
struct Attention : torch::autograd::Function<Attention<B>> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const OptionalTensor& slopes, const OptionalTensor& right_slopes,
                            const OptionalTensor& sink, c10::intrusive_ptr<Call<B>> call) {
    const at::Tensor queries = readable(q), keys = readable(k), values = readable(v);
    const at::Tensor out = tokens_first(q, v.size(3));
    const at::Tensor log_sum_exp = at::empty({q.size(0), q.size(1), q.size(2)}, at::kDouble);
    dispatch(q, [&](auto zero) {
      using T = decltype(zero);
      poslsh::multi_head_attention<T>(view<const T>(queries), view<const T>(keys), view<const T>(values), view<T>(out),
                                      call->biases, call->options(), log_sum_exp.data_ptr<double>());
    });
    const at::Tensor none;
    context->save_for_backward({queries, keys, values, out, log_sum_exp, slopes.value_or(none),
                                right_slopes.value_or(none), sink.value_or(none)});
    context->saved_data["call"] = at::IValue::make_capsule(call);
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    refuse_second_derivatives();
    const Call<B>& call = kept<Call<B>>(*context);
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3];
    const at::Tensor d_out = readable(gradients[0]);
    const at::Tensor dq = tokens_first(q, q.size(3)), dk = tokens_first(k, k.size(3)), dv = tokens_first(v, v.size(3));
    std::vector<poslsh::HeadGradients> numbers;
    dispatch(q, [&](auto zero) {
      using T = decltype(zero);
      numbers = poslsh::multi_head_attention_backward<T>(
          view<const T>(q), view<const T>(k), view<const T>(v), view<const T>(out), saved[4].data_ptr<double>(),
          view<const T>(d_out), view<T>(dq), view<T>(dk), view<T>(dv), call.biases, call.options());
    });
    // The sums of one number a bias, in the shape and type of the tensor they belong to.
    const auto of = [&](const at::Tensor& parameter, double poslsh::HeadGradients::*number) {
      if (!parameter.defined()) return at::Tensor();
      at::Tensor sums = at::zeros({static_cast<Index>(numbers.size())}, at::kDouble);
      for (std::size_t b = 0; b < numbers.size(); ++b) sums.data_ptr<double>()[b] = numbers[b].*number;
      return (parameter.numel() == 1 ? sums.sum() : sums).reshape(parameter.sizes()).to(parameter.scalar_type());
    };
    return {dq, dk, dv, of(saved[5], &poslsh::HeadGradients::dslope),
            of(saved[6], &poslsh::HeadGradients::dright_slope), of(saved[7], &poslsh::HeadGradients::dsink), at::Tensor()};
  }
};

/// blockwise_attention with Merge::mean and its backward pass, head by head.
struct MeanMergeAttention : torch::autograd::Function<MeanMergeAttention> {
  using Hashes = std::vector<poslsh::PositionHash>;

  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, c10::intrusive_ptr<Call<Hashes>> call) {
    const at::Tensor queries = readable(q), keys = readable(k), values = readable(v);
    const at::Tensor out = tokens_first(q, v.size(3));
    each_head(*call, q, [&](Index item, Index head, const auto& hashes, const auto& options, auto zero) {
      using T = decltype(zero);
      rows<T>(out, item, head) =
          poslsh::blockwise_attention(rows<T>(queries, item, head), rows<T>(keys, item, head),
                                      rows<T>(values, item, head), hashes, options, poslsh::Merge::mean)
              .values;
    });
    context->save_for_backward({queries, keys, values});
    context->saved_data["call"] = at::IValue::make_capsule(call);
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    refuse_second_derivatives();
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], d_out = readable(gradients[0]);
    const at::Tensor dq = tokens_first(q, q.size(3)), dk = tokens_first(k, k.size(3)), dv = tokens_first(v, v.size(3));
    each_head(kept<Call<Hashes>>(*context), q,
              [&](Index item, Index head, const auto& hashes, const auto& options, auto zero) {
                using T = decltype(zero);
                const poslsh::AttentionOutput<T> shape{poslsh::Matrix<T>::Zero(q.size(2), v.size(3)),
                                                       poslsh::Vector<double>::Zero(q.size(2))};
                const poslsh::AttentionGradients<T> all = poslsh::blockwise_attention_backward(
                    rows<T>(q, item, head), rows<T>(k, item, head), rows<T>(v, item, head), hashes, shape,
                    rows<T>(d_out, item, head), options, poslsh::Merge::mean);
                rows<T>(dq, item, head) = all.dq;
                rows<T>(dk, item, head) = all.dk;
                rows<T>(dv, item, head) = all.dv;
              });
    return {dq, dk, dv, at::Tensor()};
  }

 private:
  template <class T>
  using Rows = Eigen::Map<poslsh::Matrix<T>, 0, Eigen::OuterStride<>>;

  template <class T>
  static Rows<T> rows(const at::Tensor& tensor, Index item, Index head) {
    T* const data = tensor.data_ptr<T>() + item * tensor.stride(0) + head * tensor.stride(1);
    return {data, tensor.size(2), tensor.size(3), Eigen::OuterStride<>(tensor.stride(2))};
  }

  /// run(item, head, hashes, options, T()), one after the other: threads work on the blocks of a head.
  template <class Run>
  static void each_head(const Call<Hashes>& call, const at::Tensor& q, Run&& run) {
    for (Index item = 0; item < q.size(0); ++item)
      for (Index head = 0; head < q.size(1); ++head)
        dispatch(q, [&](auto zero) {
          run(item, head, std::span<const poslsh::PositionHash>(call.biases[static_cast<std::size_t>(head)]),
              call.own.attention, zero);
        });
  }
};

}  // namespace detail

/// Attention of every head of every batch item, as poslsh::multi_head_attention computes it, with gradients.
///
/// \param q, k, v  batch x heads x tokens x features on the CPU, float or double; read where they lie if the features
///                 have unit stride, slices of one larger tensor too
/// \param biases   one a query head, or one a batch item and query head: NoBias, AlibiBias, KernelBias<K>, FixedBlocks,
///                 MeanMask, or any type of one's own that is a poslsh::PositionBias
/// \returns batch x query heads x queries x value features; its memory has the order batch, tokens, heads, so that
///          transpose(1, 2).reshape(batch, tokens, -1) copies nothing
/// \throws c10::Error on other tensors, poslsh::Error where multi_head_attention does
/// Cost: that of multi_head_attention and multi_head_attention_backward. Kept for the backward pass: q, k, v, the output
/// and one number a query; no tokens x tokens matrix. Only first derivatives: create_graph is refused.
template <poslsh::PositionBias B>
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::vector<B> biases,
                     LayerOptions options = {}) {
  detail::check(q, k, v);
  const detail::OptionalTensor none;
  return detail::Attention<B>::apply(q, k, v, none, none, none,
                                     c10::make_intrusive<detail::Call<B>>(std::move(biases), std::move(options)));
}

/// The same with ALiBi's slopes, and a sink, as tensors that may be learned.
///
/// \param slopes        one a head, or one a batch item and head
/// \param right_slopes  the same for keys after the query; undefined: slopes are for both sides
/// \param sink          a single number; undefined: that of the options
inline at::Tensor alibi_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& slopes,
                                  const at::Tensor& right_slopes = {}, const at::Tensor& sink = {},
                                  LayerOptions options = {}) {
  detail::check(q, k, v);
  TORCH_CHECK(!right_slopes.defined() || right_slopes.sizes() == slopes.sizes(),
              "right_slopes must have the shape of slopes, ", slopes.sizes(), ", not ", right_slopes.sizes());
  TORCH_CHECK(!sink.defined() || sink.numel() == 1, "sink must be a single number, not ", sink.sizes());
  // Where one tensor serves both sides it is given twice, and autograd adds what the two receive.
  const at::Tensor& right = right_slopes.defined() ? right_slopes : slopes;
  const at::Tensor left_numbers = slopes.detach().to(at::kDouble).contiguous();
  const at::Tensor right_numbers = right.detach().to(at::kDouble).contiguous();
  std::vector<poslsh::AlibiBias> biases;
  for (Index b = 0; b < slopes.numel(); ++b)
    biases.push_back({left_numbers.data_ptr<double>()[b], right_numbers.data_ptr<double>()[b]});
  if (sink.defined()) options.attention.sink = sink.item<double>();
  return detail::Attention<poslsh::AlibiBias>::apply(
      q, k, v, detail::OptionalTensor(slopes), detail::OptionalTensor(right),
      sink.defined() ? detail::OptionalTensor(sink) : c10::nullopt,
      c10::make_intrusive<detail::Call<poslsh::AlibiBias>>(std::move(biases), std::move(options)));
}

/// poslsh::blockwise_attention with Merge::mean for every head: the average of the draws' outputs, as the published
/// training runs had it. One list of hashes a head; the options' padding and packing must be empty.
inline at::Tensor mean_merge_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                       std::vector<std::vector<poslsh::PositionHash>> hashes,
                                       const poslsh::AttentionOptions& options = {}) {
  detail::check(q, k, v);
  TORCH_CHECK(static_cast<Index>(hashes.size()) == q.size(1), "there must be one list of hashes a head, ", q.size(1),
              ", not ", hashes.size());
  TORCH_CHECK(k.size(1) == q.size(1) && v.size(1) == q.size(1), "k and v must have the heads of q");
  TORCH_CHECK(k.size(0) == q.size(0) && v.size(0) == q.size(0), "k and v must have the batch of q");
  using Kept = detail::Call<std::vector<poslsh::PositionHash>>;
  return detail::MeanMergeAttention::apply(q, k, v,
                                           c10::make_intrusive<Kept>(std::move(hashes), LayerOptions{options, {}, {}, {}}));
}

}  // namespace poslsh_torch
