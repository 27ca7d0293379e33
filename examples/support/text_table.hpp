// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Aligned columns for a terminal, and numbers as text.

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace poslsh_examples {

/// A number in printf's notation: format_number("%.3g", x).
inline std::string format_number(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

/// Rows of cells; the first `left_columns` columns are aligned to the left, the others to the right.
class TextTable {
 public:
  TextTable(std::vector<std::string> heading, std::size_t left_columns) : left_columns_(left_columns) {
    add(std::move(heading));
  }

  void add(std::vector<std::string> row) {
    widths_.resize(std::max(widths_.size(), row.size()), 0);
    for (std::size_t i = 0; i < row.size(); ++i) widths_[i] = std::max(widths_[i], row[i].size());
    rows_.push_back(std::move(row));
  }

  void print(std::FILE* out) const {
    for (const std::vector<std::string>& row : rows_) {
      std::string line;
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::string padding(widths_[i] - row[i].size(), ' ');
        if (i > 0) line += "  ";
        line += i < left_columns_ ? row[i] + padding : padding + row[i];
      }
      line.erase(line.find_last_not_of(' ') + 1);
      std::fprintf(out, "%s\n", line.c_str());
    }
  }

 private:
  std::size_t left_columns_;
  std::vector<std::size_t> widths_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace poslsh_examples
