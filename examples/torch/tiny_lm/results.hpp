// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What runs found, as files and as tables.

#include <string>
#include <vector>

#include "options.hpp"

namespace tiny_lm {

/// One model under one scheme at one window length.
struct Result {
  std::string positions;     ///< that it was scored with
  std::string trained_with;  ///< the scheme of its training
  std::int64_t tuned_steps = 0;  ///< of training with `positions` after that
  std::uint64_t seed = 0;
  std::int64_t steps = 0, parameters = 0;
  double training_bits = 0, seconds = 0;  ///< of its last training
  Score score;
};

void write_results(const std::vector<Result>& results, const std::string& path);

/// All results in a folder, ordered by scheme, training, seed and length.
/// \throws poslsh_examples::FileError if a file cannot be read or there is none
std::vector<Result> read_results(const std::string& folder);

/// Prints tables of means and deviations over the seeds, and writes the files asked for.
void report(const std::vector<Result>& results, const Options& options);

}  // namespace tiny_lm
