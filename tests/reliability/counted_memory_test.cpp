// SPDX-License-Identifier: MIT

// The functions that counted_memory.hpp stands on, and that they count and fail.

#include "reliability/counted_memory.hpp"

#include "poslsh/core/buffer.hpp"
#include "support/catch.hpp"

#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

// The linker's --wrap gives the functions themselves these names.
extern "C" {
void* __real_malloc(std::size_t size);
void* __real_calloc(std::size_t count, std::size_t size);
void* __real_realloc(void* memory, std::size_t size);
void* __real_aligned_alloc(std::size_t alignment, std::size_t size);
int __real_posix_memalign(void** memory, std::size_t alignment, std::size_t size);
void __real_free(void* memory);
}

namespace counted_memory_test {

using poslsh::Index;

namespace {

std::atomic<Index> blocks{0}, bytes{0};
/// The number of the first request that is refused, 0: none; and the requests since that was set.
std::atomic<Index> first_refused{0}, requests{0};
std::atomic<bool> lasting{false}, refused{false};

/// Whether this request is refused.
bool refuse() {
  const Index first = first_refused;
  if (first == 0) return false;
  const Index number = ++requests;
  if (number != first && !(lasting && number > first)) return false;
  refused = true;
  return true;
}

void* counted(void* memory) {
  if (memory == nullptr) return nullptr;
  ++blocks;
  bytes += static_cast<Index>(malloc_usable_size(memory));
  return memory;
}
void give_back(void* memory) {
  if (memory == nullptr) return;
  --blocks;
  bytes -= static_cast<Index>(malloc_usable_size(memory));
  __real_free(memory);
}

void* allocate(std::size_t size) { return refuse() ? nullptr : counted(__real_malloc(size == 0 ? 1 : size)); }
void* allocate(std::size_t size, std::align_val_t alignment) {
  void* memory = nullptr;
  if (refuse() || __real_posix_memalign(&memory, static_cast<std::size_t>(alignment), size) != 0) return nullptr;
  return counted(memory);
}
void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace
}  // namespace counted_memory_test

extern "C" {
void* __wrap_malloc(std::size_t size) {
  return counted_memory_test::refuse() ? nullptr : counted_memory_test::counted(__real_malloc(size));
}
void* __wrap_calloc(std::size_t count, std::size_t size) {
  return counted_memory_test::refuse() ? nullptr : counted_memory_test::counted(__real_calloc(count, size));
}
void* __wrap_aligned_alloc(std::size_t alignment, std::size_t size) {
  return counted_memory_test::refuse() ? nullptr : counted_memory_test::counted(__real_aligned_alloc(alignment, size));
}
int __wrap_posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  if (counted_memory_test::refuse()) return ENOMEM;
  const int error = __real_posix_memalign(memory, alignment, size);
  if (error == 0) counted_memory_test::counted(*memory);
  return error;
}
void* __wrap_realloc(void* memory, std::size_t size) {
  if (counted_memory_test::refuse()) return nullptr;
  const poslsh::Index before = memory == nullptr ? 0 : static_cast<poslsh::Index>(malloc_usable_size(memory));
  void* const moved = __real_realloc(memory, size);
  if (moved == nullptr) return nullptr;
  if (memory == nullptr) ++counted_memory_test::blocks;
  counted_memory_test::bytes += static_cast<poslsh::Index>(malloc_usable_size(moved)) - before;
  return moved;
}
void __wrap_free(void* memory) { counted_memory_test::give_back(memory); }
}

void* operator new(std::size_t size) { return counted_memory_test::or_throw(counted_memory_test::allocate(size)); }
void* operator new[](std::size_t size) { return counted_memory_test::or_throw(counted_memory_test::allocate(size)); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return counted_memory_test::allocate(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return counted_memory_test::allocate(size); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted_memory_test::or_throw(counted_memory_test::allocate(size, alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return counted_memory_test::or_throw(counted_memory_test::allocate(size, alignment));
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return counted_memory_test::allocate(size, alignment);
}
void* operator new[](std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return counted_memory_test::allocate(size, alignment);
}
void operator delete(void* memory) noexcept { counted_memory_test::give_back(memory); }
void operator delete[](void* memory) noexcept { counted_memory_test::give_back(memory); }
void operator delete(void* memory, std::size_t) noexcept { counted_memory_test::give_back(memory); }
void operator delete[](void* memory, std::size_t) noexcept { counted_memory_test::give_back(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { counted_memory_test::give_back(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { counted_memory_test::give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { counted_memory_test::give_back(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { counted_memory_test::give_back(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { counted_memory_test::give_back(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { counted_memory_test::give_back(memory); }
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  counted_memory_test::give_back(memory);
}
void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  counted_memory_test::give_back(memory);
}

namespace poslsh::test {

HeldMemory held_memory() { return {counted_memory_test::blocks, counted_memory_test::bytes}; }

MemoryShortage::MemoryShortage(Index number, Shortage shortage) {
  counted_memory_test::refused = false;
  counted_memory_test::lasting = shortage == Shortage::lasting;
  counted_memory_test::requests = 0;
  counted_memory_test::first_refused = number;
}
MemoryShortage::~MemoryShortage() { counted_memory_test::first_refused = 0; }
bool MemoryShortage::occurred() const { return counted_memory_test::refused; }

}  // namespace poslsh::test

namespace counted_memory_test {

using namespace poslsh::test;

namespace {

/// A way to ask for memory, and to give it back.
struct Way {
  void* (*take)();
  void (*give)(void*);
};
constexpr std::align_val_t line{64};
const Way ways[] = {
    {[] { return ::operator new(9); }, [](void* memory) { ::operator delete(memory); }},
    {[] { return ::operator new[](9); }, [](void* memory) { ::operator delete[](memory); }},
    {[] { return ::operator new(9, std::nothrow); }, [](void* memory) { ::operator delete(memory, std::nothrow); }},
    {[] { return ::operator new[](9, std::nothrow); }, [](void* memory) { ::operator delete[](memory, std::nothrow); }},
    {[] { return ::operator new(9, line); }, [](void* memory) { ::operator delete(memory, line); }},
    {[] { return ::operator new[](9, line); }, [](void* memory) { ::operator delete[](memory, line); }},
    {[] { return ::operator new(9, line, std::nothrow); }, [](void* memory) { ::operator delete(memory, line, std::nothrow); }},
    {[] { return ::operator new[](9, line, std::nothrow); },
     [](void* memory) { ::operator delete[](memory, line, std::nothrow); }},
    {[] { return std::malloc(9); }, [](void* memory) { std::free(memory); }},
    {[] { return std::calloc(9, 1); }, [](void* memory) { std::free(memory); }},
    {[] { return std::realloc(nullptr, 9); }, [](void* memory) { std::free(memory); }},
    {[] { return std::aligned_alloc(64, 64); }, [](void* memory) { std::free(memory); }},
    {[] {
       void* memory = nullptr;
       return posix_memalign(&memory, 64, 9) == 0 ? memory : nullptr;
     },
     [](void* memory) { std::free(memory); }},
};
void* volatile taken;  // so that no compiler leaves a request out

void* take(const Way& way) {
  try {
    taken = way.take();
  } catch (const std::bad_alloc&) {
    taken = nullptr;
  }
  return taken;
}

/// Which of ten requests are refused.
std::string refusals(const Way& way, Index number, Shortage shortage) {
  std::string text;  // short enough to need no memory of its own
  const MemoryShortage memory(number, shortage);
  for (int i = 0; i < 10; ++i) {
    void* const got = take(way);
    text += got == nullptr ? 'x' : '.';
    way.give(got);
  }
  return text + (memory.occurred() ? "!" : "");
}

}  // namespace

TEST_CASE("Each way to ask for memory is counted, and refused as told") {
  for (const Way& way : ways) {
    CAPTURE(&way - ways);
    REQUIRE(refusals(way, 1, Shortage::once) == "x.........!");
    REQUIRE(refusals(way, 4, Shortage::once) == "...x......!");
    REQUIRE(refusals(way, 4, Shortage::lasting) == "...xxxxxxx!");
    REQUIRE(refusals(way, 11, Shortage::lasting) == "..........");
    const HeldMemory before = held_memory();
    void* const got = take(way);
    const HeldMemory now = held_memory();
    way.give(got);
    const HeldMemory after = held_memory();
    REQUIRE(now.blocks == before.blocks + 1);
    REQUIRE(now.bytes >= before.bytes + 9);
    REQUIRE((after == before));
  }
}

TEST_CASE("Containers, Eigen's matrices and buffers ask in these ways, on any thread") {
  const auto refused_to = [](auto&& request) {
    const MemoryShortage memory(1, Shortage::lasting);
    try {
      request();
    } catch (const std::bad_alloc&) {
      return memory.occurred();
    }
    return false;
  };
  const auto no_vector = [] { taken = std::vector<double>(3).data(); };
  const auto no_buffer = [] { taken = poslsh::detail::Buffer<float>(3).data(); };
  const auto no_matrix = [] { taken = poslsh::Matrix<double>(3, 3).data(); };
  REQUIRE(refused_to(no_vector));
  REQUIRE(refused_to(no_buffer));
  REQUIRE(refused_to(no_matrix));
  bool on_thread = false;
  std::thread([&] { on_thread = refused_to(no_matrix); }).join();
  REQUIRE(on_thread);
}

}  // namespace counted_memory_test
