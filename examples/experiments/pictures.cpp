// SPDX-License-Identifier: MIT
//
// Pictures of the idea: the weights of ALiBi, one random mask, and the mean of 4, 16 and 64 of them, for each
// way to draw.

#include "image.hpp"

namespace {

using namespace experiments;
using poslsh::LaplaceKernel;

Matrix<double> kernel_matrix(const LaplaceKernel& kernel, Index n) {
  Matrix<double> matrix(n, n);
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < n; ++j) matrix(i, j) = kernel(std::abs(static_cast<double>(i - j)));
  return matrix;
}

/// A panel with the middle row of each matrix as a curve.
std::string profiles(const std::vector<std::pair<std::string, Matrix<double>>>& curves) {
  std::string script, plot;
  const Index middle = curves.front().second.rows() / 2;
  for (std::size_t c = 0; c < curves.size(); ++c) {
    const std::string name = "$profile_" + std::to_string(c);
    script += name + " << END\n";
    for (Index j = 0; j < curves[c].second.cols(); ++j)
      script += std::to_string(j - middle) + format_number(" %.4g\n", curves[c].second(middle, j));
    script += "END\n";
    plot += (c == 0 ? "plot " : ", ") + name + " using 1:2 with " +
            (c == 0 ? "lines linewidth 2 linecolor 'black'" : "steps linecolor " + std::to_string(c)) +
            " title '" + curves[c].first + "'";
  }
  return script + plot + "\n";
}

int run(const CommonOptions& options) {
  const Index n = options.quick ? 40 : 160;
  const LaplaceKernel kernel{static_cast<double>(n) / 10};
  const Index sizes[] = {4, 16, 64};
  const Matrix<double> exact = kernel_matrix(kernel, n);

  const std::vector<std::string> columns = {"sampling", "s", "largest error", "error / norm (Frobenius)"};
  TextTable table(columns, 1);
  CsvTable csv(columns);
  std::vector<std::pair<std::string, Matrix<double>>> curves = {{"L*", exact}};
  std::string means[3];
  for (int row = 0; row < 3; ++row)
    for (const Index samples : sizes) {
      const auto [sampling, name] = all_samplings[row];
      const Matrix<double> mean =
          poslsh::MeanMask(poslsh::draw_hashes(kernel, samples, options.seed, sampling)).dense(n);
      const Matrix<double> error = mean - exact;
      const std::vector<std::string> cells = {name, std::to_string(samples),
                                              format_number("%.3f", error.cwiseAbs().maxCoeff()),
                                              format_number("%.3f", error.norm() / exact.norm())};
      table.add(cells);
      csv.add(cells);
      means[row] +=
          image(name + std::to_string(samples),
                std::string(name) + ", s = " + std::to_string(samples) + ", error " + cells.back(), mean);
      if (samples == 16) curves.emplace_back(name, mean);
    }
  table.print(stdout);
  if (!options.csv.empty()) csv.write(options.csv);
  if (options.plot.empty()) return 0;

  const poslsh::BlockMask one(poslsh::draw_hashes(kernel, 1, options.seed, Sampling::independent).front(), n);
  // Each row of panels: something from the left column, then three means.
  // Each row of panels: something from the left column, then three means.
  draw_images(options, 4, 3,
              image("exact", "L* = exp(-|i-j| / " + format_number("%g", kernel.sigma) + ")", exact) +
                  means[0] + image("one", "one mask", one.dense()) + means[1] +
                  "set size noratio\nset yrange [0:1.3] noreverse\nset xtics 40\nset ytics 0.5\nset title "
                  "'middle row, s = "
                  "16'\nset key font ',8'\n" +
                  profiles(curves) + image_settings + means[2]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("pictures", [&] {
    CommonOptions options;
    options.seed = 3;
    const char* const about =
        "The ALiBi weights, one random mask, and means of 4, 16 and 64 masks as images side by side.";
    return common_flags(about, options).parse(argc, argv) ? run(options) : 0;
  });
}
