// SPDX-License-Identifier: MIT

// The extremes of numbers: slopes, offsets, draws, dimensions and scores, against the definition of attention or a closed
// form. Those of sizes are in sizes_test.cpp.

#include "poslsh/attention/backward.hpp"
#include "poslsh/attention/blockwise.hpp"
#include "poslsh/attention/kernel_bias.hpp"
#include "support/catch.hpp"
#include "support/gradients.hpp"
#include "support/heads.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace numbers_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::attention;
using poslsh::attention_backward;
using poslsh::AttentionGradients;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::blockwise_attention;
using poslsh::draw_hashes;
using poslsh::FixedBlocks;
using poslsh::Index;
using poslsh::KernelBias;
using poslsh::LaplaceKernel;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::Merge;
using poslsh::NoBias;
using poslsh::PositionHash;
using poslsh::random_uniform;
using poslsh::Sampling;
using poslsh::Vector;

namespace {

template <class T>
constexpr double epsilon = static_cast<double>(std::numeric_limits<T>::epsilon());
template <class T>
constexpr T top = std::numeric_limits<T>::max();

template <class T>
bool finite(const AttentionOutput<T>& output) {
  return output.values.allFinite() && output.log_sum_exp.allFinite();
}
template <class T>
bool finite(const AttentionGradients<T>& gradients) {
  return gradients.dq.allFinite() && gradients.dk.allFinite() && gradients.dv.allFinite() &&
         std::isfinite(gradients.dslope) && std::isfinite(gradients.dright_slope);
}

/// The mean of V, summed in a wider type.
template <class T>
Matrix<Wide<T>> mean_of(const Matrix<T>& v) {
  return v.template cast<Wide<T>>().colwise().mean();
}

/// Calls check(output, name) for every way to attend with equal weights.
template <class T, class Check>
void each_unit_weight(const Matrix<T>& q, const Matrix<T>& k, const Matrix<T>& v, const AttentionOptions& options,
                      Check&& check) {
  const std::vector<PositionHash> hashes(3);  // infinite blocks of weight 1
  check(attention(q, k, v, NoBias{}, options), "NoBias");
  check(attention(q, k, v, AlibiBias{0}, options), "AlibiBias");
  check(attention(q, k, v, MeanMask(hashes), options), "MeanMask");
  check(blockwise_attention(q, k, v, hashes, options), "draws, ratio");
  check(blockwise_attention(q, k, v, hashes, options, Merge::mean), "draws, mean");
}

}  // namespace

// --- Slopes, offsets, draws, dimensions ----------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("numbers: slopes from 2^-30 to 2^30, of either sign", "", Scalars) {
  const auto [q, k, v] = normal_inputs<TestType>(30, 420, 4, 3, 11);
  for (const int exponent : {-30, -20, -12, -8, -4, -2, 0, 1, 3, 6, 10, 20, 30})
    for (const AttentionOptions& options : {AttentionOptions{.causal = true}, AttentionOptions{.query_offset = 200}}) {
      const double slope = std::exp2(exponent);
      CAPTURE(exponent, options.causal);
      for (const AlibiBias& bias : {AlibiBias{slope}, AlibiBias{-slope}, AlibiBias{slope, 1 / slope}}) {
        CAPTURE(bias.slope, bias.right_slope);
        REQUIRE(fault(attention(q, k, v, bias, options), q, k, v, bias, options) == "");
      }
      const AlibiBias bias{slope};
      const auto forward = attention(q, k, v, bias, options);
      const Matrix<TestType> d_values = v.topRows(30);
      REQUIRE(gradient_fault(attention_backward(q, k, v, forward, d_values, bias, options),
                             dense_gradients<Wide<TestType>>(q, k, v, d_values, bias, options), true) == "");
      AttentionOptions skipping = options;
      skipping.tolerance = 1e-6;
      REQUIRE(distance(attention(q, k, v, bias, skipping).values, forward.values) < 1e-5);

      const KernelBias kernel{LaplaceKernel{1 / slope}};
      REQUIRE(fault(attention(q, k, v, kernel, options), q, k, v, kernel, options) == "");
      const std::vector<PositionHash> hashes = draw_hashes(kernel.kernel, 12, 1);
      const auto exact = dense_attention<Wide<TestType>>(q, k, v, MeanOfMasks{hashes}, options);
      const auto naive = dense_attention<TestType>(q, k, v, MeanOfMasks{hashes}, options);
      REQUIRE(fault(attention(q, k, v, MeanMask(hashes), options), exact, naive) == "");
      REQUIRE(fault(blockwise_attention(q, k, v, hashes, options), exact, naive) == "");
    }
}

TEMPLATE_LIST_TEST_CASE("numbers: offsets to 2^52", "", Scalars) {
  const Index queries = 40, keys = 110;
  const auto [q, k, v] = normal_inputs<TestType>(queries, keys, 4, 3, 21);
  const Matrix<TestType> g = v.topRows(queries);
  const Index limit = Index{1} << 52;
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{20}, 24, 2);
  for (const bool causal : {true, false}) {
    const auto at = [&](Index shift) {
      return AttentionOptions{.causal = causal, .key_offset = shift, .query_offset = shift + 50, .window_left = 45};
    };
    for (const Index shift : {Index{1} << 31, (Index{1} << 32) + 64, -(Index{1} << 53) / 3 / 64 * 64, limit - 128, -limit}) {
      CAPTURE(shift, causal);
      const auto same = [&, &q = q, &k = k, &v = v](const auto& bias) {  // the bits of offset 0, gradients included
        const auto base = attention(q, k, v, bias, at(0)), moved = attention(q, k, v, bias, at(shift));
        REQUIRE(same_bits(moved, base));
        REQUIRE(same_bits(attention_backward(q, k, v, moved, g, bias, at(shift)), attention_backward(q, k, v, base, g, bias, at(0))));
      };
      same(NoBias{});
      same(AlibiBias{0.1, 0.02});
      same(KernelBias{LaplaceKernel{8}});
      same(FixedBlocks{64});
      const auto exact = dense_attention<Wide<TestType>>(q, k, v, MeanOfMasks{hashes}, at(shift));
      const auto naive = dense_attention<TestType>(q, k, v, MeanOfMasks{hashes}, at(shift));
      REQUIRE(fault(attention(q, k, v, MeanMask(hashes), at(shift)), exact, naive) == "");
      REQUIRE(fault(blockwise_attention(q, k, v, hashes, at(shift)), exact, naive) == "");
      REQUIRE(fault(blockwise_attention(q, k, v, hashes, at(shift), Merge::mean),
                    dense_mean_of_draws<Wide<TestType>>(q, k, v, hashes, at(shift)),
                    dense_mean_of_draws<TestType>(q, k, v, hashes, at(shift))) == "");
    }
  }
  // The last offset there is, and queries 2^52 away from their keys.
  const AttentionOptions last{.key_offset = limit, .query_offset = limit}, apart{.key_offset = -limit / 2, .query_offset = limit / 2};
  REQUIRE(same_bits(attention(q, k, v, AlibiBias{0.1}, last), attention(q, k, v, AlibiBias{0.1}, {.query_offset = 0})));
  const auto far = attention(q, k, v, AlibiBias{0.125}, apart), near = attention(q, k, v, AlibiBias{0.125}, {.query_offset = keys});
  REQUIRE(same_numbers(far.values, near.values));
  const double between = 0.125 * static_cast<double>(limit - keys);
  REQUIRE(distance(far.log_sum_exp, near.log_sum_exp.array() - between) <= between * 0x1p-52);
}

TEMPLATE_LIST_TEST_CASE("numbers: from one draw to 10^5", "", Scalars) {
  const Index queries = 5, keys = 8, first = 3;  // the first query's position
  const auto [q, k, v] = normal_inputs<TestType>(queries, keys, 3, 2, 31);
  for (const Sampling sampling : {Sampling::importance, Sampling::independent})
    for (const Index samples : {1, 2, 3, 10, 97, 1000, 10000, 100000}) {
      if (samples > 1000 && sampling == Sampling::independent) continue;
      const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{4}, samples, 7, sampling);
      const MeanMask mask(hashes);
      CAPTURE(samples);
      Matrix<double> weights(queries, keys);
      for (Index i = 0; i < queries; ++i)
        for (Index j = 0; j < keys; ++j) {
          long double sum = 0;
          for (const PositionHash& hash : hashes)
            if (hash.bin(first + i) == hash.bin(j)) sum += static_cast<long double>(hash.weight);
          weights(i, j) = static_cast<double>(sum / static_cast<long double>(samples));
        }
      const Matrix<double> dense = mask.dense(keys).middleRows(first, queries);
      for (Index i = 0; i < queries; ++i)
        for (Index j = 0; j < keys; ++j)
          for (const double got : {mask.weight(first + i, j), dense(i, j)})
            REQUIRE(std::abs(got - weights(i, j)) <= 1e-12 * weights(i, j));
      const WeightMatrix exact{weights, first, 0};
      // Sums over the draws are in double, whatever the type: half a unit a term.
      const double unit = 8 * epsilon<TestType> + static_cast<double>(samples) * 0x1p-53;
      const auto expected = dense_attention<Wide<TestType>>(q, k, v, exact);
      for (const auto& got : {attention(q, k, v, mask), blockwise_attention(q, k, v, hashes)}) {
        REQUIRE(distance(got.values, expected.values) < unit);
        REQUIRE(distance(got.log_sum_exp, expected.log_sum_exp) < unit);
      }
      // Constant values come out as they went in, however many draws are joined.
      const Matrix<TestType> constant = Matrix<TestType>::Constant(keys, 2, TestType(0.7));
      for (const Merge how : {Merge::ratio, Merge::mean})
        REQUIRE(distance(blockwise_attention(q, k, constant, hashes, {}, how).values, constant.topRows(queries)) < unit);
      if (samples <= 10000)
        REQUIRE(distance(blockwise_attention(q, k, v, hashes, {}, Merge::mean).values,
                         dense_mean_of_draws<Wide<TestType>>(q, k, v, hashes).values) < unit);
    }
}

TEMPLATE_LIST_TEST_CASE("numbers: dimensions from 1 to 1024, forward and backward", "", Scalars) {
  const std::vector<Index> dimensions{1, 2, 3, 7, 8, 15, 16, 17, 63, 64, 65, 80, 128, 255, 256, 257, 300, 512, 1000, 1024};
  const auto check = [](Index head_dim, Index value_dim, bool causal) {
    const auto [q, k, v] = normal_inputs<TestType>(14, 17, head_dim, value_dim, 41);
    const Matrix<TestType> g = normal_matrix<TestType>(14, value_dim, 42);
    const AlibiBias bias{0.2, 0.1};
    const AttentionOptions options{.causal = causal};
    CAPTURE(head_dim, value_dim, causal);
    const auto forward = attention(q, k, v, bias, options);
    REQUIRE(fault(forward, q, k, v, bias, options) == "");
    REQUIRE(gradient_fault(attention_backward(q, k, v, forward, g, bias, options),
                           dense_gradients<Wide<TestType>>(q, k, v, g, bias, options), true) == "");
  };
  for (std::size_t i = 0; i < dimensions.size(); ++i)
    for (const bool causal : {true, false}) {
      check(dimensions[i], dimensions[i], causal);
      check(dimensions[i], dimensions[dimensions.size() - 1 - i], causal);
    }
}

// --- Scores ----------------------------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("numbers: scores that rise or fall along a row, by up to 1e4 a key", "", Scalars) {
  const Index n = 1500, queries = 9;
  const Matrix<TestType> q = Matrix<TestType>::Ones(queries, 1), v = normal_matrix<TestType>(n, 3, 51);
  for (const double step : {0x1p-7, 0x1p-4, 1.0, 1e4})  // every score is exact
    for (const bool rising : {true, false}) {
      Matrix<TestType> k(n, 1);
      Matrix<long double> expected = Matrix<long double>::Zero(1, 3);
      long double total = 0;
      for (Index j = 0; j < n; ++j) {
        const double score = -step * static_cast<double>(rising ? n - 1 - j : j);
        k(j, 0) = static_cast<TestType>(score);
        const long double weight = std::exp(static_cast<long double>(score));
        expected += weight * v.row(j).template cast<long double>();
        total += weight;
      }
      expected /= total;
      for (const Index query_offset : {Index{0}, n / 2, n - queries})  // keys are visited from the query outwards
        each_unit_weight<TestType>(q, k, v, {.scale = 1, .query_offset = query_offset},
                                   [&](const AttentionOutput<TestType>& got, const char* name) {
                                     CAPTURE(step, rising, query_offset, name);
                                     REQUIRE(distance(got.values, expected.replicate(queries, 1)) < 16 * epsilon<TestType>);
                                     REQUIRE((got.log_sum_exp.array() - static_cast<double>(std::log(total))).abs().maxCoeff() <
                                             16 * epsilon<TestType>);
                                   });
      // One key has all the weight: its value comes out as it went in.
      if (step == 1e4) REQUIRE(same_numbers(attention(q, k, v, NoBias{}, {.scale = 1}).values,
                                            v.row(rising ? n - 1 : 0).replicate(queries, 1)));
      const auto forward = attention(q, k, v, NoBias{}, {.scale = 1});
      const Matrix<TestType> g = v.topRows(queries);
      REQUIRE(gradient_fault(attention_backward(q, k, v, forward, g, NoBias{}, {.scale = 1}),
                             dense_gradients<Wide<TestType>>(q, k, v, g, NoBias{}, {.scale = 1}), false) == "");
    }
}

TEMPLATE_LIST_TEST_CASE("numbers: all scores equal, up to the limit: the mean of the values", "", Scalars) {
  const Index n = 900;
  const Matrix<TestType> v = normal_matrix<TestType>(n, 3, 52), q = Matrix<TestType>::Ones(7, 1);
  for (const TestType score : {TestType(0), TestType(-1e4), TestType(1e4), TestType(1e30), -top<TestType>, top<TestType>})
    each_unit_weight<TestType>(q, Matrix<TestType>::Constant(n, 1, score), v, {.scale = 1},
                               [&](const AttentionOutput<TestType>& got, const char* name) {
                                 CAPTURE(score, name);
                                 REQUIRE(distance(got.values, mean_of(v).replicate(7, 1)) < 8 * epsilon<TestType>);
                                 const double expected = static_cast<double>(score) + std::log(static_cast<double>(n));
                                 REQUIRE((got.log_sum_exp.array() - expected).abs().maxCoeff() <=
                                         epsilon<TestType> * (8 + std::abs(expected)));
                               });
}

TEMPLATE_LIST_TEST_CASE("numbers: finite scores at the limit give finite outputs", "", Scalars) {
  // The largest score at four keys of 900, in several tiles; the others as far below as numbers go.
  const Index n = 900;
  const Matrix<TestType> v = normal_matrix<TestType>(n, 3, 53), q = Matrix<TestType>::Ones(7, 2);
  const TestType high = top<TestType> / 4;
  for (const TestType low : {-high, TestType(0), TestType(-1)}) {
    Matrix<TestType> k = Matrix<TestType>::Constant(n, 2, low), best(4, 3);
    const std::array<Index, 4> places{3, 383, 384, 899};
    for (std::size_t i = 0; i < 4; ++i) {
      k.row(places[i]).setConstant(high);
      best.row(static_cast<Index>(i)) = v.row(places[i]);
    }
    each_unit_weight<TestType>(q, k, v, {.scale = 2}, [&](const AttentionOutput<TestType>& got, const char* name) {
      CAPTURE(low, name);
      REQUIRE(finite(got));
      REQUIRE(distance(got.values, mean_of(best).replicate(7, 1)) < 8 * epsilon<TestType>);
      REQUIRE(got.log_sum_exp[6] == Approx(static_cast<double>(high) * 4).epsilon(1e-15));
    });
    for (const AttentionOptions& options : {AttentionOptions{.scale = 1, .causal = true},
                                            AttentionOptions{.scale = 1, .sink = 1e300},
                                            AttentionOptions{.scale = 1, .softcap = 1e30},
                                            AttentionOptions{.scale = 1, .tolerance = 1e-6}}) {
      const auto forward = attention(q, k, v, AlibiBias{0.1}, options);
      REQUIRE(finite(forward));
      REQUIRE(finite(attention_backward(q, k, v, forward, v.topRows(7), AlibiBias{0.1}, options)));
      const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{50}, 8, 3);
      REQUIRE(finite(blockwise_attention(q, k, v, hashes, options)));
      REQUIRE(finite(blockwise_attention(q, k, v, hashes, options, Merge::mean)));
    }
  }
}

TEMPLATE_LIST_TEST_CASE("numbers: products beyond the limit are infinite scores", "", Scalars) {
  const Index n = 500;
  const TestType huge = std::sqrt(top<TestType>) * 4;
  auto [q, k, v] = normal_inputs<TestType>(n, n, 2, 3, 54);
  q.col(0).setConstant(huge);
  k.col(0).setZero();
  const AttentionOptions options{.causal = true};
  const auto clean = attention(q, k, v, AlibiBias{0.01}, options);
  const Index spoilt = 400;

  Matrix<TestType> below = k, above = k;
  below(spoilt, 0) = -huge;  // -infinity: weight 0, as if the key were not there
  const auto got = attention(q, below, v, AlibiBias{0.01}, options);
  Matrix<double> weights(n, n);
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < n; ++j) weights(i, j) = j == spoilt ? 0 : std::exp(AlibiBias{0.01}.log_weight(i, j));
  const WeightMatrix without{weights};
  q.col(0).setZero();  // the oracle need not overflow
  REQUIRE(fault(got, dense_attention<Wide<TestType>>(q, k, v, without, options), dense_attention<TestType>(q, k, v, without, options)) == "");

  q.col(0).setConstant(huge);
  above(spoilt, 0) = huge;  // +infinity: NaN in the rows that see it, the others untouched
  const auto spoiled = attention(q, above, v, AlibiBias{0.01}, options);
  REQUIRE(same_numbers(spoiled.values.topRows(spoilt), clean.values.topRows(spoilt)));
  REQUIRE(same_numbers(spoiled.log_sum_exp.head(spoilt), clean.log_sum_exp.head(spoilt)));
  REQUIRE(spoiled.values.bottomRows(n - spoilt).array().isNaN().all());

  // A cap makes either finite, and as good as the largest score.
  for (const Matrix<TestType>& keys : {below, above}) {
    const auto capped = attention(q, keys, v, AlibiBias{0.01}, {.causal = true, .softcap = 5});
    Matrix<TestType> moderate = keys;
    moderate(spoilt, 0) = keys(spoilt, 0) / huge * 1000 / huge;
    REQUIRE(finite(capped));
    REQUIRE(distance(capped.values, attention(q, moderate, v, AlibiBias{0.01}, {.causal = true, .softcap = 5}).values) <
            8 * epsilon<TestType>);
  }
}

// --- Small numbers and long rows -----------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("numbers: denormal inputs", "", Scalars) {
  const TestType least = std::numeric_limits<TestType>::denorm_min();
  const Index n = 600;
  const bool single = std::is_same_v<TestType, float>;
  Matrix<TestType> tiny(n, 2), k(n, 2), q(n, 2), v = normal_matrix<TestType>(n, 3, 61);
  for (Index i = 0; i < tiny.size(); ++i) {
    const int count = static_cast<int>(i % 7);
    tiny.data()[i] = least * static_cast<TestType>(count);
    k.data()[i] = std::ldexp(tiny.data()[i], single ? 20 : 48);
    q.data()[i] = std::ldexp(static_cast<TestType>(count - 3) / 2, single ? 0 : 897);
  }
  REQUIRE(std::fpclassify(k.maxCoeff()) == FP_SUBNORMAL);
  // Their products are 0.
  REQUIRE(distance(attention(tiny, tiny, v, NoBias{}).values, mean_of(v).replicate(n, 1)) < 8 * epsilon<TestType>);
  // Beside huge factors they count in full.
  const AttentionOptions options{.scale = 0x1p126};
  const auto exact = dense_attention<Wide<TestType>>(q, k, v, NoBias{}, options);
  REQUIRE(exact.largest_score > 1);
  REQUIRE(fault(attention(q, k, v, NoBias{}, options), exact, dense_attention<TestType>(q, k, v, NoBias{}, options)) == "");
  // As values they are averaged to within their own unit.
  const Matrix<TestType> zero = Matrix<TestType>::Zero(20, 2);
  const Matrix<TestType> values = tiny * TestType(5);
  for (const auto& got : {attention(zero, tiny, values, NoBias{}), attention(zero, tiny, values, MeanMask(std::vector<PositionHash>(2)))}) {
    const Matrix<long double> mean = values.template cast<long double>().colwise().mean();
    REQUIRE((got.values.template cast<long double>() - mean.replicate(20, 1)).cwiseAbs().maxCoeff() <= static_cast<long double>(least));
  }
}

TEMPLATE_LIST_TEST_CASE("numbers: zeros of either sign are one number", "", Scalars) {
  const Index n = 450;
  const auto [q, k, v] = normal_inputs<TestType>(30, n, 4, 3, 62);
  const auto with_zeros = [](Matrix<TestType> rows, Index step, TestType zero) {
    for (Index i = 0; i < rows.size(); i += step) rows.data()[i] = i % (2 * step) == 0 ? zero : TestType(0);
    return rows;
  };
  const auto run = [&, &q = q, &k = k, &v = v](TestType zero) {
    return attention(with_zeros(q, 2, zero), with_zeros(k, 3, zero), with_zeros(v, 5, zero), AlibiBias{0.1});
  };
  const AttentionOutput<TestType> plus = run(TestType(0)), minus = run(-TestType(0));
  REQUIRE((plus.values.array() == minus.values.array()).all());
  REQUIRE(same_numbers(plus.log_sum_exp, minus.log_sum_exp));
  const Matrix<TestType> negative = Matrix<TestType>::Constant(n, 3, -TestType(0));
  REQUIRE((attention(q, k, negative, AlibiBias{-0.0}).values.array() == 0).all());
}

TEMPLATE_LIST_TEST_CASE("numbers: uniform weights over 10^5 keys: the mean of the values to a few units", "", Scalars) {
  const Index n = 100000, features = 6;
  Matrix<TestType> v(n, features);  // uniform draws, an offset far larger than them, constants
  for (Index j = 0; j < n; ++j)
    for (Index f = 0; f < features; ++f) {
      const double draw = random_uniform(63, static_cast<std::uint64_t>(f), static_cast<std::uint64_t>(j));
      v(j, f) = static_cast<TestType>(f < 3 ? draw : f == 3 ? 1000 + draw : f == 4 ? 0.1 : -7.3);
    }
  const Matrix<Wide<TestType>> mean = mean_of(v);
  // Tiles of 384 keys are summed one by one, then their sums. The rounding of terms of all sizes averages out; that of
  // equal terms goes one way: what it may reach is half a unit of each partial sum, 384 / 2 and n / 384 / 2 on average.
  const double worst = (384.0 / 2 + static_cast<double>(n) / 384 / 2) / 2;
  for (const Index queries : {1, 8})
    each_unit_weight<TestType>(Matrix<TestType>::Zero(queries, 1), Matrix<TestType>::Ones(n, 1), v, {},
                               [&](const AttentionOutput<TestType>& got, const char* name) {
                                 for (Index f = 0; f < features; ++f) {
                                   const double exact = static_cast<double>(mean(0, f));
                                   const double units = distance(got.values.col(f), mean.col(f).replicate(queries, 1)) /
                                                        (std::abs(exact) * epsilon<TestType>);
                                   CAPTURE(queries, name, f);
                                   REQUIRE(units <= (f < 4 ? 4 : worst));
                                 }
                                 REQUIRE(distance(got.log_sum_exp, Vector<double>::Constant(queries, std::log(1e5))) < 4 * epsilon<TestType>);
                               });
}

}  // namespace numbers_test
