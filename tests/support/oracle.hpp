// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Attention from its definition: dense, slow and readable, in any precision.
///
/// In a wider type than the library's it is the oracle, in the same type the naive version that sets the
/// budget of errors.

#include "poslsh/attention/options.hpp"
#include "poslsh/position/hash.hpp"

#include <cmath>
#include <limits>
#include <span>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace poslsh::test {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// What results in T are held against.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, float>, double, long double>;

// --- Weights of pairs, as log_weight and support; -inf: the pair is not visible ---------------------------

inline constexpr KeyRange everywhere{min_position, max_position};

/// An explicit matrix over query and key rows, which stand at these positions.
struct WeightMatrix {
  Matrix<double> weights;
  Index query_offset = 0, key_offset = 0;
  KeyRange support(Index) const { return everywhere; }
  double log_weight(Index query, Index key) const {
    return std::log(weights(query - query_offset, key - key_offset));
  }
};

/// Mt(i, j) = (1/s) sum_r weight_r [i and j share a bin of hash r].
struct MeanOfMasks {
  std::span<const PositionHash> hashes;
  KeyRange support(Index) const { return everywhere; }
  double log_weight(Index query, Index key) const {
    double sum = 0;
    for (const PositionHash& hash : hashes)
      if (hash.bin(query) == hash.bin(key)) sum += hash.weight;
    return std::log(sum / static_cast<double>(hashes.size()));
  }
};

/// One mask, without its weight.
struct OneMask {
  PositionHash hash;
  KeyRange support(Index) const { return everywhere; }
  double log_weight(Index query, Index key) const { return hash.bin(query) == hash.bin(key) ? 0 : -infinity; }
};

// --- Which pairs are visible -------------------------------------------------------------------------------

inline Index first_query(const AttentionOptions& options, Index queries, Index keys) {
  return options.query_offset ? *options.query_offset : options.key_offset + keys - queries;
}

/// Whether the options let a query see a key, by absolute positions.
inline bool sees(const AttentionOptions& options, Index query, Index key) {
  if (options.causal && key > query) return false;
  if (options.window_left && query - key > *options.window_left) return false;
  if (options.window_right && key - query > *options.window_right) return false;
  return true;
}

/// The same by rows, under a bias.
template <class Bias>
Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic> visible_pairs(Index queries, Index keys, const Bias& bias,
                                                                 const AttentionOptions& options) {
  Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic> visible(queries, keys);
  for (Index i = 0; i < queries; ++i)
    for (Index j = 0; j < keys; ++j) {
      const Index query = first_query(options, queries, keys) + i, key = options.key_offset + j;
      visible(i, j) = sees(options, query, key) && bias.support(query).contains(key);
    }
  return visible;
}

// --- Attention ---------------------------------------------------------------------------------------------

template <class Real>
struct DenseOutput {
  Matrix<Real> values;
  Vector<Real> log_sum_exp;
  Real largest_score = 0, largest_value = 0;  ///< in magnitude, over what is visible, before the bias
};

/// values_i = sum_j exp(z_ij - lse_i) v_j, lse_i = log(exp(sink) + sum_j exp(z_ij)), with z = capped score +
/// log weight.
template <class Real, class Q, class K, class V, class Bias>
DenseOutput<Real> dense_attention(const Q& q, const K& k, const V& v, const Bias& bias,
                                  const AttentionOptions& options = {}) {
  const Matrix<Real> queries = q.template cast<Real>(), keys = k.template cast<Real>();
  const Matrix<Real> tokens = v.template cast<Real>();
  const Real lowest = -std::numeric_limits<Real>::infinity();
  const Real scale = static_cast<Real>(options.scale.value_or(1 / std::sqrt(static_cast<double>(q.cols()))));
  const Real sink = static_cast<Real>(options.sink.value_or(-infinity));
  DenseOutput<Real> out{Matrix<Real>::Zero(q.rows(), v.cols()), Vector<Real>::Constant(q.rows(), sink)};
  std::vector<Real> logits(static_cast<std::size_t>(k.rows()));
  for (Index i = 0; i < q.rows(); ++i) {
    const Index query = first_query(options, q.rows(), k.rows()) + i;
    const KeyRange support = bias.support(query);
    std::vector<Index> seen;
    Real largest = sink;
    for (Index j = 0; j < k.rows(); ++j) {
      const Index key = options.key_offset + j;
      if (!sees(options, query, key) || !support.contains(key)) continue;
      const Real log_weight = static_cast<Real>(bias.log_weight(query, key));
      if (log_weight == lowest) continue;
      Real score = 0;
      for (Index t = 0; t < q.cols(); ++t) score += queries(i, t) * keys(j, t);
      score *= scale;
      if (options.softcap) {
        const Real cap = static_cast<Real>(*options.softcap);
        score = cap * std::tanh(score / cap);
      }
      out.largest_score = std::max(out.largest_score, std::abs(score));
      for (Index f = 0; f < v.cols(); ++f)
        out.largest_value = std::max(out.largest_value, std::abs(tokens(j, f)));
      logits[static_cast<std::size_t>(j)] = score + log_weight;
      largest = std::max(largest, score + log_weight);
      seen.push_back(j);
    }
    if (seen.empty()) continue;
    Real total = sink == lowest ? 0 : std::exp(sink - largest);
    for (const Index j : seen) {
      const Real weight = std::exp(logits[static_cast<std::size_t>(j)] - largest);
      total += weight;
      out.values.row(i) += weight * tokens.row(j);
    }
    out.values.row(i) /= total;
    out.log_sum_exp[i] = largest + std::log(total);
  }
  return out;
}

/// The mean merge: sum_r weight_r T_r / sum_r weight_r, T_r the attention inside the mask of draw r, 0 in a
/// row that sees no key there. A sink is in every draw. Log-sum-exps are those of the ratio.
template <class Real, class Q, class K, class V>
DenseOutput<Real> dense_mean_of_draws(const Q& q, const K& k, const V& v,
                                      std::span<const PositionHash> hashes,
                                      const AttentionOptions& options = {}) {
  DenseOutput<Real> out = dense_attention<Real>(q, k, v, MeanOfMasks{hashes}, options);
  out.values.setZero();
  Real total = 0;
  for (const PositionHash& hash : hashes) {
    const Real weight = static_cast<Real>(hash.weight);
    out.values += weight * dense_attention<Real>(q, k, v, OneMask{hash}, options).values;
    total += weight;
  }
  out.values /= total;
  return out;
}

// --- Comparison --------------------------------------------------------------------------------------------

/// The largest |a - b|, NaN if there is one; equal infinities differ by 0.
template <class A, class B>
double distance(const A& a, const B& b) {
  using Real = std::common_type_t<typename A::Scalar, typename B::Scalar>;
  Real largest = 0;
  for (Index i = 0; i < a.rows(); ++i)
    for (Index j = 0; j < a.cols(); ++j) {
      const Real x = static_cast<Real>(a(i, j)), y = static_cast<Real>(b(i, j));
      if (x == y) continue;
      const Real difference = std::abs(x - y);
      if (!(difference <= largest)) largest = difference;
      if (largest != largest) return not_a_number;
    }
  return static_cast<double>(largest);
}

/// What is wrong about a result in T, or nothing. Its errors may be twice those of the naive version, plus a
/// few units of rounding of the largest value and score, since on a small problem the naive version may just
/// be lucky.
template <class T>
std::string fault(const AttentionOutput<T>& got, const DenseOutput<Wide<T>>& exact,
                  const DenseOutput<T>& naive, double units = 2) {
  if (got.values.rows() != exact.values.rows() || got.values.cols() != exact.values.cols())
    return "shape of values";
  if (got.log_sum_exp.size() != exact.log_sum_exp.size()) return "size of log_sum_exp";
  for (Index i = 0; i < got.values.rows(); ++i)
    if (exact.log_sum_exp[i] == -infinity &&
        (got.log_sum_exp[i] != -infinity || !(got.values.row(i).array() == 0).all()))
      return "row " + std::to_string(i) + " sees no key, but is not 0 with log_sum_exp -inf";
  const double unit = units * static_cast<double>(std::numeric_limits<T>::epsilon()) *
                      (1 + static_cast<double>(exact.largest_score));
  const double values = distance(got.values, exact.values),
               naive_values = distance(naive.values, exact.values);
  const double lse = distance(got.log_sum_exp, exact.log_sum_exp);
  const double naive_lse = distance(naive.log_sum_exp, exact.log_sum_exp);
  std::ostringstream text;
  if (!(values <= 2 * naive_values + unit * static_cast<double>(exact.largest_value)))
    text << "values err by " << values << ", naive ones by " << naive_values << "; ";
  if (!(lse <= 2 * naive_lse + unit))
    text << "log_sum_exp errs by " << lse << ", naively by " << naive_lse << "; ";
  return text.str();
}

/// The same for a result of attention over these inputs.
template <class T, class Q, class K, class V, class Bias>
std::string fault(const AttentionOutput<T>& got, const Q& q, const K& k, const V& v, const Bias& bias,
                  const AttentionOptions& options = {}, double units = 2) {
  return fault(got, dense_attention<Wide<T>>(q, k, v, bias, options),
               dense_attention<T>(q, k, v, bias, options), units);
}

/// Whether two results are the same bit by bit (any two NaN count as the same).
template <class A, class B>
bool same_numbers(const A& a, const B& b) {
  if (a.rows() != b.rows() || a.cols() != b.cols()) return false;
  for (Index i = 0; i < a.rows(); ++i)
    for (Index j = 0; j < a.cols(); ++j)
      if (!(a(i, j) == b(i, j) && std::signbit(a(i, j)) == std::signbit(b(i, j))) &&
          !(a(i, j) != a(i, j) && b(i, j) != b(i, j)))
        return false;
  return true;
}
template <class T>
bool same_bits(const AttentionOutput<T>& a, const AttentionOutput<T>& b) {
  return same_numbers(a.values, b.values) && same_numbers(a.log_sum_exp, b.log_sum_exp);
}

}  // namespace poslsh::test
