// SPDX-License-Identifier: MIT
#include "poslsh/core/parallel.hpp"

#include "support/catch.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>
#include <vector>

namespace parallel_test {

using poslsh::Index;
using poslsh::detail::parallel_for;

namespace {

/// Counts the threads that have ended after touching it.
std::atomic<int> ended_threads{0};
struct EndOfThread {
  bool touched = false;
  ~EndOfThread() { ended_threads += touched; }
};
thread_local EndOfThread end_of_thread;

}  // namespace

TEST_CASE("Every task runs once, on a worker of its own thread, for any number of threads") {
  for (const int threads : {-3, 0, 1, 2, 3, 8, 40})
    for (const Index tasks : {0, 1, 2, 7, 1000}) {
      CAPTURE(threads, tasks);
      const std::size_t workers = static_cast<std::size_t>(std::max(threads, 1));
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks)), busy(workers);
      std::atomic<int> faults{0};
      parallel_for(tasks, threads, [&](Index task, int worker) {
        if (task < 0 || task >= tasks || worker < 0 || static_cast<std::size_t>(worker) >= workers) {
          ++faults;
          return;
        }
        if (busy[static_cast<std::size_t>(worker)]++ != 0) ++faults;  // two threads under one worker's number
        ++runs[static_cast<std::size_t>(task)];
        --busy[static_cast<std::size_t>(worker)];
      });
      REQUIRE(faults == 0);
      REQUIRE(
          std::all_of(runs.begin(), runs.end(), [](const std::atomic<int>& count) { return count == 1; }));
    }
}

TEST_CASE("One thread means the caller's, in order") {
  std::vector<Index> order;
  bool on_caller = true;
  const auto caller = std::this_thread::get_id();
  parallel_for(5, 1, [&](Index task, int worker) {
    order.push_back(task);
    on_caller = on_caller && worker == 0 && std::this_thread::get_id() == caller;
  });
  REQUIRE(order == std::vector<Index>{0, 1, 2, 3, 4});
  REQUIRE(on_caller);
}

TEST_CASE("Two threads run two tasks at the same time, under different numbers") {
  std::atomic<int> arrived{0}, met{0};
  std::vector<int> workers(2, -1);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  parallel_for(2, 2, [&](Index task, int worker) {
    workers[static_cast<std::size_t>(task)] = worker;
    ++arrived;
    while (arrived < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    met += arrived == 2;
  });
  REQUIRE(met == 2);
  REQUIRE(std::min(workers[0], workers[1]) == 0);
  REQUIRE(std::max(workers[0], workers[1]) == 1);
}

TEST_CASE("There are never more threads than asked for, and the caller is one of them") {
  std::mutex mutex;
  std::set<std::thread::id> seen;
  parallel_for(300, 3, [&](Index, int) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    const std::lock_guard lock(mutex);
    seen.insert(std::this_thread::get_id());
  });
  REQUIRE(seen.size() <= 3);
  REQUIRE(seen.count(std::this_thread::get_id()) == 1);
}

TEST_CASE("No thread outlives the call") {
  std::atomic<int> other_threads{0};
  ended_threads = 0;
  const auto caller = std::this_thread::get_id();
  parallel_for(400, 4, [&](Index, int) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    if (std::this_thread::get_id() == caller || end_of_thread.touched) return;
    end_of_thread.touched = true;
    ++other_threads;
  });
  REQUIRE(other_threads > 0);
  REQUIRE(ended_threads == other_threads);
}

TEST_CASE("The exception of a body reaches the caller with its type and message") {
  for (const int threads : {1, 2, 8})
    for (const Index bad : {0, 3, 99}) {
      CAPTURE(threads, bad);
      const auto throw_at = [bad](Index task, int) {
        if (task == bad) poslsh::detail::fail("task", task, "good");
      };
      REQUIRE_THROWS_AS(parallel_for(100, threads, throw_at), poslsh::Error);
      REQUIRE_THROWS_WITH(parallel_for(100, threads, throw_at),
                          "poslsh: task is " + std::to_string(bad) + "; it must be good");
    }
}

TEST_CASE("One of many exceptions reaches the caller") {
  for (const int threads : {1, 2, 8})
    REQUIRE_THROWS_AS(parallel_for(100, threads, [](Index task, int) { throw task; }), Index);
}

TEST_CASE("No task is handed out once a body has thrown") {
  for (const int threads : {1, 2}) {
    std::atomic<Index> finished{0};
    const Index tasks = 5000;
    REQUIRE_THROWS_AS(parallel_for(tasks, threads,
                                   [&](Index task, int) {
                                     if (task == 0) throw poslsh::Error("stop");
                                     std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                     ++finished;
                                   }),
                      poslsh::Error);
    REQUIRE(finished < tasks - 1);
  }
}

TEST_CASE("A loop inside a loop runs every inner task once") {
  std::vector<std::atomic<int>> runs(6 * 50);
  parallel_for(6, 3, [&](Index outer, int) {
    parallel_for(50, 2, [&](Index inner, int) { ++runs[static_cast<std::size_t>(50 * outer + inner)]; });
  });
  REQUIRE(std::all_of(runs.begin(), runs.end(), [](const std::atomic<int>& count) { return count == 1; }));

  REQUIRE_THROWS_WITH(
      parallel_for(
          4, 2,
          [](Index, int) { parallel_for(4, 2, [](Index, int) { throw poslsh::Error("from within"); }); }),
      "from within");
}

}  // namespace parallel_test
