// SPDX-License-Identifier: MIT

// Numbers of 16 bits read as float: every one of them, wherever it lies.

#include "poslsh/attention/storage.hpp"
#include "support/catch.hpp"

#include <bit>
#include <cmath>
#include <vector>

namespace storage_test {

using poslsh::Index;
using poslsh::detail::read_row;

namespace {

/// Every number of a type, in the order of its bits.
template <class S>
std::vector<S> every_number() {
  std::vector<S> all;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits)
    all.push_back(Eigen::numext::bit_cast<S>(static_cast<std::uint16_t>(bits)));
  return all;
}

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

/// The value of these bits by the definition of the format.
double by_definition(std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const std::uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const int exponent = static_cast<int>(bits >> fraction_bits & ((1u << exponent_bits) - 1));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  double value = 0;
  if (exponent == (1 << exponent_bits) - 1)
    value = fraction == 0 ? HUGE_VAL : std::nan("");
  else if (exponent == 0)
    value = std::ldexp(static_cast<double>(fraction), 1 - bias - fraction_bits);
  else
    value = std::ldexp(static_cast<double>(fraction + (1u << fraction_bits)), exponent - bias - fraction_bits);
  return (bits & 0x8000) != 0 ? -value : value;
}

}  // namespace

TEMPLATE_TEST_CASE("All 65536 numbers are widened exactly, as Eigen and the format's definition have it", "", Eigen::half,
                   Eigen::bfloat16) {
  const bool half = std::is_same_v<TestType, Eigen::half>;
  const std::vector<TestType> all = every_number<TestType>();
  // Rows from every place on: whole packets and rests.
  for (const Index first : {0, 1, 3, 8})
    for (const Index length : {65536, 33, 16, 15, 1}) {
      std::vector<float> wide(65536, 7.0f);
      Index read = first;
      for (; read + length <= 65536; read += length) read_row(all.data() + read, 1, length, wide.data() + read);
      Index wrong = 0;
      for (Index i = first; i < read; ++i) {
        const std::uint32_t bits = static_cast<std::uint32_t>(i);
        const float value = wide[static_cast<std::size_t>(i)];
        const float defined = static_cast<float>(half ? by_definition(bits, 5, 10) : by_definition(bits, 8, 7));
        if (!same(value, static_cast<float>(all[static_cast<std::size_t>(i)])) || !same(value, defined)) ++wrong;
      }
      CAPTURE(first, length);
      REQUIRE(wrong == 0);
    }
}

TEMPLATE_TEST_CASE("Rows of any stride and length are read in order, and nothing behind them is written", "", float,
                   double, Eigen::half, Eigen::bfloat16) {
  using T = poslsh::detail::Compute<TestType>;
  std::vector<TestType> from;
  for (int i = 0; i < 400; ++i) from.push_back(static_cast<TestType>(static_cast<float>(i - 200) / 4));
  for (const Index stride : {1, 2, 5, 0, -1, -3})
    for (const Index count : {0, 1, 7, 15, 16, 17, 31, 32, 33, 64, 70}) {
      const TestType* start = from.data() + (stride < 0 ? 399 : 3);
      std::vector<T> to(80, T(7777));
      read_row(start, stride, count, to.data());
      CAPTURE(stride, count);
      for (Index t = 0; t < 80; ++t) {
        const T wanted = t < count ? static_cast<T>(start[t * stride]) : T(7777);
        REQUIRE(to[static_cast<std::size_t>(t)] == wanted);
      }
    }
}

TEST_CASE("Attention computes 16-bit numbers in float, others as they are") {
  STATIC_REQUIRE(std::is_same_v<poslsh::detail::Compute<Eigen::half>, float>);
  STATIC_REQUIRE(std::is_same_v<poslsh::detail::Compute<Eigen::bfloat16>, float>);
  STATIC_REQUIRE(std::is_same_v<poslsh::detail::Compute<float>, float>);
  STATIC_REQUIRE(std::is_same_v<poslsh::detail::Compute<double>, double>);
}

}  // namespace storage_test
