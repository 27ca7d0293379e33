// SPDX-License-Identifier: MIT
//
// Theorem 2.2 holds for all queries, keys and values at once: the masks are drawn once, and inputs may be
// chosen after seeing them. Here are many inputs whose scores stay within +-B for one draw: random, real, and
// the worst we can make. Attention without causal mask.

#include <poslsh/theory/output_bounds.hpp>

#include "attention_case.hpp"

namespace {

using namespace experiments;

/// The error of a row, relative to the largest value.
double output_error(const Matrix<double>& exact, const Matrix<double>& mean, const AttentionCase& input) {
  const Matrix<double> scores = dense_scores(input, false);
  return (dense_attention(exact, scores, input.v) - dense_attention(mean, scores, input.v))
             .cwiseAbs()
             .maxCoeff() /
         input.v.cwiseAbs().maxCoeff();
}

/// Scales queries until |q_i| |k_j| / sqrt(d) is at most B, so that scores stay within +-B.
void hold_scores(AttentionCase& input, double score_bound) {
  input.q *= score_bound /
             (input.scale() * input.q.rowwise().norm().maxCoeff() * input.k.rowwise().norm().maxCoeff());
}

/// The worst input for one row of the masks: every key along q or against it, scores +B or -B; values +1 or
/// -1 by the sign of the change. The keys that get +B are those whose ratio Mt / L* lies in one tail or in
/// both; the cuts are tried on a grid.
AttentionCase attack_row(const Matrix<double>& exact, const Matrix<double>& mean, Index row,
                         double score_bound, Index features) {
  const Index n = exact.rows();
  const Eigen::ArrayXd p = exact.row(row).transpose(), m = mean.row(row).transpose();
  std::vector<Index> order(static_cast<std::size_t>(n));
  for (Index j = 0; j < n; ++j) order[static_cast<std::size_t>(j)] = j;
  std::sort(order.begin(), order.end(), [&](Index a, Index b) { return m[a] * p[b] < m[b] * p[a]; });
  constexpr Index cuts = 24;
  double best = -1;
  Eigen::ArrayXd best_change, best_sign;
  const auto cut_at = [&](Index part) { return part * n / cuts; };
  for (Index low = 0; low <= cuts; ++low)
    for (Index high = low; high <= cuts; ++high)
      for (const double direction : {1.0, -1.0}) {  // +B in the tails, or between them
        Eigen::ArrayXd sign(n);
        for (Index t = 0; t < n; ++t) {
          const bool tail = t < cut_at(low) || t >= cut_at(high);
          sign[order[static_cast<std::size_t>(t)]] = tail ? direction : -direction;
        }
        const Eigen::ArrayXd a = (score_bound * sign).exp(), pa = p * a, ma = m * a;
        const Eigen::ArrayXd change = pa / pa.sum() - ma / ma.sum();
        if (change.abs().sum() > best) {
          best = change.abs().sum();
          best_change = change;
          best_sign = sign;
        }
      }
  AttentionCase input{"adversarial", Matrix<double>::Zero(n, features), Matrix<double>::Zero(n, features),
                      Matrix<double>::Zero(n, features)};
  input.q.col(0).setConstant(score_bound / input.scale());
  input.k.col(0) = best_sign;
  input.v.col(0) = (best_change >= 0).select(Eigen::ArrayXd::Ones(n), -Eigen::ArrayXd::Ones(n));
  return input;
}

int run(int argc, char** argv) {
  CommonOptions common;
  std::string file = POSLSH_EXAMPLE_DATA "/text_qkv.npy";
  Index tokens = 512, inputs = 20, attacks = 16;
  double sigma = 16;
  std::vector<double> score_bounds{0.5, 2};
  std::vector<Index> samples{16, 64, 256, 1024, 4096, 16384, 65536};
  if (!common_flags("One draw of masks, many inputs: output error beside the bound of Theorem 2.2.", common)
           .input("--input", file, "Activations: .npy, [query, key, value] x heads x tokens x features")
           .whole("--tokens", tokens, "Tokens n", 48, 8192)
           .whole("--inputs", inputs, "Random inputs", 1, 100000)
           .whole("--attacks", attacks, "Rows attacked, those of the worst masks first", 1, 8192)
           .positive("--sigma", sigma, "1 / slope")
           .positive("--score-bounds", score_bounds, "B: scores within +-B")
           .whole("--samples", samples, "Numbers of draws", 1, 1 << 20)
           .parse(argc, argv))
    return 0;
  if (common.quick) tokens = 96, inputs = 4, attacks = 2, samples = {16, 256};

  std::vector<AttentionCase> given;
  for (AttentionCase& real : read_cases(file, tokens)) {
    real.name = "real";
    given.push_back(std::move(real));
  }
  tokens = std::min(tokens, given.front().q.rows());
  for (Index number = 0; number < inputs; ++number) {
    given.push_back(generated_case(tokens, 64, common.seed + static_cast<std::uint64_t>(number)));
    given.back().name = "random";
  }

  constexpr double failure = 0.05;
  const Matrix<double> kernel = dense_kernel(sigma, tokens);
  CsvTable csv({"score_bound", "sampling", "samples", "random_error", "real_error", "adversarial_error",
                "bound_given_masks", "bound_at_5_percent"});
  TextTable table(
      {"B", "sampling", "s", "random", "real", "adversarial", "bound, masks given", "bound at 5 %"}, 0);
  std::vector<Panel> panels;
  Index broken = 0;
  Progress progress(static_cast<double>(score_bounds.size() * samples.size() * 3));
  for (const double score_bound : score_bounds) {
    for (AttentionCase& input : given) hold_scores(input, score_bound);
    for (const NamedSampling& sampling : all_samplings) {
      if (sampling.sampling == Sampling::stratified) continue;
      const bool independent = sampling.sampling == Sampling::independent;
      Panel panel{"B = " + text(score_bound) + ", " + sampling.name,
                  "draws s",
                  "row error / largest value",
                  "set logscale xy\nset yrange [*:100]",
                  {}};
      panel.curves = {{"random", "linespoints linewidth 2 pointtype 7 pointsize 0.5 linecolor 1", {}},
                      {"real", "linespoints linewidth 2 pointtype 7 pointsize 0.5 linecolor 2", {}},
                      {"adversarial", "linespoints linewidth 2 pointtype 7 pointsize 0.5 linecolor 7", {}},
                      {"bound for these masks", "lines linecolor 'gray40' dashtype 2", {}},
                      {"bound at 5 %", "lines linecolor 'black' dashtype 2", {}}};
      for (const Index s : samples) {
        const poslsh::MeanMask mask(
            poslsh::draw_hashes(poslsh::LaplaceKernel{sigma}, s, common.seed, sampling.sampling));
        const Matrix<double> mean_mask = mask.dense(tokens);
        std::vector<double> errors(given.size());
        poslsh::detail::parallel_for(static_cast<Index>(given.size()), common.threads,
                                     [&](Index number, int) {
                                       const auto own = static_cast<std::size_t>(number);
                                       errors[own] = output_error(kernel, mean_mask, given[own]);
                                     });
        double random = 0, real = 0;
        for (std::size_t number = 0; number < given.size(); ++number) {
          double& largest = given[number].name == "real" ? real : random;
          largest = std::max(largest, errors[number]);
        }

        // Masks given: with scores within +-B no input can exceed 2 exp(2 B) rho, rho of the worst row.
        const Eigen::VectorXd row_gaps =
            ((kernel - mean_mask).cwiseAbs().rowwise().sum().array() / kernel.rowwise().sum().array())
                .matrix();
        const double given_masks = 2 * std::exp(2 * score_bound) * row_gaps.maxCoeff();
        std::vector<Index> order(static_cast<std::size_t>(tokens));
        for (Index i = 0; i < tokens; ++i) order[static_cast<std::size_t>(i)] = i;
        std::sort(order.begin(), order.end(), [&](Index a, Index b) { return row_gaps[a] > row_gaps[b]; });
        std::vector<double> attacked(static_cast<std::size_t>(std::min(attacks, tokens)));
        poslsh::detail::parallel_for(
            static_cast<Index>(attacked.size()), common.threads, [&](Index number, int) {
              const auto own = static_cast<std::size_t>(number);
              attacked[own] =
                  output_error(kernel, mean_mask, attack_row(kernel, mean_mask, order[own], score_bound, 64));
            });
        const double adversarial = quantile(attacked, 1);
        const double bound =
            independent ? poslsh::theory::uniform_output_error_bound(sigma, tokens, s, score_bound, failure)
                        : 0;
        broken += std::max({random, real, adversarial}) > given_masks * (1 + 1e-9) + 1e-12;
        csv.add({text(score_bound), sampling.name, text(s), text(random), text(real), text(adversarial),
                 text(given_masks), independent ? text(bound) : ""});
        table.add({text(score_bound), sampling.name, text(s), text(random), text(real), text(adversarial),
                   text(given_masks), independent ? text(bound) : ""});
        const double values[] = {random, real, adversarial, given_masks, bound};
        for (std::size_t c = 0; c < 5; ++c)
          if (values[c] > 0) panel.curves[c].points.push_back({static_cast<double>(s), values[c]});
        progress.advance(1);
      }
      panels.push_back(panel);
    }
  }
  table.print(stdout);
  if (!common.csv.empty()) csv.write(common.csv);
  draw(common, panels, 2);
  std::printf("errors above the bound for their masks: %td\n", broken);
  if (broken > 0) throw std::runtime_error("an input exceeds the bound of Theorem 2.2");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("uniformity", [&] { return run(argc, argv); });
}
