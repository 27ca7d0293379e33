// SPDX-License-Identifier: MIT

// multi_head_attention over random shapes, layouts, packings and options: attention() head by head, bit by bit, and
// the definition.

#include "poslsh/model/multi_head.hpp"
#include "support/biases.hpp"
#include "support/catch.hpp"
#include "support/heads.hpp"

#include <type_traits>
#include <vector>

namespace multi_head_property_test {

using namespace poslsh::test;
using poslsh::AttentionOptions;
using poslsh::Index;
using poslsh::KeyRange;
using poslsh::MultiHeadOptions;

namespace {

Index random_tokens(Dice& dice) {
  if (dice.chance(0.5)) return dice.below(60);
  return dice.pick<Index>({0, 1, 2, 47, 95, 96, 97, 150, 191, 193, 383, 384, 385, 450});
}

/// The oracle's cost is bounded by drawing again.
LayerShape random_shape(Dice& dice) {
  for (;;) {
    LayerShape shape;
    shape.batch = dice.pick<Index>({0, 1, 1, 1, 2, 3});
    shape.key_heads = dice.pick<Index>({1, 1, 2, 3});
    shape.heads = shape.key_heads * dice.pick<Index>({1, 1, 2, 4});
    shape.queries = random_tokens(dice);
    shape.keys = random_tokens(dice);
    shape.head_dim = dice.pick<Index>({1, 2, 3, 8, 16, 17});
    shape.value_dim = dice.pick<Index>({0, 1, 3, 8, 16, 17});
    const Index pairs = shape.batch * shape.heads * shape.queries * shape.keys;
    if (pairs * (shape.head_dim + shape.value_dim) < 2000000) return shape;
  }
}

AttentionOptions random_options(Dice& dice, const LayerShape& shape, bool packed) {
  AttentionOptions options;
  options.threads = dice.pick({1, 2, 3, 8});
  options.causal = dice.chance(0.4);
  if (dice.chance(0.3)) options.scale = dice.pick({0.0, 1.0, -0.3});
  if (dice.chance(0.4)) options.key_offset = dice.pick<Index>({1, -7, Index{1} << 40});
  if (!packed && dice.chance(0.3))
    options.query_offset = options.key_offset + dice.pick<Index>({-5, 0, shape.keys / 2, shape.keys + 40});
  if (dice.chance(0.3)) options.window_left = dice.pick<Index>({0, 5, 100});
  if (dice.chance(0.3)) options.window_right = dice.pick<Index>({0, 5, 100});
  if (dice.chance(0.2)) options.softcap = dice.pick({0.5, 30.0});
  if (dice.chance(0.3)) options.sink = dice.pick({-infinity, -3.0, 2.0});
  return options;
}

/// Cuts a number of rows into members, some of them empty, and perhaps a rest.
std::vector<Index> random_starts(Dice& dice, Index rows, int members) {
  std::vector<Index> starts{0};
  for (int m = 0; m < members; ++m) {
    const Index left = rows - starts.back();
    starts.push_back(starts.back() + (dice.chance(0.3) ? 0 : dice.below(1 + 2 * left / (1 + members / 2)) % (left + 1)));
  }
  return starts;
}

KeyRange random_range(Dice& dice, Index rows) {
  const Index begin = dice.below(rows + 1);
  return {begin, begin + dice.below(rows - begin + 1)};
}

/// As many biases of one kind as there are heads, or batch items and heads.
template <class Check>
void with_biases(int kind, Dice& dice, const LayerShape& shape, Check&& check) {
  const Index count = dice.chance(0.5) ? shape.heads : shape.batch * shape.heads;
  with_bias(kind, dice, [&](const auto& first, const char* name) {
    using Bias = std::decay_t<decltype(first)>;
    std::vector<Bias> biases;
    while (static_cast<Index>(biases.size()) < count)
      with_bias(kind, dice, [&](const auto& bias, const char*) {
        if constexpr (std::is_same_v<std::decay_t<decltype(bias)>, Bias>) biases.push_back(bias);
      });
    check(biases, name);
  });
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("Layers of any shape are attention() head by head, and what its definition says", "", Scalars) {
  Index empty_members = 0, rest_rows = 0, padded = 0;
  for (std::uint64_t seed = 0; seed < 240; ++seed) {
    Dice dice(seed + 1000);
    LayerShape shape = random_shape(dice);
    const bool packed = dice.chance(0.4);
    if (packed) shape.batch = 1;
    MultiHeadOptions options{random_options(dice, shape, packed)};
    std::vector<Index> query_starts, key_starts;
    std::vector<KeyRange> valid;
    if (packed) {
      const int count = static_cast<int>(dice.below(7));
      options.query_starts = query_starts = random_starts(dice, shape.queries, count);
      options.key_starts = key_starts = random_starts(dice, shape.keys, count);
      rest_rows += shape.queries - query_starts.back();
      for (std::size_t m = 1; m < query_starts.size(); ++m) empty_members += query_starts[m] == query_starts[m - 1];
    } else if (dice.chance(0.4)) {
      for (Index item = 0; item < shape.batch; ++item) valid.push_back(random_range(dice, shape.keys));
      options.valid_keys = valid;
      padded += shape.batch;
    }
    const Layout in = all_layouts[dice.below(4)], out = all_layouts[dice.below(4)];
    const auto layer = normal_layer<TestType>(shape, seed, in);
    with_biases(static_cast<int>(seed) % bias_kinds, dice, shape, [&](const auto& biases, const char* name) {
      const auto got = attend(layer, biases, options, out);
      CAPTURE(seed, name, shape.batch, shape.heads, shape.key_heads, shape.queries, shape.keys, shape.head_dim,
              shape.value_dim, packed, options.attention.threads);
      CHECK(unlike_alone(got, layer.view(), biases, options) == "");
      // More than the usual units: log weights of far keys, and log-sum-exps of their size, are larger than scores.
      CHECK(layer_fault(got, layer.view(), biases, options, 8) == "");
    });
  }
  // The draws cover what they should.
  CHECK(empty_members > 50);
  CHECK(rest_rows > 500);
  CHECK(padded > 50);
}

}  // namespace multi_head_property_test
