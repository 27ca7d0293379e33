// SPDX-License-Identifier: MIT
#pragma once

// Every way to compute, or to approximate, causal attention of one head under a kernel of the distance, as one list of
// functions: what the benchmarks by length, of error and of threads have in common. float, one head.

#include "support.hpp"

#ifdef POSLSH_BENCH_TORCH
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#endif

#include <functional>
#include <limits>
#include <memory>

namespace poslsh_bench {

using poslsh::AttentionOptions;
using poslsh::PositionHash;
using poslsh::Sampling;

/// One call fills values and log_sum_exp of the head, and gives the pairs it scored.
using Method = std::function<double(HeadData<float>&)>;

/// Causal attention with every key visited, or with far tiles left out.
template <class B>
Method exact(B bias, double tolerance = 0, int threads = 1) {
  return [=](HeadData<float>& head) {
    const AttentionOptions options{.causal = true, .tolerance = tolerance, .threads = threads};
    return static_cast<double>(
        poslsh::attention_into(head.q, head.k, head.v, bias, options, head.values, head.log_sum_exp));
  };
}

/// The keys of a window before the query only.
template <class B>
Method window(B bias, Index keys) {
  return [=](HeadData<float>& head) {
    const AttentionOptions options{.causal = true, .window_left = keys};
    return static_cast<double>(
        poslsh::attention_into(head.q, head.k, head.v, bias, options, head.values, head.log_sum_exp));
  };
}

/// Positional LSH in one sweep over the union of the blocks.
inline Method one_sweep(const std::vector<PositionHash>& hashes, int threads = 1) {
  return exact(poslsh::MeanMask(hashes), 0, threads);
}

/// Positional LSH block by block.
inline Method blockwise(const std::vector<PositionHash>& hashes, int threads = 1) {
  return [=](HeadData<float>& head) {
    poslsh::AttentionOutput<float> output = poslsh::blockwise_attention(
        head.q, head.k, head.v, hashes, AttentionOptions{.causal = true, .threads = threads});
    head.values.swap(output.values);
    head.log_sum_exp.swap(output.log_sum_exp);
    double pairs = 0;
    for (const PositionHash& hash : hashes)
      for (Index i = 0; i < head.q.rows();) {
        const Index end = std::min(hash.block(i).end, head.q.rows());
        pairs += triangle(end - i);
        i = end;
      }
    return pairs;
  };
}

/// What one would write without this library: n x n scores on Eigen.
inline Method naive_dense(double slope) {
  return [=](HeadData<float>& head) {
    const Index n = head.q.rows();
    Matrix<float> scores(n, n);
    scores.noalias() = head.q * head.k.transpose();
    scores *= 1 / std::sqrt(static_cast<float>(head.q.cols()));
    for (Index i = 0; i < n; ++i) {
      auto row = scores.row(i);
      for (Index j = 0; j <= i; ++j) row[j] -= static_cast<float>(slope) * static_cast<float>(i - j);
      const float maximum = row.head(i + 1).maxCoeff();
      row.head(i + 1) = (row.head(i + 1).array() - maximum).exp();
      row.head(i + 1) /= row.head(i + 1).sum();
      row.tail(n - i - 1).setZero();
    }
    head.values.noalias() = scores * head.v;
    return triangle(n);
  };
}

#ifdef POSLSH_BENCH_TORCH
/// Dense in PyTorch, with a bias made beforehand.
inline Method torch_dense(double slope) {
  at::set_num_threads(1);
  const auto known = std::make_shared<at::Tensor>();
  return [=](HeadData<float>& head) {
    const at::NoGradGuard no_gradients;
    const Index n = head.q.rows(), d = head.q.cols();
    if (!known->defined() || known->size(0) != n) {
      const at::Tensor position = at::arange(n, at::kFloat);
      *known = (slope * (position.unsqueeze(0) - position.unsqueeze(1)))
                   .masked_fill(at::ones({n, n}, at::kBool).triu(1), -std::numeric_limits<float>::infinity());
    }
    const auto tensor = [&](Matrix<float>& matrix) { return at::from_blob(matrix.data(), {n, d}); };
    const at::Tensor scores = at::addmm(*known, tensor(head.q), tensor(head.k).t(), 1,
                                        1 / std::sqrt(static_cast<double>(d)));
    at::Tensor values = tensor(head.values);
    at::mm_out(values, scores.softmax(1), tensor(head.v));
    return triangle(n);
  };
}
#endif

/// Exact outputs in double of a few runs of queries spread over a head: what errors are relative to, at any length.
class Reference {
 public:
  template <class B>
  Reference(const HeadData<float>& head, const B& bias) {
    const Index n = head.q.rows(), runs = std::min<Index>(8, (n + rows - 1) / rows);
    const Matrix<double> k = head.k.cast<double>(), v = head.v.cast<double>();
    for (Index run = 0; run < runs; ++run) {
      const Index first = run + 1 == runs ? std::max<Index>(n - rows, 0) : run * (n / runs);
      const Index count = std::min(rows, n - first), keys = first + count;
      const AttentionOptions options{.causal = true, .query_offset = first, .threads = 2};
      firsts_.push_back(first);
      values_.push_back(poslsh::attention(head.q.middleRows(first, count).cast<double>(), k.topRows(keys), v.topRows(keys),
                                          bias, options)
                            .values);
    }
  }

  /// ||values - exact||_F / ||exact||_F over those queries.
  [[nodiscard]] double error(const Matrix<float>& values) const {
    double difference = 0, size = 0;
    for (std::size_t run = 0; run < firsts_.size(); ++run) {
      const Matrix<double>& exact = values_[run];
      difference += (values.middleRows(firsts_[run], exact.rows()).cast<double>() - exact).squaredNorm();
      size += exact.squaredNorm();
    }
    return std::sqrt(difference / size);
  }

 private:
  static constexpr Index rows = 64;
  std::vector<Index> firsts_;
  std::vector<Matrix<double>> values_;
};

}  // namespace poslsh_bench
