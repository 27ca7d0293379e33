// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Keys and values of one head that grow at the end and are dropped at the front.

#include "poslsh/attention/head.hpp"

namespace poslsh::inline POSLSH_SIMD::detail {

/// Rows are counted from the start of the buffer: [first, end) are there, those before `first` have been dropped but
/// still hold their place, until enough of them are moved out at once. Memory: O(rows there), amortised O(1) moves.
template <class T, class S>
class KeyValueCache {
 public:
  /// \param noted  whether the owner keeps a number with each row
  KeyValueCache(Index head_dim, Index value_dim, Index first_position, bool noted)
      : keys_(head_dim), value_dim_(value_dim), position_(first_position), noted_(noted) {}

  [[nodiscard]] const PreparedKeys<T, S>& keys() const { return keys_; }
  [[nodiscard]] Strided<const S> values() const { return {values_.data(), end_, value_dim_, value_dim_, 1}; }
  [[nodiscard]] Index first() const { return first_; }
  [[nodiscard]] Index end() const { return end_; }
  [[nodiscard]] Index tokens() const { return end_ - first_; }
  /// The position of row 0.
  [[nodiscard]] Index position() const { return position_; }
  [[nodiscard]] bool noted() const { return noted_; }
  /// What the owner knows of a row; 0 at first.
  [[nodiscard]] double& note(Index row) { return notes_[row]; }
  [[nodiscard]] double note(Index row) const { return notes_[row]; }
  [[nodiscard]] std::size_t bytes() const {
    return keys_.packed.bytes() + static_cast<std::size_t>(values_.size()) * sizeof(S) +
           static_cast<std::size_t>(notes_.size()) * sizeof(double);
  }

  /// Makes room for more rows; nothing else changes, also if there is no memory.
  void reserve(Index more) {
    if (end_ + more <= capacity_) return;
    const Index capacity = round_up((std::max)(end_ + more, 2 * tokens()), key_tile<T>);
    const Index kept = (std::min)(end_, capacity_);
    Buffer<S> values(capacity * (std::max)(value_dim_, Index{1}));
    Buffer<double> notes(noted_ ? capacity : 0);
    keys_.packed.reserve(capacity, kept);
    std::copy_n(values_.data(), kept * value_dim_, values.data());
    std::copy_n(notes_.data(), noted_ ? kept : 0, notes.data());
    if (kept < end_) {  // rows that were skipped before there was room
      keys_.packed.clear(end_);
      std::fill_n(values.data(), end_ * value_dim_, S(0));
      std::fill_n(notes.data(), noted_ ? end_ : 0, 0.0);
    }
    values_ = std::move(values);
    notes_ = std::move(notes);
    capacity_ = capacity;
  }

  /// Adds rows, for which there must be room.
  template <class From>
  void append(Strided<const From> keys, Strided<const From> values) {
    keys_.packed.write(end_, keys);
    for (Index j = 0; j < values.rows; ++j) {
      for (Index f = 0; f < value_dim_; ++f) values_[(end_ + j) * value_dim_ + f] = static_cast<S>(values(j, f));
      if (noted_) notes_[end_ + j] = 0;
    }
    end_ += keys.rows;
  }

  /// Notes where the rows end, and drops those added since; nothing may have been dropped in between.
  void mark() { marked_end_ = end_; }
  void take_back() { end_ = marked_end_; }

  /// Drops the rows before this one.
  void drop_before(Index row) {
    first_ = std::clamp(row, first_, end_);
    // Whole tiles move, so that rows keep their place in a tile, and results their bits.
    const Index rows = round_down(first_, key_tile<T>);
    if (rows < (std::max)(tokens(), key_tile<T>)) return;
    keys_.packed.drop_front(rows / panel_keys<T>, end_ - rows);
    std::copy(values_.data() + rows * value_dim_, values_.data() + end_ * value_dim_, values_.data());
    if (noted_) std::copy(notes_.data() + rows, notes_.data() + end_, notes_.data());
    first_ -= rows;
    end_ -= rows;
    position_ += rows;
  }

  /// For an empty cache that is restored: row 0 stands at this position, and so many rows have been dropped already. They
  /// take no memory until there are others.
  void skip(Index rows, Index position) {
    first_ = end_ = rows;
    position_ = position;
  }

 private:
  PreparedKeys<T, S> keys_;
  Buffer<S> values_;
  Buffer<double> notes_;
  Index value_dim_, position_, first_ = 0, end_ = 0, marked_end_ = 0, capacity_ = 0;
  bool noted_;
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
