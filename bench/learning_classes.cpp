#include "learning_classes.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "imago/error.h"
#include "imago/train.h"
#include "testing/dense_stack.h"
#include "testing/one_thread.h"
#include "testing/spirals.h"

namespace imago::bench {

namespace {

/// Examples to learn from, and others to be judged by.
struct Fold {
  Dataset seen, unseen;
};

/// What is to be learned. Accuracies are means over the folds, and over networks of several seeds for each.
struct Problem {
  std::string name;
  std::vector<Fold> folds;
  std::vector<int> widths;
  Activation activation;
  int epochs, aware_epochs;
  float rate, aware_rate;
};

/// How far below float32 a type may stay after training through its rounding.
struct Promise {
  DType dtype;
  double distance;
};
constexpr Promise kPromises[] = {{DType::int4, 0.01}, {DType::ternary, 0.03}, {DType::binary, 0.08}};
constexpr double kFloatPromise = 0.97;

// Every number below is fixed by these and by the folds' own.
constexpr std::uint64_t kWeightSeed = 100, kOrderSeed = 1;
constexpr int kNetworksPerFold = 4;

Problem spiral_problem() {
  Problem problem{"spirals", {}, {3, 40, 40, 2}, Activation::silu, 100, 100, 0.01f, 0.01f};
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    problem.folds.push_back({testing::spirals(800, 2 * seed), testing::spirals(2000, 2 * seed + 1)});
  }
  return problem;
}

Problem digit_problem(std::string name) {
  return {std::move(name), {}, {65, 96, 96, 10}, Activation::relu, 20, 15, 0.003f, 0.002f};
}

Problem drawn_problem() {
  Problem problem = digit_problem("drawn digits");
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    problem.folds.push_back({drawn_digits(2000, 2 * seed), drawn_digits(2000, 2 * seed + 1)});
  }
  return problem;
}

/// All examples of the file: 64 pixels from 0 to 1 and a constant, since Dense has no bias.
Dataset read_scanned_digits(const std::string& path) {
  constexpr std::size_t kPixels = 64;
  const auto close = [](std::FILE* pipe) { ::pclose(pipe); };
  const std::unique_ptr<std::FILE, decltype(close)> pipe(::popen(fmt::format("gunzip -c '{}'", path).c_str(), "r"),
                                                         close);
  if (!pipe) throw IoError(path, "gunzip cannot be run");
  std::vector<float> x, y;
  int value = 0;
  for (std::size_t i = 0; std::fscanf(pipe.get(), i == 0 ? "%d" : ",%d", &value) == 1; i = i == kPixels ? 0 : i + 1) {
    if (i == kPixels) {
      x.push_back(1);
      y.push_back(static_cast<float>(value));
    } else {
      x.push_back(static_cast<float>(value) / 16);
    }
  }
  if (y.empty() || x.size() != y.size() * (kPixels + 1)) throw FormatError(path, x.size(), "no lines of 65 numbers");
  const std::size_t count = y.size();
  return {Tensor<float>({count, kPixels + 1}, std::move(x)), Tensor<float>({count}, std::move(y))};
}

Dataset pick(const Dataset& data, std::span<const std::size_t> examples) {
  const std::size_t width = data.x.shape().last();
  Dataset picked{Tensor<float>({examples.size(), width}), Tensor<float>({examples.size()})};
  for (std::size_t i = 0; i < examples.size(); ++i) {
    std::ranges::copy(data.x.values().subspan(examples[i] * width, width), &picked.x[i * width]);
    picked.y[i] = data.y[examples[i]];
  }
  return picked;
}

/// Five folds of one set: each example is unseen in one of them.
Problem scanned_problem(const std::string& path) {
  constexpr std::size_t kFolds = 5;
  const Dataset all = read_scanned_digits(path);
  WeightStore keys(all.size());
  keys.randomize(kOrderSeed, 1);
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return keys.master()[i]; });
  Problem problem = digit_problem("scanned digits");
  for (std::size_t fold = 0; fold < kFolds; ++fold) {
    std::vector<std::size_t> seen, unseen;
    for (std::size_t i = 0; i < order.size(); ++i) (i % kFolds == fold ? unseen : seen).push_back(order[i]);
    problem.folds.push_back({pick(all, seen), pick(all, unseen)});
  }
  return problem;
}

TrainOptions options_of(const Problem& problem, std::uint64_t seed) {
  TrainOptions options{.epochs = problem.epochs, .batch = 32};
  options.loss.kind = LossKind::cross_entropy_logits;
  options.optimizer.kind = OptimizerKind::adam;
  options.schedule = {.kind = ScheduleKind::cosine, .rate = problem.rate, .warmup_steps = 20};
  options.seed = seed;
  return options;
}

/// Accuracies on unseen examples, as means over the folds.
struct Outcome {
  double derived = 0, best = 0;  ///< rounded after training, scales of the largest weight and of the least error
  double aware = 0;              ///< trained on through the rounding, scales learned
};
struct Outcomes {
  double full = 0;
  std::vector<Outcome> rounded = std::vector<Outcome>(std::size(kPromises));
};

Outcome round_and_train(const Problem& problem, const Fold& fold, Network& full, DType dtype, std::uint64_t seed) {
  Outcome outcome;
  Network derived = testing::copy_in(full, dtype);
  outcome.derived = accuracy(derived, fold.unseen);
  Network best = testing::copy_in(full, dtype);
  testing::fix_best_scales(best, dtype);
  outcome.best = accuracy(best, fold.unseen);

  Network aware = testing::copy_in(full, dtype);
  TrainOptions options = options_of(problem, seed);
  options.epochs = problem.aware_epochs;
  options.schedule.rate = problem.aware_rate;
  options.optimizer.learn_scales = true;
  train(aware, fold.seen, options);
  outcome.aware = accuracy(aware, fold.unseen);
  return outcome;
}

/// One network, from its first weights on; its share of the mean is added to `mean`.
void solve_once(const Problem& problem, const Fold& fold, std::uint64_t seed, double share, Outcomes& mean) {
  Network full = testing::dense_stack(problem.widths, problem.activation, kWeightSeed * seed);
  train(full, fold.seen, options_of(problem, seed));
  mean.full += share * accuracy(full, fold.unseen);
  for (std::size_t i = 0; i < std::size(kPromises); ++i) {
    const Outcome one = round_and_train(problem, fold, full, kPromises[i].dtype, seed);
    mean.rounded[i].derived += share * one.derived;
    mean.rounded[i].best += share * one.best;
    mean.rounded[i].aware += share * one.aware;
  }
}

Outcomes solve(const Problem& problem) {
  Outcomes mean;
  const double share = 1 / static_cast<double>(problem.folds.size() * kNetworksPerFold);
  std::uint64_t seed = kOrderSeed;
  for (const Fold& fold : problem.folds) {
    for (int i = 0; i < kNetworksPerFold; ++i) solve_once(problem, fold, seed++, share, mean);
  }
  return mean;
}

bool report(const Problem& problem, const Outcomes& outcomes, double seconds) {
  const bool full_is_good = outcomes.full >= kFloatPromise;
  fmt::print("| {} | float32 | {:.2f} | | | | | at least {:.0f} | {} |\n", problem.name, 100 * outcomes.full,
             100 * kFloatPromise, full_is_good ? "pass" : "FAIL");
  bool all_good = full_is_good;
  for (std::size_t i = 0; i < std::size(kPromises); ++i) {
    const Outcome& got = outcomes.rounded[i];
    const bool good = got.aware >= outcomes.full - kPromises[i].distance && got.aware > std::max(got.derived, got.best);
    fmt::print("| {} | {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:+.2f} | at least {:+.0f} | {} |\n", problem.name,
               info(kPromises[i].dtype).name, 100 * outcomes.full, 100 * got.derived, 100 * got.best, 100 * got.aware,
               100 * (got.aware - outcomes.full), -100 * kPromises[i].distance, good ? "pass" : "FAIL");
    all_good = all_good && good;
  }
  std::fflush(stdout);
  fmt::print(stderr, "{}: {:.0f} s\n", problem.name, seconds);
  return all_good;
}

bool run(const Problem& problem) {
  const auto start = std::chrono::steady_clock::now();
  const Outcomes outcomes = solve(problem);
  return report(problem, outcomes, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

}  // namespace

bool learn_classes(const std::string& digits_path) {
  const testing::OneThread one_thread;
  fmt::print(
      "Accuracy on unseen examples in percent, all layers in the type. Rounding must lose to training through it, with "
      "either kind of scale.\n\n"
      "| task | type | float32 | rounded, scale of the largest weight | rounded, scale of the least error | "
      "trained through rounding | difference | promised | |\n|---|---|---:|---:|---:|---:|---:|---:|---|\n");
  bool good = run(spiral_problem());
  const bool has_digits = std::filesystem::exists(digits_path);
  if (has_digits) good = run(scanned_problem(digits_path)) && good;
  good = run(drawn_problem()) && good;
  if (!has_digits) fmt::print("\nScanned digits are left out: no {}\n", digits_path);
  return good;
}

}  // namespace imago::bench
