// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What outputs of attention may err by, from the dense oracle.

#include "fuzz/attention_inputs.hpp"
#include "support/oracle.hpp"

#include <string>

namespace poslsh::fuzz {

using Mask = Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic>;

/// The largest norm of a row.
template <class M>
double largest_norm(const M& matrix) {
  return matrix.size() == 0 ? 0 : static_cast<double>(matrix.rowwise().norm().maxCoeff());
}

/// The output by definition in a wider type and in T, and the spread of what each row sees, a sink's 0 among it.
///
/// A fuzzer finds the inputs where the naive version errs by nothing at all, so that errors count in units of rounding of
/// the largest logit, whose terms are at most |scale| |q| |k| in sum.
template <class T>
class Dense {
 public:
  using Exact = test::DenseOutput<test::Wide<T>>;
  using Naive = test::DenseOutput<T>;

  Dense(const Matrix<T>& q, const Matrix<T>& k, const Matrix<T>& v, const BiasFunctions& bias, const AttentionOptions& options)
      : exact_(test::dense_attention<test::Wide<T>>(q, k, v, bias, options)),
        naive_(test::dense_attention<T>(q, k, v, bias, options)), spread_(Matrix<double>::Zero(q.rows(), v.cols())) {
    const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(std::max<Index>(q.cols(), 1))));
    logit_ = std::abs(scale) * largest_norm(q) * largest_norm(k);
    for (Index i = 0; i < q.rows(); ++i)
      if (std::isfinite(exact_.log_sum_exp[i])) logit_ = std::max(logit_, static_cast<double>(std::abs(exact_.log_sum_exp[i])));
    if (!(options.tolerance > 0)) return;
    const Mask visible = test::visible_pairs(q.rows(), k.rows(), bias, options);
    for (Index i = 0; i < q.rows(); ++i)
      for (Index f = 0; f < v.cols(); ++f) {
        const bool sink = options.sink.value_or(-test::infinity) > -test::infinity;
        double low = sink ? 0 : test::infinity, high = sink ? 0 : -test::infinity;
        for (Index j = 0; j < k.rows(); ++j) {
          if (!visible(i, j)) continue;
          low = std::min(low, static_cast<double>(v(j, f)));
          high = std::max(high, static_cast<double>(v(j, f)));
        }
        spread_(i, f) = std::max(0.0, high - low);
      }
  }
  /// The same inputs, another definition.
  Dense(const Dense& other, const Exact& exact, const Naive& naive)
      : exact_(exact), naive_(naive), spread_(other.spread_), logit_(other.logit_) {}

  void require_right(const AttentionOutput<T>& got, double tolerance, double slack, const std::string& what) const {
    const double units = 8 * slack * (1 + logit_) / (1 + static_cast<double>(exact_.largest_score));
    const std::string wrong = test::fault(tolerance > 0 ? within(got, tolerance) : got, exact_, naive_, units);
    require(wrong.empty(), what + ": " + wrong);
  }

 private:
  /// The output moved towards the exact one by what a tolerance allows.
  [[nodiscard]] AttentionOutput<T> within(AttentionOutput<T> got, double tolerance) const {
    const auto moved = [](double from, double to, double most) {
      return std::abs(to - from) <= most ? to : from + std::copysign(most, to - from);
    };
    for (Index i = 0; i < got.values.rows(); ++i) {
      if (exact_.log_sum_exp[i] == -test::infinity) continue;
      got.log_sum_exp[i] = moved(got.log_sum_exp[i], static_cast<double>(exact_.log_sum_exp[i]), std::log1p(tolerance));
      for (Index f = 0; f < got.values.cols(); ++f) {
        T& value = got.values(i, f);
        value = static_cast<T>(moved(static_cast<double>(value), static_cast<double>(exact_.values(i, f)), tolerance * spread_(i, f)));
      }
    }
    return got;
  }

  Exact exact_;
  Naive naive_;
  Matrix<double> spread_;
  double logit_ = 0;
};

}  // namespace poslsh::fuzz
