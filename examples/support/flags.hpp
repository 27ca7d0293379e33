// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The command line of a program: CLI11 behind a door, so that it is compiled once for all programs.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace poslsh_examples {

/// Flags, each with the variable that it sets, whose value is the default. Of several values, commas are
/// between them.
class Flags {
 public:
  explicit Flags(const std::string& description);
  Flags(Flags&&) noexcept;
  ~Flags();

  Flags& on_off(const std::string& name, bool& value, const std::string& help);

  /// Whole numbers from low to high.
  Flags& whole(const std::string& name, int& value, const std::string& help, std::int64_t low,
               std::int64_t high);
  Flags& whole(const std::string& name, std::int64_t& value, const std::string& help, std::int64_t low,
               std::int64_t high);
  Flags& whole(const std::string& name, std::vector<std::int64_t>& values, const std::string& help,
               std::int64_t low, std::int64_t high);
  Flags& seed(const std::string& name, std::uint64_t& value, const std::string& help);

  /// Numbers above 0 that are finite; numbers from low to high, which `requirement` says in words.
  Flags& positive(const std::string& name, double& value, const std::string& help);
  Flags& positive(const std::string& name, std::vector<double>& values, const std::string& help);
  Flags& between(const std::string& name, double& value, const std::string& help, double low, double high,
                 const std::string& requirement);

  /// Words of a list.
  Flags& words(const std::string& name, std::vector<std::string>& values, const std::string& help,
               const std::vector<std::string>& list);

  /// Files: to read, to write (a picture must be a .png or .svg). An empty name is none as a default, and refused as an argument.
  Flags& input(const std::string& name, std::string& value, const std::string& help);
  Flags& inputs(const std::string& name, std::vector<std::string>& values, const std::string& help);
  Flags& output(const std::string& name, std::string& value, const std::string& help);
  Flags& picture(const std::string& name, std::string& value, const std::string& help);

  /// Sets the variables. What is to be written can be, and to no file that is read or written twice.
  /// \returns false if help was asked for, and printed
  /// \throws std::runtime_error in one line for what cannot be used
  bool parse(int argc, char** argv);

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace poslsh_examples
