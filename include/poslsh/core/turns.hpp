// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Sums of many tasks in one place, in an order that does not depend on the threads.

#include "poslsh/core/types.hpp"

#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <vector>

namespace poslsh::inline POSLSH_SIMD::detail {

/// Lets tasks of a parallel_for that run at the same time change shared places, each place in the order of the tasks.
///
/// Before they run, expect() says which task changes which place. A task waits for its turn at a place, changes it and
/// passes the turn on. As tasks are handed out in their order, the first of those that run never waits: there is no
/// deadlock as long as every task passes on each turn it was expected to take, or gives up. Memory: the places, and
/// one range for each gap in the list of tasks that change a place.
class Turns {
 public:
  explicit Turns(Index places) : places_(static_cast<std::size_t>(places)) {}

  /// Tasks come in ascending order.
  void expect(Index place, Index task) {
    std::vector<KeyRange>& tasks = at(place).tasks;
    if (!tasks.empty() && tasks.back().end == task)
      ++tasks.back().end;
    else
      tasks.push_back({task, task + 1});
  }

  /// Waits until every earlier task expected at this place has passed on its turn. False if one gave up instead: this
  /// task should end too.
  [[nodiscard]] bool wait(Index place, Index task) {
    const Index before = predecessor(place, task);
    std::unique_lock<std::mutex> lock(mutex_);
    passed_.wait(lock, [&] { return given_up_ || at(place).last == before; });
    return !given_up_;
  }

  void pass(Index place, Index task) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      at(place).last = task;
    }
    passed_.notify_all();
  }

  /// Nobody waits any longer.
  void give_up() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      given_up_ = true;
    }
    passed_.notify_all();
  }

 private:
  static constexpr Index nobody = -1;
  struct Place {
    std::vector<KeyRange> tasks;
    Index last = nobody;
  };

  Place& at(Index place) { return places_[static_cast<std::size_t>(place)]; }

  [[nodiscard]] Index predecessor(Index place, Index task) {
    const std::vector<KeyRange>& tasks = at(place).tasks;
    const auto own = std::upper_bound(tasks.begin(), tasks.end(), task,
                                      [](Index wanted, const KeyRange& range) { return wanted < range.end; });
    if (own->begin < task) return task - 1;
    return own == tasks.begin() ? nobody : std::prev(own)->end - 1;
  }

  std::vector<Place> places_;
  std::mutex mutex_;
  std::condition_variable passed_;
  bool given_up_ = false;
};

}  // namespace poslsh::inline POSLSH_SIMD::detail
