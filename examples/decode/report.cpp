// SPDX-License-Identifier: MIT
#include "report.hpp"

#include <functional>

#include "../support/csv.hpp"
#include "../support/gnuplot.hpp"
#include "../support/text_table.hpp"

namespace decode {
namespace {

using poslsh_examples::format_number;

constexpr double mebibyte = 1 << 20;

std::string panel(const std::vector<Run>& runs, const std::string& title, const std::string& label,
                  const std::function<double(const Record&)>& value) {
  std::string data, plot;
  for (const Run& run : runs) {
    std::string name(1, '$');  // as two strings: g++ 12 sees an overlap in their sum (GCC bug 105329)
    name += name_of(run.method);
    data += name + " << END\n";
    for (const Record& record : run.records)
      data += std::to_string(record.tokens) + " " + format_number("%.6g", value(record)) + "\n";
    data += "END\n";
    plot += (plot.empty() ? "plot " : ", ") + name + " using 1:2 with linespoints linewidth 2 pointtype 7 linecolor " +
            std::to_string(static_cast<int>(run.method) + 1) + " title '" + name_of(run.method) + "'";
  }
  return data + "set title '" + title + "'\nset ylabel '" + label + "'\n" + plot + "\n";
}

}  // namespace

void print_table(const std::vector<Run>& runs, const Options& options, std::FILE* out) {
  std::fprintf(out,
               "One token at a time through %lld heads of %lld features, caches in %s, %d thread%s.\n"
               "error: of the last outputs, relative to full, or to bounded where full has ended.\n\n",
               static_cast<long long>(options.heads), static_cast<long long>(options.head_dim), options.storage.c_str(),
               options.threads, options.threads == 1 ? "" : "s");
  poslsh_examples::TextTable table({"method", "tokens", "tokens/s", "cached a head", "MiB", "error"}, 1);
  constexpr std::size_t decade = 8;
  for (const Run& run : runs)
    for (std::size_t i = 0; i < run.records.size(); ++i) {
      const Record& record = run.records[i];
      if ((run.records.size() - 1 - i) % decade != 0) continue;
      table.add({name_of(run.method), std::to_string(record.tokens), format_number("%.0f", record.tokens_per_second),
                 format_number("%.1f", static_cast<double>(record.cached_tokens) / static_cast<double>(options.heads)),
                 format_number("%.2f", static_cast<double>(record.bytes) / mebibyte),
                 record.error ? format_number("%.1e", *record.error) : "-"});
    }
  table.print(out);
}

void write_csv(const std::vector<Run>& runs, const Options& options) {
  poslsh_examples::CsvTable table({"method", "storage", "heads", "head_dim", "threads", "tokens", "seconds",
                                   "tokens_per_second", "cached_tokens", "bytes", "error"});
  for (const Run& run : runs)
    for (const Record& record : run.records)
      table.add({name_of(run.method), options.storage, std::to_string(options.heads), std::to_string(options.head_dim),
                 std::to_string(options.threads), std::to_string(record.tokens), format_number("%.6g", record.seconds),
                 format_number("%.6g", record.tokens_per_second), std::to_string(record.cached_tokens),
                 std::to_string(record.bytes), record.error ? format_number("%.6g", *record.error) : ""});
  table.write(options.csv);
}

bool draw_plot(const std::vector<Run>& runs, const Options& options) {
  const std::string script =
      "set logscale xy\nset grid\nset key below\nset xlabel 'tokens so far'\nset format xy '%.0s%c'\n"
      "set multiplot layout 1,2\n" +
      panel(runs, "Speed", "tokens a second", [](const Record& record) { return record.tokens_per_second; }) +
      panel(runs, "Memory", "MiB", [](const Record& record) { return static_cast<double>(record.bytes) / mebibyte; }) +
      "unset multiplot";
  return poslsh_examples::draw_picture(options.plot, 1120, 480, script);
}

}  // namespace decode
