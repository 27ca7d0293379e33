// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The text a model learns from, and the part of it that is kept to score.

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tiny_lm {

/// The longest window that is scored, and how many of its last bytes are.
inline constexpr std::int64_t longest_window = 2048, scored_bytes = 512;

/// A file as bytes: nine tenths to learn from, a tenth to score, in up to ten stretches spread over the file, so that
/// both are of one kind.
class Text {
 public:
  /// \throws poslsh_examples::FileError unless it can be read and both parts hold a window
  explicit Text(const std::filesystem::path& path);

  /// Windows of length + 1 bytes from random places of what there is to learn from, a pure function of (seed, step):
  /// rows x (length + 1) numbers below 256.
  [[nodiscard]] at::Tensor training_batch(std::uint64_t seed, std::int64_t step, std::int64_t rows,
                                          std::int64_t length) const;

  /// These of the windows to score: as many rows x (length + 1). The last 512 bytes of a window are the same for every
  /// length, and none is in two windows.
  [[nodiscard]] at::Tensor scoring_batch(const std::vector<std::int64_t>& numbers, std::int64_t length) const;

  /// How many windows there are to score.
  [[nodiscard]] std::int64_t scoring_windows() const { return static_cast<std::int64_t>(scoring_ends_.size()); }

  /// Tells texts apart.
  [[nodiscard]] std::int64_t fingerprint() const;

 private:
  std::string bytes_, training_;
  std::vector<std::int64_t> scoring_ends_;  ///< of each window in bytes_: its last byte
};

}  // namespace tiny_lm
