// SPDX-License-Identifier: MIT

// Hashes, masks and draws for widths, shifts, weights and positions of every size, by their definitions; bad ones are Errors.

#include "poslsh/attention/bias.hpp"
#include "poslsh/mask/block_mask.hpp"
#include "poslsh/mask/mean_mask.hpp"
#include "poslsh/position/alibi.hpp"
#include "fuzz/numbers.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

namespace {

using namespace poslsh;
using namespace poslsh::fuzz;

constexpr Index last_position = Index{1} << 52;
constexpr bool reachable(Index position) { return position >= -last_position && position <= last_position; }

/// Whether the call throws an Error; nothing else may be thrown.
template <class Call>
bool refuses(Call&& call) {
  try {
    call();
    return false;
  } catch (const Error&) {
    return true;
  }
}

PositionHash any_hash(Bytes& bytes) {
  PositionHash hash{any_double(bytes), any_double(bytes), 1};
  if (bytes.ConsumeBool()) hash.weight = any_double(bytes);
  if (bytes.ConsumeBool()) hash.shift = hash.width * small_number<double>(bytes);
  return hash;
}
bool is_valid(const PositionHash& hash) {
  return hash.width > 0 && std::abs(hash.shift) <= std::max(hash.width / 2, 0x1p52) && hash.weight >= 0x1p-1000 &&
         hash.weight <= 0x1p1000;
}
/// Some hashes, each of them valid.
std::vector<PositionHash> valid_hashes(Bytes& bytes) {
  std::vector<PositionHash> hashes;
  for (Index count = in_range(bytes, 1, 6); count > 0; --count) {
    const PositionHash hash = any_hash(bytes);
    require(refuses([&] { hash.validate(); }) != is_valid(hash), "validate");
    if (is_valid(hash)) hashes.push_back(hash);
  }
  if (hashes.empty()) hashes.push_back({7, 2.5});
  return hashes;
}

// --- One hash ----------------------------------------------------------------------------------------------

void check_block(const PositionHash& hash, Index position) {
  const KeyRange block = hash.block(position);
  const Index bin = hash.bin(position);
  if (!reachable(position)) return;  // no more is promised than to come back
  require(block.contains(position), "a position is not in its own block");
  for (const Index other : {block.begin, block.end - 1})
    if (reachable(other)) require(hash.bin(other) == bin && hash.block(other) == block, "an end of a block is in another bin");
  if (reachable(block.begin - 1)) {
    require(hash.bin(block.begin - 1) < bin, "a block begins too late");
    require(hash.block(block.begin - 1).end == block.begin, "blocks do not follow each other");
  }
  if (reachable(block.end)) {
    require(hash.bin(block.end) > bin, "a block ends too late");
    require(hash.block(block.end).begin == block.end, "blocks do not follow each other");
  }
}

void check_hash(Bytes& bytes) {
  const PositionHash hash = valid_hashes(bytes).front();
  std::vector<Index> positions;
  for (int count = 0; count < 6; ++count) positions.push_back(any_position(bytes));
  std::sort(positions.begin(), positions.end());
  for (const Index position : positions) check_block(hash, position);
  for (std::size_t i = 1; i < positions.size(); ++i) {
    const Index before = positions[i - 1], after = positions[i];
    require(hash.bin(before) <= hash.bin(after), "a bin decreases");
    if (!reachable(before) || !reachable(after)) continue;
    require((hash.bin(before) == hash.bin(after)) == hash.block(before).contains(after), "bin and block disagree");
  }
}

/// Where everything is exact, a shift by the width moves every bin by one.
void check_shift(Bytes& bytes) {
  const double width = static_cast<double>(in_range(bytes, 2, 4096));
  const double shift = static_cast<double>(in_range(bytes, -(1 << 20), 1 << 20)) / 256;
  const Index position = in_range(bytes, -(1 << 20), 1 << 20);
  const PositionHash hash{width, shift}, moved{width, shift + width};
  require(moved.bin(position) == hash.bin(position) - 1 && moved.block(position) == hash.block(position),
          "a shift by the width does not move the bins by one");
  const double exact = std::floor((static_cast<double>(position) - shift) / width);
  require(static_cast<double>(hash.bin(position)) == exact, "bin");
}

// --- Masks -------------------------------------------------------------------------------------------------

void check_block_mask(Bytes& bytes) {
  const PositionHash hash = any_hash(bytes);
  const bool few = hash.width > 0x1p44;
  const Index n = bytes.ConsumeBool() ? in_range(bytes, -2, 300) : few ? any_position(bytes) : last_position + 1;
  const bool right = is_valid(hash) && n >= 0 && n <= last_position;
  std::optional<BlockMask> made;
  require(refuses([&] { made.emplace(hash, n); }) != right, "a BlockMask's arguments");
  if (!right) return;
  const BlockMask& mask = *made;
  Index end = 0;
  for (const KeyRange& block : mask.blocks()) {
    require(block.begin == end && !block.empty() && block == intersect(hash.block(block.begin), {0, n}), "blocks");
    end = block.end;
  }
  require(end == n && mask.size() == n, "the blocks do not cover the positions");
  for (int pair = 0; pair < 4; ++pair) {
    const Index i = in_range(bytes, -1, n), j = in_range(bytes, -1, n);
    const bool inside = i >= 0 && i < n && j >= 0 && j < n;
    require(mask.contains(i, j) == (inside && hash.block(i).contains(j)), "contains");
  }
  if (n > 20) return;
  const Matrix<float> dense = mask.dense<float>();
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < n; ++j) require(dense(i, j) == (mask.contains(i, j) ? 1 : 0), "dense");
}

/// The mean over the hashes whose block holds both.
double mean_weight(const std::vector<PositionHash>& hashes, Index i, Index j) {
  long double sum = 0;
  for (const PositionHash& hash : hashes)
    if (hash.block(i).contains(j)) sum += hash.weight;
  return static_cast<double>(sum / static_cast<long double>(hashes.size()));
}
bool close(double got, double wanted) { return std::abs(got - wanted) <= 1e-14 * std::abs(wanted); }

template <class T>
void check_log_weights(const MeanMask& mask, Index query, KeyRange keys) {
  std::vector<T> scores(static_cast<std::size_t>(keys.size()), T(3));
  mask.add_log_weights(query, keys.begin, scores.data(), keys.size());
  for (Index t = 0; t < keys.size(); ++t) {
    const double wanted = 3 + mask.log_weight(query, keys.begin + t);
    const double error = std::abs(static_cast<double>(scores[static_cast<std::size_t>(t)]) - wanted);
    require(error <= 2 * static_cast<double>(std::numeric_limits<T>::epsilon()) * (3 + std::abs(wanted)), "add_log_weights");
  }
}

void check_mean_mask(Bytes& bytes) {
  const std::vector<PositionHash> hashes = valid_hashes(bytes);
  const MeanMask mask(hashes);
  std::array<Index, 3> queries{};
  for (Index& query : queries) query = std::clamp(any_position(bytes), -last_position, last_position);
  std::sort(queries.begin(), queries.end());
  KeyRange last{min_position, min_position};
  for (const Index query : queries) {
    const KeyRange support = mask.support(query);
    require(support.begin >= last.begin && support.end >= last.end, "the support goes back");
    last = support;
    std::vector<Index> keys{query, support.begin - 1, support.begin, support.end - 1, support.end};
    for (const PositionHash& hash : hashes)
      for (const Index edge : {hash.block(query).begin, hash.block(query).end})
        keys.insert(keys.end(), {edge - 1, edge, edge + 1});
    for (const Index key : keys) {
      if (!reachable(key)) continue;
      const double weight = mask.weight(query, key);
      require(close(weight, mean_weight(hashes, query, key)) && weight == mask.weight(key, query), "weight");
      require((weight > 0) == support.contains(key) && mask.log_weight(query, key) == std::log(weight), "support");
      const KeyRange near = intersect(intersect(support, {key - 8, key + 8}), {-last_position, last_position + 1});
      check_log_weights<float>(mask, query, near);
      check_log_weights<double>(mask, query, near);
    }
  }
  const Index n = in_range(bytes, 0, 20);
  const Matrix<double> dense = mask.dense(n);
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < n; ++j) require(close(dense(i, j), mask.weight(i, j)), "dense");
}

void check_fixed_blocks(Bytes& bytes) {
  const FixedBlocks blocks{any_position(bytes)};
  const bool right = blocks.size >= 1 && blocks.size <= last_position;
  require(refuses([&] { blocks.validate(); }) != right, "the size of fixed blocks");
  if (!right) return;
  const Index query = std::clamp(any_position(bytes), -last_position, last_position);
  const KeyRange block = blocks.support(query);
  require(block.contains(query) && block.size() == blocks.size && block.begin % blocks.size == 0, "a fixed block");
  for (const Index key : {block.begin - 1, block.begin, block.end - 1, block.end})
    require((blocks.log_weight(query, key) == 0) == block.contains(key), "the weight in a fixed block");
}

// --- Draws -------------------------------------------------------------------------------------------------

/// \param ordinary  whether the kernel and the stretch are such that nothing may be refused
template <class Kernel>
void check_draws(Bytes& bytes, const Kernel& kernel, bool ordinary) {
  const Index samples = bytes.ConsumeBool() ? in_range(bytes, 1, 40) : in_range(bytes, -1, 0) * (Index{1} << 40);
  const Sampling sampling = bytes.PickValueInArray(
      {Sampling::independent, Sampling::stratified, Sampling::importance, Sampling::mixture});
  const auto seed = bytes.ConsumeIntegral<std::uint64_t>(), stream = bytes.ConsumeIntegral<std::uint64_t>();
  std::optional<double> stretch;
  if (bytes.ConsumeBool()) stretch = any_double(bytes);
  const double factor = stretch.value_or(sampling == Sampling::mixture ? 3 : 2);
  const bool wrong = samples < 1 || !(factor >= 1) || !std::isfinite(factor);
  std::vector<PositionHash> hashes;
  if (refuses([&] { hashes = draw_hashes(kernel, samples, seed, sampling, stream, stretch); })) {
    require(wrong || !ordinary || factor > 1000, "draws are refused");
    return;
  }
  require(!wrong && static_cast<Index>(hashes.size()) == samples, "draws of wrong arguments");
  require(hashes == draw_hashes(kernel, samples, seed, sampling, stream, stretch), "draws differ from themselves");
  for (const PositionHash& hash : hashes) {
    require(is_valid(hash), "a draw is not valid");
    const double most = sampling == Sampling::importance ? factor * factor : sampling == Sampling::mixture ? 2 : 1;
    require(hash.weight <= most * (1 + 1e-9), "a draw weighs too much");
    check_block(hash, any_position(bytes));
  }
}

void check_laplace(Bytes& bytes) {
  const LaplaceKernel kernel{any_double(bytes)};
  check_draws(bytes, kernel, kernel.sigma >= 1e-290 && kernel.sigma <= 1e290);
}
void check_power(Bytes& bytes) {
  const PowerKernel kernel{any_double(bytes), any_double(bytes)};
  const auto between = [](double value, double low, double high) { return value >= low && value <= high; };
  check_draws(bytes, kernel, between(kernel.scale, 1e-280, 1e280) && between(kernel.exponent, 1e-3, 100));
}

void check_slopes(Bytes& bytes) {
  const Index heads = bytes.ConsumeBool() ? in_range(bytes, -1, 300) : in_range(bytes, 1, 9) * ((Index{1} << 32) + 1);
  const double max_bias = any_double(bytes);
  const bool right = heads >= 1 && heads <= Index{1} << 32 && max_bias > 0 && std::isfinite(max_bias);
  std::vector<double> slopes;
  require(refuses([&] { slopes = alibi_slopes(heads, max_bias); }) != right, "the arguments of slopes");
  require(slopes.size() == (right ? static_cast<std::size_t>(heads) : 0), "the number of slopes");
  for (const double slope : slopes) require(slope >= std::exp2(-max_bias) && slope <= 1, "a slope out of range");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::array checks{check_hash,         check_shift,   check_block_mask, check_mean_mask,
                              check_fixed_blocks, check_laplace, check_power,      check_slopes};
  Bytes bytes(data, size);
  bytes.PickValueInArray(checks)(bytes);
  return 0;
}
