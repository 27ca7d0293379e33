// SPDX-License-Identifier: MIT

// Error against time, the honest picture: every method with every setting, on the same data. float, n = 8192, d = 64,
// causal, one thread. Unit normal data, and the same with queries four times as large: sharp scores, whose far keys
// matter. "error" is relative to exact attention in double.

#include "methods.hpp"

#include <functional>
#include <map>

namespace {

using namespace poslsh_bench;
using poslsh::AlibiBias;
using poslsh::KernelBias;
using poslsh::LaplaceKernel;
using poslsh::PowerKernel;

constexpr Index d = 64;

/// The target: a kernel of the distance on data of this sharpness.
struct Target {
  std::string name;
  double sharpness, sigma;  ///< sigma 0: the power kernel
  [[nodiscard]] bool laplace() const { return sigma > 0; }
};

const PowerKernel power{1.0 / 16, 2};

HeadData<float>& data(double sharpness) {
  static std::map<double, HeadData<float>> all;
  const auto [head, anew] = all.try_emplace(sharpness, size(8192), d);
  if (anew) head->second.q *= static_cast<float>(sharpness);
  return head->second;
}

const Reference& reference(const Target& target) {
  static std::map<std::string, Reference> all;
  const auto known = all.find(target.name);
  if (known != all.end()) return known->second;
  const HeadData<float>& head = data(target.sharpness);
  return all
      .emplace(target.name, target.laplace() ? Reference(head, AlibiBias{1 / target.sigma})
                                             : Reference(head, KernelBias<PowerKernel>{power}))
      .first->second;
}

void measure(benchmark::State& state, const Target& target, const Method& method, double setting, double high) {
  HeadData<float>& head = data(target.sharpness);
  const Reference& right = reference(target);
  head.values.setConstant(std::numeric_limits<float>::quiet_NaN());
  double pairs = method(head), time = 0;
  const double error = right.error(head.values);
  for (auto _ : state) {
    time = best_time(2, [&] { pairs = method(head); });
    state.SetIterationTime(time);
  }
  report_rate<float>(state, pairs, d, time);
  state.counters["keys_a_query"] = pairs / static_cast<double>(head.q.rows());
  state.counters["setting"] = setting;
  report_error(state, error, 0, high);
}

void add(const Target& target, const std::string& method_name, const Method& method, double setting, double high) {
  const std::string name = target.name + "/" + method_name + "/" + std::to_string(setting);
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) { measure(state, target, method, setting, high); })
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(1);
}

/// A method whose cost or error a number sets. What approximates may err by as much as the output is large; fixed blocks,
/// which estimate nothing, by more: the first rows of a block are means of a few values, far larger than those of many.
template <class B, class K>
void add_target(const Target& target, const B& bias, const K& kernel, double reach) {
  constexpr double exact_bound = 2e-5, any = 2, no_estimate = 4;
  const Index n = size(8192);
  add(target, "exact", exact(bias), 0, exact_bound);
  for (const double tolerance : {0x1p-24, 0x1p-16, 0x1p-10, 0x1p-6, 0x1p-3})
    add(target, "exact, tiles skipped", exact(bias, tolerance), tolerance, std::max(exact_bound, 2 * tolerance));
  for (const double widths : {1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0})
    if (const auto keys = static_cast<Index>(widths * reach); keys < n) add(target, "window", window(bias, keys), widths, any);
  for (const double widths : {2.0, 8.0})
    add(target, "fixed blocks", exact(poslsh::FixedBlocks{static_cast<Index>(widths * reach)}), widths, no_estimate);
  const std::pair<Sampling, std::string> samplings[] = {{Sampling::independent, "independent"},
                                                        {Sampling::stratified, "stratified"},
                                                        {Sampling::importance, "importance"},
                                                        {Sampling::mixture, "mixture"}};
  for (const auto& [sampling, sampling_name] : samplings)
    for (const Index samples : {8, 32, 128, 512}) {
      const auto hashes = poslsh::draw_hashes(kernel, samples, 1, sampling);
      add(target, "one sweep, " + sampling_name, one_sweep(hashes), static_cast<double>(samples), any);
      const bool shown = sampling == Sampling::independent || sampling == Sampling::mixture;
      if (shown && samples <= 128 && reach <= 64)
        add(target, "blockwise, " + sampling_name, blockwise(hashes), static_cast<double>(samples), any);
    }
}

void add_all() {
  for (const double sharpness : {1.0, 4.0}) {
    const std::string data_name = sharpness == 1 ? "normal" : "sharp";
    for (const double sigma : {16.0, 64.0, 256.0}) {
      const Target target{data_name + ", sigma " + std::to_string(static_cast<int>(sigma)), sharpness, sigma};
      add_target(target, AlibiBias{1 / sigma}, LaplaceKernel{sigma}, sigma);
    }
    add_target({data_name + ", power kernel", sharpness, 0}, KernelBias<PowerKernel>{power}, power, 64);
  }
}

}  // namespace

int main(int argc, char** argv) {
  add_all();
  return run(argc, argv);
}
