// SPDX-License-Identifier: MIT

// What attention does not depend on, over hundreds of random calls: where positions start, the order of equally placed
// keys and how often each is there, later tokens; and that it stays within the range of the values.

#include "poslsh/attention/blockwise.hpp"
#include "support/biases.hpp"
#include "support/catch.hpp"
#include "support/random_calls.hpp"

#include <type_traits>
#include <utility>
#include <vector>

namespace invariance_property_test {

using namespace poslsh::test;
using poslsh::attention;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::blockwise_attention;
using poslsh::FixedBlocks;
using poslsh::Index;
using poslsh::KeyRange;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::Merge;
using poslsh::NoBias;
using poslsh::PositionHash;

namespace {

// --- Shifts -------------------------------------------------------------------------------------------------

/// A user's bias over positions shifted by this much.
struct MovedRagged {
  Index shift;
  [[nodiscard]] double log_weight(Index query, Index key) const { return RaggedBias{}.log_weight(query - shift, key - shift); }
  [[nodiscard]] KeyRange support(Index query) const {
    const KeyRange range = RaggedBias{}.support(query - shift);
    return {range.begin + shift, range.end + shift};
  }
  template <class T>
  void add_log_weights(Index query, Index first_key, T* scores, Index count) const {
    RaggedBias{}.add_log_weights(query - shift, first_key - shift, scores, count);
  }
};

/// The bias whose weights at shifted positions are those of this one, and a shift that it allows.
template <class Bias>
std::pair<Bias, Index> moved(const Bias& bias, Index shift) {
  return {bias, shift};
}
std::pair<MovedRagged, Index> moved(const RaggedBias&, Index shift) { return {MovedRagged{shift}, shift}; }
std::pair<FixedBlocks, Index> moved(const FixedBlocks& bias, Index shift) {
  return {bias, shift / bias.size * bias.size};
}
std::pair<MeanMask, Index> moved(const MeanMask& mask, Index shift) {
  std::vector<PositionHash> hashes(mask.hashes().begin(), mask.hashes().end());
  for (PositionHash& hash : hashes) hash.shift += static_cast<double>(shift);
  return {MeanMask(hashes), shift};
}

/// As given, or with shifts to which whole numbers up to 2^44 can be added without rounding.
template <class Bias>
Bias exactly_movable(const Bias& bias) {
  return bias;
}
MeanMask exactly_movable(const MeanMask& mask) {
  std::vector<PositionHash> hashes(mask.hashes().begin(), mask.hashes().end());
  for (PositionHash& hash : hashes) hash.shift = std::floor(hash.shift * 256) / 256;
  return MeanMask(hashes);
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("A constant added to all positions, those of random blocks too, changes no bit", "", Scalars) {
  each_call<TestType>(0, 20000, [](std::uint64_t, Dice& dice, const Call& call, const auto& x, const auto& any_bias) {
    const auto bias = exactly_movable(any_bias);
    const auto [other, shift] = moved(bias, dice.pick<Index>({1, -12345, Index{1} << 42, -(Index{1} << 43) + 1, Index{1} << 43}));
    AttentionOptions near = call.options;
    if (dice.chance(0.3)) near.tolerance = 0x1p-10;
    AttentionOptions far = near;
    far.key_offset += shift;
    if (far.query_offset) *far.query_offset += shift;
    CAPTURE(shift);
    REQUIRE(same_bits(attention(x.q, x.k, x.v, bias, near), attention(x.q, x.k, x.v, other, far)));
    if constexpr (std::is_same_v<std::decay_t<decltype(bias)>, MeanMask>)
      for (const Merge way : {Merge::ratio, Merge::mean})
        REQUIRE(same_bits(blockwise_attention(x.q, x.k, x.v, bias.hashes(), near, way),
                          blockwise_attention(x.q, x.k, x.v, other.hashes(), far, way)));
  });
}

// --- Orders and copies of keys ------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("The order of the keys within a block does not matter, up to rounding", "", Scalars) {
  for (std::uint64_t seed = 1000; seed < 1000 + cases; ++seed) {
    Dice dice(seed);
    Call call = random_call(dice);
    AttentionOptions& options = call.options;
    options.causal = false;
    options.window_left.reset();
    options.window_right.reset();
    const Inputs<TestType> x = call.inputs<TestType>(seed);
    const auto check = [&](const auto& bias) {
      std::vector<Index> order;
      while (static_cast<Index>(order.size()) < call.keys) {
        const Index first = static_cast<Index>(order.size());
        const Index end = std::min(bias.support(options.key_offset + first).end - options.key_offset, call.keys);
        for (const Index key : random_order(dice, end - first)) order.push_back(first + key);
      }
      const Inputs<TestType> mixed{x.q, rows_in(x.k, order), rows_in(x.v, order)};
      const Rounding<TestType> rounding(x, options);
      CAPTURE(seed, call.queries, call.keys, options.key_offset, options.query_offset.value_or(-1));
      each_way(bias, [&](const auto& attend) { REQUIRE(rounding.unlike(attend(mixed, bias, options), attend(x, bias, options)) == ""); });
    };
    if (seed % 3 == 0) check(NoBias{});
    if (seed % 3 == 1) check(FixedBlocks{dice.pick<Index>({2, 7, 64, 100, 400})});
    if (seed % 3 == 2) {
      const double width = dice.pick({2.5, 7.3, 64.0, 130.7, infinity});
      const double shift = std::isfinite(width) ? width * dice.uniform() : 0;
      check(MeanMask({{width, shift, dice.pick({1.0, 0.01, 30.0})}}));
    }
  }
}

namespace {

/// A user's log weights, one by one, of positions from 0 on.
struct TableBias {
  const Matrix<double>& log_weights;
  [[nodiscard]] double log_weight(Index query, Index key) const { return log_weights(query, key); }
  [[nodiscard]] KeyRange support(Index) const { return {0, log_weights.cols()}; }
  template <class T>
  void add_log_weights(Index query, Index first_key, T* scores, Index count) const {
    for (Index t = 0; t < count; ++t) scores[t] += static_cast<T>(log_weight(query, first_key + t));
  }
};

}  // namespace

TEMPLATE_LIST_TEST_CASE("A key that is there m times, anywhere, counts as one whose score is log m higher", "", Scalars) {
  Index twice = 0, never = 0;
  for (std::uint64_t seed = 2000; seed < 2000 + cases; ++seed) {
    Dice dice(seed);
    const Call call = random_call(dice, 10000);
    if (call.keys == 0) continue;
    AttentionOptions options{.scale = call.options.scale, .key_offset = 0, .query_offset = 0, .softcap = call.options.softcap,
                             .sink = call.options.sink, .threads = call.options.threads};
    const Inputs<TestType> x = call.inputs<TestType>(seed);
    Matrix<double> once = 2 * normal_matrix<double>(call.queries, call.keys, seed, 7);
    std::vector<Index> copies;
    for (Index j = 0; j < call.keys; ++j) {
      const Index times = j == 0 ? 1 : dice.pick<Index>({0, 1, 1, 2, 2, 3});
      for (Index t = 0; t < times; ++t) copies.push_back(j);
      twice += times == 2;
      never += times == 0;
    }
    std::vector<Index> order;
    for (const Index place : random_order(dice, static_cast<Index>(copies.size())))
      order.push_back(copies[static_cast<std::size_t>(place)]);
    Matrix<double> many(call.queries, static_cast<Index>(order.size()));
    for (Index i = 0; i < call.queries; ++i) {
      for (Index c = 0; c < many.cols(); ++c) many(i, c) = once(i, order[static_cast<std::size_t>(c)]);
      for (Index j = 0; j < call.keys; ++j)
        once(i, j) += std::log(static_cast<double>(std::count(copies.begin(), copies.end(), j)));
    }
    CAPTURE(seed, call.queries, call.keys);
    const auto got = attention(x.q, rows_in(x.k, order), rows_in(x.v, order), TableBias{many}, options);
    const auto wanted = attention(x.q, x.k, x.v, TableBias{once}, options);
    REQUIRE(Rounding<TestType>(x, options, 8).unlike(got, wanted) == "");
  }
  CHECK(twice > 500);
  CHECK(never > 500);
}

// --- The range of the output --------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("Every output lies between the smallest and the largest visible value", "", Scalars) {
  Index rows = 0;
  each_call<TestType>(3000, 12000, [&](std::uint64_t, Dice& dice, const Call& call, auto x, const auto& bias) {
    x.q *= static_cast<TestType>(dice.pick({1.0, 1.0, 20.0, 1000.0}));
    AttentionOptions options = call.options;
    if (dice.chance(0.3)) options.tolerance = dice.pick({0x1p-20, 0.5});
    const auto visible = visible_pairs(call.queries, call.keys, bias, options);
    // Weights add up to 1, but for the rounding of sums of this many terms.
    const double unit = (8 + std::sqrt(static_cast<double>(call.keys))) * static_cast<double>(std::numeric_limits<TestType>::epsilon());
    bool mean = false;  // comes last, where a draw without a visible key counts as zero
    int way = 0;
    each_way(bias, [&](const auto& attend) {
      mean = way++ == 2;
      const Matrix<TestType> got = attend(x, bias, options).values;
      for (Index i = 0; i < got.rows(); ++i)
        for (Index f = 0; f < got.cols(); ++f) {
          double low = infinity, high = -infinity;
          for (Index j = 0; j < call.keys; ++j) {
            if (!visible(i, j)) continue;
            low = std::min(low, static_cast<double>(x.v(j, f)));
            high = std::max(high, static_cast<double>(x.v(j, f)));
          }
          if (low > high || mean || options.sink) low = std::min(low, 0.0), high = std::max(high, 0.0);
          const double value = static_cast<double>(got(i, f)), margin = unit * std::max(std::abs(low), std::abs(high));
          rows += low < high;
          if (!(value >= low - margin && value <= high + margin)) FAIL("row " << i << ", feature " << f << ": " << value << " outside " << low << " .. " << high);
        }
    });
  });
  CHECK(rows > 10000);
}

// --- Later tokens -------------------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("Under causality no row changes a bit with what comes after it", "", Scalars) {
  Index rows = 0;
  each_call<TestType>(6000, 30000, [&](std::uint64_t seed, Dice& dice, const Call& call, const auto& x, const auto& bias) {
    AttentionOptions options = call.options;
    options.causal = true;
    const LaterTokens<TestType> later(dice, call, options, x, seed);
    const Index kept = later.kept_queries;
    CAPTURE(kept, later.kept_keys, later.size);
    each_way(bias, [&](const auto& attend) {
      const AttentionOutput<TestType> before = attend(x, bias, options), after = attend(later.changed, bias, options);
      REQUIRE(same_numbers(after.values.topRows(kept), before.values.topRows(kept)));
      REQUIRE(same_numbers(after.log_sum_exp.head(kept), before.log_sum_exp.head(kept)));
    });
    rows += later.kept_keys > 0 ? kept : 0;
  });
  CHECK(rows > 2000);
}

}  // namespace invariance_property_test
