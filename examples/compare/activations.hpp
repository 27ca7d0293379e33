// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Queries, keys and values of all heads, from a file or made up.

#include "options.hpp"

#include <variant>

namespace compare {

template <class T>
struct HeadData {
  poslsh::Matrix<T> query, key, value;  ///< tokens x features
};

template <class T>
struct Activations {
  std::vector<HeadData<T>> heads;  ///< at least one, of one shape, neither side 0

  [[nodiscard]] Index tokens() const { return heads.front().query.rows(); }
  [[nodiscard]] Index features() const { return heads.front().query.cols(); }
};

using AnyActivations = std::variant<Activations<float>, Activations<double>>;

/// Reads options.input, or generates unit normal numbers in float.
/// \throws FileError or UsageError on a bad file or shape
AnyActivations make_activations(const Options& options);

/// Writes [query, key, value] x heads x tokens x features.
/// \throws FileError if it cannot
void save_activations(const AnyActivations& activations, const std::string& file);

}  // namespace compare
