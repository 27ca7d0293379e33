// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Catch2, version 2 or 3, under the names of version 3; Approx is global in both. And the types that tests run over.

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_approx.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_all.hpp>
#include <catch2/matchers/catch_matchers_all.hpp>

using Catch::Approx;
#else
#include <catch2/catch.hpp>

namespace Catch {
using Detail::Approx;
}

namespace Catch::Matchers {
inline auto ContainsSubstring(const std::string& text, CaseSensitive::Choice choice = CaseSensitive::Yes) {
  return Contains(text, choice);
}
}  // namespace Catch::Matchers
#endif

#include <tuple>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TEST_IN_FLOAT_ONLY
#endif
#endif

/// What a test of any scalar type runs over, as TEMPLATE_LIST_TEST_CASE(name, tags, Scalars). Under the address sanitizer,
/// where they compile four times as long, float alone.
#ifdef TEST_IN_FLOAT_ONLY
using Scalars = std::tuple<float>;
#else
using Scalars = std::tuple<float, double>;
#endif
