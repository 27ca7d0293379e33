// SPDX-License-Identifier: MIT
//
// Shows that the operator's gradients are right: central differences in double for every bias, and PyTorch's own dense
// attention for values and gradients. Prints one line a case; exit code 1 if any is off.

#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <string>

#include "attention.hpp"

namespace {

using at::Tensor;
using poslsh::Index;
using Inputs = std::vector<Tensor>;
using Function = std::function<Tensor(const Inputs&)>;

constexpr double step = 1e-5, tolerance = 1e-6;
constexpr Index batch = 2, heads = 4, key_heads = 2, queries = 9, keys = 11, head_dim = 5, value_dim = 3;
int failures = 0;

void report(const std::string& name, double error, double bound) {
  const bool good = error <= bound;  // false for NaN too
  failures += good ? 0 : 1;
  std::printf("%-4s %-34s largest error %.1e, bound %.0e\n", good ? "ok" : "BAD", name.c_str(), error, bound);
}

double largest(const Tensor& tensor) { return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>(); }

/// The largest difference of two gradients, relative to the largest number in them.
double difference(const Tensor& a, const Tensor& b) { return largest(a - b) / std::max(1e-3, largest(b)); }

Tensor unit_normal(at::IntArrayRef sizes) {
  return at::randn(sizes, at::TensorOptions(at::kDouble)).requires_grad_(true);
}

Inputs heads_of_layer() {
  return {unit_normal({batch, heads, queries, head_dim}), unit_normal({batch, key_heads, keys, head_dim}),
          unit_normal({batch, key_heads, keys, value_dim})};
}

/// Every partial derivative of a weighted sum of the output against its central difference.
void check(const std::string& name, const Function& function, const Inputs& inputs) {
  const Tensor weights = at::randn_like(function(inputs));
  const auto loss = [&] { return (function(inputs) * weights).sum(); };
  const Inputs gradients = torch::autograd::grad({loss()}, inputs);
  double error = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const at::NoGradGuard no_gradients;
    Tensor differences = at::zeros(inputs[i].sizes(), inputs[i].options());
    double* const values = inputs[i].data_ptr<double>();
    for (Index e = 0; e < inputs[i].numel(); ++e) {
      const double value = values[e];
      values[e] = value + step;
      const double above = loss().item<double>();
      values[e] = value - step;
      const double below = loss().item<double>();
      values[e] = value;
      differences.data_ptr<double>()[e] = (above - below) / (2 * step);
    }
    error = std::max(error, difference(gradients[i], differences));
  }
  report(name, error, tolerance);
}

template <class B>
void check_bias(const std::string& name, std::vector<B> biases, const poslsh_torch::LayerOptions& options = {}) {
  check(name, [=](const Inputs& in) { return poslsh_torch::attention(in[0], in[1], in[2], biases, options); },
        heads_of_layer());
}

/// A bias that the library does not know.
struct EveryOther {
  double log_weight(Index query, Index key) const {
    return (query + key) % 2 == 0 ? 0 : -std::numeric_limits<double>::infinity();
  }
  poslsh::KeyRange support(Index) const { return {poslsh::min_position, poslsh::max_position}; }
  template <class T>
  void add_log_weights(Index query, Index first, T* logits, Index count) const {
    for (Index j = 0; j < count; ++j) logits[j] += static_cast<T>(log_weight(query, first + j));
  }
};

std::vector<std::vector<poslsh::PositionHash>> draw_layer(poslsh::Sampling sampling) {
  std::vector<std::vector<poslsh::PositionHash>> all;
  for (Index head = 0; head < heads; ++head)
    all.push_back(poslsh::draw_hashes(poslsh::LaplaceKernel{4.0}, 6, 1, sampling, static_cast<std::uint64_t>(head)));
  return all;
}

void check_biases() {
  poslsh_torch::LayerOptions causal, everything;
  causal.attention.causal = true;
  everything.attention = {.scale = 0.7, .window_left = 6, .window_right = 2, .softcap = 2.0, .sink = 0.3, .threads = 2};
  everything.valid_keys = {{0, keys}, {3, keys - 1}};
  std::vector<poslsh::AlibiBias> alibi;
  std::vector<poslsh::MeanMask> masks;
  for (const double slope : poslsh::alibi_slopes(heads)) alibi.push_back({slope, 2 * slope});
  for (const auto& hashes : draw_layer(poslsh::Sampling::importance)) masks.emplace_back(hashes);
  check_bias("NoBias", std::vector(heads, poslsh::NoBias{}));
  check_bias("NoBias, every option", std::vector(heads, poslsh::NoBias{}), everything);
  check_bias("AlibiBias, causal", alibi, causal);
  check_bias("AlibiBias, every option", alibi, everything);
  check_bias("KernelBias", std::vector(heads, poslsh::KernelBias<poslsh::PowerKernel>{{1.5, 2.0}}), causal);
  check_bias("FixedBlocks", std::vector(heads, poslsh::FixedBlocks{4}), causal);
  check_bias("MeanMask", masks, causal);
  check_bias("MeanMask, every option", masks, everything);
  check_bias("a bias of one's own", std::vector(heads, EveryOther{}));

  poslsh_torch::LayerOptions packed = causal;
  packed.query_starts = {0, 4, 4, 9};
  packed.key_starts = {0, 4, 6, 11};
  Inputs one = heads_of_layer();
  for (Tensor& input : one) input = input.detach().slice(0, 0, 1).contiguous().requires_grad_(true);
  check("packed sequences",
        [&](const Inputs& in) { return poslsh_torch::attention(in[0], in[1], in[2], alibi, packed); }, one);

  Inputs learned = heads_of_layer();
  learned.push_back(at::tensor({0.5, 0.25, 0.125, 0.0625}).to(at::kDouble).requires_grad_(true));
  check("slopes of both sides",
        [&](const Inputs& in) { return poslsh_torch::alibi_attention(in[0], in[1], in[2], in[3]); }, learned);
  learned.push_back(at::tensor({0.1, 0.2, 0.3, 0.4}).to(at::kDouble).requires_grad_(true));
  learned.push_back(at::tensor({0.3}).to(at::kDouble).requires_grad_(true));
  check("slopes of each side and a sink",
        [&](const Inputs& in) { return poslsh_torch::alibi_attention(in[0], in[1], in[2], in[3], in[4], in[5]); },
        learned);

  const Inputs own_keys = {unit_normal({batch, heads, queries, head_dim}), unit_normal({batch, heads, keys, head_dim}),
                           unit_normal({batch, heads, keys, value_dim})};
  const auto hashes = draw_layer(poslsh::Sampling::independent);
  check("mean of the draws' outputs",
        [&](const Inputs& in) {
          return poslsh_torch::mean_merge_attention(in[0], in[1], in[2], hashes, causal.attention);
        },
        own_keys);
}

/// Dense causal ALiBi in PyTorch, the slopes' gradient included.
Tensor dense_alibi(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& slopes) {
  const Index tokens = q.size(2);
  const Tensor position = at::arange(tokens, q.options().requires_grad(false));
  const Tensor distance = (position.unsqueeze(1) - position.unsqueeze(0)).abs();
  const Tensor later = at::ones({tokens, tokens}, at::kBool).triu(1);
  const Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3))) -
                        slopes.reshape({1, -1, 1, 1}) * distance;
  return at::matmul(scores.masked_fill(later, -std::numeric_limits<double>::infinity()).softmax(-1), v);
}

/// Values and gradients as PyTorch's own attention gives them, from slices of one tensor as models have them.
void check_against_dense(at::ScalarType type, double bound) {
  constexpr Index tokens = 300, width = 24;
  Tensor layer = at::randn({batch, tokens, 3, heads, width}, at::TensorOptions(type)).requires_grad_(true);
  Tensor slopes = at::tensor({0.5, 0.1, 0.02, 0.0}).to(type).requires_grad_(true);
  poslsh_torch::LayerOptions causal;
  causal.attention.causal = true;
  const Tensor weights = at::randn({batch, heads, tokens, width}, at::TensorOptions(type));
  std::vector<Inputs> gradients;
  std::vector<Tensor> values;
  for (const bool own : {true, false}) {
    const auto part = [&](Index which) { return layer.select(2, which).transpose(1, 2); };
    values.push_back(own ? poslsh_torch::alibi_attention(part(0), part(1), part(2), slopes, {}, {}, causal)
                         : dense_alibi(part(0), part(1), part(2), slopes));
    gradients.push_back(torch::autograd::grad({(values.back() * weights).sum()}, {layer, slopes}));
  }
  const std::string name = type == at::kFloat ? "PyTorch's dense form, float" : "PyTorch's dense form, double";
  report(name + ": values", difference(values[0], values[1]), bound);
  report(name + ": q, k, v", difference(gradients[0][0], gradients[1][0]), bound);
  report(name + ": slopes", difference(gradients[0][1], gradients[1][1]), bound);
}

template <class Run>
void refuses(const std::string& name, Run&& run) {
  double accepted = 1;
  try {
    run();
  } catch (const std::exception&) {
    accepted = 0;
  }
  report("refuses " + name, accepted, 0);
}

void check_refusals() {
  const Inputs in = heads_of_layer();
  const std::vector<poslsh::NoBias> none(heads);
  refuses("a q of three dimensions", [&] { poslsh_torch::attention(in[0][0], in[1], in[2], none); });
  refuses("integers", [&] { poslsh_torch::attention(in[0].to(at::kLong), in[1], in[2], none); });
  refuses("two types", [&] { poslsh_torch::attention(in[0], in[1].to(at::kFloat), in[2], none); });
  refuses("too few biases", [&] { poslsh_torch::attention(in[0], in[1], in[2], std::vector<poslsh::NoBias>(1)); });
  refuses("keys without values", [&] { poslsh_torch::attention(in[0], in[1], in[2].slice(2, 1), none); });
  refuses("second derivatives", [&] {
    torch::autograd::grad({poslsh_torch::attention(in[0], in[1], in[2], none).sum()}, {in[0]}, {}, true, true);
  });
  // An input that the backward pass needs was changed.
  refuses("changed inputs", [&] {
    const Tensor q = in[0] * 1;
    const Tensor loss = poslsh_torch::attention(q, in[1], in[2], none).sum();
    q.add_(1);
    torch::autograd::grad({loss}, {in[0]});
  });
}

/// Contiguous tensors, and slices of one tensor, are read where they lie.
void check_no_copies() {
  const Tensor layer = at::randn({batch, 7, 3, heads, 8});
  const Tensor q = layer.select(2, 0).transpose(1, 2), packed = q.contiguous();
  report("reads slices in place", poslsh_torch::detail::readable(q).data_ptr() == q.data_ptr() ? 0 : 1, 0);
  report("reads packed tensors in place", poslsh_torch::detail::readable(packed).data_ptr() == packed.data_ptr() ? 0 : 1, 0);
  const Tensor out = poslsh_torch::attention(q, q, q, std::vector<poslsh::NoBias>(heads));
  report("joins heads in place",
         out.transpose(1, 2).reshape({batch, 7, heads * 8}).data_ptr() == out.data_ptr() ? 0 : 1, 0);
}

}  // namespace

int main() {
  torch::manual_seed(1);
  check_biases();
  check_against_dense(at::kFloat, 1e-4);
  check_against_dense(at::kDouble, 1e-11);
  check_refusals();
  check_no_copies();
  std::printf("%d bad\n", failures);
  return failures == 0 ? 0 : 1;
}
