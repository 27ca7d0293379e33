// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The reduction of arXiv 2605.09472, Theorem 2.2: ALiBi attention from short-context attentions without bias.

#include "poslsh/attention/attention.hpp"
#include "poslsh/position/hash.hpp"

#include <memory>
#include <span>
#include <vector>

namespace poslsh::inline POSLSH_SIMD {

/// How blockwise_attention joins its s draws; T_r, D_r are the attention of draw r and its softmax denominator.
enum class Merge {
  ratio,  ///< sum_r w_r D_r T_r / sum_r w_r D_r: tends to exact ALiBi attention as s grows (Theorem 2.2)
  mean,   ///< sum_r w_r T_r / sum_r w_r: as published training runs had it; tends to another limit
};

namespace detail {

inline void check_merge(Merge merge) {
  POSLSH_CHECK(merge == Merge::ratio || merge == Merge::mean, "merge", static_cast<int>(merge), "one of Merge");
}

inline void check_draws(std::span<const PositionHash> hashes, Merge merge) {
  check_merge(merge);
  POSLSH_CHECK(!hashes.empty(), "hashes", "an empty list", "at least one hash");
  for (const PositionHash& hash : hashes) hash.validate();
}

/// Rows of the result in progress, joined draw by draw. Each is kept as the mean of what it has seen so far; in double,
/// since 10^5 roundings of a float would add up.
template <class T>
class DrawMerger {
 public:
  /// Room for so many rows, which have seen nothing.
  DrawMerger(Index rows, Index features, std::span<const PositionHash> hashes, Merge merge, double sink)
      : merge_(merge), sink_(sink), features_(features), values_(rows * features), rows_(static_cast<std::size_t>(rows)) {
    for (const PositionHash& hash : hashes) {
      weights_.push_back(hash.weight);
      log_weights_.push_back(std::log(hash.weight));
      total_weight_ += hash.weight;
    }
  }

  /// Takes in what a draw found for a row: the sum of exp(score - mass.maximum) v_j, and the same without values.
  /// Distinct rows may be added at the same time.
  void add(Index row, const T* sums, const RunningRow<double>& mass, std::size_t draw) {
    if (mass.empty) return;  // no visible key: nothing to add in either merge
    RunningRow<double>& all = rows_[static_cast<std::size_t>(row)];
    const double maximum = mass.maximum + log_weights_[draw];
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
      take = weights_[draw] / total_weight_;
      if (sink_ != minus_infinity) take *= finish_row(mass, sink_).factor * mass.sum;
    }
    join(values_.data() + row * features_, keep, sums, take / mass.sum, all.empty);
    all.empty = false;
  }

  /// Closes the first rows: writes them out, and makes them such that have seen nothing.
  void finish(Strided<T> values, double* log_sum_exp) {
    for (Index i = 0; i < values.rows; ++i) {
      RunningRow<double>& row = rows_[static_cast<std::size_t>(i)];
      row.sum /= static_cast<double>(weights_.size());
      const FinishedRow finished = finish_row(row, sink_);
      log_sum_exp[i] = finished.log_sum_exp;
      const double factor = merge_ == Merge::ratio && sink_ != minus_infinity ? finished.factor * row.sum : 1;
      for (Index f = 0; f < features_; ++f)
        values(i, f) = row.empty ? T(0) : static_cast<T>(factor * values_[i * features_ + f]);
      row = {};
    }
  }

 private:
  void join(double* values, double keep, const T* sums, double take, bool first) const {
    if (first)
      for (Index f = 0; f < features_; ++f) values[f] = take * static_cast<double>(sums[f]);
    else
      for (Index f = 0; f < features_; ++f) values[f] = keep * values[f] + take * static_cast<double>(sums[f]);
  }

  Merge merge_;
  double sink_, total_weight_ = 0;
  Index features_;
  std::vector<double> weights_, log_weights_;
  Buffer<double> values_;
  std::vector<RunningRow<double>> rows_;
};

/// The mask of one draw as a bias: weight 1 inside the query's block.
struct OneMask {
  static constexpr bool unit_weights = true;
  const PositionHash* hash;

  [[nodiscard]] KeyRange support(Index query) const { return hash->block(query); }
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
  for (const PositionHash& hash : hashes) rows.push_back(reach(OneMask{&hash}, place));
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

/// All draws over one tile of queries after the other, and the scratch memory for it.
template <class T, class S>
class DrawSweep {
 public:
  DrawSweep(Strided<const T> queries, Strided<const S> values, const PreparedKeys<T, S>& keys, const Placement& place,
            std::span<const PositionHash> hashes, const AttentionOptions& options, Merge merge)
      : hashes_(hashes), mask_{hashes.data()}, head_(queries, values, keys, mask_, place, options), sweep_(head_),
        merger_(query_tile, values.cols, hashes, merge, options.sink.value_or(minus_infinity)) {}

  /// Query rows [first, first + query_tile) or to the end, into the rows of an output.
  void run(Index first, AttentionOutput<T>& output) {
    for (std::size_t draw = 0; draw < hashes_.size(); ++draw) {
      mask_.hash = &hashes_[draw];
      sweep_.run(first, [&](Index row, const T* sums, const RunningRow<double>& mass) {
        merger_.add(row - first, sums, mass, draw);
      });
    }
    const Index count = (std::min)(query_tile, head_.place.queries - first);
    merger_.finish(strided(output.values).middle_rows(first, count), output.log_sum_exp.data() + first);
  }

 private:
  std::span<const PositionHash> hashes_;
  OneMask mask_;  ///< of the draw in turn
  Head<T, S, OneMask> head_;
  TileSweep<T, S, OneMask> sweep_;
  DrawMerger<T> merger_;
};

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
/// draws). Memory: the output, once more in double, and one block a thread. The same bits for any number of threads.
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
  detail::check_draws(hashes, merge);
  detail::DrawMerger<T> merger(queries.rows, values.cols, hashes, merge, options.sink.value_or(detail::minus_infinity));
  for (std::size_t draw = 0; draw < hashes.size(); ++draw) {
    const std::vector<detail::BlockPair> pairs = detail::block_pairs(hashes[draw], place);
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
        merger.add(pair.queries.begin + i, part.values.data() + i * values.cols,
                   {part.log_sum_exp[i], 1, part.log_sum_exp[i] == detail::minus_infinity}, draw);
    });
  }
  AttentionOutput<T> output{Matrix<T>(queries.rows, values.cols), Vector<double>(queries.rows)};
  merger.finish(detail::strided(output.values), output.log_sum_exp.data());
  return output;
}

/// The same with this library's own streaming kernel: a sweep a draw over each tile of queries, and keys prepared once; k and
/// v may be stored narrower, as for attention(). Memory beyond the output: as for attention().
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
  detail::check_draws(hashes, merge);
  const detail::PreparedKeys<T, S> prepared(keys, detail::reach(hashes, place), false, false, options.threads);
  AttentionOutput<T> output{Matrix<T>(queries.rows, values.cols), Vector<double>(queries.rows)};
  const Index tiles = (queries.rows + detail::query_tile - 1) / detail::query_tile;
  using Sweep = detail::DrawSweep<T, S>;
  std::vector<std::unique_ptr<Sweep>> sweeps(static_cast<std::size_t>(std::min<Index>(options.threads, tiles)));
  detail::parallel_for(tiles, options.threads, [&](Index task, int worker) {
    std::unique_ptr<Sweep>& sweep = sweeps[static_cast<std::size_t>(worker)];
    if (!sweep) sweep = std::make_unique<Sweep>(queries, values, prepared, place, hashes, options, merge);
    sweep->run((tiles - 1 - task) * detail::query_tile, output);  // under causality the last tiles cost most
  });
  return output;
}

}  // namespace poslsh::inline POSLSH_SIMD
