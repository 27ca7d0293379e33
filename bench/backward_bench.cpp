// SPDX-License-Identifier: MIT

// The backward pass against the core's own limits: exact, one sweep over the mean mask, the mean merge, skipped tiles,
// two threads. float unless said, unit normal data, rates at 10 d flops a pair.
// Compared figures are measured in turn inside one benchmark, and reported as their ratio.

#include "support.hpp"

namespace {

using namespace poslsh_bench;
using poslsh::AlibiBias;
using poslsh::AttentionGradients;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::LaplaceKernel;
using poslsh::MeanMask;
using poslsh::Merge;
using poslsh::Sampling;

/// Unit normal inputs of one head, and the derivative by its values.
template <class T>
struct TrainingData {
  Matrix<T> q, k, v, d_values;
  TrainingData(Index n, Index d)
      : q(normal_matrix<T>(n, d, 1)), k(normal_matrix<T>(n, d, 2)), v(normal_matrix<T>(n, d, 3)),
        d_values(normal_matrix<T>(n, d, 4)) {}

  template <class B>
  AttentionOutput<T> forward(const B& bias, const AttentionOptions& options) const {
    return poslsh::attention(q, k, v, bias, options);
  }
  template <class B>
  AttentionGradients<T> backward(const AttentionOutput<T>& output, const B& bias, const AttentionOptions& options) const {
    AttentionGradients<T> gradients = poslsh::attention_backward(q, k, v, output, d_values, bias, options);
    benchmark::DoNotOptimize(gradients.dq.data());
    return gradients;
  }
};

/// report_rate() counts 4 d flops a pair; the backward pass takes 10 d.
template <class T>
void report_backward_rate(benchmark::State& state, double pairs, Index d, double time) {
  report_rate<T>(state, 2.5 * pairs, d, time);
}

/// The pairs of a causal sweep over the mask: keys up to the query that share a block with it.
double causal_pairs(const MeanMask& mask, Index n) {
  double pairs = 0;
  for (Index i = 0; i < n; ++i) pairs += static_cast<double>(i + 1 - std::max<Index>(mask.support(i).begin, 0));
  return pairs;
}

/// Exact, every key visited, beside the forward pass of the same inputs.
template <class T>
void exact(benchmark::State& state) {
  const Index n = size(4096), d = state.range(0);
  const TrainingData<T> head(n, d);
  const AttentionOptions options{.causal = state.range(1) != 0};
  const AlibiBias bias{1.0 / 64};
  const AttentionOutput<T> output = head.forward(bias, options);
  const double time = timed_loop(state, [&] { head.backward(output, bias, options); });
  const double forward_time = best_time(3, [&] { benchmark::DoNotOptimize(head.forward(bias, options)); });
  report_backward_rate<T>(state, options.causal ? triangle(n) : static_cast<double>(n * n), d, time);
  state.counters["of_forward_rate"] = 2.5 * forward_time / time;
}

/// The mean mask in one sweep, as a mean over draws, beside the exact sweep of the same inputs. Rates count the pairs the
/// forward pass visits, whole register blocks; the others those that share a block.
void mean_mask(benchmark::State& state) {
  const Index n = size(16384), d = 64;
  const double sigma = static_cast<double>(state.range(1));
  constexpr std::uint64_t seeds = 2;
  const TrainingData<float> head(n, d);
  const AttentionOptions options{.causal = true};
  double visited = 0, inside = 0, time = 0, exact_time = 0;
  for (auto _ : state) {
    visited = inside = time = exact_time = 0;
    const AlibiBias bias{1 / sigma};
    const AttentionOutput<float> exact_output = head.forward(bias, options);
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      const MeanMask mask(poslsh::draw_hashes(LaplaceKernel{sigma}, state.range(0), seed, Sampling::importance));
      AttentionOutput<float> output = head.forward(mask, options);
      visited += static_cast<double>(
          poslsh::attention_into(head.q, head.k, head.v, mask, options, output.values, output.log_sum_exp));
      inside += causal_pairs(mask, n);
      time += best_time(3, [&] { head.backward(output, mask, options); });
      exact_time += best_time(2, [&] { head.backward(exact_output, bias, options); });
    }
    state.SetIterationTime(time / seeds);
  }
  const double exact_rate = seeds * triangle(n) / exact_time;
  report_backward_rate<float>(state, visited, d, time);
  state.counters["rate_of_exact"] = visited / time / exact_rate;
  state.counters["inside_rate_of_exact"] = inside / time / exact_rate;
  state.counters["times_faster"] = exact_time / time;
}

/// Both merges over few draws, as in training, beside the exact pass.
void merges(benchmark::State& state) {
  const Index n = size(4096), d = 64, samples = state.range(0);
  const TrainingData<float> head(n, d);
  const AttentionOptions options{.causal = true};
  const AlibiBias bias{1.0 / 64};
  const auto hashes = poslsh::draw_hashes(LaplaceKernel{64}, samples, 1, Sampling::independent);
  const AttentionOutput<float> exact_output = head.forward(bias, options);
  const auto run = [&](Merge merge) {
    const AttentionOutput<float> output = poslsh::blockwise_attention(head.q, head.k, head.v, hashes, options, merge);
    return best_time(3, [&] {
      benchmark::DoNotOptimize(poslsh::blockwise_attention_backward(head.q, head.k, head.v, hashes, output,
                                                                    head.d_values, options, merge));
    });
  };
  double ratio = 0, mean = 0, exact_time = 0;
  for (auto _ : state) {
    ratio = run(Merge::ratio);
    mean = run(Merge::mean);
    exact_time = best_time(3, [&] { head.backward(exact_output, bias, options); });
    state.SetIterationTime(ratio + mean);
  }
  state.counters["ratio_s"] = ratio;
  state.counters["mean_s"] = mean;
  state.counters["exact_s"] = exact_time;
}

/// The 8 standard heads with skipped tiles, beside the full sweep.
void skipped_tiles(benchmark::State& state) {
  const Index n = size(16384), d = 64;
  const TrainingData<float> head(n, d);
  double full_time = 0, skip_time = 0, worst = 0;
  for (auto _ : state) {
    full_time = skip_time = 0;
    for (const double slope : poslsh::alibi_slopes(8)) {
      const AttentionOptions full{.causal = true}, skip{.causal = true, .tolerance = 0x1p-24};
      const AttentionOutput<float> output = head.forward(AlibiBias{slope}, skip);
      AttentionGradients<float> all, part;
      full_time += best_time(1, [&] { all = head.backward(output, AlibiBias{slope}, full); });
      skip_time += best_time(1, [&] { part = head.backward(output, AlibiBias{slope}, skip); });
      worst = std::max({worst, relative_error(part.dq, all.dq), relative_error(part.dk, all.dk),
                        relative_error(part.dv, all.dv)});
    }
    state.SetIterationTime(full_time + skip_time);
  }
  state.counters["full_s"] = full_time;
  state.counters["skipped_s"] = skip_time;
  state.counters["times_faster"] = full_time / skip_time;
  state.counters["worst_difference"] = worst;
}

/// One thread over two, beside the forward pass.
void two_threads(benchmark::State& state) {
  const Index n = size(8192), d = 64;
  const TrainingData<float> head(n, d);
  const AlibiBias bias{1.0 / 64};
  const AttentionOptions one{.causal = true}, two{.causal = true, .threads = 2};
  const AttentionOutput<float> output = head.forward(bias, one);
  double forward_one = 1e300, forward_two = 1e300, backward_one = 1e300, backward_two = 1e300;
  for (auto _ : state) {
    for (int i = 0; i < 5; ++i) {
      forward_one = std::min(forward_one, best_time(1, [&] { benchmark::DoNotOptimize(head.forward(bias, one)); }));
      forward_two = std::min(forward_two, best_time(1, [&] { benchmark::DoNotOptimize(head.forward(bias, two)); }));
      backward_one = std::min(backward_one, best_time(1, [&] { head.backward(output, bias, one); }));
      backward_two = std::min(backward_two, best_time(1, [&] { head.backward(output, bias, two); }));
    }
    state.SetIterationTime(backward_one + backward_two);
  }
  state.counters["times_faster"] = backward_one / backward_two;
  state.counters["forward_times_faster"] = forward_one / forward_two;
}

constexpr auto ms = benchmark::kMillisecond;

BENCHMARK(exact<float>)->ArgNames({"d", "causal"})->ArgsProduct({{64, 128}, {1, 0}})->UseManualTime()->Unit(ms);
BENCHMARK(exact<double>)->ArgNames({"d", "causal"})->ArgsProduct({{64, 128}, {1}})->UseManualTime()->Unit(ms);
BENCHMARK(mean_mask)
    ->ArgNames({"s", "sigma"})
    ->ArgsProduct({{16, 128}, {64, 256}})
    ->UseManualTime()
    ->Unit(ms)
    ->Iterations(1);
BENCHMARK(merges)->ArgName("s")->Arg(10)->Arg(20)->UseManualTime()->Unit(ms)->Iterations(1);
BENCHMARK(skipped_tiles)->UseManualTime()->Unit(ms)->Iterations(1);
BENCHMARK(two_threads)->UseManualTime()->Unit(ms)->Iterations(1);

}  // namespace

BENCHMARK_MAIN();
