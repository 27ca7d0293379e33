// SPDX-License-Identifier: MIT
#include "poslsh/core/buffer.hpp"

#include "support/catch.hpp"

#include <cstdint>
#include <utility>
#include <vector>

namespace buffer_test {

using poslsh::Index;
using poslsh::detail::Buffer;

TEMPLATE_TEST_CASE("A buffer begins on a cache line and holds what is written", "", char, float, double,
                   long double) {
  std::vector<Buffer<TestType>> buffers;  // kept, so that the allocator cannot serve one address to all
  for (const Index size : {1, 2, 3, 7, 15, 63, 64, 65, 1000}) {
    Buffer<TestType>& buffer = buffers.emplace_back(size);
    REQUIRE(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64 == 0);
    REQUIRE(buffer.size() == size);
    for (Index i = 0; i < size; ++i) buffer[i] = static_cast<TestType>(i % 100);
    REQUIRE(std::as_const(buffer)[size - 1] == static_cast<TestType>((size - 1) % 100));
    REQUIRE(&std::as_const(buffer)[size - 1] == buffer.data() + size - 1);
  }
}

TEST_CASE("A buffer grows when more is required and keeps its memory otherwise") {
  Buffer<double> buffer;
  REQUIRE(buffer.size() == 0);
  REQUIRE(buffer.data() == nullptr);
  buffer.require(0);
  REQUIRE(buffer.size() == 0);
  buffer.require(10);
  REQUIRE(buffer.size() == 10);
  buffer[9] = 42;
  const double* const before = buffer.data();
  buffer.require(10);
  buffer.require(3);
  REQUIRE(buffer.data() == before);
  REQUIRE(buffer.size() == 10);
  REQUIRE(buffer[9] == 42);
  buffer.require(11);
  REQUIRE(buffer.size() == 11);
  REQUIRE(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64 == 0);
  buffer[10] = 1;
  REQUIRE(buffer[10] == 1);
}

}  // namespace buffer_test
