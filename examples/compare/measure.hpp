// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Runs the methods and measures them.

#include "activations.hpp"

namespace compare {

/// A head with a slope. Cases of one group are summed up together.
struct Case {
  std::size_t head, group;
  double slope;
  [[nodiscard]] double sigma() const { return 1 / slope; }
};

/// One seed of one method on one case.
struct Run {
  double squared_error;  ///< ||T* - T||_F^2, T* exact ALiBi attention in double
  double squared_norm;   ///< ||T*||_F^2
  double row_error;      ///< max |T* - T| / max |v|
  double keys;           ///< mean number of keys a query is scored against
  double block_keys;     ///< the same if the draws are taken block by block
};

struct Measurement {
  double seconds = 0;     ///< median over seeds and repetitions, drawing included
  std::vector<Run> runs;  ///< one a seed; one only for a method that draws nothing
};

/// Cases x methods.
struct Measurements {
  std::vector<Case> cases;
  std::vector<Method> methods;
  std::vector<Measurement> all;  ///< case by case

  [[nodiscard]] const Measurement& of(std::size_t number, std::size_t method) const {
    return all[number * methods.size() + method];
  }
};

/// The cases and methods that the options ask for, measured, under a progress bar.
/// \throws UsageError if there are not as many slopes as heads
Measurements measure(const AnyActivations& activations, const Options& options);

}  // namespace compare
