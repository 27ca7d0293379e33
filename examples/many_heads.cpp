// SPDX-License-Identifier: MIT
//
// A layer as a model has it: 8 query heads over 2 key heads, tokens first in memory, a batch with padding,
// and then decoding token by token. Decoding gives the rows of one long call.

#include <poslsh/poslsh.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

using namespace poslsh;

constexpr Index batch = 2, tokens = 128, query_heads = 8, key_heads = 2, head_dim = 32;

/// batch x tokens x heads x head_dim values, as a projection leaves them: views split the heads, without a
/// copy.
struct Tensor {
  explicit Tensor(Index count)
      : heads(count), values(Vector<float>::Random(batch * tokens * heads * head_dim)) {}

  /// The first tokens of every batch item.
  [[nodiscard]] TensorView<float> first(Index count) {
    auto view = TensorView<float>::tokens_first(values.data(), batch, tokens, heads, head_dim);
    view.tokens = count;
    return view;
  }
  /// Tokens [begin, end) of one batch item.
  [[nodiscard]] TensorView<float> rows(Index item, Index begin, Index end) {
    TensorView<float> view = first(end - begin);
    view.data += item * view.batch_stride + begin * view.token_stride;
    view.batch = 1;
    return view;
  }

  Index heads;
  Vector<float> values;
};

/// Of views of batch 1.
float largest_difference(TensorView<float> a, TensorView<float> b) {
  float largest = 0;
  for (Index h = 0; h < a.heads; ++h)
    for (Index t = 0; t < a.tokens; ++t)
      for (Index f = 0; f < a.features; ++f) {
        const float difference = std::abs(a.data[h * a.head_stride + t * a.token_stride + f] -
                                          b.data[h * b.head_stride + t * b.token_stride + f]);
        if (!(difference <= largest)) largest = difference;  // NaN too
      }
  return largest;
}

}  // namespace

int main() {
  Tensor q(query_heads), k(key_heads), v(key_heads);
  std::vector<AlibiBias> biases;
  for (const double slope : alibi_slopes(query_heads)) biases.push_back({slope});

  // The prompts: item 0 has 100 tokens; item 1 has 72, after padding that no query sees.
  const Index prompt = 100, padding = 28;
  const std::vector<KeyRange> valid{{0, prompt}, {padding, prompt}};
  MultiHeadOptions options;
  options.attention = {.causal = true, .threads = 2};
  options.valid_keys = valid;
  Tensor padded(query_heads);
  multi_head_attention(q.first(prompt), k.first(prompt), v.first(prompt), padded.first(prompt), biases,
                       options);

  // Item 1 goes on: its prompt at once, then 28 further tokens one by one.
  StreamingAttention<float, AlibiBias> stream(biases, key_heads, head_dim, head_dim);
  Tensor decoded(query_heads);
  const auto step = [&](Index begin, Index end) {
    stream.step(q.rows(1, begin, end), k.rows(1, begin, end), v.rows(1, begin, end),
                decoded.rows(1, begin, end));
  };
  step(padding, prompt);
  for (Index t = prompt; t < tokens; ++t) step(t, t + 1);

  // The same in one call.
  options.valid_keys = {};
  Tensor whole(query_heads);
  multi_head_attention(q.rows(1, padding, tokens), k.rows(1, padding, tokens), v.rows(1, padding, tokens),
                       whole.rows(1, padding, tokens), biases, options);

  const float by_padding =
      largest_difference(padded.rows(1, padding, prompt), whole.rows(1, padding, prompt));
  const float by_decoding =
      largest_difference(decoded.rows(1, padding, tokens), whole.rows(1, padding, tokens));
  std::printf("%d query heads over %d key heads, %d tokens\n", int{query_heads}, int{key_heads}, int{tokens});
  std::printf("largest difference from one long call: %.1e in a padded batch, %.1e decoding\n",
              static_cast<double>(by_padding), static_cast<double>(by_decoding));
  return by_padding < 1e-5f && by_decoding < 1e-5f ? 0 : 1;
}
