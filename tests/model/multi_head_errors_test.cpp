// SPDX-License-Identifier: MIT

// What multi_head_attention refuses, and how it says so.

#include "poslsh/model/multi_head.hpp"
#include "support/catch.hpp"
#include "support/heads.hpp"

#include <functional>
#include <string>
#include <vector>

namespace multi_head_errors_test {

using namespace poslsh::test;
using Catch::Matchers::ContainsSubstring;
using poslsh::AlibiBias;
using poslsh::AttentionOptions;
using poslsh::Index;
using poslsh::KeyRange;
using poslsh::MultiHeadOptions;
using poslsh::TensorView;

namespace {

constexpr Index too_large = (Index{1} << 52) + 1, far = Index{1} << 59;

/// A call of 2 items, 4 query and 2 key heads, 5 queries, 7 keys, 3 features and 2 of values, to be spoilt.
struct Call {
  Layer<float> layer = normal_layer<float>({2, 4, 2, 5, 7, 3, 2}, 1);
  Tensor<float> output{2, 4, 5, 2};
  TensorView<const float> q = layer.q.view(), k = layer.k.view(), v = layer.v.view();
  TensorView<float> out = output.view();
  std::vector<AlibiBias> biases = std::vector<AlibiBias>(4, {0.5});
  MultiHeadOptions options;
  std::vector<double> lse = std::vector<double>(2 * 4 * 5, 7.0);
  std::vector<KeyRange> valid;
  std::vector<Index> query_starts, key_starts;

  /// The message of the Error it throws; "no error" if it throws none.
  std::string message() {
    options.valid_keys = valid;
    options.query_starts = query_starts;
    options.key_starts = key_starts;
    try {
      multi_head_attention(q, k, v, out, biases, options, lse.data());
    } catch (const poslsh::Error& error) {
      return error.what();
    }
    return "no error";
  }
  /// Makes it a call of packed sequences.
  void pack(std::vector<Index> queries, std::vector<Index> keys) {
    q.batch = k.batch = v.batch = out.batch = 1;
    query_starts = std::move(queries);
    key_starts = std::move(keys);
  }
};

/// The call once spoilt must fail with this text, and leave its outputs as they were.
void refused(const std::string& text, const std::function<void(Call&)>& spoil) {
  Call call;
  call.output.fill(7);
  spoil(call);
  REQUIRE_THAT(call.message(), ContainsSubstring("poslsh: " + text));
  REQUIRE(call.output.storage() == std::vector<float>(2 * 4 * 5 * 2, 7));
  REQUIRE(call.lse == std::vector<double>(2 * 4 * 5, 7));
}

using View = TensorView<const float>;

}  // namespace

TEST_CASE("The call that the others spoil is no error") {
  REQUIRE(Call{}.message() == "no error");
  Call packed;
  packed.pack({0, 2, 5}, {0, 3, 7});
  REQUIRE(packed.message() == "no error");
}

TEST_CASE("Tensors that are none: each is named") {
  struct Input {
    std::string name;
    View Call::*view;
  };
  for (const Input& input : {Input{"q", &Call::q}, Input{"k", &Call::k}, Input{"v", &Call::v}}) {
    const auto bad = [&](const std::string& text, const std::function<void(View&)>& spoil) {
      refused(text, [&](Call& call) { spoil(call.*input.view); });
    };
    bad("batch of " + input.name + " is -1; it must be between 0 and 2^52", [](View& view) { view.batch = -1; });
    bad("heads of " + input.name + " is -2; it must be between 0 and 2^52", [](View& view) { view.heads = -2; });
    bad("tokens of " + input.name + " is -1; it must be between", [](View& view) { view.tokens = -1; });
    bad("features of " + input.name + " is -1; it must be between", [](View& view) { view.features = -1; });
    bad("tokens of " + input.name + " is 4503599627370497", [](View& view) { view.tokens = too_large; });
    bad("data of " + input.name + " is null; it must be memory", [](View& view) { view.data = nullptr; });
    bad("token_stride of " + input.name + " is 576460752303423488; it must be so small",
        [](View& view) { view.token_stride = far; });
    bad("batch_stride of " + input.name + " is -576460752303423488; it must be so small",
        [](View& view) { view.batch_stride = -far; });
    bad("head_stride of " + input.name + " is 576460752303423488; it must be so small",
        [](View& view) { view.head_stride = far; });
  }
}

TEST_CASE("An output that cannot be written") {
  const auto bad = [&](const std::string& text, const std::function<void(TensorView<float>&)>& spoil) {
    refused(text, [&](Call& call) { spoil(call.out); });
  };
  bad("data of out is null; it must be memory", [](auto& out) { out.data = nullptr; });
  bad("features of out is -1; it must be between", [](auto& out) { out.features = -1; });
  bad("token_stride of out is 1; it must be at least 2, so that rows", [](auto& out) { out.token_stride = 1; });
  bad("head_stride of out is 0; it must be at least 2, so that rows", [](auto& out) { out.head_stride = 0; });
  bad("batch_stride of out is -1; it must be at least 2, so that rows", [](auto& out) { out.batch_stride = -1; });
  bad("batch of out is 1; it must be that of q", [](auto& out) { out.batch = 1; });
  bad("heads of out is 2; it must be those of q", [](auto& out) { out.heads = 2; });
  bad("tokens of out is 4; it must be those of q", [](auto& out) { out.tokens = 4; });
  bad("features of out is 1; it must be those of v", [](auto& out) { out.features = 1; });
}

TEST_CASE("Shapes that do not belong together") {
  refused("batch of k is 1; it must be that of q", [](Call& call) { call.k.batch = 1; });
  refused("batch of v is 1; it must be that of q", [](Call& call) { call.v.batch = 1; });
  refused("heads of k is 3; it must be a divisor of the heads of q",
          [](Call& call) { call.k.heads = call.v.heads = 3; });
  refused("heads of k is 8; it must be a divisor of the heads of q",
          [](Call& call) { call.k.heads = call.v.heads = 8; });
  refused("heads of k is 0; it must be a divisor of the heads of q",
          [](Call& call) { call.k.heads = call.v.heads = 0; });
  refused("heads of v is 1; it must be those of k", [](Call& call) { call.v.heads = 1; });
  refused("tokens of v is 6; it must be those of k", [](Call& call) { call.v.tokens = 6; });
  refused("features of k is 2; it must be those of q", [](Call& call) { call.k.features = 2; });
}

TEST_CASE("Biases of a wrong number, or one out of range") {
  for (const std::size_t count : std::initializer_list<std::size_t>{0, 1, 2, 3, 5, 7, 9})
    refused("number of biases is " + std::to_string(count) + "; it must be the heads of q, or batch times heads",
            [&](Call& call) { call.biases.resize(count, {0.5}); });
  refused("slope is inf; it must be finite, at least -2^64", [](Call& call) { call.biases.back().slope = infinity; });
  refused("right_slope is -inf; it must be finite, at least -2^64", [](Call& call) {
    call.biases[2].right_slope = -infinity;
    call.q.tokens = call.out.tokens = 0;  // even where nothing is to be computed
  });
}

TEST_CASE("Options out of range, padded, packed, and where there is nothing to compute") {
  struct BadOption {
    AttentionOptions options;
    std::string text;
  };
  const std::vector<BadOption> bad_options = {
      {{.scale = infinity}, "scale is inf; it must be finite"},
      {{.key_offset = too_large}, "key_offset is 4503599627370497; it must be within +-2^52"},
      {{.window_left = -1}, "window_left is -1; it must be at least 0"},
      {{.window_right = -3}, "window_right is -3; it must be at least 0"},
      {{.softcap = 0}, "softcap is 0; it must be positive and finite"},
      {{.sink = infinity}, "sink is inf; it must be finite or -inf"},
      {{.tolerance = -1}, "tolerance is -1; it must be finite and at least 0"},
      {{.threads = 0}, "threads is 0; it must be at least 1"},
  };
  const std::vector<std::function<void(Call&)>> forms = {
      [](Call&) {},
      [](Call& call) { call.valid = {{0, 7}, {2, 6}}; },
      [](Call& call) { call.pack({0, 2, 5}, {0, 3, 7}); },
      [](Call& call) { call.pack({0}, {0}); },
      [](Call& call) { call.q.batch = call.k.batch = call.v.batch = call.out.batch = 0; },
      [](Call& call) { call.q.tokens = call.out.tokens = 0; },
  };
  for (const BadOption& bad : bad_options)
    for (const auto& form : forms)
      refused(bad.text, [&](Call& call) {
        form(call);
        call.options.attention = bad.options;
      });
  refused("query_offset is -4503599627370497; it must be within +-2^52",
          [](Call& call) { call.options.attention.query_offset = -too_large; });
}

TEST_CASE("Ranges of valid keys that are none") {
  const auto bad = [](const std::string& text, std::vector<KeyRange> ranges) {
    refused(text, [&](Call& call) { call.valid = std::move(ranges); });
  };
  bad("size of valid_keys is 1; it must be 0 or the batch", {{0, 7}});
  bad("size of valid_keys is 3; it must be 0 or the batch", {{0, 7}, {0, 7}, {0, 7}});
  bad("begin of valid_keys is -1; it must be at least 0 and at most its end", {{0, 7}, {-1, 7}});
  bad("begin of valid_keys is 4; it must be at least 0 and at most its end", {{4, 3}, {0, 7}});
  bad("end of valid_keys is 8; it must be at most the tokens of k", {{0, 7}, {0, 8}});
}

TEST_CASE("Offsets of packed sequences that are none") {
  const auto bad = [](const std::string& text, std::vector<Index> queries, std::vector<Index> keys) {
    refused(text, [&](Call& call) { call.pack(std::move(queries), std::move(keys)); });
  };
  bad("size of query_starts is 2; it must be that of key_starts", {0, 5}, {0, 3, 7});
  bad("size of query_starts is 0; it must be that of key_starts", {}, {0, 7});
  bad("size of query_starts is 2; it must be that of key_starts", {0, 5}, {});
  bad("query_starts is 1; it must be 0 at first", {1, 5}, {0, 7});
  bad("key_starts is -1; it must be 0 at first", {0, 5}, {-1, 7});
  bad("query_starts is 2; it must be at least the offset before", {0, 3, 2}, {0, 3, 7});
  bad("key_starts is 1; it must be at least the offset before", {0, 3, 5}, {0, 2, 1});
  bad("query_starts is 6; it must be at most the tokens", {0, 3, 6}, {0, 3, 7});
  bad("key_starts is 8; it must be at most the tokens", {0, 3, 5}, {0, 3, 8});
}

TEST_CASE("What packed sequences do not go with") {
  refused("batch of q is 2; it must be 1 with packed sequences", [](Call& call) {
    call.query_starts = {0, 5};
    call.key_starts = {0, 7};
  });
  refused("size of valid_keys is 1; it must be 0 with packed sequences", [](Call& call) {
    call.pack({0, 5}, {0, 7});
    call.valid = {{0, 7}};
  });
  refused("query_offset is 3; it must be unset with packed sequences", [](Call& call) {
    call.pack({0, 5}, {0, 7});
    call.options.attention.query_offset = 3;
  });
}

}  // namespace multi_head_errors_test
