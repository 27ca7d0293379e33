// SPDX-License-Identifier: MIT
//
// Which draws are best for attention? Plain widths, widths stretched and weighted, and half of each, on real heads: the
// error beside the keys one sweep visits, and those of the blocks one by one.

#include "../support/npy.hpp"
#include "experiment.hpp"

namespace {

using namespace experiments;
using poslsh::PositionHash;

struct Design {
  const char* name;
  Sampling sampling;
  double stretch;
};

constexpr Design designs[] = {{"stratified", Sampling::stratified, 1},
                              {"importance 1.25", Sampling::importance, 1.25},
                              {"importance 1.5", Sampling::importance, 1.5},
                              {"importance 2", Sampling::importance, 2},
                              {"importance 3", Sampling::importance, 3},
                              {"mixture 2", Sampling::mixture, 2},
                              {"mixture 3", Sampling::mixture, 3},
                              {"mixture 4", Sampling::mixture, 4},
                              {"mixture 6", Sampling::mixture, 6}};

struct Head {
  std::string name;
  Matrix<float> q, k, v;
};

void read_heads(const std::string& file, const std::string& name, Index limit, std::vector<Head>& heads) {
  const poslsh_examples::NpyArray array = poslsh_examples::read_npy(file);
  const auto* values = std::get_if<std::vector<float>>(&array.values);
  if (values == nullptr || array.shape.size() != 4 || array.shape[0] != 3)
    throw std::runtime_error(file + ": not a float32 array 3 x heads x tokens x features");
  const Index count = array.shape[1], n = array.shape[2], d = array.shape[3];
  for (Index h = 0; h < count; ++h) {
    const auto part = [&](Index which) -> Matrix<float> {
      return Eigen::Map<const Matrix<float>>(values->data() + (which * count + h) * n * d, n, d).topRows(
          std::min(n, limit));
    };
    heads.push_back({name + " head " + std::to_string(h), part(0), part(1), part(2)});
  }
}

int run(int argc, char** argv) {
  CommonOptions common;
  Index seeds = 6;
  std::vector<double> sigmas{16, 64, 256};
  std::vector<Index> samples{32, 128, 512};
  std::vector<std::string> files{POSLSH_EXAMPLE_DATA "/text_qkv.npy"};
  if (!parse(argc, argv, "Error of designs of the draws on real heads, causal.", common, [&](CLI::App& app) {
        app.add_option("files", files, "NumPy files 3 x heads x tokens x features, float32");
        app.add_option("--seeds", seeds, "Seeds to average over")->check(CLI::Range(1, 1000));
        app.add_option("--sigma", sigmas, "1 / slope")->delimiter(',')->check(CLI::PositiveNumber);
        app.add_option("--samples", samples, "Numbers of draws")->delimiter(',')->check(CLI::Range(1, 1 << 16));
      }))
    return 0;
  if (common.quick) seeds = 1, sigmas = {16}, samples = {32};
  std::vector<Head> heads;
  for (const std::string& file : files)
    read_heads(file, std::filesystem::path(file).stem().string(), common.quick ? 200 : 1 << 20, heads);

  CsvTable csv({"head", "sigma", "samples", "design", "error", "error_over_stratified", "keys_of_one_sweep",
                "keys_of_blocks"});
  TextTable table({"design", "samples", "error / stratified: mean", "best", "worst", "keys, one sweep", "keys, blocks"},
                  1);
  Progress progress(static_cast<double>(heads.size() * sigmas.size() * samples.size() * std::size(designs)));
  Panel panel{"mean over heads and sigma", "draws s", "error over that of stratified draws", "set logscale x", {}};
  struct Sum {
    double log_ratio = 0, best = 1e300, worst = 0, sweep = 0, blocks = 0, count = 0;
  };
  std::vector<std::vector<Sum>> sums(std::size(designs), std::vector<Sum>(samples.size()));
  for (const Head& head : heads)
    for (const double sigma : sigmas) {
      const poslsh::AttentionOptions options{.causal = true, .threads = common.threads};
      const Matrix<float> exact = poslsh::attention(head.q, head.k, head.v, poslsh::AlibiBias{1 / sigma}, options).values;
      const double n = static_cast<double>(head.q.rows());
      for (std::size_t i = 0; i < samples.size(); ++i) {
        double stratified = 0;
        for (std::size_t g = 0; g < std::size(designs); ++g) {
          double error = 0, sweep = 0, blocks = 0;
          for (Index seed = 0; seed < seeds; ++seed) {
            const std::vector<PositionHash> hashes =
                poslsh::draw_hashes(poslsh::LaplaceKernel{sigma}, samples[i], common.seed + static_cast<std::uint64_t>(seed),
                                    designs[g].sampling, 0, designs[g].stretch);
            for (const PositionHash& hash : hashes) blocks += (std::min(std::max(hash.width, 1.0), n) + 1) / 2;
            Matrix<float> values(exact.rows(), exact.cols());
            poslsh::Vector<double> log_sum_exp(exact.rows());
            sweep += static_cast<double>(poslsh::attention_into(head.q, head.k, head.v, poslsh::MeanMask(hashes),
                                                                options, values, log_sum_exp)) / n;
            error += static_cast<double>((values - exact).norm() / exact.norm());
          }
          const double runs = static_cast<double>(seeds);
          error /= runs, sweep /= runs, blocks /= runs;
          if (g == 0) stratified = error;
          const double ratio = error / stratified;
          csv.add({head.name, text(sigma), text(samples[i]), designs[g].name, text(error), text(ratio), text(sweep),
                   text(blocks)});
          Sum& sum = sums[g][i];
          sum.log_ratio += std::log(ratio);
          sum.best = std::min(sum.best, ratio);
          sum.worst = std::max(sum.worst, ratio);
          sum.sweep += std::log(sweep);
          sum.blocks += std::log(blocks);
          sum.count += 1;
          progress.advance(1);
        }
      }
    }
  for (std::size_t g = 0; g < std::size(designs); ++g) {
    panel.curves.push_back({designs[g].name, "linespoints linewidth 2 linecolor " + std::to_string(g + 1), {}});
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const Sum& sum = sums[g][i];
      const double mean_ratio = std::exp(sum.log_ratio / sum.count);
      table.add({designs[g].name, text(samples[i]), text(mean_ratio), text(sum.best), text(sum.worst),
                 text(std::exp(sum.sweep / sum.count)), text(std::exp(sum.blocks / sum.count))});
      panel.curves.back().points.push_back({static_cast<double>(samples[i]), mean_ratio});
    }
  }
  table.print(stdout);
  if (!common.csv.empty()) csv.write(common.csv);
  draw(common, {panel});
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("designs", [&] { return run(argc, argv); });
}
