// SPDX-License-Identifier: MIT
#include "summary.hpp"

#include <algorithm>
#include <cmath>

namespace compare {
namespace {

double total_seconds(const Measurements& measurements, const std::vector<std::size_t>& cases,
                     std::size_t method) {
  double seconds = 0;
  for (const std::size_t number : cases) seconds += measurements.of(number, method).seconds;
  return seconds;
}

}  // namespace

std::size_t group_count(const Measurements& measurements) { return measurements.cases.back().group + 1; }

std::vector<std::size_t> cases_of_group(const Measurements& measurements, std::size_t group) {
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < measurements.cases.size(); ++i)
    if (measurements.cases[i].group == group) numbers.push_back(i);
  return numbers;
}

Summary summarise(const Measurements& measurements, const std::vector<std::size_t>& cases,
                  std::size_t method) {
  Summary summary;
  summary.seconds = total_seconds(measurements, cases, method);
  for (std::size_t m = 0; m < measurements.methods.size(); ++m)
    if (measurements.methods[m].kind == MethodKind::exact)
      summary.speed_up = total_seconds(measurements, cases, m) / summary.seconds;

  const std::size_t seeds = measurements.of(cases.front(), method).runs.size();
  const auto count = static_cast<double>(seeds);
  std::vector<double> errors;
  for (std::size_t s = 0; s < seeds; ++s) {
    double squared_error = 0, squared_norm = 0, row_error = 0;
    for (const std::size_t number : cases) {
      const Run& run = measurements.of(number, method).runs[s];
      squared_error += run.squared_error;
      squared_norm += run.squared_norm;
      row_error = std::max(row_error, run.row_error);
      summary.keys += run.keys / (count * static_cast<double>(cases.size()));
      summary.block_keys += run.block_keys / (count * static_cast<double>(cases.size()));
    }
    errors.push_back(squared_norm > 0 ? std::sqrt(squared_error / squared_norm) : std::sqrt(squared_error));
    summary.error += errors.back() / count;
    summary.row_error += row_error / count;
  }
  double squares = 0;
  for (const double error : errors) squares += (error - summary.error) * (error - summary.error);
  if (seeds > 1) summary.deviation = std::sqrt(squares / (count - 1));
  return summary;
}

}  // namespace compare
