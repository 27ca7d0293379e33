// SPDX-License-Identifier: MIT

// Attention against the outputs of two published models, see tests/data/README.md.

#include "../../examples/support/npy.hpp"
#include "poslsh/attention/attention.hpp"
#include "support/catch.hpp"

#include <string>
#include <vector>

namespace real_data_test {

using poslsh::Index;
using poslsh::Matrix;

namespace {

/// One tokens x features part of a file: the one of this number, counted in its leading dimensions.
Matrix<float> read_part(const std::string& name, Index part, const std::vector<std::int64_t>& shape) {
  const poslsh_examples::NpyArray file = poslsh_examples::read_npy(std::string(POSLSH_TEST_DATA "/") + name);
  REQUIRE(file.shape == shape);
  const Index tokens = shape[shape.size() - 2], features = shape.back();
  return Eigen::Map<const Matrix<float>>(std::get<0>(file.values).data() + part * tokens * features, tokens,
                                         features);
}

struct Model {
  std::string name;
  Index heads, tokens, features;
};

}  // namespace

TEST_CASE("NoBias gives the models' own attention outputs, every head") {
  for (const Model& model : {Model{"text", 2, 1024, 64}, Model{"ocr", 4, 1500, 15}})
    for (Index head = 0; head < model.heads; ++head) {
      const auto input = [&](Index which) {
        return read_part(model.name + "_qkv.npy", which * model.heads + head,
                         {3, model.heads, model.tokens, model.features});
      };
      const Matrix<float> expected =
          read_part(model.name + "_attention_out.npy", head, {model.heads, model.tokens, model.features});
      const Matrix<float> q = input(0), k = input(1), v = input(2);
      const float largest = expected.cwiseAbs().maxCoeff();
      const auto single = poslsh::attention(q, k, v, poslsh::NoBias{});
      const auto wide =
          poslsh::attention(q.cast<double>(), k.cast<double>(), v.cast<double>(), poslsh::NoBias{});
      CAPTURE(model.name, head);
      REQUIRE(largest > 0.1f);
      REQUIRE((single.values - expected).cwiseAbs().maxCoeff() < 3e-6f * largest);
      REQUIRE((wide.values - expected.cast<double>()).cwiseAbs().maxCoeff() <
              3e-6 * static_cast<double>(largest));
      REQUIRE((single.log_sum_exp - wide.log_sum_exp).cwiseAbs().maxCoeff() < 1e-5);
    }
}

}  // namespace real_data_test
