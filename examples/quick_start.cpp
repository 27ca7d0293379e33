// SPDX-License-Identifier: MIT
#include <poslsh/poslsh.hpp>

#include <cstdio>

int main() {
  using poslsh::Matrix;
  const Matrix<float> q = Matrix<float>::Random(512, 64), k = Matrix<float>::Random(512, 64),
                      v = Matrix<float>::Random(512, 64);  // tokens x features
  const double slope = poslsh::alibi_slopes(8)[3];         // of head 3 of 8
  const auto exact = poslsh::attention(q, k, v, poslsh::AlibiBias{slope}, {.causal = true});

  const auto hashes = poslsh::draw_hashes(poslsh::LaplaceKernel{1 / slope}, 64, /*seed=*/1);  // 64 draws
  const auto lsh = poslsh::attention(q, k, v, poslsh::MeanMask(hashes), {.causal = true});
  std::printf("relative error %.3f\n",
              static_cast<double>((lsh.values - exact.values).norm() / exact.values.norm()));
}
