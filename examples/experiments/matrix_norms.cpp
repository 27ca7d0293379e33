// SPDX-License-Identifier: MIT
//
// How far the mean mask is from the ALiBi weight matrix L*, in spectral and max norm, for the slopes of a
// 32-head and a 40-head model (the latter has the former's and eight more), beside the bounds of Theorem 2.1.

#include <poslsh/theory/bounds.hpp>
#include <poslsh/theory/spectral.hpp>

#include "experiment.hpp"

namespace {

using namespace experiments;

/// Mt - L* as far as it is not lost to rounding: the diagonals t = 0 .. band - 1 of the upper triangle, row
/// by row.
class Difference {
 public:
  Difference(double sigma, const poslsh::MeanMask& mask, Index n) : size_(n) {
    const auto hashes = mask.hashes();
    double widest = 0;
    for (const poslsh::PositionHash& hash : hashes) widest = std::max(widest, std::ceil(hash.width));
    // L* itself is below exp(-40) = 4e-18 beyond 40 sigma.
    band_ = static_cast<Index>(std::min(static_cast<double>(n), std::max(widest, std::ceil(40 * sigma)) + 1));
    values_.resize(n, band_);
    Eigen::RowVectorXd exact(band_);
    for (Index t = 0; t < band_; ++t) exact[t] = std::exp(-static_cast<double>(t) / sigma);
    // ending[j]: weights of the blocks that hold the current row and end with position j.
    std::vector<double> ending(static_cast<std::size_t>(n), 0.0);
    std::vector<Index> block_end(hashes.size(), 0);
    const double share = 1 / static_cast<double>(hashes.size());
    for (Index i = 0; i < n; ++i) {
      for (std::size_t r = 0; r < hashes.size(); ++r) {
        if (block_end[r] > i) continue;
        block_end[r] = std::min(hashes[r].block(i).end, n);
        ending[static_cast<std::size_t>(block_end[r] - 1)] += hashes[r].weight;
      }
      double sum = 0;
      values_.row(i).setZero();
      for (Index t = std::min(band_, n - i) - 1; t >= 0; --t) {
        sum += ending[static_cast<std::size_t>(i + t)];
        values_(i, t) = sum * share - exact[t];
      }
    }
  }

  [[nodiscard]] double max_norm() const { return values_.cwiseAbs().maxCoeff(); }

  [[nodiscard]] double spectral_norm(double tolerance) const {
    return poslsh::detail::largest_eigenvalue(
        tolerance, poslsh::detail::random_start(size_), [&](const double* x, double* y) {
          const Eigen::Map<const Eigen::VectorXd> in(x, size_);
          Eigen::Map<Eigen::VectorXd> out(y, size_);
          out.setZero();
          for (Index i = 0; i < size_; ++i) {
            const Index count = std::min(band_, size_ - i);
            const auto row = values_.row(i).segment(1, count - 1);
            out[i] += values_(i, 0) * in[i] + row.dot(in.segment(i + 1, count - 1));
            out.segment(i + 1, count - 1) += in[i] * row.transpose();
          }
        });
  }

 private:
  Index size_, band_ = 0;
  Matrix<double> values_;
};

struct Task {
  double slope;
  const NamedSampling* sampling;
  Index samples;
  double spectral = 0, max = 0;
};

int run(int argc, char** argv) {
  CommonOptions common;
  Index n = 4500, largest = 100000, every = 1;
  double tolerance = 1e-3;
  if (!common_flags("Norms of Mt - L* against the number of draws, beside Theorem 2.1.", common)
           .whole("--positions", n, "Positions n", 2, 20000)
           .whole("--largest", largest, "Largest number of draws; 1, 10, 100, .. up to it", 1, 10000000)
           .whole("--every", every, "Take every so-manieth of the 40 slopes", 1, 40)
           .between("--tolerance", tolerance, "Of the spectral norms, relative", 1e-8, 0.1, "a number from 1e-8 to 0.1")
           .parse(argc, argv))
    return 0;
  if (common.quick) n = 300, largest = 100, every = 8;

  // The 40 slopes are the 32 and eight between the steepest of them.
  const std::vector<double> of_40 = poslsh::alibi_slopes(40), of_32 = poslsh::alibi_slopes(32);
  std::vector<double> slopes = of_40;
  std::sort(slopes.rbegin(), slopes.rend());
  std::vector<Task> tasks;
  for (std::size_t h = 0; h < slopes.size(); h += static_cast<std::size_t>(every))
    for (const NamedSampling& sampling : all_samplings)
      for (Index s = 1; s <= largest; s *= 10) tasks.push_back({slopes[h], &sampling, s});

  Progress progress(static_cast<double>(tasks.size()));
  std::mutex mutex;
  poslsh::detail::parallel_for(static_cast<Index>(tasks.size()), common.threads, [&](Index number, int) {
    Task& task = tasks[tasks.size() - 1 - static_cast<std::size_t>(number)];
    const auto stream =
        static_cast<std::uint64_t>(std::find(slopes.begin(), slopes.end(), task.slope) - slopes.begin());
    const double sigma = 1 / task.slope;
    const poslsh::MeanMask mask(poslsh::draw_hashes(poslsh::LaplaceKernel{sigma}, task.samples, common.seed,
                                                    task.sampling->sampling, stream));
    const Difference difference(sigma, mask, n);
    task.max = difference.max_norm();
    task.spectral = difference.spectral_norm(tolerance);
    const std::lock_guard lock(mutex);
    progress.advance(1);
  });

  CsvTable csv({"model", "slope", "sigma", "sampling", "samples", "spectral_error", "relative_spectral_error",
                "max_error", "spectral_bound_of_mean", "spectral_error_at_5_percent",
                "max_error_at_5_percent"});
  constexpr double failure = 0.05;
  const auto at_failure = [&](auto&& tail) {  // the error whose tail bound is 5 %
    double low = 0, high = 1e6;
    for (int step = 0; step < 100; ++step) {
      const double middle = (low + high) / 2;
      (tail(middle) <= failure ? high : low) = middle;
    }
    return high;
  };
  TextTable table({"sampling", "samples", "relative spectral error: least", "mean", "largest",
                   "max error: mean", "largest", "largest / bound of mean"},
                  1);
  Panel relative{
      "relative spectral error, mean over heads", "draws s", "", "set logscale xy\nset format y '%.0e'", {}};
  Panel largest_pair{"max-norm error, mean over heads", "draws s", "", relative.settings, {}};
  Curve bound{"bound of the mean (independent)", "lines linecolor 'black' dashtype 2", {}};
  Curve max_bound{"bound at 5 % (independent)", "lines linecolor 'black' dashtype 2", {}};
  std::vector<double> exponents, max_exponents;
  int above = 0;
  for (const NamedSampling& sampling : all_samplings) {
    relative.curves.push_back({sampling.name, line_of(sampling.sampling), {}});
    largest_pair.curves.push_back({sampling.name, line_of(sampling.sampling), {}});
    for (Index s = 1; s <= largest; s *= 10) {
      std::vector<double> errors, maxima, parts, bounds;
      const double max_limit = at_failure([&](double e) { return poslsh::theory::max_tail_bound(n, s, e); });
      for (const Task& task : tasks) {
        if (task.sampling != &sampling || task.samples != s) continue;
        const double sigma = 1 / task.slope,
                     norm = poslsh::theory::spectral_norm(poslsh::LaplaceKernel{sigma}, n);
        const double mean_bound = poslsh::theory::spectral_expectation_bound(sigma, n, s);
        const double limit =
            at_failure([&](double e) { return 2 * poslsh::theory::spectral_tail_bound(sigma, n, s, e); });
        errors.push_back(task.spectral / norm);
        maxima.push_back(task.max);
        parts.push_back(task.spectral / mean_bound);
        bounds.push_back(mean_bound / norm);
        if (sampling.sampling == Sampling::independent)
          above += task.spectral > limit || task.max > max_limit;
        const bool in_32 = std::find(of_32.begin(), of_32.end(), task.slope) != of_32.end();
        csv.add({in_32 ? "32 and 40" : "40", text(task.slope), text(sigma), sampling.name, text(s),
                 text(task.spectral), text(task.spectral / norm), text(task.max), text(mean_bound),
                 text(limit), text(max_limit)});
      }
      const auto x = static_cast<double>(s);
      relative.curves.back().points.push_back({x, mean(errors)});
      largest_pair.curves.back().points.push_back({x, mean(maxima)});
      if (sampling.sampling == Sampling::independent) {
        bound.points.push_back({x, mean(bounds)});
        max_bound.points.push_back({x, max_limit});
      }
      table.add({sampling.name, text(s), text(quantile(errors, 0)), text(mean(errors)),
                 text(quantile(errors, 1)), text(mean(maxima)), text(quantile(maxima, 1)),
                 text(quantile(parts, 1))});
    }
  }
  relative.curves.push_back(bound);
  largest_pair.curves.push_back(max_bound);
  table.print(stdout);

  // Exponents of each head from s = 100 on: below, the term ln(n) / s has its say.
  const Index from = std::min<Index>(100, largest / 10);
  for (const NamedSampling& sampling : all_samplings) {
    exponents.clear();
    max_exponents.clear();
    for (const double slope : slopes) {
      std::vector<Point> spectral, max;
      for (const Task& task : tasks)
        if (task.slope == slope && task.sampling == &sampling && task.samples >= from) {
          spectral.push_back({static_cast<double>(task.samples), task.spectral});
          max.push_back({static_cast<double>(task.samples), task.max});
        }
      if (spectral.size() < 2) continue;
      exponents.push_back(fitted_exponent(spectral));
      max_exponents.push_back(fitted_exponent(max));
    }
    if (exponents.empty()) continue;
    std::printf(
        "%s: spectral error falls as s^%.3f (heads from %.3f to %.3f), max error as s^%.3f (s from %td on)\n",
        sampling.name, mean(exponents), quantile(exponents, 0), quantile(exponents, 1), mean(max_exponents),
        from);
  }
  std::printf("independent errors above their 5 %% bounds: %d\n", above);
  if (!common.csv.empty()) csv.write(common.csv);
  draw(common, {relative, largest_pair});
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("matrix_norms", [&] { return run(argc, argv); });
}
