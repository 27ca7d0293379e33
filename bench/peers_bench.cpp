// SPDX-License-Identifier: MIT

// Exact ALiBi attention beside what one would write without this library: dense scores on Eigen, and on
// PyTorch's C++ library where CMake found it (POSLSH_TORCH=ON). One head, float, d = 64, causal, slope 1/64,
// unit normal data, one thread. Every peer keeps its buffers between calls, but for torch_new_tensors. Peer
// and library run in turn; the counters are of the best times: GFLOP/s at 4 d a pair of the triangle, and
// "time_of_exact", the peer's time over the library's. "error" is relative to the dense form in double.

#include "support.hpp"

#ifdef POSLSH_BENCH_TORCH
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>
#endif

#include <limits>

namespace {

using namespace poslsh_bench;

constexpr Index d = 64;
constexpr float slope = 1.0f / 64, scale = 1.0f / 8;  // scale = 1 / sqrt(d)

/// The library, every key visited.
struct Exact {
  HeadData<float>& head;
  void operator()() {
    poslsh::attention_into(head.q, head.k, head.v, poslsh::AlibiBias{slope}, {.causal = true}, head.values,
                           head.log_sum_exp);
  }
};

/// Dense scores on Eigen. Later keys are scored, which is faster than Eigen's product into a triangle, and
/// then left alone: the product with the values is of a triangle. Rows are divided by their sums at the end,
/// when they are short.
template <class T>
class EigenDense {
 public:
  explicit EigenDense(HeadData<T>& head)
      : head_(head),
        scores_(head.q.rows(), head.k.rows()),
        sums_(head.q.rows()),
        log_weights_(Row::LinSpaced(head.k.rows(), -T(slope) * static_cast<T>(head.k.rows() - 1), 0)) {}

  void operator()() {
    scores_.noalias() = T(scale) * head_.q * head_.k.transpose();
    for (Index i = 0; i < scores_.rows(); ++i) {
      auto row = scores_.row(i).head(i + 1);
      row += log_weights_.tail(i + 1);
      const T maximum = row.maxCoeff();
      row = (row.array() - maximum).exp();
      sums_[i] = row.sum();
    }
    head_.values.noalias() = scores_.template triangularView<Eigen::Lower>() * head_.v;
    head_.values.array().colwise() /= sums_.array();
  }

 private:
  using Row = Eigen::Matrix<T, 1, Eigen::Dynamic>;
  HeadData<T>& head_;
  Matrix<T> scores_;
  Vector<T> sums_;
  Row log_weights_;  // of the last query's keys; those of an earlier query are its tail
};

#ifdef POSLSH_BENCH_TORCH

const bool torch_is_told = [] {
  const std::string config = at::show_config();  // one line has the vector unit its kernels use
  const std::size_t begin = std::min(config.find("CPU capability"), config.size());
  benchmark::AddCustomContext("PyTorch",
                              TORCH_VERSION ", " + config.substr(begin, config.find('\n', begin) - begin));
  return true;
}();

/// PyTorch as models with ALiBi call it. The bias, -inf at later keys, is a tensor made once, outside the
/// timing.
class Torch {
 public:
  explicit Torch(HeadData<float>& head)
      : q_(tensor(head.q)),
        transposed_k_(tensor(head.k).transpose(1, 2)),
        v_(tensor(head.v)),
        values_(tensor(head.values)) {
    at::set_num_threads(1);
    const at::Tensor position = at::arange(head.q.rows(), at::kFloat);
    const at::Tensor later = at::ones({head.q.rows(), head.q.rows()}, at::kBool).triu(1);
    bias_ = (slope * (position.unsqueeze(0) - position.unsqueeze(1)))
                .masked_fill(later, -std::numeric_limits<float>::infinity())
                .unsqueeze(0);
    scores_ = at::empty_like(bias_);
    weights_ = at::empty_like(bias_);
  }

  void operator()() {
    const at::NoGradGuard no_gradients;
    at::baddbmm_out(scores_, bias_, q_, transposed_k_, 1, scale);
    at::softmax_out(weights_, scores_, -1, c10::nullopt);
    at::bmm_out(values_, weights_, v_);
  }

 protected:
  at::Tensor q_, transposed_k_, v_, values_, bias_;

 private:
  /// The matrix in place, as a batch of one.
  static at::Tensor tensor(Matrix<float>& matrix) {
    return at::from_blob(matrix.data(), {1, matrix.rows(), matrix.cols()});
  }
  at::Tensor scores_, weights_;
};

/// The same as most programs have it: each step's result is a new tensor, whose memory comes from the system.
class TorchNewTensors : public Torch {
 public:
  using Torch::Torch;
  void operator()() {
    const at::NoGradGuard no_gradients;
    values_.copy_(at::bmm(at::softmax(at::baddbmm(bias_, q_, transposed_k_, 1, scale), -1), v_));
  }
};

#endif

template <class Peer>
void peer(benchmark::State& state) {
  const Index n = size(state.range(0));
  HeadData<float> head(n, d), exact_head(n, d);
  Peer peer{head};
  Exact exact{exact_head};
  peer();  // the first call pays for the memory it is the first to touch
  exact();
  double time = 1e300, exact_time = 1e300;
  for (auto _ : state) {
    const double one_time = best_time(2, peer);
    state.SetIterationTime(one_time);
    time = std::min(time, one_time);
    exact_time = std::min(exact_time, best_time(2, exact));
  }
  report_rate<float>(state, triangle(n), d, time);
  state.counters["time_of_exact"] = time / exact_time;
  if (n <= 2048) {
    HeadData<double> reference(n, d);
    reference.q = head.q.cast<double>();
    reference.k = head.k.cast<double>();
    reference.v = head.v.cast<double>();
    EigenDense<double>{reference}();
    state.counters["error"] = relative_error(head.values, reference.values);
  }
}

void lengths(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("n")->Arg(1024)->Arg(2048)->Arg(4096)->Arg(8192)->UseManualTime()->Unit(
      benchmark::kMillisecond);
}

BENCHMARK(peer<Exact>)->Name("poslsh_exact")->Apply(lengths);
BENCHMARK(peer<EigenDense<float>>)->Name("eigen_dense")->Apply(lengths);
#ifdef POSLSH_BENCH_TORCH
BENCHMARK(peer<Torch>)->Name("torch")->Apply(lengths);
BENCHMARK(peer<TorchNewTensors>)->Name("torch_new_tensors")->Apply(lengths);
#endif

}  // namespace

BENCHMARK_MAIN();
