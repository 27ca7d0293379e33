// SPDX-License-Identifier: MIT
//
// Which draws are best for attention? Plain widths, widths stretched and weighted, half of each; other splits into widths
// and shifts, low-discrepancy phases, an exact near field, and that alone. On real heads: the error beside the keys one sweep visits, and
// those of the blocks one by one.

#include "../support/npy.hpp"
#include "experiment.hpp"

namespace {

using namespace experiments;
using poslsh::PositionHash;

/// How the shifts of a width are laid out.
enum class Phases {
  library,  ///< as draw_hashes does
  grid,     ///< `shifts` equally spaced ones, offset at random for each width
  golden    ///< one a width, steps of the golden ratio from one random offset
};

struct Design {
  const char* name;
  Sampling sampling;
  double stretch;
  Phases phases = Phases::library;
  Index shifts = 1;
  double near = 0;      ///< weights up to near x sigma are exact
  bool window = false;  ///< and nothing is beyond
};

constexpr Design designs[] = {{"stratified", Sampling::stratified, 1},
                              {"importance 1.25", Sampling::importance, 1.25},
                              {"importance 1.5", Sampling::importance, 1.5},
                              {"importance 2", Sampling::importance, 2},
                              {"importance 3", Sampling::importance, 3},
                              {"mixture 2", Sampling::mixture, 2},
                              {"mixture 3", Sampling::mixture, 3},
                              {"mixture 4", Sampling::mixture, 4},
                              {"mixture 6", Sampling::mixture, 6},
                              {"stratified, 1 shift a width", Sampling::stratified, 1, Phases::grid, 1},
                              {"stratified, 16 shifts", Sampling::stratified, 1, Phases::grid, 16},
                              {"stratified, golden phases", Sampling::stratified, 1, Phases::golden},
                              {"mixture 3, 1 shift a width", Sampling::mixture, 3, Phases::grid, 1},
                              {"mixture 3, 16 shifts", Sampling::mixture, 3, Phases::grid, 16},
                              {"mixture 3, golden phases", Sampling::mixture, 3, Phases::golden},
                              {"stratified, exact to sigma", Sampling::stratified, 1, Phases::library, 1, 1},
                              {"mixture 3, exact to sigma / 2", Sampling::mixture, 3, Phases::library, 1, 0.5},
                              {"mixture 3, exact to sigma", Sampling::mixture, 3, Phases::library, 1, 1},
                              {"mixture 3, exact to 2 sigma", Sampling::mixture, 3, Phases::library, 1, 2},
                              {"importance 3, exact to 2 sigma", Sampling::importance, 3, Phases::library, 1, 2},
                              {"exact window, 2 sigma", Sampling::stratified, 1, Phases::library, 1, 2, true},
                              {"exact window, 4 sigma", Sampling::stratified, 1, Phases::library, 1, 4, true},
                              {"exact window, 6 sigma", Sampling::stratified, 1, Phases::library, 1, 6, true}};

std::vector<PositionHash> draw(const Design& design, double sigma, Index samples, std::uint64_t seed) {
  const poslsh::LaplaceKernel kernel{sigma};
  if (design.phases == Phases::library)
    return poslsh::draw_hashes(kernel, samples, seed, design.sampling, 0, design.stretch);
  // Widths one by one from the library's law of so many strata; then their shifts.
  const Index shifts = design.phases == Phases::grid ? design.shifts : 1, widths = samples / shifts;
  const double first = poslsh::random_uniform(seed, 1, 0);
  std::vector<PositionHash> hashes;
  for (Index w = 0; w < widths; ++w) {
    const auto counter = static_cast<std::uint64_t>(w);
    const double probability =
        (static_cast<double>(w) + poslsh::random_uniform(seed, 2, counter)) / static_cast<double>(widths);
    PositionHash hash{kernel.width_quantile(std::min(probability, 1 - 0x1p-53)), 0, 1};
    if (design.sampling == Sampling::mixture) {
      hash.width = poslsh::detail::mixture_quantile(kernel, probability, hash.width, design.stretch);
      hash.weight = 2 / (1 + 1 / poslsh::detail::stretched_weight(kernel, hash.width, design.stretch));
    }
    for (Index c = 0; c < shifts; ++c) {
      const double phase = design.phases == Phases::golden
                               ? first + 0.6180339887498949 * static_cast<double>(w)
                               : (static_cast<double>(c) + poslsh::random_uniform(seed, 3, counter)) /
                                     static_cast<double>(shifts);
      hash.shift = hash.width * (phase - std::floor(phase));
      hashes.push_back(hash);
    }
  }
  return hashes;
}

/// The mean mask with exact ALiBi weights up to a distance: still right on average.
struct ExactNear {
  poslsh::MeanMask mask;
  poslsh::AlibiBias exact;
  Index near;

  [[nodiscard]] poslsh::KeyRange support(Index query) const {
    const poslsh::KeyRange far = mask.support(query);
    return {std::min(far.begin, query - near), std::max(far.end, query + near + 1)};
  }
  [[nodiscard]] double log_weight(Index query, Index key) const {
    return std::abs(query - key) <= near ? exact.log_weight(query, key) : mask.log_weight(query, key);
  }
  template <class T>
  void add_log_weights(Index query, Index first_key, T* scores, Index count) const {
    const Index begin = std::clamp(query - near - first_key, Index{0}, count);
    const Index end = std::clamp(query + near + 1 - first_key, begin, count);
    if (begin > 0) mask.add_log_weights(query, first_key, scores, begin);
    exact.add_log_weights(query, first_key + begin, scores + begin, end - begin);
    if (end < count) mask.add_log_weights(query, first_key + end, scores + end, count - end);
  }
};

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
  if (!common_flags("Error of designs of the draws on real heads, causal.", common)
           .inputs("files", files, "NumPy files 3 x heads x tokens x features, float32")
           .whole("--seeds", seeds, "Seeds to average over", 1, 1000)
           .positive("--sigma", sigmas, "1 / slope")
           .whole("--samples", samples, "Numbers of draws", 16, 1 << 16)
           .parse(argc, argv))
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
  Panel panel{"mean over heads and sigma", "draws s", "error over that of stratified draws", "set logscale xy", {}};
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
                draw(designs[g], sigma, samples[i], common.seed + static_cast<std::uint64_t>(seed));
            for (const PositionHash& hash : hashes) blocks += (std::min(std::max(hash.width, 1.0), n) + 1) / 2;
            Matrix<float> values(exact.rows(), exact.cols());
            poslsh::Vector<double> log_sum_exp(exact.rows());
            const poslsh::MeanMask mask(hashes);
            const auto attend = [&](const auto& bias) {
              return poslsh::attention_into(head.q, head.k, head.v, bias, options, values, log_sum_exp);
            };
            const Index near = static_cast<Index>(designs[g].near * sigma);
            Index visited = 0;
            if (designs[g].window) {
              poslsh::AttentionOptions window = options;
              window.window_left = near;
              visited = poslsh::attention_into(head.q, head.k, head.v, poslsh::AlibiBias{1 / sigma}, window, values,
                                               log_sum_exp);
            } else {
              visited = near > 0 ? attend(ExactNear{mask, poslsh::AlibiBias{1 / sigma}, near}) : attend(mask);
            }
            sweep += static_cast<double>(visited) / n;
            error += static_cast<double>((values - exact).norm() / exact.norm());
          }
          const double runs = static_cast<double>(seeds);
          error /= runs, sweep /= runs, blocks /= runs;
          if (g == 0) stratified = error;
          const double ratio = error / stratified;
          csv.add({head.name, text(sigma), text(samples[i]), designs[g].name, text(error), text(ratio), text(sweep),
                   text(blocks)});
          Sum& sum = sums[g][i];
          progress.advance(1);
          if (ratio == 0) continue;  // a window over all keys
          sum.log_ratio += std::log(ratio);
          sum.best = std::min(sum.best, ratio);
          sum.worst = std::max(sum.worst, ratio);
          sum.sweep += std::log(sweep);
          sum.blocks += std::log(blocks);
          sum.count += 1;
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
