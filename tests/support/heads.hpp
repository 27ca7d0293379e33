// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Layers of many heads that own their memory, and what multi_head_attention has to make of them, head by head.

#include "poslsh/model/multi_head.hpp"
#include "support/oracle.hpp"
#include "support/random_matrix.hpp"

#include <functional>
#include <string>
#include <vector>

namespace poslsh::test {

/// How a tensor lies in memory: backwards is heads_first with the last row of the last head first.
enum class Layout { heads_first, tokens_first, padded_rows, backwards };
inline constexpr Layout all_layouts[] = {Layout::heads_first, Layout::tokens_first, Layout::padded_rows,
                                         Layout::backwards};

/// A tensor with memory of its own, all NaN at first.
template <class T>
class Tensor {
 public:
  Tensor(Index batch, Index heads, Index tokens, Index features, Layout layout = Layout::heads_first) {
    if (layout == Layout::tokens_first) {
      view_ = TensorView<T>::tokens_first(nullptr, batch, tokens, heads, features);
    } else if (layout == Layout::padded_rows) {
      const Index row = features + 3, head = tokens * row + 5;
      view_ = {nullptr, batch, heads, tokens, features, heads * head + 7, head, row};
    } else {
      view_ = TensorView<T>::heads_first(nullptr, batch, heads, tokens, features);
    }
    if (view_.empty()) return;
    const Index last = (batch - 1) * view_.batch_stride + (heads - 1) * view_.head_stride +
                       (tokens - 1) * view_.token_stride;
    storage_.assign(static_cast<std::size_t>(last + features), static_cast<T>(not_a_number));
    if (layout != Layout::backwards) return;
    origin_ = last;
    for (Index* stride : {&view_.batch_stride, &view_.head_stride, &view_.token_stride}) *stride = -*stride;
  }

  [[nodiscard]] TensorView<T> view() {
    TensorView<T> view = view_;
    view.data = storage_.data() + origin_;
    return view;
  }
  [[nodiscard]] TensorView<const T> view() const { return const_cast<Tensor*>(this)->view(); }

  void set_row(Index item, Index head, Index token, const std::function<T(Index feature)>& value) {
    T* row = detail::head_of(view(), item, head).row(token);
    for (Index f = 0; f < view_.features; ++f) row[f] = value(f);
  }
  void fill(T value) {
    for (Index item = 0; item < view_.batch; ++item)
      for (Index head = 0; head < view_.heads; ++head)
        for (Index token = 0; token < view_.tokens; ++token)
          set_row(item, head, token, [&](Index) { return value; });
  }

  /// Every value of the memory, gaps between rows included.
  [[nodiscard]] std::vector<T>& storage() { return storage_; }
  [[nodiscard]] const std::vector<T>& storage() const { return storage_; }

 private:
  std::vector<T> storage_;
  TensorView<T> view_;
  Index origin_ = 0;
};

/// A copy of one head.
template <class T>
Matrix<std::remove_const_t<T>> rows_of(const TensorView<T>& tensor, Index item, Index head) {
  Matrix<std::remove_const_t<T>> rows(tensor.tokens, tensor.features);
  for (Index t = 0; t < rows.rows(); ++t)
    for (Index f = 0; f < rows.cols(); ++f)
      rows(t, f) = tensor.data[item * tensor.batch_stride + head * tensor.head_stride +
                               t * tensor.token_stride + f];
  return rows;
}

/// Standard normal values; the layout does not matter to them.
template <class T>
Tensor<T> normal_tensor(Index batch, Index heads, Index tokens, Index features, std::uint64_t seed,
                        Layout layout = Layout::heads_first) {
  Tensor<T> tensor(batch, heads, tokens, features, layout);
  std::uint64_t next = 0;
  for (Index item = 0; item < batch; ++item)
    for (Index head = 0; head < heads; ++head)
      for (Index token = 0; token < tokens; ++token)
        tensor.set_row(item, head, token,
                       [&](Index) { return static_cast<T>(random_normal(seed, 5, next++)); });
  return tensor;
}

// --- A layer and its output --------------------------------------------------------------------------------

template <class T, class S = T>
struct LayerView {
  TensorView<const T> q;
  TensorView<const S> k, v;
};
template <class T, class S = T>
struct Layer {
  Tensor<T> q;
  Tensor<S> k, v;
  [[nodiscard]] LayerView<T, S> view() const { return {q.view(), k.view(), v.view()}; }
};

struct LayerShape {
  Index batch = 1, heads = 1, key_heads = 1, queries = 1, keys = 1, head_dim = 1, value_dim = 1;
};
template <class T, class S = T>
Layer<T, S> normal_layer(const LayerShape& shape, std::uint64_t seed, Layout layout = Layout::heads_first) {
  return {normal_tensor<T>(shape.batch, shape.heads, shape.queries, shape.head_dim, 3 * seed, layout),
          normal_tensor<S>(shape.batch, shape.key_heads, shape.keys, shape.head_dim, 3 * seed + 1, layout),
          normal_tensor<S>(shape.batch, shape.key_heads, shape.keys, shape.value_dim, 3 * seed + 2, layout)};
}

template <class T>
struct LayerOutput {
  Tensor<T> values;
  std::vector<double> log_sum_exp;

  [[nodiscard]] AttentionOutput<T> head(Index item, Index head) const {
    const TensorView<const T> view = values.view();
    AttentionOutput<T> output{rows_of(view, item, head), Vector<double>(view.tokens)};
    for (Index i = 0; i < view.tokens; ++i)
      output.log_sum_exp[i] =
          log_sum_exp[static_cast<std::size_t>((item * view.heads + head) * view.tokens + i)];
    return output;
  }
};

/// multi_head_attention into memory of its own, where 7 stands at first.
template <class T, class S, class B>
LayerOutput<T> attend(const LayerView<T, S>& layer, const std::vector<B>& biases,
                      const MultiHeadOptions& options = {}, Layout layout = Layout::heads_first) {
  const TensorView<const T>& q = layer.q;
  LayerOutput<T> output{Tensor<T>(q.batch, q.heads, q.tokens, layer.v.features, layout),
                        std::vector<double>(static_cast<std::size_t>(q.batch * q.heads * q.tokens), 7.0)};
  output.values.fill(T(7));
  multi_head_attention<T, B, S>(q, layer.k, layer.v, output.values.view(), biases, options,
                                output.log_sum_exp.data());
  return output;
}
template <class T, class S, class B>
LayerOutput<T> attend(const Layer<T, S>& layer, const std::vector<B>& biases,
                      const MultiHeadOptions& options = {}, Layout layout = Layout::heads_first) {
  return attend(layer.view(), biases, options, layout);
}

/// Whether two outputs are the same bit by bit, wherever they lie.
template <class T>
bool same_bits(const LayerOutput<T>& a, const LayerOutput<T>& b) {
  const TensorView<const T> view = a.values.view();
  for (Index item = 0; item < view.batch; ++item)
    for (Index head = 0; head < view.heads; ++head)
      if (!same_bits(a.head(item, head), b.head(item, head))) return false;
  return true;
}

// --- What it has to be -------------------------------------------------------------------------------------

/// A part of a layer that is a call of attention() for each head.
struct Member {
  Index item;
  KeyRange queries, keys;  // rows
  AttentionOptions options;
};
inline std::vector<Member> members(const MultiHeadOptions& options, Index batch, Index queries, Index keys) {
  std::vector<Member> all;
  for (std::size_t m = 0; m + 1 < options.query_starts.size(); ++m)
    all.push_back({0,
                   {options.query_starts[m], options.query_starts[m + 1]},
                   {options.key_starts[m], options.key_starts[m + 1]},
                   options.attention});
  if (!options.query_starts.empty()) return all;
  for (Index item = 0; item < batch; ++item) {
    Member member{item, {0, queries}, {0, keys}, options.attention};
    if (!options.valid_keys.empty()) {
      member.keys = options.valid_keys[static_cast<std::size_t>(item)];
      member.options.query_offset = first_query(options.attention, queries, keys) - member.keys.begin;
    }
    all.push_back(member);
  }
  return all;
}

/// Calls check(q, k, v, bias, options, output) for each member and head, until it gives a text; gives that and where.
template <class T, class S, class B, class Check>
std::string each_head(const LayerOutput<T>& got, const LayerView<T, S>& layer, const std::vector<B>& biases,
                      const MultiHeadOptions& options, Check&& check) {
  const Index heads = layer.q.heads;
  for (const Member& member : members(options, layer.q.batch, layer.q.tokens, layer.k.tokens))
    for (Index head = 0; head < heads; ++head) {
      const Index key_head = head / (heads / layer.k.heads);
      const bool by_item = static_cast<Index>(biases.size()) != heads;
      const auto part = [&](const auto& tensor, Index which, KeyRange rows) {
        return rows_of(tensor, member.item, which).middleRows(rows.begin, rows.size()).eval();
      };
      const AttentionOutput<T> whole = got.head(member.item, head);
      const KeyRange rows = member.queries;
      const std::string text =
          check(part(layer.q, head, rows), part(layer.k, key_head, member.keys),
                part(layer.v, key_head, member.keys),
                biases[static_cast<std::size_t>(by_item ? member.item * heads + head : head)], member.options,
                AttentionOutput<T>{whole.values.middleRows(rows.begin, rows.size()),
                                   whole.log_sum_exp.segment(rows.begin, rows.size())});
      if (!text.empty())
        return text + " in head " + std::to_string(head) + " of item " + std::to_string(member.item) +
               ", from row " + std::to_string(rows.begin);
    }
  return "";
}

/// What is wrong about the rows behind the last packed sequence, or nothing.
template <class T>
std::string rest_fault(const LayerOutput<T>& got, const MultiHeadOptions& options) {
  if (options.query_starts.empty()) return "";
  const Index first = options.query_starts.back(), count = got.values.view().tokens - first;
  for (Index head = 0; head < got.values.view().heads; ++head) {
    const AttentionOutput<T> output = got.head(0, head);
    if (!same_numbers(output.values.bottomRows(count), Matrix<T>::Zero(count, output.values.cols())) ||
        !(output.log_sum_exp.tail(count).array() == -infinity).all())
      return "rows behind the last sequence are not 0 with log_sum_exp -inf";
  }
  return "";
}

/// Where a layer has other bits than attention() gives each head alone, on one thread; or nothing.
template <class T, class S, class B>
std::string unlike_alone(const LayerOutput<T>& got, const LayerView<T, S>& layer,
                         const std::vector<B>& biases, const MultiHeadOptions& options = {}) {
  const std::string text = each_head(
      got, layer, biases, options,
      [](const auto& q, const auto& k, const auto& v, const B& bias, AttentionOptions alone, const auto& output) {
        alone.threads = 1;
        return same_bits(output, attention(q, k, v, bias, alone)) ? "" : "other bits than alone";
      });
  return text.empty() ? rest_fault(got, options) : text;
}

/// What is wrong about a layer by the definition of attention, or nothing; units as for fault().
template <class T, class S, class B>
std::string layer_fault(const LayerOutput<T>& got, const LayerView<T, S>& layer, const std::vector<B>& biases,
                        const MultiHeadOptions& options = {}, double units = 2) {
  const std::string text = each_head(
      got, layer, biases, options,
      [&](const auto& q, const auto& k, const auto& v, const B& bias, const AttentionOptions& alone,
          const auto& output) { return fault(output, q, k, v, bias, alone, units); });
  return text.empty() ? rest_fault(got, options) : text;
}

}  // namespace poslsh::test
