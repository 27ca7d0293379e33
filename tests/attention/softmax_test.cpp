// SPDX-License-Identifier: MIT
#include "poslsh/attention/softmax.hpp"

#include "poslsh/attention/attention.hpp"
#include "support/biases.hpp"
#include "support/catch.hpp"
#include "support/oracle.hpp"

#include <algorithm>
#include <numbers>
#include <vector>

namespace softmax_test {

using namespace poslsh::test;
using Catch::Matchers::ContainsSubstring;
using poslsh::attention;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::Index;
using poslsh::Matrix;
using poslsh::merge;
using poslsh::Vector;
using poslsh::detail::finish_row;
using poslsh::detail::FinishedRow;
using poslsh::detail::log_add;
using poslsh::detail::share;

TEMPLATE_LIST_TEST_CASE("Shards of the keys merge in any order into the full call", "", Scalars) {
  const Index queries = 150, keys = 300;
  const auto [q, k, v] = normal_inputs<TestType>(queries, keys, 8, 5, 71);
  const double unit = 20 * static_cast<double>(std::numeric_limits<TestType>::epsilon());
  for (int kind = 0; kind < bias_kinds; ++kind)
    for (const bool causal : {false, true}) {
      Dice dice(12);
      with_bias(kind, dice, [&, &q = q, &k = k, &v = v](const auto& bias, const char* name) {
        AttentionOptions options{.causal = causal, .key_offset = -20, .query_offset = 0, .sink = 1};
        const AttentionOutput<TestType> full = attention(q, k, v, bias, options);
        std::vector<AttentionOutput<TestType>> shards;
        Index begin = 0;
        for (const Index size : {1, 0, 119, 0, 180}) {  // the third one carries the sink; two are empty
          options.sink = size == 119 ? std::optional<double>(1) : std::nullopt;
          options.key_offset = -20 + begin;
          shards.push_back(attention(q, k.middleRows(begin, size), v.middleRows(begin, size), bias, options));
          begin += size;
        }
        std::vector<std::size_t> order{0, 1, 2, 3, 4};
        do {
          AttentionOutput<TestType> merged = shards[order[0]];
          for (std::size_t s = 1; s < order.size(); ++s) merged = merge(merged, shards[order[s]]);
          CAPTURE(name, causal, order);
          REQUIRE(distance(merged.values, full.values) < unit);
          REQUIRE(distance(merged.log_sum_exp, full.log_sum_exp) < unit);
        } while (std::next_permutation(order.begin(), order.end()));
        const auto left = merge(shards[0], merge(shards[2], shards[4]));  // and in any grouping
        REQUIRE(distance(left.values, full.values) < unit);
      });
    }
}

TEMPLATE_LIST_TEST_CASE("An empty shard changes no bit, two of them stay empty", "", Scalars) {
  const auto [q, k, v] = normal_inputs<TestType>(9, 7, 4, 3, 72);
  const AttentionOutput<TestType> full = attention(q, k, v, poslsh::NoBias{});
  const AttentionOutput<TestType> empty = attention(q, k.topRows(0), v.topRows(0), poslsh::NoBias{});
  REQUIRE(same_bits(merge(full, empty), full));
  REQUIRE(same_bits(merge(empty, full), full));
  REQUIRE(same_bits(merge(empty, empty), empty));
}

TEMPLATE_LIST_TEST_CASE("Shards of very different mass merge without overflow", "", Scalars) {
  const Matrix<TestType> one = Matrix<TestType>::Ones(1, 2), two = Matrix<TestType>::Constant(1, 2, 2);
  const auto at = [](const Matrix<TestType>& values, double lse) {
    return AttentionOutput<TestType>{values, Vector<double>::Constant(1, lse)};
  };
  const auto merged = merge(at(one, 1e30), at(two, -1e30));
  REQUIRE(same_bits(merged, at(one, 1e30)));
  const auto close = merge(at(one, 1e4), at(two, 1e4 + std::log(3)));
  REQUIRE(close.values(0, 1) == Approx(1.75));
  REQUIRE(close.log_sum_exp[0] == Approx(1e4 + std::log(4)));
}

TEMPLATE_LIST_TEST_CASE("A shard of scores -inf only has no part in the merge", "", Scalars) {
  const auto [q0, k, v] = normal_inputs<TestType>(4, 6, 1, 3, 73);
  const Matrix<TestType> q = q0.cwiseAbs(),
                         low = Matrix<TestType>::Constant(6, 1, static_cast<TestType>(-infinity));
  const AttentionOutput<TestType> seen = attention(q, k, v, poslsh::NoBias{});
  const AttentionOutput<TestType> nothing = attention(q, low, v, poslsh::NoBias{});
  REQUIRE(same_bits(merge(seen, nothing), seen));
  REQUIRE(same_bits(merge(nothing, seen), seen));
}

TEST_CASE("Outputs of different shapes do not merge") {
  const auto output = [](Index rows, Index cols, Index size) {
    return AttentionOutput<float>{Matrix<float>::Zero(rows, cols), Vector<double>::Zero(size)};
  };
  const auto a = output(3, 2, 3);
  REQUIRE_NOTHROW(static_cast<void>(merge(a, output(3, 2, 3))));
  REQUIRE_THROWS_AS(static_cast<void>(merge(a, output(4, 2, 4))), poslsh::Error);
  REQUIRE_THROWS_WITH(static_cast<void>(merge(a, output(4, 2, 4))),
                      ContainsSubstring("rows of the second output is 4"));
  REQUIRE_THROWS_WITH(static_cast<void>(merge(a, output(3, 1, 3))),
                      ContainsSubstring("columns of the second output is 1"));
  REQUIRE_THROWS_WITH(static_cast<void>(merge(a, output(3, 2, 2))),
                      ContainsSubstring("log_sum_exp of the second output is 2"));
  REQUIRE_THROWS_WITH(static_cast<void>(merge(output(3, 2, 4), a)),
                      ContainsSubstring("log_sum_exp of the first output is 4"));
}

TEST_CASE("A row closes with its sink in the denominator") {
  struct Row {
    double maximum, sum, sink;
  };
  for (const Row& row : {Row{0, 1, -infinity}, Row{2, 3, 0}, Row{2, 3, 2}, Row{2, 3, 100}, Row{-1e4, 2, 0},
                         Row{1e4, 2, 0}, Row{-5, 1.5, -1e308}, Row{3, 1, 1e300}}) {
    const FinishedRow finished = finish_row({row.maximum, row.sum, false}, row.sink);
    const long double high = std::max(row.maximum, row.sink);
    const long double total =
        row.sum * std::exp(row.maximum - high) + (row.sink == -infinity ? 0 : std::exp(row.sink - high));
    CAPTURE(row.maximum, row.sum, row.sink);
    REQUIRE(finished.factor ==
            Approx(static_cast<double>(std::exp(row.maximum - high) / total)).epsilon(1e-14));
    REQUIRE(finished.log_sum_exp == Approx(static_cast<double>(high + std::log(total))).epsilon(1e-14));
  }
  for (const double sink : {-infinity, 0.0, 100.0, 1e300}) {
    const FinishedRow empty = finish_row({-infinity, 0, true}, sink);
    REQUIRE(empty.factor == 0);
    REQUIRE(empty.log_sum_exp == sink);
  }
}

TEST_CASE("Sums and shares of log-sum-exps know about empty parts") {
  REQUIRE(log_add(0, 0) == Approx(std::numbers::ln2));
  REQUIRE(log_add(1000, 0) == 1000);
  REQUIRE(log_add(-800, -801) == Approx(-800 + std::log1p(std::exp(-1.0))));
  REQUIRE(log_add(-infinity, 3) == 3);
  REQUIRE(log_add(3, -infinity) == 3);
  REQUIRE(log_add(-infinity, -infinity) == -infinity);
  REQUIRE(std::isnan(log_add(not_a_number, 1)));
  REQUIRE(std::isnan(log_add(1, not_a_number)));
  REQUIRE(share(-infinity, -infinity) == 0);
  REQUIRE(share(-infinity, 2) == 0);
  REQUIRE(share(2, 2) == 1);
  REQUIRE(share(0, std::numbers::ln2) == Approx(0.5));
}

}  // namespace softmax_test
