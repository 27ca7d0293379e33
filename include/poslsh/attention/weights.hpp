// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A row of scores becomes a row of softmax weights, in whole packets.

#include "poslsh/attention/simd.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace poslsh::inline POSLSH_SIMD::detail {

/// Calls body(j, inside) for each aligned packet scores[j, j + W) that meets the range; inside(packet, other) keeps the
/// lanes of `packet` that are in the range and takes those of `other` elsewhere. Only the two ends pay for it.
template <class T, class Body>
EIGEN_ALWAYS_INLINE void each_packet(KeyRange range, Body&& body) {
  constexpr Index W = packet_size<T>;
  const auto all = [](Packet<T> packet, Packet<T>) POSLSH_INLINE_LAMBDA { return packet; };
  const auto partial = [&](Index j) POSLSH_INLINE_LAMBDA {
    if constexpr (W > 1) {
      const Packet<T> lane = Eigen::internal::plset<Packet<T>>(static_cast<T>(j));
      const Packet<T> mask =
          Eigen::internal::pand(Eigen::internal::pcmp_le(pset1<Packet<T>>(static_cast<T>(range.begin)), lane),
                                Eigen::internal::pcmp_lt(lane, pset1<Packet<T>>(static_cast<T>(range.end))));
      body(j, [&](Packet<T> packet, Packet<T> other) POSLSH_INLINE_LAMBDA {
        return Eigen::internal::pselect(mask, packet, other);
      });
    }
  };
  Index j = range.begin - range.begin % W;
  if (j < range.begin) {
    partial(j);
    j += W;
  }
  for (; j + W <= range.end; j += W) body(j, all);
  if (j < range.end) partial(j);
}

/// The largest of scores[range]; NaN is passed over. Reads whole packets.
template <class T>
[[nodiscard]] T largest(const T* scores, KeyRange range) {
  const Packet<T> lowest = pset1<Packet<T>>(-std::numeric_limits<T>::infinity());
  Packet<T> maxima = lowest;
  each_packet<T>(range, [&](Index j, auto&& inside) POSLSH_INLINE_LAMBDA {
    maxima = pmax(maxima, inside(ploadu<Packet<T>>(scores + j), lowest));
  });
  return predux_max(maxima);
}

/// scores[range] = exp(scores[range] - maximum), in place; returns their sum. The rest of the packets at both ends
/// becomes 0.
template <class T>
[[nodiscard]] T exponentiate(T* scores, KeyRange range, T maximum) {
  const Packet<T> maxima = pset1<Packet<T>>(maximum), zero = pset1<Packet<T>>(T(0));
  Packet<T> sums = zero;
  each_packet<T>(range, [&](Index j, auto&& inside) POSLSH_INLINE_LAMBDA {
    const Packet<T> weight = inside(exp_nonpositive<T>(psub(ploadu<Packet<T>>(scores + j), maxima)), zero);
    pstoreu(scores + j, weight);
    sums = padd(sums, weight);
  });
  return predux(sums);
}

/// values[t] = log(values[t]), t < count. Each result depends on its value alone, not on where it lies: an Eigen array
/// would take its ends, which depend on the address, through another function.
template <class T>
void take_logarithms(T* values, Index count) {
  constexpr Index W = packet_size<T>;
  if constexpr (Eigen::internal::packet_traits<T>::HasLog && W > 1) {
    for (Index t = 0; t < count; t += W) {
      T lanes[W];
      const Index used = (std::min)(W, count - t);
      for (Index lane = 0; lane < W; ++lane) lanes[lane] = lane < used ? values[t + lane] : T(1);
      pstoreu(lanes, Eigen::internal::plog(ploadu<Packet<T>>(lanes)));
      for (Index lane = 0; lane < used; ++lane) values[t + lane] = lanes[lane];
    }
  } else {
    for (Index t = 0; t < count; ++t) values[t] = std::log(values[t]);
  }
}

/// scores[range] = cap tanh(scores[range] / cap), in double: the cap need not fit T.
template <class T>
void soft_cap(T* scores, KeyRange range, double cap) {
  for (Index j = range.begin; j < range.end; ++j)
    scores[j] = static_cast<T>(cap * std::tanh(static_cast<double>(scores[j]) / cap));
}

}  // namespace poslsh::inline POSLSH_SIMD::detail
