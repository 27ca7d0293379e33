// SPDX-License-Identifier: MIT
#include "results.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <sstream>
#include <tuple>

#include "../../support/csv.hpp"
#include "../../support/gnuplot.hpp"
#include "../../support/text_table.hpp"

namespace tiny_lm {

namespace {

using poslsh_examples::FileError;
using poslsh_examples::format_number;

const std::vector<std::string> columns = {"positions",     "trained_with", "tuned_steps", "seed",       "steps",   "parameters",
                                          "training_bits", "seconds",      "length",      "bits_a_byte", "perplexity", "accuracy"};

poslsh_examples::CsvTable as_csv(const std::vector<Result>& results) {
  poslsh_examples::CsvTable table(columns);
  for (const Result& r : results)
    table.add({r.positions, r.trained_with, std::to_string(r.tuned_steps), std::to_string(r.seed),
               std::to_string(r.steps), std::to_string(r.parameters), format_number("%.4f", r.training_bits),
               format_number("%.1f", r.seconds), std::to_string(r.score.length), format_number("%.4f", r.score.bits),
               format_number("%.4f", std::exp2(r.score.bits)), format_number("%.4f", r.score.accuracy)});
  return table;
}

Result parse_row(const std::string& line, const std::filesystem::path& path) {
  std::vector<std::string> fields;
  std::istringstream stream(line);
  for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
  try {
    if (fields.size() != columns.size()) throw std::invalid_argument("columns");
    return {fields[0],
            fields[1],
            std::stoll(fields[2]),
            std::stoull(fields[3]),
            std::stoll(fields[4]),
            std::stoll(fields[5]),
            std::stod(fields[6]),
            std::stod(fields[7]),
            {std::stoll(fields[8]), std::stod(fields[9]), std::stod(fields[11])}};
  } catch (const std::logic_error&) {
    throw FileError(path, "holds a line that is not a result: " + line);
  }
}

/// Schemes in the order of the tables: by number of draws, those without first.
std::pair<std::int64_t, std::string> rank(const std::string& positions) {
  static const std::vector<std::string> plain = {"none", "rope", "alibi", "alibi-dense", "blocks"};
  const auto known = std::find(plain.begin(), plain.end(), positions);
  if (known != plain.end()) return {known - plain.begin(), ""};
  const std::size_t dash = positions.rfind('-');
  return {1000 + std::atoll(positions.c_str() + dash + 1), positions.substr(0, dash)};
}

struct Moments {
  std::vector<double> values;
  [[nodiscard]] double mean() const {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
  }
  [[nodiscard]] double deviation() const {
    double sum = 0;
    for (const double value : values) sum += (value - mean()) * (value - mean());
    return values.size() < 2 ? 0 : std::sqrt(sum / static_cast<double>(values.size() - 1));
  }
  [[nodiscard]] std::string text(const char* format) const {
    const std::string middle = format_number(format, mean());
    return values.size() < 2 ? middle : middle + " ± " + format_number(format, deviation());
  }
};

/// The results of one scheme over its seeds.
struct Line {
  std::map<std::int64_t, Moments> bits, perplexity, accuracy;  ///< by length
  Moments seconds;
};
using Lines = std::map<std::tuple<std::pair<std::int64_t, std::string>, std::int64_t>, std::pair<std::string, Line>>;

Lines lines_of(const std::vector<Result>& results, bool transferred) {
  Lines lines;
  for (const Result& r : results) {
    if ((r.positions != r.trained_with || r.tuned_steps > 0) != transferred) continue;
    auto& [name, line] = lines[{rank(r.positions), r.tuned_steps}];
    name = r.positions;
    if (transferred) name += r.tuned_steps == 0 ? ", switched" : ", tuned for " + std::to_string(r.tuned_steps) + " steps";
    line.bits[r.score.length].values.push_back(r.score.bits);
    line.perplexity[r.score.length].values.push_back(std::exp2(r.score.bits));
    line.accuracy[r.score.length].values.push_back(100 * r.score.accuracy);
    if (r.score.length == scored_bytes) line.seconds.values.push_back(r.seconds);
  }
  return lines;
}

/// A Markdown table, which also reads well on a terminal.
std::string table_of(const Lines& lines, const std::string& title) {
  if (lines.empty()) return "";
  std::vector<std::int64_t> lengths;
  for (const auto& [length, unused] : lines.begin()->second.second.bits) lengths.push_back(length);
  std::string text = "| " + title, rule = "|---";
  for (const char* what : {"bits a byte", "perplexity", "top-1 %"})
    for (const std::int64_t length : lengths) {
      text += std::string(" | ") + what + ", " + std::to_string(length);
      rule += "|---";
    }
  text += " | seconds | seeds |\n" + rule + "|---|---|\n";
  for (const auto& [key, named] : lines) {
    const auto& [name, line] = named;
    text += "| " + name;
    for (const auto& [group, format] : {std::pair{&line.bits, "%.3f"}, {&line.perplexity, "%.2f"}, {&line.accuracy, "%.1f"}})
      for (const std::int64_t length : lengths) {
        const auto known = group->find(length);
        text += " | " + (known == group->end() ? std::string("-") : known->second.text(format));
      }
    text += " | " + format_number("%.0f", line.seconds.mean()) + " | " + std::to_string(line.seconds.values.size()) + " |\n";
  }
  return text;
}

/// Curves for gnuplot, each with a colour of its own.
class Curves {
 public:
  explicit Curves(std::string name) : name_(std::move(name)) {}

  void add(const std::string& title, const std::vector<std::array<double, 3>>& points, const std::string& style = "") {
    static const char* const colors[] = {"#000000", "#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd",
                                         "#8c564b", "#e377c2", "#17becf", "#bcbd22", "#7f7f7f", "#00429d"};
    const std::string data = "$" + name_ + std::to_string(count_);
    data_ += data + " << END\n";
    for (const auto& [x, y, deviation] : points)
      data_ += format_number("%g ", x) + format_number("%.5f ", y) + format_number("%.5f\n", deviation);
    data_ += "END\n";
    plot_ += (plot_.empty() ? "plot " : ", ") + data + " using 1:2:3 with yerrorlines linewidth 1.5 pointtype 7 pointsize 0.5" +
             " linecolor '" + colors[count_++ % std::size(colors)] + "'" + style + " title '" + title + "'";
  }
  [[nodiscard]] std::string script() const { return data_ + plot_ + "\n"; }

 private:
  std::string name_, data_, plot_;
  std::size_t count_ = 0;
};

/// Bits a byte against the length of the window, a curve a scheme; and of the transferred models at the middle length
/// against the number of draws.
bool draw(const Lines& trained, const Lines& transferred, const std::string& path) {
  constexpr std::int64_t middle = 1024;
  std::string script = "set multiplot layout 1,2\nset grid\nset key below\nset logscale x 2\nset ylabel 'bits a byte'\n";
  Curves by_length("length");
  for (const auto& [key, named] : trained) {
    std::vector<std::array<double, 3>> points;
    for (const auto& [length, bits] : named.second.bits)
      points.push_back({static_cast<double>(length), bits.mean(), bits.deviation()});
    by_length.add(named.first, points);
  }
  script += "set title 'trained with the scheme'\nset xlabel 'bytes of the window; the last 512 are scored'\n" +
            by_length.script();
  if (!transferred.empty()) {
    double least = 0, most = 0;
    std::map<std::pair<std::string, bool>, std::vector<std::array<double, 3>>> by_draws, plain;
    for (const auto& [key, named] : transferred) {
      const auto& [order, tuned] = key;
      const auto known = named.second.bits.find(middle);
      if (known == named.second.bits.end()) continue;
      const double draws = static_cast<double>(order.first) - 1000;  // see rank()
      const std::string scheme = named.first.substr(0, named.first.find(','));
      auto& group = draws > 0 ? by_draws : plain;
      group[{draws > 0 ? order.second : scheme, tuned > 0}].push_back({draws, known->second.mean(), known->second.deviation()});
      if (draws > 0) least = least == 0 ? draws : std::min(least, draws), most = std::max(most, draws);
    }
    Curves curves("draws");
    const auto add = [&](const auto& group, bool flat) {
      for (const auto& [name, points] : group) {
        const auto& [x, y, deviation] = points.front();
        curves.add(name.first + (name.second ? ", tuned" : ", switched"),
                   flat ? std::vector<std::array<double, 3>>{{least, y, deviation}, {most, y, deviation}} : points,
                   name.second ? "" : " dashtype 2");
      }
    };
    add(plain, true);
    add(by_draws, false);
    script += "set title 'trained with ALiBi, scored under another scheme, 1024 bytes'\nset xlabel 'draws'\n" + curves.script();
  }
  return poslsh_examples::draw_picture(path, 1300, 620, script + "unset multiplot");
}

}  // namespace

void write_results(const std::vector<Result>& results, const std::string& path) { as_csv(results).write(path); }

std::vector<Result> read_results(const std::string& folder) {
  std::vector<Result> results;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".csv") continue;
    std::ifstream file(entry.path());
    std::string line;
    if (!std::getline(file, line) || line.substr(0, columns.front().size()) != columns.front())
      throw FileError(entry.path(), "holds no results");
    while (std::getline(file, line)) results.push_back(parse_row(line, entry.path()));
  }
  if (results.empty()) throw FileError(folder, "holds no results");
  std::sort(results.begin(), results.end(), [](const Result& a, const Result& b) {
    const auto key = [](const Result& r) {
      return std::tuple(r.trained_with != r.positions || r.tuned_steps > 0, rank(r.positions), r.tuned_steps, r.seed,
                        r.score.length);
    };
    return key(a) < key(b);
  });
  return results;
}

void report(const std::vector<Result>& results, const Options& options) {
  const Lines trained = lines_of(results, false), transferred = lines_of(results, true);
  std::string text = table_of(trained, "trained with");
  if (!transferred.empty()) text += "\n" + table_of(transferred, "trained with alibi, scored with");
  std::fputs(text.c_str(), stdout);
  if (!options.table.empty()) poslsh_examples::write_file(options.table, text);
  if (!options.csv.empty()) write_results(results, options.csv);
  if (!options.plot.empty() && !draw(trained, transferred, options.plot))
    std::fprintf(stderr, "tiny_lm: no picture: gnuplot is not installed\n");
}

}  // namespace tiny_lm
