// SPDX-License-Identifier: MIT

// What attention() promises beyond its definition: masked keys leave no trace, extreme scores, equal bits.

#include "poslsh/attention/attention.hpp"
#include "support/biases.hpp"
#include "support/catch.hpp"
#include "support/oracle.hpp"

#include <optional>
#include <thread>
#include <vector>

namespace attention_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::attention;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::Index;
using poslsh::KeyRange;
using poslsh::Matrix;
using poslsh::NoBias;
using poslsh::Vector;

namespace {

struct MaskCase {
  int kind;  ///< of the bias
  AttentionOptions options;
};

/// Every way to hide a key: causality, windows, and the supports of blocks, masks and users' biases.
const std::vector<MaskCase> mask_cases = {
    {0, {.causal = true}},
    {1, {.causal = true, .softcap = 3}},
    {1, {.window_left = 60, .window_right = 0}},
    {0, {.window_left = 5, .window_right = 130}},
    {1, {.query_offset = -100, .window_right = 3}},
    {2, {.causal = true}},
    {2, {}},
    {3, {.causal = true}},
    {3, {}},
    {4, {}},
    {4, {.causal = true, .window_left = 33}},
    {5, {}},
    {5, {.causal = true}},
};

template <class Check>
void with_masked(const MaskCase& mask, Check&& check) {
  Dice dice(static_cast<std::uint64_t>(mask.kind) + 5);
  with_bias(mask.kind, dice, check);
}

/// The rows of `got` that see the key must be NaN in `spoilt` features, or may be anything if poison is not
/// NaN; the others must have the bits of `clean`. Returns what is wrong, or nothing.
template <class T, class Visible>
std::string traces(const AttentionOutput<T>& got, const AttentionOutput<T>& clean, const Visible& sees_key,
                   bool must_spoil, Index first_spoilt, Index spoilt) {
  for (Index i = 0; i < got.values.rows(); ++i) {
    if (!sees_key[i]) {
      if (!same_numbers(got.values.row(i), clean.values.row(i)) || got.log_sum_exp[i] != clean.log_sum_exp[i])
        return "row " + std::to_string(i) + " does not see the key, but changed";
    } else if (must_spoil && !got.values.row(i).segment(first_spoilt, spoilt).array().isNaN().all()) {
      return "row " + std::to_string(i) + " sees the NaN, but does not show it";
    }
  }
  return "";
}

/// An option set and bias for tests of equal bits: everything at once.
const AttentionOptions busy{.causal = true, .key_offset = 12, .window_left = 700, .softcap = 20, .sink = 0.5};

}  // namespace

// --- Masks -------------------------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE(
    "NaN, infinity and 1e30 at a key change only the rows that see it; NaN changes all of these", "", Scalars) {
  const Index queries = 230, keys = 430, features = 20;
  const double huge = 1e30;
  for (const MaskCase& mask : mask_cases)
    with_masked(mask, [&](const auto& bias, const char* name) {
      const auto [q, k, v] = normal_inputs<TestType>(queries, keys, 16, features, 4);
      const AttentionOutput<TestType> clean = attention(q, k, v, bias, mask.options);
      const auto visible = visible_pairs(queries, keys, bias, mask.options);
      for (const Index key : {0, 1, 95, 96, 199, 200, 250, 301, 383, 384, 428, 429})
        for (const double poison : {not_a_number, infinity, -infinity, huge}) {
          CAPTURE(name, key, poison, mask.options.causal);
          Matrix<TestType> bad_k = k, bad_v = v;
          bad_k.row(key).setConstant(static_cast<TestType>(poison));
          bad_v.row(key).setConstant(static_cast<TestType>(poison));
          const bool nan = poison != poison;
          const AttentionOptions& options = mask.options;
          const Eigen::Array<bool, Eigen::Dynamic, 1> rows = visible.col(key);
          const auto check = [&, &q = q](const Matrix<TestType>& some_k, const Matrix<TestType>& some_v,
                                         Index first, Index count) {
            const std::string wrong =
                traces(attention(q, some_k, some_v, bias, options), clean, rows, nan, first, count);
            if (wrong != "") FAIL_CHECK(wrong);
          };
          check(bad_k, v, 0, features);
          check(k, bad_v, 0, features);
          check(bad_k, bad_v, 0, features);
          Matrix<TestType> one_feature = v;
          one_feature(key, 17) = static_cast<TestType>(poison);
          check(k, one_feature, 17, 1);
        }
      SUCCEED();
    });
}

TEMPLATE_LIST_TEST_CASE("NaN in one query spoils its own row only", "", Scalars) {
  auto [q, k, v] = normal_inputs<TestType>(200, 300, 8, 5, 9);
  const AttentionOutput<TestType> clean = attention(q, k, v, AlibiBias{0.1}, {.causal = true});
  q(77, 3) = static_cast<TestType>(not_a_number);
  const AttentionOutput<TestType> got = attention(q, k, v, AlibiBias{0.1}, {.causal = true});
  for (Index i = 0; i < 200; ++i)
    if (i != 77) REQUIRE(same_numbers(got.values.row(i), clean.values.row(i)));
  REQUIRE(got.values.row(77).array().isNaN().all());
  REQUIRE(std::isnan(got.log_sum_exp[77]));
}

TEMPLATE_LIST_TEST_CASE("A tolerance keeps its promise beside NaN behind a mask", "", Scalars) {
  const auto [q, k, v] = normal_inputs<TestType>(800, 800, 8, 3, 14);
  const AttentionOptions options{.window_left = 200, .window_right = 0, .tolerance = 1e-6};
  const AttentionOutput<TestType> clean = attention(
      q.topRows(400), k, v, AlibiBias{0.5}, {.query_offset = 0, .window_left = 200, .window_right = 0});
  Matrix<TestType> bad_k = k, bad_v = v;
  bad_k.bottomRows(400).setConstant(static_cast<TestType>(not_a_number));
  bad_v.bottomRows(400).setConstant(static_cast<TestType>(not_a_number));
  const AttentionOutput<TestType> got = attention(q, bad_k, bad_v, AlibiBias{0.5}, options);
  REQUIRE(distance(got.values.topRows(400), clean.values) < 1e-5);
  REQUIRE(got.values.bottomRows(400).array().isNaN().all());
}

TEMPLATE_LIST_TEST_CASE("A bias of the offset need not see its own position", "", Scalars) {
  const auto [q, k, v] = normal_inputs<TestType>(200, 300, 8, 5, 15);
  for (const Index query_offset : {Index{-30}, Index{0}, Index{100}, Index{4000}}) {
    const AttentionOptions options{.query_offset = query_offset};
    CAPTURE(query_offset);
    REQUIRE(fault(attention(q, k, v, PastBias{0.1}, options), q, k, v, PastBias{0.1}, options) == "");
  }
}

TEMPLATE_LIST_TEST_CASE("A cap beyond the scalar's range still caps", "", Scalars) {
  const auto [q, k, v] = normal_inputs<TestType>(20, 30, 8, 5, 16);
  for (const double cap : {1e-300, 1e-50, 1e-40, 1e30, 1e39, 1e300}) {
    const AttentionOutput<TestType> got = attention(q, k, v, NoBias{}, {.softcap = cap});
    CAPTURE(cap);
    CHECK(distance(got.values,
                   attention(q, k, v, NoBias{}, cap < 1 ? AttentionOptions{.scale = 0} : AttentionOptions{})
                       .values) < 1e-5);
  }
}

// --- Extreme scores ----------------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("Scores of +-1e4 and +-1e30 neither overflow nor vanish", "", Scalars) {
  const Index n = 500;
  const auto [q0, k0, v] = normal_inputs<TestType>(60, n, 1, 4, 31);
  const AttentionOptions options{.scale = 1e4};
  REQUIRE(fault(attention(q0, k0, v, NoBias{}, options), q0, k0, v, NoBias{}, options) == "");
  // Scores so far apart leave the largest alone: its value comes out bit by bit.
  const Matrix<TestType> q = q0 * TestType(1e15), k = k0 * TestType(1e15);
  const AttentionOutput<TestType> got = attention(q, k, v, AlibiBias{2}, {.scale = 1});
  for (Index i = 0; i < q.rows(); ++i) {
    Index best = 0;
    const TestType score = (k * q(i, 0)).col(0).maxCoeff(&best);
    REQUIRE(same_numbers(got.values.row(i), v.row(best)));
    REQUIRE(got.log_sum_exp[i] == Approx(static_cast<double>(score)));
  }
}

TEMPLATE_LIST_TEST_CASE("The largest score may come anywhere in the row", "", Scalars) {
  const Index n = 900;
  Matrix<TestType> q = Matrix<TestType>::Ones(1, 1), k(n, 1);
  const Matrix<TestType> v = normal_matrix<TestType>(n, 3, 8);
  for (const double step : {0.01, 0.5, -0.5, 3.0})
    for (const Index query_offset : {Index{0}, n / 2, n - 1}) {  // keys are visited from the query outwards
      for (Index j = 0; j < n; ++j) k(j, 0) = static_cast<TestType>(step * static_cast<double>(j));
      const AttentionOptions options{.scale = 1, .query_offset = query_offset};
      CAPTURE(step, query_offset);
      REQUIRE(fault(attention(q, k, v, NoBias{}, options), q, k, v, NoBias{}, options) == "");
    }
  for (const Index largest : {Index{0}, Index{383}, Index{384}, n - 1}) {
    k.setConstant(-50);
    k(largest, 0) = 50;
    const AttentionOutput<TestType> got = attention(q, k, v, NoBias{}, {.scale = 1});
    CAPTURE(largest);
    REQUIRE(distance(got.values, v.row(largest)) < 1e-12);
    REQUIRE(got.log_sum_exp[0] == 50);
  }
}

TEMPLATE_LIST_TEST_CASE("Very negative scores are as good as any", "", Scalars) {
  const Index n = 400;
  const Matrix<TestType> q = Matrix<TestType>::Ones(9, 1),
                         k = Matrix<TestType>::Constant(n, 1, TestType(-1e30));
  const Matrix<TestType> v = normal_matrix<TestType>(n, 3, 8);
  const AttentionOutput<TestType> got = attention(q, k, v, NoBias{}, {.scale = 1});
  for (Index i = 0; i < q.rows(); ++i) REQUIRE(distance(got.values.row(i), v.colwise().mean()) < 1e-6);
  REQUIRE(got.log_sum_exp[3] == Approx(-1e30));
}

TEMPLATE_LIST_TEST_CASE("A score of -inf has weight 0; where all are, the output is 0/0", "", Scalars) {
  const Index n = 800;
  const auto [q, k0, v] = normal_inputs<TestType>(20, n, 1, 3, 41);
  const Matrix<TestType> ones = Matrix<TestType>::Ones(20, 1);
  for (const KeyRange kept : {KeyRange{0, 5}, KeyRange{390, 400}, KeyRange{795, 800}}) {
    Matrix<TestType> k = Matrix<TestType>::Constant(n, 1, static_cast<TestType>(-infinity));
    k.middleRows(kept.begin, kept.size()) = k0.middleRows(kept.begin, kept.size());
    const Matrix<TestType> part_k = k0.middleRows(kept.begin, kept.size());
    const Matrix<TestType> part_v = v.middleRows(kept.begin, kept.size());
    CAPTURE(kept.begin);
    REQUIRE(fault(attention(ones, k, v, NoBias{}), ones, part_k, part_v, NoBias{}) == "");
  }
  const Matrix<TestType> k = Matrix<TestType>::Constant(n, 1, static_cast<TestType>(-infinity));
  const AttentionOutput<TestType> nothing = attention(ones, k, v, NoBias{});
  REQUIRE(nothing.values.array().isNaN().all());
  REQUIRE((nothing.log_sum_exp.array() == -infinity).all());
  const AttentionOutput<TestType> sunk = attention(ones, k, v, NoBias{}, {.sink = 2});
  REQUIRE((sunk.values.array() == 0).all());
  REQUIRE((sunk.log_sum_exp.array() == 2).all());
}

// --- Equal bits --------------------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("Any number of threads gives the same bits", "", Scalars) {
  const auto [q, k, v] = normal_inputs<TestType>(700, 900, 16, 17, 51);
  for (int kind = 0; kind < bias_kinds; ++kind)
    for (const double tolerance : {0.0, 1e-5}) {
      Dice dice(6);
      with_bias(kind, dice, [&, &q = q, &k = k, &v = v](const auto& bias, const char* name) {
        AttentionOptions options = busy;
        options.tolerance = tolerance;
        const AttentionOutput<TestType> one = attention(q, k, v, bias, options);
        for (const int threads : {2, 3, 8}) {
          options.threads = threads;
          CAPTURE(name, threads);
          REQUIRE(same_bits(attention(q, k, v, bias, options), one));
        }
      });
    }
}

TEMPLATE_LIST_TEST_CASE("Calls from four threads at once give the same bits", "", Scalars) {
  const auto [q, k, v] = normal_inputs<TestType>(400, 400, 16, 16, 52);
  const int eigen_threads = Eigen::nbThreads();
  for (int kind = 0; kind < bias_kinds; ++kind) {
    Dice dice(7);
    with_bias(kind, dice, [&, &q = q, &k = k, &v = v](const auto& bias, const char* name) {
      AttentionOptions options = busy;
      const AttentionOutput<TestType> alone = attention(q, k, v, bias, options);
      options.threads = 2;
      std::vector<AttentionOutput<TestType>> results(4);
      {
        std::vector<std::jthread> callers;
        for (AttentionOutput<TestType>& result : results)
          callers.emplace_back([&] { result = attention(q, k, v, bias, options); });
      }
      CAPTURE(name);
      for (const AttentionOutput<TestType>& result : results) REQUIRE(same_bits(result, alone));
    });
  }
  REQUIRE(Eigen::nbThreads() == eigen_threads);
}

TEMPLATE_LIST_TEST_CASE("Biases of the distance: adding a constant to both offsets changes no bit", "", Scalars) {
  const auto [q, k, v] = normal_inputs<TestType>(200, 450, 8, 8, 53);
  for (const int kind : {0, 1, 5}) {
    Dice dice(8);
    with_bias(kind, dice, [&, &q = q, &k = k, &v = v](const auto& bias, const char* name) {
      for (const std::optional<Index> start : {std::optional<Index>{}, std::optional<Index>{100}}) {
        AttentionOptions options{.causal = true, .query_offset = start, .window_left = 300};
        const AttentionOutput<TestType> base = attention(q, k, v, bias, options);
        for (const Index shift : {Index{1}, Index{-12345}, Index{1} << 40, -(Index{1} << 51)}) {
          options.key_offset = shift;
          if (start) options.query_offset = *start + shift;
          CAPTURE(name, shift);
          REQUIRE(same_bits(attention(q, k, v, bias, options), base));
        }
      }
    });
  }
}

TEMPLATE_LIST_TEST_CASE("Chunks of queries give the rows of one long call", "", Scalars) {
  const auto [q, k, v] = normal_inputs<TestType>(500, 500, 8, 8, 54);
  for (int kind = 0; kind < bias_kinds; ++kind) {
    Dice dice(9);
    with_bias(kind, dice, [&, &q = q, &k = k, &v = v](const auto& bias, const char* name) {
      const AttentionOutput<TestType> whole = attention(q, k, v, bias, {.causal = true});
      const double unit = 20 * static_cast<double>(std::numeric_limits<TestType>::epsilon());
      Index begin = 0;
      for (const Index rows : {1, 6, 93, 150, 250}) {
        const auto chunk = attention(q.middleRows(begin, rows), k.topRows(begin + rows),
                                     v.topRows(begin + rows), bias, {.causal = true});
        CAPTURE(name, begin);
        REQUIRE(distance(chunk.values, whole.values.middleRows(begin, rows)) < unit);
        REQUIRE(distance(chunk.log_sum_exp, whole.log_sum_exp.segment(begin, rows)) < unit);
        begin += rows;
      }
    });
  }
}

TEST_CASE("The number of visited pairs is that of the visible ones, up to whole register blocks") {
  const auto [q, k, v] = normal_inputs<float>(960, 960, 4, 4, 55);
  Matrix<float> values(960, 4);
  Vector<double> lse(960);
  const auto visited = [&, &q = q, &k = k, &v = v](const AttentionOptions& options) {
    return attention_into(q, k, v, NoBias{}, options, values, lse);
  };
  const Index n = 960, triangle = n * (n + 1) / 2, band = 11 * n - 55;
  REQUIRE(visited({}) == n * n);
  REQUIRE(visited({.causal = true}) >= triangle);
  REQUIRE(visited({.causal = true}) < triangle + 40 * n);
  REQUIRE(visited({.causal = true, .window_left = 10}) >= band);
  REQUIRE(visited({.causal = true, .window_left = 10}) < band + 50 * n);
  REQUIRE(visited({.query_offset = -2000, .window_right = 3}) == 0);
}

}  // namespace attention_test
