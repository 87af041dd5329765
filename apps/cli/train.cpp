// imago train: an architecture or a checkpoint, and data, to a trained checkpoint.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "commands.h"
#include "imago/error.h"
#include "imago/files.h"
#include "imago/system.h"
#include "network_files.h"
#include "output.h"
#include "progress.h"
#include "shared_options.h"
#include "train_options.h"

namespace imago::cli {

namespace {

using Json = nlohmann::ordered_json;

struct Outcome {
  TrainResult result;
  std::size_t examples = 0, parameters = 0;
  std::optional<double> accuracy;
};

Dataset load_data(const TrainCommand& command) {
  if (command.text_context != 0) {
    const TextUnit unit = command.text_bytes ? TextUnit::byte : TextUnit::character;
    return load_text_dataset(command.data, {.context = command.text_context, .unit = unit}).data;
  }
  return load_dataset(command.data,
                      {.target_columns = command.targets, .labels = command.labels, .one_hot = command.one_hot});
}

/// One value that is no number makes every loss NaN: better told before than after an hour.
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

/// Where the state goes; empty: nowhere.
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
    // A step may take microseconds, and the terminal milliseconds.
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
  return kind == LossKind::cross_entropy_logits || kind == LossKind::cross_entropy || command.one_hot;
}

/// Weights that are not finite must not replace a file that has better ones; nor must those of a run that got stuck,
/// which shows in steps that were skipped.
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
  static_cast<void>(Optimizer(network, options.optimizer));  // complains of its settings while that is still cheap
  std::optional<TrainState> resumed;
  if (!command.resume.empty()) resumed = load_train_state(command.resume, network);

  Dataset data;
  blame(command.data, [&] { data = load_data(command); });
  check_finite(data.x, "inputs", command.data);
  check_finite(data.y, "targets", command.data);

  const std::string state = state_path(command);
  options.checkpoint_steps = command.checkpoint_every;
  if (!state.empty()) options.checkpoint = [&](const TrainState& now) { save_train_state(state, network, now); };
  Outcome outcome;
  outcome.examples = data.size();
  outcome.parameters = network.parameters();
  blame(fmt::format("{} on {}", command.spec, command.data), [&] {
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
  // A resumed run may have begun to validate later: the figures belong to the last epochs.
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
    text += fmt::format("the weights are those of epoch {}, the best by validation\n", result.best_epoch);
  }
  if (result.skipped_steps != 0) {
    text += fmt::format("{} steps were skipped, since their loss or gradient was not finite\n", result.skipped_steps);
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
