// SPDX-License-Identifier: MIT
#pragma once

// Shared by the benchmarks: inputs, yardsticks of the core they run on, and the counters beside each time.

#include <poslsh/poslsh.hpp>

#include <benchmark/benchmark.h>

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <numbers>
#include <string>

namespace poslsh_bench {

using poslsh::Index;
using poslsh::Matrix;
using poslsh::Vector;

/// Where the program has OpenBLAS in it, through Eigen or a peer: its description, and one thread for it.
inline void tame_openblas() {
  // By name, so that the programs need not be linked with it.
  const auto describe = reinterpret_cast<char* (*)()>(dlsym(RTLD_DEFAULT, "openblas_get_config"));
  const auto set_threads = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"));
  if (describe == nullptr || set_threads == nullptr) return;
  benchmark::AddCustomContext("BLAS", describe());
  set_threads(1);
}

/// What a figure depends on, printed with it: the compiler, its flags (from CMake) and the vector unit they chose.
inline const bool context_is_told = [] {
#ifdef __clang__
  benchmark::AddCustomContext("compiler", __VERSION__);
#else
  benchmark::AddCustomContext("compiler", "g++ " __VERSION__);
#endif
#ifdef POSLSH_BENCH_FLAGS
  benchmark::AddCustomContext("flags", POSLSH_BENCH_FLAGS);
#endif
  benchmark::AddCustomContext("floats in a packet", std::to_string(poslsh::detail::packet_size<float>));
  std::ifstream cpu_info("/proc/cpuinfo");
  for (std::string line; std::getline(cpu_info, line);)
    if (line.starts_with("model name")) {
      benchmark::AddCustomContext("cpu", line.substr(line.find(':') + 2));
      break;
    }
  if (const char* commit = std::getenv("POSLSH_BENCH_COMMIT")) benchmark::AddCustomContext("commit", commit);
  tame_openblas();
  return true;
}();

/// POSLSH_BENCH_QUICK=1 asks for small sizes: a test that the programs run.
inline bool quick() { return std::getenv("POSLSH_BENCH_QUICK") != nullptr; }
inline Index size(Index full) { return quick() ? std::max<Index>(full / 16, 64) : full; }

template <class T>
Matrix<T> normal_matrix(Index rows, Index cols, std::uint64_t stream) {
  Matrix<T> matrix(rows, cols);
  for (Index i = 0; i < matrix.size(); ++i) {
    const std::uint64_t counter = 2 * static_cast<std::uint64_t>(i);
    const double radius = std::sqrt(-2 * std::log(poslsh::random_uniform(1, stream, counter)));
    const double angle = 2 * std::numbers::pi * poslsh::random_uniform(1, stream, counter + 1);
    matrix.data()[i] = static_cast<T>(radius * std::cos(angle));
  }
  return matrix;
}

/// Unit normal queries, keys and values of one head, and room for its output.
template <class T>
struct HeadData {
  Matrix<T> q, k, v, values;
  Vector<double> log_sum_exp;
  HeadData(Index n, Index d)
      : q(normal_matrix<T>(n, d, 1)), k(normal_matrix<T>(n, d, 2)), v(normal_matrix<T>(n, d, 3)), values(n, d),
        log_sum_exp(n) {}
};

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Best of several runs, in seconds.
template <class Body>
double best_time(int runs, Body&& body) {
  double best = 1e300;
  for (int run = 0; run < runs; ++run) {
    const double start = seconds();
    body();
    best = std::min(best, seconds() - start);
  }
  return best;
}

/// Eigen's own 1024^3 product on one thread, GFLOP/s (yardstick G); with POSLSH_BLAS that of BLAS.
template <class T>
double eigen_product_rate() {
  static const double rate = [] {
    const Index n = quick() ? 256 : 1024;
    const Matrix<T> a = normal_matrix<T>(n, n, 4), b = normal_matrix<T>(n, n, 5);
    Matrix<T> c(n, n);
    const double time = best_time(5, [&] {
      for (int i = 0; i < 4; ++i) c.noalias() = a * b;
      benchmark::DoNotOptimize(c.data());
    });
    return 4 * 2 * std::pow(static_cast<double>(n), 3) / time / 1e9;
  }();
  return rate;
}

/// Multiply-adds on registers alone, GFLOP/s: what the core can do (yardstick P).
template <class T>
double fma_peak() {
  static const double rate = [] {
    using Packet = typename Eigen::internal::packet_traits<T>::type;
    constexpr int lanes = Eigen::internal::packet_traits<T>::size, chains = 12;
    const long steps = quick() ? 100000 : 2000000;
    const Packet factor = Eigen::internal::pset1<Packet>(T(0.999)), term = Eigen::internal::pset1<Packet>(T(0.001));
    const double time = best_time(7, [&] {
      Packet sum[chains];  // local, so that it stays in registers
      for (Packet& s : sum) s = term;
      for (long step = 0; step < steps; ++step)
        poslsh::detail::unrolled<chains>(
            [&](auto i) POSLSH_INLINE_LAMBDA { sum[i] = Eigen::internal::pmadd(sum[i], factor, term); });
      T all = 0;
      for (const Packet& s : sum) all += Eigen::internal::predux(s);
      benchmark::DoNotOptimize(all);
    });
    return static_cast<double>(steps) * chains * lanes * 2 / time / 1e9;
  }();
  return rate;
}

inline double triangle(Index n) { return static_cast<double>(n) * static_cast<double>(n + 1) / 2; }

/// Rate counters from seconds a call: GFLOP/s at 4 d a pair, and its share of both yardsticks.
template <class T>
void report_rate(benchmark::State& state, double pairs, Index d, double time) {
  const double rate = 4 * static_cast<double>(d) * pairs / time / 1e9;
  state.counters["GFLOP/s"] = rate;
  state.counters["of_G"] = rate / eigen_product_rate<T>();
  state.counters["of_P"] = rate / fma_peak<T>();
}

/// ||a - b||_F / ||b||_F.
template <class A, class B>
double relative_error(const A& a, const B& b) {
  return (a.template cast<double>() - b.template cast<double>()).norm() / b.template cast<double>().norm();
}

/// Whether any benchmark of this program found a figure outside its range.
inline bool out_of_range = false;

/// Reports an error figure as a counter. Outside [low, high] the benchmark counts as failed, and so does the program.
inline void report_error(benchmark::State& state, double error, double low, double high) {
  state.counters["error"] = error;
  state.counters["error_bound"] = high;
  if (error >= low && error <= high) return;  // false for NaN too
  out_of_range = true;
  state.SkipWithError(("the error " + std::to_string(error) + " is not between " + std::to_string(low) + " and " +
                       std::to_string(high)).c_str());
}

/// main() of a program whose benchmarks report errors.
inline int run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return out_of_range ? 1 : 0;
}

/// Runs the body under the benchmark's clock; gives the seconds of an average call.
template <class Body>
double timed_loop(benchmark::State& state, Body&& body) {
  double total = 0;
  for (auto _ : state) {
    const double start = seconds();
    body();
    const double time = seconds() - start;
    state.SetIterationTime(time);
    total += time;
  }
  return total / static_cast<double>(std::max<benchmark::IterationCount>(state.iterations(), 1));
}

}  // namespace poslsh_bench
