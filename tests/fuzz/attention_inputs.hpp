// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Options and biases of attention from a fuzzer's bytes, and by the contract whether they are valid.

#include "fuzz/support.hpp"
#include "poslsh/attention/kernel_bias.hpp"
#include "poslsh/attention/options.hpp"
#include "poslsh/mask/mean_mask.hpp"

#include <cmath>
#include <functional>
#include <vector>

namespace poslsh::fuzz {

// --- Options -----------------------------------------------------------------------------------------------

/// Valid options of every kind; queries near the keys, so that scores and log weights are ordinary numbers.
inline AttentionOptions ordinary_options(Bytes& bytes, Index queries, Index keys) {
  static constexpr Index origins[] = {0, 0, Index{1} << 40, -(Index{1} << 40), (Index{1} << 52) - 3000, 3000 - (Index{1} << 52)};
  const auto chosen = [choices = bytes.ConsumeIntegral<std::uint16_t>()](int bit) { return (choices >> bit & 1) != 0; };
  const auto window = [&] { return bytes.ConsumeBool() ? in_range(bytes, 0, 60) : std::numeric_limits<Index>::max(); };
  AttentionOptions options;
  options.causal = chosen(0);
  if (chosen(1)) options.window_left = window();
  if (chosen(2)) options.window_right = window();
  if (chosen(3)) options.key_offset = bytes.PickValueInArray(origins) + in_range(bytes, -1000, 1000);
  if (chosen(4)) options.query_offset = options.key_offset + in_range(bytes, -queries - 5, keys + 40);
  if (chosen(5)) options.scale = small_number<double>(bytes);
  if (chosen(6)) options.softcap = bytes.ConsumeIntegralInRange(1, 640) / 16.0;
  if (chosen(7)) options.sink = bytes.ConsumeBool() ? 8 * small_number<double>(bytes) : -std::numeric_limits<double>::infinity();
  if (chosen(8)) options.tolerance = std::ldexp(1.0, -static_cast<int>(in_range(bytes, -3, 60)));
  if (chosen(9) && chosen(10) && chosen(11)) options.threads = chosen(12) ? 3 : 2;  // not often: threads are slow to start
  return options;
}

/// Options in any range.
inline AttentionOptions any_options(Bytes& bytes) {
  const auto chosen = [choices = bytes.ConsumeIntegral<std::uint16_t>()](int bit) { return (choices >> bit & 1) != 0; };
  AttentionOptions options;
  options.causal = chosen(0);
  if (chosen(1)) options.window_left = any_index(bytes);
  if (chosen(2)) options.window_right = any_index(bytes);
  if (chosen(3)) options.key_offset = any_index(bytes);
  if (chosen(4)) options.query_offset = any_index(bytes);
  if (chosen(5)) options.scale = any_number<double>(bytes);
  if (chosen(6)) options.softcap = any_number<double>(bytes);
  if (chosen(7)) options.sink = any_number<double>(bytes);
  if (chosen(8)) options.tolerance = any_number<double>(bytes);
  if (chosen(9) && chosen(10)) options.threads = static_cast<int>(in_range(bytes, -2, 3));
  return options;
}

inline bool valid(const AttentionOptions& options, Index queries, Index keys) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto position = [](Index offset) { return offset >= -(Index{1} << 52) && offset <= Index{1} << 52; };
  return position(options.key_offset) && position(options.query_offset.value_or(options.key_offset + keys - queries)) &&
         std::abs(options.scale.value_or(0)) <= 0x1p126 && options.softcap.value_or(1) > 0 &&
         options.softcap.value_or(1) < infinity && options.sink.value_or(0) < infinity && options.tolerance >= 0 &&
         options.tolerance < infinity && options.threads >= 1 && options.window_left.value_or(0) >= 0 &&
         options.window_right.value_or(0) >= 0;
}

// --- Biases ------------------------------------------------------------------------------------------------

/// A bias as one type, for the oracle.
struct BiasFunctions {
  std::function<double(Index, Index)> log_weight;
  std::function<KeyRange(Index)> support;
};

/// The numbers of a bias of any kind, valid or not.
struct AnyBias {
  enum Kind { none, alibi, blocks, mean_mask, laplace, power } kind = none;
  double first = 0, second = 0;
  Index size = 1;
  std::vector<PositionHash> hashes;

  [[nodiscard]] bool valid() const {
    const auto positive = [](double value) { return value > 0 && std::isfinite(value); };
    const auto slope = [](double value) { return value >= -0x1p64 && std::isfinite(value); };
    switch (kind) {
      case none: return true;
      case alibi: return slope(first) && slope(second);
      case blocks: return size >= 1 && size <= Index{1} << 52;
      case laplace: return positive(first);
      case power: return positive(first) && positive(second);
      case mean_mask: break;
    }
    for (const PositionHash& hash : hashes)
      if (!(hash.width > 0 && std::abs(hash.shift) <= std::max(hash.width / 2, 0x1p52) && hash.weight >= 0x1p-1000 &&
            hash.weight <= 0x1p1000))
        return false;
    return !hashes.empty();
  }

  /// Calls body with the bias. \throws Error if a constructor does
  template <class Body>
  void visit(Body&& body) const {
    switch (kind) {
      case none: return body(NoBias{});
      case alibi: return body(AlibiBias{first, second});
      case blocks: return body(FixedBlocks{size});
      case mean_mask: return body(MeanMask(hashes));
      case laplace: return body(KernelBias{LaplaceKernel{first}});
      case power: return body(KernelBias{PowerKernel{first, second}});
    }
  }

  /// What a valid bias says; this must outlive it.
  [[nodiscard]] BiasFunctions functions() const {
    BiasFunctions all;
    visit([&](const auto& bias) {
      all = {[bias](Index query, Index key) { return bias.log_weight(query, key); },
             [bias](Index query) { return bias.support(query); }};
    });
    return all;
  }
};

/// A valid bias whose weights are ordinary numbers.
inline AnyBias ordinary_bias(Bytes& bytes) {
  static constexpr double steps[] = {1, 0.1, 1e-3};
  const auto number = [&] { return bytes.PickValueInArray(steps) * small_number<double>(bytes); };
  const auto positive = [&] { return std::abs(number()) + 1e-3; };
  AnyBias bias;
  bias.kind = static_cast<AnyBias::Kind>(in_range(bytes, 0, 5));
  if (bias.kind == AnyBias::alibi) bias.first = number(), bias.second = bytes.ConsumeBool() ? bias.first : number();
  if (bias.kind == AnyBias::laplace || bias.kind == AnyBias::power) bias.first = positive() * 10, bias.second = positive() * 2;
  if (bias.kind == AnyBias::blocks) bias.size = bytes.ConsumeBool() ? in_range(bytes, 1, 100) : Index{1} << in_range(bytes, 0, 52);
  if (bias.kind != AnyBias::mean_mask) return bias;
  for (Index draws = in_range(bytes, 1, 5); draws > 0; --draws) {
    PositionHash hash{bytes.ConsumeIntegralInRange(1, 6000) / 16.0, 0, bytes.ConsumeIntegralInRange(1, 64) / 16.0};
    hash.shift = hash.width * bytes.ConsumeIntegralInRange(0, 255) / 256;
    if (bytes.ConsumeIntegral<std::uint8_t>() == 0) hash = {};  // one block
    bias.hashes.push_back(hash);
  }
  return bias;
}

/// A bias with numbers in any range.
inline AnyBias any_bias(Bytes& bytes) {
  AnyBias bias;
  bias.kind = static_cast<AnyBias::Kind>(in_range(bytes, 0, 5));
  bias.first = any_number<double>(bytes);
  bias.second = any_number<double>(bytes);
  bias.size = any_index(bytes);
  for (Index draws = in_range(bytes, 0, 3); draws > 0; --draws)
    bias.hashes.push_back({any_number<double>(bytes), any_number<double>(bytes), any_number<double>(bytes)});
  return bias;
}

}  // namespace poslsh::fuzz
