// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Randomness as a value: counter-based draws without any state.
///
/// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011). The seed is the
/// key, (index, stream) the counter. Any draw can be made anywhere, in any order, by any thread, with the same bits.

#include "poslsh/core/config.hpp"

#include <array>
#include <cstdint>

namespace poslsh::inline POSLSH_SIMD::detail {

/// Ten rounds of Philox4x32 on a counter under a key.
[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                                std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t left = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t right = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(right >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(right),
               static_cast<std::uint32_t>(left >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(left)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

}  // namespace poslsh::inline POSLSH_SIMD::detail

namespace poslsh::inline POSLSH_SIMD {

/// 64 random bits: a pure function of (seed, stream, index).
[[nodiscard]] constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const std::array<std::uint32_t, 4> block = detail::philox4x32(
      {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
       static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return std::uint64_t{block[1]} << 32 | block[0];
}

/// Uniform on the midpoints of 2^52 equal parts of the unit interval: never 0, never 1.
[[nodiscard]] constexpr double random_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return (static_cast<double>(random_bits(seed, stream, index) >> 12) + 0.5) * 0x1p-52;
}

}  // namespace poslsh::inline POSLSH_SIMD
