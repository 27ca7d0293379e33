// SPDX-License-Identifier: MIT

// Cases from the field that concern batches, many heads, padding and packing: cases_test.cpp over multi_head_attention.
//
// The usual set-up: Q = 0 and V = identity, so that an output row is the row of weights; slope ln 2, so that
// a step of distance halves the weight.

#include "poslsh/model/multi_head.hpp"
#include "poslsh/position/alibi.hpp"
#include "support/catch.hpp"
#include "support/heads.hpp"

#include <cstdlib>
#include <numbers>
#include <vector>

namespace model_cases_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::alibi_slopes;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::draw_hashes;
using poslsh::Index;
using poslsh::KeyRange;
using poslsh::LaplaceKernel;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::multi_head_attention;
using poslsh::MultiHeadOptions;
using poslsh::TensorView;
using poslsh::Vector;

namespace {

template <class T>
constexpr double tolerance = std::is_same_v<T, float> ? 1e-5 : 1e-12;

std::vector<AlibiBias> standard_heads(Index heads) {
  std::vector<AlibiBias> biases;
  for (const double slope : alibi_slopes(heads)) biases.push_back({slope});
  return biases;
}

/// One mask a head, from draws of their own.
std::vector<MeanMask> random_heads(Index heads, double sigma, std::uint64_t seed = 1) {
  std::vector<MeanMask> masks;
  for (Index head = 0; head < heads; ++head)
    masks.emplace_back(draw_hashes(LaplaceKernel{sigma}, 16, seed, poslsh::Sampling::importance,
                                   static_cast<std::uint64_t>(head)));
  return masks;
}

/// Heads [first, first + count) of a tensor.
template <class T>
TensorView<const T> slice(const TensorView<const T>& tensor, Index first, Index count) {
  TensorView<const T> part = tensor;
  part.data += first * part.head_stride;
  part.heads = count;
  return part;
}

/// Item `item` of a batch.
template <class T>
TensorView<const T> one_item(const TensorView<const T>& tensor, Index item) {
  TensorView<const T> part = tensor;
  part.data += item * part.batch_stride;
  part.batch = 1;
  return part;
}

template <class T>
bool same_rows(const AttentionOutput<T>& a, const AttentionOutput<T>& b, Index first_of_b) {
  const Index count = a.values.rows();
  return distance(a.values, b.values.middleRows(first_of_b, count)) < tolerance<T> &&
         distance(a.log_sum_exp, b.log_sum_exp.segment(first_of_b, count)) < tolerance<T>;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("case: padding, in a batch", "", Scalars) {
  // The same sequence of 5 in every item, with 3 rows of padding before it, behind it and on both sides.
  const Index length = 5, padded = 8, heads = 2;
  const std::vector<KeyRange> valid{{3, 8}, {0, 5}, {2, 7}};
  const auto alone = normal_layer<TestType>({1, heads, 1, length, length, 3, 2}, 91);
  Layer<TestType> batch{Tensor<TestType>(3, heads, padded, 3), Tensor<TestType>(3, 1, padded, 3),
                        Tensor<TestType>(3, 1, padded, 2)};
  const auto pad = [&](Tensor<TestType>& to, const Tensor<TestType>& from) {
    to.fill(TestType(1e30));
    for (Index item = 0; item < 3; ++item)
      for (Index head = 0; head < from.view().heads; ++head)
        for (Index row = 0; row < length; ++row)
          to.set_row(item, head, valid[static_cast<std::size_t>(item)].begin + row, [&](Index f) {
            return poslsh::detail::head_of(from.view(), 0, head)(row, f);
          });
  };
  pad(batch.q, alone.q);
  pad(batch.k, alone.k);
  pad(batch.v, alone.v);
  const auto check = [&](const auto& biases, bool causal) {
    const auto expected = attend(alone, biases, {{.causal = causal}});
    const auto got = attend(batch, biases, {{.causal = causal}, valid});
    for (Index item = 0; item < 3; ++item)
      for (Index head = 0; head < heads; ++head) {
        CAPTURE(causal, item, head);
        REQUIRE(same_rows(expected.head(0, head), got.head(item, head), valid[static_cast<std::size_t>(item)].begin));
      }
  };
  for (const bool causal : {true, false}) {
    check(standard_heads(heads), causal);
    check(random_heads(heads, 2), causal);
  }
}

TEMPLATE_LIST_TEST_CASE("case: fully masked, in a batch", "", Scalars) {
  const Index heads = 2;
  const auto layer = normal_layer<TestType>({3, heads, heads, 4, 6, 3, 2}, 92);
  const std::vector<KeyRange> all{{0, 6}, {0, 6}, {0, 6}}, masked{{0, 6}, {0, 0}, {0, 6}};
  const auto check = [&](const auto& biases) {
    const auto clean = attend(layer, biases, {{}, all}), got = attend(layer, biases, {{}, masked});
    for (Index head = 0; head < heads; ++head) {
      REQUIRE(same_numbers(got.head(1, head).values, Matrix<TestType>::Zero(4, 2)));
      REQUIRE(same_numbers(got.head(1, head).log_sum_exp, Vector<double>::Constant(4, -infinity)));
      for (const Index item : {0, 2}) REQUIRE(same_bits(got.head(item, head), clean.head(item, head)));
    }
  };
  check(standard_heads(heads));
  check(random_heads(heads, 2));
}

TEMPLATE_LIST_TEST_CASE("case: head slices, of a full run", "", Scalars) {
  const auto layer = normal_layer<TestType>({2, 16, 16, 60, 60, 5, 5}, 93, Layout::tokens_first);
  const std::vector<AlibiBias> biases = standard_heads(16), half(biases.begin() + 8, biases.end());
  const auto full = attend(layer, biases, {{.causal = true}});
  const LayerView<TestType> view = layer.view();
  const LayerView<TestType> sliced{slice(view.q, 8, 8), slice(view.k, 8, 8), slice(view.v, 8, 8)};
  const auto got = attend(sliced, half, {{.causal = true}});
  for (Index item = 0; item < 2; ++item)
    for (Index head = 0; head < 8; ++head)
      REQUIRE(same_bits(got.head(item, head), full.head(item, head + 8)));
}

TEMPLATE_LIST_TEST_CASE("case: head slices, slopes per batch item", "", Scalars) {
  const Index heads = 4;
  const auto layer = normal_layer<TestType>({3, heads, heads, 60, 60, 5, 5}, 94);
  std::vector<AlibiBias> biases;
  for (int i = 0; i < 3 * heads; ++i) biases.push_back({0.05 * i});
  const auto batch = attend(layer, biases, {{.causal = true}});
  const LayerView<TestType> view = layer.view();
  for (Index item = 0; item < 3; ++item) {
    const LayerView<TestType> one{one_item(view.q, item), one_item(view.k, item), one_item(view.v, item)};
    const std::vector<AlibiBias> own(biases.begin() + item * heads, biases.begin() + (item + 1) * heads);
    const auto got = attend(one, own, {{.causal = true}});
    for (Index head = 0; head < heads; ++head)
      REQUIRE(same_bits(got.head(0, head), batch.head(item, head)));
  }
}

TEMPLATE_LIST_TEST_CASE("case: grouped heads, odd sizes, in one call", "", Scalars) {
  const std::vector<AlibiBias> biases{{1.0 / 4}, {1.0 / 16}, {1.0 / 64}, {1.0 / 256}};
  const double expected[] = {0.4378235, 0.4843801, 0.4960938, 0.4990234};
  Layer<TestType> zero{Tensor<TestType>(1, 4, 2, 3), Tensor<TestType>(1, 2, 2, 3), Tensor<TestType>(1, 2, 2, 5)};
  zero.q.fill(0);
  zero.k.fill(0);
  for (Index head = 0; head < 2; ++head)
    for (Index j = 0; j < 2; ++j)
      zero.v.set_row(0, head, j, [&](Index f) { return static_cast<TestType>(f == j); });
  const auto weights = attend(zero, biases, {{.causal = true}});
  for (Index head = 0; head < 4; ++head)
    REQUIRE(static_cast<double>(weights.head(0, head).values(1, 0)) ==
            Approx(expected[head]).margin(6e-8).epsilon(0));

  for (const auto& [d, d_v] : {std::pair{3, 5}, std::pair{1, 1}, std::pair{80, 80}, std::pair{300, 300}}) {
    const auto layer = normal_layer<TestType>({1, 4, 2, 50, 50, d, d_v}, 95);
    const auto got = attend(layer, biases, {{.causal = true}});
    CAPTURE(d, d_v);
    REQUIRE(layer_fault(got, layer.view(), biases, {{.causal = true}}) == "");
    // Each key head written out for both of its query heads.
    Layer<TestType> repeated{layer.q, Tensor<TestType>(1, 4, 50, d), Tensor<TestType>(1, 4, 50, d_v)};
    const auto repeat = [](Tensor<TestType>& to, const Tensor<TestType>& from) {
      for (Index head = 0; head < 4; ++head)
        for (Index row = 0; row < 50; ++row)
          to.set_row(0, head, row, [&](Index f) { return poslsh::detail::head_of(from.view(), 0, head / 2)(row, f); });
    };
    repeat(repeated.k, layer.k);
    repeat(repeated.v, layer.v);
    REQUIRE(same_bits(attend(repeated, biases, {{.causal = true}}), got));
  }
}

TEST_CASE("case: seeds, alone or in a batch") {
  const Index n = 257, heads = 2;
  const auto layer = normal_layer<float>({3, heads, heads, n, n, 16, 16}, 96);
  const LayerView<float> view = layer.view();
  std::srand(5);
  const int next = std::rand();
  std::srand(5);
  const auto run = [&](std::uint64_t seed, int threads) {
    return attend(layer, random_heads(heads, 16, seed), {{.causal = true, .threads = threads}});
  };
  const auto batch = run(1, 1);
  for (const int threads : {1, 2, 4}) REQUIRE(same_bits(run(1, threads), batch));
  for (Index item = 0; item < 3; ++item)
    for (Index head = 0; head < heads; ++head) {
      const auto one = [&](const TensorView<const float>& tensor) { return slice(one_item(tensor, item), head, 1); };
      const std::vector<MeanMask> own{random_heads(heads, 16)[static_cast<std::size_t>(head)]};
      const auto alone = attend(LayerView<float>{one(view.q), one(view.k), one(view.v)}, own, {{.causal = true}});
      REQUIRE(same_bits(alone.head(0, 0), batch.head(item, head)));
    }
  REQUIRE_FALSE(same_bits(run(2, 1), batch));
  REQUIRE(std::rand() == next);
}

TEMPLATE_LIST_TEST_CASE("case: layout and overlap, of many heads", "", Scalars) {
  // One buffer, a row a token: [3][heads][features].
  const Index batch = 2, heads = 3, n = 40, d = 8, row = 3 * heads * d;
  const Tensor<TestType> buffer = normal_tensor<TestType>(batch, 1, n, row, 98);
  const auto part = [&](TestType* data, Index which) {
    return TensorView<TestType>{data + which * heads * d, batch, heads, n, d, n * row, d, row};
  };
  Tensor<TestType> interleaved = buffer;
  TestType* const data = interleaved.view().data;
  Layer<TestType> packed{Tensor<TestType>(batch, heads, n, d), Tensor<TestType>(batch, heads, n, d),
                         Tensor<TestType>(batch, heads, n, d)};
  Tensor<TestType>* const copies[] = {&packed.q, &packed.k, &packed.v};
  for (Index which = 0; which < 3; ++which)
    for (Index item = 0; item < batch; ++item)
      for (Index head = 0; head < heads; ++head)
        for (Index t = 0; t < n; ++t)
          copies[which]->set_row(item, head, t, [&](Index f) {
            return poslsh::detail::head_of(part(data, which), item, head)(t, f);
          });
  const auto biases = standard_heads(heads);
  const auto expected = attend(packed, biases);
  REQUIRE(same_bits(attend(LayerView<TestType>{part(data, 0), part(data, 1), part(data, 2)}, biases), expected));
  for (const Index over : {0, 1, 2}) {
    Tensor<TestType> own = buffer;
    TestType* const to = own.view().data;
    multi_head_attention(part(to, 0), part(to, 1), part(to, 2), part(to, over), biases);
    for (Index item = 0; item < batch; ++item)
      for (Index head = 0; head < heads; ++head)
        REQUIRE(same_numbers(rows_of(part(to, over), item, head), expected.head(item, head).values));
  }
}

TEMPLATE_LIST_TEST_CASE("case: more queries than keys, packed among others", "", Scalars) {
  // Causal, 4 queries on 2 keys between two ordinary sequences, then 3 queries without keys, then keys alone.
  const std::vector<Index> query_starts{0, 2, 6, 8, 11, 11}, key_starts{0, 2, 4, 6, 6, 9};
  Layer<TestType> zero{Tensor<TestType>(1, 1, 11, 2), Tensor<TestType>(1, 1, 9, 2), Tensor<TestType>(1, 1, 9, 9)};
  zero.q.fill(0);
  zero.k.fill(0);
  for (Index j = 0; j < 9; ++j) zero.v.set_row(0, 0, j, [&](Index f) { return static_cast<TestType>(f == j); });
  const auto got = attend(zero, std::vector<AlibiBias>{{std::numbers::ln2}},
                          {.attention = {.causal = true}, .query_starts = query_starts, .key_starts = key_starts})
                       .head(0, 0);
  Matrix<double> expected = Matrix<double>::Zero(11, 9);
  for (const Index pair : {0, 2, 3}) {  // [1], [1, 2] / 3 in the last two rows of each member
    const Index query = pair == 0 ? 0 : 2 * pair, key = pair == 0 ? 0 : 2 * (pair - 1);
    expected(query, key) = 1;
    expected(query + 1, key) = 1 / 3.0;
    expected(query + 1, key + 1) = 2 / 3.0;
  }
  REQUIRE(distance(got.values, expected) < tolerance<TestType>);
  for (const Index row : {2, 3, 8, 9, 10}) {
    REQUIRE((got.values.row(row).array() == 0).all());
    REQUIRE(got.log_sum_exp[row] == -infinity);
  }
}

}  // namespace model_cases_test
