// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The reduction of arXiv 2605.09472, Theorem 2.2: ALiBi attention from short-context attentions without bias.

#include "poslsh/attention/attention.hpp"
#include "poslsh/position/hash.hpp"

#include <optional>
#include <span>
#include <vector>

namespace poslsh::inline POSLSH_SIMD {

/// How blockwise_attention joins its s draws; T_r, D_r are the attention of draw r and its softmax denominator.
enum class Merge {
  ratio,  ///< sum_r w_r D_r T_r / sum_r w_r D_r: tends to exact ALiBi attention as s grows (Theorem 2.2)
  mean,   ///< sum_r w_r T_r / sum_r w_r: as published training runs had it; tends to another limit
};

namespace detail {

/// The result in progress, joined draw by draw. Each row is kept as the mean of what it has seen so far, so that one
/// that a single draw reaches is stored once.
template <class T>
class DrawMerger {
 public:
  DrawMerger(Index rows, Index features, Merge merge, double sink, double total_weight)
      : merge_(merge), sink_(sink), total_weight_(total_weight), values_(rows, features),
        rows_(static_cast<std::size_t>(rows)) {}

  /// Takes in what one draw found for a row: the sum of exp(score - mass.maximum) v_j, and the same without values.
  /// Distinct rows may be added at the same time.
  void add(Index row, const T* sums, const RunningRow<double>& mass, double weight, double log_weight) {
    if (mass.empty) return;  // no visible key: nothing to add in either merge
    RunningRow<double>& all = rows_[static_cast<std::size_t>(row)];
    const double maximum = mass.maximum + log_weight;
    double before = all.sum, now = mass.sum;  // relative to the larger maximum
    if (!(maximum <= all.maximum)) {
      before = all.empty ? 0 : before * std::exp(all.maximum - maximum);
      all.maximum = maximum;
    } else {
      now *= std::exp(maximum - all.maximum);
    }
    all.sum = before + now;
    double keep = before / all.sum, take = now / all.sum;
    if (merge_ == Merge::mean) {
      keep = 1;
      take = weight / total_weight_;
      if (sink_ != minus_infinity) take *= finish_row(mass, sink_).factor * mass.sum;
    }
    join(values_.data() + row * values_.cols(), static_cast<T>(keep), sums, static_cast<T>(take / mass.sum), all.empty);
    all.empty = false;
  }

  /// The result over `samples` draws.
  [[nodiscard]] AttentionOutput<T> finish(Index samples) && {
    AttentionOutput<T> output{std::move(values_), Vector<double>(static_cast<Index>(rows_.size()))};
    for (Index i = 0; i < output.values.rows(); ++i) {
      RunningRow<double>& row = rows_[static_cast<std::size_t>(i)];
      row.sum /= static_cast<double>(samples);
      const FinishedRow finished = finish_row(row, sink_);
      output.log_sum_exp[i] = finished.log_sum_exp;
      if (row.empty)
        output.values.row(i).setZero();
      else if (merge_ == Merge::ratio && sink_ != minus_infinity)
        output.values.row(i) *= static_cast<T>(finished.factor * row.sum);
    }
    return output;
  }

 private:
  void join(T* values, T keep, const T* sums, T take, bool first) const {
    const Index features = values_.cols();
    if (first)
      for (Index f = 0; f < features; ++f) values[f] = take * sums[f];
    else
      for (Index f = 0; f < features; ++f) values[f] = keep * values[f] + take * sums[f];
  }

  Merge merge_;
  double sink_, total_weight_;
  Matrix<T> values_;
  std::vector<RunningRow<double>> rows_;
};

/// The mask of one draw as a bias: weight 1 inside the query's block.
struct OneMask {
  static constexpr bool unit_weights = true;
  const PositionHash& hash;

  [[nodiscard]] KeyRange support(Index query) const { return hash.block(query); }
  [[nodiscard]] double log_weight(Index query, Index key) const {
    return support(query).contains(key) ? 0 : minus_infinity;
  }
  template <class T>
  void add_log_weights(Index, Index, T*, Index) const {}
};

/// A block is found once for the queries of a tile that are in it.
template <class T>
class BiasRows<OneMask, T> {
 public:
  static constexpr bool prepared = false;
  BiasRows(const OneMask& mask, const Placement& place) : mask_(mask), place_(place) {}
  [[nodiscard]] double reference() const { return 0; }

  class Rows {
   public:
    explicit Rows(const BiasRows& shared) : shared_(shared) {}
    void queries(Index first, Index count) {
      KeyRange block;
      for (Index r = 0; r < count; ++r) {
        const Index position = shared_.place_.query_position(first + r);
        if (r == 0 || position >= block.end) block = shared_.mask_.support(position);
        support_[r] = block;
      }
    }
    void keys(Index, Index) {}
    [[nodiscard]] KeyRange support(Index r) const { return support_[r]; }

   private:
    const BiasRows& shared_;
    KeyRange support_[query_tile];
  };

 private:
  const OneMask& mask_;
  Placement place_;
};

/// The key rows that some query may see in some draw.
[[nodiscard]] inline KeyRange reach(std::span<const PositionHash> hashes, const Placement& place) {
  std::vector<KeyRange> rows;
  for (const PositionHash& hash : hashes) rows.push_back(reach(OneMask{hash}, place));
  const KeyRange all = hull_of(rows.data(), static_cast<Index>(rows.size()));
  return all.empty() ? KeyRange{} : all;
}

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

/// All draws, joined. run(hash, store) is the attention of one draw, store as in TileSweep::run.
template <class T, class Run>
AttentionOutput<T> join_draws(const Placement& place, Index features, std::span<const PositionHash> hashes,
                              const AttentionOptions& options, Merge merge, Run&& run) {
  POSLSH_CHECK(!hashes.empty(), "hashes", "an empty list", "at least one hash");
  double total_weight = 0;
  for (const PositionHash& hash : hashes) {
    hash.validate();
    total_weight += hash.weight;
  }
  DrawMerger<T> merger(place.queries, features, merge, options.sink.value_or(minus_infinity), total_weight);
  for (const PositionHash& hash : hashes) {
    const double log_weight = std::log(hash.weight);
    run(hash, [&](Index row, const T* sums, const RunningRow<double>& mass) {
      merger.add(row, sums, mass, hash.weight, log_weight);
    });
  }
  return std::move(merger).finish(static_cast<Index>(hashes.size()));
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
  const auto mapped = [](const detail::Strided<const T>& rows) {
    return Rows(rows.data, rows.rows, rows.cols, Eigen::Stride<-1, -1>(rows.row_stride, rows.col_stride));
  };
  const detail::Strided<const T> queries = query_view.view(), keys = key_view.view(), values = value_view.view();
  detail::check_shapes(queries, keys, values);
  const detail::Placement place = detail::place(queries.rows, keys.rows, options);
  return detail::join_draws<T>(place, values.cols, hashes, options, merge, [&](const PositionHash& hash, auto&& store) {
    const std::vector<detail::BlockPair> pairs = detail::block_pairs(hash, place);
    detail::parallel_for(static_cast<Index>(pairs.size()), options.threads, [&](Index task, int) {
      const detail::BlockPair& pair = pairs[static_cast<std::size_t>(task)];
      AttentionOptions local = options;
      local.scale = detail::score_scale(options, queries.cols);
      local.query_offset = place.query_offset + pair.queries.begin;
      local.key_offset = place.key_offset + pair.keys.begin;
      local.sink.reset();
      local.threads = 1;
      const auto of_keys = [&](const auto& rows) { return mapped(rows.middle_rows(pair.keys.begin, pair.keys.size())); };
      const AttentionOutput<T> part =
          kernel(mapped(queries.middle_rows(pair.queries.begin, pair.queries.size())), of_keys(keys), of_keys(values), local);
      POSLSH_CHECK(part.values.rows() == pair.queries.size() && part.values.cols() == values.cols &&
                       part.log_sum_exp.size() == pair.queries.size(),
                   "the output of the short-context kernel", part.values.rows(),
                   "one row of value_dim features and one log_sum_exp a query");
      for (Index i = 0; i < pair.queries.size(); ++i)
        store(pair.queries.begin + i, part.values.data() + i * values.cols,
              detail::RunningRow<double>{part.log_sum_exp[i], 1, part.log_sum_exp[i] == detail::minus_infinity});
    });
  });
}

/// The same with this library's own streaming kernel, one sweep over all blocks of a draw; k and v may be stored narrower,
/// as for attention(). Memory: the output and one copy of the keys.
template <class Q, class K, class V>
[[nodiscard]] AttentionOutput<detail::Compute<typename Q::Scalar>> blockwise_attention(
    const Eigen::DenseBase<Q>& q, const Eigen::DenseBase<K>& k, const Eigen::DenseBase<V>& v,
    std::span<const PositionHash> hashes, const AttentionOptions& options = {}, Merge merge = Merge::ratio) {
  using S = typename K::Scalar;
  using T = detail::Compute<typename Q::Scalar>;
  const detail::Viewed<Q, T> query_view(q);
  const detail::Viewed<K> key_view(k);
  const detail::Viewed<V> value_view(v);
  const detail::Strided<const T> queries = query_view.view();
  const detail::Strided<const S> keys = key_view.view(), values = value_view.view();
  detail::check_shapes(queries, keys, values);
  const detail::Placement place = detail::place(queries.rows, keys.rows, options);
  // Keys are prepared once for all draws.
  std::optional<detail::PreparedKeys<T, S>> prepared;
  return detail::join_draws<T>(place, values.cols, hashes, options, merge, [&](const PositionHash& hash, auto&& store) {
    if (!prepared) prepared.emplace(keys, detail::reach(hashes, place), false, false, options.threads);
    const detail::OneMask mask{hash};
    detail::sweep_tiles(detail::Head<T, S, detail::OneMask>(queries, values, *prepared, mask, place, options),
                        options.threads, store);
  });
}

}  // namespace poslsh::inline POSLSH_SIMD
