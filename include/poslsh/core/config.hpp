// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Version, the floors this library stands on, and how it reports bad input.

#include <Eigen/Core>  // IWYU pragma: export
#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

/// The version of these headers: major, minor, patch.
#define POSLSH_VERSION_MAJOR 0
/// See POSLSH_VERSION_MAJOR.
#define POSLSH_VERSION_MINOR 1
/// See POSLSH_VERSION_MAJOR.
#define POSLSH_VERSION_PATCH 0

#if !(__cplusplus >= 202002L || (defined(_MSVC_LANG) && _MSVC_LANG >= 202002L))
#error "poslsh needs C++20: compile with -std=c++20 or later"
#endif

#if !EIGEN_VERSION_AT_LEAST(3, 4, 0)
#error "poslsh needs Eigen 3.4 or later"
#endif

// Empty rows, masked keys and the running maximum are defined through infinities and NaN, and the draws through
// the order of operations: a compiler told that none of these matter breaks both silently.
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ > 0)
#error "poslsh needs IEEE arithmetic: compile without -ffast-math, -Ofast and -ffinite-math-only"
#endif

/// \def POSLSH_EXCEPTIONS
/// 1 where errors are thrown, 0 where exceptions are off.
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS) || defined(_CPPUNWIND)
#define POSLSH_EXCEPTIONS 1
#else
#define POSLSH_EXCEPTIONS 0
#endif

/// \def POSLSH_SIMD
/// Code, packed layouts and Eigen's allocator follow the vector unit. Everything but Error lives in an inline namespace
/// named after it, so that objects built with different -m flags can be linked into one program without sharing code.
#if defined(EIGEN_VECTORIZE_AVX512)
#define POSLSH_SIMD simd_avx512
#elif defined(EIGEN_VECTORIZE_AVX) && defined(EIGEN_VECTORIZE_FMA)
#define POSLSH_SIMD simd_avx_fma
#elif defined(EIGEN_VECTORIZE_AVX)
#define POSLSH_SIMD simd_avx
#elif defined(EIGEN_VECTORIZE_SSE4_1)
#define POSLSH_SIMD simd_sse4
#elif defined(EIGEN_VECTORIZE_SSE)
#define POSLSH_SIMD simd_sse
#elif defined(EIGEN_VECTORIZE_NEON)
#define POSLSH_SIMD simd_neon
#elif defined(EIGEN_VECTORIZE)
#define POSLSH_SIMD simd_other
#else
#define POSLSH_SIMD simd_none
#endif

/// The library.
namespace poslsh {

/// What every entry point throws on bad input. The message names the argument, its value and what it must be.
class Error : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

}  // namespace poslsh

/// POSLSH_FAIL(message) reports an error; message is a std::string. It must not return.
/// Default: throw poslsh::Error, or abort where exceptions are off. Define it before the first include to replace it.
#ifndef POSLSH_FAIL
#if POSLSH_EXCEPTIONS
#define POSLSH_FAIL(message) throw ::poslsh::Error(message)
#else
#define POSLSH_FAIL(message) (static_cast<void>(message), std::abort())
#endif
#endif

/// The one check: unless the condition holds, fails with "poslsh: ARGUMENT is VALUE; it must be REQUIREMENT".
#define POSLSH_CHECK(condition, argument, value, requirement) \
  do {                                                        \
    if (!(condition)) [[unlikely]]                            \
      ::poslsh::detail::fail(argument, value, requirement);   \
  } while (false)

namespace poslsh::inline POSLSH_SIMD::detail {

/// A value as the shortest text that reads back as the same value.
template <class V>
std::string describe(const V& value) {
  if constexpr (std::is_convertible_v<V, std::string_view>) {
    return std::string(std::string_view(value));
  } else {
    char text[64];
    const std::to_chars_result end = std::to_chars(text, text + sizeof text, value);
    return {text, end.ptr};
  }
}

template <class V>
[[noreturn]] void fail(std::string_view argument, const V& value, std::string_view requirement) {
  std::string message("poslsh: ");
  message.append(argument).append(" is ").append(describe(value)).append("; it must be ").append(requirement);
  POSLSH_FAIL(message);
  std::abort();  // reached only if a replaced POSLSH_FAIL returns
}

}  // namespace poslsh::inline POSLSH_SIMD::detail
