// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Every entry point of the library on one set of inputs, as a function of the number of threads that gives a hash of all
/// the bits it computes.

#include "poslsh/poslsh.hpp"
#include "support/heads.hpp"
#include "support/random_matrix.hpp"
#include "support/streams.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace poslsh::test {

/// FNV-1a over numbers as bytes.
class Bits {
 public:
  template <class V>
  Bits& add(const V* values, Index count) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(values);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count) * sizeof(V); ++i)
      hash_ = (hash_ ^ bytes[i]) * 0x100000001b3;
    return *this;
  }
  template <class T>
  Bits& add(const AttentionOutput<T>& output) {
    return add(output.values.data(), output.values.size()).add(output.log_sum_exp.data(), output.log_sum_exp.size());
  }
  template <class T>
  Bits& add(const AttentionGradients<T>& all) {
    const double numbers[] = {all.dslope, all.dright_slope, all.dsink};
    add(numbers, 3).add(all.dq.data(), all.dq.size());
    return add(all.dk.data(), all.dk.size()).add(all.dv.data(), all.dv.size());
  }
  template <class Container>
  Bits& add_all(const Container& values) {
    return add(values.data(), static_cast<Index>(values.size()));
  }
  [[nodiscard]] std::uint64_t hash() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325;
};

struct EntryPoint {
  std::string name;
  std::function<std::uint64_t(int threads)> run;
};

/// Inputs of a single head and of a layer with as many tokens, and all that can be asked of them. The calls only read
/// them: they may run at the same time.
class EntryPoints {
 public:
  EntryPoints(Index queries, Index keys, Index draws = 16, std::uint64_t seed = 1)
      : one_(normal_inputs<float>(queries, keys, head_dim, value_dim, seed)),
        d_values_(normal_matrix<float>(queries, value_dim, seed, 3)),
        layer_(normal_layer<float>({2, 4, 2, queries, keys, head_dim, value_dim}, seed, Layout::padded_rows)),
        packed_(normal_layer<float>({1, 8, 4, keys, keys, head_dim, value_dim}, seed + 1, Layout::tokens_first)),
        d_out_(normal_tensor<float>(2, 4, queries, value_dim, seed + 2)),
        hashes_(draw_hashes(LaplaceKernel{10}, draws, seed)), masks_(8, MeanMask(hashes_)),
        valid_{{0, keys}, {keys / 3, keys - keys / 4}}, starts_{0, keys / 7, keys / 7, keys / 2, keys} {
    const AttentionOptions options = options_with(1);
    forward_ = attention(one_.q, one_.k, one_.v, slopes_[0], options);
    masked_forward_ = attention(one_.q, one_.k, one_.v, mask_, options);
    layer_forward_ = attend(layer_, slopes_, {options, valid_});
  }
  EntryPoints(const EntryPoints&) = delete;
  EntryPoints& operator=(const EntryPoints&) = delete;

  /// All that is given to the entry points: add(pointer, count) for each piece of memory.
  template <class Add>
  void each_input(Add&& add) const {
    for (const Matrix<float>* matrix : {&one_.q, &one_.k, &one_.v, &d_values_, &forward_.values, &masked_forward_.values})
      add(matrix->data(), matrix->size());
    for (const Tensor<float>* tensor : {&layer_.q, &layer_.k, &layer_.v, &packed_.q, &packed_.k, &packed_.v, &d_out_,
                                        &layer_forward_.values})
      add(tensor->storage().data(), static_cast<Index>(tensor->storage().size()));
    add(hashes_.data(), static_cast<Index>(hashes_.size()));
    add(mask_.hashes().data(), mask_.samples());
    add(slopes_.data(), static_cast<Index>(slopes_.size()));
    add(valid_.data(), static_cast<Index>(valid_.size()));
    add(starts_.data(), static_cast<Index>(starts_.size()));
  }

  [[nodiscard]] std::vector<EntryPoint> all() const {
    std::vector<EntryPoint> entries;
    add_attention(entries);
    add_gradients(entries);
    add_heads(entries);
    add_theory(entries);
    return entries;
  }

 private:
  static constexpr Index head_dim = 8, value_dim = 5;

  static AttentionOptions options_with(int threads) {
    return {.causal = true, .sink = 0.5, .tolerance = 1e-4, .threads = threads};
  }

  void add_attention(std::vector<EntryPoint>& entries) const {
    const auto add = [&](const char* name, auto run) { entries.push_back({name, run}); };
    add("attention, ALiBi", [this](int threads) {
      return Bits().add(attention(one_.q, one_.k, one_.v, slopes_[0], options_with(threads))).hash();
    });
    add("attention, MeanMask", [this](int threads) {
      return Bits().add(attention(one_.q, one_.k, one_.v, mask_, options_with(threads))).hash();
    });
    add("attention_into, strided", [this](int threads) {
      Matrix<float> memory = Matrix<float>::Constant(one_.q.rows(), value_dim + 2, 7);
      Vector<double> log_sum_exp(one_.q.rows());
      attention_into(2.0f * one_.q, one_.k, one_.v, KernelBias{PowerKernel{0.5, 3}}, options_with(threads),
                     memory.middleCols(1, value_dim), log_sum_exp);
      return Bits().add(memory.data(), memory.size()).add(log_sum_exp.data(), log_sum_exp.size()).hash();
    });
    for (const Merge merge : {Merge::ratio, Merge::mean})
      add(merge == Merge::ratio ? "blockwise_attention, ratio" : "blockwise_attention, mean", [this, merge](int threads) {
        return Bits().add(blockwise_attention(one_.q, one_.k, one_.v, hashes_, options_with(threads), merge)).hash();
      });
    add("blockwise_attention, a kernel of one's own", [this](int threads) {
      const auto kernel = [](const auto& q, const auto& k, const auto& v, const AttentionOptions& options) {
        return attention(q, k, v, NoBias{}, options);
      };
      return Bits().add(blockwise_attention(one_.q, one_.k, one_.v, hashes_, options_with(threads), Merge::ratio, kernel)).hash();
    });
    add("merge", [this](int) { return Bits().add(merge(forward_, masked_forward_)).hash(); });
  }

  void add_gradients(std::vector<EntryPoint>& entries) const {
    const auto add = [&](const char* name, auto run) { entries.push_back({name, run}); };
    add("attention_backward, ALiBi", [this](int threads) {
      return Bits()
          .add(attention_backward(one_.q, one_.k, one_.v, forward_, d_values_, slopes_[0], options_with(threads)))
          .hash();
    });
    for (const Merge merge : {Merge::ratio, Merge::mean})
      add(merge == Merge::ratio ? "blockwise_attention_backward, ratio" : "blockwise_attention_backward, mean",
          [this, merge](int threads) {
            return Bits()
                .add(blockwise_attention_backward(one_.q, one_.k, one_.v, hashes_, masked_forward_, d_values_,
                                                  options_with(threads), merge))
                .hash();
          });
  }

  void add_heads(std::vector<EntryPoint>& entries) const {
    const auto add = [&](const char* name, auto run) { entries.push_back({name, run}); };
    add("multi_head_attention, padded", [this](int threads) {
      const LayerOutput<float> output = attend(layer_, slopes_, {options_with(threads), valid_}, Layout::padded_rows);
      return Bits().add_all(output.values.storage()).add_all(output.log_sum_exp).hash();
    });
    add("multi_head_attention, packed", [this](int threads) {
      const LayerOutput<float> output = attend(packed_, masks_, {options_with(threads), {}, starts_, starts_});
      return Bits().add_all(output.values.storage()).add_all(output.log_sum_exp).hash();
    });
    add("multi_head_attention_backward", [this](int threads) {
      const LayerView<float> view = layer_.view();
      Tensor<float> dq(2, 4, view.q.tokens, head_dim), dk(2, 2, view.k.tokens, head_dim, Layout::padded_rows),
          dv(2, 2, view.k.tokens, value_dim);
      const std::vector<HeadGradients> numbers = multi_head_attention_backward(
          view.q, view.k, view.v, layer_forward_.values.view(), layer_forward_.log_sum_exp.data(), d_out_.view(), dq.view(),
          dk.view(), dv.view(), slopes_, {options_with(threads), valid_});
      return Bits().add_all(dq.storage()).add_all(dk.storage()).add_all(dv.storage()).add_all(numbers).hash();
    });
    add("StreamingAttention, MeanMask", [this](int threads) {
      return stream_bits(masks_, {.sink = 0.5, .threads = threads}, {});
    });
    add("StreamingAttention, ALiBi", [this](int threads) {
      std::vector<AlibiBias> slopes(slopes_);
      slopes.insert(slopes.end(), slopes_.begin(), slopes_.end());
      return stream_bits(slopes, options_with(threads), 100.0);
    });
  }

  template <class B>
  std::uint64_t stream_bits(const std::vector<B>& biases, const AttentionOptions& options, std::optional<double> norm) const {
    const LayerView<float> view = packed_.view();
    StreamingAttention<float, B> stream(biases, view.k.heads, head_dim, value_dim, options, norm);
    const Index tokens = view.q.tokens, decoded = (std::min)(tokens, Index{8}), appended = (tokens - decoded) / 2;
    const Index stepped = tokens - decoded - appended;
    std::vector<Chunk> chunks{{appended, 0, true}, {stepped, stepped / 2}};
    chunks.insert(chunks.end(), static_cast<std::size_t>(decoded), Chunk{1, 1});
    return Bits().add_all(feed(stream, view, chunks, 0, [] {}).values.storage()).hash();
  }

  void add_theory(std::vector<EntryPoint>& entries) const {
    const auto add = [&](const char* name, auto run) { entries.push_back({name, run}); };
    add("output_error_certificate", [this](int threads) {
      const Vector<double> bounds =
          output_error_certificate(one_.q, one_.k, one_.v, slopes_[0].slope, mask_, options_with(threads));
      return Bits().add(bounds.data(), bounds.size()).hash();
    });
    for (const Sampling sampling : {Sampling::independent, Sampling::stratified, Sampling::importance, Sampling::mixture})
      add("draw_hashes", [sampling](int) { return Bits().add_all(draw_hashes(PowerKernel{0.1, 2}, 32, 7, sampling)).hash(); });
    add("masks", [this](int) {
      const MeanMask copy(hashes_);
      const Matrix<double> dense = copy.dense(50), block = BlockMask(hashes_[0], 50).dense();
      return Bits().add(dense.data(), dense.size()).add(block.data(), block.size()).hash();
    });
    add("alibi_slopes", [](int) { return Bits().add_all(alibi_slopes(12)).hash(); });
    add("theory::apply", [this](int) {
      const Matrix<double> x = one_.v.cast<double>();
      const Matrix<double> exact = theory::apply(LaplaceKernel{10}, x), mean = theory::apply(mask_, x);
      return Bits().add(exact.data(), exact.size()).add(mean.data(), mean.size()).hash();
    });
  }

  Inputs<float> one_;
  Matrix<float> d_values_;
  Layer<float> layer_, packed_;
  Tensor<float> d_out_;
  std::vector<PositionHash> hashes_;
  std::vector<MeanMask> masks_;
  const MeanMask& mask_ = masks_.front();
  std::vector<AlibiBias> slopes_{{0.5}, {0.25}, {0.1}, {0.02}};
  std::vector<KeyRange> valid_;
  std::vector<Index> starts_;
  AttentionOutput<float> forward_, masked_forward_;
  LayerOutput<float> layer_forward_{Tensor<float>(1, 1, 1, 1), {}};
};

}  // namespace poslsh::test
