// SPDX-License-Identifier: MIT

// The bounds on scores that have not been computed hold, whatever the keys, and say something where they can.

#include "support/catch.hpp"
#include "support/random_matrix.hpp"

#include <poslsh/attention/key_groups.hpp>

namespace key_groups_test {

using namespace poslsh;
using namespace poslsh::test;
using poslsh::detail::key_group;
using poslsh::detail::KeyBound;
using poslsh::detail::KeyGroups;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// log of what KeyBound allows for the mean of exp(score) over a group.
template <class T>
double allowed(KeyBound<T> bound, double norm, double centre_score = 0) {
  const double b = norm * static_cast<double>(bound.norm);
  return centre_score + std::min(b, std::max(b, detail::moment_floor) - static_cast<double>(bound.gain));
}

/// log of the mean of exp(q.k) over the keys of a group, missing ones counting as 0, from scores computed in T.
template <class T>
double log_mean(const Matrix<T>& keys, const Vector<T>& query, Index group) {
  const Index begin = group * key_group, count = std::min(key_group, keys.rows() - begin);
  const Vector<T> scores = keys.middleRows(begin, count) * query;
  const double largest = static_cast<double>(scores.maxCoeff());
  double sum = 0;
  for (Index j = 0; j < count; ++j) sum += std::exp(static_cast<double>(scores[j]) - largest);
  return largest + std::log(sum / static_cast<double>(key_group));
}

template <class T>
void check_bounds(const Matrix<T>& keys, Dice& dice, bool moments) {
  const KeyGroups<T> groups(detail::strided(keys), {0, keys.rows()}, moments, 1);
  const Index count = (keys.rows() + key_group - 1) / key_group, depth = keys.cols();
  for (int trial = 0; trial < 12; ++trial) {
    Vector<double> direction = normal_matrix<double>(depth, 1, 77, static_cast<std::uint64_t>(dice.below(1000)));
    if (trial % 3 == 1) direction = keys.row(dice.below(keys.rows())).transpose().template cast<double>();
    if (trial % 3 == 2) direction.setUnit(dice.below(depth));
    const double key_norm = std::max(1e-30, std::sqrt(keys.template cast<double>().rowwise().squaredNorm().maxCoeff()));
    const double length = std::max(1e-30, direction.norm());
    const Vector<T> query = (direction * (dice.pick({0.5, 5.0, 12.0, 60.0}) / length / key_norm)).template cast<T>();
    const double norm = query.template cast<double>().norm();
    for (Index g = 0; g < count; ++g) {
      const double actual = log_mean<T>(keys, query, g);
      const Eigen::Map<const Vector<T>> centre(groups.centre(g), depth);
      const double slack = 1e-9 + 4 * static_cast<double>(std::numeric_limits<T>::epsilon()) * std::abs(actual);
      REQUIRE(actual <= allowed(groups.spread(g), norm, static_cast<double>(centre.dot(query))) + slack);
      for (Index other = 0; other <= g; ++other) REQUIRE(actual <= allowed(groups.from(other), norm) + slack);
      for (Index other = g; other < count; ++other) REQUIRE(actual <= allowed(groups.up_to(other), norm) + slack);
    }
  }
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("Bounds of groups of keys hold", "", Scalars) {
  using T = TestType;
  Dice dice(21);
  for (const bool moments : {true, false})
    for (const Index depth : {1, 3, 16, 64})
      for (const Index rows : {1, 95, 96, 97, 500})
        for (int kind = 0; kind < 7; ++kind) {
          Matrix<T> keys = normal_matrix<T>(rows, depth, static_cast<std::uint64_t>(rows), 5);
          if (kind == 1) keys.rowwise() = keys.row(0).eval();        // all equal
          if (kind == 2) keys.row(rows / 2) *= T(30);                // one outlier
          if (kind == 3) keys.array() += T(20);                      // far from 0
          if (kind == 4) keys.rightCols(depth - 1) *= T(1e-3);       // one direction
          if (kind == 5) keys *= T(1e-24);                           // squares vanish in float
          if (kind == 6) keys.setZero();
          CAPTURE(moments, depth, rows, kind);
          check_bounds<T>(keys, dice, moments);
        }
}

TEST_CASE("Keys that spread over many directions gain from their second moments, those in one do not") {
  Matrix<float> keys = normal_matrix<float>(384, 64, 3);
  const auto gain = [&](bool moments) {
    return KeyGroups<float>(detail::strided(std::as_const(keys)), {0, keys.rows()}, moments, 1).from(0).gain;
  };
  REQUIRE(gain(true) > 2.5f);
  REQUIRE(gain(false) == 0);
  keys.rightCols(63).setZero();
  REQUIRE(gain(true) < 2.5f);
  keys.col(0).setOnes();
  REQUIRE(gain(true) == 0);
}

TEST_CASE("A key that is not finite, or whose square is not, has no bound") {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
    Matrix<float> keys = normal_matrix<float>(300, 8, 3);
    keys(100, 2) = bad;
    const KeyGroups<float> groups(detail::strided(std::as_const(keys)), {0, 300}, true, 1);
    REQUIRE(static_cast<double>(groups.spread(1).norm) == infinity);
    REQUIRE(static_cast<double>(groups.from(0).norm) == infinity);
    REQUIRE(static_cast<double>(groups.up_to(3).norm) == infinity);
    REQUIRE(groups.from(2).norm < 100);
    REQUIRE(groups.up_to(0).norm < 100);
  }
}

}  // namespace key_groups_test
