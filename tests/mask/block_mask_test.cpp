// SPDX-License-Identifier: MIT
#include "poslsh/mask/block_mask.hpp"

#include "support/catch.hpp"

#include <limits>
#include <vector>

namespace block_mask_test {

using poslsh::BlockMask;
using poslsh::Index;
using poslsh::KeyRange;
using poslsh::Matrix;
using poslsh::PositionHash;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<PositionHash> many_hashes() {
  std::vector<PositionHash> hashes = {{},     {0.5, 0.2}, {1, 0.7}, {2, 0},
                                      {3, 3}, {4, -2.5},  {1e6, 5}, {1e300, 0.5}};
  for (std::uint64_t i = 0; i < 20; ++i) {
    const double width = std::exp2(8 * poslsh::random_uniform(3, 0, i));
    hashes.push_back({width, (2 * poslsh::random_uniform(3, 1, i) - 0.5) * width});
  }
  return hashes;
}

}  // namespace

TEST_CASE("The blocks are consecutive, not empty, and cover the positions; each is one bin") {
  for (const Index n : {0, 1, 2, 3, 5, 13, 127, 257})
    for (const PositionHash& hash : many_hashes()) {
      const BlockMask mask(hash, n);
      CAPTURE(n, hash.width, hash.shift);
      REQUIRE(mask.size() == n);
      REQUIRE(mask.hash() == hash);
      Index covered = 0;
      for (const KeyRange& block : mask.blocks()) {
        REQUIRE(block.begin == covered);
        REQUIRE_FALSE(block.empty());
        for (Index i = block.begin; i < block.end; ++i)
          if (hash.bin(i) != hash.bin(block.begin)) FAIL(i << " is in another bin than its block");
        if (block.begin > 0) REQUIRE(hash.bin(block.begin) != hash.bin(block.begin - 1));
        covered = block.end;
      }
      REQUIRE(covered == n);
    }
}

TEMPLATE_LIST_TEST_CASE("The dense mask is 1 where two positions share a bin, and so says contains", "", Scalars) {
  for (const Index n : {0, 1, 2, 3, 5, 13, 127})
    for (const PositionHash& hash : many_hashes()) {
      const BlockMask mask(hash, n);
      const Matrix<TestType> dense = mask.dense<TestType>();
      CAPTURE(n, hash.width, hash.shift);
      REQUIRE(dense.rows() == n);
      REQUIRE(dense.cols() == n);
      Index wrong = 0;
      for (Index i = 0; i < n; ++i)
        for (Index j = 0; j < n; ++j) {
          const bool same = hash.bin(i) == hash.bin(j);
          wrong += mask.contains(i, j) != same || dense(i, j) != static_cast<TestType>(same);
        }
      REQUIRE(wrong == 0);
    }
}

TEST_CASE("A mask of known blocks") {
  const BlockMask mask({3, 1}, 6);  // bins begin at ..., -2, 1, 4, 7, ...
  REQUIRE(std::vector<KeyRange>(mask.blocks().begin(), mask.blocks().end()) ==
          std::vector<KeyRange>{{0, 1}, {1, 4}, {4, 6}});
  Matrix<double> expected(6, 6);
  expected << 1, 0, 0, 0, 0, 0,  //
      0, 1, 1, 1, 0, 0,          //
      0, 1, 1, 1, 0, 0,          //
      0, 1, 1, 1, 0, 0,          //
      0, 0, 0, 0, 1, 1,          //
      0, 0, 0, 0, 1, 1;
  REQUIRE(mask.dense() == expected);
}

TEST_CASE("A mask contains no position outside its own") {
  const BlockMask mask({}, 5);  // one block
  REQUIRE(mask.contains(0, 4));
  REQUIRE_FALSE(mask.contains(0, 5));
  REQUIRE_FALSE(mask.contains(5, 0));
  REQUIRE_FALSE(mask.contains(-1, 0));
  REQUIRE_FALSE(mask.contains(0, -1));
  REQUIRE_FALSE(mask.contains(-1, -1));
  REQUIRE_FALSE(mask.contains(5, 5));
}

TEST_CASE("A long mask of few blocks costs little") {
  const Index n = Index{1} << 52;
  const BlockMask mask({0x1p51, 1}, n);
  REQUIRE(std::vector<KeyRange>(mask.blocks().begin(), mask.blocks().end()) ==
          std::vector<KeyRange>{{0, 1}, {1, n / 2 + 1}, {n / 2 + 1, n}});
  REQUIRE(mask.contains(1, n / 2));
  REQUIRE_FALSE(mask.contains(0, 1));
}

TEST_CASE("A mask refuses sizes out of range and invalid hashes") {
  REQUIRE_THROWS_AS(BlockMask({}, -1), poslsh::Error);
  REQUIRE_THROWS_WITH(BlockMask({}, -1), "poslsh: n is -1; it must be between 0 and 2^52");
  REQUIRE_THROWS_WITH(BlockMask({}, (Index{1} << 52) + 1),
                      "poslsh: n is 4503599627370497; it must be between 0 and 2^52");
  REQUIRE_THROWS_WITH(BlockMask({0, 0}, 4), "poslsh: hash width is 0; it must be positive");
  REQUIRE_THROWS_WITH(
      BlockMask({2, infinity}, 4),
      Catch::Matchers::ContainsSubstring("poslsh: hash shift is inf; it must be within +-2^52"));
  REQUIRE_THROWS_WITH(BlockMask({2, 0, -1}, 4), "poslsh: hash weight is -1; it must be between 2^-1000 and 2^1000");
}

TEST_CASE("The blocks of a temporary mask outlive it") {
  std::vector<poslsh::KeyRange> seen;
  for (const poslsh::KeyRange& block : poslsh::BlockMask({4, 0}, 10).blocks()) seen.push_back(block);
  REQUIRE(seen == std::vector<poslsh::KeyRange>{{0, 4}, {4, 8}, {8, 10}});
}

}  // namespace block_mask_test
