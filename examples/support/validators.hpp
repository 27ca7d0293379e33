// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What a command line may hold, for CLI11.

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>

namespace poslsh_examples {

/// The text is a number between the bounds.
inline CLI::Validator between(double low, double high, const std::string& requirement) {
  return {[=](std::string& text) {
            double value = 0;
            return CLI::detail::lexical_cast(text, value) && value >= low && value <= high
                       ? std::string()
                       : "'" + text + "' is not " + requirement;
          },
          ""};
}

/// The text is a whole number between the bounds, in decimal digits; for Option::transform, as it becomes the text that the
/// conversion takes for that number: of 010 it would make 8.
template <class V>
CLI::Validator whole(V low, V high, const std::string& requirement) {
  return {[=](std::string& text) {
            V value{};
            const char* const end = text.data() + text.size();
            const std::from_chars_result read = std::from_chars(text.data(), end, value);
            if (read.ec != std::errc() || read.ptr != end || value < low || value > high)
              return "'" + text + "' is not " + requirement;
            text = std::to_string(value);
            return std::string();
          },
          ""};
}

template <class V>
CLI::Validator whole(V low, V high) {
  return whole(low, high, "a number from " + std::to_string(low) + " to " + std::to_string(high));
}

/// A number above 0 that is finite.
inline CLI::Validator positive() {
  return between(std::numeric_limits<double>::denorm_min(), std::numeric_limits<double>::max(), "a positive finite number");
}

/// A name that is not empty, as that of a variable which nobody set.
inline CLI::Validator a_file_name() {
  return {[](std::string& text) { return text.empty() ? std::string("a file must have a name") : std::string(); }, ""};
}

/// Any unsigned number of 64 bits.
inline CLI::Validator a_seed() {
  return whole<std::uint64_t>(0, std::numeric_limits<std::uint64_t>::max(), "a number from 0 to 2^64 - 1");
}

}  // namespace poslsh_examples
