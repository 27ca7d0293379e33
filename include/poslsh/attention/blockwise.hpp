// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The reduction of arXiv 2605.09472, Theorem 2.2: ALiBi attention from short-context attentions without bias.

#include "poslsh/attention/attention.hpp"
#include "poslsh/position/hash.hpp"

#include <span>
#include <vector>

namespace poslsh::inline POSLSH_SIMD {

/// How blockwise_attention joins its s draws; T_r, D_r are the attention of draw r and its softmax denominator.
enum class Merge {
  ratio,  ///< sum_r w_r D_r T_r / sum_r w_r D_r: tends to exact ALiBi attention as s grows (Theorem 2.2)
  mean,   ///< sum_r w_r T_r / sum_r w_r: as published training runs had it; tends to another limit
};

namespace detail {

/// Rows of the result in progress, joined draw by draw.
template <class T>
class DrawMerger {
 public:
  DrawMerger(Index rows, Index features, Merge merge, double sink, double total_weight)
      : merge_(merge), sink_(sink), total_weight_(total_weight), values_(Matrix<T>::Zero(rows, features)), rows_(static_cast<std::size_t>(rows)) {}

  /// Takes in what one draw found for rows [first, first + part rows). Distinct rows may be added at the same time.
  void add(Index first, const AttentionOutput<T>& part, double weight) {
    const double log_weight = std::log(weight);
    for (Index i = 0; i < part.values.rows(); ++i) {
      if (part.log_sum_exp[i] == minus_infinity) continue;  // no visible key: nothing to add in either merge
      RunningRow<double>& row = rows_[static_cast<std::size_t>(first + i)];
      const double mass = part.log_sum_exp[i] + log_weight;
      if (!(mass <= row.maximum)) {
        const double shrink = std::exp(row.maximum - mass);
        row.sum *= shrink;
        if (merge_ == Merge::ratio && !row.empty) values_.row(first + i) *= static_cast<T>(shrink);
        row.maximum = mass;
      }
      row.empty = false;
      const double relative = std::exp(mass - row.maximum);
      row.sum += relative;
      double factor = relative;
      if (merge_ == Merge::mean)
        factor = weight / total_weight_ * share(part.log_sum_exp[i], log_add(part.log_sum_exp[i], sink_));
      values_.row(first + i) += static_cast<T>(factor) * part.values.row(i);
    }
  }

  /// The result over `samples` draws.
  [[nodiscard]] AttentionOutput<T> finish(Index samples) && {
    AttentionOutput<T> output{std::move(values_), Vector<double>(static_cast<Index>(rows_.size()))};
    for (Index i = 0; i < output.values.rows(); ++i) {
      const RunningRow<double>& row = rows_[static_cast<std::size_t>(i)];
      const FinishedRow finished =
          finish_row(row.empty, row.maximum - std::log(static_cast<double>(samples)), row.sum, sink_);
      output.log_sum_exp[i] = finished.log_sum_exp;
      if (!row.empty && merge_ == Merge::ratio) output.values.row(i) *= static_cast<T>(finished.factor);
    }
    return output;
  }

 private:
  Merge merge_;
  double sink_, total_weight_;
  Matrix<T> values_;
  std::vector<RunningRow<double>> rows_;
};

/// The non-empty pieces a hash cuts the query rows into: query rows, and the key rows of the same block that some of
/// them may see.
struct BlockPair {
  KeyRange queries, keys;
};

[[nodiscard]] inline std::vector<BlockPair> block_pairs(const PositionHash& hash, const Placement& place) {
  std::vector<BlockPair> pairs;
  for (Index row = 0; row < place.queries;) {
    const KeyRange block = hash.block(place.query_position(row));
    const Index end = (std::min)(block.end - place.query_offset, place.queries);
    const KeyRange keys{place.visible(block, row).begin, place.visible(block, end - 1).end};
    if (!keys.empty()) pairs.push_back({{row, end}, keys});
    row = end;
  }
  return pairs;
}

}  // namespace detail

/// Attention of one head over random blocks: for each hash, softmax attention without bias inside each of its blocks of
/// positions; the draws are then joined as `merge` says.
///
/// With Merge::ratio and hashes drawn for LaplaceKernel{1 / slope} this estimates exact ALiBi attention, and equals
/// attention(q, k, v, MeanMask(hashes)) up to rounding. log_sum_exp is that of Merge::ratio in both cases.
///
/// \param q, k, v   queries x head_dim, keys x head_dim, keys x value_dim: any Eigen expressions of float or double
/// \param hashes    at least one, see draw_hashes; blocks are those of absolute positions, so chunks and shards agree
/// \param options   as for attention(); a sink enters once, with Merge::mean once in every draw
/// \param kernel    the short-context attention: kernel(q, k, v, options) -> AttentionOutput<T> on the rows of one block,
///                  with absolute offsets and without sink in the options; may be called from several threads at once
/// \throws Error where attention() does, on an empty list or a bad hash, and if the kernel's output has another shape
/// Cost: s times the pairs inside a block, about 2 sigma keys a query and draw (half if causal, twice with importance
/// draws). Memory: the output and one block a thread. The same bits for any number of threads.
template <class Q, class K, class V, class Kernel>
  requires std::invocable<Kernel&, Eigen::Map<const Matrix<typename Q::Scalar>, 0, Eigen::Stride<-1, -1>>,
                          Eigen::Map<const Matrix<typename Q::Scalar>, 0, Eigen::Stride<-1, -1>>,
                          Eigen::Map<const Matrix<typename Q::Scalar>, 0, Eigen::Stride<-1, -1>>,
                          const AttentionOptions&>
[[nodiscard]] AttentionOutput<typename Q::Scalar> blockwise_attention(
    const Eigen::DenseBase<Q>& q, const Eigen::DenseBase<K>& k, const Eigen::DenseBase<V>& v,
    std::span<const PositionHash> hashes, const AttentionOptions& options, Merge merge, Kernel&& kernel) {
  using T = typename Q::Scalar;
  using Rows = Eigen::Map<const Matrix<T>, 0, Eigen::Stride<-1, -1>>;
  const detail::Viewed<Q> query_view(q);
  const detail::Viewed<K> key_view(k);
  const detail::Viewed<V> value_view(v);
  const detail::Strided<const T> queries = query_view.view(), keys = key_view.view(), values = value_view.view();
  detail::check_shapes(queries, keys, values);
  const detail::Placement place = detail::place(queries.rows, keys.rows, options);
  POSLSH_CHECK(!hashes.empty(), "hashes", "an empty list", "at least one hash");
  double total_weight = 0;
  for (const PositionHash& hash : hashes) {
    hash.validate();
    total_weight += hash.weight;
  }
  const auto rows_of = [](const detail::Strided<const T>& all, KeyRange range) {
    const detail::Strided<const T> part = all.middle_rows(range.begin, range.size());
    return Rows(part.data, part.rows, part.cols, Eigen::Stride<-1, -1>(part.row_stride, part.col_stride));
  };
  detail::DrawMerger<T> merger(queries.rows, values.cols, merge, options.sink.value_or(detail::minus_infinity),
                               total_weight);
  for (const PositionHash& hash : hashes) {
    const std::vector<detail::BlockPair> pairs = detail::block_pairs(hash, place);
    detail::parallel_for(static_cast<Index>(pairs.size()), options.threads, [&](Index task, int) {
      const detail::BlockPair& pair = pairs[static_cast<std::size_t>(task)];
      AttentionOptions local = options;
      local.scale = detail::score_scale(options, queries.cols);
      local.query_offset = place.query_offset + pair.queries.begin;
      local.key_offset = place.key_offset + pair.keys.begin;
      local.sink.reset();
      local.threads = 1;
      const AttentionOutput<T> part =
          kernel(rows_of(queries, pair.queries), rows_of(keys, pair.keys), rows_of(values, pair.keys), local);
      POSLSH_CHECK(part.values.rows() == pair.queries.size() && part.values.cols() == values.cols &&
                       part.log_sum_exp.size() == pair.queries.size(),
                   "the output of the short-context kernel", part.values.rows(),
                   "one row of value_dim features and one log_sum_exp a query");
      merger.add(pair.queries.begin, part, hash.weight);
    });
  }
  return std::move(merger).finish(static_cast<Index>(hashes.size()));
}

/// The same with this library's own streaming kernel on each block.
template <class Q, class K, class V>
[[nodiscard]] AttentionOutput<typename Q::Scalar> blockwise_attention(
    const Eigen::DenseBase<Q>& q, const Eigen::DenseBase<K>& k, const Eigen::DenseBase<V>& v,
    std::span<const PositionHash> hashes, const AttentionOptions& options = {}, Merge merge = Merge::ratio) {
  return blockwise_attention(q, k, v, hashes, options, merge,
                             [](const auto& queries, const auto& keys, const auto& values,
                                const AttentionOptions& local) {
                               return attention(queries, keys, values, NoBias{}, local);
                             });
}

}  // namespace poslsh::inline POSLSH_SIMD
