// SPDX-License-Identifier: MIT

// Cases from the field: what users of ALiBi attention reported in public trackers, restated as small checks.
//
// The usual set-up: Q = 0 and V = identity, so that an output row is the row of weights; slope ln 2, so that
// a step of distance halves the weight.

#include "poslsh/attention/blockwise.hpp"
#include "poslsh/position/alibi.hpp"
#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random_matrix.hpp"

#include <cstdlib>
#include <numbers>
#include <vector>

namespace cases_test {

using namespace poslsh::test;
using poslsh::alibi_slopes;
using poslsh::AlibiBias;
using poslsh::attention;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::blockwise_attention;
using poslsh::draw_hashes;
using poslsh::Index;
using poslsh::LaplaceKernel;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::Merge;
using poslsh::NoBias;
using poslsh::PositionHash;
using poslsh::Vector;

namespace {

constexpr double ln2 = std::numbers::ln2;
using Rows = std::vector<std::vector<double>>;

template <class T>
constexpr double tolerance = std::is_same_v<T, float> ? 1e-5 : 1e-12;

template <class T>
AttentionOutput<T> zero_score(Index queries, Index keys, const AlibiBias& bias,
                              const AttentionOptions& options = {}) {
  return attention(Matrix<T>::Zero(queries, 2), Matrix<T>::Zero(keys, 2), Matrix<T>::Identity(keys, keys),
                   bias, options);
}

/// Each row must be these numbers over their sum, or over the given total; a missing tail is zeros.
template <class T>
void require_rows(const AttentionOutput<T>& got, const Rows& expected, double total = 0) {
  REQUIRE(got.values.rows() == static_cast<Index>(expected.size()));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    double sum = total;
    if (total == 0)
      for (const double weight : expected[i]) sum += weight;
    for (Index j = 0; j < got.values.cols(); ++j) {
      const std::size_t column = static_cast<std::size_t>(j);
      const double weight = column < expected[i].size() ? expected[i][column] / sum : 0;
      CAPTURE(i, j);
      REQUIRE(static_cast<double>(got.values(static_cast<Index>(i), j)) ==
              Approx(weight).margin(tolerance<T>).epsilon(0));
    }
  }
}

void require_exponents(const std::vector<double>& slopes, const std::vector<double>& exponents) {
  REQUIRE(slopes.size() == exponents.size());
  for (std::size_t h = 0; h < slopes.size(); ++h)
    REQUIRE(slopes[h] == Approx(std::exp2(exponents[h])).epsilon(1e-15));
}

/// The keys and queries of a padded sequence as a single head can express it: the keys that are no padding,
/// at the positions they have without it; queries for every row, those of padding before or behind.
template <class T>
struct Padded {
  Matrix<T> q, k, v;
  Index begin, real;
  [[nodiscard]] AttentionOptions options(bool causal) const {
    return {.causal = causal, .query_offset = -begin};
  }
  [[nodiscard]] auto keys() const { return k.middleRows(begin, real); }
  [[nodiscard]] auto values() const { return v.middleRows(begin, real); }
};

template <class T>
Padded<T> pad(const Inputs<T>& alone, Index before, Index behind) {
  const auto padded = [&](const Matrix<T>& rows) {
    Matrix<T> all = Matrix<T>::Constant(before + rows.rows() + behind, rows.cols(), T(1e30));
    all.middleRows(before, rows.rows()) = rows;
    return all;
  };
  return {padded(alone.q), padded(alone.k), padded(alone.v), before, alone.k.rows()};
}

}  // namespace

TEST_CASE("case: slopes") {
  require_exponents(alibi_slopes(1), {-8});
  require_exponents(alibi_slopes(3), {-4, -8, -2});
  require_exponents(alibi_slopes(12), {-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5});
  std::vector<double> forty;
  for (int k = 1; k <= 32; ++k) forty.push_back(-k / 4.0);
  for (int j = 0; j <= 7; ++j) forty.push_back(-(2 * j + 1) / 8.0);
  require_exponents(alibi_slopes(40), forty);
  require_exponents(alibi_slopes(8, 16), {-2, -4, -6, -8, -10, -12, -14, -16});
}

TEMPLATE_LIST_TEST_CASE("case: sign", "", Scalars) {
  require_rows(zero_score<TestType>(4, 4, {ln2}, {.causal = true}), {{1}, {1, 2}, {1, 2, 4}, {1, 2, 4, 8}});
}

TEMPLATE_LIST_TEST_CASE("case: decode row", "", Scalars) {
  for (const auto& [slope, row] :
       {std::pair{ln2, Rows{{1, 2, 4, 8}}}, std::pair{2 * ln2, Rows{{1, 4, 16, 64}}}}) {
    const auto one = zero_score<TestType>(1, 4, {slope}, {.causal = true});
    require_rows(one, row);
    require_rows(zero_score<TestType>(1, 4, {slope}), row);
    const auto full = zero_score<TestType>(4, 4, {slope}, {.causal = true});
    REQUIRE(distance(one.values, full.values.bottomRows(1)) < tolerance<TestType>);
    REQUIRE(one.log_sum_exp[0] == Approx(full.log_sum_exp[3]));
  }
}

TEMPLATE_LIST_TEST_CASE("case: more queries than keys", "", Scalars) {
  const auto got = zero_score<TestType>(4, 2, {ln2}, {.causal = true});
  require_rows(got, {{}, {}, {1, 0}, {1, 2}});
  REQUIRE((got.values.topRows(2).array() == 0).all());
  REQUIRE(got.log_sum_exp[0] == -infinity);
  REQUIRE(got.log_sum_exp[1] == -infinity);
  REQUIRE(got.log_sum_exp[2] == Approx(0).margin(tolerance<TestType>));

  const auto no_keys =
      attention(Matrix<TestType>::Ones(3, 2), Matrix<TestType>(0, 2), Matrix<TestType>(0, 5), AlibiBias{ln2});
  REQUIRE(same_numbers(no_keys.values, Matrix<TestType>::Zero(3, 5)));
  REQUIRE(same_numbers(no_keys.log_sum_exp, Vector<double>::Constant(3, -infinity)));
  const auto no_queries = zero_score<TestType>(0, 4, {ln2}, {.causal = true});
  REQUIRE(no_queries.values.rows() == 0);
  REQUIRE(no_queries.values.cols() == 4);
  REQUIRE(no_queries.log_sum_exp.size() == 0);
}

TEMPLATE_LIST_TEST_CASE("case: symmetric", "", Scalars) {
  require_rows(zero_score<TestType>(3, 3, {ln2}), {{4, 2, 1}, {1, 2, 1}, {1, 2, 4}});
  require_rows(zero_score<TestType>(2, 4, {ln2}), {{1, 2, 4, 2}, {1, 2, 4, 8}});
  require_rows(zero_score<TestType>(3, 3, {ln2, 2 * ln2}), {{16, 4, 1}, {2, 4, 1}, {1, 2, 4}});
}

TEMPLATE_LIST_TEST_CASE("case: padding", "", Scalars) {
  const Inputs<TestType> alone = normal_inputs<TestType>(5, 5, 3, 2, 91);
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{2}, 16, 1);
  struct Pads {
    Index before, behind;
  };
  for (const Pads& pads : {Pads{3, 0}, Pads{0, 3}, Pads{2, 1}})
    for (const bool causal : {true, false}) {
      const Padded<TestType> padded = pad(alone, pads.before, pads.behind);
      const auto check = [&](const auto& attend) {
        const AttentionOutput<TestType> expected =
            attend(alone.q, alone.k, alone.v, AttentionOptions{.causal = causal});
        const AttentionOutput<TestType> got =
            attend(padded.q, padded.keys(), padded.values(), padded.options(causal));
        CAPTURE(pads.before, pads.behind, causal);
        REQUIRE(distance(got.values.middleRows(padded.begin, 5), expected.values) < tolerance<TestType>);
        REQUIRE(distance(got.log_sum_exp.segment(padded.begin, 5), expected.log_sum_exp) <
                tolerance<TestType>);
      };
      check([](const auto& q, const auto& k, const auto& v, const AttentionOptions& options) {
        return attention(q, k, v, AlibiBias{0.5}, options);
      });
      check([&](const auto& q, const auto& k, const auto& v, const AttentionOptions& options) {
        return attention(q, k, v, MeanMask(hashes), options);
      });
      for (const Merge merge : {Merge::ratio, Merge::mean})
        check([&](const auto& q, const auto& k, const auto& v, const AttentionOptions& options) {
          return blockwise_attention(q, k, v, hashes, options, merge);
        });
    }
}

TEMPLATE_LIST_TEST_CASE("case: fully masked", "", Scalars) {
  const auto [q, k, v] = normal_inputs<TestType>(4, 6, 3, 2, 92);
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{2}, 8, 1);
  const auto require_empty = [](const AttentionOutput<TestType>& got) {
    REQUIRE(same_numbers(got.values, Matrix<TestType>::Zero(4, 2)));
    REQUIRE(same_numbers(got.log_sum_exp, Vector<double>::Constant(4, -infinity)));
  };
  for (const AttentionOptions& options : {AttentionOptions{.causal = true, .query_offset = -4},
                                          AttentionOptions{.query_offset = 100, .window_left = 20},
                                          AttentionOptions{.query_offset = -100, .window_right = 20}}) {
    require_empty(attention(q, k, v, AlibiBias{0.5}, options));
    require_empty(attention(q, k, v, MeanMask(hashes), options));
    require_empty(blockwise_attention(q, k, v, hashes, options));
    require_empty(blockwise_attention(q, k, v, hashes, options, Merge::mean));
  }
  require_empty(attention(q, k, v, poslsh::FixedBlocks{8}, {.query_offset = 8}));
  require_empty(attention(q, k.topRows(0), v.topRows(0), AlibiBias{0.5}));
}

TEMPLATE_LIST_TEST_CASE("case: head slices", "", Scalars) {
  // [token][head][feature]: all 16 heads, and heads 8 to 15 alone.
  const Index n = 120, heads = 16, d = 5;
  const std::vector<double> slopes = alibi_slopes(heads);
  const auto [q, k, v] = normal_inputs<TestType>(n, n, heads * d, heads * d, 93);
  const Matrix<TestType> half_q = q.rightCols(8 * d), half_k = k.rightCols(8 * d),
                         half_v = v.rightCols(8 * d);
  Matrix<TestType> full(n, heads * d), half(n, 8 * d);
  Vector<double> sums(n);
  const auto run = [&](const auto& some_q, const auto& some_k, const auto& some_v, Matrix<TestType>& out,
                       Index h, Index slope) {
    const auto part = [&](const auto& all) { return all.middleCols(h * d, d); };
    attention_into(part(some_q), part(some_k), part(some_v),
                   AlibiBias{slopes[static_cast<std::size_t>(slope)]}, {.causal = true},
                   out.middleCols(h * d, d), sums);
  };
  for (Index h = 0; h < heads; ++h) run(q, k, v, full, h, h);
  for (Index h = 0; h < 8; ++h) run(half_q, half_k, half_v, half, h, h + 8);
  REQUIRE(same_numbers(full.rightCols(8 * d), half));
}

TEMPLATE_LIST_TEST_CASE("case: grouped heads, odd sizes", "", Scalars) {
  const double expected[] = {0.4378235, 0.4843801, 0.4960938, 0.4990234};
  for (int head = 0; head < 4; ++head) {
    const auto got = zero_score<TestType>(2, 2, {std::exp2(-2.0 * (head + 1))}, {.causal = true});
    CAPTURE(head);
    REQUIRE(static_cast<double>(got.values(1, 0)) == Approx(expected[head]).margin(6e-8).epsilon(0));
  }
  for (const auto& [d, d_v] :
       {std::pair{3, 5}, std::pair{1, 1}, std::pair{80, 80}, std::pair{300, 300}, std::pair{300, 1}}) {
    const auto [q, k, v] = normal_inputs<TestType>(70, 70, d, d_v, 94);
    CAPTURE(d, d_v);
    REQUIRE(fault(attention(q, k, v, AlibiBias{0.25}, {.causal = true}), q, k, v, AlibiBias{0.25},
                  {.causal = true}) == "");
  }
}

TEMPLATE_LIST_TEST_CASE("case: shifted positions", "", Scalars) {
  const auto [q, k, v] = normal_inputs<TestType>(40, 100, 8, 4, 95);
  const AttentionOptions base{.causal = true, .query_offset = 60};
  const auto expected = attention(q, k, v, AlibiBias{0.1}, base);
  for (const Index shift : {Index{7}, Index{-100}, Index{1} << 20, Index{1} << 40, -(Index{1} << 50)})
    REQUIRE(same_bits(
        attention(q, k, v, AlibiBias{0.1}, {.causal = true, .key_offset = shift, .query_offset = 60 + shift}),
        expected));

  // A cache that dropped its first 30 keys, which a window of 20 cannot reach.
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{10}, 16, 2);
  const AttentionOptions whole{.causal = true, .query_offset = 60, .window_left = 20};
  const AttentionOptions dropped{.causal = true, .key_offset = 30, .query_offset = 60, .window_left = 20};
  const auto rest_k = k.bottomRows(70), rest_v = v.bottomRows(70);
  const auto check = [&](const AttentionOutput<TestType>& a, const AttentionOutput<TestType>& b) {
    REQUIRE(distance(a.values, b.values) < tolerance<TestType>);
    REQUIRE(distance(a.log_sum_exp, b.log_sum_exp) < tolerance<TestType>);
  };
  check(attention(q, rest_k, rest_v, AlibiBias{0.1}, dropped), attention(q, k, v, AlibiBias{0.1}, whole));
  check(attention(q, rest_k, rest_v, MeanMask(hashes), dropped), attention(q, k, v, MeanMask(hashes), whole));
  check(blockwise_attention(q, rest_k, rest_v, hashes, dropped), blockwise_attention(q, k, v, hashes, whole));
}

TEMPLATE_LIST_TEST_CASE("case: cap and scale", "", Scalars) {
  const Matrix<TestType> identity = Matrix<TestType>::Identity(4, 4);
  const Matrix<TestType> large = Matrix<TestType>::Constant(4, 1, TestType(100));
  const auto capped =
      attention(large, large, identity, AlibiBias{ln2}, {.scale = 1, .causal = true, .softcap = 1});
  require_rows(capped, {{1}, {1, 2}, {1, 2, 4}, {1, 2, 4, 8}});

  // q.k = (ln 2, 0) in row 1: the score makes up for one step of distance, unless it is scaled by 1/2.
  Matrix<TestType> q = Matrix<TestType>::Zero(2, 4), k = q;
  q(1, 0) = 1;
  k(0, 0) = static_cast<TestType>(ln2);
  const auto attend = [&](const AttentionOptions& options) {
    return attention(q, k, identity.topLeftCorner(2, 2), AlibiBias{ln2}, options);
  };
  require_rows(attend({.scale = 1, .causal = true}), {{1}, {1, 1}});
  require_rows(attend({.causal = true}), {{1}, {std::numbers::sqrt2, 2}});
  require_rows(attend({.scale = 0, .causal = true}), {{1}, {1, 2}});
}

TEMPLATE_LIST_TEST_CASE("case: sink", "", Scalars) {
  const auto with_sink = [](double sink) {
    return zero_score<TestType>(2, 2, {ln2}, {.causal = true, .sink = sink});
  };
  const auto got = with_sink(0);
  require_rows(got, {{0.5}, {0.2, 0.4}}, 1);
  REQUIRE(got.log_sum_exp[0] == Approx(ln2));
  REQUIRE(got.log_sum_exp[1] == Approx(std::log(2.5)));
  REQUIRE(same_bits(with_sink(-infinity), zero_score<TestType>(2, 2, {ln2}, {.causal = true})));
  const auto deep = with_sink(100);
  REQUIRE(deep.values.allFinite());
  REQUIRE(deep.log_sum_exp[1] == Approx(100));
  require_rows(deep, {{}, {}}, 1);
  const auto no_keys = attention(Matrix<TestType>::Ones(3, 2), Matrix<TestType>(0, 2), Matrix<TestType>(0, 5), AlibiBias{ln2},
                                 {.sink = 1.5});
  REQUIRE(same_numbers(no_keys.values, Matrix<TestType>::Zero(3, 5)));
  REQUIRE((no_keys.log_sum_exp.array() == 1.5).all());
  const auto hidden = zero_score<TestType>(4, 2, {ln2}, {.causal = true, .sink = 1.5});
  REQUIRE((hidden.values.topRows(2).array() == 0).all());
  REQUIRE(hidden.log_sum_exp[0] == 1.5);
}

TEST_CASE("case: seeds") {
  const Index n = 257;
  const auto [q, k, v] = normal_inputs<float>(n, n, 16, 16, 96);
  std::srand(5);
  const int next = std::rand();
  std::srand(5);
  const auto run = [&, &q = q, &k = k, &v = v](std::uint64_t seed, int threads) {
    const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{16}, 32, seed);
    const AttentionOptions options{.causal = true, .threads = threads};
    return std::pair{attention(q, k, v, MeanMask(hashes), options),
                     blockwise_attention(q, k, v, hashes, options)};
  };
  const auto [swept, blocks] = run(1, 1);
  for (const int threads : {1, 2, 4}) {
    const auto [again_swept, again_blocks] = run(1, threads);
    REQUIRE(same_bits(again_swept, swept));
    REQUIRE(same_bits(again_blocks, blocks));
  }
  const auto [other_swept, other_blocks] = run(2, 1);
  REQUIRE_FALSE(same_bits(other_swept, swept));
  REQUIRE_FALSE(same_bits(other_blocks, blocks));
  REQUIRE(std::rand() == next);
}

TEST_CASE("case: seeds, golden widths") {  // on every compiler and standard library
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{16}, 4, 1);
  REQUIRE(hashes.size() == 4);
  const double widths[] = {0x1.c76a2300920cep+4, 0x1.5862e0cade558p+5, 0x1.248f7b6f69983p+6, 0x1.6f260b05f2771p+6};
  for (std::size_t r = 0; r < 4; ++r) REQUIRE(hashes[r].width == widths[r]);
}

TEMPLATE_LIST_TEST_CASE("case: any length, any slope", "", Scalars) {
  const auto random = [](const auto& q, const auto& k, const auto& v, double sigma,
                         const AttentionOptions& options = {}) {
    return blockwise_attention(q, k, v, draw_hashes(LaplaceKernel{sigma}, 16, 3), options);
  };
  for (const Index n : {1, 2, 3, 5, 13, 127}) {
    const auto [q, k, v] = normal_inputs<TestType>(n, n, 4, 3, 97);
    CAPTURE(n);
    for (const bool causal : {true, false})
      for (const double sigma : {0.5, 8.0, 1e6}) {
        const MeanMask mask(draw_hashes(LaplaceKernel{sigma}, 16, 3));
        for (const auto& got : {random(q, k, v, sigma, {.causal = causal}), attention(q, k, v, mask, {.causal = causal})}) {
          REQUIRE(got.values.allFinite());
          REQUIRE(got.log_sum_exp.array().isFinite().all());
          const TestType slack = static_cast<TestType>(tolerance<TestType>);
          for (Index f = 0; f < 3; ++f) {
            REQUIRE(got.values.col(f).maxCoeff() <= v.col(f).maxCoeff() + slack);
            REQUIRE(got.values.col(f).minCoeff() >= v.col(f).minCoeff() - slack);
          }
        }
      }
    // 1 or 64 keys on the right that causality masks.
    for (const Index more : {1, 64}) {
      Matrix<TestType> long_k = Matrix<TestType>::Constant(n + more, 4, TestType(1e30)), long_v(n + more, 3);
      long_v.setConstant(static_cast<TestType>(not_a_number));
      long_k.topRows(n) = k;
      long_v.topRows(n) = v;
      const AttentionOptions options{.causal = true, .query_offset = 0};
      REQUIRE(same_bits(random(q, long_k, long_v, 8, options), random(q, k, v, 8, options)));
      const MeanMask mask(draw_hashes(LaplaceKernel{8}, 16, 3));
      REQUIRE(same_bits(attention(q, long_k, long_v, mask, options), attention(q, k, v, mask, options)));
    }
    REQUIRE(distance(random(q, k, v, 1e-3).values, v) < tolerance<TestType>);
    REQUIRE(distance(attention(q, k, v, MeanMask(draw_hashes(LaplaceKernel{1e-3}, 16, 3))).values, v) < tolerance<TestType>);
    const auto plain = attention(q, k, v, NoBias{});
    REQUIRE(distance(attention(q, k, v, AlibiBias{0}).values, plain.values) < tolerance<TestType>);
    REQUIRE(distance(blockwise_attention(q, k, v, std::vector<PositionHash>(1)).values, plain.values) <
            tolerance<TestType>);
    REQUIRE(distance(attention(q, k, v, MeanMask(std::vector<PositionHash>(3))).values, plain.values) < tolerance<TestType>);
    REQUIRE(fault(attention(q, k, v, AlibiBias{-0.1}), q, k, v, AlibiBias{-0.1}) == "");
  }
  REQUIRE_THROWS_AS(draw_hashes(LaplaceKernel{-8}, 16, 3), poslsh::Error);
  REQUIRE_THROWS_AS(draw_hashes(LaplaceKernel{infinity}, 16, 3), poslsh::Error);
  REQUIRE_THROWS_AS(draw_hashes(LaplaceKernel{0}, 16, 3), poslsh::Error);
}

TEMPLATE_LIST_TEST_CASE("case: layout and overlap", "", Scalars) {
  const Index n = 90, d = 8;
  const Matrix<TestType> buffer = normal_matrix<TestType>(n, 3 * d, 98);
  const Matrix<TestType> q = buffer.leftCols(d), k = buffer.middleCols(d, d), v = buffer.rightCols(d);
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{8}, 8, 3);
  const auto exact = attention(q, k, v, AlibiBias{0.1});
  const auto blocks = blockwise_attention(q, k, v, hashes);
  const auto check = [&](const auto& some_q, const auto& some_k, const auto& some_v) {
    REQUIRE(same_bits(attention(some_q, some_k, some_v, AlibiBias{0.1}), exact));
    REQUIRE(same_bits(blockwise_attention(some_q, some_k, some_v, hashes), blocks));
  };
  check(buffer.leftCols(d), buffer.middleCols(d, d), buffer.rightCols(d));
  const Eigen::Matrix<TestType, Eigen::Dynamic, Eigen::Dynamic> column_major = buffer;
  check(column_major.leftCols(d), column_major.middleCols(d, d), column_major.rightCols(d));
  Matrix<TestType> doubled(n, 6 * d);
  for (Index j = 0; j < 3 * d; ++j) {
    doubled.col(2 * j) = buffer.col(j);
    doubled.col(2 * j + 1).setConstant(static_cast<TestType>(not_a_number));
  }
  const auto every_second = [&](Index which) {
    return Eigen::Map<const Matrix<TestType>, 0, Eigen::Stride<Eigen::Dynamic, 2>>(
        doubled.data() + 2 * which * d, n, d, Eigen::Stride<Eigen::Dynamic, 2>(6 * d, 2));
  };
  check(every_second(0), every_second(1), every_second(2));
  for (const Index over : {0, 2}) {
    Matrix<TestType> own = buffer;
    Vector<double> sums(n);
    attention_into(own.leftCols(d), own.middleCols(d, d), own.rightCols(d), AlibiBias{0.1}, {},
                   own.middleCols(over * d, d), sums);
    REQUIRE(same_numbers(own.middleCols(over * d, d), exact.values));
  }
}

}  // namespace cases_test
