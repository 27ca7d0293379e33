// SPDX-License-Identifier: MIT

// multi_head_attention() and its gradients: batches, grouped heads, padding, packed sequences, tensors that lie in any way.
// Each head is what attention() gives alone, ordinary numbers what the definition says; invalid packings are Errors.

#include "fuzz/attention_inputs.hpp"
#include "poslsh/model/multi_head_backward.hpp"
#include "support/heads.hpp"

#include <algorithm>
#include <optional>

namespace poslsh::fuzz {
namespace {

using test::Layer;
using test::LayerOutput;
using test::LayerShape;
using test::Layout;
using test::Tensor;

template <class S>
Tensor<S> noise_tensor(Index batch, Index heads, Index tokens, Index features, Noise& noise, Bytes& bytes) {
  Tensor<S> tensor(batch, heads, tokens, features, bytes.PickValueInArray(test::all_layouts));
  for (Index item = 0; item < batch; ++item)
    for (Index head = 0; head < heads; ++head)
      for (Index token = 0; token < tokens; ++token)
        tensor.set_row(item, head, token, [&](Index) { return static_cast<S>(noise()); });
  return tensor;
}

/// Padding or a packing, with the memory that MultiHeadOptions points to.
struct Parts {
  std::vector<KeyRange> valid_keys;
  std::vector<Index> query_starts, key_starts;

  /// Good ones of both kinds, mostly, and then perhaps one number of any size.
  Parts(Bytes& bytes, const LayerShape& shape) {
    const Index kind = in_range(bytes, 0, 4);
    if (kind == 1)
      for (Index item = 0; item < shape.batch; ++item) {
        const Index end = in_range(bytes, 0, shape.keys);
        valid_keys.push_back({in_range(bytes, 0, end), end});
      }
    if (kind == 2) {
      query_starts = key_starts = {0};
      for (Index members = in_range(bytes, 0, 5); members > 0; --members) {
        query_starts.push_back(in_range(bytes, query_starts.back(), shape.queries));
        key_starts.push_back(in_range(bytes, key_starts.back(), shape.keys));
      }
    }
    if (bytes.ConsumeIntegral<std::uint8_t>() < 200) return;
    std::vector<Index>& starts = bytes.ConsumeBool() ? query_starts : key_starts;
    if (!starts.empty() && bytes.ConsumeBool())
      starts[static_cast<std::size_t>(in_range(bytes, 0, static_cast<Index>(starts.size()) - 1))] = any_index(bytes);
    else if (!valid_keys.empty())
      valid_keys.back() = {any_index(bytes), any_index(bytes)};
    else
      starts.push_back(any_index(bytes));
  }

  [[nodiscard]] MultiHeadOptions of(const AttentionOptions& attention) const {
    return {attention, valid_keys, query_starts, key_starts};
  }

  [[nodiscard]] bool valid(const AttentionOptions& options, const LayerShape& shape) const {
    const auto starts_good = [](const std::vector<Index>& starts, Index rows) {
      return starts.front() == 0 && std::is_sorted(starts.begin(), starts.end()) && starts.back() <= rows;
    };
    if (!query_starts.empty() || !key_starts.empty()) {
      if (query_starts.size() != key_starts.size() || shape.batch != 1 || !valid_keys.empty()) return false;
      if (options.query_offset || !fuzz::valid(options, 0, 0)) return false;
      if (!starts_good(query_starts, shape.queries) || !starts_good(key_starts, shape.keys)) return false;
      for (std::size_t m = 0; m + 1 < query_starts.size(); ++m)
        if (!fuzz::valid(options, query_starts[m + 1] - query_starts[m], key_starts[m + 1] - key_starts[m])) return false;
      return true;
    }
    if (!fuzz::valid(options, shape.queries, shape.keys)) return false;
    if (valid_keys.empty()) return true;
    if (static_cast<Index>(valid_keys.size()) != shape.batch) return false;
    return std::all_of(valid_keys.begin(), valid_keys.end(), [&](const KeyRange& range) {
      if (range.begin < 0 || range.begin > range.end || range.end > shape.keys) return false;
      AttentionOptions shifted = options;
      shifted.query_offset = test::first_query(options, shape.queries, shape.keys) - range.begin;
      return fuzz::valid(shifted, shape.queries, range.size());
    });
  }
};

/// Puts one size, stride or pointer of a tensor out of order. What may lie anywhere stays in memory.
template <class T>
void disturb(TensorView<T>& view, Bytes& bytes) {
  switch (in_range(bytes, 0, 4)) {
    case 0: view.batch += view.batch > 0 && bytes.ConsumeBool() ? -view.batch - 1 : 1; break;
    case 1: view.tokens += bytes.ConsumeBool() ? 1 : -view.tokens - 1; break;
    case 2: view.features += bytes.ConsumeBool() ? 1 : -view.features - 1; break;
    case 3: view.heads = -1 - view.heads; break;
    default: view.tokens = (Index{1} << 52) + 1;
  }
}

template <class T, class S, class B>
class Call {
 public:
  Call(Bytes& bytes, const LayerShape& shape, const Layer<T, S>& layer, std::vector<B> biases, const Parts& parts,
       const AttentionOptions& options)
      : bytes_(bytes), shape_(shape), layer_(layer), biases_(std::move(biases)), parts_(parts), options_(options),
        all_(parts.of(options)) {}

  /// \param good  whether the call is valid  \param ordinary  whether the definition gives ordinary numbers
  void run(bool good, bool ordinary) {
    const Layout layout = bytes_.PickValueInArray(test::all_layouts);
    std::optional<LayerOutput<T>> got;
    try {
      got = test::attend(layer_.view(), biases_, all_, layout);
    } catch (const Error&) {
    }
    require(got.has_value() == good, got ? "an invalid call was taken" : "a valid call is an Error");
    if (!got) return;
    if (ordinary) {
      const bool skips = options_.tolerance > 0;
      const std::string wrong = skips ? "" : test::layer_fault(*got, layer_.view(), biases_, all_, 64);
      require(wrong.empty(), wrong);
    }
    const std::string unlike = test::unlike_alone(*got, layer_.view(), biases_, all_);
    require(unlike.empty(), unlike);
    require_refused(*got);
    differentiate(*got, ordinary);
  }

 private:
  /// Tensors that do not belong together.
  void require_refused(LayerOutput<T>& got) {
    auto view = layer_.view();
    TensorView<T> out = got.values.view();
    switch (in_range(bytes_, 0, 7)) {
      case 4: disturb(view.q, bytes_); break;
      case 1: disturb(view.k, bytes_); break;
      case 2: disturb(view.v, bytes_); break;
      case 3: disturb(out, bytes_); break;
      default: return;
    }
    const LayerOutput<T> before = got;
    try {
      multi_head_attention<T, B, S>(view.q, view.k, view.v, out, biases_, all_);
    } catch (const Error&) {
      require(test::same_bits(before, got), "a refused call has written");
      return;
    }
    fail("tensors that do not belong together were taken");
  }

  struct Gradients {
    Tensor<T> dq, dk, dv;
    std::vector<HeadGradients> numbers;
  };
  [[nodiscard]] Gradients gradients(const LayerOutput<T>& got, const Tensor<T>& d_out, const MultiHeadOptions& options) const {
    const auto view = layer_.view();
    const auto like = [](const auto& tensor, Layout layout) {
      return Tensor<T>(tensor.batch, tensor.heads, tensor.tokens, tensor.features, layout);
    };
    Gradients all{like(view.q, Layout::tokens_first), like(view.k, Layout::heads_first), like(view.v, Layout::padded_rows), {}};
    all.numbers = multi_head_attention_backward<T, B, S>(view.q, view.k, view.v, got.values.view(), got.log_sum_exp.data(),
                                                         d_out.view(), all.dq.view(), all.dk.view(), all.dv.view(), biases_,
                                                         options);
    return all;
  }

  void differentiate(const LayerOutput<T>& got, bool ordinary) {
    Noise noise(9);
    const Tensor<T> d_out = noise_tensor<T>(shape_.batch, shape_.heads, shape_.queries, shape_.value_dim, noise, bytes_);
    const Gradients whole = gradients(got, d_out, all_);
    require(whole.numbers.size() == biases_.size(), "gradients: one entry a bias");
    const auto finite = [](const Tensor<T>& tensor) {
      const TensorView<const T> view = tensor.view();
      for (Index item = 0; item < view.batch; ++item)
        for (Index head = 0; head < view.heads; ++head)
          if (!test::rows_of(view, item, head).allFinite()) return false;
      return true;
    };
    require(!ordinary || (finite(whole.dq) && finite(whole.dk) && finite(whole.dv)),
            "a gradient of ordinary numbers is not finite");
    if (options_.threads == 1) return;
    MultiHeadOptions alone = all_;
    alone.attention.threads = 1;
    const Gradients again = gradients(got, d_out, alone);
    const auto same = [](const Tensor<T>& a, const Tensor<T>& b) {
      const TensorView<const T> view = a.view(), other = b.view();
      for (Index item = 0; item < view.batch; ++item)
        for (Index head = 0; head < view.heads; ++head)
          if (!test::same_numbers(test::rows_of(view, item, head), test::rows_of(other, item, head))) return false;
      return true;
    };
    require(same(whole.dq, again.dq) && same(whole.dk, again.dk) && same(whole.dv, again.dv), "gradients depend on the threads");
  }

  Bytes& bytes_;
  LayerShape shape_;
  const Layer<T, S>& layer_;
  std::vector<B> biases_;
  const Parts& parts_;
  AttentionOptions options_;
  MultiHeadOptions all_;
};

template <class T, class S = T>
void run(Bytes& bytes) {
  const auto tokens = [&] { return in_range(bytes, 0, bytes.ConsumeIntegral<std::uint8_t>() > 240 ? 130 : 10); };
  const auto features = [&] { return in_range(bytes, 0, bytes.ConsumeIntegral<std::uint8_t>() > 224 ? 24 : 5); };
  const Index key_heads = in_range(bytes, 1, 2), group = in_range(bytes, 1, 3);
  LayerShape shape{(in_range(bytes, 0, 3) + 1) % 4, key_heads * group, key_heads, tokens(), tokens(), features(), features()};
  while (shape.batch * shape.heads * shape.queries * shape.keys * (shape.head_dim + shape.value_dim + 4) > 20000)
    (shape.queries > shape.keys ? shape.queries : shape.keys) /= 2;
  const bool wild = bytes.ConsumeIntegral<std::uint8_t>() > 215;  // not where the bytes have run out
  AttentionOptions options = wild ? any_options(bytes) : ordinary_options(bytes, shape.queries, shape.keys);
  if (!wild && shape.head_dim == 0) options.scale = 1;  // the definition's own is infinite
  const Parts parts(bytes, shape);
  // One bias a head or one an item and head; sometimes another number of them.
  Index count = bytes.ConsumeBool() ? shape.heads : shape.batch * shape.heads;
  if (bytes.ConsumeIntegral<std::uint8_t>() > 248) count += in_range(bytes, -1, 2);
  const bool count_good = count == shape.heads || count == shape.batch * shape.heads;
  std::vector<AnyBias> biases;
  bool biases_good = true;
  for (Index b = 0; b < count; ++b) {
    biases.push_back(wild ? any_bias(bytes) : ordinary_bias(bytes));
    biases.back().kind = biases.front().kind;
    AnyBias& bias = biases.back();
    if (bias.kind == AnyBias::mean_mask && !bias.valid()) bias.hashes = {PositionHash{}};  // else there is no such object
    if (!wild && !bias.valid()) bias = {bias.kind, 0.5, 0.25, 7, {}};
    biases_good = biases_good && bias.valid();
  }
  if (biases.empty()) return;
  Noise noise(bytes.ConsumeIntegral<std::uint8_t>());
  Layer<T, S> layer{noise_tensor<T>(shape.batch, shape.heads, shape.queries, shape.head_dim, noise, bytes),
                    noise_tensor<S>(shape.batch, shape.key_heads, shape.keys, shape.head_dim, noise, bytes),
                    noise_tensor<S>(shape.batch, shape.key_heads, shape.keys, shape.value_dim, noise, bytes)};
  const bool hostile = bytes.ConsumeIntegral<std::uint8_t>() > 205;
  if (hostile)
    for (Index places = in_range(bytes, 0, 4); places > 0; --places) {
      const auto spoil = [&](auto& tensor) {
        using Scalar = typename std::remove_reference_t<decltype(tensor.storage())>::value_type;
        if (!tensor.storage().empty())
          tensor.storage()[static_cast<std::size_t>(in_range(bytes, 0, static_cast<Index>(tensor.storage().size()) - 1))] =
              static_cast<Scalar>(any_number<T>(bytes));
      };
      bytes.ConsumeBool() ? spoil(layer.q) : bytes.ConsumeBool() ? spoil(layer.k) : spoil(layer.v);
    }
  biases.front().visit([&](const auto& first) {
    using B = std::remove_cvref_t<decltype(first)>;
    std::vector<B> all;
    for (const AnyBias& bias : biases)
      bias.visit([&](const auto& one) {
        if constexpr (std::is_same_v<B, std::remove_cvref_t<decltype(one)>>) all.push_back(one);
      });
    Call<T, S, B>(bytes, shape, layer, all, parts, options)
        .run(count_good && biases_good && parts.valid(options, shape), !wild && !hostile);
  });
}

}  // namespace
}  // namespace poslsh::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  poslsh::fuzz::Bytes bytes(data, size);
  poslsh::fuzz::run<float, Eigen::bfloat16>(bytes);
  return 0;
}
