// SPDX-License-Identifier: MIT
#include <poslsh/poslsh.hpp>

#include <cstdio>

int main() {
  using namespace poslsh;
  const Matrix<float> q = Matrix<float>::Random(64, 8), k = Matrix<float>::Random(64, 8);
  const Matrix<float> v = Matrix<float>::Random(64, 8);
  AttentionOptions options;
  options.threads = 2;
  const auto exact = attention(q, k, v, AlibiBias{0.25}, options);
  const auto random = blockwise_attention(q, k, v, draw_hashes(LaplaceKernel{4.0}, 512, 1), options);
  const double error = (exact.values - random.values).cwiseAbs().maxCoeff();
  std::printf("poslsh %d.%d.%d: 512 samples differ by at most %.3f\n", POSLSH_VERSION_MAJOR,
              POSLSH_VERSION_MINOR, POSLSH_VERSION_PATCH, error);
  return error < 0.1 ? 0 : 1;
}
