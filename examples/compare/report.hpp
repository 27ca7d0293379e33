// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Shows what was measured: tables, CSV, picture.

#include "measure.hpp"

#include <cstdio>

namespace compare {

void print_tables(const Measurements& measurements, const AnyActivations& activations, const Options& options,
                  std::FILE* out);

/// \throws FileError if it cannot be written
void write_csv(const Measurements& measurements, const AnyActivations& activations, const Options& options);

/// Error against draws, log-log, one panel a group. \return false if gnuplot is not installed
/// \throws FileError if it cannot be written
bool draw_plot(const Measurements& measurements, const Options& options);

}  // namespace compare
