// SPDX-License-Identifier: MIT
#include "options.hpp"

#include <CLI/CLI.hpp>

#include "../../support/gnuplot.hpp"
#include "../../support/validators.hpp"

namespace tiny_lm {

std::optional<Options> parse_options(int argc, char** argv) {
  using poslsh_examples::between;
  Options options;
  CLI::App app(
      "Trains small language models over bytes that differ only in how they know where their tokens stand, with\n"
      "attention by poslsh, and compares them. A run can be interrupted and goes on where it was.",
      "tiny_lm");
  app.option_defaults()->always_capture_default();
  app.require_subcommand(1);

  const auto add = [&](const char* name, Task task, const char* meaning) {
    CLI::App* command = app.add_subcommand(name, meaning);
    command->parse_complete_callback([&options, task] { options.task = task; });
    command->option_defaults()->always_capture_default();
    return command;
  };
  CLI::App* train = add("train", Task::train, "Train one model from scratch and score it");
  CLI::App* transfer =
      add("transfer", Task::transfer,
          "Score the model trained with alibi under another scheme, before and after a short training with it");
  CLI::App* report = add("report", Task::report, "Tables and a figure of all runs in a folder");
  CLI::App* time =
      add("time", Task::time, "Time training steps by this library's ALiBi and by PyTorch's dense one, in turn");
  CLI::App* write = add("write-layer", Task::write_layer,
                        "Write q, k, v of one layer of a trained model: a 3 x heads x tokens x features .npy file");

  for (CLI::App* command : {train, transfer, time, write}) {
    command->add_option("--text", options.text, "File to learn from; a tenth of it is kept to be scored")->required();
    command->add_option("--layers", options.size.layers, "Layers")->transform(poslsh_examples::whole<std::int64_t>(1, 64));
    command->add_option("--heads", options.size.heads, "Heads a layer")->transform(poslsh_examples::whole<std::int64_t>(1, 256));
    command->add_option("--width", options.size.width, "Features of a token, an even number a head")
        ->transform(poslsh_examples::whole<std::int64_t>(2, 8192));
    command->add_option("--batch", options.plan.batch, "Windows a step")->transform(poslsh_examples::whole<std::int64_t>(1, 1024));
    command->add_option("--seed", options.seed, "Seed of weights, windows and masks")->transform(poslsh_examples::a_seed());
  }
  for (CLI::App* command : {train, transfer, write}) {
    command->add_option("--length", options.plan.length, "Bytes of a training window")->transform(poslsh_examples::whole<std::int64_t>(1, longest_window));
    command->add_option("--steps", options.plan.steps, "Training steps")->transform(poslsh_examples::whole<std::int64_t>(1, 1000000000));
    command->add_option("--rate", options.plan.rate, "Highest learning rate")
        ->check(between(0, 1, "a number from 0 to 1"));
  }
  for (CLI::App* command : {train, transfer, report, write})
    command->add_option("--folder", options.folder, "Where checkpoints and results are");
  for (CLI::App* command : {train, transfer}) {
    command->add_option("--positions", options.positions,
                        "none, rope, alibi, alibi-dense, blocks, or lsh-SAMPLING-S with independent, stratified,\n"
                        "importance, mixture or mean (of the draws' outputs) and S draws");
    command->add_option("--windows", options.windows, "Windows to score, 0 for all")->transform(poslsh_examples::whole<std::int64_t>(0, 1000000000));
    command->add_option("--checkpoint-every", options.plan.checkpoint_every, "Steps between checkpoints")
        ->transform(poslsh_examples::whole<std::int64_t>(1, 1000000000));
  }
  transfer->add_option("--tune-steps", options.tune_steps, "Steps of the short training")->transform(poslsh_examples::whole<std::int64_t>(1, 1000000000));
  transfer->add_option("--tune-rate", options.tune_rate, "Its highest learning rate")
      ->check(between(0, 1, "a number from 0 to 1"));
  report->add_option("--csv", options.csv, "Write all results to this file");
  report->add_option("--table", options.table, "Write the tables to this Markdown file");
  report->add_option("--plot", options.plot, "Draw them into this .png or .svg file, by gnuplot");
  time->add_option("--repetitions", options.repetitions, "Steps of each kind and length")->transform(poslsh_examples::whole<std::int64_t>(1, 1000000));
  write->add_option("--layer", options.layer, "Which layer, from 0")->transform(poslsh_examples::whole<std::int64_t>(0, 63));
  write->add_option("--tokens", options.tokens, "Bytes of the window")->transform(poslsh_examples::whole<std::int64_t>(1, longest_window));
  write->add_option("--output", options.output, "The file to write")->required();

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) throw std::runtime_error(error.what());
    app.exit(error);
    return std::nullopt;
  }
  if (options.size.width % (2 * options.size.heads) != 0)
    throw std::runtime_error("--width: " + std::to_string(options.size.width) + " is no even number a head for " +
                             std::to_string(options.size.heads) + " heads");
  if (options.layer >= options.size.layers)
    throw std::runtime_error("--layer: " + std::to_string(options.layer) + " is not below --layers, " +
                             std::to_string(options.size.layers));
  if (!options.plot.empty() && !poslsh_examples::is_picture_name(options.plot))
    throw std::runtime_error("--plot: " + options.plot + " ends neither in .png nor in .svg");
  static_cast<void>(Positions(options.positions));
  return options;
}

}  // namespace tiny_lm
