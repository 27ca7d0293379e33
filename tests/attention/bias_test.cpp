// SPDX-License-Identifier: MIT
#include "poslsh/attention/bias.hpp"

#include "poslsh/mask/mean_mask.hpp"
#include "support/biases.hpp"
#include "support/catch.hpp"

#include <vector>

namespace bias_test {

using namespace poslsh::test;
using poslsh::AlibiBias;
using poslsh::FixedBlocks;
using poslsh::Index;
using poslsh::KeyRange;
using poslsh::MeanMask;
using poslsh::NoBias;
using poslsh::PositionBias;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr Index far = Index{1} << 40;

static_assert(PositionBias<NoBias> && PositionBias<AlibiBias> && PositionBias<FixedBlocks> &&
              PositionBias<MeanMask>);
static_assert(PositionBias<RaggedBias> && PositionBias<TriangleBias>);

// Each lacks one thing that RaggedBias has.
struct NoSupport {
  double log_weight(Index, Index) const { return 0; }
  template <class T>
  void add_log_weights(Index, Index, T*, Index) const {}
};
struct NoLogWeight {
  KeyRange support(Index) const { return {}; }
  template <class T>
  void add_log_weights(Index, Index, T*, Index) const {}
};
struct NoRows {
  double log_weight(Index, Index) const { return 0; }
  KeyRange support(Index) const { return {}; }
};
struct RowsInFloatOnly : NoRows {
  void add_log_weights(Index, Index, float*, Index) const {}
};
struct NotConst {
  double log_weight(Index, Index) { return 0; }
  KeyRange support(Index) const { return {}; }
  template <class T>
  void add_log_weights(Index, Index, T*, Index) const {}
};
static_assert(!PositionBias<NoSupport> && !PositionBias<NoLogWeight> && !PositionBias<NoRows>);
static_assert(!PositionBias<RowsInFloatOnly> && !PositionBias<NotConst> && !PositionBias<int>);

/// What is wrong about a bias around some positions, or nothing. Weights may differ by rounding in T.
template <class T, class Bias>
std::string fault(const Bias& bias) {
  for (const Index start : {Index{-70}, far, -far - 3}) {
    KeyRange previous = bias.support(start - 1);
    for (Index query = start; query < start + 140; ++query) {
      const KeyRange support = bias.support(query);
      if (support.begin < previous.begin || support.end < previous.end)
        return "an end of the support moves back";
      previous = support;
      const KeyRange near = intersect(support, {query - 160, query + 160});
      if (near.empty()) return "no key near the query";
      std::vector<T> scores(static_cast<std::size_t>(near.size() + 2), T(3));
      bias.add_log_weights(query, near.begin, scores.data() + 1, near.size());
      if (scores.front() != 3 || scores.back() != 3) return "add_log_weights writes outside its range";
      for (Index key = near.begin; key < near.end; ++key) {
        const double log_weight = bias.log_weight(query, key);
        if (!std::isfinite(log_weight)) return "no finite log weight inside the support";
        const double added = static_cast<double>(scores[static_cast<std::size_t>(key - near.begin + 1)]) - 3;
        const double unit = static_cast<double>(std::numeric_limits<T>::epsilon());
        if (std::abs(added - log_weight) > 2 * unit * (3 + std::abs(log_weight)))
          return "add_log_weights differs";
      }
    }
  }
  return "";
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("log_weight, support and add_log_weights agree for every bias", "", Scalars) {
  for (int kind = 0; kind < bias_kinds; ++kind)
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      Dice dice(seed);
      with_bias(kind, dice, [&](const auto& bias, const char* name) {
        CAPTURE(name, seed);
        REQUIRE(fault<TestType>(bias) == "");
      });
    }
}

TEST_CASE("NoBias and AlibiBias see every key, with the weights of their definition") {
  const KeyRange all{poslsh::min_position, poslsh::max_position};
  REQUIRE(NoBias{}.support(-far) == all);
  REQUIRE(NoBias{}.log_weight(3, far) == 0);
  const AlibiBias bias{0.5, 0.125};
  REQUIRE(bias.support(far) == all);
  REQUIRE(bias.log_weight(10, 4) == -3);
  REQUIRE(bias.log_weight(10, 10) == 0);
  REQUIRE(bias.log_weight(10, 18) == -1);
  REQUIRE(bias.log_weight(far, 0) == -0.5 * static_cast<double>(far));
  REQUIRE(AlibiBias{0.5}.log_weight(10, 18) == -4);
  REQUIRE(AlibiBias{-0.5}.log_weight(10, 4) == 3);
}

TEST_CASE("The tail of ALiBi is its geometric series, infinite where it does not fall") {
  const AlibiBias bias{0.5, 0.03};
  for (const Index offset : {Index{-1}, Index{-40}, Index{1}, Index{25}}) {
    double sum = 0;
    for (Index t = 0; t < 3000; ++t)
      sum += std::exp(bias.log_weight_at(offset < 0 ? offset - t : offset + t));
    REQUIRE(bias.log_tail(offset) == Approx(std::log(sum)).epsilon(1e-10));
  }
  REQUIRE(AlibiBias{0, 1}.log_tail(-5) == infinity);
  REQUIRE(AlibiBias{1, -1}.log_tail(5) == infinity);
}

TEST_CASE("FixedBlocks divides positions downwards, whatever their sign") {
  const auto begins = [](Index size) {
    std::vector<Index> result;
    for (Index query = -5; query <= 5; ++query) {
      const KeyRange block = FixedBlocks{size}.support(query);
      REQUIRE(block.size() == size);
      result.push_back(block.begin);
    }
    return result;
  };
  REQUIRE(begins(1) == std::vector<Index>{-5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5});
  REQUIRE(begins(4) == std::vector<Index>{-8, -4, -4, -4, -4, 0, 0, 0, 0, 4, 4});
  REQUIRE(begins(100) == std::vector<Index>{-100, -100, -100, -100, -100, 0, 0, 0, 0, 0, 0});
  REQUIRE(FixedBlocks{3}.support(-far).contains(-far));
  REQUIRE(FixedBlocks{4}.log_weight(-1, -4) == 0);
  REQUIRE(FixedBlocks{4}.log_weight(-1, 0) == -infinity);
  const Index largest = Index{1} << 52;
  REQUIRE(FixedBlocks{largest}.support(-1) == KeyRange{-largest, 0});
}

TEST_CASE("A bias says which of its parameters is out of range") {
  REQUIRE_NOTHROW(AlibiBias{0}.validate());
  REQUIRE_NOTHROW((AlibiBias{-3, 1e300}.validate()));
  REQUIRE_THROWS_WITH(AlibiBias{infinity}.validate(), "poslsh: slope is inf; it must be finite, at least -2^64");
  REQUIRE_THROWS_WITH((AlibiBias{1, -infinity}.validate()), "poslsh: right_slope is -inf; it must be finite, at least -2^64");
  REQUIRE_THROWS_AS(AlibiBias{std::nan("")}.validate(), poslsh::Error);
  REQUIRE_NOTHROW(FixedBlocks{Index{1} << 52}.validate());
  REQUIRE_THROWS_WITH(FixedBlocks{0}.validate(), "poslsh: size is 0; it must be between 1 and 2^52");
  REQUIRE_THROWS_WITH(FixedBlocks{-4}.validate(), "poslsh: size is -4; it must be between 1 and 2^52");
  REQUIRE_THROWS_AS(FixedBlocks{(Index{1} << 52) + 1}.validate(), poslsh::Error);
}

}  // namespace bias_test
