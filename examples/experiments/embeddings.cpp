// SPDX-License-Identifier: MIT
//
// The embedding view of positional LSH: every position is a sparse vector of bin indicators, and the weight
// of a pair is the inner product of its two vectors. Computed, and held against MeanMask.

#include <poslsh/theory/operators.hpp>

#include <Eigen/Eigenvalues>
#include <Eigen/SparseCore>

#include "image.hpp"

namespace {

using namespace experiments;
using poslsh::LaplaceKernel;
using poslsh::MeanMask;

/// One row a position, one column a bin of a draw: 1 where the position is in the bin. Every row has s ones,
/// one a draw.
struct Features {
  Eigen::SparseMatrix<double, Eigen::RowMajor> indicators;
  std::vector<double> weights;  ///< of a column: that of its draw
};

Features make_features(const MeanMask& mask, Index n) {
  Features features;
  std::vector<Eigen::Triplet<double>> ones;
  Index columns = 0;
  for (const poslsh::PositionHash& hash : mask.hashes()) {
    const Index first = hash.bin(0), count = hash.bin(n - 1) - first + 1;
    for (Index i = 0; i < n; ++i) ones.emplace_back(i, columns + hash.bin(i) - first, 1.0);
    features.weights.insert(features.weights.end(), static_cast<std::size_t>(count), hash.weight);
    columns += count;
  }
  features.indicators.resize(n, columns);
  features.indicators.setFromTriplets(ones.begin(), ones.end());
  return features;
}

/// (1/s) sum over the columns c of weight_c phi_c(i) phi_c(j), column by column.
double inner_product(const Features& features, Index i, Index j, Index samples) {
  using Entries = Eigen::SparseMatrix<double, Eigen::RowMajor>::InnerIterator;
  double sum = 0;
  Entries a(features.indicators, i), b(features.indicators, j);
  while (a && b) {
    if (a.col() == b.col())
      sum += features.weights[static_cast<std::size_t>(a.col())] * (a.value() * b.value());
    const Index least = std::min(a.col(), b.col());
    if (a.col() == least) ++a;
    if (b.col() == least) ++b;
  }
  return sum / static_cast<double>(samples);
}

struct Check {
  Index features = 0, pairs = 0, different = 0;
  double largest_difference =
      0;  ///< of the whole Gram matrix of scaled features, relative, from MeanMask::dense
  double operator_difference = 0;  ///< of Phi W (Phi^T x) / s, relative, from theory::apply
  double least_eigenvalue = 0;     ///< of the Gram matrix, relative to the largest
  [[nodiscard]] bool passed() const {
    constexpr double rounding = 1e-13;
    return different == 0 && largest_difference < rounding && operator_difference < rounding &&
           least_eigenvalue > -rounding;
  }
};

Check check(const MeanMask& mask, Index n) {
  const Features features = make_features(mask, n);
  Check result;
  result.features = features.indicators.cols();
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < n; ++j, ++result.pairs)
      if (inner_product(features, i, j, mask.samples()) != mask.weight(i, j)) ++result.different;

  // The same with the weights inside the features, sqrt(weight / s) instead of 1: right up to rounding.
  const Eigen::Map<const Eigen::VectorXd> weights(features.weights.data(), result.features);
  const Eigen::VectorXd scaling = (weights / static_cast<double>(mask.samples())).cwiseSqrt();
  const Eigen::SparseMatrix<double, Eigen::RowMajor> scaled = features.indicators * scaling.asDiagonal();
  const Matrix<double> dense = mask.dense(n), gram = scaled * Eigen::SparseMatrix<double>(scaled.transpose());
  result.largest_difference = ((gram - dense).array().abs() / dense.array().max(1e-300)).maxCoeff();

  const Matrix<double> x = Matrix<double>::Random(n, 3), expected = poslsh::theory::apply(mask, x);
  const Matrix<double> bins = scaled.transpose() * x, applied = scaled * bins;
  result.operator_difference = (applied - expected).norm() / expected.norm();

  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(Eigen::MatrixXd(dense), Eigen::EigenvaluesOnly);
  result.least_eigenvalue = solver.eigenvalues().minCoeff() / solver.eigenvalues().maxCoeff();
  return result;
}

int run(const CommonOptions& options) {
  const Index n = options.quick ? 100 : 512;
  const double sigma = 16;
  const std::vector<std::string> columns = {
      "sampling", "s",         "positions", "features", "ones a position",
      "pairs",    "different", "gram",      "operator", "least eigenvalue"};
  TextTable table(columns, 1);
  CsvTable csv(columns);
  bool passed = true;
  {
    Progress progress(12);
    for (const auto& [sampling, name] : all_samplings)
      for (const Index samples : {4, 32, 128}) {
        const MeanMask mask(poslsh::draw_hashes(LaplaceKernel{sigma}, samples, options.seed, sampling));
        const Check result = check(mask, n);
        passed = passed && result.passed();
        const std::vector<std::string> row = {name,
                                              std::to_string(samples),
                                              std::to_string(n),
                                              std::to_string(result.features),
                                              std::to_string(samples),
                                              std::to_string(result.pairs),
                                              std::to_string(result.different),
                                              format_number("%.1e", result.largest_difference),
                                              format_number("%.1e", result.operator_difference),
                                              format_number("%.1e", result.least_eigenvalue)};
        table.add(row);
        csv.add(row);
        progress.advance(1);
      }
  }
  table.print(stdout);
  std::printf(passed ? "Every inner product is MeanMask::weight, bit by bit.\n"
                     : "FAILED: an inner product is not MeanMask::weight.\n");
  if (!options.csv.empty()) csv.write(options.csv);

  const MeanMask small(poslsh::draw_hashes(LaplaceKernel{8}, 8, options.seed, Sampling::stratified));
  const Features features = make_features(small, 60);
  draw_images(options, 3, 1,
              image("features", "60 positions x bins of 8 draws", Matrix<double>(features.indicators)) +
                  image("gram", "their inner products / 8",
                        Matrix<double>(features.indicators * features.indicators.transpose()) / 8) +
                  image("mean", "MeanMask::dense", small.dense(60)));
  return passed ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return guarded("embeddings", [&] {
    CommonOptions options;
    const char* const about =
        "Positions as sparse vectors of bin indicators, whose inner products are the weights of a "
        "mean mask: computed and\n"
        "checked for sigma = 16.";
    return common_flags(about, options).parse(argc, argv) ? run(options) : 0;
  });
}
