// SPDX-License-Identifier: MIT

// multi_head_attention head by head: the bits of attention(), and what the definition says.

#include "poslsh/model/multi_head.hpp"
#include "poslsh/position/alibi.hpp"
#include "support/biases.hpp"
#include "support/catch.hpp"
#include "support/heads.hpp"

#include <array>
#include <span>
#include <stdexcept>
#include <vector>

namespace multi_head_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::alibi_slopes;
using poslsh::AttentionOptions;
using poslsh::draw_hashes;
using poslsh::Index;
using poslsh::KeyRange;
using poslsh::LaplaceKernel;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::multi_head_attention;
using poslsh::MultiHeadOptions;
using poslsh::NoBias;
using poslsh::Sampling;
using poslsh::TensorView;

namespace {

std::vector<AlibiBias> standard_heads(Index heads) {
  std::vector<AlibiBias> biases;
  for (const double slope : alibi_slopes(heads)) biases.push_back({slope});
  return biases;
}

/// One mask a head, from draws of their own.
std::vector<MeanMask> random_heads(Index heads, std::uint64_t seed = 1, Sampling sampling = Sampling::importance) {
  std::vector<MeanMask> masks;
  for (Index head = 0; head < heads; ++head)
    masks.emplace_back(draw_hashes(LaplaceKernel{9}, 12, seed, sampling, static_cast<std::uint64_t>(head)));
  return masks;
}

/// Calls of every kind.
const std::vector<AttentionOptions> calls = {
    {},
    {.causal = true, .threads = 2},
    {.scale = 1, .causal = true, .key_offset = (Index{1} << 40) + 3, .sink = 0.5},
    {.query_offset = -40, .window_left = 90, .window_right = 4, .softcap = 2},
    {.causal = true, .query_offset = -35, .sink = -1, .threads = 3},  // some queries precede every key
};

/// A user's ALiBi whose support ends, with a bound on its tail: tiles may be skipped.
struct LocalAlibi : AlibiBias {
  Index left;
  [[nodiscard]] KeyRange support(Index query) const { return {query - left, query + 1}; }
};

/// A user's bias that cannot answer for one position.
struct Throwing : NoBias {
  [[nodiscard]] KeyRange support(Index query) const {
    if (query == 40) throw std::runtime_error("no such position");
    return NoBias::support(query);
  }
};

}  // namespace

// --- Heads and batches -------------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("Every head of every batch item is attention() of that head, bit by bit", "", Scalars) {
  for (const Index key_heads : {6, 3, 2, 1}) {  // one each, grouped, multi-query
    const auto layer = normal_layer<TestType>({3, 6, key_heads, 110, 150, 16, 8}, 1);
    for (const AttentionOptions& call : calls) {
      CAPTURE(key_heads, call.causal, call.threads);
      REQUIRE(unlike_alone(attend(layer, standard_heads(6), {call}), layer.view(), standard_heads(6), {call}) == "");
      REQUIRE(unlike_alone(attend(layer, random_heads(6), {call}), layer.view(), random_heads(6), {call}) == "");
    }
  }
}

TEMPLATE_LIST_TEST_CASE("Every head is what the definition of attention says", "", Scalars) {
  for (const Index key_heads : {4, 2, 1}) {
    const auto layer = normal_layer<TestType>({2, 4, key_heads, 70, 90, 5, 3}, 2);
    for (const AttentionOptions& call : calls) {
      CAPTURE(key_heads, call.causal, call.threads);
      REQUIRE(layer_fault(attend(layer, standard_heads(4), {call}), layer.view(), standard_heads(4), {call}) == "");
      REQUIRE(layer_fault(attend(layer, random_heads(4), {call}), layer.view(), random_heads(4), {call}) == "");
      REQUIRE(layer_fault(attend(layer, std::vector<NoBias>(4), {call}), layer.view(), std::vector<NoBias>(4),
                          {call}) == "");
    }
  }
}

TEST_CASE("Query heads that share a key head read it; others read their own") {
  // Scores are 0, so that an output is the mean of the values, which name their item and head.
  const Index batch = 2, heads = 6, key_heads = 3, keys = 5;
  const Tensor<float> q = normal_tensor<float>(batch, heads, 4, 2, 1);
  const Tensor<float> k = normal_tensor<float>(batch, key_heads, keys, 2, 2);
  Tensor<float> v(batch, key_heads, keys, 1);
  for (Index item = 0; item < batch; ++item)
    for (Index head = 0; head < key_heads; ++head)
      for (Index token = 0; token < keys; ++token)
        v.set_row(item, head, token, [&](Index) { return static_cast<float>(10 * item + head); });
  const auto got = attend(LayerView<float>{q.view(), k.view(), v.view()}, std::vector<NoBias>(heads), {{.scale = 0}});
  for (Index item = 0; item < batch; ++item)
    for (Index head = 0; head < heads; ++head)
      REQUIRE(got.head(item, head).values.isApproxToConstant(static_cast<float>(10 * item + head / 2)));
}

TEST_CASE("Biases are one a query head, or one a batch item and query head, item by item") {
  const auto layer = normal_layer<float>({3, 4, 2, 60, 60, 8, 8}, 3);
  std::vector<AlibiBias> own;
  for (int i = 0; i < 12; ++i) own.push_back({0.03 * (i + 1), 0.5 / (i + 1)});
  const auto got = attend(layer, own);
  REQUIRE(unlike_alone(got, layer.view(), own) == "");
  REQUIRE(layer_fault(got, layer.view(), own) == "");

  // The same ones for every item: as if given once.
  std::vector<AlibiBias> repeated;
  for (int item = 0; item < 3; ++item) repeated.insert(repeated.end(), own.begin(), own.begin() + 4);
  REQUIRE(same_bits(attend(layer, repeated), attend(layer, std::vector<AlibiBias>(own.begin(), own.begin() + 4))));
}

TEST_CASE("Biases in a span, a vector or an array of a user's own type") {
  const auto layer = normal_layer<float>({1, 2, 1, 50, 70, 4, 4}, 4);
  const std::vector<TriangleBias> biases{{30}, {7}};
  const auto got = attend(layer, biases);
  REQUIRE(layer_fault(got, layer.view(), biases) == "");

  const std::array<TriangleBias, 2> array{biases[0], biases[1]};
  Tensor<float> out(1, 2, 50, 4);
  multi_head_attention(layer.q.view(), layer.k.view(), layer.v.view(), out.view(), std::span<const TriangleBias>(array));
  REQUIRE(out.storage() == got.values.storage());
}

TEMPLATE_LIST_TEST_CASE("A head has the same bits alone and in a batch", "", Scalars) {
  const auto layer = normal_layer<TestType>({3, 4, 2, 130, 400, 16, 16}, 5, Layout::tokens_first);
  const auto check = [&](const auto& biases, const AttentionOptions& call) {
    const auto all = attend(layer, biases, {call});
    for (Index item = 0; item < 3; ++item)
      for (Index head = 0; head < 4; ++head) {
        const auto one = [&](auto view, Index which) {
          view.data += item * view.batch_stride + which * view.head_stride;
          view.batch = view.heads = 1;
          return view;
        };
        const LayerView<TestType> alone{one(layer.q.view(), head), one(layer.k.view(), head / 2),
                                        one(layer.v.view(), head / 2)};
        const auto bias = std::vector{biases[static_cast<std::size_t>(head)]};
        CAPTURE(item, head);
        REQUIRE(same_bits(attend(alone, bias, {call}).head(0, 0), all.head(item, head)));
      }
  };
  for (const AttentionOptions& call : calls) {
    check(standard_heads(4), call);
    check(random_heads(4), call);
  }
}

TEST_CASE("Masks drawn with the head as their stream are independent from head to head") {
  // The same inputs in every head: what differs is the mask.
  const auto one = normal_layer<float>({1, 1, 1, 80, 80, 8, 8}, 6);
  const auto repeat = [](TensorView<const float> view) {
    view.heads = 3;
    view.head_stride = 0;
    return view;
  };
  const LayerView<float> layer{repeat(one.q.view()), repeat(one.k.view()), repeat(one.v.view())};
  const auto got = attend(layer, random_heads(3));
  for (Index head = 0; head < 3; ++head) {
    REQUIRE(layer_fault(got, layer, random_heads(3)) == "");
    for (Index other = 0; other < head; ++other)
      REQUIRE(distance(got.head(0, head).values, got.head(0, other).values) > 1e-3);
  }
}

// --- Options -----------------------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("Skipped tiles: the bits of attention() with the same tolerance, whatever shares the keys", "",
                   Scalars) {
  // Steep and flat heads in one group, which prepare their keys differently when alone.
  const std::vector<AlibiBias> biases{{0.04}, {1.0 / 256}, {0.06, 0.2}, {0.02}};
  for (const Index key_heads : {4, 2, 1})
    for (const bool causal : {true, false})
      for (const double tolerance : {0x1p-24, 0.1}) {
        const auto layer = normal_layer<TestType>({1, 4, key_heads, 300, 1500, 64, 8}, 7);
        const MultiHeadOptions options{{.causal = causal, .tolerance = tolerance}};
        const auto got = attend(layer, biases, options);
        CAPTURE(key_heads, causal, tolerance);
        CHECK(unlike_alone(got, layer.view(), biases, options) == "");
        REQUIRE_FALSE(same_bits(got, attend(layer, biases, {{.causal = causal}})));
      }
}

TEMPLATE_LIST_TEST_CASE("Keys that only other heads of the group see change no bit under a tolerance", "", Scalars) {
  auto layer = normal_layer<TestType>({1, 3, 1, 250, 1500, 8, 8}, 7);
  for (Index key = 0; key < 700; ++key)  // large, so that no bound over them would let anything be skipped
    layer.k.set_row(0, 0, key, [](Index) { return TestType(30); });
  const std::vector<LocalAlibi> biases{{{0.04}, 500}, {{0.04}, 2000}, {{0.04}, 600}};
  const MultiHeadOptions options{{.tolerance = 1e-3}};
  const auto got = attend(layer, biases, options);
  CHECK(unlike_alone(got, layer.view(), biases, options) == "");
  REQUIRE_FALSE(same_bits(got.head(0, 0), attend(layer, biases).head(0, 0)));
}

TEMPLATE_LIST_TEST_CASE("Within a tolerance, errors of every head stay below what was asked for", "", Scalars) {
  const std::vector<AlibiBias> biases{{0.5}, {0.1}, {0.06, 0.2}, {0.02}};
  const auto layer = normal_layer<TestType>({2, 4, 2, 200, 1200, 8, 3}, 8);
  const double rounding = 50 * static_cast<double>(std::numeric_limits<TestType>::epsilon());
  const auto all = attend(layer, biases);
  for (const double tolerance : {1e-12, 1e-4, 0.1}) {
    const auto part = attend(layer, biases, {{.tolerance = tolerance}});
    for (Index item = 0; item < 2; ++item)
      for (Index head = 0; head < 4; ++head) {
        const Matrix<TestType> v = rows_of(layer.v.view(), item, head / 2);
        const double range = static_cast<double>((v.colwise().maxCoeff() - v.colwise().minCoeff()).maxCoeff());
        const auto a = all.head(item, head), b = part.head(item, head);
        CAPTURE(tolerance, item, head);
        REQUIRE(distance(a.values, b.values) <= tolerance * range + rounding);
        REQUIRE(distance(a.log_sum_exp, b.log_sum_exp) <= std::log1p(tolerance) + rounding);
      }
  }
}

TEMPLATE_LIST_TEST_CASE("Any number of threads gives the bits of one, with many heads and with few", "", Scalars) {
  const std::vector<Index> queries{0, 5, 5, 150, 290, 300}, keys{0, 9, 20, 300, 300, 400};
  for (const Index heads : {8, 2})  // more than four groups a thread for one thread and for two; never so
    for (const double tolerance : {0.0, 1e-3}) {
      const auto layer = normal_layer<TestType>({1, heads, heads / 2, 310, 400, 8, 8}, 9);
      for (const bool packed : {false, true}) {
        MultiHeadOptions options{{.causal = true, .tolerance = tolerance}};
        if (packed) {
          options.query_starts = queries;
          options.key_starts = keys;
        }
        const auto exact = attend(layer, standard_heads(heads), options);
        const auto random = attend(layer, random_heads(heads), options);
        for (const int threads : {2, 3, 8}) {
          options.attention.threads = threads;
          CAPTURE(heads, tolerance, packed, threads);
          REQUIRE(same_bits(attend(layer, standard_heads(heads), options), exact));
          REQUIRE(same_bits(attend(layer, random_heads(heads), options), random));
        }
      }
    }
}

TEST_CASE("The log-sum-exps are optional and come in the order batch, head, query") {
  const auto layer = normal_layer<double>({2, 3, 3, 4, 6, 4, 4}, 10);
  const auto with = attend(layer, standard_heads(3), {{.causal = true}});
  Tensor<double> out(2, 3, 4, 4);
  multi_head_attention(layer.q.view(), layer.k.view(), layer.v.view(), out.view(), standard_heads(3),
                       {{.causal = true}});
  REQUIRE(out.storage() == with.values.storage());
  const auto exact = dense_attention<double>(rows_of(layer.q.view(), 1, 2), rows_of(layer.k.view(), 1, 2),
                                             rows_of(layer.v.view(), 1, 2), standard_heads(3)[2], {.causal = true});
  for (std::size_t query = 0; query < 4; ++query)
    REQUIRE(with.log_sum_exp[(1 * 3 + 2) * 4 + query] == Approx(exact.log_sum_exp[static_cast<Index>(query)]));
}

TEST_CASE("What a bias throws reaches the caller, on any thread") {
  for (const Index heads : {1, 16})
    for (const int threads : {1, 2}) {
      const auto layer = normal_layer<float>({1, heads, heads, 100, 100, 4, 4}, 10);
      REQUIRE_THROWS_WITH(
          attend(layer, std::vector<Throwing>(static_cast<std::size_t>(heads)), {{.threads = threads}}),
          "no such position");
    }
}

// --- Layouts -----------------------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("Any strides with unit feature stride give the bits of packed heads", "", Scalars) {
  for (const Index value_dim : {16, 5}) {  // values read in place, and copied
    const LayerShape shape{2, 4, 2, 110, 150, 16, value_dim};
    const auto packed = attend(normal_layer<TestType>(shape, 11), standard_heads(4));
    for (const Layout layout : all_layouts)
      for (const Layout out : all_layouts) {
        CAPTURE(value_dim, static_cast<int>(layout), static_cast<int>(out));
        REQUIRE(same_bits(attend(normal_layer<TestType>(shape, 11, layout), standard_heads(4), {}, out), packed));
      }
  }
}

TEST_CASE("The gaps of an output are not written") {
  const auto layer = normal_layer<float>({2, 4, 2, 30, 50, 8, 5}, 12);
  for (const Index features : {5, 0}) {
    const auto got = attend(LayerView<float>{layer.q.view(), layer.k.view(), [&] {
                              TensorView<const float> v = layer.v.view();
                              v.features = features;
                              return v;
                            }()},
                            standard_heads(4), {}, Layout::padded_rows);
    Index gaps = 0;
    for (const float value : got.values.storage()) gaps += value != value;
    REQUIRE(gaps == static_cast<Index>(got.values.storage().size()) - 2 * 4 * 30 * features);
  }
}

TEMPLATE_LIST_TEST_CASE("Queries, keys and values in one interleaved buffer", "", Scalars) {
  // A row of the buffer is the projection of one token: [3][heads][features], or heads and key heads behind each other.
  const Index batch = 2, n = 70, d = 8;
  for (const Index key_heads : {4, 1}) {
    const Index heads = 4, row = (heads + 2 * key_heads) * d;
    const Tensor<TestType> buffer = normal_tensor<TestType>(batch, 1, n, row, 13);
    const auto part = [&](Index first, Index count) {
      return TensorView<const TestType>{buffer.view().data + first * d, batch, count, n, d, n * row, d, row};
    };
    const LayerView<TestType> layer{part(0, heads), part(heads, key_heads), part(heads + key_heads, key_heads)};
    const auto got = attend(layer, standard_heads(heads), {{.causal = true}});
    REQUIRE(unlike_alone(got, layer, standard_heads(heads), {{.causal = true}}) == "");
  }
}

TEST_CASE("A stride of 0 repeats: grouped heads equal repeated keys and values, one sequence serves a batch") {
  const auto layer = normal_layer<float>({1, 4, 2, 40, 60, 8, 8}, 14);
  // batch 2 x heads (2, 2): the group is the batch of the repeated form, its keys those of one key head.
  const auto grouped = attend(layer, std::vector<AlibiBias>(4, {0.1}));
  TensorView<const float> q = layer.q.view(), k = layer.k.view(), v = layer.v.view();
  q.batch = 2;
  q.heads = 2;
  q.batch_stride = 2 * q.head_stride;
  for (TensorView<const float>* tensor : {&k, &v}) {
    tensor->batch = 2;
    tensor->batch_stride = tensor->head_stride;
    tensor->head_stride = 0;
  }
  const auto repeated = attend(LayerView<float>{q, k, v}, std::vector<AlibiBias>(2, {0.1}));
  REQUIRE(repeated.values.storage() == grouped.values.storage());
  REQUIRE(repeated.log_sum_exp == grouped.log_sum_exp);

  // One key for all: every output is its value.
  k = layer.k.view();
  v = layer.v.view();
  k.token_stride = v.token_stride = 0;
  const LayerView<float> one_key{layer.q.view(), k, v};
  const auto same_key = attend(one_key, standard_heads(4));
  REQUIRE(unlike_alone(same_key, one_key, standard_heads(4)) == "");
  const Matrix<float> value = rows_of(v, 0, 1).row(0);
  REQUIRE(distance(same_key.head(0, 3).values, value.replicate(40, 1)) < 1e-6);
}

// --- Overlap -----------------------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("The output may lie over q, k or v, in whole or in part: the same numbers", "", Scalars) {
  const LayerShape shape{2, 2, 2, 90, 90, 8, 8};
  const Index size = 2 * 2 * 90 * 8;
  const auto biases = standard_heads(2);
  for (const Layout layout : {Layout::heads_first, Layout::tokens_first, Layout::backwards}) {
    const auto inputs = normal_layer<TestType>(shape, 15, layout);
    const auto expected = attend(inputs, biases, {{.threads = 2}});
    for (const int over : {0, 1, 2})
      for (const Index shift : {0, 8, 800}) {  // values behind the first of the input
        auto layer = inputs;
        Tensor<TestType>* const target[] = {&layer.q, &layer.k, &layer.v};
        target[over]->storage().resize(static_cast<std::size_t>(size + shift));
        TensorView<TestType> out = target[over]->view();
        out.data += shift;
        std::vector<double> lse(2 * 2 * 90);
        multi_head_attention(layer.q.view(), layer.k.view(), layer.v.view(), out, biases, {{.threads = 2}}, lse.data());
        CAPTURE(static_cast<int>(layout), over, shift);
        for (Index item = 0; item < 2; ++item)
          for (Index head = 0; head < 2; ++head)
            REQUIRE(same_numbers(rows_of(out, item, head), expected.head(item, head).values));
        REQUIRE(lse == expected.log_sum_exp);
      }
  }
}

TEST_CASE("The output may be a slice of the same interleaved buffer, beside or over the inputs") {
  const Index batch = 2, heads = 2, n = 60, d = 8, row = 4 * heads * d;  // [q, k, v, room][heads][features]
  const Tensor<float> buffer = normal_tensor<float>(batch, 1, n, row, 16);
  const auto part = [&](float* data, Index which) {
    return TensorView<float>{data + which * heads * d, batch, heads, n, d, n * row, d, row};
  };
  const auto original = buffer;
  const auto view = [&](const Tensor<float>& all, Index which) -> TensorView<const float> {
    return part(const_cast<float*>(all.view().data), which);
  };
  const auto expected = attend(LayerView<float>{view(original, 0), view(original, 1), view(original, 2)},
                               standard_heads(heads), {{.causal = true}});
  for (const Index to : {3, 0, 1, 2}) {
    Tensor<float> own = buffer;
    multi_head_attention(view(own, 0), view(own, 1), view(own, 2), part(own.view().data, to), standard_heads(heads),
                         {{.causal = true}});
    for (Index item = 0; item < batch; ++item)
      for (Index head = 0; head < heads; ++head)
        REQUIRE(same_numbers(rows_of(view(own, to), item, head), expected.head(item, head).values));
    for (Index which = 0; which < 4; ++which)  // and nothing else is touched
      if (which != to)
        REQUIRE(same_numbers(rows_of(view(own, which), 1, 1), rows_of(view(buffer, which), 1, 1)));
  }
}

TEST_CASE("The log-sum-exps may lie over an input: the same numbers") {
  const LayerShape shape{2, 2, 2, 50, 50, 8, 8};
  const auto expected = attend(normal_layer<double>(shape, 17), standard_heads(2));
  for (const int over : {0, 1, 2})
    for (const Index features : {8, 0}) {  // also where there is nothing else to write
      auto layer = normal_layer<double>(shape, 17);
      Tensor<double>* const target[] = {&layer.q, &layer.k, &layer.v};
      double* const lse = target[over]->view().data + 100;
      TensorView<const double> v = layer.v.view();
      v.features = features;
      Tensor<double> out(2, 2, 50, features);
      multi_head_attention(layer.q.view(), layer.k.view(), v, out.view(), standard_heads(2), {}, lse);
      CAPTURE(over, features);
      REQUIRE(std::vector<double>(lse, lse + 200) == expected.log_sum_exp);
      if (features > 0) REQUIRE(out.storage() == expected.values.storage());
    }
}

TEST_CASE("Self-attention of one tensor given three times, into itself") {
  const auto layer = normal_layer<float>({2, 2, 2, 60, 60, 8, 8}, 18);
  const auto expected = attend(LayerView<float>{layer.q.view(), layer.q.view(), layer.q.view()}, standard_heads(2));
  Tensor<float> x = layer.q;
  multi_head_attention(x.view(), x.view(), x.view(), x.view(), standard_heads(2));
  REQUIRE(x.storage() == expected.values.storage());
}

// --- Storage -----------------------------------------------------------------------------------------------

TEMPLATE_TEST_CASE("Keys and values stored in 16 bits: the bits of the same numbers in float", "", Eigen::half,
                   Eigen::bfloat16) {
  for (const Index features : {16, 5})
    for (const Layout layout : all_layouts) {
      const auto stored = normal_layer<float, TestType>({2, 4, 2, 150, 430, features, features}, 24, layout);
      Layer<float> wide{stored.q, Tensor<float>(2, 2, 430, features), Tensor<float>(2, 2, 430, features)};
      for (Index item = 0; item < 2; ++item)
        for (Index head = 0; head < 2; ++head)
          for (Index token = 0; token < 430; ++token) {
            const auto row = [&](const TensorView<const TestType>& tensor) {
              return [=](Index f) {
                return static_cast<float>(poslsh::detail::head_of(tensor, item, head).row(token)[f]);
              };
            };
            wide.k.set_row(item, head, token, row(stored.k.view()));
            wide.v.set_row(item, head, token, row(stored.v.view()));
          }
      for (const AttentionOptions& call : calls)
        for (const double tolerance : {0.0, 1e-3}) {
          MultiHeadOptions options{call};
          options.attention.tolerance = tolerance;
          CAPTURE(features, static_cast<int>(layout), tolerance);
          const auto got = attend(stored, standard_heads(4), options, layout);
          REQUIRE(same_bits(got, attend(wide, standard_heads(4), options)));
          REQUIRE(unlike_alone(got, stored.view(), standard_heads(4), options) == "");
        }
      REQUIRE(same_bits(attend(stored, random_heads(4)), attend(wide, random_heads(4))));
    }
}

TEMPLATE_TEST_CASE("Rounding keys and values to 16 bits costs less than 1 % on unit normal data", "", Eigen::half,
                   Eigen::bfloat16) {
  const LayerShape shape{1, 4, 2, 200, 600, 64, 64};
  const auto exact = attend(normal_layer<float>(shape, 25), standard_heads(4), {{.causal = true}});
  const auto got = attend(normal_layer<float, TestType>(shape, 25), standard_heads(4), {{.causal = true}});
  const double bound = std::is_same_v<TestType, Eigen::half> ? 0.001 : 0.01;
  for (Index head = 0; head < 4; ++head) {
    const Matrix<float> right = exact.head(0, head).values, error = got.head(0, head).values - right;
    REQUIRE(error.norm() <= bound * right.norm());
    REQUIRE(error.norm() > 0);
  }
}

// --- Values behind a mask, no values at all ----------------------------------------------------------------

TEST_CASE("NaN in one head of one item spoils that head's group only") {
  const LayerShape shape{2, 4, 2, 40, 60, 8, 8};
  const auto clean = attend(normal_layer<float>(shape, 19), standard_heads(4));
  auto layer = normal_layer<float>(shape, 19);
  layer.k.set_row(1, 0, 7, [](Index) { return static_cast<float>(not_a_number); });
  layer.v.set_row(0, 1, 7, [](Index) { return static_cast<float>(not_a_number); });
  const auto got = attend(layer, standard_heads(4));
  for (Index item = 0; item < 2; ++item)
    for (Index head = 0; head < 4; ++head) {
      CAPTURE(item, head);
      if (item + head / 2 == 1)
        REQUIRE(got.head(item, head).values.array().isNaN().all());
      else
        REQUIRE(same_bits(got.head(item, head), clean.head(item, head)));
    }
}

TEMPLATE_LIST_TEST_CASE("No tokens, heads, items or features is legal", "", Scalars) {
  for (const LayerShape& shape : {LayerShape{2, 4, 2, 0, 0, 4, 3}, LayerShape{2, 4, 2, 0, 7, 4, 3},
                                  LayerShape{2, 4, 2, 7, 0, 4, 3}, LayerShape{2, 0, 0, 7, 5, 4, 3},
                                  LayerShape{2, 0, 3, 7, 5, 4, 3}, LayerShape{0, 4, 2, 7, 5, 4, 3},
                                  LayerShape{2, 4, 2, 7, 5, 4, 0}, LayerShape{2, 4, 2, 1, 1, 1, 1},
                                  LayerShape{2, 4, 2, 7, 5, 0, 3}, LayerShape{2, 4, 2, 7, 5, 0, 0}})
    for (const Layout layout : all_layouts)
      for (const int threads : {1, 3}) {
        const auto layer = normal_layer<TestType>(shape, 20, layout);
        const MultiHeadOptions options{{.scale = 1, .sink = -2, .threads = threads}};
        const auto biases = shape.heads == 0 ? std::vector<AlibiBias>{} : standard_heads(shape.heads);
        CAPTURE(shape.batch, shape.heads, shape.queries, shape.keys, shape.head_dim, shape.value_dim);
        REQUIRE(layer_fault(attend(layer, biases, options, layout), layer.view(), biases, options) == "");
      }
}

TEST_CASE("Without keys every row is 0 with log_sum_exp -inf, or the sink") {
  const auto layer = normal_layer<float>({2, 2, 1, 5, 0, 4, 3}, 21);
  for (const double sink : {-infinity, 1.5}) {
    const auto got = attend(layer, standard_heads(2), {{.sink = sink}});
    REQUIRE(got.values.storage() == std::vector<float>(2 * 2 * 5 * 3, 0));
    REQUIRE(got.log_sum_exp == std::vector<double>(2 * 2 * 5, sink));
  }
}

}  // namespace multi_head_test
