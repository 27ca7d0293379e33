// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What the fuzz targets share: values from a fuzzer's bytes, and how a target says that something is wrong.

#include "poslsh/core/types.hpp"

#include <fuzzer/FuzzedDataProvider.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <type_traits>

namespace poslsh::fuzz {

using Bytes = FuzzedDataProvider;

/// Ends the run, which the fuzzer reports with the input that led here.
[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "WRONG: %s\n", what.c_str());
  std::abort();
}
inline void require(bool holds, const std::string& what) {
  if (!holds) fail(what);
}

inline Index in_range(Bytes& bytes, Index lowest, Index highest) {
  return bytes.ConsumeIntegralInRange<Index>(lowest, highest);
}

/// Numbers of every kind: any bits, those at the edges of T, and ordinary ones.
template <class T>
T any_number(Bytes& bytes) {
  using Limits = std::numeric_limits<T>;
  static constexpr T edges[] = {T(0),         -T(0),           T(1),           T(-1),       Limits::min(), Limits::denorm_min(),
                                Limits::max(), Limits::lowest(), Limits::epsilon(), T(1e38), T(-1e38),      T(1e19)};
  switch (bytes.ConsumeIntegralInRange<int>(0, 3)) {
    case 0:
      return bytes.PickValueInArray(edges);
    case 1: {  // NaN and infinities among them
      using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
      return std::bit_cast<T>(bytes.ConsumeIntegral<Bits>());
    }
    default:
      return static_cast<T>(bytes.ConsumeIntegral<std::int8_t>()) / T(32);
  }
}
/// The ordinary ones alone: at most 4 in magnitude.
template <class T>
T small_number(Bytes& bytes) {
  return static_cast<T>(bytes.ConsumeIntegral<std::int8_t>()) / T(32);
}

/// Counts and positions of every kind: any bits, those around limits, and small ones.
inline Index any_index(Bytes& bytes) {
  using Limits = std::numeric_limits<Index>;
  static constexpr Index edges[] = {0, -1, Index{1} << 52, -(Index{1} << 52), Index{1} << 62, Limits::max() - 1, Limits::min() + 1};
  switch (bytes.ConsumeIntegralInRange<int>(0, 3)) {
    case 0:
      return bytes.PickValueInArray(edges) + in_range(bytes, -1, 1);
    case 1:
      return bytes.ConsumeIntegral<Index>();
    default:
      return bytes.ConsumeIntegral<std::int8_t>();
  }
}

/// Ordinary numbers in plenty from one seed: evenly spread over [-2, 2). (SplitMix64)
class Noise {
 public:
  explicit Noise(std::uint64_t seed) : state_(seed) {}
  double operator()() {
    std::uint64_t bits = state_ += 0x9E3779B97F4A7C15;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
    return static_cast<double>((bits ^ (bits >> 31)) >> 11) * 0x1p-51 - 2;
  }

 private:
  std::uint64_t state_;
};

}  // namespace poslsh::fuzz
