// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Streams of every method, and what they took.

#include "options.hpp"

namespace decode {

/// A stream after so many tokens.
struct Record {
  Index tokens = 0;
  double seconds = 0;            ///< of all steps so far
  double tokens_per_second = 0;  ///< since the record before
  Index cached_tokens = 0;       ///< over all heads
  std::size_t bytes = 0;
  std::optional<double> error = {};  ///< of the last outputs, relative to an exact method's
};

struct Run {
  Method method;
  std::vector<Record> records;
};

/// Runs every method over the whole stream, but for full, which may end early.
std::vector<Run> measure(const Options& options);

}  // namespace decode
