// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Matrices as pictures.

#include "experiment.hpp"

namespace experiments {

/// What image() expects to be set once: white for 0, dark blue for 1 and above.
inline const std::string image_settings =
    "set size ratio -1\nset yrange [*:*] reverse\nset autoscale fix\nunset xtics\nunset ytics\nunset "
    "colorbox\n"
    "set cbrange [0:1]\nset palette defined (0 'white', 0.15 '#c6dbef', 0.5 '#4292c6', 1 '#08306b')\n";

/// gnuplot's commands for one panel: the matrix as an image, row 0 on top.
/// \param name  of the data, different in each panel
inline std::string image(const std::string& name, const std::string& title, const Matrix<double>& matrix) {
  std::string script = "$" + name + " << END\n";
  for (Index i = 0; i < matrix.rows(); ++i) {
    for (Index j = 0; j < matrix.cols(); ++j) script += format_number("%.4g ", matrix(i, j));
    script += '\n';
  }
  return script + "END\nset title '" + title + "'\nplot $" + name + " matrix with image notitle\n";
}

/// Draws such panels side by side, where --plot asks for it.
inline void draw_images(const CommonOptions& options, int columns, int rows, const std::string& panels) {
  if (options.plot.empty()) return;
  constexpr int size = 300;
  if (!poslsh_examples::draw_picture(options.plot, columns * size, rows * size,
                                     "set multiplot layout " + std::to_string(rows) + "," +
                                         std::to_string(columns) + "\n" + image_settings + panels +
                                         "unset multiplot"))
    std::fprintf(stderr, "no picture: gnuplot is not installed\n");
}

}  // namespace experiments
