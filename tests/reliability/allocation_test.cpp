// SPDX-License-Identifier: MIT

// Memory that runs out at every request in turn, and threads that cannot be started.

#include "reliability/counted_memory.hpp"
#include "reliability/entry_points.hpp"
#include "support/catch.hpp"

#if __has_include(<Spectra/SymEigsSolver.h>)
#include "poslsh/theory/spectral.hpp"
#endif

#include <pthread.h>

#include <algorithm>
#include <istream>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <streambuf>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace allocation_test {

using namespace poslsh;
using namespace poslsh::test;

namespace {

/// What is wrong about a call whose number-th request for memory is refused, for every number up to the last; or nothing.
/// It may throw std::bad_alloc, no more, or be right all the same; call() says whether its result is.
template <class Call>
std::string shortage_fault(const Untouched& inputs, Call&& call) {
  for (const Shortage shortage : {Shortage::once, Shortage::lasting})
    for (Index number = 1;; ++number) {
      const char* wrong = nullptr;
      const HeldMemory before = held_memory();
      bool refused = false;
      {
        const MemoryShortage memory(number, shortage);
        try {
          if (!call()) wrong = "another result";
        } catch (const std::bad_alloc&) {
          if (!memory.occurred()) wrong = "std::bad_alloc for no reason";
        } catch (...) {
          wrong = "another exception";
        }
        refused = memory.occurred();
      }
      if (!(held_memory() == before)) wrong = "memory that is not given back";
      if (!inputs.holds()) wrong = "an input that has changed";
      if (!refused && number == 1) wrong = "no request at all";
      if (wrong != nullptr) return wrong + (" with request " + std::to_string(number));
      if (!refused) break;
    }
  return "";
}

/// A buffer of a fixed size as a stream, which asks for no memory itself.
class FixedMemory : public std::streambuf {
 public:
  explicit FixedMemory(std::string& bytes) : bytes_(bytes) { rewind(); }
  void rewind() {
    setp(bytes_.data(), bytes_.data() + bytes_.size());
    setg(bytes_.data(), bytes_.data(), bytes_.data() + bytes_.size());
  }

 private:
  std::string& bytes_;
};

/// While it lives, no thread can be started: the stack that each is to have does not fit any address space.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, std::size_t{1} << 56);
    if (pthread_setattr_default_np(&attributes) != 0) throw std::runtime_error("threads cannot be forbidden");
    pthread_attr_destroy(&attributes);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

Untouched inputs_of(const EntryPoints& entries) {
  Untouched inputs;
  entries.each_input([&](const auto* data, Index count) { inputs.add(data, count); });
  return inputs;
}

}  // namespace

// --- Memory ------------------------------------------------------------------------------------------------

TEST_CASE("Memory that runs out at any request is std::bad_alloc; nothing leaks, nothing given is changed") {
  const EntryPoints entries(110, 130, 3);
  const Untouched inputs = inputs_of(entries);
  for (const EntryPoint& entry : entries.all())
    for (const int threads : {1, 2}) {
      CAPTURE(entry.name, threads);
      const std::uint64_t expected = entry.run(1);
      REQUIRE(shortage_fault(inputs, [&] { return entry.run(threads) == expected; }) == "");
    }
}

TEST_CASE("A call that fails writes its outputs only, and none that lies on an input") {
  const auto [q, k, v] = normal_inputs<float>(150, 150, 8, 8, 1);
  const MeanMask mask(draw_hashes(LaplaceKernel{10}, 16, 1));
  const AttentionOptions options{.causal = true, .threads = 2};
  const AttentionOutput<float> expected = attention(q, k, v, mask, options);

  Matrix<float> memory = Matrix<float>::Constant(152, 20, 7);
  std::vector<double> log_sum_exp(152, 7.0);
  Untouched around;
  for (Index row = 0; row < 152; ++row) {
    const bool written = row > 0 && row < 151;
    around.add(&memory(row, 0), written ? 3 : 20);
    around.add(&memory(row, 11), 9);
  }
  around.add(&log_sum_exp.front(), 1);
  around.add(&log_sum_exp.back(), 1);
  Eigen::Map<Vector<double>> rows(log_sum_exp.data() + 1, 150);
  REQUIRE(shortage_fault(around, [&, &q = q, &k = k, &v = v] {
            attention_into(q, k, v, mask, options, memory.block(1, 3, 150, 8), rows);
            return same_numbers(memory.block(1, 3, 150, 8), expected.values) && same_numbers(rows, expected.log_sum_exp);
          }) == "");

  // Output over input: a copy is made, and a call that fails leaves the input.
  Matrix<float> overwritten = q;
  for (Index number = 1, failures = 0;; ++number) {
    bool failed = false;
    try {
      const MemoryShortage shortage(number, Shortage::once);
      attention_into(overwritten, k, v, mask, options, overwritten, rows);
    } catch (const std::bad_alloc&) {
      failed = true;
      ++failures;
    }
    REQUIRE(same_numbers(overwritten, failed ? q : expected.values));
    if (failed) continue;
    REQUIRE(failures > 5);
    break;
  }
}

TEST_CASE("Gaps between the rows of a layer stay as they are when memory runs out") {
  const auto layer = normal_layer<float>({2, 4, 2, 110, 110, 8, 5}, 2, Layout::padded_rows);
  const std::vector<AlibiBias> biases{{0.5}, {0.25}, {0.1}, {0.02}};
  const auto forward = attend(layer, biases, {{.causal = true}});
  const LayerView<float> view = layer.view();
  Tensor<float> out(2, 4, 110, 5, Layout::padded_rows), dq(2, 4, 110, 8, Layout::padded_rows),
      dk(2, 2, 110, 8, Layout::padded_rows), dv(2, 2, 110, 5, Layout::padded_rows);
  Untouched gaps;
  for (Tensor<float>* tensor : {&out, &dq, &dk, &dv}) {
    const TensorView<float> rows = tensor->view();
    for (Index item = 0; item < rows.batch; ++item)
      for (Index head = 0; head < rows.heads; ++head)
        for (Index token = 0; token + 1 < rows.tokens; ++token)
          gaps.add(poslsh::detail::head_of(rows, item, head).row(token) + rows.features, rows.token_stride - rows.features);
  }
  for (const int threads : {1, 2}) {
    const MultiHeadOptions options{{.causal = true, .threads = threads}};
    REQUIRE(shortage_fault(gaps, [&] {
              multi_head_attention(view.q, view.k, view.v, out.view(), biases, options);
              multi_head_attention_backward(view.q, view.k, view.v, forward.values.view(), forward.log_sum_exp.data(),
                                            forward.values.view(), dq.view(), dk.view(), dv.view(), biases, options);
              return true;
            }) == "");
  }
}

TEST_CASE("Memory that runs out between the tiles of a certificate, the last of which is a short one") {
  const auto [q, k, v] = normal_inputs<float>(40, 600, 4, 3, 3);
  const MeanMask mask(draw_hashes(LaplaceKernel{10}, 3, 1));
  for (const int threads : {1, 2}) {
    const auto certify = [&, &q = q, &k = k, &v = v] {
      return output_error_certificate(q, k, v, 0.1, mask, {.causal = true, .softcap = 5, .threads = threads});
    };
    const Vector<double> expected = certify();
    REQUIRE(shortage_fault({}, [&] { return same_numbers(certify(), expected); }) == "");
  }
}

#if __has_include(<Spectra/SymEigsSolver.h>)
TEST_CASE("Memory that runs out while norms are computed is std::bad_alloc") {
  const LaplaceKernel kernel{4};
  const MeanMask mask(draw_hashes(kernel, 16, 1));
  for (const Index n : {10, 100}) {  // the smaller needs no restarts
    const double norm = theory::spectral_norm(mask, n), error = theory::spectral_error(kernel, mask, n);
    REQUIRE(shortage_fault({}, [&] { return theory::spectral_norm(mask, n) == norm; }) == "");
    REQUIRE(shortage_fault({}, [&] { return theory::spectral_error(kernel, mask, n) == error; }) == "");
  }
}
#endif

// --- Streams -----------------------------------------------------------------------------------------------

namespace {

template <class Stream>
std::string saved(const Stream& stream) {
  std::ostringstream out;
  stream.save(out);
  return out.str();
}

/// What is wrong about a stream one of whose calls fails, whichever that is and at whichever request, and which is then
/// asked again; or nothing. The call that fails brings tokens that are not finite: they must leave no trace.
template <class T, class S, class B>
std::string stream_shortage_fault(const std::vector<B>& biases, const AttentionOptions& options,
                                  std::optional<double> norm) {
  const std::vector<Chunk> chunks{{380, 40}, {1, 1}, {1, 1}, {30, 0, true}, {40, 7}, {1, 1}, {430, 2}, {1, 1}, {1, 1}};
  const StreamShape shape{4, 2, tokens_in(chunks), 4, 3};
  const Layer<T> layer = normal_stream<T>(shape, 3);
  Layer<T> poison = layer;
  for (Tensor<T>* tensor : {&poison.k, &poison.v})
    for (T& value : tensor->storage()) value = static_cast<T>(infinity) * value;
  const auto make = [&] { return stream_for<T, S>(layer, biases, options, norm); };
  auto undisturbed = make();
  const StreamOutput<T> expected = feed(undisturbed, layer, chunks);
  Index first = 0;
  for (std::size_t at = 0; at < chunks.size(); first += chunks[at++].tokens)
    for (Index number = 1;; ++number) {
      const auto wrong = [&](const char* what) {
        return what + (" after request " + std::to_string(number) + " of call " + std::to_string(at));
      };
      const HeldMemory before = held_memory();
      {
        auto stream = make();
        feed(stream, layer, {chunks.begin(), chunks.begin() + static_cast<std::ptrdiff_t>(at)});
        const std::string state = saved(stream);
        StreamOutput<T> rows{Tensor<T>(1, shape.heads, shape.tokens, shape.value_dim), {}};
        const auto part = [&](const auto& tensor) { return tokens_of(tensor.view(), first, chunks[at].tokens); };
        const TensorView<T> out = tokens_of(rows.values.view(), 0, chunks[at].queries);
        const TensorView<const T> q =
            tokens_of(layer.view().q, first + chunks[at].tokens - chunks[at].queries, chunks[at].queries);
        bool failed = false, refused = false;
        try {
          const MemoryShortage shortage(number, number % 2 == 0 ? Shortage::once : Shortage::lasting);
          try {
            if (chunks[at].appended)
              stream.append(part(std::as_const(poison.k)), part(std::as_const(poison.v)));
            else
              stream.step(q, part(std::as_const(poison.k)), part(std::as_const(poison.v)), out);
          } catch (...) {
            refused = shortage.occurred();
            throw;
          }
          refused = shortage.occurred();
        } catch (const std::bad_alloc&) {
          failed = true;
        }
        if (failed && !refused) return wrong("std::bad_alloc for no reason");
        if (!failed && !refused) break;
        if (!failed) continue;  // a sort can do without: the tokens are in
        if (saved(stream) != state) return wrong("another state");
        const StreamOutput<T> rest =
            feed(stream, layer, {chunks.begin() + static_cast<std::ptrdiff_t>(at), chunks.end()}, first);
        for (Index head = 0; head < shape.heads; ++head)
          for (Index i = first; i < shape.tokens; ++i)
            if (expected.asked[static_cast<std::size_t>(i)] &&
                !same_numbers(rows_of(rest.values.view(), 0, head).row(i), rows_of(expected.values.view(), 0, head).row(i)))
              return wrong("another row");
        if (saved(stream) != saved(undisturbed)) return wrong("another state at the end");
      }
      if (!(held_memory() == before)) return wrong("memory that is not given back");
    }
  return "";
}

}  // namespace

TEST_CASE("A call of a stream that runs out of memory changes nothing; asked again it gives the same bits") {
  std::vector<MeanMask> masks;
  for (std::uint64_t head = 0; head < 4; ++head)
    masks.emplace_back(draw_hashes(LaplaceKernel{20}, 8, 1, Sampling::importance, head));
  const std::vector<AlibiBias> slopes{{0.5}, {0.25}, {0.3}, {0.2}};
  const std::vector<KernelBias<PowerKernel>> kernels(4, {PowerKernel{0.5, 3}});
  for (const int threads : {1, 2}) {
    CAPTURE(threads);
    REQUIRE(stream_shortage_fault<float, float>(masks, {.threads = threads}, {}) == "");
    REQUIRE(stream_shortage_fault<float, Eigen::half>(slopes, {.tolerance = 1e-2, .threads = threads}, 10.0) == "");
  }
  REQUIRE(stream_shortage_fault<double, double>(kernels, {.window_left = 200}, {}) == "");
  REQUIRE(stream_shortage_fault<float, float>(std::vector<RaggedBias>(4), {}, {}) == "");
}

TEST_CASE("A stream that is made, saved or loaded when memory runs out is as it was or not there at all") {
  const auto layer = normal_stream<float>({4, 2, 500, 4, 3}, 4);
  std::vector<MeanMask> masks;
  for (std::uint64_t head = 0; head < 4; ++head)
    masks.emplace_back(draw_hashes(LaplaceKernel{20}, 8, 1, Sampling::importance, head));
  auto stream = stream_for(layer, masks);
  feed(stream, layer, {{499, 3}});
  std::string state = saved(stream), copy(state.size(), '\0');
  const Untouched unchanged;
  REQUIRE(shortage_fault(unchanged, [&] { return stream_for(layer, masks).position() == 0; }) == "");

  FixedMemory written(copy), read(state);
  std::ostream out(&written);
  std::istream in(&read);
  REQUIRE(shortage_fault(unchanged, [&] {
            written.rewind();
            stream.save(out);
            return copy == state;
          }) == "");

  using Stream = StreamingAttention<float, MeanMask>;
  StreamOutput<float> got{Tensor<float>(1, 4, 500, 3), {}};
  const auto last = [&](const auto& tensor) { return tokens_of(tensor.view(), 499, 1); };
  const auto row = tokens_of(got.values.view(), 499, 1);
  const auto step = [&](Stream& next) {
    next.step(last(std::as_const(layer.q)), last(std::as_const(layer.k)), last(std::as_const(layer.v)), row);
  };
  step(stream);
  const std::vector<float> expected = got.values.storage();
  REQUIRE(shortage_fault(unchanged, [&] {
            read.rewind();
            Stream loaded = Stream::load(in, masks);
            got.values.fill(7);
            step(loaded);
            return std::equal(expected.begin(), expected.end(), got.values.storage().begin(),
                              [](float a, float b) { return a == b || (a != a && b == 7); });
          }) == "");
}

// --- Threads -----------------------------------------------------------------------------------------------

TEST_CASE("Where no thread can be started the caller does all the work, with the same bits") {
  const EntryPoints entries(300, 500);
  for (const EntryPoint& entry : entries.all()) {
    CAPTURE(entry.name);
    const std::uint64_t expected = entry.run(1);
    const NoThreads none;
    REQUIRE_THROWS_AS(std::thread([] {}).join(), std::system_error);
    REQUIRE(entry.run(3) == expected);
  }
}

}  // namespace allocation_test
