// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Numbers and positions of every size.

#include "fuzz/support.hpp"

#include <algorithm>
#include <cmath>

namespace poslsh::fuzz {

/// any_number, and numbers of any exponent with few digits, whose sums and quotients are often exact.
inline double any_double(Bytes& bytes) {
  if (bytes.ConsumeBool()) return any_number<double>(bytes);
  const int mantissa = bytes.ConsumeIntegral<std::int16_t>();
  const int exponent = bytes.ConsumeBool() ? bytes.ConsumeIntegralInRange(-16, 64) : bytes.ConsumeIntegralInRange(-1090, 1023);
  return std::ldexp(mantissa, exponent);
}

/// Within +-2^62: small ones, those around powers of two, and any.
inline Index any_position(Bytes& bytes) {
  constexpr Index end = max_position;
  const Index near = bytes.ConsumeIntegral<std::int8_t>();
  switch (bytes.ConsumeIntegralInRange(0, 3)) {
    case 0:
      return near;
    case 1:
      return std::clamp(near + (Index{1} << bytes.ConsumeIntegralInRange(0, 62)), -end, end);
    case 2:
      return std::clamp(near - (Index{1} << bytes.ConsumeIntegralInRange(0, 62)), -end, end);
    default:
      return in_range(bytes, -end, end);
  }
}

}  // namespace poslsh::fuzz
