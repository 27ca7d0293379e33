// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A loop over independent tasks, on threads that live as long as the call.

#include "poslsh/core/types.hpp"

#include <atomic>
#include <exception>
#include <memory>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

namespace poslsh::inline POSLSH_SIMD::detail {

/// Threads that are joined on the way out (std::jthread is not in every standard library yet).
class JoiningThreads : public std::vector<std::thread> {
 public:
  JoiningThreads() = default;
  JoiningThreads(const JoiningThreads&) = delete;
  JoiningThreads& operator=(const JoiningThreads&) = delete;
  ~JoiningThreads() {
    for (std::thread& thread : *this) thread.join();
  }
};

/// A reference to a body of parallel_for: one type for all, so that the loop is compiled once.
struct LoopBody {
  void* body;
  void (*call)(void* body, Index task, int worker);
  void operator()(Index task, int worker) const { call(body, task, worker); }
};

/// parallel_for with at least two workers.
inline void run_workers(Index tasks, int workers, LoopBody body) {
  std::atomic<Index> next{0};
#if POSLSH_EXCEPTIONS
  std::exception_ptr error;
  std::atomic<bool> failed{false};
  const auto run = [&](int worker) {
    try {
      for (Index task; !failed && (task = next++) < tasks;) body(task, worker);
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  };
#else
  const auto run = [&](int worker) {
    for (Index task; (task = next++) < tasks;) body(task, worker);
  };
#endif
  {
    JoiningThreads others;
    others.reserve(static_cast<std::size_t>(workers - 1));
#if POSLSH_EXCEPTIONS
    try {
      for (int worker = 1; worker < workers; ++worker) others.emplace_back(run, worker);
    } catch (const std::system_error&) {
      // No more threads to be had: those that started, and the caller, do all the work.
    }
#else
    for (int worker = 1; worker < workers; ++worker) others.emplace_back(run, worker);
#endif
    run(0);
  }
#if POSLSH_EXCEPTIONS
  if (error) std::rethrow_exception(error);
#endif
}

/// Runs body(task, worker) once for each task in [0, tasks), on at most `threads` threads, the caller's among them;
/// worker is in [0, threads). Tasks are handed out one by one, so that a result may depend on the task but never on
/// the worker. The first exception of a body stops the handing out and is thrown to the caller. No thread outlives
/// the call, and no pool, environment variable or setting of a caller's runtime is touched.
template <class Body>
void parallel_for(Index tasks, int threads, Body&& body) {
  const int workers = static_cast<int>(tasks < threads ? tasks : Index{threads});
  if (workers <= 1) {
    for (Index task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
  using Called = std::remove_reference_t<Body>;
  run_workers(tasks, workers,
              {const_cast<void*>(static_cast<const void*>(std::addressof(body))),
               [](void* called, Index task, int worker) { (*static_cast<Called*>(called))(task, worker); }});
}

}  // namespace poslsh::inline POSLSH_SIMD::detail
