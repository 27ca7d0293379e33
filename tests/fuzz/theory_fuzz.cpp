// SPDX-License-Identifier: MIT

// Kernels, their widths and the bounds of both theorems for arguments of every size: an Error or a number, never NaN.

#include "poslsh/theory/output_bounds.hpp"
#include "fuzz/numbers.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace {

using namespace poslsh;
using namespace poslsh::fuzz;

/// The number a call gives, at least `lowest`; or an Error.
template <class Call>
void check(const std::string& name, double lowest, Call&& call) {
  try {
    const double value = static_cast<double>(call());
    require(value >= lowest, name + " is " + std::to_string(value));
  } catch (const Error&) {
  }
}
constexpr double infinity = std::numeric_limits<double>::infinity();

Index any_count(Bytes& bytes) { return bytes.ConsumeBool() ? in_range(bytes, -1, 1000) : any_position(bytes); }

template <class Kernel>
void check_kernel(Bytes& bytes, const Kernel& kernel) {
  double distance = std::abs(any_double(bytes)), probability = std::abs(any_double(bytes));
  if (std::isnan(distance)) distance = 1;
  probability -= std::floor(probability);
  const double stretch = 1 + std::abs(any_double(bytes));
  check("kernel", 0, [&] { return kernel(distance); });
  check("width_tail", 0, [&] { return kernel.width_tail(distance); });
  check("width_density", 0, [&] { return kernel.width_density(distance); });
  check("width_quantile", 0, [&] { return kernel.width_quantile(probability); });
  check("log_value", -infinity, [&] { return kernel.log_value(distance); });
  check("log_tail_sum", -infinity, [&] { return kernel.log_tail_sum(distance); });
  if constexpr (requires { kernel.stretched_weight(distance, stretch); })
    if (stretch <= 1e100) check("stretched_weight", 0, [&] { return kernel.stretched_weight(distance, stretch); });
  const Index samples = any_count(bytes);
  const double failure = any_double(bytes);
  check("block_size_bound", 1, [&] { return theory::block_size_bound(kernel, samples, failure); });
}

template <class Kernel>
void check_output_bound(Bytes& bytes, const Kernel& kernel) {
  std::vector<PositionHash> hashes;
  for (Index count = in_range(bytes, 1, 3); count > 0; --count)
    hashes.push_back({std::max(std::abs(small_number<double>(bytes)), 0.5), small_number<double>(bytes), 1});
  const MeanMask mask(hashes);
  const Index query = in_range(bytes, -20, 20) * (bytes.ConsumeBool() ? Index{1} << 47 : 1);
  const Index first = bytes.ConsumeBool() ? query - in_range(bytes, 0, 5) : in_range(bytes, -20, 20);
  std::vector<double> scores;
  for (Index count = in_range(bytes, 0, 6); count > 0; --count) {
    const double score = any_double(bytes);
    scores.push_back(score < infinity ? score : 1);
  }
  const double largest_value = any_double(bytes);
  check("output_error_bound", 0,
        [&] { return theory::output_error_bound(kernel, mask, query, first, scores, largest_value); });
}

void check_bounds(Bytes& bytes) {
  const double sigma = any_double(bytes), error = any_double(bytes), failure = any_double(bytes), stretch = any_double(bytes),
               norm = any_double(bytes), mean = any_double(bytes);
  const Index n = any_count(bytes), samples = any_count(bytes);
  namespace theory = poslsh::theory;
  check("kernel_norm_bound", 1, [&] { return theory::kernel_norm_bound(sigma); });
  check("psi", 2, [&] { return theory::psi(sigma); });
  check("spectral_tail_bound", 0, [&] { return theory::spectral_tail_bound(sigma, n, samples, error); });
  check("spectral_expectation_bound", 0, [&] { return theory::spectral_expectation_bound(sigma, n, samples); });
  check("max_tail_bound", 0, [&] { return theory::max_tail_bound(n, samples, error); });
  check("samples_for_spectral_error", 1, [&] { return theory::samples_for_spectral_error(sigma, n, error, failure); });
  check("samples_for_max_error", 1, [&] { return theory::samples_for_max_error(n, error, failure); });
  check("spectral_bernstein_bound", 0, [&] { return theory::spectral_bernstein_bound(n, samples, error, norm, mean); });
  check("importance_norm_bound", 0, [&] { return theory::importance_norm_bound(sigma, stretch); });
  check("mixture_norm_bound", 0, [&] { return theory::mixture_norm_bound(sigma, stretch); });
  check("pair_bernstein_bound", 0, [&] { return theory::pair_bernstein_bound(samples, error, mean, norm); });
  check("max_bernstein_bound", 0, [&] { return theory::max_bernstein_bound(n, samples, error, norm); });
  check("uniform_output_error_bound", 0,
        [&] { return theory::uniform_output_error_bound(sigma, n, samples, error, failure); });
  check("samples_for_output_error", 1, [&] { return theory::samples_for_output_error(sigma, n, mean, error, failure); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  const LaplaceKernel laplace{any_double(bytes)};
  const PowerKernel power{laplace.sigma, any_double(bytes)};
  switch (bytes.ConsumeIntegralInRange(0, 4)) {
    case 0:
      check_kernel(bytes, laplace);
      break;
    case 1:
      check_kernel(bytes, power);
      break;
    case 2:
      check_output_bound(bytes, laplace);
      break;
    case 3:
      check_output_bound(bytes, power);
      break;
    default:
      check_bounds(bytes);
  }
  return 0;
}
