// SPDX-License-Identifier: MIT
#include "model.hpp"

#include <cmath>

namespace tiny_lm {

using at::Tensor;

Model::Model(const ModelSize& size) : size_(size) {
  namespace nn = torch::nn;
  const double spread = 0.02, residual_spread = spread / std::sqrt(2.0 * static_cast<double>(size.layers));
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out, double deviation) {
    nn::Linear layer = register_module(name, nn::Linear(nn::LinearOptions(in, out).bias(false)));
    nn::init::normal_(layer->weight, 0, deviation);
    return layer;
  };
  const auto norm = [&](const std::string& name) {
    return register_module(name, nn::LayerNorm(nn::LayerNormOptions({size.width})));
  };
  embedding_ = register_module("embedding", nn::Embedding(256, size.width));
  nn::init::normal_(embedding_->weight, 0, spread);
  for (std::int64_t l = 0; l < size.layers; ++l) {
    const std::string name = "block" + std::to_string(l) + "_";
    blocks_.push_back({norm(name + "attention_norm"), norm(name + "feed_norm"),
                       linear(name + "qkv", size.width, 3 * size.width, spread),
                       linear(name + "merge", size.width, size.width, residual_spread),
                       linear(name + "up", size.width, 4 * size.width, spread),
                       linear(name + "down", 4 * size.width, size.width, residual_spread)});
  }
  norm_ = norm("norm");
}

Tensor Model::forward(const Tensor& tokens, const Positions& positions, const Draw& draw, LayerInputs* seen,
                      std::int64_t seen_layer) {
  const std::int64_t batch = tokens.size(0), count = tokens.size(1);
  Tensor x = embedding_(tokens);
  for (std::size_t l = 0; l < blocks_.size(); ++l) {
    Block& block = blocks_[l];
    const std::vector<Tensor> parts =
        block.qkv(block.attention_norm(x)).reshape({batch, count, 3, size_.heads, -1}).transpose(1, 3).unbind(2);
    if (seen != nullptr && static_cast<std::int64_t>(l) == seen_layer) *seen = {parts[0], parts[1], parts[2]};
    const Draw own{draw.seed, draw.number * blocks_.size() + l};
    const Tensor heads = positions.attend(parts[0], parts[1], parts[2], own);
    x = x + block.merge(heads.transpose(1, 2).reshape({batch, count, size_.width}));
    x = x + block.down(at::gelu(block.up(block.feed_norm(x))));
  }
  return at::matmul(norm_(x), embedding_->weight.t());
}

std::int64_t Model::parameter_count() const {
  std::int64_t count = 0;
  for (const Tensor& parameter : parameters()) count += parameter.numel();
  return count;
}

}  // namespace tiny_lm
