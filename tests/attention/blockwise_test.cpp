// SPDX-License-Identifier: MIT
#include "poslsh/attention/blockwise.hpp"
#include "poslsh/attention/blockwise_backward.hpp"

#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random_matrix.hpp"

#include <mutex>
#include <string>
#include <vector>

namespace blockwise_test {

using namespace poslsh::test;
using poslsh::attention;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::blockwise_attention;
using poslsh::draw_hashes;
using poslsh::Index;
using poslsh::KeyRange;
using poslsh::LaplaceKernel;
using poslsh::Matrix;
using poslsh::MeanMask;
using poslsh::Merge;
using poslsh::NoBias;
using poslsh::PositionHash;
using poslsh::Sampling;
using poslsh::Vector;

namespace {

const std::vector<Sampling> samplings = {Sampling::independent, Sampling::stratified, Sampling::importance};

/// A head of 70 queries and 90 keys and the ways to call it.
constexpr Index queries = 70, keys = 90;
template <class T>
Inputs<T> head(std::uint64_t seed = 81) {
  return normal_inputs<T>(queries, keys, 6, 4, seed);
}
const std::vector<AttentionOptions> calls = {
    {},
    {.causal = true, .sink = 0.5},
    {.scale = 1, .causal = true, .key_offset = (Index{1} << 40) + 3},
    {.query_offset = -40, .window_left = 9, .window_right = 4, .softcap = 2},
    {.causal = true, .query_offset = -35},  // half of the queries precede every key
};

template <class T>
double rounding() {
  return 20 * static_cast<double>(std::numeric_limits<T>::epsilon());
}

/// Softmax attention as a user may write it, with his own loops.
struct NaiveKernel {
  template <class Q, class K, class V>
  AttentionOutput<typename Q::Scalar> operator()(const Q& q, const K& k, const V& v,
                                                 const AttentionOptions& options) const {
    auto dense = dense_attention<typename Q::Scalar>(q, k, v, NoBias{}, options);
    return {dense.values, dense.log_sum_exp.template cast<double>()};
  }
};

}  // namespace

// --- The ratio ---------------------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE(
    "The ratio is attention under the mean of the masks, for every sampling and number of draws", "", Scalars) {
  const auto [q, k, v] = head<TestType>();
  for (const Sampling sampling : samplings)
    for (const Index samples : {1, 2, 7, 64, 512})
      for (const AttentionOptions& options : calls) {
        if (samples == 512 && options.softcap) continue;  // for speed
        const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{9}, samples, 3, sampling);
        const AttentionOutput<TestType> got = blockwise_attention(q, k, v, hashes, options);
        const double draws = std::sqrt(static_cast<double>(samples));  // a sum over draws rounds once a draw
        CAPTURE(static_cast<int>(sampling), samples, options.causal, options.key_offset);
        REQUIRE(fault(got, q, k, v, MeanOfMasks{hashes}, options, 2 + draws) == "");
        const AttentionOutput<TestType> swept = attention(q, k, v, MeanMask(hashes), options);
        REQUIRE(distance(got.values, swept.values) < draws * rounding<TestType>());
        REQUIRE(distance(got.log_sum_exp, swept.log_sum_exp) < draws * rounding<TestType>());
      }
}

TEMPLATE_LIST_TEST_CASE("The ratio from an explicit matrix Mt o A", "", Scalars) {
  const auto [q, k, v] = head<TestType>();
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{9}, 16, 3);
  const AttentionOptions options{.query_offset = keys - queries};
  WeightMatrix mean{Matrix<double>::Zero(queries, keys), *options.query_offset};
  for (const PositionHash& hash : hashes)
    for (Index i = 0; i < queries; ++i)
      for (Index j = 0; j < keys; ++j)
        if (hash.block(i + *options.query_offset).contains(j)) mean.weights(i, j) += hash.weight / 16;
  REQUIRE(fault(blockwise_attention(q, k, v, hashes), q, k, v, mean, options) == "");
  REQUIRE(fault(attention(q, k, v, MeanMask(hashes)), q, k, v, mean, options) == "");
}

TEMPLATE_LIST_TEST_CASE("Weights of any size count in full", "", Scalars) {
  // A far key under a tiny weight whose score makes up for it.
  for (const double tiny : {1e-3, 1e-20, 1e-40, 1e-60, 1e-300}) {
    const std::vector<PositionHash> hashes{{1, 0, 1}, {4, 0, tiny}, {1, 0, 0.5}};
    const Matrix<TestType> q = Matrix<TestType>::Ones(4, 1), v = normal_matrix<TestType>(4, 3, 5);
    Matrix<TestType> k = Matrix<TestType>::Zero(4, 1);
    k(0, 0) = static_cast<TestType>(-std::log(tiny));
    const AttentionOptions options{.scale = 1};
    CAPTURE(tiny);
    CHECK(fault(blockwise_attention(q, k, v, hashes, options), q, k, v, MeanOfMasks{hashes}, options) == "");
    CHECK(fault(attention(q, k, v, MeanMask(hashes), options), q, k, v, MeanOfMasks{hashes}, options) == "");
  }
  // A factor common to all weights moves log_sum_exp only.
  const auto [q, k, v] = head<TestType>();
  std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{9}, 16, 3);
  for (const Merge merge : {Merge::ratio, Merge::mean}) {
    const AttentionOutput<TestType> base = blockwise_attention(q, k, v, hashes, {}, merge);
    std::vector<PositionHash> large = hashes;
    for (PositionHash& hash : large) hash.weight *= 1e200;
    const AttentionOutput<TestType> scaled = blockwise_attention(q, k, v, large, {}, merge);
    REQUIRE(distance(scaled.values, base.values) < rounding<TestType>() + 1e-12);
    REQUIRE(distance(scaled.log_sum_exp, Vector<double>(base.log_sum_exp.array() + std::log(1e200))) < 1e-10);
  }
}

TEMPLATE_LIST_TEST_CASE("One infinite block is plain softmax attention", "", Scalars) {
  const auto [q, k, v] = head<TestType>();
  const std::vector<PositionHash> everything{PositionHash{}};
  for (const AttentionOptions& options : calls) {
    const AttentionOutput<TestType> plain = attention(q, k, v, NoBias{}, options);
    for (const Merge merge : {Merge::ratio, Merge::mean}) {
      const AttentionOutput<TestType> got = blockwise_attention(q, k, v, everything, options, merge);
      REQUIRE(distance(got.values, plain.values) < rounding<TestType>());
      REQUIRE(distance(got.log_sum_exp, plain.log_sum_exp) < rounding<TestType>());
    }
    REQUIRE(fault(attention(q, k, v, MeanMask(everything), options), q, k, v, NoBias{}, options) == "");
  }
}

TEST_CASE("The ratio tends to exact ALiBi attention, the mean does not") {
  const auto [q, k, v] = normal_inputs<double>(60, 60, 8, 4, 82);
  const Matrix<double> exact = attention(q, k, v, poslsh::AlibiBias{0.1}).values;
  const auto error = [&, &q = q, &k = k, &v = v](Index samples, Merge merge) {
    const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{10}, samples, 1);
    return distance(blockwise_attention(q, k, v, hashes, {}, merge).values, exact);
  };
  const double few = error(8, Merge::ratio), many = error(2048, Merge::ratio);
  CAPTURE(few, many, error(2048, Merge::mean));
  REQUIRE(many < 0.05 * few);
  REQUIRE(error(2048, Merge::mean) > 10 * many);
}

// --- The mean ----------------------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("The mean of the draws is what its definition says, with the ratio's log-sum-exp", "",
                   Scalars) {
  const auto [q, k, v] = head<TestType>();
  for (const Sampling sampling : samplings)
    for (const Index samples : {1, 2, 7, 64})
      for (const AttentionOptions& options : calls) {
        const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{9}, samples, 4, sampling);
        const AttentionOutput<TestType> got = blockwise_attention(q, k, v, hashes, options, Merge::mean);
        CAPTURE(static_cast<int>(sampling), samples, options.causal, options.key_offset);
        REQUIRE(fault(got, dense_mean_of_draws<Wide<TestType>>(q, k, v, hashes, options),
                      dense_mean_of_draws<TestType>(q, k, v, hashes, options)) == "");
        REQUIRE(same_numbers(got.log_sum_exp, blockwise_attention(q, k, v, hashes, options).log_sum_exp));
      }
}

TEST_CASE("In the mean, a draw without a visible key counts as zero") {
  // Query 0 stands at -2, before both keys; blocks {-2, -1}, {0, 1} hide them, blocks {-3 .. 0} show the
  // first.
  const Matrix<double> q = Matrix<double>::Zero(4, 1), k = Matrix<double>::Zero(2, 1),
                       v = Matrix<double>::Ones(2, 1);
  const std::vector<PositionHash> hashes{{2, 0, 1}, {4, -3, 3}};
  const AttentionOutput<double> got = blockwise_attention(q, k, v, hashes, {}, Merge::mean);
  REQUIRE(got.values(0, 0) == 0.75);
  REQUIRE(got.values(1, 0) == 0.75);
  REQUIRE(got.values(2, 0) == 1);
  REQUIRE(got.log_sum_exp[0] == Approx(std::log(1.5)));
  REQUIRE(blockwise_attention(q, k, v, hashes).values(0, 0) == 1);
}

TEMPLATE_LIST_TEST_CASE("Queries that see no key in any draw are 0, with log-sum-exp -inf or the sink", "", Scalars) {
  const auto [q, k, v] = head<TestType>();
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{3}, 8, 1);
  for (const Merge merge : {Merge::ratio, Merge::mean})
    for (const double sink : {-infinity, 0.0, 100.0}) {
      const AttentionOptions options{.causal = true, .query_offset = -queries, .sink = sink};
      const AttentionOutput<TestType> got = blockwise_attention(q, k, v, hashes, options, merge);
      REQUIRE((got.values.array() == 0).all());
      REQUIRE((got.log_sum_exp.array() == sink).all());
      const AttentionOutput<TestType> no_keys =
          blockwise_attention(q, k.topRows(0), v.topRows(0), hashes, {.sink = sink}, merge);
      REQUIRE((no_keys.values.array() == 0).all());
      REQUIRE((no_keys.log_sum_exp.array() == sink).all());
      REQUIRE(blockwise_attention(q.topRows(0), k, v, hashes, {}, merge).values.rows() == 0);
    }
}

// --- The short-context kernel ------------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("Any short-context kernel gives the same result", "", Scalars) {
  const auto [q, k, v] = head<TestType>();
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{9}, 12, 5);
  for (const AttentionOptions& options : calls)
    for (const Merge merge : {Merge::ratio, Merge::mean}) {
      const auto own = blockwise_attention(q, k, v, hashes, options, merge);
      const auto naive = blockwise_attention(q, k, v, hashes, options, merge, NaiveKernel{});
      REQUIRE(distance(naive.values, own.values) < rounding<TestType>());
      REQUIRE(distance(naive.log_sum_exp, own.log_sum_exp) < rounding<TestType>());
    }
}

TEST_CASE("The kernel is called once a draw and block, with the block's rows and absolute offsets") {
  // The first feature of q and k, the only one of v, is the row's position.
  Matrix<double> q = Matrix<double>::Zero(queries, 2), k = Matrix<double>::Zero(keys, 2), v(keys, 1);
  for (const AttentionOptions& base : calls)
    for (const int threads : {1, 3}) {
      AttentionOptions options = base;
      options.threads = threads;
      const Index first = first_query(options, queries, keys);
      for (Index i = 0; i < queries; ++i) q(i, 0) = static_cast<double>(first + i);
      for (Index j = 0; j < keys; ++j) k(j, 0) = v(j, 0) = static_cast<double>(options.key_offset + j);
      const PositionHash hash{11.5, 3.25, 2};
      Eigen::ArrayXXi covered = Eigen::ArrayXXi::Zero(queries, keys);
      Index wrong = 0;
      std::mutex mutex;
      const auto recorder = [&](const auto& block_q, const auto& block_k, const auto& block_v,
                                const AttentionOptions& local) {
        const std::scoped_lock lock(mutex);
        wrong += block_q.rows() == 0 || block_k.rows() == 0 || local.threads != 1 || local.sink.has_value();
        wrong += local.scale != options.scale.value_or(1 / std::sqrt(2.0)) || local.causal != options.causal;
        wrong += local.window_left != options.window_left || local.softcap != options.softcap;
        wrong += block_q(0, 0) != static_cast<double>(local.query_offset.value());
        wrong += block_k(0, 0) != static_cast<double>(local.key_offset);
        wrong += block_k.col(0) != block_v.col(0);
        const KeyRange block = hash.block(*local.query_offset);
        for (Index i = 0; i < block_q.rows(); ++i)
          for (Index j = 0; j < block_k.rows(); ++j) {
            const Index query = static_cast<Index>(block_q(i, 0)), key = static_cast<Index>(block_k(j, 0));
            wrong += !block.contains(query) || !block.contains(key);
            ++covered(query - first, key - options.key_offset);
          }
        return attention(block_q, block_k, block_v, NoBias{}, local);
      };
      const std::vector<PositionHash> hashes{hash};
      static_cast<void>(blockwise_attention(q, k, v, hashes, options, Merge::ratio, recorder));
      REQUIRE(wrong == 0);
      REQUIRE(covered.maxCoeff() == 1);
      const auto needed = visible_pairs(queries, keys, MeanMask(hashes), options);
      REQUIRE((covered == 1 || !needed).all());
    }
}

TEST_CASE("What a kernel throws reaches the caller, on any thread") {
  const auto [q, k, v] = head<float>();
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{3}, 4, 1);
  const auto kernel = [](const auto&, const auto&, const auto&,
                         const AttentionOptions&) -> AttentionOutput<float> {
    throw std::runtime_error("no memory on the device");
  };
  for (const int threads : {1, 4})
    REQUIRE_THROWS_WITH(blockwise_attention(q, k, v, hashes, {.threads = threads}, Merge::ratio, kernel),
                        "no memory on the device");
}

TEST_CASE("A merge that there is not is refused, and so is a sampling") {
  const auto [q, k, v] = head<float>();
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{3}, 4, 1);
  const std::string message = "poslsh: merge is 9; it must be one of Merge";
  const AttentionOutput<float> output = blockwise_attention(q, k, v, hashes);
  REQUIRE_THROWS_WITH(blockwise_attention(q, k, v, hashes, {}, static_cast<Merge>(9)), message);
  REQUIRE_THROWS_WITH(poslsh::blockwise_attention_backward(q, k, v, hashes, output, output.values, {}, static_cast<Merge>(9)), message);
  for (const int wrong : {-1, 4})
    REQUIRE_THROWS_WITH(draw_hashes(LaplaceKernel{3}, 4, 1, static_cast<poslsh::Sampling>(wrong)),
                        "poslsh: sampling is " + std::to_string(wrong) + "; it must be one of Sampling");
}

// --- Positions, threads, masks -----------------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("Any number of threads gives the bits of one", "", Scalars) {
  const auto [q, k, v] = head<TestType>();
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{5}, 20, 6);
  for (const Merge merge : {Merge::ratio, Merge::mean})
    for (AttentionOptions options : calls) {
      const auto one = blockwise_attention(q, k, v, hashes, options, merge);
      for (const int threads : {2, 3, 8}) {
        options.threads = threads;
        REQUIRE(same_bits(blockwise_attention(q, k, v, hashes, options, merge), one));
      }
    }
}

TEMPLATE_LIST_TEST_CASE("Chunks of queries and shards of keys with one seed agree with one long call", "", Scalars) {
  const Index n = 180;
  const auto [q, k, v] = normal_inputs<TestType>(n, n, 6, 4, 83);
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{20}, 24, 7);
  const AttentionOptions whole{.causal = true, .key_offset = 1000};
  const auto full = blockwise_attention(q, k, v, hashes, whole);
  const auto mean = blockwise_attention(q, k, v, hashes, whole, Merge::mean);
  for (const Index begin : {0, 1, 64, 100}) {
    const Index rows = std::min<Index>(n - begin, 70), end = begin + rows;
    AttentionOptions options = whole;
    options.query_offset = 1000 + begin;
    const auto check = [&](const AttentionOutput<TestType>& chunk, const AttentionOutput<TestType>& all) {
      REQUIRE(distance(chunk.values, all.values.middleRows(begin, rows)) < rounding<TestType>());
      REQUIRE(distance(chunk.log_sum_exp, all.log_sum_exp.segment(begin, rows)) < rounding<TestType>());
    };
    const auto chunk_q = q.middleRows(begin, rows);
    check(blockwise_attention(chunk_q, k.topRows(end), v.topRows(end), hashes, options), full);
    check(blockwise_attention(chunk_q, k, v, hashes, options, Merge::mean), mean);

    AttentionOutput<TestType> merged =
        blockwise_attention(chunk_q, k.topRows(50), v.topRows(50), hashes, options);
    options.key_offset = 1050;
    merged = poslsh::merge(
        blockwise_attention(chunk_q, k.bottomRows(n - 50), v.bottomRows(n - 50), hashes, options), merged);
    check(merged, full);
  }
}

TEMPLATE_LIST_TEST_CASE("NaN outside a query's blocks leaves no trace in either merge", "", Scalars) {
  const auto [q, k, v] = head<TestType>();
  const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{4}, 6, 8);
  for (const Merge merge : {Merge::ratio, Merge::mean})
    for (const AttentionOptions& options : calls) {
      const auto clean = blockwise_attention(q, k, v, hashes, options, merge);
      const auto visible = visible_pairs(queries, keys, MeanMask(hashes), options);
      for (const Index key : {0, 40, 89}) {
        Matrix<TestType> bad_k = k, bad_v = v;
        bad_k.row(key).setConstant(static_cast<TestType>(not_a_number));
        bad_v.row(key).setConstant(static_cast<TestType>(not_a_number));
        const auto got = blockwise_attention(q, bad_k, bad_v, hashes, options, merge);
        for (Index i = 0; i < queries; ++i) {
          const bool untouched = same_numbers(got.values.row(i), clean.values.row(i)) &&
                                 got.log_sum_exp[i] == clean.log_sum_exp[i];
          const bool spoilt = got.values.row(i).array().isNaN().all();
          if (visible(i, key) ? !spoilt : !untouched) FAIL("row " << i << ", key " << key);
        }
      }
    }
  SUCCEED();
}

// --- Slopes at the ends of their range ---------------------------------------------------------------------

TEMPLATE_LIST_TEST_CASE("Slopes that cannot be sampled: exact attention takes them, hashes refuse", "", Scalars) {
  const auto [q, k, v] = head<TestType>();
  const poslsh::AlibiBias negative{-0.05}, none{0};
  REQUIRE(fault(attention(q, k, v, negative), q, k, v, negative) == "");
  REQUIRE_THROWS_AS(draw_hashes(LaplaceKernel{1 / negative.slope}, 4, 1), poslsh::Error);
  REQUIRE_THROWS_WITH(draw_hashes(LaplaceKernel{1 / negative.slope}, 4, 1),
                      "poslsh: sigma is -20; it must be positive and finite");

  REQUIRE(fault(attention(q, k, v, none), q, k, v, NoBias{}) == "");
  REQUIRE_THROWS_WITH(draw_hashes(LaplaceKernel{1 / none.slope}, 4, 1),
                      "poslsh: sigma is inf; it must be positive and finite");
}

TEMPLATE_LIST_TEST_CASE("A tiny sigma leaves each query its own key: the output is V", "", Scalars) {
  const auto [q, k, v] = normal_inputs<TestType>(50, 50, 6, 4, 84);
  for (const Sampling sampling : samplings) {
    const std::vector<PositionHash> hashes = draw_hashes(LaplaceKernel{1e-3}, 5, 1, sampling);
    for (const Merge merge : {Merge::ratio, Merge::mean})
      REQUIRE(distance(blockwise_attention(q, k, v, hashes, {}, merge).values, v) < rounding<TestType>());
    REQUIRE(same_numbers(attention(q, k, v, MeanMask(hashes)).values, v));
  }
  REQUIRE(distance(attention(q, k, v, poslsh::AlibiBias{1e3}).values, v) < rounding<TestType>());
}

}  // namespace blockwise_test
