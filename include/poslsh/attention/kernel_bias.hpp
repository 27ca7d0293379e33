// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Exact attention whose weights are a kernel of the distance.

#include "poslsh/attention/bias.hpp"
#include "poslsh/position/kernel.hpp"

namespace poslsh::inline POSLSH_SIMD {

/// w(i, j) = k(|i - j|): what MeanMask(draw_hashes(kernel, ...)) estimates, exactly.
///
/// KernelBias{LaplaceKernel{sigma}} is AlibiBias{1 / sigma}; KernelBias{PowerKernel{c, p}} the logarithmic bias
/// -p log(1 + c |i - j|). Any DistanceKernel serves. One without log_value has weight 0, hence log weight -infinity,
/// where its value underflows: a query that sees no nearer key than those has no defined output.
template <DistanceKernel K>
struct KernelBias {
  K kernel;  ///< of the distance

  /// log w for key = query + offset.
  [[nodiscard]] double log_weight_at(Index offset) const {
    return detail::log_value(kernel, std::abs(static_cast<double>(offset)));
  }
  /// log w(query, key).
  [[nodiscard]] double log_weight(Index query, Index key) const { return log_weight_at(key - query); }
  /// The kernel's log_tail_sum. Infinity without one: AttentionOptions::tolerance then leaves out few keys or none.
  [[nodiscard]] double log_tail(Index offset) const {
    const double distance = std::abs(static_cast<double>(offset));
    if constexpr (requires { kernel.log_tail_sum(distance); })
      return kernel.log_tail_sum(distance);
    else
      return std::numeric_limits<double>::infinity();
  }
  /// Every key.
  [[nodiscard]] KeyRange support(Index) const { return {min_position, max_position}; }

  /// See PositionBias.
  template <class T>
  void add_log_weights(Index query, Index first_key, T* scores, Index count) const {
    for (Index t = 0; t < count; ++t) scores[t] += static_cast<T>(log_weight_at(first_key + t - query));
  }

  /// \throws Error where the kernel does about its parameters, and unless k(0) = 1 up to rounding
  void validate() const {
    const double at_zero = kernel(0.0);
    POSLSH_CHECK(std::abs(at_zero - 1) <= 1e-6, "kernel(0)", at_zero, "1");
  }
};
/// KernelBias{kernel} needs no template argument.
template <class K>
KernelBias(K) -> KernelBias<K>;

}  // namespace poslsh::inline POSLSH_SIMD
