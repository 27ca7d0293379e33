// SPDX-License-Identifier: MIT

// StreamingAttention: whatever the chunks, the rows of one long causal call.

#include "poslsh/model/streaming.hpp"
#include "poslsh/attention/attention.hpp"
#include "poslsh/position/alibi.hpp"
#include "support/catch.hpp"
#include "support/streams.hpp"

#include <utility>
#include <vector>

namespace streaming_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::alibi_slopes;
using poslsh::attention;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::draw_hashes;
using poslsh::Index;
using poslsh::LaplaceKernel;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::NoBias;
using poslsh::Sampling;
using poslsh::StreamingAttention;
using poslsh::TensorView;

namespace {

std::vector<AlibiBias> standard_heads(Index heads) {
  std::vector<AlibiBias> biases;
  for (const double slope : alibi_slopes(heads)) biases.push_back({slope});
  return biases;
}
std::vector<MeanMask> random_heads(Index heads, double sigma, Sampling sampling = Sampling::importance) {
  std::vector<MeanMask> masks;
  for (Index head = 0; head < heads; ++head)
    masks.emplace_back(draw_hashes(LaplaceKernel{sigma}, 32, 1, sampling, static_cast<std::uint64_t>(head)));
  return masks;
}

/// Every option a stream has, with values that bite.
AttentionOptions random_options(Dice& dice) {
  AttentionOptions options;
  options.scale = dice.pick<std::optional<double>>({std::nullopt, std::nullopt, 0.0, 1.0, -0.5});
  options.key_offset = dice.pick<Index>({0, -3, 1000, (Index{1} << 40) + 3, -(Index{1} << 40), (Index{1} << 52) - 500});
  options.window_left = dice.pick<std::optional<Index>>({std::nullopt, std::nullopt, 0, 1, 50, 385, Index{1} << 62});
  options.window_right = dice.pick<std::optional<Index>>({std::nullopt, 0, 5});
  options.softcap = dice.pick<std::optional<double>>({std::nullopt, std::nullopt, 1.5});
  options.sink = dice.pick<std::optional<double>>({std::nullopt, -infinity, 0.7});
  options.tolerance = dice.pick({0.0, 1e-3});  // without a bound on the queries it drops nothing
  options.threads = dice.pick({1, 3});
  return options;
}

/// The largest difference from attention() in double over all tokens, of the rows asked for.
template <class T, class B>
double distance_from_one_call(const StreamOutput<T>& got, const Layer<T>& layer, const std::vector<B>& biases,
                              AttentionOptions options = {}) {
  options.causal = true;
  double largest = 0;
  for (Index head = 0; head < layer.view().q.heads; ++head) {
    const Index key_head = head / (layer.view().q.heads / layer.view().k.heads);
    const Matrix<double> q = rows_of(layer.view().q, 0, head).template cast<double>(),
                         k = rows_of(layer.view().k, 0, key_head).template cast<double>(),
                         v = rows_of(layer.view().v, 0, key_head).template cast<double>();
    const Matrix<double> exact = attention(q, k, v, biases[static_cast<std::size_t>(head)], options).values;
    const Matrix<T> rows = rows_of(got.values.view(), 0, head);
    for (Index i = 0; i < q.rows(); ++i)
      if (got.asked[static_cast<std::size_t>(i)]) largest = std::max(largest, distance(rows.row(i), exact.row(i)));
  }
  return largest;
}
template <class T>
constexpr double rounding = std::is_same_v<T, float> ? 1e-5 : 1e-13;  // of unit normal values

}  // namespace

// --- The rows of one long call -----------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("Any chunks, bias and options: what the definition of causal attention says", "", Scalars) {
  for (std::uint64_t seed = 0; seed < 90; ++seed) {
    Dice dice(seed);
    const Index key_heads = dice.pick<Index>({1, 1, 2}), heads = key_heads * dice.pick<Index>({1, 1, 3});
    const StreamShape shape{heads, key_heads, dice.pick<Index>({1, 5, 97, 130, 420}), dice.pick<Index>({1, 3, 8, 16, 21}),
                            dice.pick<Index>({1, 5, 8, 16})};
    const auto layer = normal_stream<TestType>(shape, seed, dice.pick({Layout::heads_first, Layout::tokens_first, Layout::padded_rows, Layout::backwards}));
    const AttentionOptions options = random_options(dice);
    const auto chunks = random_chunks(dice, shape.tokens);
    with_biases(static_cast<int>(seed) % stream_bias_kinds, heads, dice, [&](const auto& biases, const char* name) {
      CAPTURE(seed, name, heads, key_heads, shape.tokens, shape.head_dim, shape.value_dim, options.key_offset);
      auto stream = stream_for(layer, biases, options);
      const auto got = feed(stream, layer, chunks);
      REQUIRE(stream_fault(got, layer, biases, options) == "");
      REQUIRE(stream.position() == options.key_offset + shape.tokens);
    });
  }
}

TEMPLATE_LIST_TEST_CASE("Streams of many tiles whose front is dropped again and again equal one long call", "", Scalars) {
  const StreamShape shape{2, 1, 4000, 16, 16};
  const auto layer = normal_stream<TestType>(shape, 100);
  for (const Index chunk : {1, 7, 200, 1500}) {
    const auto chunks = steps(shape.tokens / chunk, {chunk, std::min<Index>(chunk, 100)});
    const auto check = [&](const auto& biases, const AttentionOptions& options) {
      auto stream = stream_for(layer, biases, options);
      const auto got = feed(stream, layer, chunks);
      CAPTURE(chunk, options.window_left.value_or(-1));
      REQUIRE(stream.cached_tokens(0) < 1000);
      REQUIRE(distance_from_one_call(got, layer, biases, options) < rounding<TestType>);
    };
    check(random_heads(2, 30), {});
    check(random_heads(2, 9, Sampling::stratified), {.key_offset = Index{1} << 40});
    check(random_heads(2, 9, Sampling::independent), {.key_offset = -2000});
    check(std::vector<poslsh::FixedBlocks>{{700}, {90}}, {.key_offset = 123});
    check(standard_heads(2), {.window_left = 383});
    check(std::vector<NoBias>(2), {.window_left = 500, .sink = 1});
  }
}

TEMPLATE_LIST_TEST_CASE("Streams of many tiles that keep everything equal one long call", "", Scalars) {
  const StreamShape shape{2, 2, 1500, 16, 16};
  const auto layer = normal_stream<TestType>(shape, 101);
  for (const Chunk& chunk : {Chunk{1, 1}, Chunk{250, 250}, Chunk{500, 3}}) {
    const auto chunks = steps(shape.tokens / chunk.tokens, chunk);
    const auto check = [&](const auto& biases) {
      auto stream = stream_for(layer, biases);
      const auto got = feed(stream, layer, chunks);
      CAPTURE(chunk.tokens);
      REQUIRE(distance_from_one_call(got, layer, biases) < rounding<TestType>);
      REQUIRE(stream.cached_tokens(0) == shape.tokens);
    };
    check(standard_heads(2));
    check(std::vector<NoBias>(2));
    check(std::vector<poslsh::KernelBias<poslsh::PowerKernel>>(2, {{0.1, 1.5}}));
  }
}

TEMPLATE_LIST_TEST_CASE("A decode row is the prefill row, for every bias and far offsets", "", Scalars) {
  const StreamShape shape{4, 2, 110, 8, 5};
  const auto layer = normal_stream<TestType>(shape, 102);
  for (const Index offset : {Index{0}, Index{1} << 20, (Index{1} << 40) - 55, -(Index{1} << 40) - 55})
    for (int kind = 0; kind < stream_bias_kinds; ++kind) {
      Dice dice(static_cast<std::uint64_t>(kind));
      with_biases(kind, shape.heads, dice, [&](const auto& biases, const char* name) {
        const AttentionOptions options{.key_offset = offset};
        auto prefill = stream_for(layer, biases, options), decode = stream_for(layer, biases, options);
        const auto at_once = feed(prefill, layer, {{shape.tokens, shape.tokens}});
        const auto one_by_one = feed(decode, layer, steps(shape.tokens));
        CAPTURE(name, offset);
        REQUIRE(stream_fault(one_by_one, layer, biases, options) == "");
        for (Index head = 0; head < shape.heads; ++head) {
          const Matrix<TestType> rows = rows_of(one_by_one.values.view(), 0, head);
          REQUIRE(distance(rows, rows_of(at_once.values.view(), 0, head)) < rounding<TestType>);
          // And attention() of the last query alone.
          const Matrix<TestType> q = rows_of(layer.view().q, 0, head), k = rows_of(layer.view().k, 0, head / 2),
                                 v = rows_of(layer.view().v, 0, head / 2);
          const auto& bias = biases[static_cast<std::size_t>(head)];
          const AttentionOptions causal{.causal = true, .key_offset = offset};
          const AttentionOutput<TestType> one = attention(q.bottomRows(1), k, v, bias, causal);
          REQUIRE(distance(one.values, rows.bottomRows(1)) < rounding<TestType>);
          REQUIRE(one.log_sum_exp[0] == Approx(attention(q, k, v, bias, causal).log_sum_exp[109]));
        }
      });
    }
}

TEST_CASE("Positions far out change no bit of exact attention") {
  const StreamShape shape{4, 2, 500, 16, 16};
  const auto layer = normal_stream<float>(shape, 103);
  Dice dice(103);
  const auto chunks = random_chunks(dice, shape.tokens);
  for (const auto& window : {std::optional<Index>(), std::optional<Index>(120)}) {
    auto near = stream_for(layer, standard_heads(4), {.window_left = window});
    const auto expected = feed(near, layer, chunks);
    for (const Index offset : {Index{1} << 40, -(Index{1} << 50), (Index{1} << 52) - 500}) {
      auto far = stream_for(layer, standard_heads(4), {.key_offset = offset, .window_left = window});
      const auto got = feed(far, layer, chunks);
      for (Index head = 0; head < 4; ++head)
        REQUIRE(same_numbers(rows_of(got.values.view(), 0, head), rows_of(expected.values.view(), 0, head)));
    }
  }
}

// --- What must not matter ----------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("The bits do not depend on the threads, on where tensors lie, or on queries nobody asked for", "",
                   Scalars) {
  const StreamShape shape{6, 3, 700, 8, 8};
  const auto check = [&](const auto& biases, AttentionOptions options) {
    Dice dice(104);
    const auto chunks = random_chunks(dice, shape.tokens);
    const auto layer = normal_stream<TestType>(shape, 104);
    auto stream = stream_for(layer, biases, options);
    const auto expected = feed(stream, layer, chunks);
    const auto require_same = [&](const StreamOutput<TestType>& got) {
      for (Index head = 0; head < shape.heads; ++head)
        REQUIRE(same_numbers(rows_of(got.values.view(), 0, head), rows_of(expected.values.view(), 0, head)));
    };
    for (const int threads : {2, 3, 16}) {
      options.threads = threads;
      auto many = stream_for(layer, biases, options);
      require_same(feed(many, layer, chunks));
    }
    for (const Layout layout : all_layouts) {
      const auto elsewhere = normal_stream<TestType>(shape, 104, layout);
      auto other = stream_for(elsewhere, biases, options);
      require_same(feed(other, elsewhere, chunks));
    }
  };
  check(standard_heads(6), {});
  check(standard_heads(6), {.window_left = 60, .softcap = 2});
  check(random_heads(6, 12), {});
}

TEMPLATE_LIST_TEST_CASE("Output over the queries, keys or values of its own step: the same numbers", "", Scalars) {
  const StreamShape shape{4, 4, 60, 8, 8};
  const auto layer = normal_stream<TestType>(shape, 105);
  const auto biases = standard_heads(4);
  for (const int over : {0, 1, 2})
    for (const Index shift : {0, 1, 3}) {  // heads: over a later part of the input
      auto expected = stream_for(layer, biases), stream = stream_for(layer, biases);
      const auto rows = feed(expected, layer, {{40, 40}, {20, 20}});
      auto first = layer;
      feed(stream, first, {{40, 40}});
      // One buffer a tensor, of more heads than are in use.
      std::vector<Tensor<TestType>> buffers;
      for (int which = 0; which < 3; ++which) buffers.emplace_back(1, 4 + 3, 20, 8);
      const auto part = [&](int which, Index from) {
        TensorView<TestType> view = buffers[static_cast<std::size_t>(which)].view();
        view.data += from * view.head_stride;
        view.heads = 4;
        return view;
      };
      const TensorView<const TestType> sources[3] = {layer.view().q, layer.view().k, layer.view().v};
      for (int which = 0; which < 3; ++which)
        for (Index head = 0; head < 4; ++head) {
          const Matrix<TestType> last = rows_of(sources[which], 0, head).bottomRows(20);
          for (Index i = 0; i < 20; ++i)
            buffers[static_cast<std::size_t>(which)].set_row(0, head, i, [&](Index f) { return last(i, f); });
        }
      const TensorView<TestType> out = part(over, shift);
      stream.step(part(0, 0), part(1, 0), part(2, 0), out);
      CAPTURE(over, shift);
      for (Index head = 0; head < 4; ++head)
        REQUIRE(same_numbers(rows_of(TensorView<const TestType>(out), 0, head),
                             rows_of(rows.values.view(), 0, head).bottomRows(20)));
    }
}

TEST_CASE("NaN spoils the rows that see it and leaves no trace once it is out of reach") {
  const StreamShape shape{2, 1, 1000, 4, 4};
  const auto clean = normal_stream<double>(shape, 106);
  for (const bool in_keys : {true, false}) {
    auto layer = clean;
    (in_keys ? layer.k : layer.v).set_row(0, 0, 300, [](Index) { return not_a_number; });
    const auto check = [&](const auto& biases, const AttentionOptions& options, Index last) {
      auto stream = stream_for(layer, biases, options), other = stream_for(clean, biases, options);
      const auto got = feed(stream, layer, steps(1000)), expected = feed(other, clean, steps(1000));
      for (Index head = 0; head < 2; ++head) {
        const Matrix<double> rows = rows_of(got.values.view(), 0, head);
        const Matrix<double> right = rows_of(expected.values.view(), 0, head);
        REQUIRE(rows.middleRows(300, last - 300).array().isNaN().all());
        REQUIRE(same_numbers(rows.topRows(300), right.topRows(300)));
        REQUIRE(same_numbers(rows.bottomRows(1000 - last), right.bottomRows(1000 - last)));
      }
    };
    check(standard_heads(2), {.window_left = 20}, 321);
    check(std::vector<poslsh::FixedBlocks>(2, {100}), {}, 400);
    check(standard_heads(2), {}, 1000);
  }
}

// --- The smallest streams ----------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("No features, no values, no tokens: legal, also with a budget", "", Scalars) {
  for (const StreamShape& shape : {StreamShape{2, 1, 40, 0, 3}, StreamShape{2, 1, 40, 3, 0}, StreamShape{2, 1, 40, 0, 0},
                                   StreamShape{1, 1, 1, 1, 1}, StreamShape{2, 2, 0, 4, 4}})
    for (const Layout layout : all_layouts)
      for (const bool budgeted : {false, true}) {
        const auto layer = normal_stream<TestType>(shape, 107, layout);
        const AttentionOptions options{.scale = 1, .tolerance = budgeted ? 0x1p-80 : 0};
        const auto biases = standard_heads(shape.heads);
        auto stream = stream_for(layer, biases, options, budgeted ? std::optional<double>(1e3) : std::nullopt);
        const auto got = feed(stream, layer, steps(shape.tokens, {1, 1}));
        const auto nothing = feed(stream, layer, {{0, 0}, {0, 0, true}});
        CAPTURE(shape.tokens, shape.head_dim, shape.value_dim, budgeted);
        REQUIRE(stream_fault(got, layer, biases, options) == "");
        REQUIRE(stream.position() == shape.tokens);
      }
}

TEST_CASE("A stream can be moved; the one that took over goes on") {
  const StreamShape shape{2, 1, 600, 8, 8};
  const auto layer = normal_stream<float>(shape, 108);
  const auto biases = random_heads(2, 20);
  auto stream = stream_for(layer, biases);
  auto whole = stream_for(layer, biases);
  const auto expected = feed(whole, layer, steps(6, {100, 100}));
  feed(stream, layer, steps(3, {100, 100}));
  StreamingAttention<float, MeanMask> other = std::move(stream);
  feed(other, layer, {{100, 100}}, 300);
  auto third = stream_for(layer, biases);
  third = std::move(other);
  const auto got = feed(third, layer, steps(2, {100, 100}), 400);
  for (Index head = 0; head < 2; ++head)
    REQUIRE(same_numbers(rows_of(got.values.view(), 0, head).bottomRows(200),
                         rows_of(expected.values.view(), 0, head).bottomRows(200)));
}

}  // namespace streaming_test
