// SPDX-License-Identifier: MIT

// Every method by length: time, error, rate, and the memory it takes beyond inputs and output; and the length from which
// on it is faster than exact attention. float, d = 64, causal, unit normal data, one thread. Errors are relative to
// exact ALiBi in double, over runs of 64 queries at eight places.

#include "methods.hpp"

#include <fstream>
#include <functional>
#include <map>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace {

using namespace poslsh_bench;
using poslsh::AlibiBias;
using poslsh::LaplaceKernel;

constexpr Index d = 64;
constexpr double sigma = 64;
constexpr double exact_bound = 2e-6;  // float against double

/// The head of one length; the one before goes.
HeadData<float>& data(Index n) {
  static std::unique_ptr<HeadData<float>> head;
  if (head == nullptr || head->q.rows() != n) {
    head.reset();
    head = std::make_unique<HeadData<float>>(n, d);
  }
  return *head;
}

const Reference& reference(Index n) {
  static std::map<Index, Reference> all;
  return all.try_emplace(n, data(n), AlibiBias{1 / sigma}).first->second;
}

/// The largest resident set since it was last asked for anew, MiB; 0 where the system does not say.
double peak_memory(bool anew) {
  if (anew) {
#ifdef __GLIBC__
    malloc_trim(0);  // what earlier calls freed is not there for this one
#endif
    std::ofstream("/proc/self/clear_refs") << 5;
  }
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (double kib = 0; word == "VmHWM:" && status >> kib) return kib / 1024;
  return 0;
}

std::vector<PositionHash> draws(Index samples, Sampling sampling) {
  return poslsh::draw_hashes(LaplaceKernel{sigma}, samples, 1, sampling);
}

void by_length(benchmark::State& state, const Method& method, double low, double high) {
  const Index n = size(state.range(0));
  HeadData<float>& head = data(n);
  const Reference& right = reference(n);
  head.values.setConstant(std::numeric_limits<float>::quiet_NaN());
  const double before = peak_memory(true);
  double pairs = method(head);
  const double memory = peak_memory(false) - before;
  const double error = right.error(head.values);
  const double time = timed_loop(state, [&] { pairs = method(head); });
  report_rate<float>(state, pairs, d, time);
  state.counters["n"] = static_cast<double>(n);
  state.counters["keys_a_query"] = pairs / static_cast<double>(n);
  state.counters["scratch_MiB"] = memory;
  report_error(state, error, low, high);
}

/// The length from which on a method is faster than exact attention by a twentieth at least, at every longer one that was
/// tried: lengths double until it is twice as fast; then between the last two by the powers that their times follow.
void crossing(benchmark::State& state, const std::function<Method(double)>& method_of) {
  const double width = static_cast<double>(state.range(0));
  const Method method = method_of(width), full = exact(AlibiBias{1 / width});
  constexpr double faster = 0.95;
  double crossed = 0, last_ratio = 0, ratio = 1;
  for (auto _ : state) {
    for (Index n = 64; n <= (quick() ? 512 : 65536) && ratio > 0.5; n *= 2) {
      HeadData<float>& head = data(n);
      double time = 1e300, full_time = 1e300;
      for (Index run = 0; run < std::clamp<Index>(65536 / n, 2, 50); ++run) {  // in turn
        time = std::min(time, best_time(1, [&] { method(head); }));
        full_time = std::min(full_time, best_time(1, [&] { full(head); }));
      }
      ratio = time / full_time;
      if (ratio >= faster)
        crossed = 0;
      else if (crossed == 0)
        crossed = last_ratio == 0 ? static_cast<double>(n)
                                  : static_cast<double>(n) * std::exp2(std::log(faster / ratio) / std::log(ratio / last_ratio));
      last_ratio = ratio;
    }
    state.SetIterationTime(1e-9);
  }
  state.counters["sigma"] = width;
  state.counters["crossing_n"] = crossed;  // 0: never up to the longest
}

void draw(benchmark::State& state) {
  const double time =
      timed_loop(state, [&] { benchmark::DoNotOptimize(poslsh::draw_hashes(LaplaceKernel{sigma}, state.range(0), 1)); });
  state.counters["ns_a_draw"] = time / static_cast<double>(state.range(0)) * 1e9;
}

void hash(benchmark::State& state) {
  const Index n = size(state.range(0));
  const PositionHash one = draws(1, Sampling::independent).front();
  const double time = timed_loop(state, [&] { benchmark::DoNotOptimize(poslsh::BlockMask(one, n)); });
  state.counters["ns_a_token"] = time / static_cast<double>(n) * 1e9;
}

constexpr Index million = 1 << 20;

void add_by_length(const std::string& name, const Method& method, Index longest, double low, double high) {
  auto* const family = benchmark::RegisterBenchmark(
      name.c_str(), [=](benchmark::State& state) { by_length(state, method, low, high); });
  family->UseManualTime()->Unit(benchmark::kMillisecond)->MinTime(0.05)->ArgName("n");
  for (Index n = 1024; n <= longest; n *= 4) family->Arg(n);
}

void add_crossing(const std::string& name, const std::function<Method(double)>& method_of) {
  auto* const family =
      benchmark::RegisterBenchmark(("crossing/" + name).c_str(), [=](benchmark::State& state) { crossing(state, method_of); });
  family->ArgName("sigma")->Arg(16)->Arg(64)->Arg(256)->UseManualTime()->Iterations(1);
}

void add_all() {
  const double slope = 1 / sigma;
  // Between these times 1 / sqrt(s) the error of s draws lies, for this data.
  const auto lsh = [](const std::string& name, const Method& method, Index samples) {
    const double unit = 1 / std::sqrt(static_cast<double>(samples));
    add_by_length(name, method, million, 0.02 * unit, 2 * unit);
  };
  add_by_length("exact", exact(AlibiBias{slope}), 65536, 0, exact_bound);
  add_by_length("exact, tiles skipped (2^-24)", exact(AlibiBias{slope}, 0x1p-24), million, 0, exact_bound);
  add_by_length("window, 8 sigma", window(AlibiBias{slope}, static_cast<Index>(8 * sigma)), million, 0, 0.05);
  add_by_length("fixed blocks, 2 sigma", exact(poslsh::FixedBlocks{static_cast<Index>(2 * sigma)}), million, 0.1, 2);
  for (const Index samples : {16, 128})
    lsh("one sweep, " + std::to_string(samples) + " draws", one_sweep(draws(samples, Sampling::stratified)), samples);
  lsh("blockwise, 16 draws", blockwise(draws(16, Sampling::stratified)), 16);
  add_by_length("naive dense", naive_dense(slope), 16384, 0, exact_bound);
#ifdef POSLSH_BENCH_TORCH
  add_by_length("PyTorch, dense", torch_dense(slope), 16384, 0, exact_bound);
#endif
  const auto hashes = [](double width, Index samples) {
    return poslsh::draw_hashes(LaplaceKernel{width}, samples, 1, Sampling::stratified);
  };
  add_crossing("exact, tiles skipped (2^-24)", [](double width) { return exact(AlibiBias{1 / width}, 0x1p-24); });
  add_crossing("window, 8 sigma", [](double width) { return window(AlibiBias{1 / width}, static_cast<Index>(8 * width)); });
  for (const Index samples : {16, 128}) {
    add_crossing("one sweep, " + std::to_string(samples) + " draws",
                 [=](double width) { return one_sweep(hashes(width, samples)); });
    add_crossing("blockwise, " + std::to_string(samples) + " draws",
                 [=](double width) { return blockwise(hashes(width, samples)); });
  }
}

BENCHMARK(draw)->Arg(32)->Arg(1024)->UseManualTime();
BENCHMARK(hash)->Arg(16384)->UseManualTime();

}  // namespace

int main(int argc, char** argv) {
  add_all();
  return run(argc, argv);
}
