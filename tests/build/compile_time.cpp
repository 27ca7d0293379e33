// SPDX-License-Identifier: MIT
// Every public entry point, in float and in double: tests/build/compile_time.sh measures how long it
// compiles. A new entry point gets its line here.

#include "poslsh/poslsh.hpp"

using namespace poslsh;

template <class T>
void every_entry_point(const Matrix<T>& q, const Matrix<T>& k, const Matrix<T>& v,
                       const AttentionOptions& options, AttentionOutput<T>& out, Matrix<T>& matrix) {
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
  matrix = MeanMask(hashes).dense<T>(64);
  matrix = BlockMask(hashes.front(), 64).dense<T>();
}

template void every_entry_point(const Matrix<float>&, const Matrix<float>&, const Matrix<float>&,
                                const AttentionOptions&, AttentionOutput<float>&, Matrix<float>&);
template void every_entry_point(const Matrix<double>&, const Matrix<double>&, const Matrix<double>&,
                                const AttentionOptions&, AttentionOutput<double>&, Matrix<double>&);
