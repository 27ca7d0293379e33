// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What StreamingAttention saves, part by part.

#include "poslsh/attention/bias.hpp"
#include "poslsh/attention/options.hpp"
#include "poslsh/model/key_budget.hpp"
#include "poslsh/model/key_value_cache.hpp"
#include "poslsh/model/state_stream.hpp"

#include <array>
#include <cmath>
#include <initializer_list>
#include <string>

namespace poslsh::inline POSLSH_SIMD::detail {

/// "poslsh" and the version of the format; read in another byte order it is another number.
inline constexpr std::uint64_t state_magic = 0x01'00'68736c736f70;

/// Digits a number type keeps, and its size: enough to tell float, double, half and bfloat16 apart.
template <class S>
inline constexpr std::uint32_t storage_tag =
    static_cast<std::uint32_t>(sizeof(S) * 256) + static_cast<std::uint32_t>(Eigen::NumTraits<S>::digits10());

/// What was chosen when the stream was made, and where it stands.
struct StateHeader {
  Index heads = 0, key_heads = 0, head_dim = 0, value_dim = 0;
  AttentionOptions options;
  std::optional<double> max_query_norm;
  Index position = 0;
};

template <class T, class S>
void write_header(StateWriter& state, const StateHeader& header) {
  state.value(state_magic);
  state.value(storage_tag<T>);
  state.value(storage_tag<S>);
  for (const Index size : {header.heads, header.key_heads, header.head_dim, header.value_dim}) state.value(size);
  const AttentionOptions& options = header.options;
  state.optional(options.scale);
  state.value(options.key_offset);
  state.optional(options.window_left);
  state.optional(options.window_right);
  state.optional(options.softcap);
  state.optional(options.sink);
  state.value(options.tolerance);
  state.value(options.threads);
  state.optional(header.max_query_norm);
  state.value(header.position);
  state.seal();
}

/// \throws Error unless it is that of a stream of these types and so many heads, and whole
template <class T, class S>
StateHeader read_header(StateReader& state, Index heads) {
  state.expect(state_magic, "format of the saved state");
  state.expect(storage_tag<T>, "scalar type of the saved state");
  state.expect(storage_tag<S>, "storage type of the saved state");
  const Index saved_heads = state.value<Index>();
  POSLSH_CHECK(saved_heads == heads, "number of heads of the saved state", saved_heads, "one a bias");
  StateHeader header;
  header.heads = heads;
  for (Index* size : {&header.key_heads, &header.head_dim, &header.value_dim}) *size = state.value<Index>();
  AttentionOptions& options = header.options;
  options.scale = state.optional<double>();
  options.key_offset = state.value<Index>();
  options.window_left = state.optional<Index>();
  options.window_right = state.optional<Index>();
  options.softcap = state.optional<double>();
  options.sink = state.optional<double>();
  options.tolerance = state.value<double>();
  options.threads = state.value<int>();
  header.max_query_norm = state.optional<double>();
  header.position = state.value<Index>();
  state.check_seal();
  return header;
}

/// Whether a token leaves nothing to save. It takes a byte all the same: what is read bounds what there will be room for.
template <class T, class S>
bool tokens_are_empty(const KeyValueCache<T, S>& cache) {
  return cache.keys().packed.depth() == 0 && cache.values().cols == 0 && !cache.noted();
}

template <class T, class S>
void write_cache(StateWriter& state, const KeyValueCache<T, S>& cache) {
  const Index head_dim = cache.keys().packed.depth();
  state.value(cache.tokens());
  state.value(cache.first() % key_tile<T>);
  state.seal();
  Buffer<S> key(head_dim);
  for (Index j = cache.first(); j < cache.end(); ++j) {
    for (Index t = 0; t < head_dim; ++t) key[t] = cache.keys().packed.at(j, t);
    state.values(key.data(), head_dim);
    state.values(cache.values().row(j), cache.values().cols);
    if (cache.noted()) state.value(cache.note(j));
    if (tokens_are_empty(cache)) state.value(std::uint8_t{0});
  }
}

/// Reads into an empty cache of a stream that stands at this position. Memory grows with what has been read.
/// \throws Error on sizes that cannot be, and at the end of the stream
template <class T, class S>
void read_cache(StateReader& state, KeyValueCache<T, S>& cache, Index position) {
  const Index most = position - cache.position();
  const Index tokens = state.value<Index>(), dropped = state.value<Index>();
  state.check_seal();
  POSLSH_CHECK(tokens >= 0 && tokens <= most, "tokens in the saved state", tokens, "at most all since key_offset");
  POSLSH_CHECK(dropped >= 0 && dropped < key_tile<T> && dropped <= most - tokens, "tokens dropped in the saved state",
               dropped, "less than a tile, and not before key_offset");
  cache.skip(dropped, position - tokens - dropped);
  Matrix<S> key(1, cache.keys().packed.depth()), value(1, cache.values().cols);
  for (Index j = 0; j < tokens; ++j) {
    state.values(key.data(), key.cols());
    state.values(value.data(), value.cols());
    if (tokens_are_empty(cache)) state.expect(std::uint8_t{0}, "token of the saved state");
    cache.reserve(1);
    cache.append(strided(std::as_const(key)), strided(std::as_const(value)));
    if (cache.noted()) cache.note(cache.end() - 1) = state.template value<double>();
  }
}

/// What tells one bias from another: how far its support goes from a position, and some log weights in it, 1 outside.
/// Biases of other draws or slopes agree in all of it about never.
using BiasSample = std::array<double, 7>;
template <PositionBias B>
BiasSample sample_bias(const B& bias, Index position) {
  const KeyRange support = bias.support(position);
  BiasSample sample{static_cast<double>(support.begin) - static_cast<double>(position),
                    static_cast<double>(support.end) - static_cast<double>(position)};
  std::size_t next = 2;
  for (const Index back : {0, 1, 10, 100, 1000})
    sample[next++] = support.contains(position - back) ? bias.log_weight(position, position - back) : 1;
  return sample;
}

/// The part of a query head: its budget and a sample of its bias.
template <PositionBias B>
void write_head(StateWriter& state, const KeyBudget& budget, const B& bias, Index position) {
  state.value(budget.dropped());
  state.value(budget.all());
  state.value(sample_bias(bias, position));
}
inline BiasSample read_head(StateReader& state, KeyBudget& budget) {
  budget.dropped() = state.value<double>();
  budget.all() = state.value<double>();
  return state.value<BiasSample>();
}
/// \throws Error if a bias is another one than that of the sample; another build may round its logarithms otherwise
template <PositionBias B>
void check_bias(const B& bias, const BiasSample& saved, Index position, std::size_t head) {
  const BiasSample sample = sample_bias(bias, position);
  for (std::size_t i = 0; i < sample.size(); ++i) {
    const bool same = sample[i] == saved[i] || std::abs(sample[i] - saved[i]) < 1e-12 * (1 + std::abs(sample[i]));
    POSLSH_CHECK(same, "bias of head " + std::to_string(head), "another one", "the one that the state was saved with");
  }
}

}  // namespace poslsh::inline POSLSH_SIMD::detail
