// SPDX-License-Identifier: MIT
// Built twice, with different flags and definitions, into one program.

#ifdef UNIT_MIN_MAX_MACROS
// The standard library does not survive such macros; what the headers include comes first, as it would in an
// old code base. A standard header missing here shows as an error inside that header.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <charconv>
#include <cmath>
#include <complex>
#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <iosfwd>
#include <istream>
#include <iterator>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <ostream>
#include <random>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#endif

#include "poslsh/poslsh.hpp"

#include "unit.hpp"

std::vector<float> UNIT() {  // NOLINT(readability-identifier-naming): a macro that names one of two functions
  using namespace poslsh;
  const Index tokens = 150, features = 19;  // neither is a multiple of any vector or tile
  Matrix<float> q(tokens, features), k(tokens, features), v(tokens, features);
  for (Index i = 0; i < q.size(); ++i) {
    const float x = static_cast<float>(i);
    q.data()[i] = std::sin(x);
    k.data()[i] = std::cos(1.7f * x);
    v.data()[i] = std::sin(0.3f * x);
  }
  AttentionOptions options;
  options.causal = true;
  options.threads = 2;
  const auto exact = attention(q, k, v, AlibiBias{0.125}, options);
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{8.0}, 16, 1);
  const auto blocks = blockwise_attention(q, k, v, hashes, options);

  std::vector<float> values(exact.values.data(), exact.values.data() + exact.values.size());
  values.insert(values.end(), blocks.values.data(), blocks.values.data() + blocks.values.size());
  return values;
}
