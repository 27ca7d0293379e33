// SPDX-License-Identifier: MIT

// What a StreamingAttention keeps: exactly what later queries can reach, in bounded memory, in 16 bits if asked.

#include "poslsh/model/streaming.hpp"
#include "poslsh/position/alibi.hpp"
#include "support/catch.hpp"
#include "support/streams.hpp"

#include <vector>

namespace streaming_cache_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::alibi_slopes;
using poslsh::AttentionOptions;
using poslsh::draw_hashes;
using poslsh::FixedBlocks;
using poslsh::Index;
using poslsh::LaplaceKernel;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::NoBias;
using poslsh::PositionHash;
using poslsh::Sampling;
using poslsh::StreamingAttention;

namespace {

std::vector<MeanMask> random_heads(Index heads, double sigma, Sampling sampling) {
  std::vector<MeanMask> masks;
  for (Index head = 0; head < heads; ++head)
    masks.emplace_back(draw_hashes(LaplaceKernel{sigma}, 32, 1, sampling, static_cast<std::uint64_t>(head)));
  return masks;
}

/// The first key that a query at this position shares a bin with, by asking every key.
Index first_in_reach(const MeanMask& mask, Index query, Index first_key) {
  for (Index key = first_key; key < query; ++key)
    for (const PositionHash& hash : mask.hashes())
      if (hash.bin(key) == hash.bin(query)) return key;
  return query;
}

/// Feeds a stream, and asks of each key head after each call whether it keeps the tokens from first(head, position) on.
template <class T, class B, class First>
void require_kept(const Layer<T>& layer, const std::vector<B>& biases, const AttentionOptions& options,
                  const std::vector<Chunk>& chunks, First&& first) {
  auto stream = stream_for(layer, biases, options);
  feed(stream, layer.view(), chunks, 0, [&] {
    for (Index head = 0; head < layer.view().k.heads; ++head) {
      const Index position = stream.position();
      CAPTURE(head, position);
      REQUIRE(stream.cached_tokens(head) == position - std::max(options.key_offset, first(head, position)));
    }
  });
}

template <class T, class S>
std::size_t row_bytes(Index head_dim, Index value_dim) {
  return static_cast<std::size_t>(head_dim + value_dim) * sizeof(S);
}

}  // namespace

// --- What is kept ------------------------------------------------------------------------------------------

TEST_CASE("Mean masks keep exactly the keys that share a block with the next query") {
  for (const Sampling sampling : {Sampling::independent, Sampling::stratified, Sampling::importance})
    for (const double sigma : {0.3, 5.0, 40.0})
      for (const Index offset : {Index{0}, Index{-777}, (Index{1} << 40) + 5}) {
        const auto layer = normal_stream<float>({3, 3, 900, 2, 2}, 1);
        const auto masks = random_heads(3, sigma, sampling);
        Dice dice(static_cast<std::uint64_t>(sigma * 10));
        CAPTURE(static_cast<int>(sampling), sigma, offset);
        require_kept(layer, masks, {.key_offset = offset}, random_chunks(dice, 900), [&](Index head, Index position) {
          return first_in_reach(masks[static_cast<std::size_t>(head)], position, offset);
        });
      }
}

TEST_CASE("Fixed blocks keep the block of the next query") {
  const auto layer = normal_stream<float>({4, 4, 1000, 2, 2}, 2);
  const std::vector<FixedBlocks> blocks{{1}, {64}, {385}, {100000}};
  for (const Index offset : {0, 10, -10, -99990}) {
    Dice dice(2);
    require_kept(layer, blocks, {.key_offset = offset}, random_chunks(dice, 1000), [&](Index head, Index position) {
      const Index size = blocks[static_cast<std::size_t>(head)].size;
      return size * floor_divide(position, size);
    });
  }
}

TEST_CASE("Windows keep what they reach back to, under any bias") {
  const auto layer = normal_stream<float>({2, 1, 900, 2, 2}, 3);
  for (const Index window : {Index{0}, Index{1}, Index{383}, Index{384}, Index{1} << 60}) {
    Dice dice(3);
    const auto chunks = random_chunks(dice, 900);
    const AttentionOptions options{.key_offset = -5, .window_left = window};
    const auto back = [&](Index, Index position) { return position - window; };
    require_kept(layer, std::vector<AlibiBias>(2, {0.1}), options, chunks, back);
    require_kept(layer, std::vector<NoBias>(2), options, chunks, back);
    require_kept(layer, std::vector<FixedBlocks>{{100}, {30}}, options, chunks, [&](Index, Index position) {
      return std::max(position - window, 100 * floor_divide(position, 100));
    });
  }
}

TEST_CASE("Grouped heads keep what any of the group reaches") {
  const auto layer = normal_stream<float>({4, 2, 700, 2, 2}, 4);
  std::vector<MeanMask> masks = random_heads(2, 30, Sampling::importance);
  for (const MeanMask& mask : random_heads(2, 6, Sampling::importance)) masks.push_back(mask);
  std::swap(masks[1], masks[2]);  // a broad and a sharp one share keys
  require_kept(layer, masks, {}, steps(700), [&](Index head, Index position) {
    const std::size_t h = static_cast<std::size_t>(2 * head);
    return std::min(first_in_reach(masks[h], position, 0), first_in_reach(masks[h + 1], position, 0));
  });
}

TEST_CASE("A user's bias keeps what its support reaches; what has no end is kept whole") {
  const auto layer = normal_stream<float>({2, 1, 600, 2, 2}, 5);
  Dice dice(5);
  const auto chunks = random_chunks(dice, 600);
  require_kept(layer, std::vector<TriangleBias>{{30}, {7}}, {}, chunks,
               [](Index, Index position) { return position - 29; });
  require_kept(layer, std::vector<RaggedBias>(2), {}, chunks,
               [](Index, Index position) { return 10 * floor_divide(position - 50, 10); });
  const auto everything = [](Index, Index) { return Index{0}; };
  require_kept(layer, std::vector<NoBias>(2), {}, chunks, everything);
  require_kept(layer, std::vector<AlibiBias>(2, {1.0}), {.tolerance = 0.5}, chunks, everything);
  require_kept(layer, std::vector<poslsh::KernelBias<LaplaceKernel>>(2, {{1.0}}), {}, chunks, everything);
  require_kept(layer, std::vector<MeanMask>(2, MeanMask(std::vector<PositionHash>(1))), {}, chunks, everything);
}

// --- Memory ------------------------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("Memory is at most twice the largest reach and three tiles, however long the stream", "", Scalars) {
  const Index head_dim = 3, value_dim = 2, tokens = 30000;
  const auto layer = normal_stream<TestType>({1, 1, 200, head_dim, value_dim}, 6);
  const auto run = [&](const auto& bias, const AttentionOptions& options) {
    StreamingAttention<TestType, std::decay_t<decltype(bias)>> stream({bias}, 1, head_dim, value_dim, options);
    Tensor<TestType> out(1, 1, 200, value_dim);
    Dice dice(6);
    Index largest = 0;
    std::size_t early = 0;
    while (stream.position() < tokens) {
      const Index count = dice.chance(0.995) ? 1 : 1 + dice.below(200);
      largest = std::max(largest, stream.cached_tokens(0) + count);
      stream.step(tokens_of(layer.view().q, 0, 1), tokens_of(layer.view().k, 0, count),
                  tokens_of(layer.view().v, 0, count), tokens_of(out.view(), 0, 1));
      REQUIRE(stream.bytes() <= static_cast<std::size_t>(2 * largest + 3 * 384) *
                                    row_bytes<TestType, TestType>(head_dim, value_dim));
      if (stream.position() < tokens / 2) early = stream.bytes();
    }
    return std::pair{early, stream.bytes()};
  };
  run(MeanMask(draw_hashes(LaplaceKernel{20}, 32, 1)), {});
  run(MeanMask(draw_hashes(LaplaceKernel{200}, 16, 1, Sampling::stratified)), {});
  for (const Index window : {0, 100, 1000, 5000}) {
    const auto [early, late] = run(AlibiBias{0.1}, {.window_left = window});
    REQUIRE(late == early);
  }
  run(FixedBlocks{3000}, {});
}

TEST_CASE("A stream that keeps everything has at most twice the memory its tokens need") {
  const auto layer = normal_stream<float>({2, 1, 5000, 4, 4}, 7);
  auto stream = stream_for(layer, std::vector<NoBias>(2));
  REQUIRE(stream.bytes() == 0);
  feed(stream, layer.view(), steps(5000), 0, [&] {
    const std::size_t needed = static_cast<std::size_t>(stream.position()) * row_bytes<float, float>(4, 4);
    REQUIRE(stream.bytes() >= needed);
    REQUIRE(stream.bytes() <= 2 * needed + 384 * row_bytes<float, float>(4, 4));
  });
}

// --- Storage of 16 bits ------------------------------------------------------------------------------------

TEMPLATE_TEST_CASE("A cache of 16 bits: the bits of a float cache that is given the rounded numbers", "", Eigen::half,
                   Eigen::bfloat16) {
  for (const std::pair<Index, Index>& dims : {std::pair<Index, Index>{16, 16}, {5, 3}, {1, 1}, {64, 33}}) {
    const auto layer = normal_stream<float>({4, 2, 900, dims.first, dims.second}, 8);
    const Layer<float> narrow{layer.q, rounded<TestType>(layer.k), rounded<TestType>(layer.v)};
    Dice dice(8);
    const auto chunks = random_chunks(dice, 900);
    const auto check = [&](const auto& biases, const AttentionOptions& options) {
      auto stream = stream_for<float, TestType>(layer, biases, options);
      auto wide = stream_for(layer, biases, options);
      const auto got = feed(stream, layer, chunks), expected = feed(wide, narrow, chunks);
      CAPTURE(dims.first, dims.second);
      for (Index head = 0; head < 4; ++head)
        REQUIRE(same_numbers(rows_of(got.values.view(), 0, head), rows_of(expected.values.view(), 0, head)));
      REQUIRE(stream.cached_tokens(1) == wide.cached_tokens(1));
      REQUIRE(2 * stream.bytes() == wide.bytes());
    };
    check(random_heads(4, 25, Sampling::stratified), {});
    check(std::vector<AlibiBias>(4, {0.02}), {.softcap = 3, .sink = 1});
    check(std::vector<AlibiBias>(4, {0.02}), {.window_left = 100});
  }
}

TEMPLATE_TEST_CASE("Unit normal keys and values in 16 bits: relative errors below 0.1 % in half, 1 % in bfloat16", "",
                   Eigen::half, Eigen::bfloat16) {
  const auto layer = normal_stream<float>({8, 8, 800, 64, 64}, 9);
  std::vector<AlibiBias> biases;
  for (const double slope : alibi_slopes(8)) biases.push_back({slope});
  auto stream = stream_for<float, TestType>(layer, biases);
  auto wide = stream_for(layer, biases);
  const auto got = feed(stream, layer, {{700, 700}, {100, 100}});
  const auto exact = feed(wide, layer, {{700, 700}, {100, 100}});
  const double bound = std::is_same_v<TestType, Eigen::half> ? 0.001 : 0.01;
  for (Index head = 0; head < 8; ++head) {
    const Matrix<float> right = rows_of(exact.values.view(), 0, head);
    const Matrix<float> error = rows_of(got.values.view(), 0, head) - right;
    CAPTURE(head, error.norm() / right.norm());
    REQUIRE(error.norm() <= bound * right.norm());
    REQUIRE(error.norm() >= bound / 100 * right.norm());  // it is rounded indeed
  }
}

}  // namespace streaming_cache_test
