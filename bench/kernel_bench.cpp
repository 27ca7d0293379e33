// SPDX-License-Identifier: MIT

// The streaming kernel against the core's own limits: exact, one sweep over the mean mask, blockwise, skipped tiles,
// growth with n, two threads. float unless said, unit normal data.
// Compared figures are measured in turn inside one benchmark, and reported as their ratio.

#include "support.hpp"

namespace {

using namespace poslsh_bench;
using poslsh::AlibiBias;
using poslsh::AttentionOptions;
using poslsh::LaplaceKernel;
using poslsh::MeanMask;
using poslsh::NoBias;
using poslsh::Sampling;

template <class T, class B>
Index run(HeadData<T>& head, const B& bias, const AttentionOptions& options) {
  return poslsh::attention_into(head.q, head.k, head.v, bias, options, head.values, head.log_sum_exp);
}

/// Measure 1: exact, every key visited.
template <class T>
void exact(benchmark::State& state) {
  const Index n = size(8192), d = state.range(0);
  HeadData<T> head(n, d);
  const double time =
      timed_loop(state, [&] { run(head, AlibiBias{1.0 / 64}, {.causal = state.range(1) != 0}); });
  report_rate<T>(state, state.range(1) != 0 ? triangle(n) : static_cast<double>(n * n), d, time);
}

/// Measure 2: the mean mask in one sweep, as a mean over draws, beside the exact sweep of the same inputs.
void mean_mask(benchmark::State& state) {
  const Index n = size(32768), d = 64;
  constexpr std::uint64_t seeds = 4;
  HeadData<float> head(n, d);
  const AttentionOptions options{.causal = true};
  double pairs = 0, inside = 0, time = 0, exact_time = 0;
  for (auto _ : state) {
    pairs = inside = time = exact_time = 0;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      const MeanMask mask(
          poslsh::draw_hashes(LaplaceKernel{256}, state.range(0), seed, static_cast<Sampling>(state.range(1))));
      for (Index i = 0; i < n; i += 16) inside += 16 * static_cast<double>(i + 1 - std::max<Index>(mask.support(i).begin, 0));
      time += best_time(2, [&] { pairs += static_cast<double>(run(head, mask, options)) / 2; });
      exact_time += best_time(1, [&] { run(head, AlibiBias{1.0 / 256}, options); });
    }
    state.SetIterationTime(time / seeds);
  }
  report_rate<float>(state, pairs, d, time);
  state.counters["rate_of_exact"] = pairs / time / (seeds * triangle(n) / exact_time);
  state.counters["visited_of_support"] = pairs / inside;
  state.counters["times_faster"] = exact_time / time;
}

/// Measure 3: blocks of one size, as blockwise_attention calls the kernel.
void blocks(benchmark::State& state) {
  const Index n = size(16384), d = 64, block = state.range(0);
  HeadData<float> head(n, d);
  const std::vector<poslsh::PositionHash> hashes(1, {static_cast<double>(block), 0, 1});
  const AttentionOptions options{.causal = state.range(1) != 0};
  const double time = timed_loop(state, [&] {
    benchmark::DoNotOptimize(poslsh::blockwise_attention(head.q, head.k, head.v, hashes, options));
  });
  HeadData<float> whole(size(8192), d);
  const double exact_time = best_time(3, [&] { run(whole, AlibiBias{1.0 / 64}, options); });
  const Index m = whole.q.rows();
  const double exact_pairs = options.causal ? triangle(m) : static_cast<double>(m * m);
  double pairs = 0;
  for (Index begin = 0; begin < n; begin += block) {
    const Index length = std::min(block, n - begin);
    pairs += options.causal ? triangle(length) : static_cast<double>(length * length);
  }
  report_rate<float>(state, pairs, d, time);
  state.counters["rate_of_exact"] = pairs / time / (exact_pairs / exact_time);
}

/// Measure 4: the 8 standard heads with skipped tiles, beside the full sweep.
void skipped_tiles(benchmark::State& state) {
  const Index n = size(65536), d = 64;
  HeadData<float> head(n, d);
  Matrix<float> full(n, d);
  double full_time = 0, skip_time = 0, worst = 0, pairs = 0;
  for (auto _ : state) {
    full_time = skip_time = 0;
    for (const double slope : poslsh::alibi_slopes(8)) {
      full_time += best_time(1, [&] { run(head, AlibiBias{slope}, {.causal = true}); });
      full = head.values;
      skip_time += best_time(1, [&] {
        pairs += static_cast<double>(run(head, AlibiBias{slope}, {.causal = true, .tolerance = 0x1p-24}));
      });
      worst = std::max(worst, relative_error(head.values, full));
    }
    state.SetIterationTime(full_time + skip_time);
  }
  state.counters["full_s"] = full_time;
  state.counters["skipped_s"] = skip_time;
  state.counters["times_faster"] = full_time / skip_time;
  state.counters["worst_difference"] = worst;
  state.counters["keys_a_query"] = pairs / static_cast<double>(n) / 8 / static_cast<double>(state.iterations());
}

/// Measure 5: time at 8 n over time at n; linear growth gives 8.
void growth(benchmark::State& state) {
  const Index n = size(16384), d = 64;
  HeadData<float> small(n, d), large(8 * n, d);
  const MeanMask mask(poslsh::draw_hashes(LaplaceKernel{256}, 32, 1, Sampling::stratified));
  const auto both = [&](HeadData<float>& head) {
    return state.range(0) == 0 ? best_time(1, [&] { run(head, mask, {.causal = true}); }) : best_time(1, [&] {
      for (const double slope : poslsh::alibi_slopes(8))
        run(head, AlibiBias{slope}, {.causal = true, .tolerance = 0x1p-24});
    });
  };
  double short_time = 1e300, long_time = 1e300;
  for (auto _ : state) {
    for (int i = 0; i < 3; ++i) {
      short_time = std::min(short_time, both(small));
      long_time = std::min(long_time, both(large));
    }
    state.SetIterationTime(short_time + long_time);
  }
  state.counters["short_s"] = short_time;
  state.counters["long_s"] = long_time;
  state.counters["growth"] = long_time / short_time;
}

/// Measure 7: one thread over two.
void two_threads(benchmark::State& state) {
  const Index n = size(32768), d = 64;
  HeadData<float> head(n, d);
  double one = 1e300, two = 1e300;
  for (auto _ : state) {
    for (int i = 0; i < 3; ++i) {
      one = std::min(one, best_time(1, [&] { run(head, AlibiBias{1.0 / 64}, {.causal = true, .threads = 1}); }));
      two = std::min(two, best_time(1, [&] { run(head, AlibiBias{1.0 / 64}, {.causal = true, .threads = 2}); }));
    }
    state.SetIterationTime(one + two);
  }
  state.counters["one_s"] = one;
  state.counters["two_s"] = two;
  state.counters["times_faster"] = one / two;
}

constexpr auto ms = benchmark::kMillisecond;
constexpr int64_t stratified = static_cast<int64_t>(Sampling::stratified);
constexpr int64_t importance = static_cast<int64_t>(Sampling::importance);

BENCHMARK(exact<float>)->ArgNames({"d", "causal"})->ArgsProduct({{64, 128}, {1, 0}})->UseManualTime()->Unit(ms);
BENCHMARK(exact<double>)->ArgNames({"d", "causal"})->ArgsProduct({{64, 128}, {1}})->UseManualTime()->Unit(ms);
BENCHMARK(mean_mask)
    ->ArgNames({"s", "sampling"})
    ->ArgsProduct({{16, 32, 128}, {stratified, importance}})
    ->UseManualTime()
    ->Unit(ms)
    ->Iterations(1);
BENCHMARK(blocks)->ArgNames({"size", "causal"})->ArgsProduct({{256, 512, 1024}, {1, 0}})->UseManualTime()->Unit(ms);
BENCHMARK(skipped_tiles)->UseManualTime()->Unit(ms)->Iterations(1);
BENCHMARK(growth)->ArgName("skipped")->Arg(0)->Arg(1)->UseManualTime()->Unit(ms)->Iterations(1);
BENCHMARK(two_threads)->UseManualTime()->Unit(ms)->Iterations(1);

}  // namespace

BENCHMARK_MAIN();
