// SPDX-License-Identifier: MIT
// Draws have the same bits with every compiler, standard library and vector unit: one sum over many of them.

#include "poslsh/position/hash.hpp"

#include <bit>
#include <cstdint>
#include <cstdio>

int main() {
  using namespace poslsh;
  std::uint64_t sum = 0;
  const auto take = [&](double value) { sum = (sum ^ std::bit_cast<std::uint64_t>(value)) * 0x100000001b3; };
  const auto take_all = [&](const auto& kernel) {
    for (const Sampling sampling : {Sampling::independent, Sampling::stratified, Sampling::importance, Sampling::mixture})
      for (const Index samples : {1, 2, 31, 5000})
        for (const PositionHash& hash : draw_hashes(kernel, samples, 7, sampling, 3)) {
          take(hash.width);
          take(hash.shift);
          take(hash.weight);
          take(static_cast<double>(hash.bin(-123456789)));
        }
  };
  for (const double sigma : {1e-3, 16.0, 12345.678}) take_all(LaplaceKernel{sigma});
  take_all(PowerKernel{1.0 / 16, 1.5});
  take_all(PowerKernel{1.0, 0.25});
  constexpr std::uint64_t golden = 0xe2a3662a03ce078;
  if (sum == golden) return 0;
  std::printf("draws sum to %#llx, not to %#llx\n", static_cast<unsigned long long>(sum),
              static_cast<unsigned long long>(golden));
  return 1;
}
