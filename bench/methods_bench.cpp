// SPDX-License-Identifier: MIT

// First look at every method by length: drawing, hashing, blockwise and one-sweep positional LSH, exact ALiBi and the
// naive dense form. float, d = 64, causal, sigma = 64, one thread. "error" is relative to exact ALiBi in double.

#include "support.hpp"

#include <map>

namespace {

using namespace poslsh_bench;
using poslsh::AlibiBias;
using poslsh::AttentionOptions;
using poslsh::LaplaceKernel;
using poslsh::MeanMask;
using poslsh::PositionHash;
using poslsh::Sampling;

constexpr Index d = 64;
constexpr double sigma = 64;

const AttentionOptions causal{.causal = true};

HeadData<float>& data(Index n) {
  static std::map<Index, HeadData<float>> all;
  return all.try_emplace(n, n, d).first->second;
}

const Matrix<double>& exact(Index n) {
  static std::map<Index, Matrix<double>> all;
  Matrix<double>& values = all[n];
  if (values.size() == 0) {
    const HeadData<float>& head = data(n);
    values = poslsh::attention(head.q.cast<double>(), head.k.cast<double>(), head.v.cast<double>(),
                               AlibiBias{1 / sigma}, AttentionOptions{.causal = true, .threads = 2})
                 .values;
  }
  return values;
}

void draw(benchmark::State& state) {
  const double time =
      timed_loop(state, [&] { benchmark::DoNotOptimize(poslsh::draw_hashes(LaplaceKernel{sigma}, state.range(0), 1)); });
  state.counters["ns_a_draw"] = time / static_cast<double>(state.range(0)) * 1e9;
}

void hash(benchmark::State& state) {
  const Index n = size(state.range(0));
  const PositionHash one = poslsh::draw_hashes(LaplaceKernel{sigma}, 1, 1, Sampling::independent).front();
  const double time = timed_loop(state, [&] { benchmark::DoNotOptimize(poslsh::BlockMask(one, n)); });
  state.counters["ns_a_token"] = time / static_cast<double>(n) * 1e9;
}

void exact_alibi(benchmark::State& state) {
  const Index n = size(state.range(0));
  HeadData<float>& head = data(n);
  const double time = timed_loop(
      state, [&] { poslsh::attention_into(head.q, head.k, head.v, AlibiBias{1 / sigma}, causal, head.values, head.log_sum_exp); });
  report_rate<float>(state, triangle(n), d, time);
  state.counters["error"] = relative_error(head.values, exact(n));
}

void naive_dense(benchmark::State& state) {
  const Index n = size(state.range(0));
  HeadData<float>& head = data(n);
  Matrix<float> scores;
  const double time = timed_loop(state, [&] {
    scores.noalias() = head.q * head.k.transpose();
    scores *= 1 / std::sqrt(static_cast<float>(d));
    for (Index i = 0; i < n; ++i) {
      auto row = scores.row(i);
      for (Index j = 0; j <= i; ++j) row[j] -= static_cast<float>(i - j) / static_cast<float>(sigma);
      const float maximum = row.head(i + 1).maxCoeff();
      row.head(i + 1) = (row.head(i + 1).array() - maximum).exp();
      row.head(i + 1) /= row.head(i + 1).sum();
      row.tail(n - i - 1).setZero();
    }
    head.values.noalias() = scores * head.v;
  });
  report_rate<float>(state, triangle(n), d, time);
  state.counters["error"] = relative_error(head.values, exact(n));
}

void blockwise(benchmark::State& state) {
  const Index n = size(state.range(0)), samples = state.range(1);
  HeadData<float>& head = data(n);
  const std::vector<PositionHash> hashes =
      poslsh::draw_hashes(LaplaceKernel{sigma}, samples, 1, static_cast<Sampling>(state.range(2)));
  double pairs = 0;
  for (const PositionHash& one : hashes) {
    const poslsh::BlockMask mask(one, n);
    for (const poslsh::KeyRange& block : mask.blocks()) pairs += triangle(block.size());
  }
  poslsh::AttentionOutput<float> output;
  const double time = timed_loop(
      state, [&] { output = poslsh::blockwise_attention(head.q, head.k, head.v, hashes, causal); });
  report_rate<float>(state, pairs, d, time);
  state.counters["keys_a_query"] = pairs / static_cast<double>(n);
  state.counters["error"] = relative_error(output.values, exact(n));
}

void one_sweep(benchmark::State& state) {
  const Index n = size(state.range(0)), samples = state.range(1);
  HeadData<float>& head = data(n);
  const MeanMask mask(poslsh::draw_hashes(LaplaceKernel{sigma}, samples, 1, static_cast<Sampling>(state.range(2))));
  Index pairs = 0;
  const double time = timed_loop(state, [&] {
    pairs = poslsh::attention_into(head.q, head.k, head.v, mask, causal, head.values, head.log_sum_exp);
  });
  report_rate<float>(state, static_cast<double>(pairs), d, time);
  state.counters["keys_a_query"] = static_cast<double>(pairs) / static_cast<double>(n);
  state.counters["error"] = relative_error(head.values, exact(n));
}

const std::vector<int64_t> lengths{1024, 2048, 4096, 8192, 16384};
const std::vector<int64_t> samplings{static_cast<int64_t>(Sampling::independent),
                                     static_cast<int64_t>(Sampling::importance)};

BENCHMARK(draw)->Arg(32)->Arg(1024)->UseManualTime();
BENCHMARK(hash)->ArgsProduct({lengths})->UseManualTime();
BENCHMARK(exact_alibi)->ArgsProduct({lengths})->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(naive_dense)->ArgsProduct({lengths})->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(blockwise)->ArgsProduct({lengths, {16}, samplings})->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(one_sweep)->ArgsProduct({lengths, {16, 128}, samplings})->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
