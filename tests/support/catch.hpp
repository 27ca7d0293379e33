// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Catch2, version 2 or 3, under the names of version 3; Approx is global in both.

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
