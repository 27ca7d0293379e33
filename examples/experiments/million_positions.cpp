// SPDX-License-Identifier: MIT
//
// The spectral error of Theorem 2.1 at a million positions: no matrix, only Mt x in O(n s) and L* x in O(n).

#include <poslsh/theory/bounds.hpp>
#include <poslsh/theory/spectral.hpp>

#include <sys/resource.h>
#include <chrono>

#include "experiment.hpp"

namespace {

using namespace experiments;

int run(int argc, char** argv) {
  CommonOptions common;
  common.threads = 1;
  Index n = Index{1} << 20;
  double sigma = 256, tolerance = 1e-3;
  std::vector<Index> samples{1, 4, 16, 32, 64, 256, 1024};
  std::vector<std::string> names{"independent", "importance", "mixture"};
  if (!common_flags("Spectral error of the mean mask at a million positions.", common)
           .whole("--positions", n, "Positions n", 2, 1 << 26)
           .positive("--sigma", sigma, "1 / slope")
           .whole("--samples", samples, "Numbers of draws", 1, 1 << 20)
           .words("--sampling", names, "independent, stratified, importance, mixture",
                  {"independent", "stratified", "importance", "mixture"})
           .between("--tolerance", tolerance, "Of the spectral norm, relative", 1e-8, 0.1, "a number from 1e-8 to 0.1")
           .parse(argc, argv))
    return 0;
  if (common.quick) n = 1 << 14, samples = {4, 16, 64};

  struct Task {
    const NamedSampling* sampling;
    Index samples;
    double error = 0, seconds = 0;
  };
  std::vector<Task> tasks;
  double work = 0;
  for (const NamedSampling& sampling : all_samplings)
    if (std::find(names.begin(), names.end(), sampling.name) != names.end())
      for (const Index s : samples) {
        tasks.push_back({&sampling, s});
        work += static_cast<double>(s);
      }
  Progress progress(work);
  std::mutex mutex;
  poslsh::detail::parallel_for(static_cast<Index>(tasks.size()), common.threads, [&](Index number, int) {
    Task& task = tasks[static_cast<std::size_t>(number)];
    const poslsh::LaplaceKernel kernel{sigma};
    const poslsh::MeanMask mask(
        poslsh::draw_hashes(kernel, task.samples, common.seed, task.sampling->sampling));
    const auto start = std::chrono::steady_clock::now();
    task.error = poslsh::theory::spectral_error(kernel, mask, n, tolerance);
    task.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const std::lock_guard lock(mutex);
    progress.advance(static_cast<double>(task.samples));
  });

  const double norm = poslsh::theory::spectral_norm(poslsh::LaplaceKernel{sigma}, n);
  CsvTable csv({"positions", "sigma", "sampling", "samples", "spectral_error", "relative_spectral_error",
                "relative_bound_of_mean", "seconds"});
  TextTable table({"sampling", "samples", "spectral error", "relative", "bound of mean", "seconds"}, 1);
  Panel panel{"n = " + text(n) + ", sigma = " + text(sigma),
              "draws s",
              "spectral error / norm of L*",
              "set logscale xy",
              {}};
  Curve bound{"bound of the mean (independent)", "lines linecolor 'black' dashtype 2", {}};
  for (const Task& task : tasks) {
    const double mean_bound = poslsh::theory::spectral_expectation_bound(sigma, n, task.samples) / norm;
    csv.add({text(n), text(sigma), task.sampling->name, text(task.samples), text(task.error),
             text(task.error / norm), text(mean_bound), text(task.seconds)});
    table.add({task.sampling->name, text(task.samples), text(task.error), text(task.error / norm),
               text(mean_bound), text(task.seconds)});
    if (panel.curves.empty() || panel.curves.back().title != task.sampling->name)
      panel.curves.push_back({task.sampling->name, line_of(task.sampling->sampling), {}});
    panel.curves.back().points.push_back({static_cast<double>(task.samples), task.error / norm});
    if (panel.curves.size() == 1) bound.points.push_back({static_cast<double>(task.samples), mean_bound});
  }
  panel.curves.push_back(bound);
  table.print(stdout);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("largest resident size: %.0f MiB\n", static_cast<double>(usage.ru_maxrss) / 1024);
  if (!common.csv.empty()) csv.write(common.csv);
  draw(common, {panel});
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("million_positions", [&] { return run(argc, argv); });
}
