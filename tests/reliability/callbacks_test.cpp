// SPDX-License-Identifier: MIT

// What a caller's own code throws, a kernel, a bias or a short-context attention, at any of its calls and on any thread.

#include "reliability/counted_memory.hpp"

#include "poslsh/poslsh.hpp"
#include "reliability/entry_points.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <atomic>
#include <sstream>
#include <string>
#include <vector>

namespace callbacks_test {

using namespace poslsh;
using namespace poslsh::test;

namespace {

/// What is thrown: no std::exception, so that nobody on the way can take it for one of another kind.
struct Blown {
  Index call;
};

/// Counts the calls of all that share it, and throws at the one it is set to.
class Fuse {
 public:
  void touch() {
    const Index call = ++calls_;
    if (call == blows_at_) throw Blown{call};
  }
  /// Counts anew; 0: it holds.
  void set(Index call) {
    calls_ = 0;
    blows_at_ = call;
  }
  [[nodiscard]] Index calls() const { return calls_; }

 private:
  std::atomic<Index> calls_{0}, blows_at_{0};
};

/// A bias without hints.
struct FusedBias {
  Fuse* fuse;
  RaggedBias inner = {};
  [[nodiscard]] double log_weight(Index query, Index key) const { return fuse->touch(), inner.log_weight(query, key); }
  [[nodiscard]] KeyRange support(Index query) const { return fuse->touch(), inner.support(query); }
  template <class T>
  void add_log_weights(Index query, Index first_key, T* scores, Index count) const {
    fuse->touch();
    inner.add_log_weights(query, first_key, scores, count);
  }
};

/// A bias with every hint.
struct FusedSlope {
  static constexpr bool has_slopes = true;
  Fuse* fuse;
  AlibiBias inner = {0.1};
  [[nodiscard]] double log_weight_at(Index offset) const { return fuse->touch(), inner.log_weight_at(offset); }
  [[nodiscard]] double log_weight(Index query, Index key) const { return log_weight_at(key - query); }
  [[nodiscard]] double log_tail(Index offset) const { return fuse->touch(), inner.log_tail(offset); }
  [[nodiscard]] KeyRange support(Index query) const { return fuse->touch(), inner.support(query); }
  template <class T>
  void add_log_weights(Index query, Index first_key, T* scores, Index count) const {
    for (Index t = 0; t < count; ++t) scores[t] += static_cast<T>(log_weight(query, first_key + t));
  }
  void validate() const { fuse->touch(); }
};

/// A kernel that offers no more than it must; its quantile is searched for.
struct FusedKernel {
  Fuse* fuse;
  LaplaceKernel inner = {10};
  [[nodiscard]] double operator()(double x) const { return fuse->touch(), inner(x); }
  [[nodiscard]] double width_density(double width) const { return fuse->touch(), inner.width_density(width); }
  [[nodiscard]] double width_tail(double width) const { return fuse->touch(), inner.width_tail(width); }
  [[nodiscard]] double width_quantile(double probability) const {
    double low = 0, high = 400;
    for (int step = 0; step < 30; ++step) {
      const double middle = (low + high) / 2;
      (width_tail(middle) > 1 - probability ? low : high) = middle;
    }
    return high;
  }
};

/// What is wrong about a call when its fuse blows at the first touch, a later one or the last; or nothing. What was thrown
/// must reach the caller, and the next call must be right.
template <class Run>
std::string fuse_fault(Fuse& fuse, const Untouched& inputs, Run&& run) {
  fuse.set(0);
  const std::uint64_t expected = run();
  const Index last = fuse.calls();
  if (last == 0) return "no call";
  for (Index number = 1; number <= last; number = number == last ? last + 1 : std::min(last, number + number / 2 + 1)) {
    const HeldMemory before = held_memory();
    const char* wrong = "no exception";
    fuse.set(number);
    try {
      run();
    } catch (const Blown& blown) {
      wrong = blown.call == number ? nullptr : "another fuse";
    } catch (...) {
      wrong = "another exception";
    }
    if (!(held_memory() == before)) wrong = "memory that is not given back";
    if (!inputs.holds()) wrong = "an input that has changed";
    fuse.set(0);
    if (run() != expected) wrong = "other bits the next time";
    if (!(held_memory() == before)) wrong = "memory that is not given back the next time";
    if (wrong != nullptr) return wrong + (" with call " + std::to_string(number) + " of " + std::to_string(last));
  }
  return "";
}

/// Queries, keys, values and derivatives, and what must not change of them.
struct Problem {
  Inputs<float> x = normal_inputs<float>(200, 450, 8, 5, 1);
  Matrix<float> d_values = normal_matrix<float>(200, 5, 2);
  Layer<float> layer = normal_layer<float>({1, 4, 2, 110, 230, 8, 5}, 3);
  Untouched inputs;

  Problem() {
    for (const Matrix<float>* matrix : {&x.q, &x.k, &x.v, &d_values}) inputs.add(*matrix);
    for (const Tensor<float>* tensor : {&layer.q, &layer.k, &layer.v}) inputs.add(tensor->storage());
  }
};

/// Every entry point that takes a bias of the caller's own.
template <class B>
void check_bias(Problem& problem, Fuse& fuse, const B& bias) {
  const auto& [q, k, v] = problem.x;
  for (const int threads : {1, 3}) {
    CAPTURE(threads);
    const AttentionOptions options{.causal = true, .sink = 0.5, .tolerance = 1e-4, .threads = threads};
    fuse.set(0);
    const AttentionOutput<float> forward = attention(q, k, v, bias, options);
    const auto attend_once = [&, &q = q, &k = k, &v = v] { return Bits().add(attention(q, k, v, bias, options)).hash(); };
    REQUIRE(fuse_fault(fuse, problem.inputs, attend_once) == "");
    const auto differentiate_once = [&, &q = q, &k = k, &v = v] {
      return Bits().add(attention_backward(q, k, v, forward, problem.d_values, bias, options)).hash();
    };
    REQUIRE(fuse_fault(fuse, problem.inputs, differentiate_once) == "");

    const std::vector<B> biases(4, bias);
    const LayerOutput<float> output = attend(problem.layer, biases, {options});
    const auto attend_heads = [&] {
      const LayerOutput<float> got = attend(problem.layer, biases, {options});
      return Bits().add_all(got.values.storage()).add_all(got.log_sum_exp).hash();
    };
    REQUIRE(fuse_fault(fuse, problem.inputs, attend_heads) == "");
    const auto differentiate_heads = [&] {
      const LayerView<float> view = problem.layer.view();
      Tensor<float> dq(1, 4, 110, 8), dk(1, 2, 230, 8), dv(1, 2, 230, 5);
      const auto numbers = multi_head_attention_backward(
          view.q, view.k, view.v, output.values.view(), output.log_sum_exp.data(), output.values.view(), dq.view(),
          dk.view(), dv.view(), biases, {options});
      return Bits().add_all(dq.storage()).add_all(dk.storage()).add_all(dv.storage()).add_all(numbers).hash();
    };
    REQUIRE(fuse_fault(fuse, problem.inputs, differentiate_heads) == "");
  }
}

template <class Stream>
std::string saved(const Stream& stream) {
  std::ostringstream out;
  stream.save(out);
  return out.str();
}

/// What is wrong about a stream one of whose calls blows the fuse, at any touch, and is asked again; or nothing.
template <class B>
std::string stream_fuse_fault(Fuse& fuse, const B& bias, const AttentionOptions& options) {
  const std::vector<Chunk> chunks{{150, 120}, {1, 1}, {7, 0, true}, {300, 3}, {1, 1}};
  const Layer<float> layer = normal_stream<float>({4, 2, tokens_in(chunks), 4, 3}, 3);
  const std::vector<B> biases(4, bias);
  fuse.set(0);
  auto undisturbed = stream_for(layer, biases, options);
  const StreamOutput<float> expected = feed(undisturbed, layer, chunks);
  const std::string end = saved(undisturbed);
  Index first = 0;
  int touched_calls = 0;
  for (std::size_t at = 0; at < chunks.size(); first += chunks[at++].tokens) {
    Index last = 1;
    for (Index number = 1; number <= last; number = number == last ? last + 1 : std::min(last, 2 * number + 1)) {
      const auto wrong = [&](const char* what) {
        return what + (" after touch " + std::to_string(number) + " of call " + std::to_string(at));
      };
      const HeldMemory before = held_memory();
      {
        fuse.set(0);
        auto stream = stream_for(layer, biases, options);
        feed(stream, layer, {chunks.begin(), chunks.begin() + static_cast<std::ptrdiff_t>(at)});
        const std::string state = saved(stream);
        if (number == 1) {
          auto copy = stream_for(layer, biases, options);
          feed(copy, layer, {chunks.begin(), chunks.begin() + static_cast<std::ptrdiff_t>(at)});
          fuse.set(0);
          feed(copy, layer, {chunks[at]}, first);
          last = fuse.calls();
          if (last == 0) break;  // a table of log weights still serves
          ++touched_calls;
        }
        fuse.set(number);
        bool blown = false;
        try {
          feed(stream, layer, {chunks[at]}, first);
        } catch (const Blown& caught) {
          blown = caught.call == number;
        }
        fuse.set(0);
        if (!blown) return wrong("another exception, or none,");
        if (saved(stream) != state) return wrong("another state");
        const StreamOutput<float> rest =
            feed(stream, layer, {chunks.begin() + static_cast<std::ptrdiff_t>(at), chunks.end()}, first);
        for (Index head = 0; head < 4; ++head)
          for (Index i = first; i < tokens_in(chunks); ++i)
            if (expected.asked[static_cast<std::size_t>(i)] &&
                !same_numbers(rows_of(rest.values.view(), 0, head).row(i), rows_of(expected.values.view(), 0, head).row(i)))
              return wrong("another row");
        if (saved(stream) != end) return wrong("another state at the end");
      }
      if (!(held_memory() == before)) return wrong("memory that is not given back");
    }
  }
  return touched_calls >= 2 ? "" : "the bias is hardly touched";
}

}  // namespace

TEST_CASE("What a bias throws reaches the caller; nothing is lost, and the same objects go on with the same bits") {
  Problem problem;
  Fuse fuse;
  check_bias(problem, fuse, FusedBias{&fuse});
  check_bias(problem, fuse, FusedSlope{&fuse});
}

TEST_CASE("So does what a kernel throws under attention") {
  Problem problem;
  Fuse fuse;
  check_bias(problem, fuse, KernelBias{FusedKernel{&fuse}});
}

TEST_CASE("A stream whose bias throws is as before the call; asked again it gives the same bits") {
  Fuse fuse;
  for (const int threads : {1, 3}) {
    CAPTURE(threads);
    const AttentionOptions window{.window_left = 120, .threads = threads};
    REQUIRE(stream_fuse_fault(fuse, FusedBias{&fuse}, window) == "");
    REQUIRE(stream_fuse_fault(fuse, FusedSlope{&fuse}, window) == "");
    REQUIRE(stream_fuse_fault(fuse, KernelBias{FusedKernel{&fuse}}, {.threads = threads}) == "");
  }
}

TEST_CASE("A bias that throws while a stream is made, saved or loaded") {
  Fuse fuse;
  const auto layer = normal_stream<float>({4, 2, 50, 4, 3}, 4);
  const std::vector<FusedSlope> biases(4, {&fuse});
  auto stream = stream_for(layer, biases);
  feed(stream, layer, {{50, 1}});
  const std::string state = saved(stream);
  const auto make = [&] { return static_cast<std::uint64_t>(stream_for(layer, biases).position()); };
  REQUIRE(fuse_fault(fuse, {}, make) == "");
  REQUIRE(fuse_fault(fuse, {}, [&] { return Bits().add_all(saved(stream)).hash(); }) == "");
  REQUIRE(fuse_fault(fuse, {}, [&] {
            std::istringstream in(state);
            return Bits().add_all(saved(StreamingAttention<float, FusedSlope>::load(in, biases))).hash();
          }) == "");
  fuse.set(0);
  REQUIRE(saved(stream) == state);
}

TEST_CASE("What a kernel throws reaches the caller of draws, bounds and certificates") {
  const Problem problem;
  const auto& [q, k, v] = problem.x;
  Fuse fuse;
  const FusedKernel kernel{&fuse};
  for (const Sampling sampling : {Sampling::independent, Sampling::stratified, Sampling::importance, Sampling::mixture})
    REQUIRE(fuse_fault(fuse, {}, [&] { return Bits().add_all(draw_hashes(kernel, 12, 1, sampling)).hash(); }) == "");
  REQUIRE(fuse_fault(fuse, {}, [&] { return static_cast<std::uint64_t>(theory::block_size_bound(kernel, 12, 1e-6)); }) == "");
  fuse.set(0);
  const MeanMask mask(draw_hashes(kernel, 12, 1));
  for (const int threads : {1, 3}) {
    CAPTURE(threads);
    const auto certify = [&, &q = q, &k = k, &v = v](const auto& bias) {
      const Vector<double> bounds = output_error_certificate(q, k, v, bias, mask, {.causal = true, .threads = threads});
      return Bits().add(bounds.data(), bounds.size()).hash();
    };
    REQUIRE(fuse_fault(fuse, problem.inputs, [&] { return certify(KernelBias{kernel}); }) == "");
    REQUIRE(fuse_fault(fuse, problem.inputs, [&] { return certify(FusedSlope{&fuse}); }) == "");
  }
}

TEST_CASE("What a short-context attention throws reaches the caller of blockwise_attention") {
  const Problem problem;
  const auto& [q, k, v] = problem.x;
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{10}, 6, 1);
  Fuse fuse;
  const auto before = [&](const auto& block_q, const auto& block_k, const auto& block_v, const AttentionOptions& options) {
    fuse.touch();
    return attention(block_q, block_k, block_v, NoBias{}, options);
  };
  const auto behind = [&](const auto& block_q, const auto& block_k, const auto& block_v, const AttentionOptions& options) {
    const AttentionOutput<float> output = attention(block_q, block_k, block_v, NoBias{}, options);
    fuse.touch();
    return output;
  };
  for (const int threads : {1, 3})
    for (const Merge merge : {Merge::ratio, Merge::mean}) {
      CAPTURE(threads, static_cast<int>(merge));
      const AttentionOptions options{.causal = true, .sink = 0.5, .threads = threads};
      const auto run = [&, &q = q, &k = k, &v = v](const auto& kernel) {
        return fuse_fault(fuse, problem.inputs,
                          [&] { return Bits().add(blockwise_attention(q, k, v, hashes, options, merge, kernel)).hash(); });
      };
      REQUIRE(run(before) == "");
      REQUIRE(run(behind) == "");
    }
}

}  // namespace callbacks_test
