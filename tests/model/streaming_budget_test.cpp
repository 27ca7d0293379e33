// SPDX-License-Identifier: MIT

// AlibiBias with a bound on later queries: keys are dropped, and what they could have weighed stays within the tolerance.

#include "poslsh/model/streaming.hpp"
#include "poslsh/position/alibi.hpp"
#include "support/catch.hpp"
#include "support/streams.hpp"

#include <functional>
#include <vector>

namespace streaming_budget_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::alibi_slopes;
using poslsh::AttentionOptions;
using poslsh::Index;
using poslsh::Matrix;
using poslsh::StreamingAttention;

namespace {

/// Feeds one token and query at a time.
template <class T, class B>
StreamOutput<T> decode(StreamingAttention<T, B>& stream, const Layer<T>& layer) {
  return feed(stream, layer, steps(layer.view().k.tokens));
}

/// The share of the tolerated error that a stream's rows use, at worst: |error| / (tolerance (max - min) + rounding), by
/// feature, max and min over the values each row sees.
template <class T>
double used_tolerance(const StreamOutput<T>& got, const Layer<T>& layer, const std::vector<AlibiBias>& biases,
                      AttentionOptions options) {
  options.causal = true;
  const double tolerance = options.tolerance;
  options.tolerance = 0;
  double largest = 0;
  for (Index head = 0; head < layer.view().q.heads; ++head) {
    const Index key_head = head / (layer.view().q.heads / layer.view().k.heads);
    const Matrix<T> v = rows_of(layer.view().v, 0, key_head), rows = rows_of(got.values.view(), 0, head);
    const auto exact = dense_attention<long double>(rows_of(layer.view().q, 0, head), rows_of(layer.view().k, 0, key_head), v,
                                                    biases[static_cast<std::size_t>(head)], options);
    const double unit = 8 * static_cast<double>(std::numeric_limits<T>::epsilon()) *
                        (1 + static_cast<double>(exact.largest_score)) * static_cast<double>(exact.largest_value);
    for (Index i = 0; i < v.rows(); ++i)
      for (Index f = 0; f < v.cols(); ++f) {
        const auto seen = v.col(f).head(i + 1);
        const double error = static_cast<double>(std::abs(static_cast<long double>(rows(i, f)) - exact.values(i, f)));
        const double share = error / (tolerance * static_cast<double>(seen.maxCoeff() - seen.minCoeff()) + unit);
        if (!(share <= largest)) largest = share;  // NaN too
      }
  }
  return largest;
}

/// One head of one feature; keys and values by position.
Layer<double> scalar_stream(Index tokens, const std::function<double(Index)>& query,
                            const std::function<double(Index)>& key, const std::function<double(Index)>& value) {
  Layer<double> layer{Tensor<double>(1, 1, tokens, 1), Tensor<double>(1, 1, tokens, 1), Tensor<double>(1, 1, tokens, 1)};
  for (Index i = 0; i < tokens; ++i) {
    layer.q.set_row(0, 0, i, [&](Index) { return query(i); });
    layer.k.set_row(0, 0, i, [&](Index) { return key(i); });
    layer.v.set_row(0, 0, i, [&](Index) { return value(i); });
  }
  return layer;
}
double largest_norm(const Layer<double>& layer) {
  double largest = 0;
  for (Index head = 0; head < layer.view().q.heads; ++head)
    largest = std::max(largest, rows_of(layer.view().q, 0, head).rowwise().norm().maxCoeff());
  return largest;
}

}  // namespace

TEST_CASE("Keys are dropped, and every row stays within the tolerance") {
  const auto layer = normal_stream<double>({4, 2, 900, 8, 3}, 1);
  const std::vector<AlibiBias> biases{{0.5}, {0.1}, {0.25}, {0.05}};
  for (const double tolerance : {0x1p-40, 0x1p-24, 1e-3, 0.5, 100.0})
    for (const auto& softcap : {std::optional<double>(), std::optional<double>(2.0)}) {
      const AttentionOptions options{.key_offset = 77, .softcap = softcap, .tolerance = tolerance};
      auto stream = stream_for(layer, biases, options, largest_norm(layer) * (1 + 1e-12));
      const auto got = decode(stream, layer);
      CAPTURE(tolerance, softcap.value_or(0));
      REQUIRE(used_tolerance(got, layer, biases, options) <= 1);
      // The smaller slope of the group decides.
      for (const Index head : {0, 1}) {
        const double slope = biases[static_cast<std::size_t>(2 * head + 1)].slope;
        const double by_weight = std::log1p(1 / tolerance) / slope;
        CAPTURE(head, stream.cached_tokens(head), by_weight);
        REQUIRE(static_cast<double>(stream.cached_tokens(head)) < by_weight + (softcap ? 4.0 : 24.0) / slope + 2);
      }
    }
}

TEST_CASE("Zero keys: as many are kept as the weights alone demand") {
  for (const double slope : {1.0, 0.1, 0.01})
    for (const double tolerance : {1e-9, 1e-3, 0.5}) {
      const auto layer = scalar_stream(3400, [](Index) { return 1.0; }, [](Index) { return 0.0; },
                                       [](Index i) { return std::cos(static_cast<double>(i)); });
      const AttentionOptions options{.tolerance = tolerance};
      auto stream = stream_for(layer, std::vector<AlibiBias>{{slope}}, options, 1.0);
      const auto got = decode(stream, layer);
      // exp(-slope w) (1 + tolerance) <= tolerance for w tokens kept.
      const double wanted = std::log1p(1 / tolerance) / slope;
      CAPTURE(slope, tolerance, wanted);
      REQUIRE(static_cast<double>(stream.cached_tokens(0)) >= wanted);
      REQUIRE(static_cast<double>(stream.cached_tokens(0)) < wanted + 1 + 1e-6 * wanted);
      REQUIRE(used_tolerance(got, layer, {{slope}}, options) <= 1);
    }
}

TEST_CASE("The worst queries and keys stay within the tolerance") {
  struct Case {
    const char* name;
    std::function<double(Index)> query, key;
  };
  const auto parity = [](Index i) { return i % 2 == 0 ? 1.0 : -1.0; };
  const std::vector<Case> cases{
      {"a huge key long ago", [](Index) { return 1.0; }, [](Index i) { return i == 3 ? 60.0 : 0.1; }},
      {"a huge key long ago, the others repel", [](Index) { return 1.0; }, [](Index i) { return i == 3 ? 60.0 : -4.0; }},
      {"growing norms that repel", [](Index) { return 1.0; }, [](Index i) { return i < 5 ? 9.0 : -0.1 * static_cast<double>(i); }},
      {"shrinking norms", [](Index) { return 1.0; }, [](Index i) { return 60 * std::exp(-0.05 * static_cast<double>(i)); }},
      {"norms growing faster than the bias falls", [](Index) { return 1.0; }, [](Index i) { return 0.7 * static_cast<double>(i); }},
      {"norms shrinking as the bias falls", [](Index) { return 1.0; }, [](Index i) { return 300 - 0.5 * static_cast<double>(i); }},
      {"queries of either sign", parity, [](Index i) { return 5 * std::sin(static_cast<double>(i)); }},
      {"scores beyond the exponential's range", [](Index) { return 1.0; },
       [](Index i) { return i == 0 ? 800.0 : -800.0; }},
      {"scores beyond the exponential's range, of zero sum", parity, [](Index i) { return i % 50 == 0 ? 900.0 : -900.0; }},
  };
  for (const Case& worst : cases)
    for (const double tolerance : {1e-9, 0.01})
      for (const double slope : {0.5, 1.0}) {
        const auto layer = scalar_stream(2600, worst.query, worst.key, [](Index i) { return i < 10 ? 1.0 : 0.0; });
        const AttentionOptions options{.scale = 1, .tolerance = tolerance};
        auto stream = stream_for(layer, std::vector<AlibiBias>{{slope}}, options, 1.0);
        const auto got = decode(stream, layer);
        CAPTURE(worst.name, tolerance, slope, stream.cached_tokens(0));
        REQUIRE(used_tolerance(got, layer, {{slope}}, options) <= 1);
      }
}

TEST_CASE("A huge key is kept while it may matter, and dropped with all before it when it may not") {
  const double slope = 0.5, tolerance = 1e-6;
  const auto layer =
      scalar_stream(1200, [](Index) { return 1.0; }, [](Index i) { return i == 100 ? 200.0 : 0.0; }, [](Index) { return 1.0; });
  auto stream = stream_for(layer, std::vector<AlibiBias>{{slope}}, {.scale = 1, .tolerance = tolerance}, 1.0);
  const double small = std::log1p(1 / tolerance) / slope;
  feed(stream, layer.view(), steps(1200), 0, [&] {
    const double position = static_cast<double>(stream.position());
    const double kept = static_cast<double>(stream.cached_tokens(0));
    CAPTURE(position, kept);
    if (position > 101 + small + 2 && position < 100 + 200 / slope) REQUIRE(kept == Approx(position - 100));
    if (position > 102 + 200 / slope + small) REQUIRE(kept < small + 2);
  });
  REQUIRE(stream.cached_tokens(0) < 40);
}

TEST_CASE("A key that is not finite is never dropped, what is before it is") {
  for (const double value : {not_a_number, infinity, -infinity})
    for (const auto& softcap : {std::optional<double>(), std::optional<double>(3.0)}) {
      const auto layer = scalar_stream(400, [](Index i) { return i % 7 == 0 ? 0.0 : 1.0; }, [&](Index i) { return i == 200 ? value : 0.1; },
                                       [](Index) { return 1.0; });
      const AttentionOptions options{.scale = 1, .softcap = softcap, .tolerance = 1e-3};
      auto stream = stream_for(layer, std::vector<AlibiBias>{{0.5}}, options, 1.0);
      const auto got = decode(stream, layer);
      CAPTURE(value, softcap.value_or(0));
      REQUIRE(stream.cached_tokens(0) == 200);
      // What the definition says, NaN where it says NaN.
      const auto exact = dense_attention<double>(rows_of(layer.view().q, 0, 0), rows_of(layer.view().k, 0, 0), rows_of(layer.view().v, 0, 0), AlibiBias{0.5},
                                                 {.scale = 1, .causal = true, .softcap = softcap});
      const Matrix<double> rows = rows_of(got.values.view(), 0, 0);
      for (Index i = 0; i < 400; ++i) {
        CAPTURE(i, rows(i, 0), exact.values(i, 0));
        REQUIRE(std::isnan(rows(i, 0)) == std::isnan(exact.values(i, 0)));
      }
    }
}

TEST_CASE("Nothing is dropped without all it takes: a positive slope, a tolerance, a bound on the queries") {
  const auto layer = scalar_stream(900, [](Index) { return 1.0; }, [](Index) { return 0.1; }, [](Index) { return 1.0; });
  const auto kept = [&](double slope, double tolerance, std::optional<double> norm, std::optional<Index> window = {}) {
    auto stream = stream_for(layer, std::vector<AlibiBias>{{slope, 1.0}}, {.window_left = window, .tolerance = tolerance}, norm);
    decode(stream, layer);
    return stream.cached_tokens(0);
  };
  REQUIRE(kept(1, 1e-3, 1.0) < 20);
  REQUIRE(kept(0, 1e-3, 1.0) == 900);
  REQUIRE(kept(-0.01, 1e-3, 1.0) == 900);
  REQUIRE(kept(-3, 1e9, 1.0) == 900);
  REQUIRE(kept(1, 0, 1.0) == 900);
  REQUIRE(kept(1, 1e-3, {}) == 900);
  REQUIRE(kept(1, 1e-3, 1.0, 500) == 500);  // the window decides alone

  // A group with a head that may not drop.
  const auto two = normal_stream<double>({2, 1, 300, 4, 4}, 2);
  auto stream = stream_for(two, std::vector<AlibiBias>{{1.0}, {0.0}}, {.tolerance = 1e-3}, 1e3);
  decode(stream, two);
  REQUIRE(stream.cached_tokens(0) == 300);
}

TEST_CASE("A scale or a bound of 0 leaves the weights alone") {
  const auto layer = scalar_stream(300, [](Index) { return 0.0; }, [](Index i) { return static_cast<double>(i); },
                                   [](Index i) { return std::sin(static_cast<double>(i)); });
  for (const auto& [scale, norm] : {std::pair{0.0, 5.0}, {1.0, 0.0}, {-1.0, 0.0}}) {
    const AttentionOptions options{.scale = scale, .tolerance = 1e-3};
    auto stream = stream_for(layer, std::vector<AlibiBias>{{0.5}}, options, norm);
    const auto got = decode(stream, layer);
    REQUIRE(stream.cached_tokens(0) < 20);
    REQUIRE(used_tolerance(got, layer, {{0.5}}, options) <= 1);
  }
}

TEST_CASE("A negative scale counts by its size") {
  const auto layer = scalar_stream(600, [](Index) { return -1.0; }, [](Index i) { return i == 3 ? 90.0 : -2.0; },
                                   [](Index i) { return i < 10 ? 1.0 : 0.0; });
  const AttentionOptions options{.scale = -1, .tolerance = 1e-6};
  auto stream = stream_for(layer, std::vector<AlibiBias>{{0.5}}, options, 1.0);
  REQUIRE(used_tolerance(decode(stream, layer), layer, {{0.5}}, options) <= 1);
}

TEST_CASE("Chunks of any size drop no more than single tokens may") {
  const auto layer = normal_stream<double>({2, 1, 1500, 8, 4}, 3);
  const std::vector<AlibiBias> biases{{0.3}, {0.06}};
  const AttentionOptions options{.tolerance = 1e-6};
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    Dice dice(seed);
    auto stream = stream_for(layer, biases, options, largest_norm(layer) * (1 + 1e-12));
    auto got = feed(stream, layer, random_chunks(dice, 1500));
    // Rows nobody asked for are right by definition.
    auto whole = stream_for(layer, biases);
    const auto expected = feed(whole, layer, {{1500, 1500}});
    for (Index head = 0; head < 2; ++head)
      for (Index i = 0; i < 1500; ++i)
        if (!got.asked[static_cast<std::size_t>(i)]) {
          const Matrix<double> row = rows_of(expected.values.view(), 0, head).row(i);
          got.values.set_row(0, head, i, [&](Index f) { return row(0, f); });
        }
    CAPTURE(seed);
    REQUIRE(stream.cached_tokens(0) < 800);
    REQUIRE(used_tolerance(got, layer, biases, options) <= 1);
  }
}

TEMPLATE_TEST_CASE("Float and 16 bits keep to the tolerance as well, by the keys as stored", "", float, Eigen::half,
                   Eigen::bfloat16) {
  const auto layer = normal_stream<float>({2, 2, 700, 16, 4}, 4);
  const Layer<float> narrow{layer.q, rounded<TestType>(layer.k), rounded<TestType>(layer.v)};
  const std::vector<AlibiBias> biases{{0.3}, {0.06}};
  const AttentionOptions options{.tolerance = 1e-4};
  auto stream = stream_for<float, TestType>(layer, biases, options, 10.0);
  REQUIRE(used_tolerance(feed(stream, layer, steps(700)), narrow, biases, options) <= 1);
  REQUIRE(stream.cached_tokens(0) < 150);
  REQUIRE(stream.cached_tokens(1) < 500);
}

TEST_CASE("The eight standard heads in bounded memory over a long stream") {
  std::vector<AlibiBias> biases;
  for (const double slope : alibi_slopes(8)) biases.push_back({slope});
  const Index tokens = 20000, block = 500;
  const auto layer = normal_stream<float>({8, 8, block, 8, 8}, 5);  // again and again
  StreamingAttention<float, AlibiBias> stream(biases, 8, 8, 8, {.tolerance = 0x1p-24}, 6.0);
  std::vector<Index> largest(8, 0);
  for (Index done = 0; done < tokens; done += block)
    feed(stream, layer.view(), steps(block / 10, {10, 1}), 0, [&] {
      for (std::size_t head = 0; head < 8; ++head)
        largest[head] = std::max(largest[head], stream.cached_tokens(static_cast<Index>(head)) + 10);
    });
  Index room = 0;
  for (const Index held : largest) room += 2 * held + 3 * 384;
  REQUIRE(stream.bytes() <= static_cast<std::size_t>(room) * (16 * sizeof(float) + sizeof(double)));
  for (std::size_t head = 0; head < 8; ++head) {
    CAPTURE(head, largest[head]);
    REQUIRE(static_cast<double>(largest[head]) < (std::log1p(0x1p24) + 24) / biases[head].slope + 10);
  }
}

}  // namespace streaming_budget_test
