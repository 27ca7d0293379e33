// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// StreamingAttention::save and load.

#include "poslsh/model/streaming.hpp"

namespace poslsh::inline POSLSH_SIMD {
namespace detail {

/// "poslsh" and the version of the format; read in another byte order it is another number.
inline constexpr std::uint64_t state_magic = 0x01'00'68736c736f70;

/// Digits a number type keeps, and its size: enough to tell float, double, half and bfloat16 apart.
template <class S>
inline constexpr std::uint32_t storage_tag =
    static_cast<std::uint32_t>(sizeof(S) * 256) + static_cast<std::uint32_t>(Eigen::NumTraits<S>::digits10());

}  // namespace detail

template <class T, PositionBias B, class Storage>
void StreamingAttention<T, B, Storage>::save(std::ostream& out) const {
  detail::StateWriter state(out);
  state.value(detail::state_magic);
  state.value(detail::storage_tag<T>);
  state.value(detail::storage_tag<Storage>);
  for (const Index size : {static_cast<Index>(heads_.size()), static_cast<Index>(caches_.size()), head_dim_, value_dim_})
    state.value(size);
  state.optional(options_.scale);
  state.value(options_.key_offset);
  state.optional(options_.window_left);
  state.optional(options_.window_right);
  state.optional(options_.softcap);
  state.optional(options_.sink);
  state.value(options_.tolerance);
  state.value(static_cast<Index>(options_.threads));
  state.optional(max_query_norm_);
  state.value(position_);
  std::vector<Storage> row(static_cast<std::size_t>((std::max)(head_dim_, value_dim_)));
  for (const std::unique_ptr<Cache>& cache : caches_) {
    state.value(cache->tokens());
    state.value(cache->first() % detail::key_tile<T>);
    for (Index j = cache->first(); j < cache->end(); ++j) {
      for (Index t = 0; t < head_dim_; ++t) row[static_cast<std::size_t>(t)] = cache->keys().packed.at(j, t);
      state.values(row.data(), head_dim_);
      state.values(cache->values().row(j), value_dim_);
      state.value(cache->note(j));
    }
  }
  for (const std::unique_ptr<QueryHead>& head : heads_) {
    state.value(head->budget.dropped());
    state.value(head->budget.all());
  }
  state.finish();
}

template <class T, PositionBias B, class Storage>
StreamingAttention<T, B, Storage> StreamingAttention<T, B, Storage>::load(std::istream& in, std::vector<B> biases) {
  detail::StateReader state(in);
  state.expect(detail::state_magic, "format of the saved state");
  state.expect(detail::storage_tag<T>, "scalar type of the saved state");
  state.expect(detail::storage_tag<Storage>, "storage type of the saved state");
  state.expect(static_cast<Index>(biases.size()), "number of heads of the saved state");
  const Index key_heads = state.value<Index>();
  const Index head_dim = state.value<Index>(), value_dim = state.value<Index>();
  AttentionOptions options;
  options.scale = state.optional<double>();
  options.key_offset = state.value<Index>();
  options.window_left = state.optional<Index>();
  options.window_right = state.optional<Index>();
  options.softcap = state.optional<double>();
  options.sink = state.optional<double>();
  options.tolerance = state.value<double>();
  const Index threads = state.value<Index>();
  POSLSH_CHECK(threads >= 1 && threads <= 1 << 20, "threads of the saved state", threads, "at least 1");
  options.threads = static_cast<int>(threads);
  const std::optional<double> max_query_norm = state.optional<double>();
  StreamingAttention stream(std::move(biases), key_heads, head_dim, value_dim, options, max_query_norm);
  stream.position_ = state.value<Index>();
  Matrix<Storage> key(1, head_dim), value(1, value_dim);
  for (std::unique_ptr<Cache>& cache : stream.caches_) {
    const Index tokens = state.value<Index>(), dropped = state.value<Index>();
    POSLSH_CHECK(dropped >= 0 && dropped < detail::key_tile<T>, "tokens dropped in the saved state", dropped,
                 "less than a tile");
    POSLSH_CHECK(tokens >= 0 && stream.position_ >= options.key_offset && tokens <= stream.position_ - options.key_offset,
                 "tokens in the saved state", tokens, "at most all since key_offset");
    cache = std::make_unique<Cache>(head_dim, value_dim, stream.position_ - tokens - dropped);
    cache->skip(dropped);
    for (Index j = 0; j < tokens; ++j) {
      state.values(key.data(), head_dim);
      state.values(value.data(), value_dim);
      cache->reserve(1);
      cache->append(detail::strided(std::as_const(key)), detail::strided(std::as_const(value)));
      cache->note(cache->end() - 1) = state.template value<double>();
    }
  }
  const Index group = static_cast<Index>(stream.heads_.size()) / key_heads;
  for (Index h = 0; h < static_cast<Index>(stream.heads_.size()); ++h) {
    std::unique_ptr<QueryHead>& head = stream.heads_[static_cast<std::size_t>(h)];
    head = std::make_unique<QueryHead>(stream.key_head(h / group), stream.biases_[static_cast<std::size_t>(h)],
                                       stream.options_);
    head->budget.dropped() = state.value<double>();
    head->budget.all() = state.value<double>();
  }
  state.finish();
  return stream;
}

}  // namespace poslsh::inline POSLSH_SIMD
