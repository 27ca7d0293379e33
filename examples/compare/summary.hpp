// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Sums up a method over heads and seeds.

#include "measure.hpp"

#include <optional>

namespace compare {

struct Summary {
  double seconds = 0;               ///< summed over the cases
  std::optional<double> speed_up;   ///< over exact; none if exact was not run
  double error = 0;                 ///< ||T* - T||_F / ||T*||_F over all cases, mean over seeds
  double deviation = 0;             ///< standard deviation of the error over seeds; 0 for one seed
  double row_error = 0;             ///< the largest of the cases, mean over seeds
  double keys = 0, block_keys = 0;  ///< means over cases and seeds
};

/// The numbers of the cases of one group, in order.
std::vector<std::size_t> cases_of_group(const Measurements& measurements, std::size_t group);

/// How many groups there are.
std::size_t group_count(const Measurements& measurements);

/// One method over these cases (their numbers).
Summary summarise(const Measurements& measurements, const std::vector<std::size_t>& cases,
                  std::size_t method);

}  // namespace compare
