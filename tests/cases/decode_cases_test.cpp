// SPDX-License-Identifier: MIT

// Cases from the field that concern decoding: a cache that grows, and one that dropped its front.
//
// The set-up of cases_test.cpp: Q = 0 and V = identity, so that an output row is the row of weights; slope ln 2, so that
// a step of distance halves the weight.

#include "poslsh/attention/attention.hpp"
#include "support/catch.hpp"
#include "support/streams.hpp"

#include <numbers>
#include <vector>

namespace decode_cases_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::attention;
using poslsh::AttentionOptions;
using poslsh::draw_hashes;
using poslsh::Index;
using poslsh::LaplaceKernel;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::StreamingAttention;

namespace {

constexpr double ln2 = std::numbers::ln2;
template <class T>
constexpr double tolerance = std::is_same_v<T, float> ? 1e-5 : 1e-12;

/// Zero queries and keys; every key head has the rows of the identity as values.
template <class T>
Layer<T> zero_scores(Index heads, Index key_heads, Index tokens) {
  Layer<T> layer{Tensor<T>(1, heads, tokens, 2), Tensor<T>(1, key_heads, tokens, 2), Tensor<T>(1, key_heads, tokens, tokens)};
  layer.q.fill(0);
  layer.k.fill(0);
  for (Index head = 0; head < key_heads; ++head)
    for (Index j = 0; j < tokens; ++j) layer.v.set_row(0, head, j, [&](Index f) { return T(f == j ? 1 : 0); });
  return layer;
}

/// A row must be these numbers over their sum.
template <class T>
void require_row(const StreamOutput<T>& got, Index head, Index row, const std::vector<double>& weights) {
  double sum = 0;
  for (const double weight : weights) sum += weight;
  const Matrix<T> rows = rows_of(got.values.view(), 0, head);
  for (Index j = 0; j < rows.cols(); ++j) {
    const double weight = j < static_cast<Index>(weights.size()) ? weights[static_cast<std::size_t>(j)] / sum : 0;
    CAPTURE(head, row, j);
    REQUIRE(static_cast<double>(rows(row, j)) == Approx(weight).margin(tolerance<T>).epsilon(0));
  }
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("case: decode row, from a cache", "", Scalars) {
  const auto layer = zero_scores<TestType>(2, 2, 4);
  const std::vector<AlibiBias> biases{{ln2}, {2 * ln2}};
  for (const std::vector<Chunk>& chunks :
       {std::vector<Chunk>{{1, 1}, {1, 1}, {1, 1}, {1, 1}}, {{4, 4}}, {{3, 0, true}, {1, 1}}, {{2, 2}, {2, 1}}})
    for (const Index offset : {Index{0}, Index{1} << 40}) {
      auto stream = stream_for(layer, biases, {.key_offset = offset});
      const auto got = feed(stream, layer, chunks);
      require_row(got, 0, 3, {1, 2, 4, 8});
      require_row(got, 1, 3, {1, 4, 16, 64});
    }
}

TEMPLATE_LIST_TEST_CASE("case: decode row, of keys whose queries nobody asked for", "", Scalars) {
  const auto layer = zero_scores<TestType>(1, 1, 6);
  auto stream = stream_for(layer, std::vector<AlibiBias>{{ln2}});
  const auto got = feed(stream, layer, {{2, 0, true}, {2, 0}, {2, 1}});  // append; a step without queries; one query of two
  require_row(got, 0, 5, {1, 2, 4, 8, 16, 32});
  const Matrix<TestType> rows = rows_of(got.values.view(), 0, 0);
  REQUIRE(rows.topRows(5).array().isNaN().all());  // not written
}

TEMPLATE_LIST_TEST_CASE("case: grouped heads, odd sizes, from a shared cache", "", Scalars) {
  const double expected[] = {0.4378235, 0.4843801, 0.4960938, 0.4990234};
  const std::vector<AlibiBias> biases{{1.0 / 4}, {1.0 / 16}, {1.0 / 64}, {1.0 / 256}};
  const auto layer = zero_scores<TestType>(4, 2, 2);
  auto stream = stream_for(layer, biases);
  const auto got = feed(stream, layer, steps(2));
  for (Index head = 0; head < 4; ++head)
    REQUIRE(static_cast<double>(rows_of(got.values.view(), 0, head)(1, 0)) ==
            Approx(expected[head]).margin(6e-8).epsilon(0));

  const auto odd = normal_stream<TestType>({4, 2, 30, 3, 5}, 1);
  auto grouped = stream_for(odd, biases);
  REQUIRE(stream_fault(feed(grouped, odd, steps(30)), odd, biases) == "");
}

TEMPLATE_LIST_TEST_CASE("case: shifted positions, a cache that dropped its front keeps absolute positions", "", Scalars) {
  // A window of two keys back, hence weights 1, 2, 4 however much has been dropped before.
  const Index tokens = 40;
  const auto layer = zero_scores<TestType>(1, 1, tokens);
  for (const Index offset : {Index{0}, Index{-7}, Index{1} << 40}) {
    auto stream = stream_for(layer, std::vector<AlibiBias>{{ln2}}, {.key_offset = offset, .window_left = 2});
    const auto got = feed(stream, layer, steps(tokens));
    REQUIRE(stream.cached_tokens(0) == 2);
    for (Index i = 2; i < tokens; ++i) {
      std::vector<double> weights(static_cast<std::size_t>(i + 1), 0.0);
      for (int back = 0; back < 3; ++back) weights[static_cast<std::size_t>(i - back)] = 4 >> back;
      require_row(got, 0, i, weights);
    }
  }

  // Blocks and masks of absolute positions: the rows of the whole sequence, not of what is left of it.
  const auto normal = normal_stream<TestType>({1, 1, 1200, 8, 4}, 2);
  const std::vector<MeanMask> masks{MeanMask(draw_hashes(LaplaceKernel{10}, 16, 2))};
  auto stream = stream_for(normal, masks);
  const auto got = feed(stream, normal, steps(1200));
  REQUIRE(stream.cached_tokens(0) < 300);
  REQUIRE(stream_fault(got, normal, masks) == "");
}

TEST_CASE("case: shifted positions, a constant on all offsets changes no bit of a stream of exact attention") {
  const auto layer = normal_stream<float>({2, 1, 300, 8, 8}, 3);
  const std::vector<AlibiBias> biases{{0.1}, {0.01}};
  auto base = stream_for(layer, biases);
  const auto expected = feed(base, layer, steps(300));
  for (const Index shift : {Index{7}, Index{-100}, Index{1} << 20, Index{1} << 40, -(Index{1} << 50)}) {
    auto stream = stream_for(layer, biases, {.key_offset = shift});
    const auto got = feed(stream, layer, steps(300));
    for (Index head = 0; head < 2; ++head)
      REQUIRE(same_numbers(rows_of(got.values.view(), 0, head), rows_of(expected.values.view(), 0, head)));
  }
}

TEMPLATE_LIST_TEST_CASE("case: cap and scale, sink, while decoding", "", Scalars) {
  const Index tokens = 4;
  auto layer = zero_scores<TestType>(1, 1, tokens);
  layer.q.fill(100);
  layer.k.fill(100);
  auto capped = stream_for(layer, std::vector<AlibiBias>{{ln2}}, {.scale = 1, .softcap = 1});
  require_row(feed(capped, layer, steps(tokens)), 0, 3, {1, 2, 4, 8});
  auto unscaled = stream_for(layer, std::vector<AlibiBias>{{ln2}}, {.scale = 0});
  require_row(feed(unscaled, layer, steps(tokens)), 0, 3, {1, 2, 4, 8});

  const auto zero = zero_scores<TestType>(1, 1, tokens);
  auto sunk = stream_for(zero, std::vector<AlibiBias>{{ln2}}, {.sink = 0});
  const auto got = feed(sunk, zero, steps(tokens));
  const Matrix<TestType> rows = rows_of(got.values.view(), 0, 0);
  REQUIRE(static_cast<double>(rows(0, 0)) == Approx(0.5));        // [1/2]
  REQUIRE(static_cast<double>(rows(1, 0)) == Approx(0.2));        // [1, 2] / 5
  REQUIRE(static_cast<double>(rows(1, 1)) == Approx(0.4));
}

}  // namespace decode_cases_test
