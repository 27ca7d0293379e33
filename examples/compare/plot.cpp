// SPDX-License-Identifier: MIT
#include <algorithm>

#include "../support/gnuplot.hpp"
#include "../support/text_table.hpp"
#include "report.hpp"
#include "summary.hpp"

namespace compare {
namespace {

using poslsh_examples::format_number;

constexpr int panel_width = 560, panel_height = 520, most_columns = 3;

/// Whether a later method has the same errors to rounding: blocks_ratio is drawn only without one_sweep.
bool is_repeated(const Measurements& measurements, const Method& method) {
  return method.kind == MethodKind::blocks_ratio &&
         std::any_of(measurements.methods.begin(), measurements.methods.end(),
                     [](const Method& other) { return other.kind == MethodKind::one_sweep; });
}

/// One panel: a curve for each method and sampling, a level line for each method without draws but exact.
std::string panel(const Measurements& measurements, std::size_t group) {
  const std::vector<std::size_t> cases = cases_of_group(measurements, group);
  const double sigma = measurements.cases[cases.front()].sigma();
  const bool one_sigma = std::all_of(cases.begin(), cases.end(), [&](std::size_t number) {
    return measurements.cases[number].sigma() == sigma;
  });
  std::string data, plot;
  std::string points, name, style, title;
  const auto finish_curve = [&] {
    if (points.empty()) return;
    data.append(name).append(" << END\n").append(points).append("END\n");
    plot.append(plot.empty() ? "plot " : ", ").append(name).append(" using 1:2 with ").append(style);
    plot.append(" title '").append(title).append("'");
    points.clear();
  };
  for (std::size_t m = 0; m < measurements.methods.size(); ++m) {
    const Method& method = measurements.methods[m];
    if (method.samples == 0 || is_repeated(measurements, method)) continue;
    const std::string curve =
        "$curve_" + std::to_string(group) + "_" + method.name() + "_" + method.sampling_name();
    if (curve != name) finish_curve();
    name = curve;
    title = method.name() + " " + method.sampling_name();
    style = "linespoints linewidth 2 pointtype 7 linecolor " +
            std::to_string(static_cast<int>(method.sampling) + 1) +
            (method.kind == MethodKind::blocks_mean ? " dashtype 3" : "");
    points += std::to_string(method.samples) + " " +
              format_number("%.6g", summarise(measurements, cases, m).error) + "\n";
  }
  finish_curve();
  for (std::size_t m = 0; m < measurements.methods.size(); ++m) {
    const Method& method = measurements.methods[m];
    if (method.samples != 0 || method.kind == MethodKind::exact) continue;
    plot += ", " + format_number("%.6g", summarise(measurements, cases, m).error) +
            " with lines linecolor 'black' dashtype " + std::to_string(static_cast<int>(method.kind) + 3) +
            " title '" + method.name() + "'";
  }
  return data + "set title '" +
         (one_sigma ? "sigma " + format_number("%g", sigma) : "each head with its own slope") + "'\n" + plot +
         "\n";
}

}  // namespace

bool draw_plot(const Measurements& measurements, const Options& options) {
  const int panels = static_cast<int>(group_count(measurements));
  const int columns = std::min(panels, most_columns), rows = (panels + columns - 1) / columns;
  std::string script =
      "set logscale x 2\nset logscale y 10\nset grid\nset key below\nset xlabel 'draws s'\nset "
      "ylabel "
      "'relative error'\n"
      "set format y '%.0e'\nset multiplot layout " +
      std::to_string(rows) + "," + std::to_string(columns) + "\n";
  for (std::size_t group = 0; group < group_count(measurements); ++group)
    script += panel(measurements, group);
  return poslsh_examples::draw_picture(options.plot, columns * panel_width, rows * panel_height,
                                       script + "unset multiplot");
}

}  // namespace compare
