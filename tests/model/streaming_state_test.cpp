// SPDX-License-Identifier: MIT

// save() and load(): a stream that goes on elsewhere with the same bits, and states that are no such thing.

#include "poslsh/model/streaming.hpp"
#include "support/catch.hpp"
#include "support/streams.hpp"

#include <cstring>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

namespace streaming_state_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::AttentionOptions;
using poslsh::draw_hashes;
using poslsh::FixedBlocks;
using poslsh::Index;
using poslsh::LaplaceKernel;
using poslsh::MeanMask;
using poslsh::NoBias;
using poslsh::StreamingAttention;
using Catch::Matchers::ContainsSubstring;

namespace {

template <class T, class B, class S>
std::string saved(const StreamingAttention<T, B, S>& stream) {
  std::ostringstream out;
  stream.save(out);
  return out.str();
}
template <class Stream, class B>
Stream loaded(const std::string& state, const std::vector<B>& biases) {
  std::istringstream in(state);
  return Stream::load(in, biases);
}
/// The message of the Error that a state gives; "no error" if it loads.
template <class Stream, class B>
std::string refusal(const std::string& state, const std::vector<B>& biases) {
  try {
    static_cast<void>(loaded<Stream>(state, biases));
  } catch (const poslsh::Error& error) {
    return error.what();
  }
  return "no error";
}

std::vector<MeanMask> random_heads(Index heads) {
  std::vector<MeanMask> masks;
  for (Index head = 0; head < heads; ++head)
    masks.emplace_back(draw_hashes(LaplaceKernel{20}, 32, 1, poslsh::Sampling::importance, static_cast<std::uint64_t>(head)));
  return masks;
}

using Small = StreamingAttention<float, AlibiBias>;
const std::vector<AlibiBias> small_biases{{0.5}, {0.25}};

/// A state of two heads, five tokens of three features.
std::string small_state(const AttentionOptions& options = {.sink = 1, .tolerance = 1e-3},
                        std::optional<double> norm = 1e3) {
  const auto layer = normal_stream<float>({2, 1, 5, 3, 2}, 1);
  auto stream = stream_for(layer, small_biases, options, norm);
  feed(stream, layer, {{5, 5}});
  return saved(stream);
}

}  // namespace

// --- Going on ----------------------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("A loaded stream goes on with the same bits, wherever it was cut", "", Scalars) {
  const StreamShape shape{4, 2, 1700, 8, 5};
  const auto layer = normal_stream<TestType>(shape, 2);
  const auto check = [&](const auto& biases, const AttentionOptions& options, std::optional<double> norm = {}) {
    for (const Index cut : {0, 1, 385, 1000, 1501}) {
      auto stream = stream_for(layer, biases, options, norm);
      using Stream = decltype(stream);
      Dice dice(static_cast<std::uint64_t>(cut));
      feed(stream, layer, random_chunks(dice, cut));
      const std::string state = saved(stream);
      auto other = loaded<Stream>(state, biases);
      REQUIRE(saved(other) == state);
      REQUIRE(other.position() == stream.position());
      const auto rest = random_chunks(dice, shape.tokens - cut);
      const auto expected = feed(stream, layer, rest, cut), got = feed(other, layer, rest, cut);
      CAPTURE(cut, options.key_offset);
      for (Index head = 0; head < shape.heads; ++head)
        REQUIRE(same_numbers(rows_of(got.values.view(), 0, head), rows_of(expected.values.view(), 0, head)));
      for (const Index head : {0, 1}) REQUIRE(other.cached_tokens(head) == stream.cached_tokens(head));
      REQUIRE(saved(other) == saved(stream));
    }
  };
  check(random_heads(4), {.key_offset = (Index{1} << 40) + 7});
  check(std::vector<NoBias>(4), {.window_left = 100, .window_right = 3, .softcap = 2, .threads = 2});
  check(std::vector<poslsh::FixedBlocks>{{1}, {1}, {390}, {50}}, {.scale = 0.3, .key_offset = -5000, .sink = -infinity});
  check(std::vector<AlibiBias>{{0.5}, {0.1}, {0.3}, {0.2}}, {.sink = 0.5, .tolerance = 1e-5}, 50.0);
  check(std::vector<AlibiBias>{{0.5}, {0.1}, {-0.001}, {0}}, {});
}

TEMPLATE_TEST_CASE("A cache of 16 bits is saved as it is, in half the bytes", "", Eigen::half, Eigen::bfloat16) {
  const auto layer = normal_stream<float>({2, 1, 900, 8, 8}, 3);
  const auto biases = random_heads(2);
  auto stream = stream_for<float, TestType>(layer, biases);
  auto wide = stream_for(layer, biases);
  feed(stream, layer, steps(5, {100, 100}));
  feed(wide, layer, steps(5, {100, 100}));
  REQUIRE(saved(wide).size() - saved(stream).size() == static_cast<std::size_t>(stream.cached_tokens(0)) * 16 * 2);
  auto other = loaded<decltype(stream)>(saved(stream), biases);
  const auto got = feed(other, layer, steps(4, {100, 100}), 500), expected = feed(stream, layer, steps(4, {100, 100}), 500);
  for (Index head = 0; head < 2; ++head)
    REQUIRE(same_numbers(rows_of(got.values.view(), 0, head), rows_of(expected.values.view(), 0, head)));
}

TEST_CASE("Several states in one stream, one behind the other, and what comes behind them") {
  const auto layer = normal_stream<float>({2, 1, 50, 3, 2}, 4);
  auto first = stream_for(layer, small_biases), second = stream_for(layer, small_biases);
  feed(first, layer, {{20, 20}});
  feed(second, layer, {{31, 31}});
  std::stringstream both;
  first.save(both);
  second.save(both);
  both << "and so on";
  REQUIRE(Small::load(both, small_biases).position() == 20);
  REQUIRE(Small::load(both, small_biases).position() == 31);
  std::string rest;
  std::getline(both, rest);
  REQUIRE(rest == "and so on");
}

TEST_CASE("A stream that fails while saving is an Error") {
  const auto layer = normal_stream<float>({2, 1, 5, 3, 2}, 5);
  auto stream = stream_for(layer, small_biases);
  feed(stream, layer, {{5, 5}});
  std::ostringstream out;
  out.setstate(std::ios::badbit);
  REQUIRE_THROWS_WITH(stream.save(out), "poslsh: stream to save to is in a failed state; it must be able to take the whole state");
  REQUIRE_THROWS_AS(stream.save(out), poslsh::Error);
}

// --- What is no state --------------------------------------------------------------------------------------

TEST_CASE("Every truncation is an Error") {
  for (const std::string& state : {small_state(), small_state({}, {})}) {
    REQUIRE(refusal<Small>(state, small_biases) == "no error");
    for (std::size_t length = 0; length < state.size(); ++length) {
      CAPTURE(length, state.size());
      REQUIRE(refusal<Small>(state.substr(0, length), small_biases) ==
              "poslsh: saved state is too short; it must be a whole one of StreamingAttention::save");
    }
  }
}

TEST_CASE("Every flipped bit, and every byte replaced, is an Error") {
  const std::string state = small_state();
  for (std::size_t at = 0; at < state.size(); ++at) {
    std::vector<char> others{0, 1, 0x7f, static_cast<char>(0x80), static_cast<char>(0xff)};
    for (int bit = 0; bit < 8; ++bit) others.push_back(static_cast<char>(state[at] ^ (1 << bit)));
    for (const char other : others) {
      if (other == state[at]) continue;
      std::string damaged = state;
      damaged[at] = other;
      CAPTURE(at, state.size(), static_cast<int>(other));
      const std::string text = refusal<Small>(damaged, small_biases);
      REQUIRE_THAT(text, Catch::Matchers::StartsWith("poslsh: "));
      REQUIRE_THAT(text, ContainsSubstring("saved state"));
    }
  }
}

TEST_CASE("A state takes no more memory than it has bytes for, whatever sizes it claims under right checksums") {
  const auto state_of = [](Index head_dim, Index value_dim, Index tokens, Index dropped) {
    std::ostringstream out;
    poslsh::detail::StateWriter state(out);
    poslsh::detail::write_header<float, float>(state, {2, 1, head_dim, value_dim, {}, {}, Index{1} << 50});
    state.value(tokens);
    state.value(dropped);
    state.seal();
    return out.str();
  };
  const std::vector<NoBias> biases(2);
  using Stream = StreamingAttention<float, NoBias>;
  for (const auto& [head_dim, value_dim] : {std::pair<Index, Index>{0, 0}, {0, 1}, {1, 0}, {1 << 20, 1 << 20}})
    for (const Index tokens : {Index{0}, Index{1}, Index{1} << 40})
      REQUIRE(refusal<Stream>(state_of(head_dim, value_dim, tokens, 383), biases) ==
              "poslsh: saved state is too short; it must be a whole one of StreamingAttention::save");
}

TEST_CASE("A stream without tokens that has dropped some is loaded without memory for them") {
  const std::vector<poslsh::FixedBlocks> biases{{7}};
  const auto layer = normal_stream<float>({1, 1, 30, 3, 2}, 6);
  auto stream = stream_for(layer, biases);
  feed(stream, layer, {{14, 14}});  // two whole blocks
  REQUIRE(stream.cached_tokens(0) == 0);
  auto other = loaded<decltype(stream)>(saved(stream), biases);
  REQUIRE(other.bytes() == 0);
  REQUIRE(saved(other) == saved(stream));
  const auto got = feed(other, layer, {{0, 0}, {16, 16}}, 14), expected = feed(stream, layer, {{16, 16}}, 14);
  REQUIRE(same_numbers(rows_of(got.values.view(), 0, 0), rows_of(expected.values.view(), 0, 0)));
}

TEST_CASE("Streams of no features go on and are saved like others") {
  for (const auto& [head_dim, value_dim] : {std::pair<Index, Index>{0, 0}, {0, 2}, {2, 0}}) {
    const auto layer = normal_stream<float>({2, 1, 500, head_dim, value_dim}, 7);
    auto stream = stream_for(layer, small_biases, {.tolerance = 1e-3});
    feed(stream, layer, steps(40, {10, 1}));
    auto other = loaded<Small>(saved(stream), small_biases);
    REQUIRE(other.cached_tokens(0) == 400);
    REQUIRE(saved(other) == saved(stream));
    const auto got = feed(other, layer, steps(10, {10, 1}), 400), expected = feed(stream, layer, steps(10, {10, 1}), 400);
    for (Index head = 0; head < 2; ++head)
      REQUIRE(same_numbers(rows_of(got.values.view(), 0, head), rows_of(expected.values.view(), 0, head)));
  }
}

TEST_CASE("Bytes that are left out, put in or doubled are an Error") {
  const std::string state = small_state();
  for (std::size_t at = 0; at < state.size(); ++at) {
    CAPTURE(at);
    std::string shorter = state, longer = state;
    shorter.erase(at, 1);
    longer.insert(at, 1, state[at]);
    REQUIRE(refusal<Small>(shorter, small_biases) != "no error");
    if (at + 1 < state.size() || longer.substr(0, state.size()) != state)
      REQUIRE((longer.substr(0, state.size()) == state || refusal<Small>(longer, small_biases) != "no error"));
  }
  REQUIRE(refusal<Small>("", small_biases) != "no error");
  REQUIRE(refusal<Small>(std::string(1000, '\0'), small_biases) != "no error");
}

TEST_CASE("A state of another kind of stream is an Error that says so") {
  const std::string state = small_state();
  const auto must_be = "; it must be the one of this program and these biases";
  REQUIRE(refusal<Small>("GGUF" + state, small_biases) == "poslsh: format of the saved state is another one" + std::string(must_be));
  REQUIRE(refusal<StreamingAttention<double, AlibiBias>>(state, small_biases) ==
          "poslsh: scalar type of the saved state is another one" + std::string(must_be));
  const std::string storage = "poslsh: storage type of the saved state is another one" + std::string(must_be);
  using Half = StreamingAttention<float, AlibiBias, Eigen::half>;
  using Bfloat = StreamingAttention<float, AlibiBias, Eigen::bfloat16>;
  REQUIRE(refusal<Half>(state, small_biases) == storage);
  REQUIRE(refusal<Bfloat>(state, small_biases) == storage);
  const std::string half = saved(Half(small_biases, 1, 3, 2)), bfloat = saved(Bfloat(small_biases, 1, 3, 2));
  REQUIRE(refusal<Half>(half, small_biases) == "no error");
  REQUIRE(refusal<Bfloat>(half, small_biases) == storage);
  REQUIRE(refusal<Half>(bfloat, small_biases) == storage);
  REQUIRE(refusal<Small>(half, small_biases) == storage);
  const std::string heads = "poslsh: number of heads of the saved state is 2; it must be one a bias";
  REQUIRE(refusal<Small>(state, std::vector<AlibiBias>{{0.5}}) == heads);
  REQUIRE(refusal<Small>(state, std::vector<AlibiBias>(4, {0.5})) == heads);
  REQUIRE(refusal<Small>(state, std::vector<AlibiBias>{}) == heads);
  REQUIRE(refusal<Small>(state, std::vector<AlibiBias>{{0.5}, {infinity}}) == "poslsh: slope is inf; it must be finite, at least -2^64");
}

TEST_CASE("A state loads with its own biases and no others") {
  const auto wrong_head = [](int head) {
    return "poslsh: bias of head " + std::to_string(head) + " is another one; it must be the one that the state was saved with";
  };
  const std::string alibi = small_state();
  REQUIRE(refusal<Small>(alibi, small_biases) == "no error");
  REQUIRE(refusal<Small>(alibi, std::vector<AlibiBias>{{0.25}, {0.5}}) == wrong_head(0));
  REQUIRE(refusal<Small>(alibi, std::vector<AlibiBias>{{0.5}, {0.25 + 1e-10}}) == wrong_head(1));

  // Draws of another seed, number, width or order of heads; before the first token too.
  using Masks = StreamingAttention<double, MeanMask>;
  const std::vector<MeanMask> masks = random_heads(2);
  for (const Index tokens : {0, 1, 70}) {
    CAPTURE(tokens);
    const auto layer = normal_stream<double>({2, 1, tokens, 3, 2}, 1);
    auto stream = stream_for(layer, masks, {});
    feed(stream, layer, {{tokens, tokens}});
    const std::string state = saved(stream);
    REQUIRE(refusal<Masks>(state, masks) == "no error");
    REQUIRE(refusal<Masks>(state, std::vector<MeanMask>{masks[1], masks[0]}) == wrong_head(0));
    for (const auto& [sigma, draws, seed] : {std::tuple{20.0, 32, 2}, {20.0, 33, 1}, {20.1, 32, 1}})
      REQUIRE(refusal<Masks>(state, std::vector<MeanMask>{
                masks[0], MeanMask(draw_hashes(LaplaceKernel{sigma}, draws, static_cast<std::uint64_t>(seed), poslsh::Sampling::importance, 1))}) ==
              wrong_head(1));
  }

  using Blocks = StreamingAttention<float, FixedBlocks>;
  const std::string blocks = saved(Blocks(std::vector<FixedBlocks>{{64}}, 1, 3, 2, {.key_offset = 70}));
  REQUIRE(refusal<Blocks>(blocks, std::vector<FixedBlocks>{{64}}) == "no error");
  REQUIRE(refusal<Blocks>(blocks, std::vector<FixedBlocks>{{32}}) == wrong_head(0));  // begins at 64 too
}

}  // namespace streaming_state_test
