// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Unit normal tokens made up one by one, never stored.

#include <cmath>
#include <numbers>

#include "options.hpp"

namespace decode {

/// Queries, keys and values of one token of all heads: a pure function of (seed, token).
class TokenSource {
 public:
  explicit TokenSource(const Options& options) : options_(options), values_(3 * size()) {}

  void make(Index token) {
    // Box and Muller's transform: two normal numbers of two uniform ones.
    constexpr std::uint64_t stream = std::uint64_t{1} << 63;  // no head draws from it
    const std::uint64_t first = static_cast<std::uint64_t>(token) * ((values_.size() + 1) / 2);
    for (std::size_t pair = 0; 2 * pair < values_.size(); ++pair) {
      const std::uint64_t index = 2 * (first + pair);
      const double radius = std::sqrt(-2 * std::log(poslsh::random_uniform(options_.seed, stream, index)));
      const double angle = 2 * std::numbers::pi * poslsh::random_uniform(options_.seed, stream, index + 1);
      values_[2 * pair] = static_cast<float>(radius * std::cos(angle));
      if (2 * pair + 1 < values_.size()) values_[2 * pair + 1] = static_cast<float>(radius * std::sin(angle));
    }
    shorten_queries();
  }

  [[nodiscard]] poslsh::TensorView<const float> queries() const { return view(0); }
  [[nodiscard]] poslsh::TensorView<const float> keys() const { return view(1); }
  [[nodiscard]] poslsh::TensorView<const float> values() const { return view(2); }

 private:
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(options_.heads * options_.head_dim); }
  [[nodiscard]] poslsh::TensorView<const float> view(std::size_t part) const {
    return poslsh::TensorView<const float>::heads_first(values_.data() + part * size(), 1, options_.heads, 1,
                                                        options_.head_dim);
  }

  /// A bound on the norm of queries has to hold: the few that are longer become as long as it, less rounding.
  void shorten_queries() {
    const double bound = options_.query_bound();
    for (Index head = 0; head < options_.heads; ++head) {
      Eigen::Map<Eigen::VectorXf> query(values_.data() + head * options_.head_dim, options_.head_dim);
      const double norm = query.cast<double>().norm();
      if (norm > bound) query *= static_cast<float>(bound / norm * (1 - 1e-6));
    }
  }

  const Options& options_;
  std::vector<float> values_;  ///< queries, keys, values; each head by head
};

}  // namespace decode
