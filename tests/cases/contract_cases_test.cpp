// SPDX-License-Identifier: MIT

// What the contract promises beyond the cases from the field, in the same small checks: positions, windows, chunks,
// shards, packing, what is masked, and where the random path tends to.
//
// The set-up of cases_test.cpp: Q = 0 and V = identity, so that an output row is the row of weights; slope ln 2, so that
// a step of distance halves the weight.

#include "poslsh/attention/blockwise.hpp"
#include "poslsh/model/streaming.hpp"
#include "support/catch.hpp"
#include "support/heads.hpp"

#include <algorithm>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

namespace contract_cases_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::attention;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::blockwise_attention;
using poslsh::draw_hashes;
using poslsh::FixedBlocks;
using poslsh::Index;
using poslsh::LaplaceKernel;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::merge;
using poslsh::Merge;
using poslsh::MultiHeadOptions;
using poslsh::NoBias;
using poslsh::PositionHash;
using poslsh::Vector;

namespace {

constexpr double ln2 = std::numbers::ln2;
template <class T>
constexpr double tolerance = std::is_same_v<T, float> ? 1e-5 : 1e-12;

template <class T, class B>
AttentionOutput<T> zero_score(Index queries, Index keys, const B& bias, const AttentionOptions& options = {}) {
  return attention(Matrix<T>::Zero(queries, 2), Matrix<T>::Zero(keys, 2), Matrix<T>::Identity(keys, keys), bias, options);
}

/// Each row must be these numbers over their sum, or 0 where they all are.
template <class T>
void require_rows(const AttentionOutput<T>& got, Matrix<double> expected) {
  REQUIRE((got.values.rows() == expected.rows() && got.values.cols() == expected.cols()));
  for (Index i = 0; i < expected.rows(); ++i)
    if (expected.row(i).sum() > 0) expected.row(i) /= expected.row(i).sum();
  REQUIRE(distance(got.values, expected) < tolerance<T>);
}

template <class T>
bool close(const AttentionOutput<T>& a, const AttentionOutput<T>& b) {
  return distance(a.values, b.values) < tolerance<T> && distance(a.log_sum_exp, b.log_sum_exp) < tolerance<T>;
}

/// Every way to attend: check(run), run(q, k, v, options) -> output.
template <class Check>
void each_way(Check&& check) {
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{4}, 16, 3);
  const auto under = [&](const auto& bias) {
    check([&](const auto& q, const auto& k, const auto& v, const AttentionOptions& options) {
      return attention(q, k, v, bias, options);
    });
  };
  under(NoBias{});
  under(AlibiBias{0.2, 0.7});
  under(FixedBlocks{6});
  under(MeanMask(hashes));
  for (const Merge how : {Merge::ratio, Merge::mean})
    check([&](const auto& q, const auto& k, const auto& v, const AttentionOptions& options) {
      return blockwise_attention(q, k, v, hashes, options, how);
    });
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("case: unequal left and right slopes", "", Scalars) {
  const AlibiBias bias{ln2, 2 * ln2};  // a step back halves the weight, a step ahead quarters it
  require_rows(zero_score<TestType>(3, 3, bias), Matrix<double>{{16, 4, 1}, {2, 4, 1}, {1, 2, 4}});
  require_rows(zero_score<TestType>(2, 4, bias), Matrix<double>{{1, 2, 4, 1}, {1, 2, 4, 8}});
  require_rows(zero_score<TestType>(1, 3, AlibiBias{ln2, 0}, {.query_offset = 0}), Matrix<double>{{1, 1, 1}});
  require_rows(zero_score<TestType>(1, 3, AlibiBias{0, ln2}, {.query_offset = 1}), Matrix<double>{{2, 2, 1}});
  require_rows(zero_score<TestType>(1, 3, AlibiBias{ln2, -ln2}, {.query_offset = 1}), Matrix<double>{{1, 2, 4}});
  require_rows(zero_score<TestType>(3, 3, bias, {.causal = true}), Matrix<double>{{1, 0, 0}, {1, 2, 0}, {1, 2, 4}});
}

TEMPLATE_LIST_TEST_CASE("case: inclusive windows", "", Scalars) {
  const auto rows = [](const AttentionOptions& options) { return zero_score<TestType>(4, 4, AlibiBias{ln2}, options); };
  require_rows(rows({.window_left = 0, .window_right = 0}), Matrix<double>::Identity(4, 4));
  require_rows(rows({.window_left = 1, .window_right = 0}),
               Matrix<double>{{1, 0, 0, 0}, {1, 2, 0, 0}, {0, 1, 2, 0}, {0, 0, 1, 2}});
  require_rows(rows({.window_left = 1, .window_right = 1}),
               Matrix<double>{{2, 1, 0, 0}, {1, 2, 1, 0}, {0, 1, 2, 1}, {0, 0, 1, 2}});
  require_rows(rows({.causal = true, .window_left = 2, .window_right = 5}),  // causal is a right window of 0
               Matrix<double>{{1, 0, 0, 0}, {1, 2, 0, 0}, {1, 2, 4, 0}, {0, 1, 2, 4}});
  require_rows(rows({.query_offset = 3, .window_left = 2}),
               Matrix<double>{{0, 1, 2, 4}, {0, 0, 1, 2}, {0, 0, 0, 1}, {0, 0, 0, 0}});
  // A window that ends one key short of the first query, and one that just reaches it.
  REQUIRE(zero_score<TestType>(1, 4, AlibiBias{ln2}, {.query_offset = 9, .window_left = 5}).log_sum_exp[0] == -infinity);
  require_rows(zero_score<TestType>(1, 4, AlibiBias{ln2}, {.query_offset = 9, .window_left = 6}), Matrix<double>{{0, 0, 0, 1}});
  REQUIRE(zero_score<TestType>(1, 4, AlibiBias{ln2}, {.query_offset = -3, .window_right = 2}).log_sum_exp[0] == -infinity);
  require_rows(zero_score<TestType>(1, 4, AlibiBias{ln2}, {.query_offset = -3, .window_right = 3}), Matrix<double>{{1, 0, 0, 0}});
}

TEMPLATE_LIST_TEST_CASE("case: offsets and chunked prefill", "", Scalars) {
  // Four tokens in chunks: aligned at the end by default, the same where positions are given.
  const Matrix<double> whole{{1, 0, 0, 0}, {1, 2, 0, 0}, {1, 2, 4, 0}, {1, 2, 4, 8}};
  for (const Index first : {1, 2, 3}) {
    require_rows(zero_score<TestType>(4 - first, 4, AlibiBias{ln2}, {.causal = true}), whole.bottomRows(4 - first));
    require_rows(zero_score<TestType>(first, 4, AlibiBias{ln2}, {.causal = true, .query_offset = 0}), whole.topRows(first));
    require_rows(zero_score<TestType>(4 - first, 4, AlibiBias{ln2}, {.causal = true, .key_offset = 90, .query_offset = 90 + first}),
                 whole.bottomRows(4 - first));
  }
  const Index n = 230;
  const auto [q, k, v] = normal_inputs<TestType>(n, n, 4, 3, 81);
  each_way([&, &q = q, &k = k, &v = v](const auto& run) {
    for (const Index offset : {Index{0}, Index{-57}, Index{1} << 40}) {
      const auto full = run(q, k, v, AttentionOptions{.causal = true, .key_offset = offset});
      Index first = 0;
      for (const Index rows : {1, 7, 96, 126}) {
        const auto chunk = run(q.middleRows(first, rows), k.topRows(first + rows), v.topRows(first + rows),
                               AttentionOptions{.causal = true, .key_offset = offset});
        CAPTURE(offset, first);
        REQUIRE(close(chunk, AttentionOutput<TestType>{full.values.middleRows(first, rows), full.log_sum_exp.segment(first, rows)}));
        first += rows;
      }
    }
  });
}

TEMPLATE_LIST_TEST_CASE("case: merging shards in any order", "", Scalars) {
  const auto shard_of = [](Index first, Index count) {  // keys first .. first + count - 1 of four, seen from position 3
    return attention(Matrix<TestType>::Zero(1, 2), Matrix<TestType>::Zero(count, 2),
                     Matrix<TestType>::Identity(4, 4).middleRows(first, count), AlibiBias{ln2},
                     {.key_offset = first, .query_offset = 3});
  };
  std::vector<AttentionOutput<TestType>> shards{shard_of(0, 1), shard_of(1, 0), shard_of(1, 2), shard_of(3, 1)};
  std::vector<std::size_t> order{0, 1, 2, 3};
  do {
    AttentionOutput<TestType> merged = shards[order[0]];
    for (std::size_t s = 1; s < 4; ++s) merged = merge(merged, shards[order[s]]);
    require_rows(merged, Matrix<double>{{1, 2, 4, 8}});
    REQUIRE(merged.log_sum_exp[0] == Approx(std::log(15.0 / 8)));
  } while (std::next_permutation(order.begin(), order.end()));

  const auto [q, k, v] = normal_inputs<TestType>(70, 200, 4, 3, 82);
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{8}, 16, 4);
  const auto check = [&, &q = q, &k = k, &v = v](const auto& run) {
    AttentionOptions options{.causal = true, .query_offset = 120, .sink = 0.5};
    const AttentionOutput<TestType> full = run(q, k, v, options);
    std::vector<AttentionOutput<TestType>> parts;
    Index first = 0;
    for (const Index count : {90, 1, 0, 109}) {
      options.key_offset = first;
      options.sink = first == 90 ? std::optional<double>(0.5) : std::nullopt;  // of one shard only
      parts.push_back(run(q, k.middleRows(first, count), v.middleRows(first, count), options));
      first += count;
    }
    std::vector<std::size_t> places{0, 1, 2, 3};
    do {
      AttentionOutput<TestType> merged = parts[places[0]];
      for (std::size_t s = 1; s < 4; ++s) merged = merge(merged, parts[places[s]]);
      REQUIRE(close(merged, full));
    } while (std::next_permutation(places.begin(), places.end()));
  };
  check([](const auto& a, const auto& b, const auto& c, const auto& options) { return attention(a, b, c, AlibiBias{0.1}, options); });
  check([&](const auto& a, const auto& b, const auto& c, const auto& options) { return attention(a, b, c, MeanMask(hashes), options); });
  check([&](const auto& a, const auto& b, const auto& c, const auto& options) { return blockwise_attention(a, b, c, hashes, options); });
}

TEMPLATE_LIST_TEST_CASE("case: packed sequences with empty members", "", Scalars) {
  // In turn: nothing; two tokens; queries without keys; keys without queries; nothing; three tokens; nothing.
  const std::vector<Index> query_starts{0, 0, 2, 4, 4, 4, 7, 7}, key_starts{0, 0, 2, 2, 5, 5, 8, 8};
  Layer<TestType> zero{Tensor<TestType>(1, 1, 9, 2), Tensor<TestType>(1, 1, 10, 2), Tensor<TestType>(1, 1, 10, 10)};
  zero.q.fill(0);
  zero.k.fill(0);
  for (Index j = 0; j < 10; ++j) zero.v.set_row(0, 0, j, [&](Index f) { return static_cast<TestType>(f == j); });
  const auto run = [&](const Layer<TestType>& layer, const auto& bias) {
    return attend(layer, std::vector{bias}, {.attention = {.causal = true}, .query_starts = query_starts, .key_starts = key_starts})
        .head(0, 0);
  };
  const auto got = run(zero, AlibiBias{ln2});
  Matrix<double> expected = Matrix<double>::Zero(9, 10);
  expected.block(0, 0, 2, 2) = Matrix<double>{{1, 0}, {1, 2}};
  expected.block(4, 5, 3, 3) = Matrix<double>{{1, 0, 0}, {1, 2, 0}, {1, 2, 4}};
  require_rows(got, expected);
  for (const Index row : {2, 3, 7, 8}) {
    REQUIRE((got.values.row(row).array() == 0).all());
    REQUIRE(got.log_sum_exp[row] == -infinity);
  }
  // A member that nobody asks, and rows past the last: NaN there leaves no trace.
  Layer<TestType> spoilt = zero;
  for (const Index row : {2, 3, 4, 8, 9}) {
    const auto poison = [](Index) { return static_cast<TestType>(not_a_number); };
    spoilt.k.set_row(0, 0, row, poison);
    spoilt.v.set_row(0, 0, row, poison);
  }
  REQUIRE(same_bits(run(spoilt, AlibiBias{ln2}), got));
  const MeanMask mask(draw_hashes(LaplaceKernel{2}, 8, 5));
  REQUIRE(same_bits(run(spoilt, mask), run(zero, mask)));
}

TEMPLATE_LIST_TEST_CASE("case: NaN behind masks and blocks", "", Scalars) {
  const auto [q, k, v] = normal_inputs<TestType>(60, 90, 4, 3, 83);
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{3}, 8, 6);
  const auto check = [&, &q = q, &k = k, &v = v](const auto& bias, const auto& run, const AttentionOptions& options) {
    const auto clean = run(q, k, v, options);
    const auto visible = visible_pairs(60, 90, bias, options);
    for (const Index key : {0, 29, 30, 55, 88, 89})
      for (const double thing : {not_a_number, infinity, 1e30}) {
        Matrix<TestType> bad_k = k, bad_v = v;
        bad_k.row(key).setConstant(static_cast<TestType>(thing));
        bad_v.row(key).setConstant(static_cast<TestType>(thing));
        const auto got = run(q, bad_k, bad_v, options);
        Index blind = 0;
        for (Index i = 0; i < 60; ++i) {
          if (visible(i, key) && bias.log_weight(30 + i, key) > -infinity) continue;
          ++blind;
          CAPTURE(key, thing, i);
          REQUIRE(same_numbers(got.values.row(i), clean.values.row(i)));
          REQUIRE(got.log_sum_exp[i] == clean.log_sum_exp[i]);
        }
        REQUIRE(blind > 0);
      }
  };
  for (const AttentionOptions& options : {AttentionOptions{.causal = true, .window_left = 12},
                                          AttentionOptions{.window_left = 2, .window_right = 7}}) {
    const auto exact = [](const auto& bias) {
      return [&bias](const auto& a, const auto& b, const auto& c, const AttentionOptions& o) { return attention(a, b, c, bias, o); };
    };
    const AlibiBias slope{0.2};
    const FixedBlocks blocks{6};
    const MeanMask mask(hashes);
    check(slope, exact(slope), options);
    check(blocks, exact(blocks), options);
    check(mask, exact(mask), options);
    for (const Merge how : {Merge::ratio, Merge::mean})
      check(mask, [&](const auto& a, const auto& b, const auto& c, const AttentionOptions& o) {
        return blockwise_attention(a, b, c, hashes, o, how);
      }, options);
  }
  // Without any mask but the blocks themselves.
  const FixedBlocks blocks{6};
  check(blocks, [&](const auto& a, const auto& b, const auto& c, const AttentionOptions& o) { return attention(a, b, c, blocks, o); }, {});
}

TEMPLATE_LIST_TEST_CASE("case: positions to 2^40 and beyond", "", Scalars) {
  for (const Index offset : {Index{1} << 40, (Index{1} << 51) + 1, -(Index{1} << 52)}) {
    CAPTURE(offset);
    require_rows(zero_score<TestType>(3, 3, AlibiBias{ln2}, {.causal = true, .key_offset = offset}),
                 Matrix<double>{{1, 0, 0}, {1, 2, 0}, {1, 2, 4}});
    require_rows(zero_score<TestType>(3, 3, AlibiBias{ln2, 2 * ln2}, {.key_offset = offset}),
                 Matrix<double>{{16, 4, 1}, {2, 4, 1}, {1, 2, 4}});
    const bool even = offset % 2 == 0;  // blocks of two begin at even positions
    require_rows(zero_score<TestType>(3, 3, FixedBlocks{2}, {.key_offset = offset}),
                 even ? Matrix<double>{{1, 1, 0}, {1, 1, 0}, {0, 0, 1}} : Matrix<double>{{1, 0, 0}, {0, 1, 1}, {0, 1, 1}});
    // A mask of weight 3 whose blocks of two begin at odd positions, and one of single positions.
    const MeanMask mask({{2, 1, 3}, {1, 0, 1}});
    require_rows(zero_score<TestType>(3, 3, mask, {.key_offset = offset}),
                 even ? Matrix<double>{{4, 0, 0}, {0, 4, 3}, {0, 3, 4}} : Matrix<double>{{4, 3, 0}, {3, 4, 0}, {0, 0, 4}});
  }
}

TEST_CASE("case: the random path tends to exact attention, the mean of outputs to something else") {
  const auto [q, k, v] = normal_inputs<double>(50, 50, 8, 4, 84);
  const AttentionOptions options{.causal = true};
  const auto exact = attention(q, k, v, AlibiBias{1.0 / 6}, options);
  const auto errors = [&, &q = q, &k = k, &v = v](Index samples) {
    const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{6}, samples, 8);
    return std::array{distance(attention(q, k, v, MeanMask(hashes), options).values, exact.values),
                      distance(blockwise_attention(q, k, v, hashes, options).values, exact.values),
                      distance(blockwise_attention(q, k, v, hashes, options, Merge::mean).values, exact.values)};
  };
  const auto few = errors(64), many = errors(4096);
  REQUIRE(many[0] < 0.01);
  REQUIRE(many[0] < few[0] / 8);
  REQUIRE(many[1] == Approx(many[0]).epsilon(1e-9));
  REQUIRE(many[2] > 0.1);
}

TEST_CASE("case: a mask that was moved away weighs nothing and is refused") {
  MeanMask mask({{2, 1}, {7, 3}});
  const MeanMask other = std::move(mask);
  const std::string message = "poslsh: hashes is an empty list; it must be at least one hash";
  REQUIRE_THROWS_WITH(zero_score<float>(3, 3, mask), message);
  REQUIRE_THROWS_WITH((poslsh::StreamingAttention<float, MeanMask>({mask}, 1, 4, 4)), message);
  REQUIRE(mask.support(3) == poslsh::KeyRange{3, 4});
  REQUIRE(mask.samples() == 0);
  REQUIRE_NOTHROW(zero_score<float>(3, 3, other));
}

}  // namespace contract_cases_test
