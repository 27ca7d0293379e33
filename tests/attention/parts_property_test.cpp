// SPDX-License-Identifier: MIT

// Attention in parts, over hundreds of random calls: shards of the keys, chunks of the queries, and masks draw by draw
// or all in one sweep.

#include "poslsh/attention/blockwise.hpp"
#include "support/catch.hpp"
#include "support/random_calls.hpp"

#include <type_traits>
#include <utility>
#include <vector>

namespace parts_property_test {

using namespace poslsh::test;
using poslsh::attention;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::blockwise_attention;
using poslsh::draw_hashes;
using poslsh::Index;
using poslsh::LaplaceKernel;
using poslsh::MeanMask;
using poslsh::merge;
using poslsh::NoBias;
using poslsh::PositionHash;
using poslsh::PowerKernel;
using poslsh::Sampling;

namespace {

/// Merges any two parts until there is one.
template <class T>
AttentionOutput<T> merged_in_any_tree(Dice& dice, std::vector<AttentionOutput<T>> parts) {
  const auto take = [&] {
    const Index which = dice.below(static_cast<Index>(parts.size()));
    std::swap(parts[static_cast<std::size_t>(which)], parts.back());
    const AttentionOutput<T> part = std::move(parts.back());
    parts.pop_back();
    return part;
  };
  while (parts.size() > 1) {
    const AttentionOutput<T> a = take(), b = take();
    parts.push_back(merge(a, b));
  }
  return parts.front();
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("Shards of the keys, cut anywhere and merged in any tree, equal one call", "", Scalars) {
  each_call<TestType>(4000, 30000, [](std::uint64_t, Dice& dice, const Call& call, const auto& x, const auto& bias) {
    using Bias = std::decay_t<decltype(bias)>;
    const AttentionOptions& options = call.options;
    std::vector<Index> cuts{0, call.keys};
    for (Index cut = dice.below(7); cut > 0; --cut) cuts.push_back(dice.below(call.keys + 1));
    std::sort(cuts.begin(), cuts.end());
    const std::size_t sink_at = static_cast<std::size_t>(dice.below(static_cast<Index>(cuts.size()) - 1));
    // Without a bias or a window, shards may be any sets of keys.
    const bool any_keys = std::is_same_v<Bias, NoBias> && !options.causal && !options.window_left && !options.window_right;
    std::vector<Index> order = random_order(dice, call.keys);
    if (!any_keys) std::sort(order.begin(), order.end());
    const Inputs<TestType> y{x.q, rows_in(x.k, order), rows_in(x.v, order)};
    std::vector<AttentionOutput<TestType>> parts;
    for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
      AttentionOptions own = options;
      own.query_offset = first_query(options, call.queries, call.keys);
      own.key_offset += cuts[s];
      if (s != sink_at) own.sink.reset();
      const auto k = y.k.middleRows(cuts[s], cuts[s + 1] - cuts[s]), v = y.v.middleRows(cuts[s], cuts[s + 1] - cuts[s]);
      if constexpr (std::is_same_v<Bias, MeanMask>)
        if (dice.chance(0.5)) {
          parts.push_back(blockwise_attention(x.q, k, v, bias.hashes(), own));
          continue;
        }
      parts.push_back(attention(x.q, k, v, bias, own));
    }
    const AttentionOutput<TestType> whole = attention(x.q, x.k, x.v, bias, options);
    REQUIRE(Rounding<TestType>(x, options, 8).unlike(merged_in_any_tree(dice, std::move(parts)), whole) == "");
  });
}

TEMPLATE_LIST_TEST_CASE("Chunks of queries have the rows of one call, and its bits where tiles are cut alike", "", Scalars) {
  Index same = 0, other = 0;
  each_call<TestType>(5000, 60000, [&](std::uint64_t, Dice& dice, const Call& call, const auto& x, const auto& bias) {
    AttentionOptions options = call.options;
    // With the queries among the keys every chunk's log weights are relative to the nearest key, at distance 0.
    options.query_offset = options.key_offset + dice.below(std::max<Index>(call.keys - call.queries, 0) + 1);
    const bool among = call.queries <= call.keys, by_tiles = dice.chance(0.5);
    std::vector<Index> cuts{0, call.queries};
    for (Index cut = 1 + dice.below(4); cut > 0; --cut) {
      const Index at = dice.below(call.queries + 1);
      cuts.push_back(by_tiles ? at / poslsh::detail::query_tile * poslsh::detail::query_tile : at);
    }
    std::sort(cuts.begin(), cuts.end());
    const Rounding<TestType> rounding(x, options);
    // Tiles of keys are visited from those of the queries outwards: a sum of one has no order. The weights of a mean
    // mask are sums over its draws, in an order that begins with the tile of queries.
    constexpr bool sums = std::is_same_v<std::decay_t<decltype(bias)>, MeanMask>;
    const bool same_order = among && (by_tiles || (!sums && call.keys <= poslsh::detail::key_tile<TestType>));
    each_way(bias, [&](const auto& attend) {
      const AttentionOutput<TestType> whole = attend(x, bias, options);
      for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
        const Index begin = cuts[c], count = cuts[c + 1] - begin;
        AttentionOptions own = options;
        *own.query_offset += begin;
        const AttentionOutput<TestType> got = attend(Inputs<TestType>{x.q.middleRows(begin, count), x.k, x.v}, bias, own);
        const AttentionOutput<TestType> wanted{whole.values.middleRows(begin, count), whole.log_sum_exp.segment(begin, count)};
        CAPTURE(begin, count, same_order);
        REQUIRE(rounding.unlike(got, wanted) == "");
        if (same_order) REQUIRE(same_bits(got, wanted));
        (same_order ? same : other) += count;
      }
    });
  });
  CHECK(same > 3000);
  CHECK(other > 1000);
}

// --- Two ways to apply random masks -------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("One sweep over the mean of the masks equals the ratio merge of the draws", "", Scalars) {
  for (std::uint64_t seed = 7000; seed < 7000 + cases; ++seed) {
    Dice dice(seed);
    const Call call = random_call(dice);
    const Inputs<TestType> x = call.inputs<TestType>(seed);
    const Sampling sampling = dice.pick({Sampling::independent, Sampling::stratified, Sampling::importance, Sampling::mixture});
    const Index samples = dice.pick<Index>({1, 2, 7, 12, 64});
    const std::vector<PositionHash> hashes =
        dice.chance(0.7) ? draw_hashes(LaplaceKernel{dice.pick({0.3, 4.0, 30.0, 500.0})}, samples, seed, sampling)
                         : draw_hashes(PowerKernel{dice.pick({0.02, 1.0}), dice.pick({1.0, 2.0})}, samples, seed, sampling);
    CAPTURE(seed, static_cast<int>(sampling), samples, call.queries, call.keys);
    // A sum over draws rounds once a draw.
    const Rounding<TestType> rounding(x, call.options, 4 + std::sqrt(static_cast<double>(samples)));
    REQUIRE(rounding.unlike(attention(x.q, x.k, x.v, MeanMask(hashes), call.options),
                            blockwise_attention(x.q, x.k, x.v, hashes, call.options)) == "");
  }
}

}  // namespace parts_property_test
