// SPDX-License-Identifier: MIT

// Many heads in one call against the same heads called one after another: a batch, and packed sequences. float, unit
// normal data, causal, the 8 standard heads of ALiBi, two threads.
// Compared figures are measured in turn inside one benchmark, and reported as their ratio.

#include "support.hpp"

#include <vector>

namespace {

using namespace poslsh_bench;
using poslsh::AlibiBias;
using poslsh::AttentionOptions;
using poslsh::TensorView;

constexpr Index heads = 8, d = 64;
const AttentionOptions options{.causal = true, .threads = 2};

std::vector<AlibiBias> standard_heads() {
  std::vector<AlibiBias> biases;
  for (const double slope : poslsh::alibi_slopes(heads)) biases.push_back({slope});
  return biases;
}

/// A batch of heads, in either order of memory, and room for its output.
class Layer {
 public:
  Layer(Index batch, Index n, bool tokens_first)
      : q_(normal_matrix<float>(batch * heads * n, d, 1)), k_(normal_matrix<float>(batch * heads * n, d, 2)),
        v_(normal_matrix<float>(batch * heads * n, d, 3)), out_(batch * heads * n, d), log_sum_exp_(batch * heads * n),
        batch_(batch), n_(n), tokens_first_(tokens_first) {}

  void run_at_once(const poslsh::MultiHeadOptions& multi_head) {
    poslsh::multi_head_attention(view(q_), view(k_), view(v_), view(out_), biases_, multi_head, log_sum_exp_.data());
  }
  void run_one_by_one() {
    for (Index item = 0; item < batch_; ++item)
      for (Index h = 0; h < heads; ++h) {
        auto out = head(out_, item, h);
        poslsh::attention_into(head(q_, item, h), head(k_, item, h), head(v_, item, h),
                               biases_[static_cast<std::size_t>(h)], options, out,
                               log_sum_exp_.segment((item * heads + h) * n_, n_));
      }
  }
  [[nodiscard]] double pairs() const { return static_cast<double>(batch_ * heads) * triangle(n_); }
  [[nodiscard]] const Matrix<float>& out() const { return out_; }

 private:
  TensorView<float> view(Matrix<float>& values) const {
    return tokens_first_ ? TensorView<float>::tokens_first(values.data(), batch_, n_, heads, d)
                         : TensorView<float>::heads_first(values.data(), batch_, heads, n_, d);
  }
  Eigen::Map<Matrix<float>, 0, Eigen::OuterStride<>> head(Matrix<float>& values, Index item, Index h) const {
    const TensorView<float> all = view(values);
    return {all.data + item * all.batch_stride + h * all.head_stride, n_, d, Eigen::OuterStride<>(all.token_stride)};
  }

  Matrix<float> q_, k_, v_, out_;
  Vector<double> log_sum_exp_;
  Index batch_, n_;
  bool tokens_first_;
  std::vector<AlibiBias> biases_ = standard_heads();
};

/// Best times of two bodies that take turns.
template <class A, class B>
std::pair<double, double> in_turn(benchmark::State& state, int turns, A&& a, B&& b) {
  double a_time = 1e300, b_time = 1e300;
  for (auto _ : state) {
    for (int turn = 0; turn < turns; ++turn) {
      a_time = std::min(a_time, best_time(1, a));
      b_time = std::min(b_time, best_time(1, b));
    }
    state.SetIterationTime(a_time + b_time);
  }
  return {a_time, b_time};
}

/// Batch 4 x 8 heads x 4096 tokens; the outputs of both ways are the same bits.
void batch(benchmark::State& state) {
  Layer layer(4, size(4096), state.range(0) != 0);
  layer.run_one_by_one();
  const Matrix<float> one_by_one = layer.out();
  layer.run_at_once({options});
  if (one_by_one != layer.out()) state.SkipWithError("a head has other bits in the batch than alone");
  const auto [time, alone_time] =
      in_turn(state, 5, [&] { layer.run_at_once({options}); }, [&] { layer.run_one_by_one(); });
  report_rate<float>(state, layer.pairs(), d, time);
  state.counters["one_by_one_s"] = alone_time;
  state.counters["at_once_s"] = time;
  state.counters["rate_of_one_by_one"] = alone_time / time;
}

/// Offsets of sequences of 1 .. longest tokens, drawn from the seed, of so many tokens in all.
std::vector<Index> random_starts(Index tokens, Index longest, std::uint64_t seed) {
  std::vector<Index> starts(1);  // 0
  while (starts.back() < tokens) {
    const double draw = poslsh::random_uniform(seed, 7, starts.size());
    const Index length = 1 + static_cast<Index>(draw * static_cast<double>(longest));
    starts.push_back(std::min(tokens, starts.back() + length));
  }
  return starts;
}

/// Packed sequences of 1 .. 2048 tokens, 16384 in all: pairs a second, beside heads of 4096 tokens one by one.
void packed(benchmark::State& state) {
  const Index n = size(16384);
  const std::vector<Index> starts = random_starts(n, size(2048), static_cast<std::uint64_t>(state.range(0)));
  double pairs = 0;
  for (std::size_t m = 1; m < starts.size(); ++m) pairs += static_cast<double>(heads) * triangle(starts[m] - starts[m - 1]);
  Layer sequences(1, n, true), whole(1, size(4096), true);
  const auto [time, alone_time] = in_turn(
      state, 5, [&] { sequences.run_at_once({options, {}, starts, starts}); }, [&] { whole.run_one_by_one(); });
  report_rate<float>(state, pairs, d, time);
  state.counters["sequences"] = static_cast<double>(starts.size() - 1);
  state.counters["rate_of_one_by_one"] = pairs / time / (whole.pairs() / alone_time);
}

constexpr auto ms = benchmark::kMillisecond;

BENCHMARK(batch)->ArgName("tokens_first")->Arg(0)->Arg(1)->UseManualTime()->Unit(ms)->Iterations(1);
BENCHMARK(packed)->ArgName("seed")->Arg(1)->Arg(2)->Arg(3)->UseManualTime()->Unit(ms)->Iterations(1);

}  // namespace

BENCHMARK_MAIN();
