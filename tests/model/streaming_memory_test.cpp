// SPDX-License-Identifier: MIT

// Streams when there is no memory, and what a state that lies about its sizes can make them ask for.

#include "poslsh/model/streaming.hpp"
#include "support/catch.hpp"
#include "support/streams.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>
#include <string>
#include <vector>

// --- Memory that refuses large requests, for this whole program --------------------------------------------

namespace streaming_memory_test {
namespace {

std::atomic<std::size_t> largest_allowed{~std::size_t{0}};

void* allocate(std::size_t size, std::size_t alignment) {
  if (size > largest_allowed) throw std::bad_alloc();
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(size > 0 ? size : 1)
                     : std::aligned_alloc(alignment, (size / alignment + 1) * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

struct Limit {
  explicit Limit(std::size_t bytes) { largest_allowed = bytes; }
  Limit(const Limit&) = delete;
  ~Limit() { largest_allowed = ~std::size_t{0}; }
};

}  // namespace
}  // namespace streaming_memory_test

// Not inline: compilers take the two halves of a pair, one inline and one not, for a mismatch.
#if defined(__GNUC__)
#define NOT_INLINE __attribute__((noinline))
#else
#define NOT_INLINE
#endif
NOT_INLINE void* operator new(std::size_t size) { return streaming_memory_test::allocate(size, 1); }
NOT_INLINE void* operator new(std::size_t size, std::align_val_t alignment) {
  return streaming_memory_test::allocate(size, static_cast<std::size_t>(alignment));
}
// std::stable_sort asks in this way; a half replaced would be a mismatch for address sanitizers.
NOT_INLINE void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return size > streaming_memory_test::largest_allowed ? nullptr : std::malloc(size > 0 ? size : 1);
}
NOT_INLINE void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
NOT_INLINE void operator delete(void* memory) noexcept { std::free(memory); }
NOT_INLINE void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
NOT_INLINE void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
NOT_INLINE void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace streaming_memory_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::AttentionOptions;
using poslsh::Index;
using poslsh::NoBias;
using poslsh::StreamingAttention;

TEST_CASE("More tokens than there is memory for change nothing") {
  const StreamShape shape{2, 2, 3000, 64, 8};
  const auto layer = normal_stream<float>(shape, 1);
  const std::vector<AlibiBias> biases{{0.01}, {0.1}};
  auto stream = stream_for(layer, biases), undisturbed = stream_for(layer, biases);
  const auto expected = feed(undisturbed, layer, {{300, 300}, {2700, 20}});
  feed(stream, layer, {{300, 300}});
  const std::size_t bytes = stream.bytes();
  for (const std::size_t limit : {std::size_t{100000}, std::size_t{500000}}) {  // 2700 keys of a head take 691200
    const Limit refuse(limit);
    REQUIRE_THROWS_AS(feed(stream, layer.view(), {{2700, 0, true}}, 300, [] {}), std::bad_alloc);
    REQUIRE(stream.position() == 300);
    REQUIRE(stream.cached_tokens(0) == 300);
    REQUIRE(stream.cached_tokens(1) == 300);
  }
  REQUIRE(stream.bytes() == bytes);
  const auto rest = feed(stream, layer, {{2700, 20}}, 300);
  for (Index head = 0; head < 2; ++head)
    REQUIRE(same_numbers(rows_of(rest.values.view(), 0, head).bottomRows(20),
                         rows_of(expected.values.view(), 0, head).bottomRows(20)));
}

// --- States that lie ---------------------------------------------------------------------------------------

namespace {

using Stream = StreamingAttention<float, AlibiBias>;
const std::vector<AlibiBias> biases{{0.5}, {0.25}};

std::uint64_t fnv(const std::string& bytes) {
  std::uint64_t sum = 0xcbf29ce484222325;
  for (const char byte : bytes) sum = (sum ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return sum;
}
template <class V>
void put(std::string& bytes, std::size_t at, V value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

/// The message of the Error that a state gives within a mebibyte; "no error" if it loads, "no memory" if it asks for more.
std::string refusal(const std::string& state) {
  std::istringstream in(state);
  const Limit refuse(std::size_t{1} << 20);
  try {
    static_cast<void>(Stream::load(in, biases));
  } catch (const poslsh::Error& error) {
    return error.what();
  } catch (const std::bad_alloc&) {
    return "no memory";
  }
  return "no error";
}

}  // namespace

TEST_CASE("A damaged state never asks for memory it cannot fill") {
  const auto layer = normal_stream<float>({2, 1, 5, 3, 2}, 2);
  auto stream = stream_for(layer, biases, {.tolerance = 1e-3}, 1e3);
  feed(stream, layer, {{5, 5}});
  std::ostringstream out;
  stream.save(out);
  const std::string state = out.str();
  REQUIRE(refusal(state) == "no error");
  for (std::size_t at = 0; at + 8 <= state.size(); ++at)
    for (const std::uint64_t value :
         {std::uint64_t{1} << 20, std::uint64_t{1} << 30, std::uint64_t{1} << 51, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
      std::string damaged = state;
      put(damaged, at, value);
      if (damaged == state) continue;
      CAPTURE(at, value);
      REQUIRE_THAT(refusal(damaged), Catch::Matchers::StartsWith("poslsh: "));
    }
}

TEST_CASE("A state that was made to lie, checksums and all, is an Error where its sizes cannot be") {
  // The header by its fields: magic, two tags, four sizes, then the options; its checksum; then tokens and dropped.
  const auto layer = normal_stream<float>({2, 1, 5, 3, 2}, 3);
  auto stream = stream_for(layer, biases, {.tolerance = 1e-3}, 1e3);
  feed(stream, layer, {{5, 5}});
  std::ostringstream out;
  stream.save(out);
  const std::string state = out.str();
  constexpr std::size_t key_heads = 24, head_dim = 32, value_dim = 40, key_offset = 57, position = 122, header = 130;
  std::string check = state;
  put(check, header, fnv(state.substr(0, header)));
  REQUIRE(check == state);  // the fields are where this test takes them to be
  const auto lie = [&](std::size_t at, Index value) {
    std::string lying = state;
    put(lying, at, value);
    put(lying, header, fnv(lying.substr(0, header)));
    put(lying, header + 24, fnv(lying.substr(0, header + 24)));
    return refusal(lying);
  };
  REQUIRE(lie(position, 5) == "no error");
  const std::string too_short = "poslsh: saved state is too short; it must be a whole one of StreamingAttention::save";
  REQUIRE(lie(key_heads, 0) == "poslsh: key_heads is 0; it must be a divisor of the query heads");
  REQUIRE(lie(head_dim, (1 << 20) + 1) == "poslsh: head_dim is 1048577; it must be between 0 and 2^20");
  REQUIRE(lie(head_dim, 100000) == too_short);
  REQUIRE(lie(value_dim, 100000) == too_short);
  REQUIRE(lie(key_offset, 6) == "poslsh: position of the saved state is 5; it must be from key_offset to 2^52");
  REQUIRE(lie(key_offset, 2) == "poslsh: tokens in the saved state is 5; it must be at most all since key_offset");
  for (const Index far : {(Index{1} << 52) + 1, (std::numeric_limits<Index>::max)(), Index{-1}})
    REQUIRE(lie(position, far) == "poslsh: position of the saved state is " + std::to_string(far) + "; it must be from key_offset to 2^52");

  const auto sizes = [&](Index tokens, Index dropped) {
    std::string lying = state;
    put(lying, position, Index{1} << 50);
    put(lying, header, fnv(lying.substr(0, header)));
    put(lying, header + 8, tokens);
    put(lying, header + 16, dropped);
    put(lying, header + 24, fnv(lying.substr(0, header + 24)));
    return refusal(lying);
  };
  REQUIRE(sizes(Index{1} << 49, 0) == too_short);
  REQUIRE(sizes(Index{1} << 49, 383) == too_short);
  REQUIRE(sizes(-1, 0) == "poslsh: tokens in the saved state is -1; it must be at most all since key_offset");
  for (const Index dropped : {-1, 384})
    REQUIRE(sizes(5, dropped) == "poslsh: tokens dropped in the saved state is " + std::to_string(dropped) +
                                     "; it must be less than a tile, and not before key_offset");
  REQUIRE(sizes(Index{1} << 50, 1) ==
          "poslsh: tokens dropped in the saved state is 1; it must be less than a tile, and not before key_offset");
}

}  // namespace streaming_memory_test
