// SPDX-License-Identifier: MIT
#include "poslsh/core/types.hpp"

#include "support/catch.hpp"

namespace types_test {

using poslsh::Index;
using poslsh::KeyRange;

TEST_CASE("Rows of a matrix follow each other in memory") {
  poslsh::Matrix<double> matrix(2, 3);
  REQUIRE(&matrix(0, 1) == &matrix(0, 0) + 1);
  REQUIRE(&matrix(1, 0) == &matrix(0, 0) + 3);
}

TEST_CASE("A range holds its begin but not its end, and is empty unless the end lies beyond") {
  const KeyRange range{-2, 3};
  REQUIRE(range.size() == 5);
  REQUIRE_FALSE(range.empty());
  REQUIRE(range.contains(-2));
  REQUIRE(range.contains(2));
  REQUIRE_FALSE(range.contains(-3));
  REQUIRE_FALSE(range.contains(3));
  for (const KeyRange none : {KeyRange{}, KeyRange{4, 4}, KeyRange{4, 1}}) {
    REQUIRE(none.empty());
    REQUIRE(none.size() == 0);
    REQUIRE_FALSE(none.contains(none.begin));
  }
}

TEST_CASE("The intersection of two ranges holds the positions of both") {
  for (Index a = -2; a <= 2; ++a)
    for (Index b = a; b <= 2; ++b)
      for (Index c = -2; c <= 2; ++c)
        for (Index d = c; d <= 2; ++d)
          for (Index position = -3; position <= 3; ++position) {
            const KeyRange left{a, b}, right{c, d};
            const bool in_both = left.contains(position) && right.contains(position);
            if (intersect(left, right).contains(position) != in_both) FAIL(a << b << c << d << position);
          }
  REQUIRE(poslsh::intersect({0, 5}, {3, 9}) == KeyRange{3, 5});
}

TEST_CASE("The stand-ins for no bound leave room for any offset between tokens") {
  constexpr Index farthest = Index{1} << 53;  // between two tokens within +-2^52
  STATIC_REQUIRE(poslsh::min_position - farthest < poslsh::min_position);
  STATIC_REQUIRE(poslsh::max_position + farthest > poslsh::max_position);
  STATIC_REQUIRE(poslsh::max_position == -poslsh::min_position);
  REQUIRE(poslsh::intersect({poslsh::min_position, poslsh::max_position}, {-7, 7}) == KeyRange{-7, 7});
}

}  // namespace types_test
