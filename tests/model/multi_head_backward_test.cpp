// SPDX-License-Identifier: MIT

// Gradients of a layer against attention_backward() head by head: layouts, groups, batches, padding, packing, threads.

#include "poslsh/model/multi_head_backward.hpp"
#include "support/catch.hpp"
#include "support/heads.hpp"

namespace multi_head_backward_test {

using namespace poslsh::test;
using Catch::Matchers::ContainsSubstring;
using poslsh::AlibiBias;
using poslsh::attention_backward;
using poslsh::AttentionGradients;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::draw_hashes;
using poslsh::HeadGradients;
using poslsh::Index;
using poslsh::KeyRange;
using poslsh::LaplaceKernel;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::multi_head_attention;
using poslsh::multi_head_attention_backward;
using poslsh::MultiHeadOptions;
using poslsh::Vector;

namespace {

/// A layer, its output, a derivative by it, and room for its gradients.
template <class T>
struct Pass {
  LayerShape shape;
  Layer<T> layer;
  Tensor<T> out, d_out, dq, dk, dv;
  std::vector<double> log_sum_exp;
  std::vector<HeadGradients> numbers;

  Pass(const LayerShape& s, std::uint64_t seed, Layout layout = Layout::heads_first)
      : shape(s), layer(normal_layer<T>(s, seed, layout)),
        out(s.batch, s.heads, s.queries, s.value_dim, layout),
        d_out(normal_tensor<T>(s.batch, s.heads, s.queries, s.value_dim, 3 * seed + 50, layout)),
        dq(s.batch, s.heads, s.queries, s.head_dim, layout), dk(s.batch, s.key_heads, s.keys, s.head_dim, layout),
        dv(s.batch, s.key_heads, s.keys, s.value_dim, layout),
        log_sum_exp(static_cast<std::size_t>(s.batch * s.heads * s.queries)) {}

  template <class B>
  void run(const std::vector<B>& biases, const MultiHeadOptions& options) {
    const LayerView<T> x = layer.view();
    multi_head_attention(x.q, x.k, x.v, out.view(), biases, options, log_sum_exp.data());
    numbers = multi_head_attention_backward(x.q, x.k, x.v, out.view(), log_sum_exp.data(), d_out.view(), dq.view(),
                                            dk.view(), dv.view(), biases, options);
  }

  /// attention_backward() of one head over these rows.
  template <class B>
  AttentionGradients<T> head(Index item, Index h, KeyRange queries, KeyRange keys, const B& bias,
                             const AttentionOptions& options) {
    const LayerView<T> x = layer.view();
    const Index key_head = h / (shape.heads / shape.key_heads);
    const auto part = [](const auto& tensor, Index i, Index j, KeyRange rows) -> Matrix<T> {
      return rows_of(tensor, i, j).middleRows(rows.begin, rows.size());
    };
    Vector<double> lse(queries.size());
    for (Index i = 0; i < lse.size(); ++i)
      lse[i] = log_sum_exp[static_cast<std::size_t>((item * shape.heads + h) * shape.queries + queries.begin + i)];
    const AttentionOutput<T> forward{part(out.view(), item, h, queries), lse};
    return attention_backward(part(x.q, item, h, queries), part(x.k, item, key_head, keys),
                              part(x.v, item, key_head, keys), forward, part(d_out.view(), item, h, queries), bias,
                              options);
  }
};

template <class A, class B>
bool equal(const A& a, const B& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() && (a.array() == b.array()).all();
}

KeyRange all_rows(Index count) { return {0, count}; }

std::vector<AlibiBias> slopes(Index count) {
  std::vector<AlibiBias> biases;
  for (Index h = 0; h < count; ++h) biases.push_back({0.02 * static_cast<double>(h + 1), 0.05});
  return biases;
}
std::vector<MeanMask> masks(Index count) {
  std::vector<MeanMask> biases;
  for (Index h = 0; h < count; ++h)
    biases.emplace_back(draw_hashes(LaplaceKernel{10.0 * static_cast<double>(h + 1)}, 8, 1,
                                    poslsh::Sampling::importance, static_cast<std::uint64_t>(h)));
  return biases;
}

const std::vector<AttentionOptions>& calls() {
  static const std::vector<AttentionOptions> all{
      {.causal = true}, {.sink = 0.5}, {.query_offset = 40, .window_left = 60, .softcap = 4}, {.causal = true, .tolerance = 1e-3}};
  return all;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("Each head has the bits of attention_backward(), in any layout and with any threads", "", Scalars) {
  for (const Layout layout : all_layouts)
    for (const int threads : {1, 3})
      for (AttentionOptions options : calls()) {
        options.threads = threads;
        const auto check = [&](const auto& biases) {
          Pass<TestType> pass({2, 3, 3, 130, 210, 7, 5}, 4, layout);
          pass.run(biases, {.attention = options});
          double slope_sum = 0, sink_sum = 0;
          for (Index item = 0; item < 2; ++item)
            for (Index h = 0; h < 3; ++h) {
              const auto wanted = pass.head(item, h, all_rows(130), all_rows(210), biases[static_cast<std::size_t>(h)], options);
              CAPTURE(static_cast<int>(layout), threads, item, h);
              REQUIRE(equal(rows_of(pass.dq.view(), item, h), wanted.dq));
              REQUIRE(equal(rows_of(pass.dk.view(), item, h), wanted.dk));
              REQUIRE(equal(rows_of(pass.dv.view(), item, h), wanted.dv));
              REQUIRE(wanted.dv.cwiseAbs().maxCoeff() > 0);
              slope_sum += wanted.dslope + wanted.dright_slope;
              sink_sum += wanted.dsink;
            }
          double slope = 0, sink = 0;
          for (const HeadGradients& one : pass.numbers) slope += one.dslope + one.dright_slope, sink += one.dsink;
          REQUIRE(slope == Approx(slope_sum).margin(1e-9));
          REQUIRE(sink == Approx(sink_sum).margin(1e-9));
          REQUIRE((!options.sink || sink != 0));
        };
        check(slopes(3));
        check(masks(3));
      }
}

TEST_CASE("Heads that share keys add up, in the same order for any number of threads") {
  for (const AttentionOptions& options : calls()) {
    const std::vector<AlibiBias> biases = slopes(6);
    Pass<double> pass({2, 6, 2, 150, 150, 4, 6}, 5);
    pass.run(biases, {.attention = options});
    for (Index item = 0; item < 2; ++item)
      for (Index key_head = 0; key_head < 2; ++key_head) {
        Matrix<double> dk = Matrix<double>::Zero(150, 4), dv = Matrix<double>::Zero(150, 6);
        for (Index h = 3 * key_head; h < 3 * key_head + 3; ++h) {
          const auto one = pass.head(item, h, all_rows(150), all_rows(150), biases[static_cast<std::size_t>(h)], options);
          REQUIRE(equal(rows_of(pass.dq.view(), item, h), one.dq));
          dk += one.dk;
          dv += one.dv;
        }
        REQUIRE(distance(rows_of(pass.dk.view(), item, key_head), dk) < 1e-13 * (1 + dk.cwiseAbs().maxCoeff()));
        REQUIRE(distance(rows_of(pass.dv.view(), item, key_head), dv) < 1e-13 * (1 + dv.cwiseAbs().maxCoeff()));
      }
    for (const int threads : {2, 5}) {
      AttentionOptions more = options;
      more.threads = threads;
      Pass<double> again({2, 6, 2, 150, 150, 4, 6}, 5);
      again.run(biases, {.attention = more});
      REQUIRE(again.dk.storage() == pass.dk.storage());
      REQUIRE(again.dv.storage() == pass.dv.storage());
      for (std::size_t h = 0; h < 6; ++h) REQUIRE(again.numbers[h].dslope == pass.numbers[h].dslope);
    }
  }
}

TEST_CASE("Packed sequences have the gradients of calls of their own, other rows 0") {
  const std::vector<Index> query_starts{0, 40, 40, 130, 131}, key_starts{0, 40, 45, 160, 160};
  for (const AttentionOptions& base : {AttentionOptions{.causal = true}, AttentionOptions{.window_left = 20, .sink = 0.1}}) {
    const std::vector<MeanMask> biases = masks(2);
    Pass<double> pass({1, 2, 2, 140, 170, 5, 4}, 6);
    // What lies past the last offset is not read.
    pass.d_out.set_row(0, 1, 135, [](Index) { return not_a_number; });
    const MultiHeadOptions options{.attention = base, .query_starts = query_starts, .key_starts = key_starts};
    pass.run(biases, options);
    for (Index h = 0; h < 2; ++h) {
      const Matrix<double> dq = rows_of(pass.dq.view(), 0, h), dk = rows_of(pass.dk.view(), 0, h), dv = rows_of(pass.dv.view(), 0, h);
      for (std::size_t m = 0; m + 1 < query_starts.size(); ++m) {
        const KeyRange queries{query_starts[m], query_starts[m + 1]}, keys{key_starts[m], key_starts[m + 1]};
        const auto wanted = pass.head(0, h, queries, keys, biases[static_cast<std::size_t>(h)], base);
        REQUIRE(equal(dq.middleRows(queries.begin, queries.size()), wanted.dq));
        REQUIRE(equal(dk.middleRows(keys.begin, keys.size()), wanted.dk));
        REQUIRE(equal(dv.middleRows(keys.begin, keys.size()), wanted.dv));
      }
      REQUIRE(dq.bottomRows(9).isZero(0));
      REQUIRE(dk.bottomRows(10).isZero(0));
      REQUIRE(dv.bottomRows(10).isZero(0));
    }
  }
}

TEST_CASE("Padded keys have gradient 0 and leave no trace, with one bias an item and head") {
  const std::vector<KeyRange> valid{{0, 90}, {30, 120}, {50, 50}};
  const std::vector<AlibiBias> biases = slopes(6);
  Pass<double> pass({3, 2, 1, 60, 120, 3, 2}, 7);
  for (Index item = 0; item < 3; ++item)
    for (Index row = 0; row < 120; ++row)
      if (!valid[static_cast<std::size_t>(item)].contains(row)) {
        pass.layer.k.set_row(item, 0, row, [](Index) { return not_a_number; });
        pass.layer.v.set_row(item, 0, row, [](Index) { return infinity; });
      }
  pass.run(biases, {.attention = {.query_offset = 60}, .valid_keys = valid});
  for (Index item = 0; item < 3; ++item) {
    const KeyRange keys = valid[static_cast<std::size_t>(item)];
    Matrix<double> dv = Matrix<double>::Zero(120, 2);
    for (Index h = 0; h < 2; ++h) {
      const auto bias = static_cast<std::size_t>(2 * item + h);
      const auto one = pass.head(item, h, all_rows(60), keys, biases[bias], {.query_offset = 60 - keys.begin});
      REQUIRE(equal(rows_of(pass.dq.view(), item, h), one.dq));
      REQUIRE(pass.numbers[bias].dslope == one.dslope);
      dv.middleRows(keys.begin, keys.size()) += one.dv;
    }
    REQUIRE(distance(rows_of(pass.dv.view(), item, 0), dv) < 1e-14);
    REQUIRE(rows_of(pass.dk.view(), item, 0).topRows(keys.begin).isZero(0));
    REQUIRE(rows_of(pass.dk.view(), item, 0).bottomRows(120 - keys.end).isZero(0));
  }
}

TEST_CASE("A layer's gradients refuse what does not belong together") {
  Pass<float> pass({1, 2, 1, 4, 4, 3, 3}, 8);
  const std::vector<AlibiBias> biases = slopes(2);
  pass.run(biases, {});
  const LayerView<float> x = pass.layer.view();
  const auto call = [&](auto&& change) {
    auto out = pass.out.view(), d_out = pass.d_out.view(), dq = pass.dq.view(), dk = pass.dk.view(), dv = pass.dv.view();
    const double* lse = pass.log_sum_exp.data();
    change(out, d_out, dq, dk, dv, lse);
    multi_head_attention_backward(x.q, x.k, x.v, out, lse, d_out, dq, dk, dv, biases, {});
  };
  using View = poslsh::TensorView<float>;
  using Rest = const double*;
  REQUIRE_NOTHROW(call([](View&, View&, View&, View&, View&, Rest&) {}));
  REQUIRE_THROWS_WITH(call([](View& out, View&, View&, View&, View&, Rest&) { out.tokens = 3; }), ContainsSubstring("tokens of out"));
  REQUIRE_THROWS_WITH(call([](View&, View& d_out, View&, View&, View&, Rest&) { d_out.features = 2; }), ContainsSubstring("features of d_out"));
  REQUIRE_THROWS_WITH(call([](View&, View&, View& dq, View&, View&, Rest&) { dq.heads = 1; }), ContainsSubstring("heads of dq"));
  REQUIRE_THROWS_WITH(call([](View&, View&, View&, View& dk, View&, Rest&) { dk.tokens = 3; }), ContainsSubstring("tokens of dk"));
  REQUIRE_THROWS_WITH(call([](View&, View&, View&, View&, View& dv, Rest&) { dv.batch = 0; }), ContainsSubstring("batch of dv"));
  REQUIRE_THROWS_WITH(call([](View&, View&, View&, View&, View&, Rest& lse) { lse = nullptr; }), ContainsSubstring("log_sum_exp"));
  REQUIRE_THROWS_WITH(call([](View&, View&, View&, View& dk, View& dv, Rest&) { dv = dk; }), ContainsSubstring("overlap of dq, dk and dv"));
  REQUIRE_THROWS_WITH(call([](View& out, View&, View& dq, View&, View&, Rest&) { dq = out; }), ContainsSubstring("overlap of dq"));
  auto no_data = [](View&, View& d_out, View&, View&, View&, Rest&) { d_out.data = nullptr; };
  REQUIRE_THROWS_WITH(call(no_data), ContainsSubstring("d_out"));
}

}  // namespace multi_head_backward_test
