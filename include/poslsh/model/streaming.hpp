// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Causal attention over a growing sequence: chunked prefill, then token by token.

#include "poslsh/model/stream_head.hpp"
#include "poslsh/model/streaming_state.hpp"
#include "poslsh/model/tensor_view.hpp"

#include <iosfwd>
#include <memory>
#include <vector>

namespace poslsh::inline POSLSH_SIMD {

/// Attention of all heads of a layer over a sequence that grows, with the keys and values kept inside:
/// step() gives the rows that one long causal call over all tokens so far would give.
///
/// What no later query can reach is dropped at the end of every step: outside the support of MeanMask or FixedBlocks,
/// beyond window_left; with AlibiBias of positive slope and no window, if max_query_norm is given, what lies within
/// AttentionOptions::tolerance (else every key is kept). Memory: room for at most twice the largest number of tokens
/// held so far, during a step too, and three key tiles (1152 tokens) more.
///
/// \tparam T        float or double, of queries, inputs and outputs
/// \tparam Storage  of the cache: T, or for float Eigen::half or Eigen::bfloat16, which halve it; computing stays in T.
///                  Beyond 65504 half is infinite
/// Not thread safe; options.threads work on the heads of a step.
template <class T, PositionBias B, class Storage = T>
class StreamingAttention {
 public:
  /// \param biases     one a query head
  /// \param key_heads  a divisor of the query heads; grouped heads share their cache
  /// \param options    as for attention(), always causal; key_offset is the position of the first token, query_offset
  ///                   must be unset. The tolerance serves to drop keys only: a step visits all that are cached
  /// \param max_query_norm  a promise on the norm of every later query (before the scale)
  /// \throws Error on what does not belong together
  StreamingAttention(std::vector<B> biases, Index key_heads, Index head_dim, Index value_dim,
                     AttentionOptions options = {}, std::optional<double> max_query_norm = {})
      : biases_(std::move(biases)), head_dim_(head_dim), value_dim_(value_dim), options_(options),
        max_query_norm_(max_query_norm), position_(options.key_offset) {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "attention computes in float or double");
    static_assert(std::is_same_v<detail::Compute<Storage>, T>, "Storage is T, or for float half or bfloat16");
    const Index heads = static_cast<Index>(biases_.size());
    POSLSH_CHECK(heads >= 1, "number of biases", heads, "at least 1, one a query head");
    POSLSH_CHECK(key_heads >= 1 && heads % key_heads == 0, "key_heads", key_heads, "a divisor of the query heads");
    check_size(head_dim, "head_dim");
    check_size(value_dim, "value_dim");
    POSLSH_CHECK(!options_.query_offset, "query_offset", *options_.query_offset,
                 "unset: queries follow the tokens so far");
    if (max_query_norm_)
      POSLSH_CHECK(*max_query_norm_ >= 0 && std::isfinite(*max_query_norm_), "max_query_norm", *max_query_norm_,
                   "finite and at least 0");
    options_.causal = true;
    options_.scale = detail::score_scale(options_, head_dim);
    static_cast<void>(detail::place(0, 0, options_));  // checks the rest
    for (const B& bias : biases_) detail::validate(bias);
    for (Index h = 0; h < key_heads; ++h) caches_.push_back(std::make_unique<Cache>(head_dim, value_dim, position_, budgeted()));
    begins_.resize(static_cast<std::size_t>(key_heads));
    group_ = heads / key_heads;
    for (Index h = 0; h < heads; ++h)
      heads_.push_back(std::make_unique<QueryHead>(key_head(h / group_), biases_[static_cast<std::size_t>(h)], options_));
  }

  /// Adds tokens without queries of their own.
  /// \param k, v  1 x key heads x tokens x head_dim, and x value_dim
  /// \throws Error on other shapes, past position 2^52, and for more than 2^36 tokens in a call; std::bad_alloc where
  /// memory has run out; what a bias of the caller's own throws. The state is as before then
  void append(TensorView<const T> k, TensorView<const T> v) {
    Undo undo(*this);
    take_in(k, v);
    drop();
    undo.no_more();
  }

  /// Adds tokens and attends from the last of them.
  /// \param q    1 x query heads x queries x head_dim: the last `queries` of the new tokens, at most as many
  /// \param k, v 1 x key heads x tokens x head_dim, and x value_dim
  /// \param out  1 x query heads x queries x value_dim; may overlap the inputs
  /// \throws Error where append() does, and for a query beyond max_query_norm; std::bad_alloc and others as append().
  /// The state is as before then; rows of out may have been written
  /// Cost: 4 head_dim flops for each query and visible key; for a single query, the time to read its keys and values.
  void step(TensorView<const T> q, TensorView<const T> k, TensorView<const T> v, TensorView<T> out) {
    detail::check_tensor(q, "q");
    detail::check_tensor(out, "out");
    const Index heads = static_cast<Index>(heads_.size());
    POSLSH_CHECK(q.batch == 1, "batch of q", q.batch, "1");
    POSLSH_CHECK(q.heads == heads, "heads of q", q.heads, "one a bias");
    POSLSH_CHECK(q.features == head_dim_, "features of q", q.features, "head_dim");
    POSLSH_CHECK(q.tokens <= k.tokens, "tokens of q", q.tokens, "at most those of k");
    POSLSH_CHECK(out.batch == 1 && out.heads == heads, "heads of out", out.heads, "those of q, in a batch of 1");
    POSLSH_CHECK(out.tokens == q.tokens, "tokens of out", out.tokens, "those of q");
    POSLSH_CHECK(out.features == value_dim_, "features of out", out.features, "value_dim");
    detail::check_output(out, "out");
    check_norms(q);
    detail::Buffer<T> copy;
    if (detail::overlap(out, q)) {
      copy = detail::Buffer<T>(heads * q.tokens * head_dim_);
      const auto packed = TensorView<T>::heads_first(copy.data(), 1, heads, q.tokens, head_dim_);
      for (Index h = 0; h < heads; ++h)
        for (Index i = 0; i < q.tokens; ++i)
          std::copy_n(detail::head_of(q, 0, h).row(i), head_dim_, detail::head_of(packed, 0, h).row(i));
      q = packed;
    }
    Undo undo(*this);
    take_in(k, v);
    const double sink = options_.sink.value_or(detail::minus_infinity);
    detail::parallel_for(heads, options_.threads, [&](Index h, int) {
      QueryHead& head = *heads_[static_cast<std::size_t>(h)];
      const Cache& cache = key_head(h / group_);
      detail::Placement place = detail::place(q.tokens, cache.end(), options_);
      place.key_offset = cache.position();
      place.query_offset = position_ - q.tokens;
      place.first_key = cache.first();
      head.head.move_to(detail::head_of(q, 0, h), cache.values(), place);
      for (Index tile = 0; tile < head.head.tiles(); ++tile)
        head.sweep.run(tile * detail::query_tile,
                       [&](Index row, const T* sums, const detail::RunningRow<double>& mass) {
                         double unused;
                         detail::store_row(sums, mass, sink, detail::head_of(out, 0, h), row, unused);
                       });
    });
    drop();
    undo.no_more();
  }

  /// The position of the next token.
  [[nodiscard]] Index position() const { return position_; }
  /// Tokens whose keys and values are kept for a key head.
  [[nodiscard]] Index cached_tokens(Index key_head) const {
    POSLSH_CHECK(key_head >= 0 && key_head < static_cast<Index>(caches_.size()), "key_head", key_head,
                 "at least 0 and below key_heads");
    return caches_[static_cast<std::size_t>(key_head)]->tokens();
  }
  /// Memory of all keys and values, room to grow included.
  [[nodiscard]] std::size_t bytes() const {
    std::size_t sum = 0;
    for (const std::unique_ptr<Cache>& cache : caches_) sum += cache->bytes();
    return sum;
  }

  /// Writes the state in this machine's byte order. \throws Error if the stream fails
  void save(std::ostream& out) const;
  /// Reads a state back; later steps have the same bits. The biases must be those it was made with, which is checked by
  /// their log weights at some keys.
  /// \throws Error on a state that is truncated, damaged, or of another kind of StreamingAttention or other biases
  [[nodiscard]] static StreamingAttention load(std::istream& in, std::vector<B> biases);

 private:
  using Cache = detail::KeyValueCache<T, Storage>;
  using QueryHead = detail::StreamHead<T, Storage, B>;

  /// Takes back the tokens of a call that fails.
  class Undo {
   public:
    explicit Undo(StreamingAttention& stream) : stream_(&stream), position_(stream.position_) {
      for (const std::unique_ptr<Cache>& cache : stream.caches_) cache->mark();
      for (const std::unique_ptr<QueryHead>& head : stream.heads_) head->budget_before = head->budget;
    }
    Undo(const Undo&) = delete;
    ~Undo() {
      if (stream_ == nullptr) return;
      for (const std::unique_ptr<Cache>& cache : stream_->caches_) cache->take_back();
      for (const std::unique_ptr<QueryHead>& head : stream_->heads_) head->budget = head->budget_before;
      stream_->position_ = position_;
    }
    void no_more() { stream_ = nullptr; }

   private:
    StreamingAttention* stream_;
    Index position_;
  };

  static constexpr Index last_position = Index{1} << 52;

  static void check_size(Index size, const char* name) {
    POSLSH_CHECK(size >= 0 && size <= Index{1} << 20, name, size, "between 0 and 2^20");
  }
  [[nodiscard]] Cache& key_head(Index h) { return *caches_[static_cast<std::size_t>(h)]; }
  /// Whether keys are dropped by what they can weigh.
  [[nodiscard]] bool budgeted() const {
    return std::is_same_v<B, AlibiBias> && max_query_norm_ && options_.tolerance > 0 && !options_.window_left;
  }

  void check_norms(const TensorView<const T>& q) const {
    if (!max_query_norm_) return;
    for (Index h = 0; h < q.heads; ++h)
      for (Index i = 0; i < q.tokens; ++i) {
        const double norm = detail::norm_in<T>(detail::head_of(q, 0, h).row(i), head_dim_);
        POSLSH_CHECK(norm <= *max_query_norm_, "norm of a query", norm, "at most max_query_norm");
      }
  }
  /// A bound on the size of later scores of a key.
  [[nodiscard]] double score_bound(const T* key) const {
    const double norm = detail::norm_in<Storage>(key, head_dim_);
    if (!std::isfinite(norm)) return -detail::minus_infinity;
    const double rounding = 1 + static_cast<double>(head_dim_ + 8) * static_cast<double>(std::numeric_limits<T>::epsilon());
    return rounding * (std::min)(std::abs(*options_.scale) * *max_query_norm_ * norm,
                                 options_.softcap.value_or(-detail::minus_infinity));
  }

  void take_in(const TensorView<const T>& k, const TensorView<const T>& v);
  void drop();

  std::vector<B> biases_;
  Index head_dim_, value_dim_;
  AttentionOptions options_;
  std::optional<double> max_query_norm_;
  Index position_;
  Index group_ = 0;  ///< query heads that share a key head
  std::vector<std::unique_ptr<Cache>> caches_;
  std::vector<std::unique_ptr<QueryHead>> heads_;
  std::vector<Index> begins_;  ///< the first position that is still needed, of each key head
};

template <class T, PositionBias B, class Storage>
void StreamingAttention<T, B, Storage>::take_in(const TensorView<const T>& k, const TensorView<const T>& v) {
  const Index key_heads = static_cast<Index>(caches_.size());
  detail::check_tensor(k, "k");
  detail::check_tensor(v, "v");
  POSLSH_CHECK(k.batch == 1 && k.heads == key_heads, "heads of k", k.heads, "key_heads, in a batch of 1");
  POSLSH_CHECK(v.batch == 1 && v.heads == key_heads, "heads of v", v.heads, "key_heads, in a batch of 1");
  POSLSH_CHECK(k.features == head_dim_, "features of k", k.features, "head_dim");
  POSLSH_CHECK(v.features == value_dim_, "features of v", v.features, "value_dim");
  POSLSH_CHECK(v.tokens == k.tokens, "tokens of v", v.tokens, "those of k");
  POSLSH_CHECK(k.tokens <= last_position - position_, "tokens of k", k.tokens, "so few that positions stay within 2^52");
  POSLSH_CHECK(k.tokens <= Index{1} << 36, "tokens of k", k.tokens, "at most 2^36 in a call");  // whose bytes can be counted
  for (const std::unique_ptr<Cache>& cache : caches_) cache->reserve(k.tokens);  // all may fail, none has changed
  for (Index h = 0; h < key_heads; ++h) key_head(h).append(detail::head_of(k, 0, h), detail::head_of(v, 0, h));
  position_ += k.tokens;
  if (!budgeted()) return;
  for (Index h = 0; h < key_heads; ++h)
    for (Index j = 0; j < k.tokens; ++j) {
      const double bound = score_bound(detail::head_of(k, 0, h).row(j));
      key_head(h).note(key_head(h).end() - k.tokens + j) = bound;
      for (Index g = h * group_; g < (h + 1) * group_; ++g) heads_[static_cast<std::size_t>(g)]->budget.append(bound);
    }
}

template <class T, PositionBias B, class Storage>
void StreamingAttention<T, B, Storage>::drop() {
  const Index key_heads = static_cast<Index>(caches_.size());
  if (budgeted()) {
    for (Index h = 0; h < key_heads; ++h) {
      Cache& cache = key_head(h);
      const auto age = [&](Index row) { return position_ - 1 - (cache.position() + row); };
      const auto may_go = [&](Index row) {
        for (Index g = h * group_; g < (h + 1) * group_; ++g)
          if (!heads_[static_cast<std::size_t>(g)]->budget.allows(cache.note(row), age(row)))
            return false;
        return true;
      };
      Index row = cache.first();
      for (; row < cache.end() && may_go(row); ++row)
        for (Index g = h * group_; g < (h + 1) * group_; ++g)
          heads_[static_cast<std::size_t>(g)]->budget.drop(cache.note(row), age(row));
      cache.drop_before(row);
    }
    return;
  }
  // First all that a caller's bias may make fail.
  for (Index h = 0; h < key_heads; ++h) {
    Index& begin = begins_[static_cast<std::size_t>(h)] = position_;
    for (Index g = h * group_; g < (h + 1) * group_; ++g)
      begin = (std::min)(begin, heads_[static_cast<std::size_t>(g)]->support_begin(position_));
    if (options_.window_left) begin = (std::max)(begin, position_ - (std::min)(*options_.window_left, max_position));
  }
  for (Index h = 0; h < key_heads; ++h)
    if (const Index rows = begins_[static_cast<std::size_t>(h)] - key_head(h).position(); rows > 0) key_head(h).drop_before(rows);
}

template <class T, PositionBias B, class Storage>
void StreamingAttention<T, B, Storage>::save(std::ostream& out) const {
  detail::StateWriter state(out);
  detail::write_header<T, Storage>(state, {static_cast<Index>(heads_.size()), static_cast<Index>(caches_.size()),
                                           head_dim_, value_dim_, options_, max_query_norm_, position_});
  for (const std::unique_ptr<Cache>& cache : caches_) detail::write_cache(state, std::as_const(*cache));
  for (std::size_t h = 0; h < heads_.size(); ++h) detail::write_head(state, std::as_const(heads_[h]->budget), biases_[h], position_);
  state.finish();
}

template <class T, PositionBias B, class Storage>
StreamingAttention<T, B, Storage> StreamingAttention<T, B, Storage>::load(std::istream& in, std::vector<B> biases) {
  detail::StateReader state(in);
  const auto header = detail::read_header<T, Storage>(state, static_cast<Index>(biases.size()));
  StreamingAttention stream(std::move(biases), header.key_heads, header.head_dim, header.value_dim, header.options,
                            header.max_query_norm);
  POSLSH_CHECK(header.position >= header.options.key_offset && header.position <= last_position,
               "position of the saved state", header.position, "from key_offset to 2^52");
  stream.position_ = header.position;
  for (const std::unique_ptr<Cache>& cache : stream.caches_) detail::read_cache(state, *cache, stream.position_);
  std::vector<detail::BiasSample> samples;
  for (const std::unique_ptr<QueryHead>& head : stream.heads_) samples.push_back(detail::read_head(state, head->budget));
  state.check_seal();
  for (std::size_t h = 0; h < samples.size(); ++h) detail::check_bias(stream.biases_[h], samples[h], stream.position_, h);
  return stream;
}

}  // namespace poslsh::inline POSLSH_SIMD
