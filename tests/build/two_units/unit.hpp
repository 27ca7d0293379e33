// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

/// Values of the same attentions, each by the unit it is named after.
std::vector<float> plain_unit();
std::vector<float> avx2_unit();
