// SPDX-License-Identifier: MIT
//
// Heavy tails: attention whose weights fall like a power of the distance, where no short window holds most of
// the weight. Error against time for the exact sweep, windows, and positional LSH.

#include <poslsh/attention/kernel_bias.hpp>

#include <ctime>
#include <limits>

#include "experiment.hpp"

namespace {

using namespace experiments;
using poslsh::AttentionOptions;
using poslsh::MeanMask;
using poslsh::PowerKernel;

constexpr Index features = 64;
constexpr Index noise_features = features / 2;  ///< the first half of the values

struct Data {
  Matrix<float> query, key, value;
};

/// Unit normal queries, keys and values. The second half of the values has a slow wave on top, one period
/// over the whole length: something that only far keys tell.
Data make_data(Index n) {
  Data data{unit_normal(n, features, 1, 0).cast<float>(), unit_normal(n, features, 1, 1).cast<float>(),
            unit_normal(n, features, 1, 2).cast<float>()};
  for (Index i = 0; i < n; ++i) {
    const double turn = static_cast<double>(i) / static_cast<double>(n);
    for (Index f = noise_features; f < features; ++f)
      data.value(i, f) += static_cast<float>(std::sin(
          2 * std::numbers::pi * (turn + static_cast<double>(f) / static_cast<double>(noise_features))));
  }
  return data;
}

/// The scale c with k(64) = (1 + 64 c)^-p = 0.2.
PowerKernel make_kernel(double exponent) { return {(std::pow(0.2, -1 / exponent) - 1) / 64, exponent}; }

struct Result {
  double exponent;
  Index tokens;
  std::string method;
  Index size = 0;  ///< keys of a window, draws of a mean mask
  double seconds = 0, keys = 0, noise_error = 0, wave_error = 0;
};

struct Errors {
  double noise, wave;
};

/// Relative to the exact output, in either half of the features.
Errors errors_of(const Matrix<float>& values, const Matrix<double>& exact) {
  const Matrix<double> error = values.cast<double>() - exact;
  return {
      error.leftCols(noise_features).norm() / exact.leftCols(noise_features).norm(),
      error.rightCols(features - noise_features).norm() / exact.rightCols(features - noise_features).norm()};
}

/// Keys that a causal query visits inside the support, as a mean.
double mean_keys(const MeanMask& mask, Index n) {
  Index keys = 0, queries = 0;
  for (Index i = 8; i < n; i += 16, ++queries) keys += i + 1 - std::max<Index>(mask.support(i).begin, 0);
  return static_cast<double>(keys) / static_cast<double>(queries);
}

class Experiment {
 public:
  Experiment(double exponent, Index n, const CommonOptions& options)
      : kernel_(make_kernel(exponent)),
        first_seed_(options.seed),
        seeds_(options.quick ? 1 : 3),
        data_(make_data(n)) {
    options_.threads = options.threads;
    options_.causal = true;
    reference_ = attention(data_.query.cast<double>(), data_.key.cast<double>(), data_.value.cast<double>(),
                           poslsh::KernelBias{kernel_}, options_)
                     .values;
  }

  [[nodiscard]] Result exact() const { return measure("exact", 0, options_); }

  [[nodiscard]] Result window(Index keys) const {
    AttentionOptions options = options_;
    options.window_left = keys - 1;
    return measure("window", keys, options);
  }

  /// Errors are root mean squares over the seeds.
  [[nodiscard]] Result lsh(Sampling sampling, const char* name, Index samples) const {
    Result result{kernel_.exponent, tokens(), name, samples};
    std::vector<double> seconds;
    double noise = 0, wave = 0;
    for (int extra = 0; extra < seeds_; ++extra) {
      const std::uint64_t seed = first_seed_ + static_cast<std::uint64_t>(extra);
      Matrix<float> values;
      seconds.push_back(time([&] {
        const MeanMask mask(poslsh::draw_hashes(kernel_, samples, seed, sampling));
        values = attention(data_.query, data_.key, data_.value, mask, options_).values;
      }));
      const MeanMask mask(poslsh::draw_hashes(kernel_, samples, seed, sampling));
      const Errors errors = errors_of(values, reference_);
      noise += errors.noise * errors.noise / seeds_;
      wave += errors.wave * errors.wave / seeds_;
      result.keys += mean_keys(mask, tokens()) / seeds_;
    }
    result.noise_error = std::sqrt(noise);
    result.wave_error = std::sqrt(wave);
    std::sort(seconds.begin(), seconds.end());
    result.seconds = seconds[seconds.size() / 2];
    return result;
  }

 private:
  [[nodiscard]] Index tokens() const { return data_.query.rows(); }

  [[nodiscard]] Result measure(const char* name, Index size, const AttentionOptions& options) const {
    Result result{kernel_.exponent, tokens(), name, size};
    Matrix<float> values;
    result.seconds = time([&] {
      values = attention(data_.query, data_.key, data_.value, poslsh::KernelBias{kernel_}, options).values;
    });
    const double n = static_cast<double>(tokens()), w = size > 0 ? static_cast<double>(size) : n;
    result.keys = (w * (w + 1) / 2 + (n - w) * w) / n;
    const Errors errors = errors_of(values, reference_);
    result.noise_error = errors.noise;
    result.wave_error = errors.wave;
    return result;
  }

  /// The least processor time of up to three runs, within about a second: on a busy machine it is steadier
  /// than the clock on the wall, and the same on an idle one for one thread.
  template <class Work>
  static double time(Work&& work) {
    double least = std::numeric_limits<double>::infinity(), all = 0;
    for (int repeat = 0; repeat < 3 && all < 1; ++repeat) {
      const std::clock_t start = std::clock();
      work();
      const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
      least = std::min(least, seconds);
      all += seconds;
    }
    return least;
  }

  PowerKernel kernel_;
  std::uint64_t first_seed_;
  int seeds_;
  Data data_;
  AttentionOptions options_;
  Matrix<double> reference_;
};

std::vector<Result> run_case(double exponent, Index n, const CommonOptions& options, Progress& progress) {
  std::vector<Result> results;
  const Experiment experiment(exponent, n, options);
  results.push_back(experiment.exact());
  for (Index keys = 64; keys < n; keys *= 4) results.push_back(experiment.window(keys));
  for (const auto& [sampling, name] : all_samplings) {
    if (sampling == Sampling::independent) continue;
    for (Index samples = 4; samples <= (options.quick ? 16 : 256); samples *= 4)
      results.push_back(experiment.lsh(sampling, name, samples));
  }
  progress.advance(static_cast<double>(n) * static_cast<double>(n));
  return results;
}

/// Two panels for every exponent, the noise and the wave, of the longest sequence; time relative to the exact
/// sweep.
bool draw(const std::vector<Result>& results, const std::vector<double>& exponents, Index n,
          const std::string& file) {
  std::string script =
      "set multiplot layout " + std::to_string(exponents.size()) +
      ",2\nset logscale xy 10\nset grid\nset key left bottom\nset xlabel 'time / exact sweep'\nset ylabel "
      "'relative error'\nset format y '%.0e'\n";
  for (std::size_t e = 0; e < exponents.size(); ++e) {
    double exact = 1;
    std::string data, noise, wave;
    for (const std::string method : {"window", "stratified", "importance", "mixture"}) {
      const std::string name = "$" + method + std::to_string(e);
      data += name + " << END\n";
      for (const Result& result : results) {
        if (result.exponent != exponents[e] || result.tokens != n) continue;
        if (result.method == "exact") exact = result.seconds;
        if (result.method == method)
          data += format_number("%.4g", result.seconds / exact) + format_number(" %.4g", result.noise_error) +
                  format_number(" %.4g\n", result.wave_error);
      }
      data += "END\n";
      const std::string style = " with linespoints linewidth 2 pointtype 7 title '" + method + "'";
      noise.append(noise.empty() ? "plot " : ", ").append(name).append(" using 1:2").append(style);
      wave.append(wave.empty() ? "plot " : ", ").append(name).append(" using 1:3").append(style);
    }
    const std::string title = "exponent " + format_number("%g", exponents[e]) + ", n = " + std::to_string(n);
    script.append(data).append("set title '").append(title).append(": values without a trend'\n").append(noise);
    script.append("\nset title '").append(title).append(": values on a slow wave'\n").append(wave).append("\n");
  }
  return poslsh_examples::draw_picture(file, 1120, 460 * static_cast<int>(exponents.size()),
                                       script + "unset multiplot");
}

int run(const CommonOptions& options) {
  const std::vector<double> exponents = {1, 1.5};
  const std::vector<Index> lengths =
      options.quick ? std::vector<Index>{512} : std::vector<Index>{4096, 16384, 65536};
  std::vector<Result> results;
  {
    double total = 0;
    for (const Index n : lengths) total += 2 * static_cast<double>(n) * static_cast<double>(n);
    Progress progress(total);
    for (const double exponent : exponents)
      for (const Index n : lengths) {
        const std::vector<Result> some = run_case(exponent, n, options, progress);
        results.insert(results.end(), some.begin(), some.end());
      }
  }
  const std::vector<std::string> columns = {
      "exponent", "n", "method", "size", "keys a query", "CPU ms", "exact/time", "error noise", "error wave"};
  TextTable table(columns, 0);
  CsvTable csv(columns);
  double exact = 1;
  for (const Result& result : results) {
    if (result.method == "exact") exact = result.seconds;
    const std::vector<std::string> row = {format_number("%g", result.exponent),
                                          std::to_string(result.tokens),
                                          result.method,
                                          result.size > 0 ? std::to_string(result.size) : "",
                                          format_number("%.0f", result.keys),
                                          format_number("%.2f", 1e3 * result.seconds),
                                          format_number("%.1f", exact / result.seconds),
                                          format_number("%.2e", result.noise_error),
                                          format_number("%.2e", result.wave_error)};
    table.add(row);
    csv.add(row);
  }
  table.print(stdout);
  if (!options.csv.empty()) csv.write(options.csv);
  if (!options.plot.empty() && !draw(results, exponents, lengths.back(), options.plot))
    std::fprintf(stderr, "heavy_tail: no picture: gnuplot is not installed\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("heavy_tail", [&] {
    CommonOptions options;
    options.threads = 1;
    const char* const about =
        "Causal attention with the weights (1 + c x)^-p, p = 1 and 1.5, k(64) = 0.2; d = 64, float, "
        "one head:\n"
        "error against time for the exact sweep, windows, and positional LSH in one sweep.";
    return common_flags(about, options).parse(argc, argv) ? run(options) : 0;
  });
}
