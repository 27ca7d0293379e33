// SPDX-License-Identifier: MIT
#include "report.hpp"

#include "../support/csv.hpp"
#include "../support/text_table.hpp"
#include "summary.hpp"

namespace compare {
namespace {

using poslsh_examples::format_number;

constexpr std::size_t most_head_columns = 4;

struct Shape {
  Index heads, tokens, features;
  std::string precision;
};

Shape shape_of(const AnyActivations& activations) {
  return std::visit(
      []<class T>(const Activations<T>& data) {
        return Shape{static_cast<Index>(data.heads.size()), data.tokens(), data.features(),
                     std::is_same_v<T, float> ? "float" : "double"};
      },
      activations);
}

std::string counted(Index count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string head_name(const Measurements& measurements, std::size_t number) {
  return "head " + std::to_string(measurements.cases[number].head);
}

/// The sigma that all of these cases share, if they do.
std::optional<double> common_sigma(const Measurements& measurements, const std::vector<std::size_t>& cases) {
  for (const std::size_t number : cases)
    if (measurements.cases[number].slope != measurements.cases[cases.front()].slope) return std::nullopt;
  return measurements.cases[cases.front()].sigma();
}

void print_table(const Measurements& measurements, const std::vector<std::size_t>& cases,
                 const std::string& title, std::FILE* out) {
  const std::optional<double> sigma = common_sigma(measurements, cases);
  std::fprintf(out, "\n%s%s\n", title.c_str(),
               sigma ? (", sigma " + format_number("%g", *sigma)).c_str() : "");
  std::vector<std::string> heading{"method",   "sampling",   "draws", "time ms",
                                   "speed-up", "keys/query", "error", "row error"};
  const bool head_columns = cases.size() > 1 && cases.size() <= most_head_columns;
  if (head_columns)
    for (const std::size_t number : cases) heading.push_back("error " + head_name(measurements, number));
  poslsh_examples::TextTable table(std::move(heading), 2);
  for (std::size_t m = 0; m < measurements.methods.size(); ++m) {
    const Method& method = measurements.methods[m];
    const Summary all = summarise(measurements, cases, m);
    std::vector<std::string> row{method.name(),
                                 method.sampling_name(),
                                 method.samples == 0 ? "" : std::to_string(method.samples),
                                 format_number("%.3f", 1e3 * all.seconds),
                                 all.speed_up ? format_number("%.3g", *all.speed_up) : "-",
                                 format_number("%.1f", all.keys),
                                 format_number("%.2e", all.error),
                                 format_number("%.2e", all.row_error)};
    if (head_columns)
      for (const std::size_t number : cases)
        row.push_back(format_number("%.2e", summarise(measurements, {number}, m).error));
    table.add(std::move(row));
  }
  table.print(out);
}

}  // namespace

void print_tables(const Measurements& measurements, const AnyActivations& activations, const Options& options,
                  std::FILE* out) {
  const Shape shape = shape_of(activations);
  std::fprintf(out, "%s: %s x %s x %s, %s, %s; %s, %s\n",
               options.input.empty() ? "unit normal data" : options.input.c_str(),
               counted(shape.heads, "head").c_str(), counted(shape.tokens, "token").c_str(),
               counted(shape.features, "feature").c_str(), shape.precision.c_str(),
               options.causal ? "causal" : "not causal", counted(options.seeds, "seed").c_str(),
               counted(options.threads, "thread").c_str());
  std::fprintf(out,
               "T* is exact ALiBi attention in double. error: ||T* - T||_F / ||T*||_F. "
               "row error: max |T* - T| / max |v|.\nTimes are medians, drawing included.\n");
  for (std::size_t group = 0; group < group_count(measurements); ++group) {
    const std::vector<std::size_t> cases = cases_of_group(measurements, group);
    if (options.per_head && cases.size() > 1)
      for (const std::size_t number : cases)
        print_table(measurements, {number}, head_name(measurements, number), out);
    print_table(measurements, cases, cases.size() == 1 ? head_name(measurements, cases.front()) : "all heads",
                out);
  }
}

void write_csv(const Measurements& measurements, const AnyActivations& activations, const Options& options) {
  const Shape shape = shape_of(activations);
  poslsh_examples::CsvTable table({"input",
                                   "tokens",
                                   "head_dim",
                                   "precision",
                                   "causal",
                                   "threads",
                                   "seed",
                                   "seeds",
                                   "head",
                                   "sigma",
                                   "method",
                                   "sampling",
                                   "samples",
                                   "seconds",
                                   "speed_up",
                                   "error",
                                   "error_deviation",
                                   "row_error",
                                   "keys_per_query",
                                   "block_keys_per_query"});
  const auto add = [&](const std::vector<std::size_t>& cases, const std::string& head) {
    const std::optional<double> sigma = common_sigma(measurements, cases);
    for (std::size_t m = 0; m < measurements.methods.size(); ++m) {
      const Method& method = measurements.methods[m];
      const Summary all = summarise(measurements, cases, m);
      table.add({options.input.empty() ? "unit normal" : options.input,
                 std::to_string(shape.tokens),
                 std::to_string(shape.features),
                 shape.precision,
                 options.causal ? "1" : "0",
                 std::to_string(options.threads),
                 std::to_string(options.seed),
                 std::to_string(options.seeds),
                 head,
                 sigma ? format_number("%.10g", *sigma) : "",
                 method.name(),
                 method.sampling_name(),
                 method.samples == 0 ? "" : std::to_string(method.samples),
                 format_number("%.6g", all.seconds),
                 all.speed_up ? format_number("%.6g", *all.speed_up) : "",
                 format_number("%.6g", all.error),
                 format_number("%.6g", all.deviation),
                 format_number("%.6g", all.row_error),
                 format_number("%.6g", all.keys),
                 format_number("%.6g", all.block_keys)});
    }
  };
  for (std::size_t group = 0; group < group_count(measurements); ++group) {
    const std::vector<std::size_t> cases = cases_of_group(measurements, group);
    for (const std::size_t number : cases) add({number}, std::to_string(measurements.cases[number].head));
    add(cases, "all");
  }
  table.write(options.csv);
}

}  // namespace compare
