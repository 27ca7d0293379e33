// SPDX-License-Identifier: MIT

// Padded and packed sequences: each is a call of its own.

#include "poslsh/model/multi_head.hpp"
#include "poslsh/position/alibi.hpp"
#include "support/catch.hpp"
#include "support/heads.hpp"

#include <algorithm>
#include <numbers>
#include <vector>

namespace multi_head_sequences_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::draw_hashes;
using poslsh::FixedBlocks;
using poslsh::Index;
using poslsh::KeyRange;
using poslsh::LaplaceKernel;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::MultiHeadOptions;
using poslsh::TensorView;
using poslsh::Vector;

namespace {

constexpr Index heads = 4, key_heads = 2;

const std::vector<AlibiBias> exact{{0.5}, {0.1}, {0.02, 0.3}, {0}};
const std::vector<FixedBlocks> blocks{{3}, {8}, {20}, {64}};
const std::vector<MeanMask>& random_masks() {
  static const std::vector<MeanMask> masks = [] {
    std::vector<MeanMask> all;
    for (std::uint64_t head = 0; head < heads; ++head)
      all.emplace_back(draw_hashes(LaplaceKernel{6}, 10, 1, poslsh::Sampling::importance, head));
    return all;
  }();
  return masks;
}

template <class T>
double rounding() {
  return 50 * static_cast<double>(std::numeric_limits<T>::epsilon());
}

/// Overwrites a range of rows in every head of an item.
template <class T>
void overwrite(Tensor<T>& tensor, Index item, KeyRange rows, double value) {
  for (Index head = 0; head < tensor.view().heads; ++head)
    for (Index row = rows.begin; row < rows.end; ++row)
      tensor.set_row(item, head, row, [&](Index) { return static_cast<T>(value); });
}

/// Tokens [begin, end) of one item, where they lie.
template <class T>
TensorView<const T> part(const TensorView<const T>& whole, Index item, KeyRange rows) {
  TensorView<const T> tensor = whole;
  tensor.data += item * tensor.batch_stride + rows.begin * tensor.token_stride;
  tensor.batch = 1;
  tensor.tokens = rows.size();
  return tensor;
}
template <class T>
LayerView<T> part(const LayerView<T>& layer, Index item, KeyRange queries, KeyRange keys) {
  return {part(layer.q, item, queries), part(layer.k, item, keys), part(layer.v, item, keys)};
}

}  // namespace

// --- Padding -----------------------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("Padding, left or right, leaves no trace in the rows of real queries", "", Scalars) {
  const Index length = 40;
  const std::vector<KeyRange> valid{{0, 40}, {7, 40}, {0, 31}, {5, 6}, {11, 39}};  // one a batch item
  const Index batch = static_cast<Index>(valid.size());
  const auto real = normal_layer<TestType>({batch, heads, key_heads, length, length, 8, 5}, 31);
  for (const double pad : {1e30, not_a_number}) {
    auto layer = real;
    for (Index item = 0; item < batch; ++item) {
      const KeyRange range = valid[static_cast<std::size_t>(item)];
      for (const KeyRange padding : {KeyRange{0, range.begin}, KeyRange{range.end, length}}) {
        overwrite(layer.q, item, padding, 1e30);
        overwrite(layer.k, item, padding, pad);
        overwrite(layer.v, item, padding, pad);
      }
    }
    const auto check = [&](const auto& biases, const AttentionOptions& call) {
      MultiHeadOptions options{call};
      options.valid_keys = valid;
      const auto got = attend(layer, biases, options);
      REQUIRE(unlike_alone(got, layer.view(), biases, options) == "");
      for (Index item = 0; item < batch; ++item) {
        const KeyRange range = valid[static_cast<std::size_t>(item)];
        const auto alone = attend(part(layer.view(), item, range, range), biases, {call});
        for (Index head = 0; head < heads; ++head) {
          const AttentionOutput<TestType> expected = alone.head(0, head), all = got.head(item, head);
          CAPTURE(pad, call.causal, item, head);
          REQUIRE(distance(all.values.middleRows(range.begin, range.size()), expected.values) <
                  rounding<TestType>());
          REQUIRE(distance(all.log_sum_exp.segment(range.begin, range.size()), expected.log_sum_exp) <
                  rounding<TestType>());
          REQUIRE(all.values.allFinite());  // pad queries, which are finite, give finite rows
        }
      }
    };
    for (const AttentionOptions& call :
         {AttentionOptions{}, AttentionOptions{.causal = true}, AttentionOptions{.causal = true, .threads = 3},
          AttentionOptions{.key_offset = -1000, .window_left = 12, .window_right = 3},
          AttentionOptions{.causal = true, .key_offset = Index{1} << 40, .softcap = 3, .sink = 0.5}}) {
      check(exact, call);
      check(random_masks(), call);
      check(blocks, call);
    }
  }
}

TEMPLATE_LIST_TEST_CASE("Padding on the right changes no bit", "", Scalars) {
  const Index length = 450, real = 400;
  auto layer = normal_layer<TestType>({1, heads, key_heads, length, length, 8, 8}, 32);
  overwrite(layer.k, 0, {real, length}, not_a_number);
  overwrite(layer.v, 0, {real, length}, not_a_number);
  const std::vector<KeyRange> valid{{0, real}};
  const auto check = [&](const auto& biases, const AttentionOptions& call) {
    const auto got = attend(layer, biases, {call, valid});
    const auto alone = attend(part(layer.view(), 0, {0, real}, {0, real}), biases, {call});
    for (Index head = 0; head < heads; ++head)
      REQUIRE(same_numbers(got.head(0, head).values.topRows(real), alone.head(0, head).values));
  };
  check(exact, {.causal = true});
  check(random_masks(), {.causal = true});
}

TEST_CASE("NaN in padded queries stays in their rows") {
  const Index length = 30;
  auto layer = normal_layer<float>({1, heads, key_heads, length, length, 8, 8}, 33);
  const std::vector<KeyRange> valid{{9, length}};
  const auto clean = attend(layer, exact, {{}, valid});
  overwrite(layer.q, 0, {0, 9}, not_a_number);
  const auto got = attend(layer, exact, {{}, valid});
  for (Index head = 0; head < heads; ++head)
    REQUIRE(same_numbers(got.head(0, head).values.bottomRows(21), clean.head(0, head).values.bottomRows(21)));
}

TEMPLATE_LIST_TEST_CASE("Padded keys under queries of another number and an offset of their own", "", Scalars) {
  // Keys 4 .. 19 of 24 are real; 10 queries at padded positions 14 .. 23 or, told so, 6 .. 15.
  const auto layer = normal_layer<TestType>({1, heads, key_heads, 10, 24, 8, 5}, 34);
  const std::vector<KeyRange> valid{{4, 19}};
  struct Call {
    AttentionOptions padded;
    Index query_offset;  // among the real keys, of which the first stands at key_offset
  };
  for (const Call& call : {Call{{.causal = true}, 10}, Call{{.query_offset = 6}, 2},
                           Call{{.causal = true, .key_offset = 500, .query_offset = 506}, 502},
                           Call{{.key_offset = -30}, -20}}) {
    const auto got = attend(layer, random_masks(), {call.padded, valid});
    AttentionOptions options = call.padded;
    options.query_offset = call.query_offset;
    const auto alone = attend(part(layer.view(), 0, {0, 10}, valid[0]), random_masks(), {options});
    REQUIRE(same_bits(got, alone));
    REQUIRE(layer_fault(got, layer.view(), random_masks(), {call.padded, valid}) == "");
  }
}

TEST_CASE("Every key row valid: as if nothing were said") {
  const auto layer = normal_layer<float>({2, heads, key_heads, 50, 70, 8, 8}, 35);
  const std::vector<KeyRange> valid(2, {0, 70});
  REQUIRE(same_bits(attend(layer, exact, {{.causal = true}, valid}), attend(layer, exact, {{.causal = true}})));
}

TEST_CASE("An item without valid keys is 0 with log_sum_exp -inf, the others are as without it") {
  auto layer = normal_layer<float>({4, heads, key_heads, 50, 70, 8, 8}, 36);
  const auto clean = attend(layer, exact);
  overwrite(layer.k, 1, {0, 70}, not_a_number);
  overwrite(layer.v, 2, {0, 70}, not_a_number);
  const std::vector<KeyRange> valid{{0, 70}, {0, 0}, {70, 70}, {0, 70}};
  for (const double tolerance : {0.0, 1e-6}) {
    const auto got = attend(layer, exact, {{.tolerance = tolerance}, valid});
    for (Index head = 0; head < heads; ++head) {
      for (const Index item : {1, 2}) {
        REQUIRE(same_numbers(got.head(item, head).values, Matrix<float>::Zero(50, 8)));
        REQUIRE(same_numbers(got.head(item, head).log_sum_exp, Vector<double>::Constant(50, -infinity)));
      }
      for (const Index item : {0, 3})
        REQUIRE(distance(got.head(item, head).values, clean.head(item, head).values) < 1e-5);
    }
  }
}

// --- Packed sequences --------------------------------------------------------------------------------------

TEST_CASE("Two packed sequences, by hand") {
  // Zero scores, slope ln 2: weights halve with each step. 2 tokens, then 3; a row to spare.
  const Index n = 6;
  Tensor<double> zero(1, 1, n, 1), identity(1, 1, n, n);
  zero.fill(0);
  for (Index i = 0; i < n; ++i) identity.set_row(0, 0, i, [&](Index f) { return i == f ? 1.0 : 0.0; });
  const std::vector<Index> starts{0, 2, 5};
  const auto got = attend(LayerView<double>{zero.view(), zero.view(), identity.view()},
                          std::vector<AlibiBias>{{std::numbers::ln2}},
                          {.attention = {.causal = true}, .query_starts = starts, .key_starts = starts})
                       .head(0, 0);
  Matrix<double> expected(n, n);
  expected << 1, 0, 0, 0, 0, 0,        //
      1 / 3.0, 2 / 3.0, 0, 0, 0, 0,    //
      0, 0, 1, 0, 0, 0,                //
      0, 0, 1 / 3.0, 2 / 3.0, 0, 0,    //
      0, 0, 1 / 7.0, 2 / 7.0, 4 / 7.0, 0,  //
      0, 0, 0, 0, 0, 0;
  REQUIRE(distance(got.values, expected) < 1e-12);
  REQUIRE(got.log_sum_exp[4] == Approx(std::log(1.75)));
  REQUIRE(got.log_sum_exp[5] == -infinity);
}

TEMPLATE_LIST_TEST_CASE("A packed sequence is a call of its own: positions, windows, causality and blocks", "", Scalars) {
  // Queries and keys of different numbers; members without queries, without keys, without both, at either end.
  const std::vector<Index> query_starts{0, 0, 7, 40, 40, 40, 55, 130, 130},
      key_starts{0, 5, 12, 45, 60, 60, 60, 170, 170};
  const auto layer = normal_layer<TestType>({1, heads, key_heads, 130, 170, 8, 5}, 41);
  const auto check = [&](const auto& biases, const AttentionOptions& call) {
    MultiHeadOptions options{call};
    options.query_starts = query_starts;
    options.key_starts = key_starts;
    const auto got = attend(layer, biases, options);
    CAPTURE(call.causal, call.key_offset, call.threads);
    REQUIRE(unlike_alone(got, layer.view(), biases, options) == "");
    REQUIRE(layer_fault(got, layer.view(), biases, options) == "");
  };
  for (const AttentionOptions& call :
       {AttentionOptions{}, AttentionOptions{.causal = true, .threads = 2},
        AttentionOptions{.causal = true, .key_offset = 1001, .sink = 0.5},
        AttentionOptions{.key_offset = -(Index{1} << 41), .window_left = 9, .window_right = 2, .softcap = 2},
        AttentionOptions{.scale = 0.5, .tolerance = 0.05}}) {
    check(exact, call);
    check(random_masks(), call);
    check(blocks, call);
  }
}

TEMPLATE_LIST_TEST_CASE("Two packed members of different query and key lengths are two calls", "", Scalars) {
  const auto layer = normal_layer<TestType>({1, heads, key_heads, 50, 90, 8, 8}, 42);
  const std::vector<Index> query_starts{0, 20, 50}, key_starts{0, 60, 90};
  for (const bool causal : {true, false}) {
    const AttentionOptions call{.causal = causal};
    const auto got = attend(layer, random_masks(), {call, {}, query_starts, key_starts});
    const auto first = attend(part(layer.view(), 0, {0, 20}, {0, 60}), random_masks(), {call});
    const auto second = attend(part(layer.view(), 0, {20, 50}, {60, 90}), random_masks(), {call});
    for (Index head = 0; head < heads; ++head) {
      const AttentionOutput<TestType> all = got.head(0, head);
      const auto rows = [&](Index begin, Index count) {
        return AttentionOutput<TestType>{all.values.middleRows(begin, count), all.log_sum_exp.segment(begin, count)};
      };
      REQUIRE(same_bits(rows(0, 20), first.head(0, head)));
      REQUIRE(same_bits(rows(20, 30), second.head(0, head)));
    }
  }
}

TEST_CASE("Rows past the last offset are 0 with log_sum_exp -inf, whatever the inputs and the sink") {
  auto layer = normal_layer<float>({1, heads, key_heads, 60, 80, 8, 8}, 43);
  const std::vector<Index> query_starts{0, 20, 50}, key_starts{0, 40, 70};
  const auto clean = attend(layer, exact, {{.sink = 1}, {}, query_starts, key_starts});
  overwrite(layer.q, 0, {50, 60}, not_a_number);
  overwrite(layer.k, 0, {70, 80}, not_a_number);
  overwrite(layer.v, 0, {70, 80}, 1e30);
  const MultiHeadOptions options{{.sink = 1}, {}, query_starts, key_starts};
  for (const Layout layout : all_layouts) {
    const auto got = attend(layer, exact, options, layout);
    REQUIRE(rest_fault(got, options) == "");
    REQUIRE(same_bits(got, clean));
  }
  // The same where the output lies over the queries.
  auto own = layer;
  std::vector<double> lse(heads * 60, 7.0);
  multi_head_attention(own.q.view(), own.k.view(), own.v.view(), own.q.view(), exact, options, lse.data());
  REQUIRE(own.q.storage() == clean.values.storage());
  REQUIRE(lse == clean.log_sum_exp);
}

TEST_CASE("No sequence at all: every row is past the last offset") {
  const auto layer = normal_layer<float>({1, heads, key_heads, 6, 8, 8, 8}, 44);
  const std::vector<Index> none{0};
  const MultiHeadOptions options{{.threads = 2}, {}, none, none};
  REQUIRE(rest_fault(attend(layer, exact, options), options) == "");
}

TEST_CASE("NaN in one packed sequence leaves the bits of the others") {
  const std::vector<Index> starts{0, 30, 31, 80, 120};
  auto layer = normal_layer<float>({1, heads, key_heads, 120, 120, 8, 8}, 45);
  for (const double tolerance : {0.0, 1e-3}) {
    const MultiHeadOptions options{{.tolerance = tolerance}, {}, starts, starts};
    const auto clean = attend(layer, exact, options);
    auto bad = layer;
    for (Tensor<float>* tensor : {&bad.q, &bad.k, &bad.v}) overwrite(*tensor, 0, {31, 80}, not_a_number);
    const auto got = attend(bad, exact, options);
    for (Index head = 0; head < heads; ++head)
      for (const KeyRange rows : {KeyRange{0, 31}, KeyRange{80, 120}})
        REQUIRE(same_numbers(got.head(0, head).values.middleRows(rows.begin, rows.size()),
                             clean.head(0, head).values.middleRows(rows.begin, rows.size())));
    REQUIRE(got.head(0, 0).values.middleRows(31, 49).array().isNaN().all());
  }
}

TEMPLATE_LIST_TEST_CASE("Many packed sequences of random lengths, in any order, on any number of threads", "", Scalars) {
  Dice dice(46);
  std::vector<Index> lengths;
  for (int m = 0; m < 60; ++m) lengths.push_back(dice.chance(0.2) ? 0 : dice.below(60));
  for (const bool sorted : {false, true}) {
    if (sorted) std::sort(lengths.begin(), lengths.end());
    std::vector<Index> starts{0};
    for (const Index length : lengths) starts.push_back(starts.back() + length);
    const auto layer = normal_layer<TestType>({1, heads, key_heads, starts.back() + 3, starts.back() + 5, 8, 8}, 47);
    for (const int threads : {1, 2, 8}) {
      const MultiHeadOptions options{{.causal = true, .threads = threads}, {}, starts, starts};
      REQUIRE(unlike_alone(attend(layer, exact, options), layer.view(), exact, options) == "");
    }
  }
}

}  // namespace multi_head_sequences_test
