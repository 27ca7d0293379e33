// SPDX-License-Identifier: MIT

// Layers and streams over hundreds of random calls: a head knows nothing of other heads, items and sequences, nor a row
// of later tokens, forwards and backwards; and gradients are linear.

#include "poslsh/model/multi_head_backward.hpp"
#include "support/catch.hpp"
#include "support/random_gradients.hpp"
#include "support/streams.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace layer_property_test {

using namespace poslsh::test;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::HeadGradients;
using poslsh::Index;
using poslsh::KeyRange;
using poslsh::Matrix;
using poslsh::multi_head_attention;
using poslsh::multi_head_attention_backward;
using poslsh::MultiHeadOptions;

namespace {

/// A random layer, padded, packed or neither.
struct LayerCall {
  LayerShape shape;
  AttentionOptions attention;
  std::vector<KeyRange> valid_keys;
  std::vector<Index> query_starts, key_starts;
  Layout layout;

  explicit LayerCall(Dice& dice, Index most_pairs) : layout(all_layouts[dice.below(4)]) {
    const Call call = random_call(dice, most_pairs);
    attention = call.options;
    attention.threads = dice.pick({1, 1, 1, 2, 3});
    shape = {dice.pick<Index>({1, 2, 3}), 0, dice.pick<Index>({1, 1, 2, 3}), call.queries, call.keys, call.head_dim, call.value_dim};
    shape.heads = shape.key_heads * dice.pick<Index>({1, 2, 3});
    if (dice.chance(0.3)) {
      shape.batch = 1;
      attention.query_offset.reset();
      query_starts = key_starts = {0};
      for (Index m = dice.below(4); m >= 0; --m) {
        query_starts.push_back(query_starts.back() + dice.below(shape.queries - query_starts.back() + 1));
        key_starts.push_back(key_starts.back() + dice.below(shape.keys - key_starts.back() + 1));
      }
    } else if (dice.chance(0.4)) {
      for (Index item = 0; item < shape.batch; ++item) {
        const Index begin = dice.below(shape.keys + 1);
        valid_keys.push_back({begin, begin + dice.below(shape.keys - begin + 1)});
      }
    }
  }
  [[nodiscard]] MultiHeadOptions options() const { return {attention, valid_keys, query_starts, key_starts}; }
  [[nodiscard]] bool packed() const { return !query_starts.empty(); }
};

/// A layer with the derivative by its output, and what both passes make of them.
template <class T>
struct Pass {
  Layer<T> layer;
  Tensor<T> d_out, dq, dk, dv;
  LayerOutput<T> out;
  std::vector<HeadGradients> numbers;

  template <class B>
  Pass(const LayerCall& call, Layer<T> x, Tensor<T> g, const std::vector<B>& biases)
      : layer(std::move(x)), d_out(std::move(g)), dq(layer.q), dk(layer.k), dv(layer.v), out(attend(layer, biases, call.options())) {
    const LayerView<T> view = layer.view();
    numbers = multi_head_attention_backward(view.q, view.k, view.v, std::as_const(out.values).view(), out.log_sum_exp.data(),
                                            std::as_const(d_out).view(), dq.view(), dk.view(), dv.view(), biases, call.options());
  }
};

/// The layer of a call; `stream` tells its numbers from those of others.
template <class T>
Layer<T> layer_of(const LayerCall& call, std::uint64_t stream) {
  return normal_layer<T>(call.shape, stream, call.layout);
}
template <class T>
Tensor<T> derivative_of(const LayerCall& call, std::uint64_t stream) {
  const LayerShape& s = call.shape;
  return normal_tensor<T>(s.batch, s.heads, s.queries, s.value_dim, 3 * stream + 500000, call.layout);
}

template <class T>
void scale_by(Tensor<T>& tensor, T factor) {
  for (T& value : tensor.storage()) value *= factor;
}

/// Puts rows of one head of a tensor into another.
template <class T>
void put(Tensor<T>& to, const Tensor<T>& from, Index item, Index head, KeyRange rows) {
  const Matrix<T> all = rows_of(from.view(), item, head);
  for (Index row = rows.begin; row < rows.end; ++row) to.set_row(item, head, row, [&](Index f) { return all(row, f); });
}

/// Whether rows of one head of two tensors are the same bit by bit.
template <class T>
bool same_rows(const Tensor<T>& a, const Tensor<T>& b, Index item, Index head, KeyRange rows) {
  const auto part = [&](const Tensor<T>& tensor) -> Matrix<T> {
    return rows_of(tensor.view(), item, head).middleRows(rows.begin, rows.size());
  };
  return same_numbers(part(a), part(b));
}

/// check(dice, call, biases, others, sizes): two lists of biases, and what to multiply by what shall not matter.
template <class Check>
void each_layer(std::uint64_t first_seed, Index most_pairs, Check&& check) {
  for (std::uint64_t seed = first_seed; seed < first_seed + cases; ++seed) {
    Dice dice(seed);
    const LayerCall call(dice, most_pairs);
    const Index count = dice.chance(0.5) ? call.shape.heads : call.shape.batch * call.shape.heads;
    with_biases(static_cast<int>(seed) % stream_bias_kinds, 2 * count, dice, [&](auto biases, const char* name) {
      const auto middle = biases.begin() + static_cast<std::ptrdiff_t>(count);
      decltype(biases) others(middle, biases.end());
      biases.erase(middle, biases.end());
      CAPTURE(seed, name, call.shape.batch, call.shape.heads, call.shape.key_heads, call.shape.queries, call.shape.keys,
              call.packed(), call.valid_keys.size(), call.attention.causal, call.attention.threads);
      check(seed, dice, call, biases, others);
    });
  }
}

}  // namespace

// --- Other heads, items and sequences -----------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("A group of heads has the same bits whatever all others hold, forwards and backwards", "", Scalars) {
  Index rows = 0, spoilt = 0;
  each_layer(13000, 12000, [&](std::uint64_t seed, Dice& dice, LayerCall call, const auto& biases, auto others) {
    if (dice.chance(0.3)) call.attention.tolerance = 0x1p-10;
    const LayerShape& shape = call.shape;
    const auto all = members(call.options(), shape.batch, shape.queries, shape.keys);
    const Member kept = all[static_cast<std::size_t>(dice.below(static_cast<Index>(all.size())))];
    const Index item = kept.item, key_head = dice.below(shape.key_heads), group = shape.heads / shape.key_heads;
    const bool by_item = static_cast<Index>(biases.size()) != shape.heads;
    const Pass<TestType> one(call, layer_of<TestType>(call, seed), derivative_of<TestType>(call, seed), biases);

    Layer<TestType> layer = layer_of<TestType>(call, seed + 1000);
    Tensor<TestType> d_out = derivative_of<TestType>(call, seed + 1000);
    const TestType size = static_cast<TestType>(dice.pick({1.0, 1e20, infinity, not_a_number}));
    for (Tensor<TestType>* tensor : {&layer.q, &layer.k, &layer.v, &d_out}) scale_by(*tensor, size);
    put(layer.k, one.layer.k, item, key_head, kept.keys);
    put(layer.v, one.layer.v, item, key_head, kept.keys);
    for (Index head = key_head * group; head < (key_head + 1) * group; ++head) {
      put(layer.q, one.layer.q, item, head, kept.queries);
      put(d_out, one.d_out, item, head, kept.queries);
      const auto bias = static_cast<std::size_t>(by_item ? item * shape.heads + head : head);
      others[bias] = biases[bias];
    }
    const Pass<TestType> other(call, std::move(layer), std::move(d_out), others);

    CAPTURE(item, key_head, kept.queries.begin, kept.queries.end, kept.keys.begin, kept.keys.end, size);
    for (Index head = key_head * group; head < (key_head + 1) * group; ++head) {
      CAPTURE(head);
      REQUIRE(same_rows(other.out.values, one.out.values, item, head, kept.queries));
      const auto lse = [&](const Pass<TestType>& pass) -> Matrix<double> {
        return pass.out.head(item, head).log_sum_exp.segment(kept.queries.begin, kept.queries.size());
      };
      REQUIRE(same_numbers(lse(other), lse(one)));
      REQUIRE(same_rows(other.dq, one.dq, item, head, kept.queries));
      const auto bias = static_cast<std::size_t>(item * shape.heads + head);
      if (by_item || (shape.batch == 1 && !call.packed())) REQUIRE(other.numbers[bias].dslope == one.numbers[bias].dslope);
    }
    REQUIRE(same_rows(other.dk, one.dk, item, key_head, kept.keys));
    REQUIRE(same_rows(other.dv, one.dv, item, key_head, kept.keys));
    rows += kept.keys.empty() ? 0 : group * kept.queries.size();
    spoilt += !std::isfinite(static_cast<double>(size));
  });
  CHECK(rows > 4000);
  CHECK(spoilt > 50);
}

TEMPLATE_LIST_TEST_CASE("A query head has the same bits whatever the others of its group ask", "", Scalars) {
  each_layer(14000, 12000, [&](std::uint64_t seed, Dice& dice, LayerCall call, const auto& biases, auto others) {
    if (dice.chance(0.5)) call.attention.tolerance = 0x1p-10;
    const LayerShape& shape = call.shape;
    const Index item = dice.below(shape.batch), head = dice.below(shape.heads);
    const Layer<TestType> one = layer_of<TestType>(call, seed);
    Layer<TestType> other = one;
    other.q = layer_of<TestType>(call, seed + 1000).q;
    scale_by(other.q, static_cast<TestType>(dice.pick({1.0, 1e20, not_a_number})));
    put(other.q, one.q, item, head, {0, shape.queries});
    const bool by_item = static_cast<Index>(biases.size()) != shape.heads;
    const auto bias = static_cast<std::size_t>(by_item ? item * shape.heads + head : head);
    others[bias] = biases[bias];
    CAPTURE(item, head, call.attention.tolerance);
    REQUIRE(same_bits(attend(other, others, call.options()).head(item, head), attend(one, biases, call.options()).head(item, head)));
  });
}

// --- Later tokens -------------------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("Under causality no row of a layer or a stream changes a bit with later tokens", "", Scalars) {
  Index rows = 0;
  each_layer(15000, 12000, [&](std::uint64_t seed, Dice& dice, LayerCall call, const auto& biases, const auto&) {
    // As many queries as keys, so that a row of either is a token.
    call.shape.queries = call.shape.keys;
    call.attention.causal = true;
    call.attention.query_offset.reset();
    call.valid_keys.clear();
    call.query_starts.clear();
    call.key_starts.clear();
    const LayerShape& shape = call.shape;
    const Index cut = dice.below(shape.keys + 1);
    const TestType size = static_cast<TestType>(dice.pick({1.0, 1e20, infinity, not_a_number}));
    const auto later_changed = [&](const Layer<TestType>& layer) {
      Layer<TestType> changed = layer;
      for (Tensor<TestType>* tensor : {&changed.q, &changed.k, &changed.v})
        for (Index item = 0; item < tensor->view().batch; ++item)
          for (Index head = 0; head < tensor->view().heads; ++head)
            for (Index row = cut; row < tensor->view().tokens; ++row)
              tensor->set_row(item, head, row, [&](Index f) { return size * static_cast<TestType>(dice.uniform() + static_cast<double>(f)); });
      return changed;
    };
    CAPTURE(cut, size);
    const Layer<TestType> before = layer_of<TestType>(call, seed), after = later_changed(before);
    const auto a = attend(before, biases, call.options()), b = attend(after, biases, call.options());
    for (Index item = 0; item < shape.batch; ++item)
      for (Index head = 0; head < shape.heads; ++head) {
        REQUIRE(same_rows(a.values, b.values, item, head, {0, cut}));
        REQUIRE(same_numbers(a.head(item, head).log_sum_exp.head(cut), b.head(item, head).log_sum_exp.head(cut)));
        rows += cut;
      }

    const StreamShape stream_shape{shape.heads, shape.key_heads, shape.keys, shape.head_dim, shape.value_dim};
    const auto tokens = normal_stream<TestType>(stream_shape, seed, call.layout);
    const auto chunks = random_chunks(dice, shape.keys);
    const auto heads = std::vector(biases.begin(), biases.begin() + static_cast<std::ptrdiff_t>(shape.heads));
    auto stream = stream_for(tokens, heads, call.attention), other_stream = stream_for(tokens, heads, call.attention);
    const auto c = feed(stream, tokens, chunks), d = feed(other_stream, later_changed(tokens), chunks);
    for (Index head = 0; head < shape.heads; ++head) REQUIRE(same_rows(c.values, d.values, 0, head, {0, cut}));
  });
  CHECK(rows > 10000);
}

// --- Linear gradients ---------------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("Gradients of a layer are linear in the derivative by its output", "", Scalars) {
  each_layer(16000, 8000, [&](std::uint64_t seed, Dice& dice, const LayerCall& call, const auto& biases, const auto&) {
    const LayerShape& shape = call.shape;
    const Layer<TestType> layer = layer_of<TestType>(call, seed);
    const Index rows = shape.batch * shape.heads * shape.queries, group = shape.heads / shape.key_heads;
    const Combination<TestType> sum(dice, rows, shape.value_dim, seed);
    const auto run = [&](const Matrix<TestType>& g) {
      Tensor<TestType> d_out(shape.batch, shape.heads, shape.queries, shape.value_dim, call.layout);
      Index next = 0;
      for (Index item = 0; item < shape.batch; ++item)
        for (Index head = 0; head < shape.heads; ++head)
          for (Index row = 0; row < shape.queries; ++row, ++next)
            d_out.set_row(item, head, row, [&](Index f) { return g(next, f); });
      return Pass<TestType>(call, layer, d_out, biases);
    };
    const Pass<TestType> whole = run(sum.whole), of_u = run(sum.u), of_w = run(sum.w);
    const double unit = 4 * static_cast<double>(std::numeric_limits<TestType>::epsilon());
    double slope = 0, sink = 0;
    for (Index item = 0; item < shape.batch; ++item)
      for (Index head = 0; head < shape.heads; ++head) {
        const Index key_head = head / group;
        const auto head_of = [&](const Tensor<TestType>& tensor, Index which) { return rows_of(tensor.view(), item, which); };
        const Inputs<TestType> x{head_of(layer.q, head), head_of(layer.k, key_head), head_of(layer.v, key_head)};
        // A key may have all the weight of every query of its group.
        const GradientSizes sizes = gradient_sizes(x, call.attention, sum.size(), static_cast<double>(shape.queries * group));
        slope = std::max(slope, sizes.slope);
        sink = std::max(sink, sizes.sink);
        const auto error = [&](Tensor<TestType> Pass<TestType>::*part, Index which) {
          return distance(head_of(whole.*part, which), sum.of(head_of(of_u.*part, which), head_of(of_w.*part, which)));
        };
        CAPTURE(item, head);
        REQUIRE(error(&Pass<TestType>::dq, head) <= unit * sizes.q);
        REQUIRE(error(&Pass<TestType>::dk, key_head) <= unit * sizes.k);
        REQUIRE(error(&Pass<TestType>::dv, key_head) <= unit * sizes.v);
      }
    for (std::size_t b = 0; b < biases.size(); ++b) {
      const HeadGradients &got = whole.numbers[b], &u = of_u.numbers[b], &w = of_w.numbers[b];
      const double items = static_cast<double>(shape.batch);  // that may share a bias
      REQUIRE(std::abs(got.dslope - sum.of(u.dslope, w.dslope)) <= unit * items * slope);
      REQUIRE(std::abs(got.dright_slope - sum.of(u.dright_slope, w.dright_slope)) <= unit * items * slope);
      REQUIRE(std::abs(got.dsink - sum.of(u.dsink, w.dsink)) <= unit * items * sink);
    }
  });
}

}  // namespace layer_property_test
