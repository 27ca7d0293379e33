// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The mean of many block masks: the estimate of the ALiBi weight matrix (arXiv 2605.09472, Theorem 2.1).

#include "poslsh/position/hash.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

namespace poslsh::inline POSLSH_SIMD {

/// Mt(i, j) = (1/s) sum_r weight_r M_r(i, j) over all integer positions i and j.
///
/// With hashes from draw_hashes(LaplaceKernel{sigma}, ...), E[Mt(i, j)] = exp(-|i - j| / sigma). It is a PositionBias:
/// attention() applies it in one sweep. Every sum adds positive terms only, the smallest (farthest) first, in double:
/// small far weights keep their relative accuracy and weights outside the support are exactly 0.
class MeanMask {
 public:
  /// \throws Error unless there is at least one hash and each is valid
  explicit MeanMask(std::vector<PositionHash> hashes) : hashes_(std::move(hashes)) {
    validate();
    for (const PositionHash& hash : hashes_) hash.validate();
  }

  /// \throws Error if there is no hash, as in a mask that was moved away
  void validate() const { POSLSH_CHECK(!hashes_.empty(), "hashes", "an empty list", "at least one hash"); }

  /// s, the number of hashes.
  [[nodiscard]] Index samples() const { return static_cast<Index>(hashes_.size()); }
  /// The hashes in their order.
  [[nodiscard]] std::span<const PositionHash> hashes() const { return hashes_; }

  /// Mt(i, j); O(s).
  [[nodiscard]] double weight(Index i, Index j) const {
    double sum = 0;
    for (const PositionHash& hash : hashes_)
      if (hash.bin(i) == hash.bin(j)) sum += hash.weight;
    return sum / static_cast<double>(samples());
  }

  /// log Mt(query, key); -inf outside the support. O(s).
  [[nodiscard]] double log_weight(Index query, Index key) const { return std::log(weight(query, key)); }

  /// The keys that share a block with the query: contiguous, both ends non-decreasing in the query. O(s).
  [[nodiscard]] KeyRange support(Index query) const {
    KeyRange all{query, query + 1};
    for (const PositionHash& hash : hashes_) {
      const KeyRange block = hash.block(query);
      all.begin = (std::min)(all.begin, block.begin);
      all.end = (std::max)(all.end, block.end);
    }
    return all;
  }

  /// scores[t] += log Mt(query, first_key + t) for t < count; keys inside the support only. O(s log s + count).
  template <class T>
  void add_log_weights(Index query, Index first_key, T* scores, Index count) const {
    // Behind the query the weight steps up where a block begins, ahead of it down where one ends.
    std::vector<std::pair<Index, double>> steps(hashes_.size());
    const double scale = 1 / static_cast<double>(samples());
    const Index behind = (std::min)(count, query - first_key + 1);
    if (behind > 0) {
      for (std::size_t r = 0; r < steps.size(); ++r)
        steps[r] = {hashes_[r].block(query).begin - first_key, hashes_[r].weight};
      std::sort(steps.begin(), steps.end());
      double sum = 0;
      for (std::size_t r = 0; r < steps.size(); ++r) {
        sum += steps[r].second;
        const Index end = r + 1 < steps.size() ? (std::min)(steps[r + 1].first, behind) : behind;
        Index t = std::max<Index>(steps[r].first, 0);
        if (t >= end) continue;
        for (const T log_weight = static_cast<T>(std::log(sum * scale)); t < end; ++t) scores[t] += log_weight;
      }
    }
    if (behind < count) {
      for (std::size_t r = 0; r < steps.size(); ++r)
        steps[r] = {hashes_[r].block(query).end - first_key, hashes_[r].weight};
      std::sort(steps.begin(), steps.end(), [](const auto& a, const auto& b) { return b < a; });
      double sum = 0;
      for (std::size_t r = 0; r < steps.size(); ++r) {
        sum += steps[r].second;
        const Index first = std::max<Index>(behind, 0);
        const Index begin = r + 1 < steps.size() ? (std::max)(steps[r + 1].first, first) : first;
        const Index end = (std::min)(steps[r].first, count);
        if (begin >= end) continue;
        const T log_weight = static_cast<T>(std::log(sum * scale));
        for (Index t = begin; t < end; ++t) scores[t] += log_weight;
      }
    }
  }

  /// The matrix Mt(i, j) for 0 <= i, j < n; O(blocks + n^2).
  ///
  /// A prefix sum over the corners of the blocks in both dimensions: row i adds the blocks that begin at i to their
  /// last columns, and the weights ahead of the diagonal are the sums from the far end. Nothing is ever subtracted:
  /// the columns of blocks that have ended lie behind the diagonal, where the mirror image is used.
  template <class T = double>
  [[nodiscard]] Matrix<T> dense(Index n) const {
    POSLSH_CHECK(n >= 0 && n <= Index{1} << 24, "n", n, "between 0 and 2^24");
    Matrix<T> mean(n, n);
    std::vector<double> last_column(static_cast<std::size_t>(n), 0.0);
    std::vector<Index> block_end(hashes_.size(), 0);
    const double count = static_cast<double>(samples());
    for (Index i = 0; i < n; ++i) {
      for (std::size_t r = 0; r < hashes_.size(); ++r) {
        if (block_end[r] > i) continue;
        block_end[r] = (std::min)(hashes_[r].block(i).end, n);
        last_column[static_cast<std::size_t>(block_end[r] - 1)] += hashes_[r].weight;
      }
      double sum = 0;
      for (Index j = n - 1; j >= i; --j) {
        sum += last_column[static_cast<std::size_t>(j)];
        mean(i, j) = static_cast<T>(sum / count);
        mean(j, i) = mean(i, j);
      }
    }
    return mean;
  }

 private:
  std::vector<PositionHash> hashes_;
};

}  // namespace poslsh::inline POSLSH_SIMD
