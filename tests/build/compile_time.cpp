// SPDX-License-Identifier: MIT
// Every public entry point, in float and in double: tests/build/compile_time.sh measures how long it
// compiles. A new entry point gets its line here.

#include "poslsh/poslsh.hpp"

using namespace poslsh;

template <class T>
void every_entry_point(const Matrix<T>& q, const Matrix<T>& k, const Matrix<T>& v,
                       const AttentionOptions& options, AttentionOutput<T>& out, AttentionGradients<T>& gradients,
                       Matrix<T>& matrix) {
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{4.0}, 8, 1);
  const auto short_context = [](const auto& queries, const auto& keys, const auto& values,
                                const AttentionOptions& local) {
    return attention(queries, keys, values, FixedBlocks{16}, local);
  };

  out = attention(q, k, v, NoBias{}, options);
  out = attention(q, k, v, AlibiBias{0.5}, options);
  out = attention(q, k, v, FixedBlocks{64}, options);
  out = attention(q, k, v, MeanMask(hashes), options);
  attention_into(q, k, v, NoBias{}, options, out.values, out.log_sum_exp);
  attention_into(q, k, v, AlibiBias{0.5}, options, out.values, out.log_sum_exp);
  attention_into(q, k, v, FixedBlocks{64}, options, out.values, out.log_sum_exp);
  attention_into(q, k, v, MeanMask(hashes), options, out.values, out.log_sum_exp);
  out = blockwise_attention(q, k, v, hashes, options, Merge::ratio);
  out = blockwise_attention(q, k, v, hashes, options, Merge::mean);
  out = blockwise_attention(q, k, v, hashes, options, Merge::ratio, short_context);
  out = merge(out, out);
  gradients = attention_backward(q, k, v, out, q, NoBias{}, options);
  gradients = attention_backward(q, k, v, out, q, AlibiBias{0.5}, options);
  gradients = attention_backward(q, k, v, out, q, MeanMask(hashes), options);
  gradients = blockwise_attention_backward(q, k, v, hashes, out, q, options, Merge::ratio);
  gradients = blockwise_attention_backward(q, k, v, hashes, out, q, options, Merge::mean);
  matrix = MeanMask(hashes).dense<T>(64);
  matrix = BlockMask(hashes.front(), 64).dense<T>();
}

template <class T>
void every_head(TensorView<T> x, const MultiHeadOptions& options, double* log_sum_exp) {
  const std::vector<MeanMask> masks(8, MeanMask(draw_hashes(LaplaceKernel{4.0}, 8, 1)));
  multi_head_attention(x, x, x, x, std::vector<NoBias>(8), options, log_sum_exp);
  multi_head_attention(x, x, x, x, std::vector<AlibiBias>(8, {0.5}), options, log_sum_exp);
  multi_head_attention(x, x, x, x, masks, options, log_sum_exp);
  multi_head_attention_backward(x, x, x, x, log_sum_exp, x, x, x, x, std::vector<AlibiBias>(8, {0.5}), options);
  multi_head_attention_backward(x, x, x, x, log_sum_exp, x, x, x, x, masks, options);
}

template <class T, class Storage = T>
void every_stream(TensorView<T> x, const AttentionOptions& options, std::iostream& file) {
  const auto run = [&](auto bias) {
    using Stream = StreamingAttention<T, decltype(bias), Storage>;
    Stream stream({bias}, 1, 64, 64, options, 8.0);
    stream.append(x, x);
    stream.step(x, x, x, x);
    stream.save(file);
    stream = Stream::load(file, {bias});
  };
  run(NoBias{});
  run(AlibiBias{0.5});
  run(MeanMask(draw_hashes(LaplaceKernel{4.0}, 8, 1)));
}

template void every_entry_point(const Matrix<float>&, const Matrix<float>&, const Matrix<float>&,
                                const AttentionOptions&, AttentionOutput<float>&, AttentionGradients<float>&,
                                Matrix<float>&);
template void every_entry_point(const Matrix<double>&, const Matrix<double>&, const Matrix<double>&,
                                const AttentionOptions&, AttentionOutput<double>&, AttentionGradients<double>&,
                                Matrix<double>&);
template void every_head(TensorView<float>, const MultiHeadOptions&, double*);
template void every_head(TensorView<double>, const MultiHeadOptions&, double*);
template void every_stream(TensorView<float>, const AttentionOptions&, std::iostream&);
template void every_stream(TensorView<double>, const AttentionOptions&, std::iostream&);
