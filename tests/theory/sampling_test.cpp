// SPDX-License-Identifier: MIT

// How well each design of the draws estimates the matrix: spectral errors over seeds, relative to independent
// draws.

#include "support/catch.hpp"

#include <poslsh/theory/spectral.hpp>

namespace sampling_test {

using namespace poslsh;

namespace {

/// Mean over 20 seeds of ||L* - Mt||_2, sigma = 16, n = 1024.
double mean_spectral_error(Index samples, Sampling sampling) {
  double sum = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed)
    sum += theory::spectral_error(LaplaceKernel{16},
                                  MeanMask(draw_hashes(LaplaceKernel{16}, samples, seed, sampling)), 1024);
  return sum / 20;
}

}  // namespace

TEST_CASE("Better designs have smaller spectral errors than independent draws of the same number") {
  struct Row {
    Index samples;
    double stratified, importance, mixture;
  };
  for (const Row& row : {Row{32, 0.50, 0.45, 0.45}, Row{64, 0.50, 0.40, 0.40}, Row{128, 0.50, 0.30, 0.30},
                         Row{256, 0.50, 0.30, 0.30}}) {
    const double independent = mean_spectral_error(row.samples, Sampling::independent);
    CAPTURE(row.samples, independent);
    CHECK(mean_spectral_error(row.samples, Sampling::stratified) <= row.stratified * independent);
    CHECK(mean_spectral_error(row.samples, Sampling::importance) <= row.importance * independent);
    CHECK(mean_spectral_error(row.samples, Sampling::mixture) <= row.mixture * independent);
  }
}

}  // namespace sampling_test
