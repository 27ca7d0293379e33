// SPDX-License-Identifier: MIT

// Decoding, one query a head and step, 8 heads of 64 features with the standard slopes; float, one thread, unit normal
// data. Compared figures are measured in turn inside one benchmark, and reported as their ratio.

#include "support.hpp"

#include <vector>

namespace {

using namespace poslsh_bench;
using poslsh::AlibiBias;
using poslsh::LaplaceKernel;
using poslsh::MeanMask;
using poslsh::Sampling;
using poslsh::StreamingAttention;
using poslsh::TensorView;

constexpr Index heads = 8, d = 64;

/// Tokens that streams are fed with, again and again.
struct Pool {
  static constexpr Index tokens = 1024;
  Matrix<float> q = normal_matrix<float>(heads * tokens, d, 1), k = normal_matrix<float>(heads * tokens, d, 2),
                v = normal_matrix<float>(heads * tokens, d, 3);

  static TensorView<const float> part(const Matrix<float>& all, Index first, Index count) {
    auto view = TensorView<const float>::heads_first(all.data() + first * d, 1, heads, count, d);
    view.head_stride = tokens * d;
    return view;
  }
};
const Pool& pool() {
  static const Pool all;
  return all;
}

template <class B, class S = float>
class Decoder {
 public:
  explicit Decoder(const std::vector<B>& biases) : stream_(biases, heads, d, d), out_(heads, d) {}

  /// Takes in so many tokens without a query.
  void append(Index tokens) {
    while (tokens > 0) {
      const Index count = std::min(tokens, Pool::tokens);
      stream_.append(Pool::part(pool().k, 0, count), Pool::part(pool().v, 0, count));
      tokens -= count;
    }
  }
  /// Seconds of one step.
  double step() {
    const Index token = next_++ % Pool::tokens;
    const auto q = Pool::part(pool().q, token, 1), k = Pool::part(pool().k, token, 1), v = Pool::part(pool().v, token, 1);
    const auto out = TensorView<float>::heads_first(out_.data(), 1, heads, 1, d);
    const double start = seconds();
    stream_.step(q, k, v, out);
    return seconds() - start;
  }
  [[nodiscard]] const Matrix<float>& output() const { return out_; }
  [[nodiscard]] double cached_tokens() const {
    Index sum = 0;
    for (Index head = 0; head < heads; ++head) sum += stream_.cached_tokens(head);
    return static_cast<double>(sum);
  }
  [[nodiscard]] double bytes() const { return static_cast<double>(stream_.bytes()); }

 private:
  StreamingAttention<float, B, S> stream_;
  Matrix<float> out_;
  Index next_ = 0;
};

/// Seconds of a loop a = b + x c over so many bytes in all, at best.
double triad_time(double bytes) {
  const Index count = std::max<Index>(static_cast<Index>(bytes / 12), 64);
  Eigen::ArrayXf a = Eigen::ArrayXf::Zero(count), b = Eigen::ArrayXf::Random(count), c = Eigen::ArrayXf::Random(count);
  return best_time(quick() ? 3 : 200, [&] {
    a = b + 0.5f * c;
    benchmark::DoNotOptimize(a.data());
    benchmark::ClobberMemory();
  });
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// Tokens and keys read of steps in turn, block by block.
struct Steps {
  std::vector<double> times;  ///< a step, of each block
  double cached = 0, steps = 0;

  template <class D>
  void block(D& decoder, int count) {
    double time = 0;
    for (int i = 0; i < count; ++i) {
      cached += decoder.cached_tokens() + 1;  // what this step's query sees
      time += decoder.step();
    }
    times.push_back(time / count);
    steps += count;
  }
  [[nodiscard]] double time() const { return median(times); }
  [[nodiscard]] double mean_cached() const { return cached / steps; }
};

/// Measure 3: mean masks of 32 draws after 100,000 and after 1,000,000 tokens.
/// A step's keys change with its position, so that both are means over many blocks of steps.
void mean_mask(benchmark::State& state) {
  double sigmas = 0;
  std::vector<MeanMask> masks;
  for (const double slope : poslsh::alibi_slopes(heads)) {
    sigmas += 1 / slope;
    masks.emplace_back(poslsh::draw_hashes(LaplaceKernel{1 / slope}, 32, 1, static_cast<Sampling>(state.range(0)),
                                           static_cast<std::uint64_t>(masks.size())));
  }
  const int blocks = quick() ? 2 : 50, steps = quick() ? 20 : 200;
  Steps early, late;
  double triad = 0;
  for (auto _ : state) {
    early = late = {};
    Decoder<MeanMask> near(masks), far(masks);
    near.append(size(100000));
    far.append(size(1000000));
    for (int block = 0; block < blocks; ++block) {
      early.block(near, steps);
      late.block(far, steps);
    }
    triad = triad_time(early.mean_cached() * 2 * d * sizeof(float));
    state.SetIterationTime(early.time());
  }
  const double bytes = early.mean_cached() * 2 * d * sizeof(float);
  state.counters["cached_of_sigma"] = early.mean_cached() / sigmas;
  state.counters["us_at_100k"] = early.time() * 1e6;
  state.counters["us_at_1M"] = late.time() * 1e6;
  state.counters["growth"] = late.time() / early.time();
  state.counters["growth_of_cached"] = late.mean_cached() / early.mean_cached();
  state.counters["MB_a_token"] = bytes / 1e6;
  state.counters["GB/s"] = bytes / early.time() / 1e9;
  state.counters["triad_GB/s"] = bytes / triad / 1e9;
  state.counters["of_triad"] = triad / early.time();
}

/// Measure 4: exact ALiBi over a cache in float, bfloat16 and half, beyond the last level of the core's caches.
void storage(benchmark::State& state) {
  const Index reach = size(state.range(0));
  std::vector<AlibiBias> biases;
  for (const double slope : poslsh::alibi_slopes(heads)) biases.push_back({slope});
  const int blocks = quick() ? 2 : 9, steps = quick() ? 5 : 20;
  Steps wide, bfloat, half;
  double bfloat_error = 0, half_error = 0, wide_bytes = 0, bfloat_bytes = 0, triad = 0;
  for (auto _ : state) {
    wide = bfloat = half = {};
    Decoder<AlibiBias> in_float(biases);
    Decoder<AlibiBias, Eigen::bfloat16> in_bfloat(biases);
    Decoder<AlibiBias, Eigen::half> in_half(biases);
    for (const auto prepare : {0, 1}) {
      const auto run = [&](auto& decoder) {
        if (prepare == 0)
          decoder.append(reach);
        else
          decoder.step();  // grows what has to grow
      };
      run(in_float);
      run(in_bfloat);
      run(in_half);
    }
    for (int block = 0; block < blocks; ++block) {
      wide.block(in_float, steps);
      bfloat.block(in_bfloat, steps);
      half.block(in_half, steps);
      bfloat_error = std::max(bfloat_error, relative_error(in_bfloat.output(), in_float.output()));
      half_error = std::max(half_error, relative_error(in_half.output(), in_float.output()));
    }
    wide_bytes = in_float.bytes();
    bfloat_bytes = in_bfloat.bytes();
    triad = triad_time(wide.mean_cached() * 2 * d * sizeof(float));
    state.SetIterationTime(wide.time());
  }
  const double bytes = wide.mean_cached() * 2 * d * sizeof(float);
  state.counters["MB_in_float"] = bytes / 1e6;
  state.counters["tokens/s_float"] = 1 / wide.time();
  state.counters["tokens/s_bfloat16"] = 1 / bfloat.time();
  state.counters["tokens/s_half"] = 1 / half.time();
  state.counters["bfloat16_of_float"] = wide.time() / bfloat.time();
  state.counters["half_of_float"] = wide.time() / half.time();
  state.counters["bfloat16_bytes"] = bfloat_bytes / wide_bytes;
  state.counters["bfloat16_error"] = bfloat_error;
  state.counters["half_error"] = half_error;
  state.counters["GB/s_float"] = bytes / wide.time() / 1e9;
  state.counters["of_triad_float"] = triad / wide.time();
}

BENCHMARK(mean_mask)
    ->ArgName("sampling")
    ->Arg(static_cast<int64_t>(Sampling::stratified))
    ->Arg(static_cast<int64_t>(Sampling::importance))
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond)
    ->Iterations(1);
BENCHMARK(storage)->ArgName("reach")->Arg(32768)->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(1);

}  // namespace

BENCHMARK_MAIN();
