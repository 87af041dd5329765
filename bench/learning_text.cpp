#include "learning_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "imago/error.h"
#include "imago/system.h"
#include "imago/train.h"

namespace imago::bench {

namespace {

constexpr double kGoal = 1.75;  // nats per character
constexpr double kSecondsAllowed = 15 * 60;

constexpr int kWidth = 128, kIntermediate = 344, kHeads = 4, kBlocks = 5;
constexpr std::size_t kContext = 128, kBatch = 16;
// Windows that overlap: the run is one epoch over all of them, and sees each character about five times, each time
// with another past.
constexpr std::size_t kStride = 24;
constexpr std::size_t kSampleStep = 12;  // while training, one held-out window of twelve is looked at
constexpr std::uint64_t kReportSteps = 100, kSeed = 1;

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw IoError(path, "cannot be opened");
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Windows of token ids and, as targets, the ids after them.
Dataset windows(std::span<const int> ids, std::size_t stride) {
  const std::size_t count = (ids.size() - 1 - kContext) / stride + 1;
  Dataset data{Tensor<float>({count, kContext}), Tensor<float>({count, kContext})};
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t t = 0; t < kContext; ++t) {
      data.x[i * kContext + t] = static_cast<float>(ids[i * stride + t]);
      data.y[i * kContext + t] = static_cast<float>(ids[i * stride + t + 1]);
    }
  }
  return data;
}

Layer decoder_block() {
  const AttentionShape shape{.width = kWidth, .heads = kHeads, .seq_length = static_cast<int>(kContext)};
  return sequential(layer_list(sequential(layer_list(rms_norm(kWidth), attention(shape))), residual(),
                               sequential(layer_list(rms_norm(kWidth), swiglu(kWidth, kIntermediate))), residual()));
}

Network decoder(int vocabulary) {
  std::vector<Layer> layers = layer_list(embedding(vocabulary, kWidth));
  for (int i = 0; i < kBlocks; ++i) layers.push_back(decoder_block());
  layers.push_back(rms_norm(kWidth));
  layers.push_back(dense(kWidth, vocabulary));
  return Network(std::move(layers), kSeed);
}

/// Mean loss over every `step`-th window of `data`.
double held_out_loss(Network& network, const Dataset& data, std::size_t step) {
  const std::size_t count = (data.size() - 1) / step + 1;
  double sum = 0;
  Tensor<float> x, y;
  for (std::size_t first = 0; first < count; first += kBatch) {
    const std::size_t rows = std::min(kBatch, count - first);
    x.resize({rows, kContext});
    y.resize({rows, kContext});
    for (std::size_t row = 0; row < rows; ++row) {
      const std::size_t from = (first + row) * step * kContext;
      std::ranges::copy(data.x.values().subspan(from, kContext), &x[row * kContext]);
      std::ranges::copy(data.y.values().subspan(from, kContext), &y[row * kContext]);
    }
    sum += static_cast<double>(rows) * evaluate_loss({LossKind::cross_entropy_logits}, network.forward(x), y);
  }
  return sum / static_cast<double>(count);
}

TrainOptions text_options() {
  TrainOptions options{.epochs = 1, .batch = kBatch};
  options.loss.kind = LossKind::cross_entropy_logits;
  options.optimizer.kind = OptimizerKind::adamw;
  options.optimizer.beta2 = 0.99f;
  options.optimizer.weight_decay = 0.1f;
  options.optimizer.clip_norm = 1;
  options.schedule = {.kind = ScheduleKind::cosine, .rate = 0.003f, .warmup_steps = 100, .final_fraction = 0.01f};
  options.seed = kSeed;
  return options;
}

}  // namespace

bool learn_text(const std::string& path) {
  const std::string text = read_text(path);
  const TextVocabulary vocabulary(text, TextUnit::character, path);
  const std::vector<int> ids = vocabulary.encode(text, path);
  const std::size_t seen = ids.size() * 9 / 10;
  const Dataset data = windows(std::span(ids).first(seen), kStride);
  const Dataset held_out = windows(std::span(ids).subspan(seen), kContext);
  Network network = decoder(static_cast<int>(vocabulary.size()));
  fmt::print(
      "\nText: a decoder of {} parameters ({} blocks of width {}, context {}) on {} characters of {} kinds, {} "
      "threads\n\n",
      network.parameters(), kBlocks, kWidth, kContext, seen, vocabulary.size(), thread_count());
  fmt::print("| step | loss | held out, sample | characters/s | s |\n|---:|---:|---:|---:|---:|\n");

  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  double sum = 0;
  TrainOptions options = text_options();
  options.progress = [&](const TrainProgress& now) {
    sum += now.loss;
    if (now.step % kReportSteps == 0) {
      fmt::print("| {} / {} | {:.3f} | {:.3f} | {:.0f} | {:.0f} |\n", now.step, now.steps,
                 sum / static_cast<double>(kReportSteps), held_out_loss(network, held_out, kSampleStep),
                 now.examples_per_second * static_cast<double>(kContext), seconds());
      std::fflush(stdout);
      sum = 0;
    }
    return seconds() < kSecondsAllowed;
  };
  train(network, data, options);
  const double elapsed = seconds();
  const double loss = held_out_loss(network, held_out, 1);
  const bool good = loss < kGoal && elapsed < kSecondsAllowed;
  fmt::print(
      "\nheld out, all {} characters: {:.4f} nats per character after {:.0f} s; promised: below {} within {:.0f} s: "
      "{}\n",
      held_out.size() * kContext, loss, elapsed, kGoal, kSecondsAllowed, good ? "pass" : "FAIL");
  return good;
}

}  // namespace imago::bench
