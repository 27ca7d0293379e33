// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The methods `compare` knows.

#include <poslsh/poslsh.hpp>

#include <array>
#include <string>
#include <string_view>

namespace compare {

using poslsh::Index;

enum class MethodKind { exact, no_bias, fixed_blocks, one_sweep, blocks_ratio, blocks_mean };

struct MethodName {
  MethodKind kind;
  std::string_view name, meaning;
};

inline constexpr std::array<MethodName, 6> all_methods{{
    {MethodKind::exact, "exact", "exact ALiBi attention"},
    {MethodKind::no_bias, "no_bias", "softmax attention, no positional bias"},
    {MethodKind::fixed_blocks, "fixed_blocks", "softmax attention inside fixed blocks of 2 sigma"},
    {MethodKind::one_sweep, "one_sweep", "positional LSH, all draws in one sweep"},
    {MethodKind::blocks_ratio, "blocks_ratio", "positional LSH, block by block, merged as a ratio of sums"},
    {MethodKind::blocks_mean, "blocks_mean", "positional LSH, block by block, merged as a mean of outputs"},
}};

inline constexpr std::array<std::pair<poslsh::Sampling, std::string_view>, 4> all_samplings{{
    {poslsh::Sampling::independent, "independent"},
    {poslsh::Sampling::stratified, "stratified"},
    {poslsh::Sampling::importance, "importance"},
    {poslsh::Sampling::mixture, "mixture"},
}};

/// One line of the comparison: a method, and how it draws if it does.
struct Method {
  MethodKind kind;
  poslsh::Sampling sampling = poslsh::Sampling::independent;
  Index samples = 0;  ///< 0: the method draws nothing

  [[nodiscard]] std::string name() const {
    return std::string(all_methods[static_cast<std::size_t>(kind)].name);
  }
  /// Empty for a method that draws nothing.
  [[nodiscard]] std::string sampling_name() const {
    return samples == 0 ? "" : std::string(all_samplings[static_cast<std::size_t>(sampling)].second);
  }
};

/// Whether a method uses random draws.
inline bool draws(MethodKind kind) { return kind >= MethodKind::one_sweep; }

}  // namespace compare
