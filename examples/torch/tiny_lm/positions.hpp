// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The ways a model can know where its tokens stand.

#include <ATen/ATen.h>

#include <cstdint>
#include <poslsh/poslsh.hpp>
#include <string>

namespace tiny_lm {

/// Which random masks a call draws: all its heads draw independently, and so do calls with other numbers.
struct Draw {
  std::uint64_t seed = 1, number = 0;
};

/// A positional scheme, by name:
///
///   none            nothing but the causal mask
///   rope            rotated queries and keys
///   alibi           exact ALiBi, by this library's operator
///   alibi-dense     exact ALiBi, dense in PyTorch
///   blocks          blocks of 2 sigma positions, the same at each step
///   lsh-SAMPLING-S  positional LSH with S draws, redrawn in each call: independent, stratified, importance or
///                   mixture draws in one sweep (the paper's ratio merge), or mean: independent draws whose outputs are
///                   averaged (the merge of its training code)
class Positions {
 public:
  /// \throws std::invalid_argument if there is no such scheme
  explicit Positions(const std::string& name);

  [[nodiscard]] const std::string& name() const { return name_; }

  /// Causal attention of batch x heads x tokens x features, head h with the ALiBi slope of its number.
  [[nodiscard]] at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Draw& draw) const;

 private:
  enum class Kind { none, rope, alibi, alibi_dense, blocks, mean_mask, mean_merge };

  std::string name_;
  Kind kind_ = Kind::none;
  poslsh::Sampling sampling_ = poslsh::Sampling::independent;
  poslsh::Index samples_ = 0;
};

}  // namespace tiny_lm
