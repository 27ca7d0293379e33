// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// A progress bar for a person at a terminal.

#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

namespace poslsh_examples {

/// Draws on stderr, once the run has lasted two seconds and only if stderr is a terminal; gone when
/// destroyed.
class Progress {
 public:
  /// \param total the work to come, in any unit
  explicit Progress(double total) : total_(total), terminal_(isatty(STDERR_FILENO) == 1) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() {
    if (drawn_) std::fputs("\r\x1b[K", stderr);
  }

  /// Says that so much more work is done.
  void advance(double work) {
    done_ += work;
    if (!terminal_) return;
    const Clock::time_point now = Clock::now();
    if (now - start_ < std::chrono::seconds(2) || now - drawn_at_ < std::chrono::milliseconds(100)) return;
    drawn_ = true;
    drawn_at_ = now;
    const double part = std::clamp(done_ / total_, 1e-6, 1.0);
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    const auto filled = static_cast<std::size_t>(part * width);
    const std::string bar = std::string(filled, '#') + std::string(width - filled, '.');
    std::fprintf(stderr, "\r[%s] %3.0f %%, about %.0f s left\x1b[K", bar.c_str(), 100 * part,
                 elapsed * (1 - part) / part);
    std::fflush(stderr);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t width = 40;

  double total_, done_ = 0;
  bool terminal_, drawn_ = false;
  Clock::time_point start_ = Clock::now(), drawn_at_ = start_;
};

}  // namespace poslsh_examples
