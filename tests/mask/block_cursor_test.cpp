// SPDX-License-Identifier: MIT

// The cursor over blocks against the masks themselves, along sequences and across jumps.

#include "poslsh/mask/block_cursor.hpp"
#include "poslsh/mask/mean_mask.hpp"
#include "support/catch.hpp"
#include "support/random_matrix.hpp"

namespace block_cursor_test {

using namespace poslsh::test;
using poslsh::draw_hashes;
using poslsh::Index;
using poslsh::LaplaceKernel;
using poslsh::MeanMask;
using poslsh::PositionHash;
using poslsh::detail::BlockCursor;

namespace {

void check_at(const BlockCursor& cursor, const MeanMask& mask, Index position) {
  CAPTURE(position);
  REQUIRE(cursor.hull() == mask.support(position));
  Index first_end = poslsh::max_position;
  for (std::size_t h = 0; h < mask.hashes().size(); ++h) {
    REQUIRE(cursor.blocks()[h] == mask.hashes()[h].block(position));
    first_end = std::min(first_end, cursor.blocks()[h].end);
  }
  REQUIRE(cursor.next_change() == first_end);
}

}  // namespace

TEST_CASE("A cursor holds the blocks of its position, step by step and after jumps of any size") {
  Dice dice(1);
  for (const double sigma : {0.3, 2.0, 50.0})
    for (const Index samples : {1, 7, 32}) {
      const MeanMask mask(draw_hashes(LaplaceKernel{sigma}, samples, 3));
      BlockCursor cursor;
      Index position = -100;
      for (int move = 0; move < 400; ++move) {
        cursor.move_to(mask.hashes(), position);
        check_at(cursor, mask, position);
        position = dice.chance(0.9) ? position + 1 : position + dice.below(2000) - 1000;
      }
      cursor.move_to(mask.hashes(), Index{1} << 52);
      check_at(cursor, mask, Index{1} << 52);
      cursor.move_to(mask.hashes(), -(Index{1} << 52));
      check_at(cursor, mask, -(Index{1} << 52));
    }
}

TEST_CASE("A cursor says when a block has changed, and only then") {
  const std::vector<PositionHash> hashes{{10, 0, 1}, {15, 0, 1}, {std::numeric_limits<double>::infinity(), 0, 1}};
  BlockCursor cursor;
  REQUIRE(cursor.move_to(hashes, 0));
  int changes = 0;
  for (Index position = 1; position < 60; ++position) changes += cursor.move_to(hashes, position);
  REQUIRE(changes == 7);  // at 10, 15, 20, 30 (both), 40, 45, 50
  REQUIRE(cursor.move_to(hashes, 0));
  REQUIRE(cursor.hull() == poslsh::KeyRange{poslsh::min_position, poslsh::max_position});
}

}  // namespace block_cursor_test
