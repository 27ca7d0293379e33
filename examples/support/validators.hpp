// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What a command line may hold, for CLI11.

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>

namespace poslsh_examples {

/// The text is a number between the bounds.
inline CLI::Validator between(double low, double high, const std::string& requirement) {
  return CLI::Validator(
      [=](std::string& text) {
        double value = 0;
        return CLI::detail::lexical_cast(text, value) && value >= low && value <= high
                   ? std::string()
                   : "'" + text + "' is not " + requirement;
      },
      "");
}

/// The text is an unsigned number of 64 bits: the conversion would take a sign, or too many digits.
inline CLI::Validator a_seed() {
  return CLI::Validator(
      [](const std::string& text) {
        std::uint64_t value = 0;
        const char* const end = text.data() + text.size();
        const std::from_chars_result read = std::from_chars(text.data(), end, value);
        return read.ec == std::errc() && read.ptr == end
                   ? ""
                   : "'" + text + "' is not a number from 0 to 2^64 - 1";
      },
      "");
}

}  // namespace poslsh_examples
