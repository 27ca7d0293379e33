// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Positional LSH (arXiv 2605.09472): hashes of positions whose bins are contiguous blocks.

#include "poslsh/core/random.hpp"
#include "poslsh/core/types.hpp"
#include "poslsh/position/kernel.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

namespace poslsh::inline POSLSH_SIMD {

/// One random binning: bin(i) = floor((i - shift) / width). Its bins are contiguous blocks of positions.
///
/// A width <= 1 gives every position a bin of its own, an infinite width one bin to all.
/// bin and block agree exactly for every |position| <= 2^52; both are pure and cost a few divisions.
struct PositionHash {
  double width = std::numeric_limits<double>::infinity();  ///< of a bin
  double shift = 0;   ///< where a bin begins
  double weight = 1;  ///< of this binning's mask in a MeanMask

  static constexpr double least_weight = 0x1p-1000;  ///< that may be: its inverse does not overflow

  /// The bin of a position. Never decreases with the position.
  [[nodiscard]] Index bin(Index position) const {
    if (width <= 1) return position;
    if (width == std::numeric_limits<double>::infinity()) return 0;
    return static_cast<Index>(std::floor((static_cast<double>(position) - shift) / width));
  }

  /// All positions in the bin of this one; +-2^62 where the block has no end.
  [[nodiscard]] KeyRange block(Index position) const {
    if (width <= 1) return {position, position + 1};
    if (width == std::numeric_limits<double>::infinity()) return {min_position, max_position};
    const Index own = bin(position);
    return {first_of_bin(own), first_of_bin(own + 1)};
  }

  /// \throws Error unless width > 0 (infinity included), |shift| <= 2^52 or half the width, weight within 2^-1000 and 2^1000
  void validate() const {
    POSLSH_CHECK(width > 0, "hash width", width, "positive");
    POSLSH_CHECK(std::abs(shift) <= (std::max)(width / 2, 0x1p52), "hash shift", shift,
                 "within +-2^52 or half the width");
    // So that neither its inverse nor a sum over draws overflows.
    POSLSH_CHECK(weight >= least_weight && weight <= 0x1p1000, "hash weight", weight, "between 2^-1000 and 2^1000");
  }

  /// All three numbers are equal.
  friend bool operator==(const PositionHash&, const PositionHash&) = default;

 private:
  /// The smallest position whose bin is at least this one: an estimate, put right by asking bin() itself.
  Index first_of_bin(Index target) const {
    const double estimate = std::ceil(static_cast<double>(target) * width + shift);
    if (estimate >= 0x1p62) return max_position;
    if (estimate <= -0x1p62) return min_position;
    Index position = static_cast<Index>(estimate);
    while (bin(position - 1) >= target) --position;
    while (bin(position) < target) ++position;
    return position;
  }
};

/// How draw_hashes spreads its draws. The mean mask is an unbiased estimate of the kernel under each.
enum class Sampling {
  independent,  ///< the paper's: every width and shift on its own, weights 1
  stratified,   ///< one width in each of w equally likely strata, m equally spaced shifts each, weights 1
  importance,   ///< stratified draws of widths twice as wide, weighted by the ratio of densities
  mixture,      ///< stratified draws from half that law and half three times as wide, weighted likewise
};

namespace detail {

/// The largest divisor m of samples with 2 m^2 <= samples, at least 1: shifts a width in a stratified draw.
[[nodiscard]] constexpr Index shifts_per_width(Index samples) {
  Index best = 1;
  for (Index m = 2; 2 * m * m <= samples; ++m)
    if (samples % m == 0) best = m;
  return best;
}

/// The width w with P[width <= w] = probability under the mean of a kernel's law and that law stretched, given the
/// quantile of the plain law: bisection between it and the stretched one, to the last bit.
template <DistanceKernel K>
[[nodiscard]] double mixture_quantile(const K& kernel, double probability, double plain, double stretch) {
  double low = plain, high = stretch * plain;
  if (!(high < std::numeric_limits<double>::infinity())) return high;
  for (double middle = low + (high - low) / 2; low < middle && middle < high; middle = low + (high - low) / 2) {
    const double above = (kernel.width_tail(middle) + kernel.width_tail(middle / stretch)) / 2;
    (above > 1 - probability ? low : high) = middle;
  }
  return low;
}

}  // namespace detail

/// Draws the hashes of a mean mask: E[(1/s) sum_r weight_r M_r(i, j)] = kernel(|i - j|).
///
/// - independent: width = quantile(U), shift = width U', weight 1.
/// - stratified: s = w m, m the largest divisor of s with 2 m^2 <= s; for a < w one width quantile((a + U_a) / w),
///   for c < m the shifts width (c + V_a) / m; weight 1.
/// - importance: widths of the kernel k(x / b) stretched by b = `stretch`, W = b quantile((a + U_a) / w), same shifts,
///   weighted by density(W) / (density(W / b) / b): far pairs, which matter where scores are high, are covered more
///   often. For LaplaceKernel and b = 2 the weight is 4 exp(-W / (2 sigma)). The diagonal is 1 only on average, with a
///   variance near b^2 / (4 s) for independent widths: a large b needs very many draws.
/// - mixture: as importance, but widths of the mean of both laws, the plain and the stretched: no weight exceeds 2, so
///   near pairs err little, and far ones are covered all the same. The best of all on real heads, see docs/experiments.md.
///
/// Weights below 2^-1000, as of widths that a stretched law reaches and the kernel does not, are 2^-1000.
///
/// \param kernel   value and width law, see DistanceKernel
/// \param samples  s, from 1 to 2^31
/// \param seed, stream  the draws are a pure function of all arguments; give heads that
///                 shall draw independently streams of their own
/// \param stretch  b, by default 2 for importance and 3 for mixture draws; see docs/experiments.md
/// \throws Error unless 1 <= samples <= 2^31 and stretch >= 1 and finite, and for importance draws so small that one in 16
/// weighs more than 2^-1000; or if the kernel's widths are not positive
/// Cost O(samples) quantiles. For the library's kernels the bits are the same on every platform.
template <DistanceKernel K>
[[nodiscard]] std::vector<PositionHash> draw_hashes(const K& kernel, Index samples, std::uint64_t seed,
                                                    Sampling sampling = Sampling::importance,
                                                    std::uint64_t stream = 0, std::optional<double> stretch = {}) {
  POSLSH_CHECK(samples >= 1 && samples <= Index{1} << 31, "samples", samples, "between 1 and 2^31");
  const double factor = stretch.value_or(sampling == Sampling::mixture ? 3 : 2);
  POSLSH_CHECK(factor >= 1 && std::isfinite(factor), "stretch", factor, "at least 1 and finite");
  POSLSH_CHECK(sampling >= Sampling::independent && sampling <= Sampling::mixture, "sampling", static_cast<int>(sampling),
               "one of Sampling");
  if (sampling == Sampling::importance)
    POSLSH_CHECK(detail::stretched_weight(kernel, factor * kernel.width_quantile(1.0 / 16), factor) > PositionHash::least_weight,
                 "stretch", factor, "so small that one draw in 16 weighs more than 2^-1000");
  const Index shifts = sampling == Sampling::independent ? 1 : detail::shifts_per_width(samples);
  const Index widths = samples / shifts;
  std::vector<PositionHash> hashes;
  hashes.reserve(static_cast<std::size_t>(samples));
  for (Index a = 0; a < widths; ++a) {
    const std::uint64_t counter = 2 * static_cast<std::uint64_t>(a);
    double probability = random_uniform(seed, stream, counter);
    if (sampling != Sampling::independent)
      probability = (static_cast<double>(a) + probability) / static_cast<double>(widths);
    // A sum that rounds up to 1 would ask for an infinite width.
    if (probability > 1 - 0x1p-53) probability = 1 - 0x1p-53;
    PositionHash hash{kernel.width_quantile(probability), 0, 1};
    if (sampling == Sampling::importance) {
      hash.width *= factor;
      hash.weight = detail::stretched_weight(kernel, hash.width, factor);
    } else if (sampling == Sampling::mixture) {
      hash.width = detail::mixture_quantile(kernel, probability, hash.width, factor);
      const double ratio = detail::stretched_weight(kernel, hash.width, factor);
      hash.weight = 2 / (1 + 1 / ratio);  // density / mean of density and density / ratio
    }
    hash.weight = (std::max)(hash.weight, PositionHash::least_weight);  // leaves NaN to validate()
    const double offset = random_uniform(seed, stream, counter + 1);
    for (Index c = 0; c < shifts; ++c) {
      hash.shift = detail::rounded(hash.width * ((static_cast<double>(c) + offset) / static_cast<double>(shifts)));
      if (!(hash.shift < hash.width)) hash.shift = 0;  // rounded up to the whole width: the same bins
      // Nor do they change here, where positions around 0 would drown in the shift.
      if (hash.shift > 0x1p52 && hash.shift > hash.width / 2) hash.shift -= hash.width;
      hash.validate();
      hashes.push_back(hash);
    }
  }
  return hashes;
}

}  // namespace poslsh::inline POSLSH_SIMD
