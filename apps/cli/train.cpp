// imago train: trains an architecture or a checkpoint on data and writes a checkpoint.

#include <cmath>

#include "model_options.h"

namespace imago::cli {

namespace {

struct TrainCommand : CommonOptions {
  std::string spec, output;
  DataOptions data;
  TrainOptions training;  ///< except its loss, unless --loss is given, and the device and the callbacks
  std::optional<Format> dtype;
  LoadOptions load;
  std::size_t text_context = 0;  ///< 0: the data is not a text
  bool text_bytes = false;
  std::uint64_t max_steps = 0;
  std::string state, resume;
  std::string device;  ///< empty: the CPU
};

constexpr double kMost = std::numeric_limits<float>::max();

void add_data_options(CLI::App& command, TrainCommand& options) {
  CLI::Option* data =
      add_file(command, "--data", options.data.path, "CSV, IDX images, safetensors with 'x' and 'y', or a text");
  add_data_columns(command, options.data.columns, data->required());
  add_number(command, "--text-context", options.text_context, 1, 1 << 24,
             "The data is a text: tokens per example, by the tokenizer that the network has, else characters (default: "
             "none)");
  command.add_flag("--text-bytes", options.text_bytes,
                   "Tokens of a text are its bytes (default: those of the network's tokenizer, else its characters)");
  add_number(command, "--validation", options.training.validation_share, 0.0, 1.0,
             "Share of the examples held back to measure the loss (default: 0)", "SHARE");
  add_number(command, "--patience", options.training.patience, 0, 1 << 30,
             "Stop after so many epochs without a better validation loss (default: 0, never)");
  command.add_flag("--shuffle,!--no-shuffle", options.training.shuffle,
                   "Use examples in another order each epoch (default: on)");
}

void add_update_options(CLI::App& command, TrainCommand& options) {
  const auto number = [&](const char* flag, float& place, const char* text) {
    add_number(command, flag, place, 0.0, kMost, text, "X");
  };
  OptimizerOptions& optimizer = options.training.optimizer;
  Schedule& schedule = options.training.schedule;
  number("--lr", schedule.rate, "Learning rate (default: 0.01)");
  add_parsed(command, "--optimizer", optimizer.kind, parse_optimizer, "sgd|momentum|adam|adamw",
             "The optimizer (default: sgd)");
  const auto loss = [](const std::string& text) { return Loss{.kind = parse_loss(text)}; };
  add_parsed(command, "--loss", options.data.loss, loss, "mse|cross_entropy|cross_entropy_logits|multi_head_softmax_ce",
             "The loss (default: mse; cross_entropy_logits for text)");
  add_value(command, "--heads", options.training.loss.heads, "N,N",
            "multi_head_softmax_ce: columns per head, as 3,3,4 (default: none)")
      ->delimiter(',');
  number("--momentum", optimizer.momentum, "Of the optimizer momentum (default: 0.9)");
  number("--weight-decay", optimizer.weight_decay, "Of adamw (default: 0)");
  add_parsed(command, "--schedule", schedule.kind, parse_schedule, "constant|cosine",
             "Of the learning rate (default: constant)");
  add_value(command, "--warmup", schedule.warmup_steps, "N",
            "Steps over which the rate rises to its value (default: 0)");
  number("--clip", optimizer.clip_element, "Limit of each element of the gradient (default: 0, none)");
  number("--clip-norm", optimizer.clip_norm, "Limit of the norm of the whole gradient (default: 0, none)");
  add_parsed(command, "--dtype", options.dtype, parse_format, "TYPE",
             "Type of all weights; training uses the rounded weights (default: as SPEC says, layer by layer)");
  const auto learn_scales = [&optimizer](std::int64_t count) { optimizer.learn_scales = count > 0; };
  command.add_flag_function("--learn-scales,!--no-learn-scales", learn_scales,
                            "Also train the scales of integers of up to 8 bits, or derive them from the largest weight "
                            "at each step (default: train those of ternary, binary and 2-bit types)");
}

void add_resume_options(CLI::App& command, TrainCommand& options) {
  add_file(command, "--state", options.state, "Where to write the state for --resume (default: OUT.state)");
  add_value(command, "--checkpoint-every", options.training.checkpoint_steps, "N",
            "Write the state every N steps and at the end (default: 0, only with --state and at the end)");
  add_file(command, "--resume", options.resume, "Resume from this state, with otherwise equal options (default: none)");
  add_value(command, "--max-steps", options.max_steps, "N", "Stop after this step (default: 0, run all epochs)");
}

void add_train_options(CLI::App& command, TrainCommand& options) {
  command.add_option("SPEC", options.spec, "An architecture, or a network in any file format")->required();
  add_data_options(command, options);
  add_file(command, "-o,--output", options.output, "The trained network: .json, .entity, .safetensors or .gguf")
      ->required();
  add_number(command, "--epochs", options.training.epochs, 0, 1 << 30, "Number of passes over the data (default: 10)");
  add_number(command, "--batch", options.training.batch, 1, 1 << 30, "Examples per step (default: 32)");
  add_update_options(command, options);
  add_resume_options(command, options);
  add_seed(command, options.training.seed, "Of new weights and the order of the examples (default: 0)");
  add_fp4_legacy(command, options.load);
  add_device(command, options.device);
  add_threads(command, options.threads);
  add_quiet(command, options.quiet);
  add_json(command, options.json);
}

/// The default is cross_entropy_logits for text, otherwise mse.
LossKind loss_kind(const TrainCommand& command) {
  if (command.data.loss) return command.data.loss->kind;
  return command.text_context != 0 ? LossKind::cross_entropy_logits : LossKind::mse;
}

/// Throws UsageError for options that need others.
void check(const TrainCommand& command) {
  const auto need = [](bool given, const char* option, bool fits, const char* with) {
    if (given && !fits) throw UsageError(fmt::format("{} makes sense only with {}", option, with));
  };
  const TrainOptions& training = command.training;
  const bool text = command.text_context != 0, heads = !training.loss.heads.empty();
  const bool multi_head = loss_kind(command) == LossKind::multi_head_softmax_ce;
  if (!(training.schedule.rate >= 0)) {  // a range accepts NaN
    throw UsageError(fmt::format("--lr {} is not a learning rate", training.schedule.rate));
  }
  if (training.validation_share == 1) {
    throw UsageError("--validation 1 leaves no examples to train on; hold back 0.1, for example");
  }
  need(command.text_bytes, "--text-bytes", text, "--text-context");
  need(command.data.columns.one_hot, "--one-hot", !text, "data that is not a text");
  need(training.patience != 0, "--patience", training.validation_share != 0, "--validation");
  need(heads, "--heads", multi_head, "--loss multi_head_softmax_ce");
  need(multi_head, "--loss multi_head_softmax_ce", heads, "--heads");
  need(training.optimizer.weight_decay != 0, "--weight-decay", training.optimizer.kind == OptimizerKind::adamw,
       "--optimizer adamw");
}

struct Outcome {
  TrainResult result;
  std::size_t examples = 0, parameters = 0;
  std::optional<double> accuracy;
};

Dataset load_examples(const TrainCommand& command, const Network& network) {
  if (command.text_context == 0) return *load_data(command.data);
  const bool tokenizes =
      std::ranges::any_of(network.files, [](const auto& file) { return file.first == "tokenizer.json"; });
  if (tokenizes && !command.text_bytes) {
    const std::string text = read_text(command.data.path);
    return make_token_dataset(encode_text(command.spec, text), {.context = command.text_context}, command.data.path);
  }
  const TextUnit unit = command.text_bytes ? TextUnit::byte : TextUnit::character;
  return blame(command.data.path, [&] {
    return load_text_dataset(command.data.path, {.context = command.text_context, .unit = unit}).data;
  });
}

Network load_spec(const TrainCommand& command) {
  const FileForm form = detect_form(command.spec);
  LoadOptions load = command.load;
  if (form == FileForm::architecture) load.seed = command.training.seed;
  return blame(command.spec, [&] {
    Network network =
        form == FileForm::architecture ? load_network(command.spec, load) : load_runnable(command.spec, load);
    if (command.dtype && !command.dtype->is_block()) {
      morph_network(network, command.dtype->dtype());  // scales stay where the layers have them
    } else if (command.dtype) {
      for (const std::string& note : morph_network(network, Scheme(*command.dtype))) {
        if (!command.quiet) fmt::print(stderr, "imago: note: {}\n", printable(note));
      }
    }
    if (network.parameters() == 0) throw UnsupportedError("no layer has weights, so there is nothing to train");
    return network;
  });
}

/// Where to write the state; empty: nowhere.
std::string state_path(const TrainCommand& command) {
  if (!command.state.empty() || command.training.checkpoint_steps == 0) return command.state;
  return command.output + ".state";
}

bool counts_classes(const TrainCommand& command) {
  const LossKind kind = loss_kind(command);
  return kind == LossKind::cross_entropy_logits || kind == LossKind::cross_entropy || command.data.columns.one_hot;
}

/// Trains, showing progress. Throws DivergedError for weights that must not replace an existing file: the last loss is
/// not finite, or most steps were skipped. `train` has checked the weights themselves.
TrainResult run_training(Network& network, const Dataset& data, TrainOptions options, const TrainCommand& command,
                         const TrainState* resumed) {
  Progress progress(command.quiet, resumed != nullptr ? static_cast<std::size_t>(resumed->steps) : 0);
  double loss = 0;
  options.progress = [&](const TrainProgress& now) {
    loss = now.loss;
    const auto step = static_cast<std::size_t>(now.step), steps = static_cast<std::size_t>(now.steps);
    if (progress.is_due(step, steps)) {
      progress.show(step, steps, fmt::format("epoch {}/{}  loss {:.5g}", now.epoch, now.epochs, now.loss));
    }
    return command.max_steps == 0 || now.step < command.max_steps;
  };
  TrainResult result = train(network, data, options, resumed);
  if (result.skipped_steps > result.steps / 2) throw DivergedError("the gradients are mostly", result.steps);
  if (!std::isfinite(loss)) throw DivergedError("the loss is", result.steps);
  return result;
}

Outcome run(const TrainCommand& command) {
  check(command);
  TrainOptions options = command.training;
  options.loss.kind = loss_kind(command);
  options.device = open_chosen(command.device);
  set_thread_count(command.threads);
  check_network_output(command.output);
  Network network = load_spec(command);
  static_cast<void>(Optimizer(network, options.optimizer));  // checks its settings before data is loaded
  std::optional<TrainState> resumed;
  if (!command.resume.empty()) resumed = load_train_state(command.resume, network);
  const Dataset data = load_examples(command, network);

  const std::string state = state_path(command);
  if (!state.empty()) options.checkpoint = [&](const TrainState& now) { save_train_state(state, network, now); };
  Outcome outcome;
  outcome.examples = data.size();
  outcome.parameters = network.parameters();
  blame(fmt::format("{} on {}", command.spec, command.data.path), [&] {
    try {
      outcome.result = run_training(network, data, options, command, resumed ? &*resumed : nullptr);
    } catch (const DivergedError& error) {
      throw Error(error.kind(),
                  fmt::format("{}; try a lower --lr or --clip-norm 1 (no network was written)", error.what()));
    }
    network.run_on(options.device);
    if (counts_classes(command)) outcome.accuracy = accuracy(network, data, options.batch);
  });
  save_network(network, command.output);
  return outcome;
}

Json to_json(const Outcome& outcome, const TrainCommand& command) {
  const TrainResult& result = outcome.result;
  Json json = {{"output", command.output},
               {"parameters", outcome.parameters},
               {"examples", outcome.examples},
               {"epochs", result.epoch_loss.size()},
               {"epoch_loss", result.epoch_loss},
               {"validation_loss", result.validation_loss},
               {"final_loss", result.final_loss},
               {"steps", result.steps},
               {"skipped_steps", result.skipped_steps},
               {"seconds", result.seconds},
               {"stopped_early", result.stopped_early}};
  if (result.best_epoch != 0) json["best_epoch"] = result.best_epoch;
  if (outcome.accuracy) json["accuracy"] = *outcome.accuracy;
  return json;
}

std::string to_text(const Outcome& outcome, const TrainCommand& command) {
  using enum Table::Align;
  const TrainResult& result = outcome.result;
  const bool validated = !result.validation_loss.empty();
  // A resumed run may have started validating later, so validation losses belong to the last epochs.
  const std::size_t unvalidated = result.epoch_loss.size() - result.validation_loss.size();
  Table table(validated ? std::vector<Table::Column>{{"epoch", right}, {"loss", right}, {"validation", right}}
                        : std::vector<Table::Column>{{"epoch", right}, {"loss", right}});
  constexpr std::size_t kShown = 20;  // epochs, spread over all of them
  const std::size_t epochs = result.epoch_loss.size();
  for (std::size_t row = 0; row < std::min(epochs, kShown); ++row) {
    const std::size_t epoch = epochs <= kShown ? row : row * (epochs - 1) / (kShown - 1);
    std::vector<std::string> cells{std::to_string(epoch + 1), fmt::format("{:.6g}", result.epoch_loss[epoch])};
    if (validated) {
      cells.push_back(epoch < unvalidated ? "–" : fmt::format("{:.6g}", result.validation_loss[epoch - unvalidated]));
    }
    table.add(std::move(cells));
  }
  std::string text = epochs == 0 ? "" : table.text() + "\n";
  text += fmt::format("{} parameters, {} examples, {} steps in {:.1f} s{}\n", format_count(outcome.parameters),
                      format_count(outcome.examples), format_count(result.steps), result.seconds,
                      result.stopped_early ? ", stopped early" : "");
  if (result.has_best_weights) {
    text += fmt::format("the weights are those of epoch {}, which had the best validation loss\n", result.best_epoch);
  }
  if (result.skipped_steps != 0) {
    text += fmt::format("{} steps were skipped because their loss or gradient was not finite\n", result.skipped_steps);
  }
  text += fmt::format(
      "final loss {:.6g}{}\n", result.final_loss,
      outcome.accuracy ? fmt::format(", accuracy {:.2f} % of all examples", 100 * *outcome.accuracy) : std::string());
  return text + fmt::format("written to {}\n", printable(command.output));
}

}  // namespace

Command add_train(CLI::App& program) {
  CLI::App* command = program.add_subcommand("train", "Train a network, in any type");
  const auto options = std::make_shared<TrainCommand>();
  add_train_options(*command, *options);
  command->footer(
      "Examples:\n  imago train net.json --data digits.csv --loss cross_entropy_logits --optimizer adam -o out.json\n"
      "  imago train net.json --data x.safetensors --dtype int4 --epochs 50 --validation 0.1 -o out.json\n"
      "  imago train net.json --data book.txt --text-context 64 --checkpoint-every 1000 -o out.json");
  return {command, [options] {
            const Outcome outcome = run(*options);
            options->json ? print_json(to_json(outcome, *options)) : print(to_text(outcome, *options));
          }};
}

}  // namespace imago::cli
