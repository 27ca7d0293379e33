// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Attention of all heads of a layer: batches, grouped heads, padding, packed sequences.

#include "poslsh/attention/attention.hpp"
#include "poslsh/model/tensor_view.hpp"

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

namespace poslsh::inline POSLSH_SIMD {

/// Options of a call over many heads. Defaults: every key row is valid, one sequence a batch item.
struct MultiHeadOptions {
  AttentionOptions attention = {};  ///< of every head
  /// One range of key rows a batch item; the others are padding and not visible. Empty: all rows. For a range {a, e}
  /// the positions of that item's keys and queries both shift by -a, so that row a stands at key_offset; queries are
  /// aligned by the padded row counts. So padding, left or right, leaves no trace in the rows of real queries, with
  /// random biases too. Rows of padded queries are unspecified, but finite.
  std::span<const KeyRange> valid_keys = {};
  /// Packed sequences: sequence m is the query rows [query_starts[m], query_starts[m + 1]) and the key rows
  /// [key_starts[m], key_starts[m + 1]) of a batch of 1. Both begin with 0 and never decrease; members may be empty. Each
  /// is a call of its own: its positions start at key_offset and its last query meets its last key. Rows past the
  /// last offset are 0, their log-sum-exp -inf. Empty: not packed.
  std::span<const Index> query_starts = {},
      key_starts = {};  ///< see query_starts
};

namespace detail {

/// One sequence of a call: which rows it is, and where they stand.
struct Sequence {
  Index item = 0;
  KeyRange queries, keys;
  Placement place;
};

/// Checks the packing or padding of a call and lists its sequences.
[[nodiscard]] inline std::vector<Sequence> sequences(Index batch, Index queries, Index keys,
                                                     const MultiHeadOptions& options) {
  const AttentionOptions& attention = options.attention;
  std::vector<Sequence> all;
  if (options.query_starts.empty() && options.key_starts.empty()) {
    const Index ranges = static_cast<Index>(options.valid_keys.size());
    POSLSH_CHECK(ranges == 0 || ranges == batch, "size of valid_keys", ranges, "0 or the batch");
    const Placement padded = place(queries, keys, attention);
    for (Index item = 0; item < batch; ++item) {
      const KeyRange valid = ranges == 0 ? KeyRange{0, keys} : options.valid_keys[static_cast<std::size_t>(item)];
      POSLSH_CHECK(valid.begin >= 0 && valid.begin <= valid.end, "begin of valid_keys", valid.begin,
                   "at least 0 and at most its end");
      POSLSH_CHECK(valid.end <= keys, "end of valid_keys", valid.end, "at most the tokens of k");
      AttentionOptions shifted = attention;
      shifted.query_offset = padded.query_offset - valid.begin;
      all.push_back({item, {0, queries}, valid, place(queries, valid.size(), shifted)});
    }
    return all;
  }
  const Index starts = static_cast<Index>(options.query_starts.size());
  POSLSH_CHECK(starts == static_cast<Index>(options.key_starts.size()), "size of query_starts", starts,
               "that of key_starts");
  POSLSH_CHECK(batch == 1, "batch of q", batch, "1 with packed sequences");
  POSLSH_CHECK(options.valid_keys.empty(), "size of valid_keys", options.valid_keys.size(),
               "0 with packed sequences, which have no padding");
  POSLSH_CHECK(!attention.query_offset, "query_offset", *attention.query_offset,
               "unset with packed sequences, each of which is aligned at its end");
  static_cast<void>(place(0, 0, attention));  // checks the options, also where there is no sequence
  const auto check_starts = [](std::span<const Index> offsets, Index rows, const char* name) {
    POSLSH_CHECK(offsets[0] == 0, name, offsets[0], "0 at first");
    for (std::size_t m = 1; m < offsets.size(); ++m)
      POSLSH_CHECK(offsets[m] >= offsets[m - 1], name, offsets[m], "at least the offset before");
    POSLSH_CHECK(offsets.back() <= rows, name, offsets.back(), "at most the tokens");
  };
  check_starts(options.query_starts, queries, "query_starts");
  check_starts(options.key_starts, keys, "key_starts");
  for (std::size_t m = 0; m + 1 < static_cast<std::size_t>(starts); ++m) {
    const KeyRange rows{options.query_starts[m], options.query_starts[m + 1]};
    const KeyRange visible{options.key_starts[m], options.key_starts[m + 1]};
    all.push_back({0, rows, visible, place(rows.size(), visible.size(), attention)});
  }
  return all;
}

/// Checks shapes and biases of a call.
template <class T, class S, PositionBias B>
void check_heads(const TensorView<const T>& q, const TensorView<const S>& k, const TensorView<const S>& v,
                 std::span<const B> biases) {
  check_tensor(q, "q");
  check_tensor(k, "k");
  check_tensor(v, "v");
  POSLSH_CHECK(k.batch == q.batch, "batch of k", k.batch, "that of q");
  POSLSH_CHECK(v.batch == q.batch, "batch of v", v.batch, "that of q");
  POSLSH_CHECK(k.heads > 0 ? q.heads % k.heads == 0 : q.heads == 0, "heads of k", k.heads,
               "a divisor of the heads of q");
  POSLSH_CHECK(v.heads == k.heads, "heads of v", v.heads, "those of k");
  POSLSH_CHECK(v.tokens == k.tokens, "tokens of v", v.tokens, "those of k");
  POSLSH_CHECK(k.features == q.features, "features of k", k.features, "those of q");
  const Index count = static_cast<Index>(biases.size());
  POSLSH_CHECK(count == q.heads || count == q.batch * q.heads, "number of biases", count,
               "the heads of q, or batch times heads");
  for (const B& bias : biases) validate(bias);
}

/// The bias of a query head, when there is one a head, or one a batch item and head: its place in the list.
[[nodiscard]] inline std::size_t bias_number(std::size_t biases, Index heads, Index item, Index head) {
  return static_cast<std::size_t>(static_cast<Index>(biases) != heads ? item * heads + head : head);
}

/// Some rows of a head of a tensor.
template <class T>
[[nodiscard]] Strided<T> rows_of_head(const TensorView<T>& tensor, Index item, Index head, KeyRange rows) {
  return head_of(tensor, item, head).middle_rows(rows.begin, rows.size());
}

/// run(sequence, key head, threads) for the heads of each sequence that read one key head. Many groups: one a thread, the
/// longest first. Few: all threads on one after the other.
template <class Run>
void each_group(const std::vector<Sequence>& all, Index key_heads, int threads, Run&& run) {
  const Index groups = static_cast<Index>(all.size()) * key_heads;
  if (groups < 4 * Index{threads}) {
    for (Index task = 0; task < groups; ++task)
      run(static_cast<std::size_t>(task / key_heads), task % key_heads, threads);
    return;
  }
  std::vector<std::size_t> order(all.size());
  for (std::size_t m = 0; m < order.size(); ++m) order[m] = m;
  const auto pairs = [&](std::size_t m) {
    return static_cast<double>(all[m].queries.size()) * static_cast<double>(all[m].keys.size());
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return pairs(a) > pairs(b); });
  parallel_for(groups, threads, [&](Index task, int) {
    run(order[static_cast<std::size_t>(task / key_heads)], task % key_heads, 1);
  });
}

/// The query heads of one sequence that read one key head.
template <class T, class S, PositionBias B>
struct HeadGroup {
  TensorView<const T> q;
  TensorView<const S> k, v;
  std::span<const B> biases;
  const AttentionOptions& options;

  /// store(item, head, row, sums, mass) for every query row of the sequence; see TileSweep::run.
  template <class Store>
  void run(const Sequence& sequence, Index key_head, int threads, Store&& store) const {
    const Index group = q.heads / k.heads, first = key_head * group, item = sequence.item;
    const auto bias_of = [&](Index head) -> const B& {
      return biases[bias_number(biases.size(), q.heads, item, head)];
    };
    // Keys are prepared once for all heads. Where tiles may be skipped, only heads with the same bounds share them, so
    // that each skips what it does alone.
    struct Shared {
      KeyRange seen;
      bool moments;
      std::unique_ptr<const PreparedKeys<T, S>> keys = nullptr;
    };
    const bool skip = may_skip<B>(options);
    std::vector<Shared> shared;
    std::vector<std::size_t> share;
    for (Index head = first; head < first + group; ++head) {
      const KeyRange rows = reach(bias_of(head), sequence.place);
      const bool moments = skip && want_moments(bias_of(head), q.features);
      std::size_t s = 0;
      while (s < shared.size() && skip && (shared[s].moments != moments || shared[s].seen != rows)) ++s;
      if (s == shared.size()) shared.push_back({rows, moments});
      KeyRange& seen = shared[s].seen;
      if (seen.empty())
        seen = rows;
      else if (!rows.empty())
        seen = {(std::min)(seen.begin, rows.begin), (std::max)(seen.end, rows.end)};
      share.push_back(s);
    }
    for (Shared& s : shared)
      s.keys = std::make_unique<const PreparedKeys<T, S>>(rows_of_head(k, item, key_head, sequence.keys), s.seen, skip,
                                                          s.moments, threads);
    std::vector<std::unique_ptr<Head<T, S, B>>> heads;
    for (Index head = first; head < first + group; ++head)
      heads.push_back(std::make_unique<Head<T, S, B>>(
          rows_of_head(q, item, head, sequence.queries), rows_of_head(v, item, key_head, sequence.keys),
          *shared[share[static_cast<std::size_t>(head - first)]].keys, bias_of(head), sequence.place, options));
    const Index tiles = heads.front()->tiles();
    struct Worker {
      Index head = -1;
      std::unique_ptr<TileSweep<T, S, B>> sweep;
    };
    std::vector<Worker> workers(static_cast<std::size_t>(std::min<Index>(threads, (std::max)(group * tiles, Index{1}))));
    parallel_for(group * tiles, threads, [&](Index task, int number) {
      Worker& worker = workers[static_cast<std::size_t>(number)];
      const Index head = task / tiles;
      if (worker.head != head)
        worker = {head, std::make_unique<TileSweep<T, S, B>>(*heads[static_cast<std::size_t>(head)])};
      worker.sweep->run((tiles - 1 - task % tiles) * query_tile,
                        [&](Index row, const T* sums, const RunningRow<double>& mass) {
                          store(item, first + head, sequence.queries.begin + row, sums, mass);
                        });
    });
  }
};

/// All heads of all sequences; shapes have been checked. The bits do not depend on the threads.
template <class T, class S, PositionBias B, class Store>
void attend_heads(const HeadGroup<T, S, B>& heads, const std::vector<Sequence>& all, Store&& store) {
  each_group(all, heads.k.heads, heads.options.threads, [&](std::size_t number, Index key_head, int threads) {
    heads.run(all[number], key_head, threads, store);
  });
}

}  // namespace detail

/// Attention of every head of every batch item, as attention() computes it for one: grouped and multi-query heads,
/// padding, packed sequences.
///
/// \param q, k, v  batch x query heads x queries x head_dim, batch x key heads x keys x head_dim, and x value_dim; the
///                 key heads divide the query heads, query head h reads key head h / (query heads / key heads)
/// \param out      batch x query heads x queries x value_dim; may overlap the inputs (a copy is made then)
/// \param biases   one a query head, or one a batch item and query head. Masks that shall be independent from head to
///                 head need draws of their own: give draw_hashes() the head as its stream.
/// \param options  see MultiHeadOptions; threads work on heads, sequences and tiles alike
/// \param log_sum_exp  null, or batch x query heads x queries values
/// \tparam Storage  of k and v: T, or Eigen::half or Eigen::bfloat16 for T = float
/// \throws Error on shapes, packings, biases and options that do not belong together, naming the argument
/// Cost and memory: those of attention() a head; of few heads one at a time, else of as many as there are threads. A
/// head has the same bits alone, in a batch, and for any number of threads. Thread safe.
template <class T, PositionBias B, class Storage = T>
void multi_head_attention(TensorView<const std::type_identity_t<T>> q,
                          TensorView<const std::type_identity_t<Storage>> k,
                          TensorView<const std::type_identity_t<Storage>> v, TensorView<T> out,
                          std::span<const B> biases, const MultiHeadOptions& options = {},
                          double* log_sum_exp = nullptr) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "attention computes in float or double");
  static_assert(std::is_same_v<detail::Compute<Storage>, T>, "Storage is T, or for float half or bfloat16");
  detail::check_heads<T, Storage, B>(q, k, v, biases);
  detail::check_tensor(out, "out");
  POSLSH_CHECK(out.batch == q.batch, "batch of out", out.batch, "that of q");
  POSLSH_CHECK(out.heads == q.heads, "heads of out", out.heads, "those of q");
  POSLSH_CHECK(out.tokens == q.tokens, "tokens of out", out.tokens, "those of q");
  POSLSH_CHECK(out.features == v.features, "features of out", out.features, "those of v");
  detail::check_output(out, "out");
  const std::vector<detail::Sequence> all = detail::sequences(q.batch, q.tokens, k.tokens, options);
  if (q.batch == 0 || q.heads == 0 || q.tokens == 0) return;
  const Index rows = q.batch * q.heads * q.tokens;
  const auto lse_view = TensorView<double>::heads_first(log_sum_exp, q.batch, q.heads, log_sum_exp ? q.tokens : 0, 1);
  const auto meets_input = [&](const auto& output) {
    return detail::overlap(output, q) || detail::overlap(output, k) || detail::overlap(output, v);
  };
  detail::Buffer<T> value_copy;
  detail::Buffer<double> lse_copy;
  TensorView<T> values = out;
  double* lse = log_sum_exp;
  if (meets_input(out) || meets_input(lse_view)) {
    value_copy = detail::Buffer<T>(rows * out.features);
    values = TensorView<T>::heads_first(value_copy.data(), q.batch, q.heads, q.tokens, out.features);
    if (lse != nullptr) lse = (lse_copy = detail::Buffer<double>(rows)).data();
  }
  const double sink = options.attention.sink.value_or(detail::minus_infinity);
  const auto store = [&](Index item, Index head, Index row, const T* sums, const detail::RunningRow<double>& mass) {
    double unused = 0;
    detail::store_row(sums, mass, sink, detail::head_of(values, item, head), row,
                      lse != nullptr ? lse[(item * q.heads + head) * q.tokens + row] : unused);
  };
  detail::attend_heads(detail::HeadGroup<T, Storage, B>{q, k, v, biases, options.attention}, all, store);
  for (Index row = options.query_starts.empty() ? q.tokens : options.query_starts.back(); row < q.tokens; ++row)
    for (Index head = 0; head < q.heads; ++head) {
      std::fill_n(detail::head_of(values, 0, head).row(row), values.features, T(0));
      if (lse != nullptr) lse[head * q.tokens + row] = detail::minus_infinity;
    }
  if (value_copy.data() == nullptr) return;
  for (Index item = 0; item < q.batch; ++item)
    for (Index head = 0; head < q.heads; ++head)
      for (Index row = 0; row < q.tokens; ++row)
        std::copy_n(detail::head_of(values, item, head).row(row), values.features,
                    detail::head_of(out, item, head).row(row));
  if (log_sum_exp != nullptr) std::copy_n(lse, rows, log_sum_exp);
}

/// The same with the biases in a vector.
template <class T, PositionBias B, class Storage = T>
void multi_head_attention(TensorView<const std::type_identity_t<T>> q,
                          TensorView<const std::type_identity_t<Storage>> k,
                          TensorView<const std::type_identity_t<Storage>> v, TensorView<T> out,
                          const std::vector<B>& biases, const MultiHeadOptions& options = {},
                          double* log_sum_exp = nullptr) {
  multi_head_attention<T, B, Storage>(q, k, v, out, std::span<const B>(biases), options, log_sum_exp);
}

}  // namespace poslsh::inline POSLSH_SIMD
