// SPDX-License-Identifier: MIT
#include "poslsh/attention/blockwise.hpp"
#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random_matrix.hpp"

#include <functional>
#include <vector>

namespace options_test {

using namespace poslsh::test;
using Catch::Matchers::ContainsSubstring;
using poslsh::AttentionOptions;
using poslsh::AttentionOutput;
using poslsh::Index;
using poslsh::Matrix;
using poslsh::PositionHash;
using poslsh::Vector;

namespace {

constexpr Index limit = Index{1} << 52;
const std::vector<PositionHash> one_hash{{4, 1, 1}};

/// Five queries and keys with three features, two value features, as every call below takes them.
const Inputs<float>& inputs() {
  static const Inputs<float> all = normal_inputs<float>(5, 5, 3, 2, 1);
  return all;
}

/// The message of the Error that a call throws; "no error" if it throws none.
std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const poslsh::Error& error) {
    return error.what();
  }
  return "no error";
}

std::string exact_message(const AttentionOptions& options) {
  const Inputs<float>& all = inputs();
  return message(
      [&] { static_cast<void>(poslsh::attention(all.q, all.k, all.v, poslsh::NoBias{}, options)); });
}
std::string blockwise_message(const AttentionOptions& options) {
  const Inputs<float>& all = inputs();
  return message(
      [&] { static_cast<void>(poslsh::blockwise_attention(all.q, all.k, all.v, one_hash, options)); });
}

struct BadOption {
  AttentionOptions options;
  std::string argument, requirement;
};

const std::vector<BadOption> bad_options = {
    {{.scale = not_a_number}, "scale is ", "finite"},
    {{.scale = infinity}, "scale is inf", "finite"},
    {{.scale = 1e39}, "scale is 1e+39", "finite, within +-2^126"},
    {{.scale = -infinity}, "scale is -inf", "finite"},
    {{.key_offset = limit + 1}, "key_offset is 4503599627370497", "within +-2^52"},
    {{.key_offset = -limit - 1}, "key_offset is -4503599627370497", "within +-2^52"},
    {{.query_offset = limit + 1}, "query_offset is 4503599627370497", "within +-2^52"},
    {{.query_offset = -limit - 1}, "query_offset is -4503599627370497", "within +-2^52"},
    {{.query_offset = std::numeric_limits<Index>::max()}, "query_offset is ", "within +-2^52"},
    {{.window_left = -1}, "window_left is -1", "at least 0"},
    {{.window_right = -3}, "window_right is -3", "at least 0"},
    {{.causal = true, .window_right = -1}, "window_right is -1", "at least 0"},
    {{.softcap = 0}, "softcap is 0", "positive and finite"},
    {{.softcap = -1}, "softcap is -1", "positive and finite"},
    {{.softcap = infinity}, "softcap is inf", "positive and finite"},
    {{.softcap = not_a_number}, "softcap is ", "positive and finite"},
    {{.sink = infinity}, "sink is inf", "finite or -inf"},
    {{.sink = not_a_number}, "sink is ", "finite or -inf"},
    {{.tolerance = -1e-9}, "tolerance is -1e-09", "finite and at least 0"},
    {{.tolerance = infinity}, "tolerance is inf", "finite and at least 0"},
    {{.tolerance = not_a_number}, "tolerance is ", "finite and at least 0"},
    {{.threads = 0}, "threads is 0", "at least 1"},
    {{.threads = -2}, "threads is -2", "at least 1"},
};

}  // namespace

TEST_CASE("An option out of range is an Error that names it, its value and what it must be") {
  for (const BadOption& bad : bad_options)
    for (const std::string& text : {exact_message(bad.options), blockwise_message(bad.options)}) {
      CAPTURE(bad.argument);
      REQUIRE_THAT(text, ContainsSubstring("poslsh: " + bad.argument));
      REQUIRE_THAT(text, ContainsSubstring("; it must be " + bad.requirement));
    }
}

TEST_CASE("Options at the ends of their ranges are no error") {
  const std::vector<AttentionOptions> good = {
      {},
      {.scale = 0},
      {.scale = -1},
      {.key_offset = limit, .query_offset = -limit},
      {.key_offset = -limit, .query_offset = limit, .window_left = 0, .window_right = 0},
      {.window_left = std::numeric_limits<Index>::max(), .window_right = std::numeric_limits<Index>::max()},
      {.sink = -infinity},
      {.tolerance = 10},
      {.threads = 100},
  };
  for (std::size_t i = 0; i < good.size(); ++i) {
    CAPTURE(i);
    REQUIRE(exact_message(good[i]) == "no error");
    REQUIRE(blockwise_message(good[i]) == "no error");
  }
}

TEST_CASE("The default query offset is checked like a given one") {
  const Matrix<float> q = Matrix<float>::Zero(1, 1), k = Matrix<float>::Zero(3, 1);
  REQUIRE_THAT(message([&] {
                 static_cast<void>(poslsh::attention(q, k, k, poslsh::NoBias{}, {.key_offset = limit - 1}));
               }),
               ContainsSubstring("query_offset is 4503599627370497; it must be within +-2^52"));
}

TEST_CASE("Shapes that do not belong together are an Error") {
  const Matrix<float> three(5, 3), four(5, 4), rows(6, 3);
  struct Shapes {
    const Matrix<float>&q, &k, &v;
    std::string text;
  };
  for (const Shapes& bad :
       {Shapes{three, four, three, "columns of k is 4; it must be head_dim, the columns of q"},
        Shapes{three, three, rows, "rows of v is 6; it must be tokens, the rows of k"}}) {
    REQUIRE_THAT(
        message([&] { static_cast<void>(poslsh::attention(bad.q, bad.k, bad.v, poslsh::NoBias{})); }),
        ContainsSubstring(bad.text));
    REQUIRE_THAT(
        message([&] { static_cast<void>(poslsh::blockwise_attention(bad.q, bad.k, bad.v, one_hash)); }),
        ContainsSubstring(bad.text));
  }
}

TEST_CASE("Buffers of another shape than the result are an Error and stay as they were") {
  const Matrix<float>&q = inputs().q, &k = inputs().k, &v = inputs().v;
  struct Buffers {
    Index rows, cols, size;
    std::string text;
  };
  for (const Buffers& bad :
       {Buffers{4, 2, 5, "rows of values is 4; it must be the rows of q"},
        Buffers{5, 3, 5, "columns of values is 3; it must be value_dim, the columns of v"},
        Buffers{5, 2, 6, "size of log_sum_exp is 6; it must be the rows of q"}}) {
    Matrix<float> values = Matrix<float>::Constant(bad.rows, bad.cols, 7);
    Vector<double> lse = Vector<double>::Constant(bad.size, 7);
    REQUIRE_THAT(message([&] { poslsh::attention_into(q, k, v, poslsh::NoBias{}, {}, values, lse); }),
                 ContainsSubstring(bad.text));
    REQUIRE((values.array() == 7).all());
    REQUIRE((lse.array() == 7).all());
  }
  Matrix<float> values(5, 2);
  Matrix<double> square(5, 5);
  REQUIRE_THAT(message([&] { poslsh::attention_into(q, k, v, poslsh::NoBias{}, {}, values, square); }),
               ContainsSubstring("size of log_sum_exp is 25"));
}

TEST_CASE("A bias out of range is an Error of the call, even where no key is seen") {
  const Matrix<float>&q = inputs().q, &k = inputs().k, &v = inputs().v;
  const Matrix<float> no_keys(0, 3), no_values(0, 2);
  const auto check = [&](const auto& bias, const std::string& text) {
    REQUIRE_THAT(message([&] { static_cast<void>(poslsh::attention(q, k, v, bias)); }),
                 ContainsSubstring(text));
    REQUIRE_THAT(message([&] { static_cast<void>(poslsh::attention(q, no_keys, no_values, bias)); }),
                 ContainsSubstring(text));
  };
  check(poslsh::AlibiBias{infinity}, "slope is inf; it must be finite, at least -2^64");
  check(poslsh::AlibiBias{-1e37}, "slope is -1e+37; it must be finite, at least -2^64");
  check(poslsh::AlibiBias{not_a_number, 1}, "poslsh: slope is ");
  check(poslsh::AlibiBias{1, -infinity}, "right_slope is -inf; it must be finite, at least -2^64");
  check(poslsh::FixedBlocks{0}, "size is 0; it must be between 1 and 2^52");
}

TEST_CASE("No hash, or a bad one, is an Error") {
  const Matrix<float>&q = inputs().q, &k = inputs().k, &v = inputs().v;
  const auto text = [&](std::vector<PositionHash> hashes) {
    return message([&] { static_cast<void>(poslsh::blockwise_attention(q, k, v, hashes)); });
  };
  REQUIRE_THAT(text({}), ContainsSubstring("hashes is an empty list; it must be at least one hash"));
  REQUIRE_THAT(text({{4, 1}, {0, 1}}), ContainsSubstring("hash width is 0; it must be positive"));
  REQUIRE_THAT(text({{4, 1}, {not_a_number, 1}}), ContainsSubstring("hash width is "));
  REQUIRE_THAT(text({{4, infinity}}), ContainsSubstring("hash shift is inf; it must be within +-2^52"));
  REQUIRE_THAT(text({{4, 1, -1}}), ContainsSubstring("hash weight is -1; it must be between 2^-1000 and 2^1000"));
  REQUIRE_THAT(text({{4, 1, 5e-324}}), ContainsSubstring("hash weight is "));
  REQUIRE_THAT(text({{4, 1, 1.7e308}}), ContainsSubstring("hash weight is 1.7"));
  REQUIRE(text({{4, 1}}) == "no error");
}

TEST_CASE("A short-context kernel that returns another shape is an Error, on any thread") {
  const Matrix<float>&q = inputs().q, &k = inputs().k, &v = inputs().v;
  struct Shape {
    Index rows, cols, size;  // more than is due
  };
  for (const int threads : {1, 3})
    for (const Shape& extra :
         {Shape{1, 0, 0}, Shape{0, 1, 0}, Shape{0, 0, 1}, Shape{0, 0, -1}, Shape{0, 0, 0}}) {
      const auto kernel = [&](const auto& queries, const auto&, const auto& values, const AttentionOptions&) {
        return AttentionOutput<float>{
            Matrix<float>::Zero(queries.rows() + extra.rows, values.cols() + extra.cols),
            Vector<double>::Zero(queries.rows() + extra.size)};
      };
      const std::string text = message([&] {
        static_cast<void>(poslsh::blockwise_attention(q, k, v, one_hash, {.threads = threads},
                                                      poslsh::Merge::ratio, kernel));
      });
      if (extra.rows == 0 && extra.cols == 0 && extra.size == 0)
        REQUIRE(text == "no error");
      else
        REQUIRE_THAT(text, ContainsSubstring("the output of the short-context kernel"));
    }
}

}  // namespace options_test
