// SPDX-License-Identifier: MIT

// Measure 6: a million tokens on one thread, and the memory it takes. float, d = 64, causal, sigma = 256.
// "peak" is the largest resident set of the whole process so far, "inputs" the size of q, k, v and the output.

#include "support.hpp"

#include <sys/resource.h>

namespace {

using namespace poslsh_bench;
using poslsh::AlibiBias;
using poslsh::LaplaceKernel;
using poslsh::MeanMask;

constexpr Index d = 64;
constexpr double mebibyte = 1 << 20;

HeadData<float>& million() {
  static HeadData<float> head(size(1 << 20), d);
  return head;
}

template <class B>
void sweep(benchmark::State& state, const B& bias, double tolerance) {
  HeadData<float>& head = million();
  Index pairs = 0;
  const double time = timed_loop(state, [&] {
    pairs = poslsh::attention_into(head.q, head.k, head.v, bias, {.causal = true, .tolerance = tolerance}, head.values,
                                   head.log_sum_exp);
  });
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double inputs = 4 * static_cast<double>(head.q.size()) * sizeof(float) / mebibyte;
  const double peak = static_cast<double>(usage.ru_maxrss) / 1024;
  report_rate<float>(state, static_cast<double>(pairs), d, time);
  state.counters["keys_a_query"] = static_cast<double>(pairs) / static_cast<double>(head.q.rows());
  state.counters["inputs_MiB"] = inputs;
  state.counters["peak_MiB"] = peak;
  state.counters["bound_MiB"] = 1.3 * inputs + 64;
}

void mean_mask(benchmark::State& state) {
  sweep(state, MeanMask(poslsh::draw_hashes(LaplaceKernel{256}, 32, 1)), 0);
}
void skipped_tiles(benchmark::State& state) { sweep(state, AlibiBias{1.0 / 256}, 0x1p-24); }

BENCHMARK(mean_mask)->UseManualTime()->Unit(benchmark::kSecond)->Iterations(1);
BENCHMARK(skipped_tiles)->UseManualTime()->Unit(benchmark::kSecond)->Iterations(1);

}  // namespace

BENCHMARK_MAIN();
