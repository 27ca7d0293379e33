// SPDX-License-Identifier: MIT

// Cases from the field that concern gradients, of one head and of a layer.

#include "poslsh/model/multi_head_backward.hpp"
#include "support/catch.hpp"
#include "support/gradients.hpp"
#include "support/heads.hpp"

#include <numbers>
#include <vector>

namespace gradient_cases_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::attention;
using poslsh::attention_backward;
using poslsh::AttentionOptions;
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
using poslsh::Sampling;

namespace {

constexpr double ln2 = std::numbers::ln2;

/// A layer, its output, a derivative by it, and its gradients.
template <class T>
struct Pass {
  Layer<T> layer;
  Tensor<T> d_out, out, dq, dk, dv;
  std::vector<double> log_sum_exp;
  std::vector<HeadGradients> numbers;

  template <class B>
  Pass(const LayerShape& s, const Layer<T>& inputs, const Tensor<T>& d_values, const std::vector<B>& biases,
       const MultiHeadOptions& options)
      : layer(inputs), d_out(d_values), out(s.batch, s.heads, s.queries, s.value_dim),
        dq(s.batch, s.heads, s.queries, s.head_dim), dk(s.batch, s.key_heads, s.keys, s.head_dim),
        dv(s.batch, s.key_heads, s.keys, s.value_dim),
        log_sum_exp(static_cast<std::size_t>(s.batch * s.heads * s.queries)) {
    const LayerView<T> x = layer.view();
    multi_head_attention(x.q, x.k, x.v, out.view(), biases, options, log_sum_exp.data());
    numbers = multi_head_attention_backward(x.q, x.k, x.v, out.view(), log_sum_exp.data(), d_out.view(), dq.view(),
                                            dk.view(), dv.view(), biases, options);
  }
};

template <class T>
bool same_head(const Tensor<T>& a, const Tensor<T>& b, Index item, Index head) {
  return same_numbers(rows_of(a.view(), item, head), rows_of(b.view(), item, head));
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("case: gradients, by the slope of two keys", "", Scalars) {
  const Matrix<TestType> zero = Matrix<TestType>::Zero(2, 3), v{{TestType(0)}, {TestType(1)}};
  const double unit = std::is_same_v<TestType, float> ? 1e-5 : 1e-12;
  const auto of_row = [&](Index row, const AlibiBias& bias, const AttentionOptions& options) {
    Matrix<TestType> d_values = Matrix<TestType>::Zero(2, 1);
    d_values(row, 0) = 1;
    const auto forward = attention(zero, zero, v, bias, options);
    return std::pair{static_cast<double>(forward.values(row, 0)),
                     attention_backward(zero, zero, v, forward, d_values, bias, options)};
  };
  const auto [value, by] = of_row(1, {ln2}, {.causal = true});
  REQUIRE(value == Approx(2.0 / 3).epsilon(unit));
  REQUIRE(by.dslope == Approx(2.0 / 9).epsilon(unit));
  REQUIRE(by.dright_slope == 0);
  // The other slope, of the key ahead: 1/3, and it falls as the slope rises.
  const auto [ahead, by_ahead] = of_row(0, {7, ln2}, {});
  REQUIRE(ahead == Approx(1.0 / 3).epsilon(unit));
  REQUIRE(by_ahead.dright_slope == Approx(-2.0 / 9).epsilon(unit));
  REQUIRE(by_ahead.dslope == 0);
}

TEST_CASE("case: gradients, of grouped heads in one call") {
  const LayerShape shape{1, 4, 2, 6, 6, 3, 3};
  for (const bool causal : {true, false}) {
    const MultiHeadOptions options{.attention = {.causal = causal}};
    std::vector<Matrix<double>> q, k, v, g;
    std::vector<AlibiBias> biases;
    Layer<double> layer{Tensor<double>(1, 4, 6, 3), Tensor<double>(1, 2, 6, 3), Tensor<double>(1, 2, 6, 3)};
    Tensor<double> d_out(1, 4, 6, 3);
    const auto fill = [](Tensor<double>& tensor, std::vector<Matrix<double>>& heads, std::uint64_t seed) {
      for (Index head = 0; head < tensor.view().heads; ++head) {
        heads.push_back(normal_matrix<double>(6, 3, seed, static_cast<std::uint64_t>(head)));
        for (Index row = 0; row < 6; ++row)
          tensor.set_row(0, head, row, [&](Index f) { return heads.back()(row, f); });
      }
    };
    fill(layer.q, q, 71);
    fill(layer.k, k, 72);
    fill(layer.v, v, 73);
    fill(d_out, g, 74);
    for (const double slope : {1.0 / 4, 1.0 / 16, 1.0 / 64, 1.0 / 256}) biases.push_back({slope});
    const Pass<double> pass(shape, layer, d_out, biases, options);

    const auto value = [&] {
      long double sum = 0;
      for (std::size_t h = 0; h < 4; ++h)
        sum += dense_attention<long double>(q[h], k[h / 2], v[h / 2], biases[h], options.attention)
                   .values.cwiseProduct(g[h].cast<long double>())
                   .sum();
      return sum;
    };
    CAPTURE(causal);
    for (std::size_t h = 0; h < 4; ++h) {
      CAPTURE(h);
      REQUIRE(close_to(rows_of(pass.dq.view(), 0, static_cast<Index>(h)), central_differences(q[h], value)));
      REQUIRE(close_to(pass.numbers[h].dslope, central_difference(biases[h].slope, value)));
      REQUIRE(close_to(pass.numbers[h].dright_slope, central_difference(biases[h].right_slope, value)));
    }
    for (std::size_t h = 0; h < 2; ++h) {
      CAPTURE(h);
      REQUIRE(close_to(rows_of(pass.dk.view(), 0, static_cast<Index>(h)), central_differences(k[h], value)));
      REQUIRE(close_to(rows_of(pass.dv.view(), 0, static_cast<Index>(h)), central_differences(v[h], value)));
    }
  }
}

TEMPLATE_LIST_TEST_CASE("case: fully masked, every gradient of the batch item is 0", "", Scalars) {
  const LayerShape shape{3, 4, 2, 5, 6, 3, 2};
  auto layer = normal_layer<TestType>(shape, 75);
  auto d_out = normal_tensor<TestType>(3, 4, 5, 2, 76);
  const std::vector<KeyRange> all{{0, 6}, {0, 6}, {0, 6}}, masked{{0, 6}, {4, 4}, {0, 6}};
  const auto check = [&](const auto& biases) {
    const Pass<TestType> clean(shape, layer, d_out, biases, {.valid_keys = all});
    for (const double thing : {1.0, 1e30, not_a_number}) {  // what the masked item holds does not matter
      auto spoilt = layer;
      auto d_spoilt = d_out;
      for (Index row = 0; row < 6; ++row)
        for (Index head = 0; head < 4; ++head) {
          const auto poison = [&](Index) { return static_cast<TestType>(thing); };
          if (row < 5) spoilt.q.set_row(1, head, row, poison);
          if (row < 5) d_spoilt.set_row(1, head, row, poison);
          if (head < 2) spoilt.k.set_row(1, head, row, poison);
          if (head < 2) spoilt.v.set_row(1, head, row, poison);
        }
      const Pass<TestType> got(shape, spoilt, d_spoilt, biases, {.valid_keys = masked});
      CAPTURE(thing);
      for (Index head = 0; head < 4; ++head) {
        REQUIRE((rows_of(got.dq.view(), 1, head).array() == 0).all());
        if (head < 2) REQUIRE((rows_of(got.dk.view(), 1, head).array() == 0).all());
        if (head < 2) REQUIRE((rows_of(got.dv.view(), 1, head).array() == 0).all());
        const HeadGradients& numbers = got.numbers[static_cast<std::size_t>(4 + head)];
        REQUIRE((numbers.dslope == 0 && numbers.dright_slope == 0 && numbers.dsink == 0));
        for (const Index item : {0, 2}) {
          REQUIRE(same_head(got.dq, clean.dq, item, head));
          if (head < 2) REQUIRE(same_head(got.dk, clean.dk, item, head));
          if (head < 2) REQUIRE(same_head(got.dv, clean.dv, item, head));
          const std::size_t number = static_cast<std::size_t>(4 * item + head);
          REQUIRE(got.numbers[number].dslope == clean.numbers[number].dslope);
          REQUIRE(got.numbers[number].dright_slope == clean.numbers[number].dright_slope);
        }
      }
    }
  };
  std::vector<AlibiBias> slopes;
  std::vector<MeanMask> masks;
  for (std::uint64_t i = 0; i < 12; ++i) {
    slopes.push_back({0.1 * static_cast<double>(i)});
    masks.emplace_back(draw_hashes(LaplaceKernel{2}, 8, 1, Sampling::importance, i));
  }
  check(slopes);
  check(masks);
}

}  // namespace gradient_cases_test
