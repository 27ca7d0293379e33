// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The memory of this program, counted, and made to fail at a chosen request. What counts: operator new in all its forms,
/// from any library, and malloc and its kin where this program's own objects call them, as Eigen does; the program is
/// linked with --wrap for that. See counted_memory_test.cpp.

#include "poslsh/core/types.hpp"

#include <cstring>
#include <string>
#include <vector>

namespace poslsh::test {

/// Memory that is held.
struct HeldMemory {
  Index blocks = 0, bytes = 0;
  friend bool operator==(const HeldMemory&, const HeldMemory&) = default;
};
[[nodiscard]] HeldMemory held_memory();

/// How memory runs out: at one request only, or at that one and all later ones.
enum class Shortage { once, lasting };

/// While it lives, the number-th request for memory from now on, by any thread, is refused.
class MemoryShortage {
 public:
  MemoryShortage(Index number, Shortage shortage);
  ~MemoryShortage();
  MemoryShortage(const MemoryShortage&) = delete;
  MemoryShortage& operator=(const MemoryShortage&) = delete;
  /// Whether one has been refused.
  [[nodiscard]] bool occurred() const;
};

/// Memory that must not change.
class Untouched {
 public:
  template <class T>
  void add(const T* data, Index count) {
    const char* bytes = reinterpret_cast<const char*>(data);
    parts_.push_back({bytes, std::string(bytes, static_cast<std::size_t>(count) * sizeof(T))});
  }
  template <class Container>
  void add(const Container& values) {
    add(values.data(), static_cast<Index>(values.size()));
  }
  [[nodiscard]] bool holds() const {
    for (const Part& part : parts_)
      if (!part.before.empty() && std::memcmp(part.data, part.before.data(), part.before.size()) != 0) return false;
    return true;
  }

 private:
  struct Part {
    const char* data;
    std::string before;
  };
  std::vector<Part> parts_;
};

}  // namespace poslsh::test
