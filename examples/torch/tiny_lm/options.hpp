// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What the user asked of `tiny_lm`.

#include <optional>
#include <string>

#include "training.hpp"

namespace tiny_lm {

enum class Task { train, transfer, report, time, write_layer };

struct Options {
  Task task = Task::train;
  std::string text, folder = "tiny_lm_runs";
  ModelSize size;
  TrainingPlan plan;
  std::string positions = "alibi";
  std::uint64_t seed = 1;
  std::int64_t windows = 0;                       ///< to score; 0: all
  std::int64_t tune_steps = 100;                  ///< transfer
  double tune_rate = 3e-4;                        ///< transfer
  std::string csv, plot, table;                   ///< report
  std::int64_t repetitions = 10;                  ///< time
  std::int64_t layer = 0, tokens = 1024;          ///< write-layer
  std::string output;                             ///< write-layer

  /// Where the trained model of a scheme and this seed is.
  [[nodiscard]] std::string run_file(const std::string& name, const std::string& extension) const {
    return folder + "/" + name + "-" + std::to_string(seed) + extension;
  }
};

/// Reads the command line.
/// \return nothing if help was asked for, and printed
/// \throws std::runtime_error on anything that cannot be understood or is out of range
std::optional<Options> parse_options(int argc, char** argv);

}  // namespace tiny_lm
