// SPDX-License-Identifier: MIT

// How rates depend on threads, and on the work that a tile of queries has. float, causal, unit normal data.

#include "methods.hpp"

#include <functional>
#include <map>
#include <thread>

namespace {

using namespace poslsh_bench;
using poslsh::AlibiBias;

HeadData<float>& data(Index n, Index d) {
  static std::map<std::pair<Index, Index>, HeadData<float>> all;
  return all.try_emplace({n, d}, n, d).first->second;
}

/// Beside one thread, in turn.
void threads(benchmark::State& state, const std::function<Method(int)>& method_of) {
  const int count = static_cast<int>(state.range(0));
  HeadData<float>& head = data(size(32768), 64);
  const Method one = method_of(1), many = method_of(count);
  double pairs = 0, one_time = 1e300, many_time = 1e300;
  for (auto _ : state) {
    for (int run = 0; run < 3; ++run) {
      one_time = std::min(one_time, best_time(1, [&] { pairs = one(head); }));
      many_time = std::min(many_time, best_time(1, [&] { many(head); }));
    }
    state.SetIterationTime(many_time);
  }
  report_rate<float>(state, pairs, 64, many_time);
  state.counters["thread_count"] = count;
  state.counters["times_faster"] = one_time / many_time;
}

/// Windows of a few keys to thousands: what a tile's fixed costs do to the rate.
void tile_work(benchmark::State& state) {
  const Index n = size(16384), keys = std::min(state.range(0), n), d = state.range(1);
  HeadData<float>& head = data(n, d);
  const Method method = window(poslsh::NoBias{}, keys - 1);
  double pairs = 0;
  const double time = timed_loop(state, [&] { pairs = method(head); });
  // Pairs inside the window, not those that whole packets make of it.
  const double inside = triangle(keys) + static_cast<double>(n - keys) * static_cast<double>(keys);
  report_rate<float>(state, inside, d, time);
  state.counters["keys"] = static_cast<double>(keys);
  state.counters["head_dim"] = static_cast<double>(d);
  state.counters["scored_over_inside"] = pairs / inside;
}

void add_threads(const std::string& name, const std::function<Method(int)>& method_of) {
  auto* const family =
      benchmark::RegisterBenchmark(("threads/" + name).c_str(), [=](benchmark::State& state) { threads(state, method_of); });
  family->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(1)->ArgName("threads");
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  for (int count = 1; count < cores; count *= 2) family->Arg(count);
  family->Arg(cores);
}

BENCHMARK(tile_work)
    ->ArgNames({"keys", "d"})
    ->ArgsProduct({{16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192}, {32, 64, 128}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.05);

}  // namespace

int main(int argc, char** argv) {
  const auto hashes = poslsh::draw_hashes(poslsh::LaplaceKernel{64}, 16, 1, Sampling::stratified);
  add_threads("exact", [](int count) { return exact(AlibiBias{1.0 / 64}, 0, count); });
  add_threads("exact, tiles skipped (2^-24)", [](int count) { return exact(AlibiBias{1.0 / 64}, 0x1p-24, count); });
  add_threads("one sweep, 16 draws", [=](int count) { return one_sweep(hashes, count); });
  add_threads("blockwise, 16 draws", [=](int count) { return blockwise(hashes, count); });
  return run(argc, argv);
}
