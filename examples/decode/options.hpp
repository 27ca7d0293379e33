// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What the user asked of `decode`.

#include <poslsh/poslsh.hpp>

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace decode {

using poslsh::Index;

/// A request that cannot be met; the message is one line.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// In the order they run: the first exact one that has a row is what the others are held against.
enum class Method { full, bounded, mean_mask };

struct MethodName {
  Method method;
  std::string_view name, meaning;
};
inline constexpr std::array<MethodName, 3> all_methods{{
    {Method::full, "full", "exact ALiBi, every key kept, as far as --full-seconds and --full-mib allow"},
    {Method::bounded, "bounded", "exact ALiBi within --tolerance: old keys dropped by the bound on later queries"},
    {Method::mean_mask, "mean_mask", "positional LSH: keys dropped when no later query shares a block with them"},
}};
[[nodiscard]] inline std::string name_of(Method method) {
  return std::string(all_methods[static_cast<std::size_t>(method)].name);
}

struct Options {
  std::vector<Method> methods;  ///< in the order of all_methods
  Index tokens = 1000000, heads = 8, head_dim = 64;
  Index samples = 32;
  poslsh::Sampling sampling = poslsh::Sampling::importance;
  double tolerance = 0x1p-24;
  std::optional<double> max_query_norm;  ///< default 1.5 sqrt(head_dim)
  double full_seconds = 120;
  Index full_mib = 4096;
  std::string storage = "float";
  std::uint64_t seed = 1;
  int threads = 1;
  std::string csv, plot;  ///< files to write; empty: none

  [[nodiscard]] double query_bound() const {
    return max_query_norm.value_or(1.5 * std::sqrt(static_cast<double>(head_dim)));
  }
};

/// Reads the command line.
/// \return nothing if help was asked for, and printed
/// \throws UsageError on anything that cannot be understood or is out of range
std::optional<Options> parse_options(int argc, char** argv);

}  // namespace decode
