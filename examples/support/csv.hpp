// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Comma-separated values (RFC 4180, with plain newlines).

#include "output_file.hpp"

#include <vector>

namespace poslsh_examples {

/// Rows of text, held until they are written as a whole.
class CsvTable {
 public:
  explicit CsvTable(const std::vector<std::string>& columns) { add(columns); }

  void add(const std::vector<std::string>& fields) {
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (i > 0) text_ += ',';
      text_ += quoted(fields[i]);
    }
    text_ += '\n';
  }

  /// \throws FileError if it cannot be written; no half file is left
  void write(const std::filesystem::path& path) const { write_file(path, text_); }

 private:
  static std::string quoted(const std::string& field) {
    if (field.find_first_of(",\"\n\r") == std::string::npos) return field;
    std::string text = "\"";
    for (const char c : field) text.append(c == '"' ? 2 : 1, c);
    return text + '"';
  }

  std::string text_;
};

}  // namespace poslsh_examples
