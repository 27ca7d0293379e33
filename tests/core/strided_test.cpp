// SPDX-License-Identifier: MIT
#include "poslsh/core/strided.hpp"

#include "support/catch.hpp"

#include <vector>

namespace strided_test {

using poslsh::Index;
using poslsh::Matrix;
using poslsh::detail::has_memory;
using poslsh::detail::overlap;
using poslsh::detail::Strided;
using poslsh::detail::strided;
using poslsh::detail::Viewed;

namespace {

/// Numbers that tell every row and column apart.
template <class M>
M numbered(Index rows, Index cols) {
  M matrix(rows, cols);
  for (Index i = 0; i < rows; ++i)
    for (Index j = 0; j < cols; ++j) matrix(i, j) = static_cast<typename M::Scalar>(100 * i + j);
  return matrix;
}

template <class View, class Derived>
bool same_values(const View& view, const Eigen::DenseBase<Derived>& expression) {
  if (view.rows != expression.rows() || view.cols != expression.cols()) return false;
  const Matrix<typename Derived::Scalar> values = expression;
  for (Index i = 0; i < view.rows; ++i)
    for (Index j = 0; j < view.cols; ++j)
      if (view(i, j) != values(i, j)) return false;
  return true;
}

/// The view shows the expression's values in the expression's own memory.
template <class Derived>
bool viewed_in_place(const Derived& expression) {
  const Viewed<Derived> viewed(expression);
  return same_values(viewed.view(), expression) && viewed.view().data == expression.data();
}

/// The view shows the values of an expression that has no memory of its own.
template <class Derived>
bool viewed_as_copy(const Derived& expression) {
  const Viewed<Derived> viewed(expression);
  return same_values(viewed.view(), expression);
}

}  // namespace

TEST_CASE("Row-major, column-major and sliced matrices are viewed in place") {
  const auto rows = numbered<Matrix<float>>(5, 4);
  const auto cols = numbered<Eigen::MatrixXd>(5, 4);
  REQUIRE(viewed_in_place(rows));
  REQUIRE(viewed_in_place(cols));
  REQUIRE(viewed_in_place(rows.middleRows(1, 3)));
  REQUIRE(viewed_in_place(cols.middleCols(1, 2)));
  REQUIRE(viewed_in_place(rows.block(1, 2, 3, 2)));
  REQUIRE(viewed_in_place(cols.transpose()));
  REQUIRE(viewed_in_place(rows.row(2)));
  REQUIRE(viewed_in_place(rows.col(2)));
  REQUIRE(viewed_in_place(cols.row(2)));
  REQUIRE(viewed_in_place(rows.topRows(0)));
}

TEST_CASE("Maps with inner and outer strides are viewed in place") {
  std::vector<double> memory(200);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<double>(i);
  using Strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
  const Eigen::Map<const Matrix<double>, 0, Strides> by_rows(memory.data() + 3, 6, 4, Strides(17, 2));
  const Eigen::Map<const Eigen::MatrixXd, 0, Strides> by_cols(memory.data() + 3, 6, 4, Strides(17, 2));
  REQUIRE(viewed_in_place(by_rows));
  REQUIRE(viewed_in_place(by_cols));
  REQUIRE(strided(by_rows)(5, 3) == 3 + 5 * 17 + 3 * 2);
  REQUIRE(strided(by_cols)(5, 3) == 3 + 3 * 17 + 5 * 2);
}

TEST_CASE("Expressions without memory are evaluated once and kept") {
  const auto a = numbered<Matrix<double>>(4, 3);
  STATIC_REQUIRE(has_memory<Matrix<double>>);
  STATIC_REQUIRE_FALSE(has_memory<std::decay_t<decltype(2 * a)>>);
  REQUIRE(viewed_as_copy(2 * a));
  REQUIRE(viewed_as_copy(a.cwiseProduct(a)));
  REQUIRE(viewed_as_copy(a.cast<float>()));
  REQUIRE(viewed_as_copy(a.transpose() + a.transpose()));
  REQUIRE(viewed_as_copy(a.colwise().reverse()));

  int evaluated = 0;
  const auto counted = a.unaryExpr([&evaluated](double value) { return ++evaluated, value; });
  const Viewed<std::decay_t<decltype(counted)>> viewed(counted);
  REQUIRE(same_values(viewed.view(), a));
  REQUIRE(same_values(viewed.view(), a));
  REQUIRE(evaluated == a.size());
}

TEST_CASE("A view writes through and turns into a view of constants") {
  auto matrix = numbered<Eigen::MatrixXd>(4, 3);
  const Strided<double> view = strided(matrix);
  view(2, 1) = -1;
  REQUIRE(matrix(2, 1) == -1);
  const Strided<const double> constant = view;
  REQUIRE(constant.data == matrix.data());
  REQUIRE(same_values(constant, matrix));
}

TEST_CASE("Middle rows of a view are those of the matrix, also none of them") {
  const auto matrix = numbered<Matrix<double>>(6, 3);
  const auto view = strided(matrix);
  REQUIRE(same_values(view.middle_rows(2, 3), matrix.middleRows(2, 3)));
  REQUIRE(view.middle_rows(2, 3).data == view.row(2));
  REQUIRE(view.middle_rows(6, 0).rows == 0);
  const Strided<double> nothing;
  REQUIRE(nothing.middle_rows(0, 0).data == nullptr);
}

TEST_CASE(
    "The extent of a view runs from the first to past the last byte, whatever the signs of the strides") {
  std::vector<float> memory(100);
  float* const middle = memory.data() + 50;
  const auto bytes = [&](Index first, Index last) {
    return std::pair(reinterpret_cast<std::uintptr_t>(middle + first),
                     reinterpret_cast<std::uintptr_t>(middle + last + 1));
  };
  REQUIRE(Strided<float>{middle, 3, 4, 10, 2}.extent() == bytes(0, 26));
  REQUIRE(Strided<float>{middle, 3, 4, -10, 2}.extent() == bytes(-20, 6));
  REQUIRE(Strided<float>{middle, 3, 4, 10, -2}.extent() == bytes(-6, 20));
  REQUIRE(Strided<float>{middle, 3, 4, -10, -2}.extent() == bytes(-26, 0));
  REQUIRE(Strided<float>{middle, 1, 1, 10, 2}.extent() == bytes(0, 0));
}

TEST_CASE("A view without values may lie nowhere, whatever its strides") {
  using Map = Eigen::Map<Matrix<double>, 0, Eigen::Stride<-1, -1>>;
  Map no_features(nullptr, 5, 0, Eigen::Stride<-1, -1>(3, 2)), no_rows(nullptr, 0, 5, Eigen::Stride<-1, -1>(3, 2));
  for (Map* map : {&no_features, &no_rows}) {
    const Strided<double> view = strided(*map);
    REQUIRE(view.rows == map->rows());
    REQUIRE(view.cols == map->cols());
    REQUIRE(view.row_stride == 0);  // rows of nothing must not be away from nowhere
    REQUIRE(view.row(4) == nullptr);
    REQUIRE(view.middle_rows(0, view.rows).data == nullptr);
  }
}

TEST_CASE("Views overlap where their extents meet") {
  auto matrix = numbered<Matrix<double>>(6, 4);
  const Strided<double> all = strided(matrix);
  const Strided<const double> top = all.middle_rows(0, 3), bottom = all.middle_rows(3, 3);
  REQUIRE(overlap(all, all));
  REQUIRE(overlap(all, top));
  REQUIRE(overlap(bottom, all));
  REQUIRE_FALSE(overlap(top, bottom));  // they touch, but share no byte
  REQUIRE_FALSE(overlap(bottom, top));
  REQUIRE(overlap(all.middle_rows(0, 4), bottom));
  REQUIRE(overlap(bottom, all.middle_rows(0, 4)));

  const Strided<double> left{matrix.data(), 6, 2, 4, 1}, right{matrix.data() + 2, 6, 2, 4, 1};
  REQUIRE(overlap(left, right));  // interleaved: counted as sharing

  const Strided<double> no_rows = all.middle_rows(2, 0);
  REQUIRE_FALSE(overlap(no_rows, all));
  REQUIRE_FALSE(overlap(all, Strided<double>{matrix.data(), 6, 0, 4, 1}));
  REQUIRE_FALSE(overlap(Strided<double>{}, Strided<double>{}));

  std::vector<float> floats(4);
  REQUIRE_FALSE(overlap(all, Strided<float>{floats.data(), 2, 2, 2, 1}));
}

}  // namespace strided_test
