// SPDX-License-Identifier: MIT
#include "poslsh/attention/blockwise_backward.hpp"

#include "support/catch.hpp"
#include "support/gradients.hpp"

#include <array>
#include <vector>

namespace blockwise_backward_test {

using namespace poslsh::test;
using Catch::Matchers::ContainsSubstring;
using poslsh::attention_backward;
using poslsh::AttentionGradients;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::blockwise_attention;
using poslsh::blockwise_attention_backward;
using poslsh::draw_hashes;
using poslsh::Index;
using poslsh::LaplaceKernel;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::Merge;
using poslsh::NoBias;
using poslsh::PositionHash;
using poslsh::Sampling;

namespace {

const std::vector<Sampling> samplings = {Sampling::independent, Sampling::stratified, Sampling::importance};

const std::vector<AttentionOptions> calls = {
    {},
    {.causal = true, .sink = 0.5},
    {.scale = 1, .causal = true, .key_offset = (Index{1} << 40) + 3},
    {.query_offset = -4, .window_left = 3, .window_right = 2, .softcap = 2, .sink = -1},
    {.causal = true, .query_offset = -3},  // the first queries precede every key
};

template <class T>
AttentionGradients<T> gradients(const Inputs<T>& x, const Matrix<T>& g, const std::vector<PositionHash>& hashes,
                                const AttentionOptions& options, Merge merge) {
  return blockwise_attention_backward(x.q, x.k, x.v, hashes, blockwise_attention(x.q, x.k, x.v, hashes, options, merge), g,
                                      options, merge);
}

}  // namespace

TEST_CASE("Gradients of both merges are those of central differences") {
  Index sinks = 0;
  for (const Merge merge : {Merge::ratio, Merge::mean})
    for (const Sampling sampling : samplings)
      for (const Index samples : {1, 5})
        for (std::size_t call = 0; call < calls.size(); ++call) {
          Inputs<double> x = normal_inputs<double>(7, 9, 3, 2, 91 + call);
          const Matrix<double> g = normal_matrix<double>(7, 2, 91, 3);
          AttentionOptions options = calls[call];
          const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{3}, samples, 5 + call, sampling);
          const auto value = [&] {
            const auto out = merge == Merge::mean
                                 ? dense_mean_of_draws<long double>(x.q, x.k, x.v, hashes, options)
                                 : dense_attention<long double>(x.q, x.k, x.v, MeanOfMasks{hashes}, options);
            return out.values.cwiseProduct(g.cast<long double>()).sum();
          };
          const AttentionGradients<double> got = gradients(x, g, hashes, options, merge);
          CAPTURE(static_cast<int>(merge), static_cast<int>(sampling), samples, call);
          REQUIRE(close_to(got.dq, central_differences(x.q, value)));
          REQUIRE(close_to(got.dk, central_differences(x.k, value)));
          REQUIRE(close_to(got.dv, central_differences(x.v, value)));
          if (options.sink) {
            REQUIRE(close_to(got.dsink, central_difference(*options.sink, value)));
            sinks += got.dsink != 0;
          }
          REQUIRE((got.dslope == 0 && got.dright_slope == 0));
        }
  CHECK(sinks > 10);
}

TEMPLATE_LIST_TEST_CASE("Gradients of the ratio are those under the mean of the masks", "", Scalars) {
  const Inputs<TestType> x = normal_inputs<TestType>(300, 350, 9, 5, 92);
  const Matrix<TestType> g = normal_matrix<TestType>(300, 5, 92, 3);
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{20}, 16, 3);
  for (const bool causal : {true, false}) {
    const AttentionOptions options{.causal = causal, .sink = 0.2};
    const AttentionGradients<TestType> got = gradients(x, g, hashes, options, Merge::ratio);
    const auto exact = dense_gradients<Wide<TestType>>(x.q, x.k, x.v, g, MeanOfMasks{hashes}, options);
    REQUIRE(gradient_fault<TestType>(got, exact, false) == "");
    REQUIRE(same_bits(got, attention_backward(x.q, x.k, x.v, blockwise_attention(x.q, x.k, x.v, hashes, options), g,
                                              MeanMask(hashes), options)));
  }
}

TEMPLATE_LIST_TEST_CASE("Gradients of the mean are the weighted mean of the gradients of the draws", "", Scalars) {
  const Inputs<TestType> x = normal_inputs<TestType>(300, 350, 9, 5, 93);
  const Matrix<TestType> g = normal_matrix<TestType>(300, 5, 93, 3);
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{20}, 8, 3);
  double total = 0;
  for (const PositionHash& hash : hashes) total += hash.weight;
  for (const AttentionOptions& options :
       {AttentionOptions{.sink = 0.2}, AttentionOptions{.causal = true, .query_offset = -20}}) {
    const AttentionGradients<TestType> got = gradients(x, g, hashes, options, Merge::mean);
    AttentionGradients<double> sum{Matrix<double>::Zero(300, 9), Matrix<double>::Zero(350, 9),
                                   Matrix<double>::Zero(350, 5)};
    for (const PositionHash& hash : hashes) {
      // A draw's own attention has no weight that could count against the sink.
      const auto one = gradients(x, g, {{hash.width, hash.shift, 1}}, options, Merge::ratio);
      const double share = hash.weight / total;
      sum.dq += share * one.dq.template cast<double>();
      sum.dk += share * one.dk.template cast<double>();
      sum.dv += share * one.dv.template cast<double>();
      sum.dsink += share * one.dsink;
    }
    const double unit = 100 * static_cast<double>(std::numeric_limits<TestType>::epsilon());
    REQUIRE(distance(got.dq, sum.dq) < unit);
    REQUIRE(distance(got.dk, sum.dk) < unit);
    REQUIRE(distance(got.dv, sum.dv) < unit);
    REQUIRE(got.dsink == Approx(sum.dsink).margin(unit));
  }
}

TEMPLATE_LIST_TEST_CASE("Gradients over one infinite block are those of plain attention", "", Scalars) {
  const Inputs<TestType> x = normal_inputs<TestType>(70, 90, 6, 4, 94);
  const Matrix<TestType> g = normal_matrix<TestType>(70, 4, 94, 3);
  for (const AttentionOptions& options : calls) {
    const AttentionGradients<TestType> plain =
        attention_backward(x.q, x.k, x.v, attention(x.q, x.k, x.v, NoBias{}, options), g, NoBias{}, options);
    const double unit = 50 * static_cast<double>(std::numeric_limits<TestType>::epsilon());
    for (const Merge merge : {Merge::ratio, Merge::mean}) {
      const AttentionGradients<TestType> got = gradients(x, g, {PositionHash{}}, options, merge);
      REQUIRE(distance(got.dq, plain.dq) < unit);
      REQUIRE(distance(got.dk, plain.dk) < unit);
      REQUIRE(distance(got.dv, plain.dv) < unit);
      REQUIRE(got.dsink == Approx(plain.dsink).margin(unit));
    }
  }
}

TEST_CASE("The bits of blockwise gradients do not depend on the threads") {
  const Inputs<float> x = normal_inputs<float>(900, 900, 12, 16, 95);
  const Matrix<float> g = normal_matrix<float>(900, 16, 95, 3);
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{40}, 6, 3);
  for (const Merge merge : {Merge::ratio, Merge::mean}) {
    const AttentionGradients<float> one = gradients(x, g, hashes, {.sink = 1}, merge);
    for (const int threads : {2, 3}) REQUIRE(same_bits(gradients(x, g, hashes, {.sink = 1, .threads = threads}, merge), one));
  }
}

TEST_CASE("NaN in another block leaves no trace in gradients of the mean") {
  Inputs<double> x = normal_inputs<double>(60, 60, 3, 2, 96);
  const Matrix<double> g = normal_matrix<double>(60, 2, 96, 3);
  const std::vector<PositionHash> hashes{{10, 0, 1}, {20, 0, 2}};  // both have a border at 20 and 40
  const AttentionGradients<double> clean = gradients(x, g, hashes, {}, Merge::mean);
  x.k.middleRows(20, 20).setConstant(not_a_number);
  x.v.middleRows(20, 20).setConstant(infinity);
  const AttentionGradients<double> got = gradients(x, g, hashes, {}, Merge::mean);
  for (const Index begin : {0, 40}) {
    REQUIRE(same_numbers(got.dq.middleRows(begin, 20), clean.dq.middleRows(begin, 20)));
    REQUIRE(same_numbers(got.dk.middleRows(begin, 20), clean.dk.middleRows(begin, 20)));
    REQUIRE(same_numbers(got.dv.middleRows(begin, 20), clean.dv.middleRows(begin, 20)));
  }
  REQUIRE(got.dq.middleRows(20, 20).array().isNaN().all());
}

TEMPLATE_LIST_TEST_CASE("Blockwise gradients without tokens or features are legal", "", Scalars) {
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{3}, 4, 3);
  for (const Merge merge : {Merge::ratio, Merge::mean})
    for (const auto& [queries, keys, value_dim] : {std::array<Index, 3>{0, 5, 2}, {5, 0, 2}, {5, 5, 0}, {0, 0, 0}}) {
      const Inputs<TestType> x = normal_inputs<TestType>(queries, keys, 3, value_dim, 97);
      const AttentionGradients<TestType> got =
          gradients(x, Matrix<TestType>(Matrix<TestType>::Ones(queries, value_dim)), hashes, {.sink = 1}, merge);
      REQUIRE(same_numbers(got.dq, Matrix<TestType>(Matrix<TestType>::Zero(queries, 3))));
      REQUIRE(same_numbers(got.dk, Matrix<TestType>(Matrix<TestType>::Zero(keys, 3))));
      REQUIRE(same_numbers(got.dv, Matrix<TestType>(Matrix<TestType>::Zero(keys, value_dim))));
      REQUIRE(got.dsink == 0);
    }
}

TEST_CASE("Errors of blockwise gradients") {
  const Inputs<float> x = normal_inputs<float>(5, 5, 3, 2, 98);
  const std::vector<PositionHash> hashes{{4, 1, 1}};
  const AttentionOutput<float> forward = blockwise_attention(x.q, x.k, x.v, hashes);
  for (const Merge merge : {Merge::ratio, Merge::mean}) {
    const auto message = [&](const Matrix<float>& g, const std::vector<PositionHash>& list,
                             const AttentionOptions& options) -> std::string {
      try {
        static_cast<void>(blockwise_attention_backward(x.q, x.k, x.v, list, forward, g, options, merge));
      } catch (const poslsh::Error& error) {
        return error.what();
      }
      return "no error";
    };
    REQUIRE(message(x.v, hashes, {}) == "no error");
    REQUIRE_THAT(message(x.v, {}, {}), ContainsSubstring("hashes is an empty list"));
    REQUIRE_THAT(message(x.v, {{-1, 0, 1}}, {}), ContainsSubstring("hash width is -1"));
    REQUIRE_THAT(message(x.k, hashes, {}), ContainsSubstring("columns of d_values is 3"));
    REQUIRE_THAT(message(x.v, hashes, {.window_left = -1}), ContainsSubstring("window_left is -1"));
  }
}

}  // namespace blockwise_backward_test
