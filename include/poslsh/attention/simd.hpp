// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Packets of the target's vector unit, and the exponential on them.
///
/// Eigen's packet primitives (Eigen::internal, stable since 3.3) give AVX-512, AVX2, SSE, NEON and plain scalars alike.

#include "poslsh/core/types.hpp"

#include <bit>
#include <cstdint>
#include <iterator>
#include <utility>

#if defined(__GNUC__) || defined(__clang__)
#define POSLSH_INLINE_LAMBDA __attribute__((always_inline))
#else
#define POSLSH_INLINE_LAMBDA
#endif

// Packet types carry an alignment that g++ cannot keep in template arguments; nothing here depends on it.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"
#endif

namespace poslsh::inline POSLSH_SIMD::detail {

using Eigen::internal::padd;
using Eigen::internal::ploadu;
using Eigen::internal::pmadd;
using Eigen::internal::pmax;
using Eigen::internal::pmul;
using Eigen::internal::predux;
using Eigen::internal::predux_max;
using Eigen::internal::pset1;
using Eigen::internal::pstoreu;
using Eigen::internal::psub;

template <class T>
using Packet = typename Eigen::internal::packet_traits<T>::type;

template <class T>
inline constexpr int packet_size = Eigen::internal::unpacket_traits<Packet<T>>::size;

/// As many packets as a packet has lanes.
template <class T>
using PacketSquare = Eigen::internal::PacketBlock<Packet<T>, packet_size<T>>;

inline constexpr bool many_registers = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32;

/// Calls body(integral_constant<int, 0>) ... body(integral_constant<int, N - 1>): an unrolled loop whose counter is
/// a constant, so that small arrays of packets stay in registers.
template <int N, class Body>
EIGEN_ALWAYS_INLINE void unrolled(Body&& body) {
  [&]<int... I>(std::integer_sequence<int, I...>) POSLSH_INLINE_LAMBDA {
    (body(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

/// Constants of the exponential. 2^r is a polynomial on [-1/2, 1/2], here times two: adding `magic` to x leaves
/// round(x) + bias - 1 in the low bits, whose shift into the exponent is 2^(round(x) - 1), and 0 at the lowest x.
/// So results are normal numbers or exactly 0, never denormal, which would be slow to multiply.
template <class T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  using Bits = std::uint32_t;
  static constexpr int mantissa_bits = 23;
  static constexpr float magic = 0x1.8p23f + 126;
  static constexpr float lowest = -87.3365447f;  // -126 ln 2
  static constexpr float log2_e = 1.44269502f, log2_e_low = 1.92596303e-8f;
  // Minimax, relative error 2.6e-9.
  static constexpr float twice[] = {2 * 1.0f,           2 * 0.69314721f,   2 * 0.24022651f,   2 * 0.055503272f,
                                    2 * 0.0096180567f, 2 * 0.0013400428f, 2 * 0.00015461445f};
};

template <>
struct ExpConstants<double> {
  using Bits = std::uint64_t;
  static constexpr int mantissa_bits = 52;
  static constexpr double magic = 0x1.8p52 + 1022;
  static constexpr double lowest = -708.39641853226408;  // -1022 ln 2
  static constexpr double log2_e = 1.4426950408889634074, log2_e_low = 2.0355273740931033e-17;
  // Taylor's: (ln 2)^k / k!, relative error 5e-18.
  static constexpr double twice[] = {
      2 * 1.0,                      2 * 6.931471805599453094e-1, 2 * 2.402265069591007123e-1,
      2 * 5.550410866482157995e-2,  2 * 9.618129107628477162e-3, 2 * 1.333355814642844342e-3,
      2 * 1.540353039338160995e-4,  2 * 1.525273380405984028e-5, 2 * 1.321548679014430949e-6,
      2 * 1.017808600923969973e-7,  2 * 7.054911620801122977e-9, 2 * 4.445538271870811498e-10,
      2 * 2.567843599348820514e-11, 2 * 1.369148885390412889e-12};
};

/// The low bits of x shifted into the exponent.
template <class T>
EIGEN_ALWAYS_INLINE Packet<T> shift_into_exponent(const Packet<T>& x) {
  constexpr int shift = ExpConstants<T>::mantissa_bits;
  if constexpr (packet_size<T> > 1 && sizeof(T) == 4) {
    using Integers = typename Eigen::internal::unpacket_traits<Packet<T>>::integer_packet;
    const Integers bits = Eigen::internal::preinterpret<Integers>(x);
    return Eigen::internal::preinterpret<Packet<T>>(Eigen::internal::plogical_shift_left<shift>(bits));
  } else {  // Eigen has no packet of 64-bit integers everywhere; compilers vectorise this loop
    T lanes[packet_size<T>];
    pstoreu(lanes, x);
    for (T& lane : lanes)
      lane = std::bit_cast<T>(std::bit_cast<typename ExpConstants<T>::Bits>(lane) << shift);
    return ploadu<Packet<T>>(lanes);
  }
}

/// exp(x) for x <= 0 (a rounding error above is fine) within 2 units in the last place; exactly 0 from about -87 down
/// in float, -708 in double; NaN stays NaN.
template <class T>
EIGEN_ALWAYS_INLINE Packet<T> exp_nonpositive(Packet<T> x) {
  using C = ExpConstants<T>;
  x = pmax(x, pset1<Packet<T>>(C::lowest));  // of a NaN and a number, pmax gives its first argument
  const Packet<T> log2_e = pset1<Packet<T>>(C::log2_e);
  const Packet<T> shifted = pmadd(x, log2_e, pset1<Packet<T>>(C::magic));
  const Packet<T> negative_n = psub(pset1<Packet<T>>(C::magic), shifted);
  // Without the low part the error would grow with |x|, always in one direction.
  const Packet<T> r = pmadd(x, pset1<Packet<T>>(C::log2_e_low), pmadd(x, log2_e, negative_n));
  constexpr int degree = static_cast<int>(std::size(C::twice)) - 1;
  Packet<T> sum = pset1<Packet<T>>(C::twice[degree]);
  unrolled<degree>([&](auto k) POSLSH_INLINE_LAMBDA {
    sum = pmadd(sum, r, pset1<Packet<T>>(C::twice[degree - 1 - decltype(k)::value]));
  });
  return pmul(sum, shift_into_exponent<T>(shifted));
}

}  // namespace poslsh::inline POSLSH_SIMD::detail

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
