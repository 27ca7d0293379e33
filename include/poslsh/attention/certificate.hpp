// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A bound of the error of attention under a mean mask, for given inputs (arXiv 2605.09472, Theorem 2.2).

#include "poslsh/attention/kernel_bias.hpp"
#include "poslsh/attention/options.hpp"
#include "poslsh/core/parallel.hpp"
#include "poslsh/mask/mean_mask.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace poslsh::inline POSLSH_SIMD {
namespace detail {

/// The larger of two, NaN if there is one.
[[nodiscard]] inline double larger_or_nan(double a, double b) { return b > a || b != b ? b : a; }

/// The two sums of a row of the certificate, over the keys so far.
///
/// Both count in exp(score + log), a reference of two parts: log weights would drown beside a score of 1e30.
class CertificateRow {
 public:
  /// Takes in keys with these scores, log L* and log Mt (-infinity outside its support).
  void add(const double* scores, const double* exact, const double* mean, Index count) {
    double top_score = score_, top = log_;
    for (Index j = 0; j < count; ++j)
      if (scores[j] > top_score) top_score = scores[j];
    if (top_score > score_) {
      log_ += score_ - top_score;  // -infinity if there was no key
      score_ = top_score;
      top = log_;
    }
    const auto weight = [&](Index j) { return scores[j] - score_ + (std::max)(exact[j], mean[j]); };
    for (Index j = 0; j < count; ++j)
      if (weight(j) > top) top = weight(j);
    if (top > log_) {
      const double shrink = std::exp(log_ - top);
      difference_ *= shrink;
      whole_ *= shrink;
      log_ = top;
    }
    for (Index j = 0; j < count; ++j) {
      const double exponent = weight(j) - log_;
      if (exponent < -746) continue;  // exp gives 0
      difference_ -= std::exp(exponent) * std::expm1(-std::abs(exact[j] - mean[j]));
      whole_ += std::exp(scores[j] - score_ + exact[j] - log_);
    }
  }

  /// sum |L* - Mt| A / (exp(sink) + sum L* A).
  [[nodiscard]] double ratio(double sink) const { return difference_ / (whole_ + std::exp(sink - score_ - log_)); }

 private:
  double score_ = -std::numeric_limits<double>::infinity(), log_ = score_;
  double difference_ = 0, whole_ = 0;
};

/// The certificate of query rows [first, last); see output_error_certificate.
template <OffsetBias B>
void certify_rows(const Matrix<double>& q, const Matrix<double>& k, const Vector<double>& largest_of_row, const B& bias,
                  const MeanMask& mask, const Placement& place, const AttentionOptions& options, Index first,
                  Index last, Vector<double>& bounds) {
  constexpr Index tile = 512;
  std::vector<CertificateRow> rows(static_cast<std::size_t>(last - first));
  std::vector<KeyRange> visible;
  KeyRange reach{place.keys, 0};
  for (Index i = first; i < last; ++i) {
    visible.push_back(place.visible({min_position, max_position}, i));
    if (visible.back().empty()) continue;
    reach = {(std::min)(reach.begin, visible.back().begin), (std::max)(reach.end, visible.back().end)};
  }
  // Of one size for all tiles: a matrix that Eigen cannot resize for want of memory is freed twice.
  Matrix<double> room(last - first, std::clamp(reach.end - reach.begin, Index{0}, tile));
  std::vector<double> exact(tile), mean(tile);
  const Matrix<double> queries = q.middleRows(first, last - first) * score_scale(options, q.cols());
  for (Index begin = reach.begin; begin < reach.end; begin += tile) {
    const Index end = (std::min)(begin + tile, reach.end);
    Eigen::Ref<Matrix<double>, 0, Eigen::OuterStride<>> scores = room.leftCols(end - begin);
    scores.noalias() = queries * k.middleRows(begin, end - begin).transpose();
    if (options.softcap) scores = (scores.array() / *options.softcap).tanh() * *options.softcap;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const KeyRange range = intersect(visible[r], {begin, end});
      if (range.empty()) continue;
      const Index query = place.query_position(first + static_cast<Index>(r));
      const Index first_key = place.key_offset + range.begin;
      for (Index j = 0; j < range.size(); ++j)
        exact[static_cast<std::size_t>(j)] = bias.log_weight_at(first_key + j - query);
      const KeyRange support = intersect(mask.support(query), {first_key, first_key + range.size()});
      for (Index j = 0; j < range.size(); ++j)
        mean[static_cast<std::size_t>(j)] =
            support.contains(first_key + j) ? 0 : -std::numeric_limits<double>::infinity();
      if (!support.empty())
        mask.add_log_weights(query, support.begin, mean.data() + (support.begin - first_key), support.size());
      rows[r].add(&scores(static_cast<Index>(r), range.begin - begin), exact.data(), mean.data(), range.size());
    }
  }
  for (Index i = first; i < last; ++i) {
    const std::size_t r = static_cast<std::size_t>(i - first);
    double largest = 0;
    for (Index j = visible[r].begin; j < visible[r].end; ++j) largest = larger_or_nan(largest, largest_of_row[j]);
    const double sink = options.sink.value_or(-std::numeric_limits<double>::infinity());
    bounds[i] = largest == 0 ? 0 : 2 * largest * (rows[r].ratio(sink) + options.tolerance);
  }
}

}  // namespace detail

/// For each query i, a bound of max_f |T*(i, f) - Tt(i, f)|, T* = attention(q, k, v, bias, options) being exact
/// attention and Tt = attention(q, k, v, mean_mask, options) positional LSH:
///
///   2 max_j |v_j|_inf (sum_j |L* - Mt|(i, j) A(i, j) / (exp(sink) + sum_j L*(i, j) A(i, j)) + tolerance),
///
/// with A = exp(score) and j over the keys that query i may see by window, causality and place.
///
/// Why it holds. With D* = exp(sink) + sum L* A and Dt = exp(sink) + sum Mt A,
///   T*_i - Tt_i = sum_j (L* - Mt)(i, j) A(i, j) v_j / D* + Tt_i (Dt - D*) / D*,
/// where |Tt_i| <= max |v_j|, and |Dt - D*| <= sum |L* - Mt| A. Nothing is asked of Mt but weights >= 0: keys outside
/// its support are among the j, with L* A. Where no visible key is inside, Tt_i = 0 and the same two terms bound
/// |T*_i|. With a tolerance t, T* leaves out keys and moves by at most t (max - min) <= 2 t max |v_j|; Tt leaves out
/// none. All that is exact arithmetic: rounding comes on top, some units in the last place of the scores and of max
/// |v_j|.
///
/// \param q, k, v  as for attention: queries x head_dim, keys x head_dim, keys x value_dim, any Eigen expressions
/// \param bias     of exact attention, a function of the offset on all keys: AlibiBias or KernelBias
/// \param mean_mask  the draws; any, however they were drawn and weighted
/// \param options  those of the attention that is certified. threads here as there: the same bits for any number
/// \returns one bound a query; 0 for a query that sees no key. The outputs differ by at most 2 max |v_j| in any case: a
/// bound above that says nothing. It is infinite where sum L* A underflows beside sum Mt A, NaN where the output is
/// \throws Error on shapes that do not belong together, and on options, biases or slopes out of range. Scores, sums and
/// exponentials are computed in double, scores up to the limit of float cannot overflow. Cost: one full sweep, 2
/// head_dim flops and three exponentials a visible pair; memory of q, k and one column in double. Thread safe.
template <class Q, class K, class V, detail::OffsetBias B>
[[nodiscard]] Vector<double> output_error_certificate(const Eigen::DenseBase<Q>& q, const Eigen::DenseBase<K>& k,
                                                      const Eigen::DenseBase<V>& v, const B& bias,
                                                      const MeanMask& mean_mask, const AttentionOptions& options = {}) {
  POSLSH_CHECK(k.cols() == q.cols(), "columns of k", k.cols(), "head_dim, the columns of q");
  POSLSH_CHECK(v.rows() == k.rows(), "rows of v", v.rows(), "tokens, the rows of k");
  const detail::Placement place = detail::place(q.rows(), k.rows(), options);
  detail::validate(bias);
  const Matrix<double> queries = q.derived().template cast<double>(), keys = k.derived().template cast<double>();
  const Matrix<double> values = v.derived().template cast<double>().cwiseAbs();
  Vector<double> largest = Vector<double>::Zero(values.rows());
  for (Index j = 0; j < values.rows(); ++j)
    for (Index f = 0; f < values.cols(); ++f) largest[j] = detail::larger_or_nan(largest[j], values(j, f));
  Vector<double> bounds(q.rows());
  constexpr Index tile = 32;
  detail::parallel_for((q.rows() + tile - 1) / tile, options.threads, [&](Index task, int) {
    const Index first = task * tile, last = (std::min)(first + tile, q.rows());
    detail::certify_rows(queries, keys, largest, bias, mean_mask, place, options, first, last, bounds);
  });
  return bounds;
}

/// The certificate against ALiBi of this slope on both sides, L*(i, j) = exp(-slope |i - j|).
template <class Q, class K, class V>
[[nodiscard]] Vector<double> output_error_certificate(const Eigen::DenseBase<Q>& q, const Eigen::DenseBase<K>& k,
                                                      const Eigen::DenseBase<V>& v, double slope,
                                                      const MeanMask& mean_mask, const AttentionOptions& options = {}) {
  return output_error_certificate(q, k, v, AlibiBias{slope}, mean_mask, options);
}

}  // namespace poslsh::inline POSLSH_SIMD
