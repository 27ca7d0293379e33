// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Inputs of the experiments on outputs, and attention under any weights, in the open: dense and in double.

#include <filesystem>
#include <variant>

#include "../support/npy.hpp"
#include "experiment.hpp"

namespace experiments {

struct AttentionCase {
  std::string name;
  Matrix<double> q, k, v;  ///< tokens x features
  [[nodiscard]] double scale() const { return 1 / std::sqrt(static_cast<double>(q.cols())); }
};

/// The heads of a file NAME_qkv.npy of [query, key, value] x heads x tokens x features, called NAME 0, NAME 1, ..; at most
/// so many tokens of each.
inline std::vector<AttentionCase> read_cases(const std::string& file, Index most_tokens) {
  const poslsh_examples::NpyArray array = poslsh_examples::read_npy(file);
  const std::vector<std::int64_t>& shape = array.shape;
  if (shape.size() != 4 || shape[0] != 3 || shape[1] < 1 || shape[2] < 1 || shape[3] < 1)
    throw poslsh_examples::FileError(file,
                                     "has the shape " + poslsh_examples::describe_shape(shape) +
                                         "; it must be 3 (query, key, value) x heads x tokens x features");
  std::string name = std::filesystem::path(file).stem().string();
  if (name.ends_with("_qkv")) name.resize(name.size() - 4);
  std::vector<AttentionCase> cases;
  std::visit(
      [&](const auto& values) {
        using T = typename std::decay_t<decltype(values)>::value_type;
        for (Index head = 0; head < shape[1]; ++head) {
          const auto part = [&](Index which) -> Matrix<double> {
            const T* first = values.data() + (which * shape[1] + head) * shape[2] * shape[3];
            return Eigen::Map<const Matrix<T>>(first, shape[2], shape[3])
                .topRows(std::min<Index>(most_tokens, shape[2]))
                .template cast<double>();
          };
          cases.push_back({name + " " + text(head), part(0), part(1), part(2)});
        }
      },
      array.values);
  return cases;
}

/// Unit normal queries, keys and values.
inline AttentionCase generated_case(Index tokens, Index features, std::uint64_t seed) {
  return {"generated, d = " + text(features), unit_normal(tokens, features, seed, 10),
          unit_normal(tokens, features, seed, 11), unit_normal(tokens, features, seed, 12)};
}

/// L*(i, j) = exp(-|i - j| / sigma).
inline Matrix<double> dense_kernel(double sigma, Index n) {
  Matrix<double> matrix(n, n);
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < n; ++j) matrix(i, j) = std::exp(-static_cast<double>(std::abs(i - j)) / sigma);
  return matrix;
}

/// exp(score - largest score of the row), 0 for keys after the query if causal.
inline Matrix<double> dense_scores(const AttentionCase& input, bool causal) {
  Matrix<double> scores = input.scale() * (input.q * input.k.transpose());
  for (Index i = 0; i < scores.rows(); ++i) {
    const Index seen = causal ? i + 1 : scores.cols();
    const double largest = scores.row(i).head(seen).maxCoeff();
    scores.row(i).head(seen) = (scores.row(i).head(seen).array() - largest).exp();
    scores.row(i).tail(scores.cols() - seen).setZero();
  }
  return scores;
}

/// D^-1 (weights o scores) V.
inline Matrix<double> dense_attention(const Matrix<double>& weights, const Matrix<double>& scores,
                                      const Matrix<double>& values) {
  const Matrix<double> products = weights.cwiseProduct(scores);
  Matrix<double> output = products * values;
  output.array().colwise() /= products.rowwise().sum().array();
  return output;
}

}  // namespace experiments
