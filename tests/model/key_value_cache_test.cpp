// SPDX-License-Identifier: MIT

// The cache of one head against a list of rows.

#include "poslsh/model/key_value_cache.hpp"
#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random_matrix.hpp"

#include <deque>

namespace key_value_cache_test {

using namespace poslsh::test;
using poslsh::Index;
using poslsh::Matrix;
using poslsh::detail::KeyValueCache;
using poslsh::detail::strided;

namespace {

constexpr Index tile = 384;

struct Row {
  Matrix<double> key, value;
  double note;
};

/// What is wrong about a cache that should hold these rows up to a position, or nothing.
template <class T, class S>
std::string cache_fault(const KeyValueCache<T, S>& cache, const std::deque<Row>& rows, Index position) {
  if (cache.tokens() != static_cast<Index>(rows.size())) return "number of rows";
  if (cache.position() + cache.end() != position) return "position";
  if (cache.first() > std::max(cache.tokens(), tile) + tile) return "too many dropped rows are held";
  for (std::size_t j = 0; j < rows.size(); ++j) {
    const Index row = cache.first() + static_cast<Index>(j);
    for (Index t = 0; t < rows[j].key.cols(); ++t)
      if (static_cast<double>(cache.keys().packed.at(row, t)) != rows[j].key(0, t)) return "key " + std::to_string(j);
    for (Index f = 0; f < rows[j].value.cols(); ++f)
      if (static_cast<double>(cache.values()(row, f)) != rows[j].value(0, f)) return "value " + std::to_string(j);
    if (cache.noted() && cache.note(row) != rows[j].note) return "note " + std::to_string(j);
  }
  return "";
}

template <class T, class S>
void exercise(Index head_dim, Index value_dim, bool noted, std::uint64_t seed) {
  Dice dice(seed);
  Index position = dice.pick<Index>({0, -1000, Index{1} << 40}), tokens = 0;
  const Index start = position;
  KeyValueCache<T, S> cache(head_dim, value_dim, position, noted);
  std::deque<Row> rows;
  for (int call = 0; call < 250; ++call) {
    const Index count = dice.pick<Index>({0, 1, 1, 1, 2, 15, 16, 17, 47, 48, 49, 130, 500});
    const Matrix<T> keys = normal_matrix<T>(count, head_dim, seed, static_cast<std::uint64_t>(2 * call));
    const Matrix<T> values = normal_matrix<T>(count, value_dim, seed, static_cast<std::uint64_t>(2 * call + 1));
    const std::size_t before = cache.bytes();
    cache.reserve(count);
    REQUIRE(cache.bytes() >= before);
    REQUIRE(cache_fault(cache, rows, position) == "");
    cache.append(strided(keys), strided(values));
    position += count;
    tokens += count;
    for (Index j = 0; j < count; ++j) {
      const auto stored = [](const auto& row) -> Matrix<double> {
        return row.template cast<S>().template cast<T>().template cast<double>();
      };
      rows.push_back({stored(keys.row(j)), stored(values.row(j)), 0});
      if (noted && dice.chance(0.5)) cache.note(cache.end() - count + j) = rows.back().note = dice.uniform();
    }
    REQUIRE(cache_fault(cache, rows, position) == "");
    const Index drop = dice.pick<Index>({0, 0, 1, 16, 200, cache.tokens() / 2, cache.tokens() - 3, cache.tokens(), -5});
    cache.drop_before(cache.first() + drop);
    for (Index j = 0; j < drop && !rows.empty(); ++j) rows.pop_front();
    CAPTURE(head_dim, value_dim, call, count, drop);
    REQUIRE(cache_fault(cache, rows, position) == "");
    REQUIRE((cache.position() - start) % tile == 0);  // rows keep their place in a tile
  }
  REQUIRE(tokens > 10000);
}

}  // namespace

TEST_CASE("A cache holds what was appended and not dropped, in any order of calls") {
  std::uint64_t seed = 0;
  for (const auto& [head_dim, value_dim] : {std::pair<Index, Index>{3, 5}, {16, 16}, {1, 0}, {0, 2}, {0, 0}})
    for (const bool noted : {false, true}) {
      exercise<float, float>(head_dim, value_dim, noted, ++seed);
      exercise<double, double>(head_dim, value_dim, noted, ++seed);
      exercise<float, Eigen::half>(head_dim, value_dim, noted, ++seed);
      exercise<float, Eigen::bfloat16>(head_dim, value_dim, noted, ++seed);
    }
}

TEST_CASE("Bytes count keys, values and notes, and nothing before the first row") {
  KeyValueCache<float, float> plain(4, 3, 0, false), noted(4, 3, 0, true);
  KeyValueCache<float, Eigen::bfloat16> narrow(4, 3, 0, false);
  REQUIRE(plain.bytes() == 0);
  plain.reserve(1);
  noted.reserve(1);
  narrow.reserve(1);
  REQUIRE(plain.bytes() == tile * 7 * 4);
  REQUIRE(noted.bytes() == tile * (7 * 4 + 8));
  REQUIRE(2 * narrow.bytes() == plain.bytes());
}

TEST_CASE("Places of a panel behind the last key hold 0, whatever lay there before") {
  KeyValueCache<float, float> cache(2, 1, 0, false);
  const Matrix<float> nan_rows = Matrix<float>::Constant(2000, 2, static_cast<float>(not_a_number));
  const Matrix<float> values = Matrix<float>::Zero(2000, 1);
  cache.reserve(2000);
  cache.append(strided(nan_rows), strided(values));
  cache.drop_before(2000);
  const Matrix<float> ones = Matrix<float>::Ones(1, 2), one_value = Matrix<float>::Ones(1, 1);
  for (int token = 0; token < 500; ++token) {
    cache.reserve(1);
    cache.append(strided(ones), strided(one_value));
    for (Index row = cache.end(); row % poslsh::detail::panel_keys<float> != 0; ++row)
      for (Index t = 0; t < 2; ++t) REQUIRE(cache.keys().packed.at(row, t) == 0);
    if (token % 100 == 99) cache.drop_before(cache.end() - 10);
  }
}

TEST_CASE("A restored cache stands where the old one stood") {
  for (const Index dropped : {0, 1, 17, 383}) {
    KeyValueCache<double, double> cache(3, 2, 5, false);
    cache.skip(dropped, 1000);
    REQUIRE(cache.bytes() == 0);  // nothing is there yet
    REQUIRE(cache.position() == 1000);
    REQUIRE(cache.first() == dropped);
    REQUIRE(cache.tokens() == 0);
    const Matrix<double> key = Matrix<double>::Ones(1, 3), value = Matrix<double>::Ones(1, 2);
    cache.reserve(1);
    cache.append(strided(key), strided(value));
    REQUIRE(cache.tokens() == 1);
    REQUIRE(cache.keys().packed.at(dropped, 2) == 1);
    for (Index row = 0; row < dropped; ++row) {
      REQUIRE(cache.keys().packed.at(row, 0) == 0);
      REQUIRE(cache.values()(row, 1) == 0);
    }
  }
}

}  // namespace key_value_cache_test
