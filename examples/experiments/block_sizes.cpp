// SPDX-License-Identifier: MIT
//
// How large the blocks of positional LSH get, beside block_size_bound, and what blockwise_attention costs.

#include <poslsh/theory/bounds.hpp>

#include <ctime>

#include "experiment.hpp"

namespace {

using namespace experiments;

/// The most positions in one block of any of the hashes over n positions.
Index largest_block(const std::vector<poslsh::PositionHash>& hashes, Index n) {
  Index largest = 0;
  for (const poslsh::PositionHash& hash : hashes) {
    if (static_cast<double>(largest) >= std::ceil(hash.width)) continue;  // none of its blocks is larger
    for (Index begin = 0; begin < n;) {
      const Index end = std::min(hash.block(begin).end, n);
      largest = std::max(largest, end - begin);
      begin = end;
    }
  }
  return largest;
}

constexpr double failure = 0.05;

struct Shape {
  Index n, d, samples;
  double sigma;
  double seconds = 0;

  /// The cost of the theorem, up to its constant.
  [[nodiscard]] double theorem() const {
    const auto s = static_cast<double>(samples);
    return static_cast<double>(n * d) * (sigma * s * std::log(s / failure) + 1);
  }
  /// 2 sigma keys a query and draw on average.
  [[nodiscard]] double mean_pairs() const { return static_cast<double>(n * d * samples) * 2 * sigma; }
};

double measure(const Shape& shape, std::uint64_t seed) {
  const Matrix<float> q = unit_normal(shape.n, shape.d, seed, 0).cast<float>(),
                      k = unit_normal(shape.n, shape.d, seed, 1).cast<float>(),
                      v = unit_normal(shape.n, shape.d, seed, 2).cast<float>();
  const auto hashes =
      poslsh::draw_hashes(poslsh::LaplaceKernel{shape.sigma}, shape.samples, seed, Sampling::stratified);
  std::vector<double> seconds;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const std::clock_t start = std::clock();  // of the processor: others use the machine too
    const auto output = poslsh::blockwise_attention(q, k, v, hashes);
    seconds.push_back(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    if (!output.values.allFinite())
      throw std::runtime_error("blockwise_attention gave a value that is not finite");
  }
  return *std::min_element(seconds.begin(), seconds.end());
}

/// seconds = c model, fitted in logarithms: prints c and how far a shape is from it.
void fit(const char* name, const std::vector<Shape>& shapes, double (Shape::*model)() const) {
  std::vector<double> logarithms;
  logarithms.reserve(shapes.size());
  for (const Shape& shape : shapes) logarithms.push_back(std::log(shape.seconds / (shape.*model)()));
  const double centre = mean(logarithms);
  double largest = 0;
  for (const double value : logarithms) largest = std::max(largest, std::abs(value - centre));
  std::printf("seconds = %.3g x %s, every shape within a factor of %.2f\n", std::exp(centre), name,
              std::exp(largest));
}

int run(int argc, char** argv) {
  CommonOptions common;
  double sigma = 16;
  Index seeds = 200, longest = Index{1} << 20;
  std::string cost_csv;
  if (!common_flags("Block sizes beside their bound, and the cost of blockwise attention.", common)
           .positive("--sigma", sigma, "1 / slope, of the block sizes")
           .whole("--seeds", seeds, "Draws of s hashes a length", 2, 100000)
           .whole("--longest", longest, "Largest n", 256, 1 << 24)
           .output("--cost-csv", cost_csv, "Write the times to this file")
           .parse(argc, argv))
    return 0;
  if (common.quick) seeds = 20, longest = 1 << 12;

  // Block sizes: first s = ceil(ln n), then a fixed length.
  CsvTable csv({"setting", "positions", "sigma", "samples", "mean_largest", "quantile_95_largest", "largest",
                "bound_at_5_percent", "above_bound"});
  TextTable table({"setting", "n", "s", "largest block: mean", "95 %", "of all", "bound at 5 %", "above it"},
                  1);
  std::vector<Panel> panels(3);
  panels[0] = {
      "s = ceil(ln n), sigma = " + text(sigma), "n", "positions in the largest block", "set logscale x", {}};
  panels[1] = {"n = " + text(longest), "draws s", "positions in the largest block", "set logscale x", {}};
  const poslsh::LaplaceKernel kernel{sigma};
  const auto size_row = [&](const char* setting, Index n, Index samples, Panel& panel, double x) {
    std::vector<double> sizes(static_cast<std::size_t>(seeds));
    poslsh::detail::parallel_for(seeds, common.threads, [&](Index number, int) {
      sizes[static_cast<std::size_t>(number)] = static_cast<double>(
          largest_block(poslsh::draw_hashes(kernel, samples, common.seed + static_cast<std::uint64_t>(number),
                                            Sampling::independent),
                        n));
    });
    const Index bound = poslsh::theory::block_size_bound(kernel, samples, failure);
    Index above = 0;
    for (const double size : sizes) above += size > static_cast<double>(bound);
    const std::vector<std::string> numbers{text(mean(sizes)), text(quantile(sizes, 0.95)),
                                           text(quantile(sizes, 1)), text(bound), text(above)};
    table.add({setting, text(n), text(samples), numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]});
    csv.add({setting, text(n), text(sigma), text(samples), numbers[0], numbers[1], numbers[2], numbers[3],
             numbers[4]});
    if (panel.curves.empty())
      panel.curves = {{"mean", line_of(Sampling::independent), {}},
                      {"95 %", line_of(Sampling::stratified), {}},
                      {"bound at 5 %", "lines linecolor 'black' dashtype 2", {}}};
    panel.curves[0].points.push_back({x, mean(sizes)});
    panel.curves[1].points.push_back({x, quantile(sizes, 0.95)});
    panel.curves[2].points.push_back({x, static_cast<double>(bound)});
    return mean(sizes);
  };
  std::vector<Point> growth;  // against ln ln n
  for (Index n = 256; n <= longest; n *= 4) {
    const auto samples = static_cast<Index>(std::ceil(std::log(static_cast<double>(n))));
    growth.push_back({std::log(std::log(static_cast<double>(n))),
                      size_row("s = ceil(ln n)", n, samples, panels[0], static_cast<double>(n))});
  }
  for (Index samples = 1; samples <= 1024; samples *= 4)
    size_row("n fixed", longest, samples, panels[1], static_cast<double>(samples));
  table.print(stdout);
  std::printf("from n = 256 to %td the mean largest block grows by %.2f sigma for %.2f more of ln ln n\n",
              longest, (growth.back().y - growth.front().y) / sigma, growth.back().x - growth.front().x);

  // The law of the widths: parts of 100 000 draws in bins of sigma / 4, beside the density.
  constexpr Index draws = 100000, bins = 40;
  std::vector<double> counts(bins, 0.0);
  for (const poslsh::PositionHash& hash :
       poslsh::draw_hashes(kernel, draws, common.seed, Sampling::independent)) {
    const double bin = std::floor(4 * hash.width / sigma);
    if (bin < bins) ++counts[static_cast<std::size_t>(bin)];
  }
  panels[2] = {
      "widths",
      "width / sigma",
      "density x sigma",
      "",
      {{"100 000 draws", "histeps linecolor 1", {}}, {"density", "lines linecolor 'black' dashtype 2", {}}}};
  double gap = 0;
  for (Index b = 0; b < bins; ++b) {
    const double low = static_cast<double>(b) / 4, count = counts[static_cast<std::size_t>(b)];
    const double share = count / static_cast<double>(draws);
    gap = std::max(
        gap, std::abs(share - (kernel.width_tail(low * sigma) - kernel.width_tail((low + 0.25) * sigma))));
    panels[2].curves[0].points.push_back({low + 0.125, 4 * share});
    panels[2].curves[1].points.push_back({low + 0.125, sigma * kernel.width_density((low + 0.125) * sigma)});
  }
  std::printf("widths: no bin of sigma / 4 is off the law by more than %.2g of all draws\n", gap);

  // Cost: one size at a time, from one shape on.
  const Shape base = common.quick ? Shape{512, 32, 4, 16} : Shape{4096, 64, 16, 64};
  std::vector<Shape> shapes;
  std::vector<std::vector<Point>> sweeps(4);
  for (int which = 0; which < 4; ++which)
    for (const Index factor : {1, 2, 4}) {
      Shape shape = base;
      if (which == 0) shape.n *= factor;
      if (which == 1) shape.d *= factor;
      if (which == 2) shape.samples *= factor;
      if (which == 3) shape.sigma *= static_cast<double>(factor) / 2;
      shapes.push_back(shape);
    }
  Progress progress(static_cast<double>(shapes.size()));
  CsvTable costs({"positions", "features", "samples", "sigma", "seconds", "n_d_(sigma_s_log(s/delta)+1)"});
  TextTable cost_table({"n", "d", "s", "sigma", "seconds", "seconds / (n d (sigma s log(s / delta) + 1))"},
                       0);
  Panel cost_panel{"blockwise attention, one thread",
                   "n d (sigma s log(s / delta) + 1)",
                   "seconds",
                   "set logscale xy",
                   {{"measured", "points pointtype 7 linecolor 1", {}}}};
  for (std::size_t number = 0; number < shapes.size(); ++number) {
    Shape& shape = shapes[number];
    shape.seconds = measure(shape, common.seed);
    sweeps[number / 3].push_back({std::pow(2.0, static_cast<double>(number % 3)), shape.seconds});
    progress.advance(1);
    costs.add({text(shape.n), text(shape.d), text(shape.samples), text(shape.sigma), text(shape.seconds),
               text(shape.theorem())});
    cost_table.add({text(shape.n), text(shape.d), text(shape.samples), text(shape.sigma), text(shape.seconds),
                    text(shape.seconds / shape.theorem())});
    cost_panel.curves[0].points.push_back({shape.theorem(), shape.seconds});
  }
  cost_table.print(stdout);
  std::printf("exponents: n %.2f, d %.2f, s %.2f, sigma %.2f\n", fitted_exponent(sweeps[0]),
              fitted_exponent(sweeps[1]), fitted_exponent(sweeps[2]), fitted_exponent(sweeps[3]));
  fit("n d (sigma s log(s / 0.05) + 1)", shapes, &Shape::theorem);
  fit("2 sigma n d s", shapes, &Shape::mean_pairs);
  panels.push_back(cost_panel);
  if (!common.csv.empty()) csv.write(common.csv);
  if (!cost_csv.empty()) costs.write(cost_csv);
  draw(common, panels, 2);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("block_sizes", [&] { return run(argc, argv); });
}
