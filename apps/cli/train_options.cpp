#include "train_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <limits>

#include "imago/error.h"
#include "shared_options.h"

namespace imago::cli {

namespace {

constexpr double kMost = std::numeric_limits<float>::max();

void add_data_options(CLI::App& command, TrainCommand& options) {
  command.add_option("--targets", options.targets, "CSV: the last columns, which are targets (default: 1)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 24));
  command.add_option("--labels", options.labels, "IDX: the labels (default: the file beside the images)")
      ->type_name("FILE");
  command.add_flag("--one-hot", options.one_hot, "Turn class numbers into rows with a single 1 (default: keep them)");
  command.add_option("--text-context", options.text_context, "The data is a text: tokens per example (default: none)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 24));
  command.add_flag("--text-bytes", options.text_bytes, "Tokens of a text are its bytes (default: its characters)");
  command
      .add_option("--validation", options.validation,
                  "Share of the examples that is held back to measure the loss on (default: 0)")
      ->type_name("SHARE")
      ->check(CLI::Range(0.0, 1.0));
  command
      .add_option("--patience", options.patience,
                  "Epochs without a better validation loss before it stops (default: 0, never)")
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 30));
  command.add_flag("--shuffle,!--no-shuffle", options.shuffle,
                   "Take examples in another order each epoch (default: on)");
}

void add_update_options(CLI::App& command, TrainCommand& options) {
  const auto number = [&](const char* flag, float& place, const char* text) {
    command.add_option(flag, place, text)->type_name("X")->check(CLI::Range(0.0, kMost));
  };
  number("--lr", options.rate, "Learning rate (default: 0.01)");
  command.add_option("--optimizer", options.optimizer, "How weights follow their gradients (default: sgd)")
      ->type_name("sgd|momentum|adam|adamw");
  command.add_option("--loss", options.loss, "What training makes small (default: mse; cross_entropy_logits for text)")
      ->type_name("mse|cross_entropy|cross_entropy_logits|multi_head_softmax_ce");
  command.add_option("--heads", options.heads, "multi_head_softmax_ce: widths of the slices, as 3,3,4 (default: none)")
      ->type_name("N,N")
      ->delimiter(',');
  number("--momentum", options.momentum, "Of the optimizer momentum (default: 0.9)");
  number("--weight-decay", options.weight_decay, "Of adamw (default: 0)");
  command.add_option("--schedule", options.schedule, "Of the learning rate (default: constant)")
      ->type_name("constant|cosine");
  command.add_option("--warmup", options.warmup, "Steps in which the rate rises to its value (default: 0)")
      ->type_name("N");
  number("--clip", options.clip, "Bound for each element of the gradient (default: 0, none)");
  number("--clip-norm", options.clip_norm, "Bound for the length of the whole gradient (default: 0, none)");
  command
      .add_option("--dtype", options.dtype,
                  "Type of all weights, trained through their rounding (default: as SPEC says, layer by layer)")
      ->type_name("TYPE");
  command.add_flag("--learn-scales", options.learn_scales,
                   "Train the scales of integers of up to 8 bits too (default: derive them)");
}

void add_resume_options(CLI::App& command, TrainCommand& options) {
  command.add_option("--state", options.state, "Where to keep what --resume takes (default: OUT.state)")
      ->type_name("FILE");
  command
      .add_option("--checkpoint-every", options.checkpoint_every,
                  "Write the state every N steps and at the end (default: 0, only with --state and at the end)")
      ->type_name("N");
  command.add_option("--resume", options.resume, "Go on from this state, with the same other options (default: none)")
      ->type_name("FILE");
  command.add_option("--max-steps", options.max_steps, "Stop after this step (default: 0, do all epochs)")
      ->type_name("N");
}

}  // namespace

void add_train_options(CLI::App& command, TrainCommand& options) {
  command.add_option("SPEC", options.spec, "An architecture or checkpoint JSON, or an .entity file")->required();
  command.add_option("--data", options.data, "CSV, IDX images, safetensors with 'x' and 'y', or a text")
      ->type_name("FILE")
      ->required();
  command.add_option("-o,--output", options.output, "The trained network: .json, .entity or .safetensors")
      ->type_name("FILE")
      ->required();
  command.add_option("--epochs", options.epochs, "Times to go through the data (default: 10)")
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 30));
  command.add_option("--batch", options.batch, "Examples per step (default: 32)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 30));
  add_update_options(command, options);
  add_data_options(command, options);
  add_resume_options(command, options);
  add_seed(command, options.seed, "Of fresh weights and of the order of the examples (default: 0)");
  add_fp4_legacy(command, options.fp4_legacy);
  add_device(command, options.device);
  add_threads(command, options.threads);
  add_quiet(command, options.quiet);
  add_json(command, options.json);
}

LossKind TrainCommand::loss_kind() const {
  if (!loss.empty()) return parse_loss(loss);
  return text_context != 0 ? LossKind::cross_entropy_logits : LossKind::mse;
}

TrainOptions TrainCommand::to_options() const {
  const auto need = [](bool given, const char* option, bool fits, const char* with) {
    if (given && !fits) throw UsageError(fmt::format("{} makes sense only with {}", option, with));
  };
  const bool text = text_context != 0;
  if (!(rate >= 0)) throw UsageError(fmt::format("--lr {} is no learning rate", rate));  // NaN passes a range
  if (validation == 1) throw UsageError("--validation 1 leaves no example to train with; hold back 0.1, say");
  need(text_bytes, "--text-bytes", text, "--text-context");
  need(one_hot, "--one-hot", !text, "data that is no text");
  need(patience != 0, "--patience", validation != 0, "--validation");
  need(!heads.empty(), "--heads", loss_kind() == LossKind::multi_head_softmax_ce, "--loss multi_head_softmax_ce");
  need(loss_kind() == LossKind::multi_head_softmax_ce, "--loss multi_head_softmax_ce", !heads.empty(), "--heads");

  TrainOptions wanted{.epochs = epochs, .batch = batch, .shuffle = shuffle, .seed = seed};
  wanted.loss = {.kind = loss_kind(), .heads = heads};
  wanted.optimizer = {.kind = parse_optimizer(optimizer),
                      .momentum = momentum,
                      .weight_decay = weight_decay,
                      .clip_element = clip,
                      .clip_norm = clip_norm,
                      .learn_scales = learn_scales};
  need(weight_decay != 0, "--weight-decay", wanted.optimizer.kind == OptimizerKind::adamw, "--optimizer adamw");
  wanted.schedule = {.kind = parse_schedule(schedule), .rate = rate, .warmup_steps = warmup};
  wanted.validation_share = validation;
  wanted.patience = patience;
  return wanted;
}

}  // namespace imago::cli
