// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Shows what was measured: table, CSV, picture.

#include "measure.hpp"

#include <cstdio>

namespace decode {

/// One record a decade of tokens, and the last.
void print_table(const std::vector<Run>& runs, const Options& options, std::FILE* out);

/// \throws FileError if it cannot be written
void write_csv(const std::vector<Run>& runs, const Options& options);

/// Tokens a second and bytes against tokens, log-log. \return false if gnuplot is not installed
/// \throws FileError if it cannot be written
bool draw_plot(const std::vector<Run>& runs, const Options& options);

}  // namespace decode
