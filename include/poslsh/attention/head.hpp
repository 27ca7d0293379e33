// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// One head, prepared for sweeps over it.

#include "poslsh/attention/bias_rows.hpp"
#include "poslsh/attention/key_groups.hpp"
#include "poslsh/attention/packing.hpp"

#include <optional>

namespace poslsh::inline POSLSH_SIMD::detail {

/// What sweeps read of the keys of a head: computed once, shared by all query heads that read these keys. S is their
/// storage type, T that of computation.
template <class T, class S>
struct PreparedKeys {
  PackedKeys<T, S> packed;
  std::optional<KeyGroups<T>> groups;  ///< none: every visible key is visited

  explicit PreparedKeys(Index depth) : packed(depth) {}
  /// \param reach   the key rows that some query may visit
  /// \param bounds  whether tiles may be skipped; \param moments  see KeyGroups
  PreparedKeys(Strided<const S> keys, KeyRange reach, bool bounds, bool moments, int threads)
      : packed(keys, reach, threads) {
    if (bounds) groups.emplace(keys, reach, moments, threads);
  }
};

/// One query head: its inputs and its bias, shared read-only by all sweeps.
template <class T, class S, class B>
struct Head {
  Strided<const T> queries;
  Strided<const S> values;
  const PreparedKeys<T, S>& keys;
  const B& bias;
  Placement place;
  BiasRows<B, T> bias_rows;
  T scale;
  double softcap;  ///< 0: none
  double tolerance;

  Head(Strided<const T> q, Strided<const S> v, const PreparedKeys<T, S>& k, const B& b, const Placement& where,
       const AttentionOptions& options)
      : queries(q), values(v), keys(k), bias(b), place(where), bias_rows(bias, where),
        scale(static_cast<T>(score_scale(options, k.packed.depth()))), softcap(options.softcap.value_or(0)),
        tolerance(options.tolerance) {}
  Head(const Head&) = delete;  // sweeps refer to it

  /// Other queries, and keys that have grown or moved: what sweeps see from their next run on.
  void move_to(Strided<const T> q, Strided<const S> v, const Placement& where) {
    queries = q;
    values = v;
    place = where;
    bias_rows.move_to(where);
  }
  [[nodiscard]] Index tiles() const { return (queries.rows + query_tile - 1) / query_tile; }
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
