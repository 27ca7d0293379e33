// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The blocks around a position that moves along a sequence.

#include "poslsh/position/hash.hpp"

#include <algorithm>
#include <span>
#include <vector>

namespace poslsh::inline POSLSH_SIMD::detail {

/// The block of each hash around one position. A block is found once, when the position enters it: a step costs O(1)
/// while none of the blocks ends, else O(s).
class BlockCursor {
 public:
  /// Goes to a position, on which the same hashes must have been followed. True if some block has changed.
  bool move_to(std::span<const PositionHash> hashes, Index position) {
    if (position >= position_ && position < next_change_) return false;
    blocks_.resize(hashes.size());
    position_ = position;
    next_change_ = max_position;
    hull_ = {position, position + 1};
    for (std::size_t h = 0; h < hashes.size(); ++h) {
      KeyRange& block = blocks_[h];
      if (!block.contains(position)) block = hashes[h].block(position);
      next_change_ = (std::min)(next_change_, block.end);
      hull_ = {(std::min)(hull_.begin, block.begin), (std::max)(hull_.end, block.end)};
    }
    return true;
  }

  [[nodiscard]] const std::vector<KeyRange>& blocks() const { return blocks_; }
  /// The first position ahead at which one of the blocks has ended.
  [[nodiscard]] Index next_change() const { return next_change_; }
  /// The smallest range that holds all blocks: the mean mask's support.
  [[nodiscard]] KeyRange hull() const { return hull_; }

 private:
  std::vector<KeyRange> blocks_;
  KeyRange hull_;
  Index position_ = max_position, next_change_ = min_position;
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
