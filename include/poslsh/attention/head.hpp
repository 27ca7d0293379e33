// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// One head, prepared for sweeps over it.

#include "poslsh/attention/bias_rows.hpp"
#include "poslsh/attention/key_groups.hpp"
#include "poslsh/attention/packing.hpp"

#include <optional>

namespace poslsh::inline POSLSH_SIMD::detail {

/// What sweeps read of the keys of a head: computed once, shared by all query heads that read these keys.
template <class T>
struct PreparedKeys {
  PackedKeys<T> packed;
  std::optional<KeyGroups<T>> groups;  ///< none: every visible key is visited

  /// \param reach   the key rows that some query may visit
  /// \param bounds  whether tiles may be skipped; \param moments  see KeyGroups
  template <class S>
  PreparedKeys(Strided<const S> keys, KeyRange reach, bool bounds, bool moments, int threads)
      : packed(keys, reach, threads) {
    if (bounds) groups.emplace(keys, reach, moments, threads);
  }
};

/// One query head: its inputs and its bias, shared read-only by all sweeps. Values may be stored narrower than T.
template <class T, class S, class B>
struct Head {
  Strided<const T> queries;
  Strided<const S> values;
  const PreparedKeys<T>& keys;
  const B& bias;
  Placement place;
  BiasRows<B, T> bias_rows;
  T scale;
  double softcap;  ///< 0: none
  double tolerance;

  Head(Strided<const T> q, Strided<const S> v, const PreparedKeys<T>& k, const B& b, const Placement& where,
       const AttentionOptions& options)
      : queries(q), values(v), keys(k), bias(b), place(where), bias_rows(bias, place),
        scale(static_cast<T>(score_scale(options, q.cols))), softcap(options.softcap.value_or(0)),
        tolerance(options.tolerance) {}
  Head(const Head&) = delete;  // bias_rows refers to place

  [[nodiscard]] Index tiles() const { return (queries.rows + query_tile - 1) / query_tile; }
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
