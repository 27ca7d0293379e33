// SPDX-License-Identifier: MIT
#include "text.hpp"

#include <poslsh/core/random.hpp>

#include <algorithm>
#include <functional>
#include <iterator>

#include "../../support/output_file.hpp"

namespace tiny_lm {

namespace {

at::Tensor windows_at(const std::string& bytes, const std::vector<std::int64_t>& starts, std::int64_t length) {
  at::Tensor windows = at::empty({static_cast<std::int64_t>(starts.size()), length + 1}, at::kLong);
  std::int64_t* out = windows.data_ptr<std::int64_t>();
  for (const std::int64_t start : starts)
    for (std::int64_t i = 0; i <= length; ++i)
      *out++ = static_cast<unsigned char>(bytes[static_cast<std::size_t>(start + i)]);
  return windows;
}

}  // namespace

Text::Text(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored))
    throw poslsh_examples::FileError(path, "is not a file that can be read");
  std::ifstream file(path, std::ios::binary);
  bytes_.assign(std::istreambuf_iterator<char>(file), {});
  if (!file || bytes_.empty()) throw poslsh_examples::FileError(path, "could not be read, or is empty");
  const auto size = static_cast<std::int64_t>(bytes_.size());
  // Each period is nine parts to learn from and one to score, long enough for several windows if there are several.
  const std::int64_t periods = std::clamp<std::int64_t>(size / (20 * longest_window), 1, 10), period = size / periods;
  for (std::int64_t p = 0; p < periods; ++p) {
    const std::int64_t begin = p * period, held_out = begin + period / 10 * 9, end = begin + period;
    training_.append(bytes_, static_cast<std::size_t>(begin), static_cast<std::size_t>(held_out - begin));
    for (std::int64_t last = held_out + longest_window; last < end; last += scored_bytes) scoring_ends_.push_back(last);
  }
  if (scoring_ends_.empty())
    throw poslsh_examples::FileError(path, "is too short: a tenth of its " + std::to_string(size) +
                                               " bytes must hold a window of " + std::to_string(longest_window + 1));
}

at::Tensor Text::training_batch(std::uint64_t seed, std::int64_t step, std::int64_t rows, std::int64_t length) const {
  const auto places = static_cast<double>(static_cast<std::int64_t>(training_.size()) - length);
  std::vector<std::int64_t> starts;
  for (std::int64_t row = 0; row < rows; ++row)
    starts.push_back(static_cast<std::int64_t>(
        places * poslsh::random_uniform(seed, static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(row))));
  return windows_at(training_, starts, length);
}

at::Tensor Text::scoring_batch(const std::vector<std::int64_t>& numbers, std::int64_t length) const {
  std::vector<std::int64_t> starts;
  for (const std::int64_t number : numbers) starts.push_back(scoring_ends_[static_cast<std::size_t>(number)] - length);
  return windows_at(bytes_, starts, length);
}

std::int64_t Text::fingerprint() const {
  return static_cast<std::int64_t>(std::hash<std::string_view>()(bytes_) >> 1);
}

}  // namespace tiny_lm
