// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What StreamingAttention keeps for a query head.

#include "poslsh/attention/attention.hpp"
#include "poslsh/mask/block_cursor.hpp"
#include "poslsh/model/key_budget.hpp"
#include "poslsh/model/key_value_cache.hpp"

namespace poslsh::inline POSLSH_SIMD::detail {

/// A sweep over the cache of its key head, and what says which keys later queries need. Stays where it was made.
template <class T, class S, class B>
struct StreamHead {
  Head<T, S, B> head;
  TileSweep<T, S, B> sweep;
  KeyBudget budget, budget_before;  ///< now, and before the call that is under way
  BlockCursor blocks;               ///< around the next query, for a mean mask

  StreamHead(const KeyValueCache<T, S>& cache, const B& bias, const AttentionOptions& options)
      : head({}, cache.values(), cache.keys(), bias, place(0, 0, options), options), sweep(head),
        budget(slope(bias), options.tolerance), budget_before(budget) {
    if constexpr (std::is_same_v<B, MeanMask>) blocks.move_to(bias.hashes(), options.key_offset);
  }

  /// The first key that a query at this position sees.
  [[nodiscard]] Index support_begin(Index position) {
    if constexpr (std::is_same_v<B, MeanMask>) {
      blocks.move_to(head.bias.hashes(), position);
      return blocks.hull().begin;
    } else {
      return head.bias.support(position).begin;
    }
  }

 private:
  static double slope([[maybe_unused]] const B& bias) {
    if constexpr (std::is_same_v<B, AlibiBias>) return bias.slope;
    return 0;
  }
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
