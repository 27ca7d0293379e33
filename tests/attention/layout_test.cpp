// SPDX-License-Identifier: MIT

// Inputs and outputs wherever they lie: storage orders, strides, maps, blocks, expressions, overlap.

#include "poslsh/attention/attention.hpp"
#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random_matrix.hpp"

#include <vector>

namespace layout_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::attention;
using poslsh::attention_into;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::Index;
using poslsh::Matrix;
using poslsh::Vector;

namespace {

constexpr Index queries = 110, keys = 150;
constexpr AlibiBias bias{0.1};
const AttentionOptions options{.causal = true, .threads = 2};

/// Feature counts with and without whole packets, values in place and copied.
struct Features {
  Index head_dim, value_dim;
};
const std::vector<Features> feature_counts = {{16, 32}, {5, 3}, {1, 1}};

template <class T>
using ColumnMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
using Strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;

/// A copy with these distances, in values, between rows and between features; the gaps hold NaN.
template <class T>
class Spread {
 public:
  Spread(const Matrix<T>& matrix, Index row_stride, Index col_stride)
      : storage_(static_cast<std::size_t>(matrix.rows() * row_stride + matrix.cols() * col_stride),
                 static_cast<T>(not_a_number)),
        map_(storage_.data(), matrix.rows(), matrix.cols(), Strides(row_stride, col_stride)) {
    map_ = matrix;
  }
  Eigen::Map<Matrix<T>, 0, Strides>& map() { return map_; }

 private:
  std::vector<T> storage_;
  Eigen::Map<Matrix<T>, 0, Strides> map_;
};

}  // namespace

TEMPLATE_LIST_TEST_CASE("Any strides give the bits of packed rows", "", Scalars) {
  for (const Features& features : feature_counts) {
    const auto [q, k, v] = normal_inputs<TestType>(queries, keys, features.head_dim, features.value_dim, 61);
    const AttentionOutput<TestType> packed = attention(q, k, v, bias, options);
    CAPTURE(features.head_dim);

    const ColumnMajor<TestType> column_q = q, column_k = k, column_v = v;
    REQUIRE(same_bits(attention(column_q, column_k, column_v, bias, options), packed));
    REQUIRE(same_bits(attention(q, column_k, v, bias, options), packed));
    REQUIRE(same_bits(attention(column_q, k, column_v, bias, options), packed));

    struct Stride {
      Index row, col;
    };
    for (const Stride& stride : {Stride{200, 2}, Stride{64, 1}, Stride{1, 151}, Stride{3, 500}}) {
      Spread<TestType> far_q(q, stride.row, stride.col), far_k(k, stride.row, stride.col),
          far_v(v, stride.row, stride.col);
      CAPTURE(stride.row, stride.col);
      REQUIRE(same_bits(attention(far_q.map(), far_k.map(), far_v.map(), bias, options), packed));
    }
    const Eigen::Map<const Matrix<TestType>> plain_map(k.data(), k.rows(), k.cols());
    REQUIRE(same_bits(attention(q, plain_map, v, bias, options), packed));
    const Eigen::Ref<const Matrix<TestType>> reference(v);
    REQUIRE(same_bits(attention(q, k, reference, bias, options), packed));
  }
}

TEMPLATE_LIST_TEST_CASE("Heads of one interleaved buffer are read in place and give the bits of packed copies", "",
                   Scalars) {
  const Index n = 100, heads = 3, d = 16;
  // [token][query, key, value][head][feature]
  const Matrix<TestType> all = normal_matrix<TestType>(n, 3 * heads * d, 62);
  for (Index head = 0; head < heads; ++head) {
    const auto part = [&](Index which) { return all.middleCols((which * heads + head) * d, d); };
    const Matrix<TestType> q = part(0), k = part(1), v = part(2);
    REQUIRE(
        same_bits(attention(part(0), part(1), part(2), bias, options), attention(q, k, v, bias, options)));
  }
}

TEMPLATE_LIST_TEST_CASE("Expressions, arrays and fixed sizes are evaluated as they are read", "", Scalars) {
  const auto [q, k, v] = normal_inputs<TestType>(queries, keys, 5, 3, 63);
  const Matrix<TestType> doubled = 2 * q, sum = k + k.rowwise().reverse(), product = v * v.transpose() * v;
  REQUIRE(same_bits(attention(2 * q, k + k.rowwise().reverse(), v * v.transpose() * v, bias, options),
                    attention(doubled, sum, product, bias, options)));
  const AttentionOutput<TestType> packed = attention(q, k, v, bias, options);
  const ColumnMajor<TestType> turned = k.transpose();
  REQUIRE(same_bits(attention(q, turned.transpose(), v, bias, options), packed));
  const Eigen::Array<TestType, Eigen::Dynamic, Eigen::Dynamic> array = v.array();
  REQUIRE(same_bits(attention(q.array(), k.array(), array, bias, options), packed));
  REQUIRE(
      same_bits(attention(q.array() * TestType(1), k.array(), array + TestType(0), bias, options), packed));

  const Eigen::Matrix<TestType, 4, 3> fixed_q = q.template topLeftCorner<4, 3>();
  const Eigen::Matrix<TestType, 4, 3, Eigen::RowMajor> fixed_k = k.template topLeftCorner<4, 3>();
  const Eigen::Matrix<TestType, 4, 1> column = v.col(0).template head<4>();
  const Matrix<TestType> dynamic_q = fixed_q, dynamic_k = fixed_k, dynamic_v = column;
  REQUIRE(same_bits(attention(fixed_q, fixed_k, column, bias, options),
                    attention(dynamic_q, dynamic_k, dynamic_v, bias, options)));
  const Eigen::Matrix<TestType, 1, Eigen::Dynamic> one = q.row(7);
  REQUIRE(same_bits(attention(q.row(7), k, v, bias, options), attention(one, k, v, bias, options)));
}

TEMPLATE_LIST_TEST_CASE("Results go into blocks of larger matrices, and nowhere else", "", Scalars) {
  for (const Features& features : feature_counts) {
    const auto [q, k, v] = normal_inputs<TestType>(queries, keys, features.head_dim, features.value_dim, 64);
    const AttentionOutput<TestType> packed = attention(q, k, v, bias, options);
    const auto check = [&, &q = q, &k = k, &v = v](auto large) {
      large.setConstant(TestType(7));
      Matrix<double> sums = Matrix<double>::Constant(queries + 2, 3, 7);
      attention_into(q, k, v, bias, options, large.block(4, 2, queries, v.cols()),
                     sums.col(1).segment(1, queries));
      REQUIRE(same_numbers(large.block(4, 2, queries, v.cols()), packed.values));
      REQUIRE(same_numbers(sums.col(1).segment(1, queries), packed.log_sum_exp));
      REQUIRE((large.array() == TestType(7)).count() == large.size() - packed.values.size());
      REQUIRE((sums.array() == 7).count() == sums.size() - queries);
    };
    check(Matrix<TestType>(queries + 9, v.cols() + 5));
    check(ColumnMajor<TestType>(queries + 9, v.cols() + 5));

    Spread<TestType> spread(Matrix<TestType>::Zero(queries, v.cols()), 200, 2);
    Vector<double> sums(queries);
    attention_into(q, k, v, bias, options, spread.map(), sums);
    REQUIRE(same_numbers(spread.map(), packed.values));
  }
}

TEMPLATE_LIST_TEST_CASE("The output may lie over an input, side by side or one behind the other: the same numbers",
                   "", Scalars) {
  const Index n = 230, d = 16;
  const AttentionOptions everything{.threads = 2};  // later keys too: overwritten rows are read again
  const auto [q, k, v] = normal_inputs<TestType>(n, n, d, d, 65);
  const AttentionOutput<TestType> expected = attention(q, k, v, bias, everything);
  for (const bool beside : {true, false}) {
    Matrix<TestType> all(beside ? n : 3 * n, beside ? 3 * d : d);
    const auto part = [&](auto& buffer, Index which) {
      return beside ? buffer.block(0, which * d, n, d) : buffer.block(which * n, 0, n, d);
    };
    part(all, 0) = q;
    part(all, 1) = k;
    part(all, 2) = v;
    for (const Index over : {0, 1, 2})
      for (const Index shift :
           {0, 5, 40, -40}) {  // rows: the output may cover an input in part, and end in the next one
        const Index row = (beside ? 0 : over * n) + shift, col = beside ? over * d : 0;
        if (row < 0 || row + n > all.rows()) continue;
        Matrix<TestType> buffer = all;
        Vector<double> sums(n);
        CAPTURE(beside, over, shift);
        attention_into(part(buffer, 0), part(buffer, 1), part(buffer, 2), bias, everything,
                       buffer.block(row, col, n, d), sums);
        REQUIRE(same_numbers(buffer.block(row, col, n, d), expected.values));
        REQUIRE(same_numbers(sums, expected.log_sum_exp));
      }
  }
}

TEST_CASE("The log-sum-exps may lie over an input: the same numbers") {
  const Index n = 230;
  const AttentionOptions everything{.threads = 2};
  const auto [q, k, v] = normal_inputs<double>(n, n, 8, 8, 66);
  const AttentionOutput<double> expected = attention(q, k, v, bias, everything);
  for (const Index over : {0, 1, 2})
    for (const Index shift : {0, 10}) {
      Matrix<double> inputs[3], values(n, 8);
      const Matrix<double>* packed[3] = {&q, &k, &v};
      for (int which = 0; which < 3; ++which) {
        inputs[which] = Matrix<double>(n + 10, 8);
        inputs[which].topRows(n) = *packed[which];
      }
      CAPTURE(over, shift);
      auto sums = inputs[over].col(3).segment(shift, n);
      attention_into(inputs[0].topRows(n), inputs[1].topRows(n), inputs[2].topRows(n), bias, everything,
                     values, sums);
      REQUIRE(same_numbers(values, expected.values));
      REQUIRE(same_numbers(sums, expected.log_sum_exp));
    }
}

TEST_CASE("Self-attention of one matrix given three times") {
  const Matrix<float> x = normal_matrix<float>(120, 16, 67), copy = x, other = x;
  REQUIRE(same_bits(attention(x, x, x, bias, options), attention(x, copy, other, bias, options)));
}

}  // namespace layout_test
