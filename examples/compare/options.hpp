// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What the user asked of `compare`.

#include "method.hpp"

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace compare {

/// A request that cannot be met; the message is one line.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Options {
  std::string input;               ///< .npy file; empty: generate
  std::optional<Index> tokens;     ///< of generated activations
  Index head_dim = 64, heads = 8;  ///< of generated activations
  std::vector<double> slopes,
      sigmas;  ///< one slope a head; or sigmas for every head; both empty: alibi_slopes
  bool causal = false;
  std::vector<MethodKind> methods;  ///< in the order of all_methods
  std::vector<Index> samples{16, 32, 64, 128, 256};
  std::vector<poslsh::Sampling> samplings{poslsh::Sampling::importance};
  std::uint64_t seed = 1;
  Index seeds = 1, repeat = 3;
  int threads = 1;
  bool per_head = false;
  std::string csv, plot, save;  ///< files to write; empty: none
};

/// Reads the command line.
/// \return nothing if help was asked for, and printed
/// \throws UsageError on anything that cannot be understood or is out of range
std::optional<Options> parse_options(int argc, char** argv);

}  // namespace compare
