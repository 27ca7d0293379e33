// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A small causal transformer over bytes.

#include <torch/nn.h>

#include "positions.hpp"

namespace tiny_lm {

struct ModelSize {
  std::int64_t layers = 4, heads = 4, width = 128;
};

/// q, k and v of one layer, each batch x heads x tokens x features.
struct LayerInputs {
  at::Tensor q, k, v;
};

/// Pre-norm blocks of attention and a fourfold GELU layer, without biases; the embedding is also the output layer.
class Model : public torch::nn::Module {
 public:
  explicit Model(const ModelSize& size);

  /// \param tokens  batch x tokens numbers below 256
  /// \param draw    of the masks; every layer draws its own
  /// \param seen    null, or where the q, k, v of `seen_layer` are left
  /// \returns batch x tokens x 256 logits of the next byte
  [[nodiscard]] at::Tensor forward(const at::Tensor& tokens, const Positions& positions, const Draw& draw,
                                   LayerInputs* seen = nullptr, std::int64_t seen_layer = 0);

  [[nodiscard]] std::int64_t parameter_count() const;

 private:
  struct Block {
    torch::nn::LayerNorm attention_norm = nullptr, feed_norm = nullptr;
    torch::nn::Linear qkv = nullptr, merge = nullptr, up = nullptr, down = nullptr;
  };

  ModelSize size_;
  torch::nn::Embedding embedding_ = nullptr;
  torch::nn::LayerNorm norm_ = nullptr;
  std::vector<Block> blocks_;
};

}  // namespace tiny_lm
