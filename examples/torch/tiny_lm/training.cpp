// SPDX-License-Identifier: MIT
#include "training.hpp"

#include <torch/optim/adamw.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <iterator>
#include <numbers>
#include <sstream>

#include "../../support/output_file.hpp"
#include "../../support/progress.hpp"

namespace tiny_lm {

namespace {

using at::Tensor;
using poslsh_examples::FileError;

/// Streams of random numbers that no other purpose uses.
constexpr std::uint64_t scoring_draws = std::uint64_t{1} << 40;

double rate_at(const TrainingPlan& plan, std::int64_t step) {
  const double warm_up = std::max(1.0, static_cast<double>(plan.steps) / 20);
  const double at = static_cast<double>(step) + 1;
  if (at <= warm_up) return plan.rate * at / warm_up;
  const double part = (at - warm_up) / std::max(1.0, static_cast<double>(plan.steps) - warm_up);
  return plan.rate * (0.55 + 0.45 * std::cos(std::numbers::pi * part));
}

torch::optim::AdamW optimizer_of(Model& model, const TrainingPlan& plan) {
  std::vector<Tensor> matrices, vectors;
  for (const Tensor& parameter : model.parameters()) (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
  const auto options = [&](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions(plan.rate).betas({0.9, 0.95}).weight_decay(decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, options(0.1));
  groups.emplace_back(vectors, options(0));
  return torch::optim::AdamW(groups);
}

/// A run between two of its steps.
class Run {
 public:
  Run(const ModelSize& size, const TrainingPlan& plan, std::string identity)
      : model(std::make_shared<Model>(size)), optimizer(optimizer_of(*model, plan)), identity_(std::move(identity)) {}

  std::shared_ptr<Model> model;
  torch::optim::AdamW optimizer;
  std::int64_t step = 0;
  double seconds = 0;
  double last_nats = 0;  ///< sum over the last twentieth of the steps

  void save(const std::filesystem::path& path) const {
    torch::serialize::OutputArchive archive, weights, state;
    model->save(weights);
    optimizer.save(state);
    archive.write("model", weights);
    archive.write("optimizer", state);
    archive.write("identity", c10::IValue(identity_));
    archive.write("step", c10::IValue(step));
    archive.write("seconds", c10::IValue(seconds));
    archive.write("last_nats", c10::IValue(last_nats));
    // Through memory: PyTorch's own writer ends the program where the disk is full, and checks nothing when it reads.
    std::ostringstream bytes;
    archive.save_to(bytes);
    std::string content = std::move(bytes).str();
    const std::uint64_t sum = checksum(content);
    content.append(reinterpret_cast<const char*>(&sum), sizeof sum);
    poslsh_examples::write_file(path, content);
  }

  void load(const std::filesystem::path& path) {
    c10::IValue text, number;
    try {
      std::ifstream file(path, std::ios::binary);
      std::string content((std::istreambuf_iterator<char>(file)), {});
      std::uint64_t sum = 0;
      if (content.size() < sizeof sum) throw FileError(path, "is too short");
      std::memcpy(&sum, content.data() + content.size() - sizeof sum, sizeof sum);
      content.resize(content.size() - sizeof sum);
      if (sum != checksum(content)) throw FileError(path, "is damaged");
      std::istringstream bytes(std::move(content));
      torch::serialize::InputArchive archive, weights, state;
      archive.load_from(bytes);
      archive.read("identity", text);
      if (text.toStringRef() == identity_) {
        archive.read("model", weights);
        archive.read("optimizer", state);
        model->load(weights);
        optimizer.load(state);
        archive.read("step", number);
        step = number.toInt();
        archive.read("seconds", number);
        seconds = number.toDouble();
        archive.read("last_nats", number);
        last_nats = number.toDouble();
        return;
      }
    } catch (const std::exception&) {
      throw FileError(path, "is not a checkpoint of this program, or is damaged");
    }
    throw FileError(path, "is the checkpoint of another run: " + text.toStringRef() + "; wanted " + identity_ +
                              ". Name another folder, or remove it");
  }

 private:
  /// FNV-1a.
  static std::uint64_t checksum(std::string_view bytes) {
    std::uint64_t sum = 0xcbf29ce484222325;
    for (const char byte : bytes) sum = (sum ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
    return sum;
  }

  std::string identity_;
};

/// Ctrl-C ends a run after its step, with a checkpoint.
volatile std::sig_atomic_t interrupted = 0;

class InterruptGuard {
 public:
  InterruptGuard() : before_(std::signal(SIGINT, [](int) { interrupted = 1; })) {}
  InterruptGuard(const InterruptGuard&) = delete;
  ~InterruptGuard() { std::signal(SIGINT, before_); }

 private:
  void (*before_)(int);
};

std::string identity_of(const Text& text, const ModelSize& size, const Positions& positions, const TrainingPlan& plan,
                        std::uint64_t seed, const Model* start) {
  std::string all = positions.name();
  if (start != nullptr) {
    double sum = 0;  // tells weights apart
    for (const Tensor& parameter : start->parameters()) sum += parameter.sum().item<double>();
    all += " from weights of sum " + std::to_string(sum);
  }
  for (const auto& [name, value] : {std::pair{"seed", static_cast<std::int64_t>(seed)},
                                    {"text", text.fingerprint()},
                                    {"layers", size.layers},
                                    {"heads", size.heads},
                                    {"width", size.width},
                                    {"steps", plan.steps},
                                    {"batch", plan.batch},
                                    {"length", plan.length}})
    all += std::string(" ") + name + " " + std::to_string(value);
  return all + " rate " + std::to_string(plan.rate);
}

}  // namespace

Tensor loss_of(const Tensor& logits, const Tensor& tokens) {
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(2)}), tokens.reshape({-1}));
}

TrainedModel train(const Text& text, const ModelSize& size, const Positions& positions, const TrainingPlan& plan,
                   std::uint64_t seed, const std::filesystem::path& checkpoint, const std::string& title,
                   const Model* start) {
  torch::manual_seed(seed);
  Run run(size, plan, identity_of(text, size, positions, plan, seed, start));
  if (start != nullptr) {
    const torch::NoGradGuard no_gradients;
    const std::vector<Tensor> from = start->parameters(), to = run.model->parameters();
    for (std::size_t p = 0; p < to.size(); ++p) to[p].copy_(from[p]);
  }
  if (std::filesystem::exists(checkpoint)) run.load(checkpoint);
  const std::int64_t first_of_last = plan.steps - std::max<std::int64_t>(1, plan.steps / 20);
  if (run.step < plan.steps) {
    poslsh_examples::Progress progress(static_cast<double>(plan.steps - run.step));
    const InterruptGuard guard;
    run.model->train();
    auto begin = std::chrono::steady_clock::now();
    while (run.step < plan.steps) {
      const Tensor windows = text.training_batch(seed, run.step, plan.batch, plan.length);
      const Draw draw{seed, static_cast<std::uint64_t>(run.step)};
      const Tensor logits = run.model->forward(windows.narrow(1, 0, plan.length), positions, draw);
      const Tensor loss = loss_of(logits, windows.narrow(1, 1, plan.length));
      for (auto& group : run.optimizer.param_groups())
        static_cast<torch::optim::AdamWOptions&>(group.options()).lr(rate_at(plan, run.step));
      run.optimizer.zero_grad();
      loss.backward();
      torch::nn::utils::clip_grad_norm_(run.model->parameters(), 1.0);
      run.optimizer.step();
      const double nats = loss.item<double>();
      if (!std::isfinite(nats)) throw std::runtime_error(title + ": the loss is no number at step " + std::to_string(run.step));
      if (run.step >= first_of_last) run.last_nats += nats;
      ++run.step;
      progress.advance(1);
      if (run.step % plan.checkpoint_every == 0 || run.step == plan.steps || interrupted != 0) {
        const auto now = std::chrono::steady_clock::now();
        run.seconds += std::chrono::duration<double>(now - begin).count();
        begin = now;
        run.save(checkpoint);
      }
      if (interrupted != 0)
        throw std::runtime_error(title + ": interrupted after step " + std::to_string(run.step) +
                                 "; the same command goes on from there");
    }
  }
  return {run.model, run.seconds,
          run.last_nats / static_cast<double>(plan.steps - first_of_last) / std::numbers::ln2};
}

Score score(Model& model, const Text& text, const Positions& positions, std::int64_t length, std::int64_t windows,
            std::uint64_t seed) {
  const torch::NoGradGuard no_gradients;
  model.eval();
  const std::int64_t held = text.scoring_windows(), count = windows == 0 ? held : std::min(windows, held);
  const std::int64_t rows = std::max<std::int64_t>(1, 4096 / length), scored = std::min(scored_bytes, length);
  double nats = 0, right = 0;
  for (std::int64_t first = 0; first < count; first += rows) {
    const std::int64_t batch = std::min(rows, count - first);
    std::vector<std::int64_t> numbers;
    for (std::int64_t w = first; w < first + batch; ++w) numbers.push_back(w * held / count);
    const Tensor bytes = text.scoring_batch(numbers, length);
    const Draw draw{seed, scoring_draws + static_cast<std::uint64_t>(first)};
    const Tensor logits =
        model.forward(bytes.narrow(1, 0, length), positions, draw).narrow(1, length - scored, scored);
    const Tensor targets = bytes.narrow(1, length + 1 - scored, scored);
    nats += loss_of(logits, targets).item<double>() * static_cast<double>(batch * scored);
    right += static_cast<double>((logits.argmax(2) == targets).sum().item<std::int64_t>());
  }
  if (!std::isfinite(nats)) throw std::runtime_error("the model's logits are no numbers");
  const auto total = static_cast<double>(count * scored);
  return {length, nats / total / std::numbers::ln2, right / total};
}

}  // namespace tiny_lm
