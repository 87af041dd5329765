// imago train: trains an architecture or a checkpoint on data and writes a checkpoint.

#include <cmath>

#include "command.h"

namespace imago::cli {

namespace {

/// Names of losses, types and the like are parsed when the work begins.
struct TrainCommand {
  std::string spec, output;
  DataOptions data;
  int epochs = 10;
  std::size_t batch = 32;
  float rate = 0.01f;
  std::string optimizer = "sgd", dtype, schedule = "constant";
  float momentum = 0.9f, weight_decay = 0, clip = 0, clip_norm = 0;
  std::uint64_t warmup = 0;
  double validation = 0;
  int patience = 0;
  std::uint64_t seed = 0;
  bool shuffle = true, learn_scales = false, fp4_legacy = false;
  std::vector<int> heads;
  std::size_t text_context = 0;  ///< 0: the data is not a text
  bool text_bytes = false;
  std::uint64_t checkpoint_every = 0, max_steps = 0;
  std::string state, resume;
  std::string device;  ///< empty: the CPU
  int threads = 0;
  bool json = false, quiet = false;

  /// The default is cross_entropy_logits for text, otherwise mse. Throws UsageError for unknown names.
  LossKind loss_kind() const;
  /// Everything except the callbacks. Throws UsageError for unknown names and for options that need others.
  TrainOptions to_options() const;
};

constexpr double kMost = std::numeric_limits<float>::max();

void add_data_options(CLI::App& command, TrainCommand& options) {
  CLI::Option* data =
      add_file(command, "--data", options.data.path, "CSV, IDX images, safetensors with 'x' and 'y', or a text");
  add_data_columns(command, options.data, data->required());
  add_number(command, "--text-context", options.text_context, 1, 1 << 24,
             "The data is a text: tokens per example (default: none)");
  command.add_flag("--text-bytes", options.text_bytes, "Tokens of a text are its bytes (default: its characters)");
  add_number(command, "--validation", options.validation, 0.0, 1.0,
             "Share of the examples held back to measure the loss (default: 0)", "SHARE");
  add_number(command, "--patience", options.patience, 0, 1 << 30,
             "Stop after so many epochs without a better validation loss (default: 0, never)");
  command.add_flag("--shuffle,!--no-shuffle", options.shuffle,
                   "Use examples in another order each epoch (default: on)");
}

void add_update_options(CLI::App& command, TrainCommand& options) {
  const auto number = [&](const char* flag, float& place, const char* text) {
    add_number(command, flag, place, 0.0, kMost, text, "X");
  };
  number("--lr", options.rate, "Learning rate (default: 0.01)");
  add_value(command, "--optimizer", options.optimizer, "sgd|momentum|adam|adamw", "The optimizer (default: sgd)");
  add_value(command, "--loss", options.data.loss, "mse|cross_entropy|cross_entropy_logits|multi_head_softmax_ce",
            "The loss (default: mse; cross_entropy_logits for text)");
  add_value(command, "--heads", options.heads, "N,N",
            "multi_head_softmax_ce: columns per head, as 3,3,4 (default: none)")
      ->delimiter(',');
  number("--momentum", options.momentum, "Of the optimizer momentum (default: 0.9)");
  number("--weight-decay", options.weight_decay, "Of adamw (default: 0)");
  add_value(command, "--schedule", options.schedule, "constant|cosine", "Of the learning rate (default: constant)");
  add_value(command, "--warmup", options.warmup, "N", "Steps over which the rate rises to its value (default: 0)");
  number("--clip", options.clip, "Limit of each element of the gradient (default: 0, none)");
  number("--clip-norm", options.clip_norm, "Limit of the norm of the whole gradient (default: 0, none)");
  add_value(command, "--dtype", options.dtype, "TYPE",
            "Type of all weights; training uses the rounded weights (default: as SPEC says, layer by layer)");
  command.add_flag("--learn-scales", options.learn_scales,
                   "Also train the scales of integers of up to 8 bits (default: derive them)");
}

void add_resume_options(CLI::App& command, TrainCommand& options) {
  add_file(command, "--state", options.state, "Where to write the state for --resume (default: OUT.state)");
  add_value(command, "--checkpoint-every", options.checkpoint_every, "N",
            "Write the state every N steps and at the end (default: 0, only with --state and at the end)");
  add_file(command, "--resume", options.resume, "Resume from this state, with otherwise equal options (default: none)");
  add_value(command, "--max-steps", options.max_steps, "N", "Stop after this step (default: 0, run all epochs)");
}

void add_train_options(CLI::App& command, TrainCommand& options) {
  command.add_option("SPEC", options.spec, "An architecture or checkpoint JSON, or an .entity file")->required();
  add_data_options(command, options);
  add_file(command, "-o,--output", options.output, "The trained network: .json, .entity or .safetensors")->required();
  add_number(command, "--epochs", options.epochs, 0, 1 << 30, "Number of passes over the data (default: 10)");
  add_number(command, "--batch", options.batch, 1, 1 << 30, "Examples per step (default: 32)");
  add_update_options(command, options);
  add_resume_options(command, options);
  add_seed(command, options.seed, "Of new weights and the order of the examples (default: 0)");
  add_fp4_legacy(command, options.fp4_legacy);
  add_device(command, options.device);
  add_threads(command, options.threads);
  add_quiet(command, options.quiet);
  add_json(command, options.json);
}

LossKind TrainCommand::loss_kind() const {
  if (!data.loss.empty()) return parse_loss(data.loss);
  return text_context != 0 ? LossKind::cross_entropy_logits : LossKind::mse;
}

TrainOptions TrainCommand::to_options() const {
  const auto need = [](bool given, const char* option, bool fits, const char* with) {
    if (given && !fits) throw UsageError(fmt::format("{} makes sense only with {}", option, with));
  };
  const bool text = text_context != 0;
  if (!(rate >= 0)) throw UsageError(fmt::format("--lr {} is not a learning rate", rate));  // a range accepts NaN
  if (validation == 1) throw UsageError("--validation 1 leaves no examples to train on; hold back 0.1, for example");
  need(text_bytes, "--text-bytes", text, "--text-context");
  need(data.one_hot, "--one-hot", !text, "data that is not a text");
  need(patience != 0, "--patience", validation != 0, "--validation");
  need(!heads.empty(), "--heads", loss_kind() == LossKind::multi_head_softmax_ce, "--loss multi_head_softmax_ce");
  need(loss_kind() == LossKind::multi_head_softmax_ce, "--loss multi_head_softmax_ce", !heads.empty(), "--heads");

  TrainOptions made{.epochs = epochs, .batch = batch, .shuffle = shuffle, .seed = seed};
  made.loss = {.kind = loss_kind(), .heads = heads};
  made.optimizer = {.kind = parse_optimizer(optimizer),
                    .momentum = momentum,
                    .weight_decay = weight_decay,
                    .clip_element = clip,
                    .clip_norm = clip_norm,
                    .learn_scales = learn_scales};
  need(weight_decay != 0, "--weight-decay", made.optimizer.kind == OptimizerKind::adamw, "--optimizer adamw");
  made.schedule = {.kind = parse_schedule(schedule), .rate = rate, .warmup_steps = warmup};
  made.validation_share = validation;
  made.patience = patience;
  return made;
}

struct Outcome {
  TrainResult result;
  std::size_t examples = 0, parameters = 0;
  std::optional<double> accuracy;
};

Dataset load_data(const TrainCommand& command) {
  if (command.text_context != 0) {
    const TextUnit unit = command.text_bytes ? TextUnit::byte : TextUnit::character;
    return load_text_dataset(command.data.path, {.context = command.text_context, .unit = unit}).data;
  }
  const DataOptions& data = command.data;
  return load_dataset(data.path, {.target_columns = data.targets, .labels = data.labels, .one_hot = data.one_hot});
}

/// A value that is not finite makes every loss NaN; better to find out before an hour of training.
void check_finite(const Tensor<float>& values, std::string_view what, const std::string& file) {
  const auto wrong = std::ranges::find_if(values.values(), [](float value) { return !std::isfinite(value); });
  if (wrong == values.values().end()) return;
  const auto place = static_cast<std::size_t>(wrong - values.values().begin());
  const std::size_t example = place / (values.size() / values.shape()[0]);
  throw Error(ErrorKind::format,
              fmt::format("{}: the {} of example {} (counted from 0) hold {}; leave it out or replace it", file, what,
                          example, *wrong));
}

Network load_spec(const TrainCommand& command, std::optional<DType> dtype) {
  const FileForm form = detect_form(command.spec);
  LoadOptions load{.fp4 = command.fp4_legacy ? Fp4Table::legacy : Fp4Table::ocp};
  if (form == FileForm::architecture) load.seed = command.seed;
  std::optional<Network> network;
  blame(command.spec, [&] {
    network = form == FileForm::architecture ? load_network(command.spec, load) : load_runnable(command.spec, load);
    if (dtype) morph_network(*network, *dtype);
    if (network->parameters() == 0) throw UnsupportedError("no layer has weights, so there is nothing to train");
  });
  return std::move(*network);
}

/// Where to write the state; empty: nowhere.
std::string state_path(const TrainCommand& command) {
  if (!command.state.empty() || command.checkpoint_every == 0) return command.state;
  return command.output + ".state";
}

/// Shows progress and stops after --max-steps.
class Watcher {
 public:
  Watcher(const TrainCommand& command, std::uint64_t first)
      : progress_(command.quiet, static_cast<std::size_t>(first)), max_steps_(command.max_steps) {}

  bool operator()(const TrainProgress& now) {
    last_loss_ = now.loss;
    // A step may take microseconds, drawing takes milliseconds.
    const auto time = std::chrono::steady_clock::now();
    if (now.steps != 0 && (time - shown_ > std::chrono::milliseconds(50) || now.step == now.steps)) {
      shown_ = time;
      progress_.show(static_cast<std::size_t>(now.step), static_cast<std::size_t>(now.steps),
                     fmt::format("epoch {}/{}  loss {:.5g}", now.epoch, now.epochs, now.loss));
    }
    return max_steps_ == 0 || now.step < max_steps_;
  }
  double last_loss() const noexcept { return last_loss_; }

 private:
  Progress progress_;
  std::uint64_t max_steps_;
  std::chrono::steady_clock::time_point shown_{};
  double last_loss_ = 0;
};

bool counts_classes(const TrainCommand& command) {
  const LossKind kind = command.loss_kind();
  return kind == LossKind::cross_entropy_logits || kind == LossKind::cross_entropy || command.data.one_hot;
}

/// Throws DivergedError for weights that must not replace an existing file: they are not finite, or most steps were
/// skipped.
void check_sound(const Network& network, double loss, const TrainResult& result) {
  const bool sound = std::ranges::all_of(named_layers(network), [](const NamedLayer& named) {
    return !named.layer->weights ||
           std::ranges::all_of(named.layer->weights->master(), [](float weight) { return std::isfinite(weight); });
  });
  const bool stuck = result.skipped_steps > result.steps / 2;
  if (sound && !stuck && std::isfinite(loss)) return;
  const std::string_view what = !sound ? "the weights are" : stuck ? "the gradients are mostly" : "the loss is";
  throw DivergedError(what, result.steps);
}

Outcome run(const TrainCommand& command) {
  TrainOptions options = command.to_options();
  const std::optional<DType> dtype = command.dtype.empty() ? std::nullopt : std::optional(parse_dtype(command.dtype));
  options.device = open_chosen(command.device);
  set_thread_count(command.threads);
  check_output(command.output);
  Network network = load_spec(command, dtype);
  static_cast<void>(Optimizer(network, options.optimizer));  // checks its settings before data is loaded
  std::optional<TrainState> resumed;
  if (!command.resume.empty()) resumed = load_train_state(command.resume, network);

  Dataset data;
  blame(command.data.path, [&] { data = load_data(command); });
  check_finite(data.x, "inputs", command.data.path);
  check_finite(data.y, "targets", command.data.path);

  const std::string state = state_path(command);
  options.checkpoint_steps = command.checkpoint_every;
  if (!state.empty()) options.checkpoint = [&](const TrainState& now) { save_train_state(state, network, now); };
  Outcome outcome;
  outcome.examples = data.size();
  outcome.parameters = network.parameters();
  blame(fmt::format("{} on {}", command.spec, command.data.path), [&] {
    Watcher watcher(command, resumed ? resumed->steps : 0);
    options.progress = [&](const TrainProgress& now) { return watcher(now); };
    try {
      outcome.result = train(network, data, options, resumed ? &*resumed : nullptr);
      check_sound(network, watcher.last_loss(), outcome.result);
    } catch (const DivergedError& error) {
      throw Error(error.kind(),
                  fmt::format("{}; try a lower --lr or --clip-norm 1 (no network was written)", error.what()));
    }
    network.run_on(options.device);
    if (counts_classes(command)) outcome.accuracy = accuracy(network, data, command.batch);
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
