// SPDX-License-Identifier: MIT
#include "positions.hpp"

#include <charconv>
#include <limits>
#include <map>
#include <stdexcept>

#include "../attention.hpp"

namespace tiny_lm {

namespace {

using at::Tensor;
using poslsh::Index;

/// Feature pairs (f, f + d/2) of position t turn by t 10000^(-2f/d).
Tensor rotated(const Tensor& heads) {
  const Index tokens = heads.size(2), half = heads.size(3) / 2;
  const Tensor frequency = at::pow(10000.0, at::arange(half, at::kFloat) / -static_cast<double>(half));
  const Tensor angle = at::arange(tokens, at::kFloat).unsqueeze(1) * frequency.unsqueeze(0);
  const Tensor cosine = angle.cos(), sine = angle.sin();
  const Tensor a = heads.narrow(3, 0, half), b = heads.narrow(3, half, half);
  return at::cat({a * cosine - b * sine, a * sine + b * cosine}, 3);
}

/// log weights of causal ALiBi, 1 x heads x tokens x tokens; made once for each shape, as models with ALiBi do.
const Tensor& dense_bias(Index heads, Index tokens) {
  thread_local std::map<std::pair<Index, Index>, Tensor> known;
  Tensor& bias = known[{heads, tokens}];
  if (bias.defined()) return bias;
  const Tensor slopes = at::tensor(poslsh::alibi_slopes(heads), at::kFloat).reshape({1, heads, 1, 1});
  const Tensor position = at::arange(tokens, at::kFloat);
  const Tensor later = at::ones({tokens, tokens}, at::kBool).triu(1);
  bias = (slopes * (position.unsqueeze(0) - position.unsqueeze(1)))
             .masked_fill(later, -std::numeric_limits<float>::infinity());
  return bias;
}

Tensor dense_attention(const Tensor& q, const Tensor& k, const Tensor& v) {
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  Tensor scores = at::matmul(q * scale, k.transpose(2, 3));
  scores.add_(dense_bias(q.size(1), q.size(2)));
  return at::matmul(scores.softmax(-1), v);
}

}  // namespace

Positions::Positions(const std::string& name) : name_(name) {
  const std::map<std::string, Kind> plain = {{"none", Kind::none},
                                             {"rope", Kind::rope},
                                             {"alibi", Kind::alibi},
                                             {"alibi-dense", Kind::alibi_dense},
                                             {"blocks", Kind::blocks}};
  if (const auto known = plain.find(name); known != plain.end()) {
    kind_ = known->second;
    return;
  }
  const std::map<std::string, poslsh::Sampling> samplings = {{"independent", poslsh::Sampling::independent},
                                                             {"stratified", poslsh::Sampling::stratified},
                                                             {"importance", poslsh::Sampling::importance},
                                                             {"mixture", poslsh::Sampling::mixture},
                                                             {"mean", poslsh::Sampling::independent}};
  const std::size_t dash = name.rfind('-');
  const std::string sampling = name.starts_with("lsh-") && dash > 4 ? name.substr(4, dash - 4) : "";
  const auto known = samplings.find(sampling);
  const char* const end = name.data() + name.size();
  if (known != samplings.end()) {
    const auto [rest, error] = std::from_chars(name.data() + dash + 1, end, samples_);
    if (error == std::errc() && rest == end && samples_ >= 1 && samples_ <= 10000) {
      kind_ = sampling == "mean" ? Kind::mean_merge : Kind::mean_mask;
      sampling_ = known->second;
      return;
    }
  }
  throw std::invalid_argument("'" + name +
                              "' is no positional scheme; there are none, rope, alibi, alibi-dense, blocks and "
                              "lsh-SAMPLING-S with independent, stratified, importance, mixture or mean, S from 1 to 10000");
}

Tensor Positions::attend(const Tensor& q, const Tensor& k, const Tensor& v, const Draw& draw) const {
  const Index heads = q.size(1);
  const std::vector<double> slopes = poslsh::alibi_slopes(heads);
  poslsh_torch::LayerOptions causal;
  causal.attention.causal = true;
  // One bias a head, and the library's attention under them.
  const auto with = [&](auto&& bias_of) {
    std::vector<std::decay_t<decltype(bias_of(Index{}, double{}))>> biases;
    for (Index head = 0; head < heads; ++head) biases.push_back(bias_of(head, slopes[static_cast<std::size_t>(head)]));
    return poslsh_torch::attention(q, k, v, std::move(biases), causal);
  };
  const auto hashes = [&](Index head, double slope) {
    return poslsh::draw_hashes(poslsh::LaplaceKernel{1 / slope}, samples_, draw.seed, sampling_,
                               draw.number * static_cast<std::uint64_t>(heads) + static_cast<std::uint64_t>(head));
  };
  switch (kind_) {
    case Kind::none:
      return with([](Index, double) { return poslsh::NoBias{}; });
    case Kind::rope:
      return poslsh_torch::attention(rotated(q), rotated(k), v,
                                     std::vector<poslsh::NoBias>(static_cast<std::size_t>(heads)), causal);
    case Kind::alibi:
      return with([](Index, double slope) { return poslsh::AlibiBias{slope}; });
    case Kind::alibi_dense:
      return dense_attention(q, k, v);
    case Kind::blocks:
      return with([](Index, double slope) { return poslsh::FixedBlocks{std::llround(2 / slope)}; });
    case Kind::mean_mask:
      return with([&](Index head, double slope) { return poslsh::MeanMask(hashes(head, slope)); });
    case Kind::mean_merge: {
      std::vector<std::vector<poslsh::PositionHash>> all;
      for (Index head = 0; head < heads; ++head) all.push_back(hashes(head, slopes[static_cast<std::size_t>(head)]));
      return poslsh_torch::mean_merge_attention(q, k, v, std::move(all), causal.attention);
    }
  }
  return {};
}

}  // namespace tiny_lm
