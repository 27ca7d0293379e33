// SPDX-License-Identifier: MIT

// Inputs stored in 16 bits: computed in float, so that what they cost is the rounding of the inputs and no more.

#include "poslsh/attention/blockwise.hpp"
#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random_matrix.hpp"

#include <type_traits>
#include <vector>

namespace low_precision_test {

using namespace poslsh::test;
using Eigen::bfloat16;
using Eigen::half;
using poslsh::AlibiBias;
using poslsh::attention;
using poslsh::attention_into;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::blockwise_attention;
using poslsh::draw_hashes;
using poslsh::FixedBlocks;
using poslsh::Index;
using poslsh::LaplaceKernel;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::Merge;
using poslsh::PositionHash;
using poslsh::Vector;

namespace {

/// Half of the distance between 1 and the next number: the largest relative error of a rounded normal number.
template <class S>
constexpr double unit_roundoff = std::is_same_v<S, half> ? 0x1p-11 : 0x1p-8;

/// The most that a rounded number below the normal ones errs by.
template <class S>
constexpr double smallest_error = std::is_same_v<S, half> ? 0x1p-25 : 0x1p-134;

/// One head as given, as stored, and what is stored in float.
template <class S>
struct Stored {
  Inputs<float> given;
  Matrix<S> q, k, v;
  Inputs<float> wide;
  explicit Stored(const Inputs<float>& inputs)
      : given(inputs),
        q(inputs.q.template cast<S>()),
        k(inputs.k.template cast<S>()),
        v(inputs.v.template cast<S>()),
        wide{q.template cast<float>(), k.template cast<float>(), v.template cast<float>()} {}
};

const std::vector<AttentionOptions> calls = {
    {},
    {.causal = true, .sink = 0.5, .threads = 3},
    {.query_offset = -40, .window_left = 90, .window_right = 4, .softcap = 2},
    {.scale = 0.3, .tolerance = 1e-3},
};

template <class S>
using ColumnMajor = Eigen::Matrix<S, Eigen::Dynamic, Eigen::Dynamic>;
using Strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;

}  // namespace

TEMPLATE_TEST_CASE("The bits of the same numbers in float, with queries of either type", "", half, bfloat16) {
  for (const Index features : {16, 5, 1})
    for (const AttentionOptions& options : calls) {
      const Stored<TestType> x(normal_inputs<float>(150, 430, features, features + 3, 71));
      const auto check = [&](const auto& bias) {
        const AttentionOutput<float> mixed = attention(x.given.q, x.k, x.v, bias, options);
        REQUIRE(same_bits(mixed, attention(x.given.q, x.wide.k, x.wide.v, bias, options)));
        const AttentionOutput<float> stored = attention(x.q, x.k, x.v, bias, options);
        REQUIRE(same_bits(stored, attention(x.wide.q, x.wide.k, x.wide.v, bias, options)));
      };
      CAPTURE(features, options.causal, options.tolerance);
      check(AlibiBias{0.1});
      check(FixedBlocks{64});
      check(MeanMask(draw_hashes(LaplaceKernel{20}, 16, 3)));
    }
}

TEMPLATE_TEST_CASE("Attention of stored inputs is what its definition says of them", "", half, bfloat16) {
  const Stored<TestType> x(normal_inputs<float>(110, 150, 16, 8, 72));
  for (const AttentionOptions& options : calls) {
    if (options.tolerance > 0) continue;
    const AttentionOutput<float> got = attention(x.q, x.k, x.v, AlibiBias{0.1}, options);
    REQUIRE(fault(got, x.wide.q, x.wide.k, x.wide.v, AlibiBias{0.1}, options) == "");
  }
}

TEMPLATE_TEST_CASE("Skipped tiles within the tolerance", "", half, bfloat16) {
  const Stored<TestType> x(normal_inputs<float>(200, 1500, 16, 8, 73));
  const AlibiBias bias{0.2};
  AttentionOutput<float> all = attention(x.q, x.k, x.v, bias), part = all;
  const Index visible = attention_into(x.q, x.k, x.v, bias, {}, all.values, all.log_sum_exp);
  const Index visited =
      attention_into(x.q, x.k, x.v, bias, {.tolerance = 1e-4}, part.values, part.log_sum_exp);
  REQUIRE(2 * visited < visible);
  const float range = (x.wide.v.colwise().maxCoeff() - x.wide.v.colwise().minCoeff()).maxCoeff();
  REQUIRE(distance(part.values, all.values) <= 1e-4 * static_cast<double>(range) + 1e-6);
  REQUIRE(distance(part.log_sum_exp, all.log_sum_exp) <= std::log1p(1e-4) + 1e-6);
}

TEMPLATE_TEST_CASE("Any strides and expressions", "", half, bfloat16) {
  for (const Index features : {16, 5}) {
    const Stored<TestType> x(normal_inputs<float>(110, 430, features, features, 74));
    const AlibiBias bias{0.1};
    const AttentionOutput<float> packed = attention(x.q, x.k, x.v, bias);
    const ColumnMajor<TestType> column_q = x.q, column_k = x.k, column_v = x.v;
    REQUIRE(same_bits(attention(column_q, column_k, column_v, bias), packed));
    const auto spread = [](const Matrix<TestType>& matrix) {
      std::vector<TestType> storage(static_cast<std::size_t>(2 * matrix.size() + 9 * matrix.rows()),
                                    static_cast<TestType>(not_a_number));
      for (Index i = 0; i < matrix.rows(); ++i)
        for (Index f = 0; f < matrix.cols(); ++f)
          storage[static_cast<std::size_t>(i * (2 * matrix.cols() + 9) + 2 * f)] = matrix(i, f);
      return storage;
    };
    const auto far_q = spread(x.q), far_k = spread(x.k), far_v = spread(x.v);
    const auto map = [&](const std::vector<TestType>& storage, Index rows) {
      return Eigen::Map<const Matrix<TestType>, 0, Strides>(storage.data(), rows, features,
                                                            Strides(2 * features + 9, 2));
    };
    REQUIRE(same_bits(attention(map(far_q, 110), map(far_k, 430), map(far_v, 430), bias), packed));
    REQUIRE(same_bits(attention(x.q, x.k.array(), x.v.topRows(430), bias), packed));
    REQUIRE(same_bits(attention(x.wide.q, x.wide.k.template cast<TestType>(), x.v, bias), packed));
  }
}

TEMPLATE_TEST_CASE("Blockwise attention: the bits of the same numbers in float, in both merges", "", half, bfloat16) {
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{9}, 12, 5);
  for (const Index features : {16, 5}) {
    const Stored<TestType> x(normal_inputs<float>(110, 150, features, features, 75));
    for (const AttentionOptions& options : calls)
      for (const Merge merge : {Merge::ratio, Merge::mean}) {
        const AttentionOutput<float> mixed = blockwise_attention(x.given.q, x.k, x.v, hashes, options, merge);
        REQUIRE(same_bits(mixed, blockwise_attention(x.given.q, x.wide.k, x.wide.v, hashes, options, merge)));
        const AttentionOutput<float> stored = blockwise_attention(x.q, x.k, x.v, hashes, options, merge);
        REQUIRE(same_bits(stored, blockwise_attention(x.wide.q, x.wide.k, x.wide.v, hashes, options, merge)));
      }
    const AttentionOutput<float> got = blockwise_attention(x.q, x.k, x.v, hashes);
    REQUIRE(fault(got, x.wide.q, x.wide.k, x.wide.v, MeanOfMasks{hashes}, {}, 6) == "");
  }
}

// --- What the rounding of keys and values costs ------------------------------------------------------------

TEMPLATE_TEST_CASE("Errors stay within the bound that the rounding of keys and values sets", "", half, bfloat16) {
  // A stored number is x (1 + e) + s with |e| <= u, the unit roundoff, and |s| <= the smallest error. So a score moves by
  // at most r = scale sum_t |q_t| (u |k_t| + s), a weight by a factor within exp(+-2 r), and
  //   |output error| <= (exp(2 r) - 1 + u) max |v| + s,   |error of log_sum_exp| <= r.
  const double u = unit_roundoff<TestType>, s = smallest_error<TestType>;
  for (const double size : {1.0, 1e-3, 1e-6, 3.0})
    for (const Index head_dim : {4, 64}) {
      Inputs<float> inputs = normal_inputs<float>(60, 300, head_dim, 8, 76);
      inputs.k *= static_cast<float>(size);
      inputs.v *= static_cast<float>(size);
      const Stored<TestType> x(inputs);
      const AlibiBias bias{0.05};
      const auto exact = dense_attention<double>(inputs.q, inputs.k, inputs.v, bias);
      const AttentionOutput<float> got = attention(inputs.q, x.k, x.v, bias);
      const Matrix<double> q = inputs.q.template cast<double>().cwiseAbs(), k = inputs.k.template cast<double>().cwiseAbs();
      const double largest = static_cast<double>(inputs.v.cwiseAbs().maxCoeff());
      for (Index i = 0; i < q.rows(); ++i) {
        const double r = ((k.array() * u + s).matrix() * q.row(i).transpose()).maxCoeff() /
                         std::sqrt(static_cast<double>(head_dim));
        const double rounding = 1e-5;  // of computing in float
        CAPTURE(size, head_dim, i);
        REQUIRE(distance(got.values.row(i), exact.values.row(i)) <=
                (std::expm1(2 * r) + u + rounding) * largest + s);
        REQUIRE(std::abs(got.log_sum_exp[i] - exact.log_sum_exp[i]) <= r + rounding);
      }
    }
}

TEMPLATE_TEST_CASE("On unit normal data, half costs 0.1 % and bfloat16 1 % at most", "", half, bfloat16) {
  const double bound = std::is_same_v<TestType, half> ? 0.001 : 0.01;
  for (const double slope : {0.5, 1.0 / 64, 0.0}) {
    const Stored<TestType> x(normal_inputs<float>(300, 1000, 64, 64, 77));
    const Matrix<float> right = attention(x.given.q, x.given.k, x.given.v, AlibiBias{slope}, {.causal = true}).values;
    const auto error = [&](const auto& q) {
      return (attention(q, x.k, x.v, AlibiBias{slope}, {.causal = true}).values - right).norm() / right.norm();
    };
    CAPTURE(slope, error(x.given.q), error(x.q));
    REQUIRE(error(x.given.q) <= bound);
    REQUIRE(error(x.q) <= bound);
    REQUIRE(error(x.q) >= bound / 20);  // and it is there
  }
}

// --- Values that are none ----------------------------------------------------------------------------------

TEMPLATE_TEST_CASE("NaN and infinity behind a mask leave no trace, at a seen key they spoil its rows", "", half,
                   bfloat16) {
  Stored<TestType> x(normal_inputs<float>(60, 60, 16, 16, 78));
  const AttentionOptions options{.causal = true};
  const AttentionOutput<float> clean = attention(x.given.q, x.k, x.v, AlibiBias{0.1}, options);
  for (const double bad : {not_a_number, infinity}) {
    x.v.row(40).setConstant(static_cast<TestType>(bad));
    x.k.row(50).setConstant(static_cast<TestType>(bad));
    const AttentionOutput<float> got = attention(x.given.q, x.k, x.v, AlibiBias{0.1}, options);
    REQUIRE(same_numbers(got.values.topRows(40), clean.values.topRows(40)));
    REQUIRE_FALSE(got.values.bottomRows(20).array().isFinite().any());
  }
}

TEMPLATE_TEST_CASE("No tokens or features of a storage type is legal", "", half, bfloat16) {
  struct Empty {
    Index queries, keys, head_dim, value_dim;
  };
  for (const Empty& shape :
       {Empty{0, 0, 4, 3}, Empty{0, 7, 4, 3}, Empty{7, 0, 4, 3}, Empty{7, 5, 4, 0}, Empty{1, 1, 1, 1}}) {
    const Stored<TestType> x(normal_inputs<float>(shape.queries, shape.keys, shape.head_dim, shape.value_dim, 79));
    const AttentionOutput<float> got = attention(x.q, x.k, x.v, AlibiBias{0.5});
    REQUIRE(same_bits(got, attention(x.wide.q, x.wide.k, x.wide.v, AlibiBias{0.5})));
    const std::vector<PositionHash> hashes(1);
    REQUIRE(same_bits(blockwise_attention(x.q, x.k, x.v, hashes),
                      blockwise_attention(x.wide.q, x.wide.k, x.wide.v, hashes)));
  }
}

TEMPLATE_TEST_CASE("The output is float, also over the queries", "", half, bfloat16) {
  Stored<TestType> x(normal_inputs<float>(110, 110, 8, 8, 80));
  STATIC_REQUIRE(std::is_same_v<decltype(attention(x.q, x.k, x.v, AlibiBias{1})), AttentionOutput<float>>);
  const AttentionOutput<float> expected = attention(x.given.q, x.k, x.v, AlibiBias{0.1});
  Vector<double> lse(110);
  attention_into(x.given.q, x.k, x.v, AlibiBias{0.1}, {}, x.given.q, lse);
  REQUIRE(same_numbers(x.given.q, expected.values));
  REQUIRE(same_numbers(lse, expected.log_sum_exp));
}

}  // namespace low_precision_test
