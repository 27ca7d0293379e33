// SPDX-License-Identifier: MIT

// Calls at the same time, on any number of threads, and around fork().

#include "reliability/entry_points.hpp"
#include "support/catch.hpp"

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define POSLSH_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define POSLSH_TEST_SANITIZED 1
#endif
#endif
#ifndef POSLSH_TEST_SANITIZED
#define POSLSH_TEST_SANITIZED 0
#endif
#if __has_include(<sys/wait.h>)
#include <sys/wait.h>
#include <unistd.h>
#endif

namespace concurrency_test {

using namespace poslsh::test;
using poslsh::Index;

namespace {

/// Entry points and what they give on one thread.
class Expected {
 public:
  Expected(Index queries, Index keys) : entries_(queries, keys), calls_(entries_.all()) {
    for (const EntryPoint& call : calls_) bits_.push_back(call.run(1));
  }
  [[nodiscard]] std::size_t size() const { return calls_.size(); }
  [[nodiscard]] const std::string& name(std::size_t call) const { return calls_[call].name; }
  [[nodiscard]] bool agrees(std::size_t call, int threads) const { return calls_[call].run(threads) == bits_[call]; }
  /// The number of calls with other bits.
  [[nodiscard]] int disagreements(int threads) const {
    int count = 0;
    for (std::size_t call = 0; call < size(); ++call) count += !agrees(call, threads);
    return count;
  }

 private:
  EntryPoints entries_;
  std::vector<EntryPoint> calls_;
  std::vector<std::uint64_t> bits_;
};

}  // namespace

TEST_CASE("Any number of threads gives the bits of one, with fewer tiles than threads, with many, and with uneven ones") {
  struct Shape {
    Index queries, keys;
  };
  for (const auto& [queries, keys] : {Shape{1, 300}, Shape{40, 40}, Shape{200, 97}, Shape{389, 577}, Shape{1000, 1100}}) {
    if (POSLSH_TEST_SANITIZED && queries > 500) continue;
    const Expected expected(queries, keys);
    for (std::size_t call = 0; call < expected.size(); ++call)
      for (const int threads : {1, 2, 3, 8, 64}) {
        CAPTURE(queries, keys, threads, expected.name(call));
        REQUIRE(expected.agrees(call, threads));
      }
  }
}

TEST_CASE("Sixteen callers at once share inputs, biases and masks, and each gets the bits of a single one") {
  constexpr int callers = 16;
  const Expected expected(150, 250);
  std::vector<std::atomic<int>> wrong(expected.size());
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int caller = 0; caller < callers; ++caller)
    threads.emplace_back([&, caller] {
      ++ready;
      while (ready < callers) std::this_thread::yield();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        // Half of them call the same function at the same time, the others another one each.
        const std::size_t call = (i + static_cast<std::size_t>(caller % 2 * caller)) % expected.size();
        wrong[call] += !expected.agrees(call, 1 + caller % 3);
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t call = 0; call < expected.size(); ++call) {
    CAPTURE(expected.name(call));
    REQUIRE(wrong[call] == 0);
  }
}

#if __has_include(<sys/wait.h>) && !POSLSH_TEST_SANITIZED
namespace {

/// Runs check() in a child: whether it was true, within 20 seconds.
template <class Check>
bool true_in_child(Check&& check) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(check() ? 0 : 1);
  }
  int status = -1;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST_CASE("A child of a process that has used threads gets the same bits, with threads of its own") {
  const Expected expected(300, 400);
  REQUIRE(expected.disagreements(3) == 0);
  for (const int threads : {1, 2, 8}) REQUIRE(true_in_child([&] { return expected.disagreements(threads) == 0; }));
  REQUIRE_FALSE(true_in_child([] { return false; }));
}

TEST_CASE("A fork while other threads compute: the child computes too, and so do they") {
  const Expected expected(120, 150);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> busy;
  for (const int threads : {1, 2, 3})
    busy.emplace_back([&, threads] {
      while (!stop) wrong += expected.disagreements(threads);
    });
  int good = 0;
  for (int round = 0; round < 10; ++round)
    good += true_in_child([&] { return expected.disagreements(1) == 0 && expected.disagreements(2) == 0; });
  stop = true;
  for (std::thread& thread : busy) thread.join();
  REQUIRE(good == 10);
  REQUIRE(wrong == 0);
}
#endif

}  // namespace concurrency_test
