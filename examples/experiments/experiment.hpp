// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What every experiment shares: options, samplings, unit normal data, fits, and a figure of panels.

#include <poslsh/poslsh.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <mutex>
#include <numbers>
#include <string>
#include <vector>

#include "../support/csv.hpp"
#include "../support/flags.hpp"
#include "../support/gnuplot.hpp"
#include "../support/progress.hpp"
#include "../support/text_table.hpp"

namespace experiments {

using poslsh::Index;
using poslsh::Matrix;
using poslsh::Sampling;
using poslsh_examples::CsvTable;
using poslsh_examples::format_number;
using poslsh_examples::Progress;
using poslsh_examples::TextTable;

struct NamedSampling {
  Sampling sampling;
  const char* name;
};
inline constexpr NamedSampling all_samplings[] = {{Sampling::independent, "independent"},
                                                  {Sampling::stratified, "stratified"},
                                                  {Sampling::importance, "importance"},
                                                  {Sampling::mixture, "mixture"}};

/// A number as CSV and tables have it.
inline std::string text(double value) { return format_number("%.4g", value); }
inline std::string text(Index value) { return std::to_string(value); }

/// What every experiment can be asked for.
struct CommonOptions {
  std::string csv, plot;
  bool quick = false;
  int threads = 2;
  std::uint64_t seed = 1;
};

/// The flags that every experiment has; its own are added before they are parsed.
inline poslsh_examples::Flags common_flags(const std::string& description, CommonOptions& common) {
  poslsh_examples::Flags flags(description);
  flags.output("--csv", common.csv, "Write all results to this file")
      .picture("--plot", common.plot, "Draw them into this .png or .svg file, by gnuplot")
      .seed("--seed", common.seed, "First seed of the draws")
      .whole("--threads", common.threads, "Threads", 1, 1024)
      .on_off("--quick", common.quick, "A small setting that takes a second, whatever sizes are given: shows that it runs, no more");
  return flags;
}

/// Runs an experiment; what it throws becomes one line and exit code 2.
template <class Run>
int guarded(const char* name, Run&& run) {
  try {
    const int code = run();
    poslsh_examples::finish_printing();
    return code;
  } catch (const std::exception& error) {
    std::string message = error.what();
    std::replace_if(message.begin(), message.end(), [](unsigned char c) { return c < ' '; }, ' ');
    std::fprintf(stderr, "%s: %s\n", name, message.c_str());
    return 2;
  }
}

/// A matrix of unit normal numbers, a pure function of (seed, stream): Box and Muller's transform.
inline Matrix<double> unit_normal(Index rows, Index columns, std::uint64_t seed, std::uint64_t stream) {
  Matrix<double> matrix(rows, columns);
  const std::uint64_t own_stream = (std::uint64_t{1} << 63) + stream;  // no head draws from it
  for (Index e = 0; e < matrix.size(); ++e) {
    const auto counter = 2 * static_cast<std::uint64_t>(e);
    const double radius = std::sqrt(-2 * std::log(poslsh::random_uniform(seed, own_stream, counter)));
    matrix.data()[e] =
        radius * std::cos(2 * std::numbers::pi * poslsh::random_uniform(seed, own_stream, counter + 1));
  }
  return matrix;
}

struct Point {
  double x, y;
};

/// The exponent b of the least squares fit log y = a + b log x.
inline double fitted_exponent(const std::vector<Point>& points) {
  double x = 0, y = 0, xx = 0, xy = 0;
  for (const Point& point : points) {
    x += std::log(point.x);
    y += std::log(point.y);
  }
  x /= static_cast<double>(points.size());
  y /= static_cast<double>(points.size());
  for (const Point& point : points) {
    xx += (std::log(point.x) - x) * (std::log(point.x) - x);
    xy += (std::log(point.x) - x) * (std::log(point.y) - y);
  }
  return xy / xx;
}

inline double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

/// The value that the given part of all values does not exceed.
inline double quantile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(std::lround(part * static_cast<double>(values.size() - 1)));
  return values[rank];
}

/// One curve: gnuplot's style after "with", such as "linespoints linecolor 1".
struct Curve {
  std::string title, style;
  std::vector<Point> points;
};

struct Panel {
  std::string title, x_label, y_label;
  std::string settings;  ///< more gnuplot, such as "set logscale xy"
  std::vector<Curve> curves;
};

/// Draws the panels side by side, where --plot asks for it.
inline void draw(const CommonOptions& options, const std::vector<Panel>& panels, int columns = 3) {
  if (options.plot.empty()) return;
  const int count = static_cast<int>(panels.size());
  columns = std::min(columns, count);
  const int rows = (count + columns - 1) / columns;
  std::string script = "set grid\nset key below\nset multiplot layout " + std::to_string(rows) + "," +
                       std::to_string(columns) + "\n";
  int number = 0;
  for (const Panel& panel : panels) {
    std::string plot;
    script += "unset logscale\nset xrange [*:*]\nset yrange [*:*]\nset format y '%g'\n" + panel.settings +
              "\nset title '" + panel.title + "'\nset xlabel '" + panel.x_label + "'\nset ylabel '" +
              panel.y_label + "'\n";
    for (const Curve& curve : panel.curves) {
      if (curve.points.empty()) continue;
      const std::string name = "$curve_" + std::to_string(number++);
      script += name + " << END\n";
      for (const Point& point : curve.points)
        script += format_number("%.6g ", point.x) + format_number("%.6g\n", point.y);
      script += "END\n";
      plot += (plot.empty() ? "plot " : ", ") + name + " using 1:2 with " + curve.style + " title '" +
              curve.title + "'";
    }
    script += plot + "\n";
  }
  if (!poslsh_examples::draw_picture(options.plot, columns * 440, rows * 420, script + "unset multiplot"))
    std::fprintf(stderr, "no picture: gnuplot is not installed\n");
}

/// The style of a sampling's curve.
inline std::string line_of(Sampling sampling, const std::string& more = "") {
  return "linespoints linewidth 2 pointtype 7 pointsize 0.5 linecolor " +
         std::to_string(static_cast<int>(sampling) + 1) + (more.empty() ? "" : " " + more);
}

}  // namespace experiments
