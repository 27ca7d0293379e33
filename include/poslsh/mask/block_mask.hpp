// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// One hash as a block-diagonal mask over the positions 0 .. n-1.

#include "poslsh/position/hash.hpp"

#include <span>
#include <utility>
#include <vector>

namespace poslsh::inline POSLSH_SIMD {

/// M(i, j) = 1 where positions i and j, both in [0, n), share a bin of the hash, else 0.
///
/// Held as the list of its blocks: consecutive non-empty ranges that cover [0, n) in order. O(blocks) memory.
class BlockMask {
 public:
  /// \throws Error unless 0 <= n <= 2^52 and the hash is valid
  BlockMask(PositionHash hash, Index n) : hash_(hash), size_(n) {
    hash.validate();
    POSLSH_CHECK(n >= 0 && n <= Index{1} << 52, "n", n, "between 0 and 2^52");
    for (Index begin = 0; begin < n;) {
      const Index end = hash.block(begin).end;
      blocks_.push_back({begin, end < n ? end : n});
      begin = blocks_.back().end;
    }
  }

  /// The hash whose mask it is.
  [[nodiscard]] const PositionHash& hash() const { return hash_; }
  /// n.
  [[nodiscard]] Index size() const { return size_; }
  /// The blocks in order; from a temporary mask they are handed over.
  [[nodiscard]] std::span<const KeyRange> blocks() const& { return blocks_; }
  /// See blocks() const.
  [[nodiscard]] std::vector<KeyRange> blocks() && { return std::move(blocks_); }

  /// Whether i and j share a block; false outside [0, n).
  [[nodiscard]] bool contains(Index i, Index j) const {
    return i >= 0 && j >= 0 && i < size_ && j < size_ && hash_.bin(i) == hash_.bin(j);
  }

  /// The n x n matrix of zeros and ones; O(n^2).
  template <class T = double>
  [[nodiscard]] Matrix<T> dense() const {
    Matrix<T> mask = Matrix<T>::Zero(size_, size_);
    for (const KeyRange& block : blocks_) mask.block(block.begin, block.begin, block.size(), block.size()).setOnes();
    return mask;
  }

 private:
  PositionHash hash_;
  Index size_;
  std::vector<KeyRange> blocks_;
};

}  // namespace poslsh::inline POSLSH_SIMD
