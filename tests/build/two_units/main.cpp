// SPDX-License-Identifier: MIT
#include "unit.hpp"

#include <cmath>
#include <cstdio>

int main() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 77;
  const std::vector<float> plain = plain_unit();
  const std::vector<float> avx2 = avx2_unit();
  if (plain.empty() || plain.size() != avx2.size()) return 1;
  int far = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) far += !(std::abs(plain[i] - avx2[i]) <= 1e-5f);
  std::printf("%d of %zu values differ by more than 1e-5\n", far, plain.size());
  return far > 0;
}
