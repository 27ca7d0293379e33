// SPDX-License-Identifier: MIT
//
// Output error of attention under the mean mask on real and generated inputs: ratio and mean merge side by
// side, and the row bound of Theorem 2.2, which no row may exceed.

#include <poslsh/attention/certificate.hpp>

#include "attention_case.hpp"

namespace {

using namespace experiments;

struct Errors {
  double relative, median_row, largest_row, mean_cosine, least_cosine;
};

Errors compare(const Matrix<double>& output, const Matrix<double>& exact) {
  std::vector<double> rows, cosines;
  for (Index i = 0; i < exact.rows(); ++i) {
    const double norm = exact.row(i).norm();
    rows.push_back((output.row(i) - exact.row(i)).norm() / norm);
    cosines.push_back(output.row(i).dot(exact.row(i)) / (norm * output.row(i).norm()));
  }
  return {(output - exact).norm() / exact.norm(), quantile(rows, 0.5), quantile(rows, 1), mean(cosines),
          quantile(cosines, 0)};
}

int run(int argc, char** argv) {
  CommonOptions common;
  std::string input = POSLSH_EXAMPLE_DATA "/text_qkv.npy";
  Index tokens = 1024;
  std::vector<double> sigmas{16, 64};
  std::vector<Index> samples{8, 32, 128, 512};
  bool causal = false;
  if (!common_flags("Output error against the number of draws, beside the row bounds of Theorem 2.2.", common)
           .input("--input", input, "Activations: .npy, [query, key, value] x heads x tokens x features")
           .whole("--tokens", tokens, "At most so many tokens", 2, 16384)
           .positive("--sigma", sigmas, "1 / slope")
           .whole("--samples", samples, "Numbers of draws", 1, 1 << 20)
           .on_off("--causal", causal, "A query sees no later key")
           .parse(argc, argv))
    return 0;
  if (common.quick) tokens = 128, samples = {8, 32}, sigmas = {16};

  std::vector<AttentionCase> cases = read_cases(input, tokens);
  for (const Index features : {64, 128}) cases.push_back(generated_case(tokens, features, common.seed));

  CsvTable csv({"input", "sigma", "sampling", "merge", "samples", "relative_error", "median_row_error",
                "largest_row_error", "mean_cosine", "least_cosine", "median_measured_to_certified",
                "largest_measured_to_certified", "median_certified_to_largest_value"});
  TextTable table({"input", "sigma", "sampling", "s", "ratio merge", "largest row", "least cosine",
                   "mean merge", "measured / certified", "largest"},
                  3);
  std::vector<Panel> panels;
  Index rows = 0, broken = 0;
  Progress progress(static_cast<double>(cases.size() * sigmas.size() * samples.size() * 3));
  poslsh::AttentionOptions options;
  options.causal = causal;
  options.threads = common.threads;
  for (const AttentionCase& one : cases) {
    for (const double sigma : sigmas) {
      const Matrix<double> exact =
          poslsh::attention(one.q, one.k, one.v, poslsh::AlibiBias{1 / sigma}, options).values;
      if (!exact.allFinite()) throw std::runtime_error(one.name + ": the activations are so large that sums overflow");
      Panel panel{one.name + ", sigma = " + text(sigma), "draws s", "relative error", "set logscale xy", {}};
      for (const NamedSampling& sampling : all_samplings) {
        if (sampling.sampling == Sampling::stratified) continue;
        Curve ratio_curve{std::string(sampling.name) + ", ratio", line_of(sampling.sampling), {}};
        Curve mean_curve{std::string(sampling.name) + ", mean", line_of(sampling.sampling, "dashtype 3"), {}};
        for (const Index s : samples) {
          const std::vector<poslsh::PositionHash> hashes =
              poslsh::draw_hashes(poslsh::LaplaceKernel{sigma}, s, common.seed, sampling.sampling);
          const poslsh::MeanMask mask(hashes);
          const Matrix<double> ratio = poslsh::attention(one.q, one.k, one.v, mask, options).values;
          const Errors of_ratio = compare(ratio, exact);
          const Errors of_mean = compare(
              poslsh::blockwise_attention(one.q, one.k, one.v, hashes, options, poslsh::Merge::mean).values,
              exact);

          const poslsh::Vector<double> bounds =
              poslsh::output_error_certificate(one.q, one.k, one.v, 1 / sigma, mask, options);
          std::vector<double> parts, certified;
          const double largest_value = one.v.cwiseAbs().maxCoeff();
          for (Index i = 0; i < bounds.size(); ++i) {
            const double measured = (ratio.row(i) - exact.row(i)).cwiseAbs().maxCoeff();
            ++rows;
            const double rounding = 1e-12 * largest_value;
            broken += !(measured <= bounds[i] + rounding);
            if (bounds[i] > rounding) parts.push_back(measured / bounds[i]);
            certified.push_back(bounds[i] / largest_value);
          }
          const std::string part = parts.empty() ? "0" : text(quantile(parts, 0.5));
          const std::string worst = parts.empty() ? "0" : text(quantile(parts, 1));
          const auto record = [&](const char* merge, const Errors& errors, bool bounded) {
            csv.add({one.name, text(sigma), sampling.name, merge, text(s), text(errors.relative),
                     text(errors.median_row), text(errors.largest_row),
                     format_number("%.6f", errors.mean_cosine), format_number("%.6f", errors.least_cosine),
                     bounded ? part : "", bounded ? worst : "",
                     bounded ? text(quantile(certified, 0.5)) : ""});
          };
          record("ratio", of_ratio, true);
          record("mean", of_mean, false);
          table.add({one.name, text(sigma), sampling.name, text(s), text(of_ratio.relative),
                     text(of_ratio.largest_row), format_number("%.4f", of_ratio.least_cosine),
                     text(of_mean.relative), part, worst});
          ratio_curve.points.push_back({static_cast<double>(s), of_ratio.relative});
          mean_curve.points.push_back({static_cast<double>(s), of_mean.relative});
          progress.advance(1);
        }
        panel.curves.push_back(ratio_curve);
        panel.curves.push_back(mean_curve);
      }
      panels.push_back(panel);
      const auto record_storage = [&](auto storage, const char* name) {
        using S = decltype(storage);
        const Matrix<float> queries = one.q.cast<float>();
        const Matrix<S> keys = one.k.cast<float>().cast<S>(), values = one.v.cast<float>().cast<S>();
        const Errors errors =
            compare(poslsh::attention(queries, keys, values, poslsh::AlibiBias{1 / sigma}, options).values.template cast<double>(),
                    exact);
        csv.add({one.name, text(sigma), name, "", "", text(errors.relative), text(errors.median_row),
                 text(errors.largest_row), format_number("%.6f", errors.mean_cosine),
                 format_number("%.6f", errors.least_cosine), "", "", ""});
        table.add({one.name, text(sigma), name, "", text(errors.relative), text(errors.largest_row),
                   format_number("%.4f", errors.least_cosine), "", "", ""});
      };
      record_storage(float(), "exact, float");
      record_storage(Eigen::half(), "exact, half");
      record_storage(Eigen::bfloat16(), "exact, bfloat16");
    }
  }
  table.print(stdout);
  if (!common.csv.empty()) csv.write(common.csv);
  draw(common, panels, 2);
  std::printf("rows above their bound: %td of %td\n", broken, rows);
  if (broken > 0) throw std::runtime_error("a row exceeds the bound of Theorem 2.2");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("output_error", [&] { return run(argc, argv); });
}
