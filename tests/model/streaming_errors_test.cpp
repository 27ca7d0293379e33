// SPDX-License-Identifier: MIT

// What a StreamingAttention refuses, in which words, and that it goes on as if nothing had been asked.

#include "poslsh/model/streaming.hpp"
#include "support/catch.hpp"
#include "support/streams.hpp"

#include <functional>
#include <string>
#include <vector>

namespace streaming_errors_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::AttentionOptions;
using poslsh::FixedBlocks;
using poslsh::Index;
using poslsh::Matrix;
using poslsh::NoBias;
using poslsh::StreamingAttention;
using poslsh::TensorView;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

namespace {

/// The message of the Error that a call throws; "no error" if it throws none.
std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const poslsh::Error& error) {
    return error.what();
  }
  return "no error";
}

std::string made(Index heads, Index key_heads, Index head_dim, Index value_dim, const AttentionOptions& options = {},
                 std::optional<double> max_query_norm = {}) {
  return message([&] {
    StreamingAttention<float, NoBias>(std::vector<NoBias>(static_cast<std::size_t>(heads)), key_heads, head_dim, value_dim,
                                      options, max_query_norm);
  });
}

constexpr Index most_tokens = 40;

/// Views of a stream of 4 query heads on 2 key heads, 5 features and 3 values, each over enough memory for all calls.
struct Views {
  TensorView<const double> q, k, v;
  TensorView<double> out;
};

}  // namespace

TEST_CASE("What a stream is made of is checked") {
  REQUIRE(made(0, 1, 4, 4) == "poslsh: number of biases is 0; it must be at least 1, one a query head");
  REQUIRE(made(4, 0, 4, 4) == "poslsh: key_heads is 0; it must be a divisor of the query heads");
  REQUIRE(made(4, -2, 4, 4) == "poslsh: key_heads is -2; it must be a divisor of the query heads");
  REQUIRE(made(4, 3, 4, 4) == "poslsh: key_heads is 3; it must be a divisor of the query heads");
  REQUIRE(made(4, 8, 4, 4) == "poslsh: key_heads is 8; it must be a divisor of the query heads");
  REQUIRE(made(4, 2, -1, 4) == "poslsh: head_dim is -1; it must be between 0 and 2^20");
  REQUIRE(made(4, 2, 4, (1 << 20) + 1) == "poslsh: value_dim is 1048577; it must be between 0 and 2^20");
  REQUIRE(made(4, 2, 4, 4, {.query_offset = 3}) ==
          "poslsh: query_offset is 3; it must be unset: queries follow the tokens so far");
  REQUIRE(made(4, 2, 4, 4, {.key_offset = (Index{1} << 52) + 1}) ==
          "poslsh: key_offset is 4503599627370497; it must be within +-2^52");
  REQUIRE(made(4, 2, 4, 4, {.scale = infinity}) == "poslsh: scale is inf; it must be finite, within +-2^126");
  REQUIRE(made(4, 2, 4, 4, {.window_left = -1}) == "poslsh: window_left is -1; it must be at least 0");
  REQUIRE(made(4, 2, 4, 4, {.window_right = -1}) == "poslsh: window_right is -1; it must be at least 0");
  REQUIRE(made(4, 2, 4, 4, {.softcap = 0.0}) == "poslsh: softcap is 0; it must be positive and finite");
  REQUIRE(made(4, 2, 4, 4, {.sink = infinity}) == "poslsh: sink is inf; it must be finite or -inf");
  REQUIRE(made(4, 2, 4, 4, {.tolerance = -1}) == "poslsh: tolerance is -1; it must be finite and at least 0");
  REQUIRE(made(4, 2, 4, 4, {.threads = 0}) == "poslsh: threads is 0; it must be at least 1");
  for (const double norm : {-1.0, infinity, not_a_number})
    REQUIRE_THAT(made(4, 2, 4, 4, {}, norm), ContainsSubstring("poslsh: max_query_norm is ") &&
                                                 ContainsSubstring("; it must be finite and at least 0"));
  REQUIRE(message([] { StreamingAttention<float, FixedBlocks>({{8}, {0}}, 1, 4, 4); }) ==
          "poslsh: size is 0; it must be between 1 and 2^52");
  REQUIRE(message([] { StreamingAttention<float, AlibiBias>({{1}, {infinity}}, 1, 4, 4); }) ==
          "poslsh: slope is inf; it must be finite, at least -2^64");
  REQUIRE(made(4, 2, 0, 0) == "no error");
  REQUIRE(made(4, 2, 1 << 20, 1 << 20, {.key_offset = Index{1} << 52}) == "no error");

  const StreamingAttention<float, NoBias> stream(std::vector<NoBias>(4), 2, 4, 4);
  for (const Index head : {-1, 2})
    REQUIRE(message([&] { static_cast<void>(stream.cached_tokens(head)); }) ==
            "poslsh: key_head is " + std::to_string(head) + "; it must be at least 0 and below key_heads");
}

TEST_CASE("A call that does not fit is an Error that says why; the next one gives the right rows") {
  const StreamShape shape{4, 2, most_tokens, 5, 3};
  const auto layer = normal_stream<double>(shape, 1);
  const std::vector<AlibiBias> biases{{0.5}, {0.25}, {0.1}, {0.02}};
  double norm = 0;
  for (Index head = 0; head < 4; ++head)
    norm = std::max(norm, rows_of(layer.view().q, 0, head).rowwise().norm().maxCoeff());
  norm *= 1 + 1e-12;
  const AttentionOptions options{.tolerance = 1e-3};
  auto stream = stream_for(layer, biases, options, norm), undisturbed = stream_for(layer, biases, options, norm);
  const auto expected = feed(undisturbed, layer, {{20, 20}, {1, 1}, {9, 4}, {10, 10}});
  StreamOutput<double> got = feed(stream, layer, {{20, 20}});

  std::vector<double> memory(10000, 1e-3);
  const auto packed = [&](Index heads, Index tokens, Index features) {
    return TensorView<double>::heads_first(memory.data(), 1, heads, tokens, features);
  };
  const Views good{packed(4, 2, 5), packed(2, 7, 5), packed(2, 7, 3), packed(4, 2, 3)};
  struct Fault {
    std::string words;
    std::function<void(Views&)> make;
    bool also_append = false;
  };
  std::vector<double> large(10000, norm);  // far too large a query
  std::vector<double> nan(10000, not_a_number);
  const std::vector<Fault> faults{
      {"batch of q is 2; it must be 1", [](Views& x) { x.q.batch = 2; }},
      {"batch of q is 0; it must be 1", [](Views& x) { x.q.batch = 0; }},
      {"heads of q is 3; it must be one a bias", [](Views& x) { x.q.heads = 3; }},
      {"features of q is 4; it must be head_dim", [](Views& x) { x.q.features = 4; }},
      {"tokens of q is 8; it must be at most those of k", [](Views& x) { x.q.tokens = 8; }},
      {"tokens of q is -1; it must be between 0 and 2^52", [](Views& x) { x.q.tokens = -1; }},
      {"data of q is null; it must be memory", [](Views& x) { x.q.data = nullptr; }},
      {"token_stride of q is 1152921504606846976; it must be so small",
       [](Views& x) { x.q.token_stride = Index{1} << 60; }},
      {"heads of out is 5; it must be those of q, in a batch of 1", [](Views& x) { x.out.heads = 5; }},
      {"heads of out is 4; it must be those of q, in a batch of 1", [](Views& x) { x.out.batch = 2; }},
      {"tokens of out is 1; it must be those of q", [](Views& x) { x.out.tokens = 1; }},
      {"features of out is 5; it must be value_dim", [](Views& x) { x.out.features = 5, x.out.token_stride = 5; }},
      {"data of out is null", [](Views& x) { x.out.data = nullptr; }},
      {"token_stride of out is 2; it must be at least 3, so that rows do not overlap", [](Views& x) { x.out.token_stride = 2; }},
      {"norm of a query is ", [&](Views& x) { x.q.data = large.data(); }},
      {"norm of a query is nan; it must be at most max_query_norm", [&](Views& x) { x.q.data = nan.data(); }},
      {"heads of k is 4; it must be key_heads, in a batch of 1", [](Views& x) { x.k.heads = 4; }, true},
      {"heads of k is 2; it must be key_heads, in a batch of 1", [](Views& x) { x.k.batch = 2; }, true},
      {"heads of v is 1; it must be key_heads, in a batch of 1", [](Views& x) { x.v.heads = 1; }, true},
      {"heads of v is 2; it must be key_heads, in a batch of 1", [](Views& x) { x.v.batch = 0; }, true},
      {"features of k is 3; it must be head_dim", [](Views& x) { x.k.features = 3; }, true},
      {"features of v is 5; it must be value_dim", [](Views& x) { x.v.features = 5; }, true},
      {"tokens of v is 6; it must be those of k", [](Views& x) { x.v.tokens = 6; }, true},
      {"data of k is null", [](Views& x) { x.k.data = nullptr; }, true},
      {"data of v is null", [](Views& x) { x.v.data = nullptr; }, true},
      {"tokens of v is -7; it must be between 0 and 2^52", [](Views& x) { x.v.tokens = -7; }, true},
      {"tokens of k is 4503599627370496; it must be so few that positions stay within 2^52",
       [](Views& x) { x.k.tokens = x.v.tokens = Index{1} << 52, x.k.token_stride = x.v.token_stride = 0; }, true},
      {"tokens of k is 1125899906842624; it must be at most 2^36 in a call",
       [](Views& x) { x.k.tokens = x.v.tokens = Index{1} << 50, x.k.token_stride = x.v.token_stride = 0; }, true},
  };
  for (const Fault& fault : faults) {
    Views views = good;
    fault.make(views);
    CAPTURE(fault.words);
    const auto begins = StartsWith("poslsh: " + fault.words);
    REQUIRE_THAT(message([&] { stream.step(views.q, views.k, views.v, views.out); }), begins);
    if (fault.also_append) REQUIRE_THAT(message([&] { stream.append(views.k, views.v); }), begins);
    REQUIRE(stream.position() == 20);
    for (const Index head : {0, 1}) REQUIRE(stream.cached_tokens(head) <= 20);
  }
  REQUIRE(memory == std::vector<double>(10000, 1e-3));  // no row was written

  const auto rest = feed(stream, layer, {{1, 1}, {9, 4}, {10, 10}}, 20);
  for (Index head = 0; head < 4; ++head)
    REQUIRE(same_numbers(rows_of(rest.values.view(), 0, head).bottomRows(20),
                         rows_of(expected.values.view(), 0, head).bottomRows(20)));
  for (const Index head : {0, 1}) REQUIRE(stream.cached_tokens(head) == undisturbed.cached_tokens(head));
}

TEST_CASE("A stream may go to position 2^52, and no further") {
  const auto layer = normal_stream<float>({1, 1, 5, 2, 2}, 2);
  const std::vector<AlibiBias> biases{{0.5}};
  const AttentionOptions options{.key_offset = (Index{1} << 52) - 5, .window_left = 2};
  auto stream = stream_for(layer, biases, options);
  const auto got = feed(stream, layer, steps(5));
  REQUIRE(stream_fault(got, layer, biases, options) == "");
  REQUIRE(stream.position() == Index{1} << 52);
  REQUIRE_THAT(message([&] { feed(stream, layer, {{1, 1}}); }), StartsWith("poslsh: tokens of k is 1; it must be so few"));
  REQUIRE(stream.cached_tokens(0) == 2);
  feed(stream, layer, {{0, 0}});  // nothing is still little enough
}

TEST_CASE("A stream that was moved away takes no tokens") {
  StreamingAttention<double, NoBias> stream(std::vector<NoBias>(2), 1, 4, 4);
  const StreamingAttention<double, NoBias> other = std::move(stream);
  Matrix<double> numbers = Matrix<double>::Zero(2, 4);
  const auto two = TensorView<double>::heads_first(numbers.data(), 1, 2, 1, 4);
  const auto one = TensorView<double>::heads_first(numbers.data(), 1, 1, 1, 4);
  REQUIRE(message([&] { stream.step(two, one, one, two); }) == "poslsh: heads of q is 2; it must be one a bias");
  REQUIRE(message([&] { stream.append(one, one); }) == "poslsh: heads of k is 1; it must be key_heads, in a batch of 1");
  REQUIRE(message([&] { static_cast<void>(stream.cached_tokens(0)); }) ==
          "poslsh: key_head is 0; it must be at least 0 and below key_heads");
  REQUIRE(stream.bytes() == 0);
}

}  // namespace streaming_errors_test
