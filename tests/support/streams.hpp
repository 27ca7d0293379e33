// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Layers fed to a StreamingAttention in chunks, and what it has to give for them.

#include "poslsh/attention/kernel_bias.hpp"
#include "poslsh/model/streaming.hpp"
#include "support/biases.hpp"
#include "support/heads.hpp"

#include <string>
#include <vector>

namespace poslsh::test {

/// Tokens [first, first + count) of a tensor.
template <class T>
TensorView<T> tokens_of(TensorView<T> tensor, Index first, Index count) {
  if (!tensor.empty()) tensor.data += first * tensor.token_stride;
  tensor.tokens = count;
  return tensor;
}

/// One call: so many new tokens, queries from the last of them on; append() instead of step() if so chosen.
struct Chunk {
  Index tokens, queries;
  bool appended = false;
};
inline std::vector<Chunk> steps(Index count, Chunk chunk = {1, 1}) {
  return std::vector<Chunk>(static_cast<std::size_t>(count), chunk);
}
inline Index tokens_in(const std::vector<Chunk>& chunks) {
  Index tokens = 0;
  for (const Chunk& chunk : chunks) tokens += chunk.tokens;
  return tokens;
}
/// Calls of all kinds and sizes for so many tokens.
inline std::vector<Chunk> random_chunks(Dice& dice, Index tokens) {
  std::vector<Chunk> chunks;
  while (tokens > 0) {
    Chunk chunk{std::min(tokens, dice.pick<Index>({0, 1, 1, 1, 1, 2, 3, 17, 95, 96, 97, 200})), 0};
    chunk.queries = dice.pick<Index>({chunk.tokens, chunk.tokens, 0, std::min<Index>(chunk.tokens, 1), dice.below(chunk.tokens + 1)});
    chunk.appended = chunk.queries == 0 && dice.chance(0.5);
    tokens -= chunk.tokens;
    chunks.push_back(chunk);
  }
  return chunks;
}

/// What a stream gave: rows of tokens without a query stay NaN.
template <class T>
struct StreamOutput {
  Tensor<T> values;
  std::vector<bool> asked;
};

/// Feeds tokens of a layer, from `first` on, and calls after_step() behind each call.
template <class T, class B, class S, class AfterStep>
StreamOutput<T> feed(StreamingAttention<T, B, S>& stream, const LayerView<T>& layer, const std::vector<Chunk>& chunks,
                     Index first, AfterStep&& after_step) {
  StreamOutput<T> output{Tensor<T>(1, layer.q.heads, layer.q.tokens, layer.v.features),
                         std::vector<bool>(static_cast<std::size_t>(layer.q.tokens))};
  for (const Chunk& chunk : chunks) {
    const auto k = tokens_of(layer.k, first, chunk.tokens), v = tokens_of(layer.v, first, chunk.tokens);
    first += chunk.tokens;
    if (chunk.appended) {
      stream.append(k, v);
    } else {
      stream.step(tokens_of(layer.q, first - chunk.queries, chunk.queries), k, v,
                  tokens_of(output.values.view(), first - chunk.queries, chunk.queries));
      for (Index i = first - chunk.queries; i < first; ++i) output.asked[static_cast<std::size_t>(i)] = true;
    }
    after_step();
  }
  return output;
}
template <class T, class B, class S>
StreamOutput<T> feed(StreamingAttention<T, B, S>& stream, const Layer<T>& layer, const std::vector<Chunk>& chunks,
                     Index first = 0) {
  return feed(stream, layer.view(), chunks, first, [] {});
}

/// Queries, keys and values of every token of a stream.
struct StreamShape {
  Index heads = 1, key_heads = 1, tokens = 1, head_dim = 1, value_dim = 1;
};
template <class T>
Layer<T> normal_stream(const StreamShape& shape, std::uint64_t seed, Layout layout = Layout::heads_first) {
  return normal_layer<T>(
      {1, shape.heads, shape.key_heads, shape.tokens, shape.tokens, shape.head_dim, shape.value_dim}, seed, layout);
}
template <class T, class S = T, class B>
StreamingAttention<T, B, S> stream_for(const Layer<T>& layer, const std::vector<B>& biases,
                                       const AttentionOptions& options = {},
                                       std::optional<double> max_query_norm = {}) {
  const LayerView<T> view = layer.view();
  return {biases, view.k.heads, view.q.features, view.v.features, options, max_query_norm};
}

/// What is wrong about the rows a stream gave, by the definition of causal attention over all its tokens; or nothing.
template <class T, class B>
std::string stream_fault(const StreamOutput<T>& got, const Layer<T>& layer, const std::vector<B>& biases,
                         AttentionOptions options = {}) {
  options.causal = true;
  options.window_right.reset();
  options.tolerance = 0;
  const LayerView<T> view = layer.view();
  for (Index head = 0; head < view.q.heads; ++head) {
    const Index key_head = head / (view.q.heads / view.k.heads);
    const Matrix<T> q = rows_of(view.q, 0, head), k = rows_of(view.k, 0, key_head), v = rows_of(view.v, 0, key_head);
    const B& bias = biases[static_cast<std::size_t>(head)];
    const auto exact = dense_attention<Wide<T>>(q, k, v, bias, options);
    // A stream has no log-sum-exp, and no row where none was asked for.
    AttentionOutput<T> output{rows_of(got.values.view(), 0, head), exact.log_sum_exp.template cast<double>()};
    for (Index i = 0; i < q.rows(); ++i)
      if (!got.asked[static_cast<std::size_t>(i)]) output.values.row(i) = exact.values.row(i).template cast<T>();
    const std::string text = fault(output, exact, dense_attention<T>(q, k, v, bias, options));
    if (!text.empty()) return text + "in head " + std::to_string(head);
  }
  return "";
}

/// The numbers of a tensor as another type holds them.
template <class S, class T>
Tensor<T> rounded(Tensor<T> tensor) {
  for (T& value : tensor.storage()) value = static_cast<T>(static_cast<S>(value));
  return tensor;
}

// --- Biases of every kind, one a head ----------------------------------------------------------------------

inline constexpr int stream_bias_kinds = 9;

/// Calls check(biases, name) with biases of this kind, of other parameters for each head where they have some.
template <class Check>
void with_biases(int kind, Index heads, Dice& dice, Check&& check) {
  const auto run = [&](const char* name, auto&& make) {
    std::vector<decltype(make())> biases;
    for (Index head = 0; head < heads; ++head) biases.push_back(make());
    check(biases, name);
  };
  switch (kind) {
    case 0:
      return run("NoBias", [] { return NoBias{}; });
    case 1:
      return run("AlibiBias", [&] { return AlibiBias{dice.pick({0.0, 0.004, 0.25, 3.0, -0.02}), 7.0}; });
    case 2:
      return run("FixedBlocks", [&] { return FixedBlocks{dice.pick<Index>({1, 7, 64, 100, 1000000})}; });
    case 3:
      return run("MeanMask", [&] { return MeanMask(random_hashes(dice)); });
    case 4:
      return run("RaggedBias", [] { return RaggedBias{}; });
    case 5:
      return run("TriangleBias", [&] { return TriangleBias{dice.pick<Index>({1, 30, 500})}; });
    case 6:
      return run("PastBias", [&] { return PastBias{dice.pick({0.01, 0.5})}; });
    case 7:
      return run("KernelBias, Laplace", [&] { return KernelBias{LaplaceKernel{dice.pick({0.5, 20.0, 1000.0})}}; });
    default:
      return run("KernelBias, power", [&] { return KernelBias{PowerKernel{dice.pick({0.02, 1.0}), 2.0}}; });
  }
}

}  // namespace poslsh::test
