// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Gradients of attention in two slow ways: by the chain rule, dense, and by central differences.

#include "poslsh/attention/backward.hpp"
#include "support/oracle.hpp"
#include "support/random_matrix.hpp"

#include <functional>

namespace poslsh::test {

/// Gradients in any precision. Magnitudes are the largest sums of absolute terms: what rounding is relative to.
template <class Real>
struct DenseGradients {
  Matrix<Real> dq, dk, dv;
  Real dslope = 0, dright_slope = 0, dsink = 0;
  Real q_magnitude = 0, k_magnitude = 0, v_magnitude = 0, slope_magnitude = 0, sink_magnitude = 0;
  Real largest_logit = 0;  ///< of scores and log-sum-exps, in magnitude
};

/// The gradients of sum(values o d_values), pair by pair.
template <class Real, class Q, class K, class V, class G, class Bias>
DenseGradients<Real> dense_gradients(const Q& q, const K& k, const V& v, const G& d_values, const Bias& bias,
                                     const AttentionOptions& options = {}) {
  const Matrix<Real> queries = q.template cast<Real>(), keys = k.template cast<Real>();
  const Matrix<Real> tokens = v.template cast<Real>(), d_out = d_values.template cast<Real>();
  const DenseOutput<Real> out = dense_attention<Real>(q, k, v, bias, options);
  const Real scale = static_cast<Real>(options.scale.value_or(1 / std::sqrt(static_cast<double>(q.cols()))));
  const Real sink = static_cast<Real>(options.sink.value_or(-infinity));
  DenseGradients<Real> all{Matrix<Real>::Zero(q.rows(), q.cols()), Matrix<Real>::Zero(k.rows(), k.cols()),
                           Matrix<Real>::Zero(v.rows(), v.cols())};
  Matrix<Real> q_sizes = all.dq, k_sizes = all.dk, v_sizes = all.dv;
  all.largest_logit = out.largest_score;
  const auto visible = visible_pairs(q.rows(), k.rows(), bias, options);
  for (Index i = 0; i < q.rows(); ++i) {
    bool any = false;
    for (Index j = 0; j < k.rows(); ++j) any = any || visible(i, j);
    if (!any) continue;
    const Real mean = d_out.row(i).dot(out.values.row(i));
    const Real mean_size = d_out.row(i).cwiseAbs().dot(out.values.row(i).cwiseAbs());
    all.largest_logit = std::max(all.largest_logit, std::abs(out.log_sum_exp[i]));
    if (options.sink) {
      const Real weight = std::exp(sink - out.log_sum_exp[i]);
      all.dsink -= weight * mean;
      all.sink_magnitude += weight * mean_size;
    }
    const Index query = first_query(options, q.rows(), k.rows()) + i;
    for (Index j = 0; j < k.rows(); ++j) {
      if (!visible(i, j)) continue;
      const Index offset = options.key_offset + j - query;
      Real score = 0, slack = 1;
      for (Index t = 0; t < q.cols(); ++t) score += queries(i, t) * keys(j, t);
      score *= scale;
      if (options.softcap) {
        const Real cap = static_cast<Real>(*options.softcap), tangent = std::tanh(score / cap);
        score = cap * tangent;
        slack = 1 - tangent * tangent;
      }
      const Real log_weight = static_cast<Real>(bias.log_weight(query, query + offset));
      const Real weight = std::exp(score + log_weight - out.log_sum_exp[i]);
      const Real d_score = weight * (d_out.row(i).dot(tokens.row(j)) - mean);
      const Real size = weight * (d_out.row(i).cwiseAbs().dot(tokens.row(j).cwiseAbs()) + mean_size);
      (offset <= 0 ? all.dslope : all.dright_slope) += d_score * static_cast<Real>(offset <= 0 ? offset : -offset);
      all.slope_magnitude += size * static_cast<Real>(std::abs(offset));
      all.dv.row(j) += weight * d_out.row(i);
      all.dq.row(i) += scale * slack * d_score * keys.row(j);
      all.dk.row(j) += scale * slack * d_score * queries.row(i);
      v_sizes.row(j) += weight * d_out.row(i).cwiseAbs();
      q_sizes.row(i) += std::abs(scale) * size * keys.row(j).cwiseAbs();
      k_sizes.row(j) += std::abs(scale) * size * queries.row(i).cwiseAbs();
    }
  }
  const auto largest = [](const Matrix<Real>& sizes) { return sizes.size() == 0 ? Real(0) : sizes.maxCoeff(); };
  all.q_magnitude = largest(q_sizes);
  all.k_magnitude = largest(k_sizes);
  all.v_magnitude = largest(v_sizes);
  return all;
}

/// What is wrong about gradients in T, or nothing: errors may be a few units of rounding of the magnitudes above.
template <class T>
std::string gradient_fault(const AttentionGradients<T>& got, const DenseGradients<Wide<T>>& exact, bool slopes,
                           double units = 8) {
  if (got.dq.rows() != exact.dq.rows() || got.dq.cols() != exact.dq.cols()) return "shape of dq";
  if (got.dk.rows() != exact.dk.rows() || got.dk.cols() != exact.dk.cols()) return "shape of dk";
  if (got.dv.rows() != exact.dv.rows() || got.dv.cols() != exact.dv.cols()) return "shape of dv";
  const double unit =
      units * static_cast<double>(std::numeric_limits<T>::epsilon()) * (1 + static_cast<double>(exact.largest_logit));
  std::ostringstream text;
  const auto check = [&](const char* name, double error, auto magnitude) {
    if (!(error <= unit * static_cast<double>(magnitude)))
      text << name << " errs by " << error << ", " << error / unit / static_cast<double>(magnitude) << " of what it may; ";
  };
  check("dq", distance(got.dq, exact.dq), exact.q_magnitude);
  check("dk", distance(got.dk, exact.dk), exact.k_magnitude);
  check("dv", distance(got.dv, exact.dv), exact.v_magnitude);
  check("dslope", std::abs(got.dslope - (slopes ? static_cast<double>(exact.dslope) : 0)), exact.slope_magnitude);
  check("dright_slope", std::abs(got.dright_slope - (slopes ? static_cast<double>(exact.dright_slope) : 0)),
        exact.slope_magnitude);
  check("dsink", std::abs(got.dsink - static_cast<double>(exact.dsink)), exact.sink_magnitude);
  return text.str();
}

/// The derivative of `value` by each entry of x, by central differences.
inline Matrix<double> central_differences(Matrix<double>& x, const std::function<long double()>& value) {
  constexpr double step = 0x1p-17;  // x + step and x - step are exact enough around 1
  Matrix<double> slopes(x.rows(), x.cols());
  for (Index i = 0; i < x.size(); ++i) {
    double& entry = x.data()[i];
    const double middle = entry;
    const double high = entry = middle + step;
    const long double above = value();
    const double low = entry = middle - step;
    const long double below = value();
    entry = middle;
    slopes.data()[i] = static_cast<double>((above - below) / static_cast<long double>(high - low));
  }
  return slopes;
}
inline double central_difference(double& x, const std::function<long double()>& value) {
  Matrix<double> one(1, 1);
  one(0, 0) = x;
  const double middle = x;
  const double slope = central_differences(one, [&] {
    x = one(0, 0);
    return value();
  })(0, 0);
  x = middle;
  return slope;
}

/// Whether b is a within a relative error of 1e-6, and 1e-9 of what is 0.
template <class A, class B>
bool close_to(const A& a, const B& b) {
  const double size = b.size() == 0 ? 0 : static_cast<double>(b.cwiseAbs().maxCoeff());
  return distance(a, b) <= 1e-6 * size + 1e-9;
}
inline bool close_to(double a, double b) { return std::abs(a - b) <= 1e-6 * std::abs(b) + 1e-9; }

/// Whether two gradients are the same bit by bit.
template <class T>
bool same_bits(const AttentionGradients<T>& a, const AttentionGradients<T>& b) {
  const auto same = [](double x, double y) { return x == y || (x != x && y != y); };
  return same_numbers(a.dq, b.dq) && same_numbers(a.dk, b.dk) && same_numbers(a.dv, b.dv) && same(a.dslope, b.dslope) &&
         same(a.dright_slope, b.dright_slope) && same(a.dsink, b.dsink);
}

}  // namespace poslsh::test
