// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A saved state: numbers as bytes, with checksums.

#include "poslsh/core/types.hpp"

#include <algorithm>
#include <cstdint>
#include <istream>
#include <optional>
#include <ostream>
#include <vector>

namespace poslsh::inline POSLSH_SIMD::detail {

/// FNV-1a over all bytes.
class Checksum {
 public:
  void add(const char* bytes, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) value_ = (value_ ^ static_cast<unsigned char>(bytes[i])) * 0x100000001b3;
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

class StateWriter {
 public:
  explicit StateWriter(std::ostream& out) : out_(out) {}

  template <class V>
  void value(const V& value) {
    values(&value, 1);
  }
  template <class V>
  void values(const V* values, Index count) {
    static_assert(std::is_trivially_copyable_v<V>);
    const char* bytes = reinterpret_cast<const char*>(values);
    const std::size_t size = static_cast<std::size_t>(count) * sizeof(V);
    out_.write(bytes, static_cast<std::streamsize>(size));
    checksum_.add(bytes, size);
  }
  template <class V>
  void optional(const std::optional<V>& value_or_none) {
    value<std::uint8_t>(value_or_none ? 1 : 0);
    value(value_or_none.value_or(V{}));
  }
  /// A checksum of all so far: sizes get one before what they are the sizes of.
  void seal() {
    const std::uint64_t sum = checksum_.value();
    value(sum);
  }
  /// \throws Error if the stream did not take everything
  void finish() {
    seal();
    out_.flush();
    POSLSH_CHECK(out_.good(), "stream to save to", "in a failed state", "able to take the whole state");
  }

 private:
  std::ostream& out_;
  Checksum checksum_;
};

/// Reads what StateWriter wrote. \throws Error at the first byte that is missing
class StateReader {
 public:
  explicit StateReader(std::istream& in) : in_(in) {}

  template <class V>
  V value() {
    V result{};
    values(&result, 1);
    return result;
  }
  template <class V>
  void values(V* values, Index count) {
    static_assert(std::is_trivially_copyable_v<V>);
    char* bytes = reinterpret_cast<char*>(values);
    const std::size_t size = static_cast<std::size_t>(count) * sizeof(V);
    in_.read(bytes, static_cast<std::streamsize>(size));
    POSLSH_CHECK(in_.gcount() == static_cast<std::streamsize>(size), "saved state", "too short",
                 "a whole one of StreamingAttention::save");
    checksum_.add(bytes, size);
  }
  template <class V>
  std::optional<V> optional() {
    const bool there = value<std::uint8_t>() != 0;
    const V result = value<V>();
    return there ? std::optional<V>(result) : std::nullopt;
  }
  /// A number the state must hold here.
  template <class V>
  void expect(const V& wanted, const char* what) {
    POSLSH_CHECK(value<V>() == wanted, what, "another one", "the one of this program and these biases");
  }
  void check_seal() {
    const std::uint64_t sum = checksum_.value();
    POSLSH_CHECK(value<std::uint64_t>() == sum, "checksum of the saved state", "wrong", "that of its bytes");
  }

 private:
  std::istream& in_;
  Checksum checksum_;
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
