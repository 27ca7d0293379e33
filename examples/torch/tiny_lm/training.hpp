// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// Training runs that can be interrupted at any time, and scoring.

#include <filesystem>
#include <memory>
#include <vector>

#include "model.hpp"
#include "text.hpp"

namespace tiny_lm {

/// AdamW (betas 0.9 and 0.95, decay 0.1 of matrices, gradients of norm at most 1); the rate climbs linearly over the
/// first twentieth of the steps and falls to a tenth of it along a cosine.
struct TrainingPlan {
  std::int64_t steps = 700, batch = 4, length = 512, checkpoint_every = 100;
  double rate = 4e-3;
};

/// A model, how far it has come, and what that took.
struct TrainedModel {
  std::shared_ptr<Model> model;
  double seconds = 0;        ///< of its training, over all parts of an interrupted run
  double training_bits = 0;  ///< bits a byte, mean of the last twentieth of the steps
};

/// Trains from scratch, or from `start` if that is given; goes on from the checkpoint at this path if there is one, and
/// leaves one there. The numbers are those of an uninterrupted run.
/// \throws poslsh_examples::FileError if the checkpoint cannot be read or written, or is one of another run
TrainedModel train(const Text& text, const ModelSize& size, const Positions& positions, const TrainingPlan& plan,
                   std::uint64_t seed, const std::filesystem::path& checkpoint, const std::string& title,
                   const Model* start = nullptr);

/// What the sliding protocol gave: windows of `length` bytes, of which the last 512 are scored; the same bytes for
/// every length.
struct Score {
  std::int64_t length = 0;
  double bits = 0;      ///< a byte; the perplexity is 2^bits
  double accuracy = 0;  ///< part of the bytes that got the highest logit
};

/// Scores so many windows spread over what the text holds out, all if windows is 0.
Score score(Model& model, const Text& text, const Positions& positions, std::int64_t length, std::int64_t windows,
            std::uint64_t seed);

/// Nats of a batch: the mean over the last `scored` positions of each row.
at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& tokens);

}  // namespace tiny_lm
