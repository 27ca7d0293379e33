// SPDX-License-Identifier: MIT
//
// The training comparison of arXiv 2605.09472 in small: byte-level language models that differ only in how they know
// where their tokens stand. See `tiny_lm --help` and compare.sh.

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>

#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>

#include "../../support/npy.hpp"
#include "results.hpp"

namespace {

using namespace tiny_lm;

std::vector<Result> score_all(const TrainedModel& trained, const Text& text, const Positions& positions, Result what,
                              const Options& options) {
  const bool same = what.trained_with == positions.name();
  const std::string tuned = what.tuned_steps == 0 ? same ? "" : ", switched"
                                                  : ", tuned for " + std::to_string(what.tuned_steps) + " steps";
  what.positions = positions.name();
  what.seed = options.seed;
  what.parameters = trained.model->parameter_count();
  what.training_bits = trained.training_bits;
  what.seconds = trained.seconds;
  std::vector<Result> results;
  for (const std::int64_t length : {std::int64_t{512}, std::int64_t{1024}, longest_window}) {
    what.score = score(*trained.model, text, positions, length, options.windows, options.seed);
    std::printf("%s, trained with %s%s, seed %llu, %lld bytes: %.4f bits a byte, %.1f %% right\n", what.positions.c_str(),
                what.trained_with.c_str(), tuned.c_str(), static_cast<unsigned long long>(what.seed),
                static_cast<long long>(length),
                what.score.bits, 100 * what.score.accuracy);
    std::fflush(stdout);
    results.push_back(what);
  }
  return results;
}

/// The model of a scheme, trained as far as it is not yet.
TrainedModel trained_model(const Text& text, const std::string& positions, const Options& options) {
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error) throw poslsh_examples::FileError(options.folder, "is no folder and cannot be made one: " + error.message());
  return train(text, options.size, Positions(positions), options.plan, options.seed,
               options.run_file(positions, ".pt"), positions);
}

/// The model trained with alibi, which an earlier run of `train` has left.
TrainedModel alibi_model(const Text& text, const Options& options) {
  const std::string file = options.run_file("alibi", ".pt");
  if (!std::filesystem::exists(file))
    throw poslsh_examples::FileError(file, "is not there: first train with --positions alibi and the same options");
  return trained_model(text, "alibi", options);
}

void train_and_score(const Text& text, const Options& options) {
  const TrainedModel trained = trained_model(text, options.positions, options);
  Result what;
  what.trained_with = options.positions;
  what.steps = options.plan.steps;
  write_results(score_all(trained, text, Positions(options.positions), what, options),
                options.run_file(options.positions, ".csv"));
}

void transfer(const Text& text, const Options& options) {
  const TrainedModel source = alibi_model(text, options);
  const Positions target(options.positions);
  const std::string name = "alibi-to-" + options.positions;
  Result what;
  what.trained_with = "alibi";
  what.steps = options.plan.steps;
  std::vector<Result> results;
  // Switching ALiBi to ALiBi changes nothing; its tuned run shows what the further steps do by themselves.
  if (options.positions != "alibi") results = score_all(source, text, target, what, options);
  TrainingPlan plan = options.plan;
  plan.steps = options.tune_steps;
  plan.rate = options.tune_rate;
  Options tuned = options;
  tuned.seed = options.seed + 1000;  // other windows than those of the first steps
  TrainedModel model = train(text, options.size, target, plan, tuned.seed, options.run_file(name, ".pt"), name,
                             source.model.get());
  what.tuned_steps = options.tune_steps;
  for (const Result& result : score_all(model, text, target, what, options)) results.push_back(result);
  write_results(results, options.run_file(name, ".csv"));
}

/// Training steps with the same weights and windows, in turn: exact ALiBi by this library and dense in PyTorch.
void time_steps(const Text& text, const Options& options) {
  at::set_num_threads(1);
  const std::array<Positions, 2> all = {Positions("alibi"), Positions("alibi-dense")};
  std::printf("length  batch  alibi ms  alibi-dense ms  ratio (medians of %lld steps in turn, one thread)\n",
              static_cast<long long>(options.repetitions));
  for (const std::int64_t length : {std::int64_t{512}, longest_window}) {
    const std::int64_t batch = std::max<std::int64_t>(1, options.plan.batch * 512 / length);
    std::array<std::vector<double>, 2> times;
    std::array<double, 2> losses{};
    torch::manual_seed(options.seed);
    Model model(options.size);
    torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0));
    for (std::int64_t step = -2; step < options.repetitions; ++step) {  // two to warm up
      const at::Tensor windows = text.training_batch(options.seed, step, batch, length);
      for (std::size_t kind = 0; kind < 2; ++kind) {
        const auto begin = std::chrono::steady_clock::now();
        const at::Tensor loss =
            loss_of(model.forward(windows.narrow(1, 0, length), all[kind], {}), windows.narrow(1, 1, length));
        optimizer.zero_grad();
        loss.backward();
        optimizer.step();
        const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - begin;
        losses[kind] = loss.item<double>();
        if (step >= 0) times[kind].push_back(taken.count());
      }
      if (std::abs(losses[0] - losses[1]) > 1e-4 * losses[1])
        throw std::runtime_error("the two losses differ: " + std::to_string(losses[0]) + " and " +
                                 std::to_string(losses[1]));
    }
    std::array<double, 2> median{};
    for (std::size_t kind = 0; kind < 2; ++kind) {
      std::sort(times[kind].begin(), times[kind].end());
      median[kind] = times[kind][times[kind].size() / 2];
    }
    std::printf("%6lld  %5lld  %8.1f  %14.1f  %5.2f\n", static_cast<long long>(length), static_cast<long long>(batch),
                median[0], median[1], median[1] / median[0]);
  }
}

void write_layer(const Text& text, const Options& options) {
  poslsh_examples::check_writable(options.output);
  const TrainedModel trained = alibi_model(text, options);
  const torch::NoGradGuard no_gradients;
  LayerInputs seen;
  const at::Tensor window = text.scoring_batch({0}, options.tokens).narrow(1, 0, options.tokens);
  static_cast<void>(trained.model->forward(window, Positions("alibi"), {}, &seen, options.layer));
  const at::Tensor all = at::stack({seen.q[0], seen.k[0], seen.v[0]}).contiguous();
  poslsh_examples::write_npy<float>(options.output, all.sizes(),
                                    {all.data_ptr<float>(), static_cast<std::size_t>(all.numel())});
}

int run(const Options& options) {
  at::set_num_threads(1);  // one run a core is faster than one run on several
  if (options.task == Task::report) {
    poslsh_examples::check_outputs({options.csv, options.table, options.plot});
    report(read_results(options.folder), options);
    poslsh_examples::finish_printing();
    return 0;
  }
  const Text text(options.text);
  switch (options.task) {
    case Task::train: train_and_score(text, options); break;
    case Task::transfer: transfer(text, options); break;
    case Task::time: time_steps(text, options); break;
    case Task::write_layer: write_layer(text, options); break;
    case Task::report: break;
  }
  poslsh_examples::finish_printing();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string message;
  try {
    const std::optional<Options> options = parse_options(argc, argv);
    return options ? run(*options) : 0;
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    message = error.what();
  }
  std::replace_if(
      message.begin(), message.end(), [](unsigned char c) { return c < ' '; }, ' ');
  std::fprintf(stderr, "tiny_lm: %s\n", message.c_str());
  return 2;
}
