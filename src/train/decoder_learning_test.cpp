// A decoder on a text whose entropy is known: how close it comes is how much of the text it understands.

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "imago/train.h"
#include "testing/one_thread.h"

namespace imago {
namespace {

constexpr std::size_t kContext = 32, kBack = 5, kLetters = 8;
constexpr double kRepeat = 0.9;

/// Each letter is, nine times in ten, the one five places before it, else any of eight: neighbours tell nothing.
std::string echoing_text(std::size_t length, std::uint64_t seed) {
  WeightStore draws(length, 2);
  draws.randomize(seed, 1);
  std::string text(length, 'a');
  for (std::size_t i = 0; i < length; ++i) {
    const float repeat = draws.master()[2 * i], letter = draws.master()[2 * i + 1];
    const bool echoes = i >= kBack && repeat < 2 * kRepeat - 1;
    text[i] = echoes ? text[i - kBack] : static_cast<char>('a' + static_cast<int>((letter + 1) / 2 * 7.999f));
  }
  return text;
}

/// Nats per letter of a window, for a reader who knows the rule: the first letters have nothing to echo.
double entropy() {
  const double other = (1 - kRepeat) / kLetters, same = kRepeat + other;
  const double echo = -same * std::log(same) - (kLetters - 1) * other * std::log(other);
  return (kBack * std::log(kLetters) + (kContext - kBack) * echo) / kContext;
}

Network small_decoder() {
  constexpr int kWidth = 32;
  const AttentionShape shape{.width = kWidth, .heads = 2, .seq_length = static_cast<int>(kContext)};
  return Network(
      layer_list(embedding(kLetters, kWidth),
                 sequential(layer_list(sequential(layer_list(rms_norm(kWidth), attention(shape))), residual(),
                                       sequential(layer_list(rms_norm(kWidth), swiglu(kWidth, 64))), residual())),
                 rms_norm(kWidth), dense(kWidth, kLetters)),
      1);
}

TEST(DecoderLearning, FindsTheRuleOfAText) {
  const testing::OneThread one_thread;
  const Dataset seen = make_text_dataset(echoing_text(kContext * 3200 + 1, 1), {.context = kContext}).data;
  const Dataset unseen = make_text_dataset(echoing_text(kContext * 200 + 1, 2), {.context = kContext}).data;
  Network network = small_decoder();
  TrainOptions options{.epochs = 1, .batch = 16};
  options.loss.kind = LossKind::cross_entropy_logits;
  options.optimizer.kind = OptimizerKind::adamw;
  options.optimizer.weight_decay = 0.01f;
  options.optimizer.clip_norm = 1;
  options.schedule = {.kind = ScheduleKind::cosine, .rate = 0.01f, .warmup_steps = 20};
  train(network, seen, options);
  const double loss = evaluate_loss(options.loss, network.forward(unseen.x), unseen.y);
  RecordProperty("loss", std::to_string(loss));
  RecordProperty("entropy", std::to_string(entropy()));
  EXPECT_LT(loss, entropy() + 0.1) << "without looking back it would be " << std::log(kLetters);
  EXPECT_GT(loss, entropy() - 0.1) << "nobody can know more: the future must have leaked";
}

}  // namespace
}  // namespace imago
