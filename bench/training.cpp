// A step of training beside PyTorch's: the same network, weights and batch, as many threads, in turn. And what a
// forward through a Network costs over the bare product of its weights.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/cpu.h"
#include "harness.h"
#include "imago/error.h"
#include "imago/system.h"
#include "imago/train.h"
#include "layers/layer_functions.h"
#include "torch_child.h"
#include "weights/views.h"

namespace imago::bench {
namespace {

constexpr int kTurns = 9;
constexpr double kTurnSeconds = 0.4;

Network mlp() {
  return Network(layer_list(dense(784, 512, Activation::relu), dense(512, 512, Activation::relu), dense(512, 10)), 1);
}

Network cnn() {
  return Network(
      layer_list(convolution(2, {.channels = 1, .filters = 16, .kernel = 3, .stride = 2, .padding = 1, .height = 28},
                             Activation::relu),
                 convolution(2, {.channels = 16, .filters = 32, .kernel = 3, .stride = 2, .padding = 1, .height = 14},
                             Activation::relu),
                 dense(32 * 7 * 7, 128, Activation::relu), dense(128, 10)),
      1);
}

/// x + part(norm(x)).
Layer with_skip(Layer part) {
  return sequential(layer_list(sequential(layer_list(rms_norm(256), std::move(part))), residual()));
}

Network decoder() {
  std::vector<Layer> layers;
  layers.push_back(embedding(256, 256));
  for (int block = 0; block < 4; ++block) {
    layers.push_back(with_skip(attention({.width = 256, .heads = 4, .seq_length = 128})));
    layers.push_back(with_skip(swiglu(256, 688)));
  }
  layers.push_back(rms_norm(256));
  layers.push_back(dense(256, 256));
  return Network(std::move(layers), 1);
}

struct Case {
  std::string name;  ///< as torch_training.py has it
  Network (*network)();
  Shape x, y;
  int values;  ///< of x: 0 for random reals, else this many ids
  int classes;
  OptimizerOptions optimizer;
  float rate;
};

std::vector<Case> cases() {
  const Shape images{64, 1, 28, 28};
  return {{"mlp-sgd", mlp, {128, 784}, {128}, 0, 10, {.kind = OptimizerKind::sgd}, 0.01f},
          {"mlp-adam", mlp, {128, 784}, {128}, 0, 10, {.kind = OptimizerKind::adam}, 0.001f},
          {"cnn-sgd", cnn, images, {64}, 0, 10, {.kind = OptimizerKind::sgd}, 0.01f},
          {"decoder-adamw",
           decoder,
           {16, 128},
           {16, 128},
           256,
           256,
           {.kind = OptimizerKind::adamw, .weight_decay = 0.01f},
           0.001f}};
}

Tensor<float> random_ids(const Shape& shape, int below, std::uint32_t seed) {
  std::mt19937 generator(seed);
  Tensor<float> ids(shape);
  for (float& id : ids.values()) id = static_cast<float>(generator() % static_cast<std::uint32_t>(below));
  return ids;
}

Tensor<float> random_reals(const Shape& shape) {
  std::mt19937 generator(2);
  std::uniform_real_distribution<float> uniform(0, 1);
  Tensor<float> reals(shape);
  for (float& value : reals.values()) value = uniform(generator);
  return reals;
}

/// Seconds of a block of steps, and the loss of its last.
struct Block {
  double seconds = 0, loss = 0;
};

class Training {
 public:
  explicit Training(const Case& c)
      : network_(c.network()),
        x_(c.values == 0 ? random_reals(c.x) : random_ids(c.x, c.values, 2)),
        y_(random_ids(c.y, c.classes, 3)),
        optimizer_(network_, c.optimizer),
        rate_(c.rate) {}

  Block steps(int count) {
    Block block;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) {
      network_.clear_gradients();
      block.loss = evaluate_loss(loss_, network_.forward_training(x_), y_, &gradient_);
      network_.backward(gradient_, false);
      optimizer_.step(rate_);
    }
    block.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return block;
  }

  /// Weights in the order of the layers, then x and y.
  void save(const std::string& path) {
    std::ofstream file(path, std::ios::binary);
    const auto put = [&](std::span<const float> values) {
      file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size_bytes()));
    };
    for (Layer& outer : network_.layers()) {
      layers::for_each_layer(outer, [&](Layer& layer) {
        if (layer.weights) put(layer.weights->master());
      });
    }
    put(x_.values());
    put(y_.values());
    file.close();
    if (!file) throw IoError(path, "cannot write");
  }

 private:
  Network network_;
  Tensor<float> x_, y_, gradient_;
  Optimizer optimizer_;
  float rate_;
  Loss loss_{.kind = LossKind::cross_entropy_logits};
};

/// Threads of the other library may still spin after their turn: gives them time to sleep.
void settle() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

Block torch_steps(TorchChild& torch, int count) {
  const std::string answer = torch.ask(fmt::format("step {}", count));
  char* rest = nullptr;
  Block block;
  block.seconds = std::strtod(answer.c_str(), &rest);
  block.loss = std::strtod(rest, nullptr);
  return block;
}

struct Quartiles {
  double low, median, high;
};
Quartiles quartiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 4], values[values.size() / 2], values[values.size() * 3 / 4]};
}

/// A fast step of another network would prove nothing.
void check_same(const Case& c, const Block& ours, const Block& theirs, int steps) {
  if (std::fabs(ours.loss - theirs.loss) <= 2e-3 * std::fabs(theirs.loss)) return;
  throw UsageError(
      fmt::format("{}: after {} steps the loss is {} here and {} there", c.name, steps, ours.loss, theirs.loss));
}

void compare(const Case& c, TorchChild& torch) {
  constexpr int kWarmUp = 4;
  Training training(c);
  if (torch.is_running()) {
    const std::string path = std::filesystem::temp_directory_path() / fmt::format("imago_training_{}.f32", getpid());
    training.save(path);
    const std::string answer = torch.ask(fmt::format("load {} {}", c.name, path));
    std::filesystem::remove(path);
    check_same(c, training.steps(1), torch_steps(torch, 1), 1);
    check_same(c, training.steps(kWarmUp), torch_steps(torch, kWarmUp), 1 + kWarmUp);
  } else {
    training.steps(kWarmUp);
  }
  const int count = std::max(1, static_cast<int>(kTurnSeconds / (training.steps(kWarmUp).seconds / kWarmUp)));
  std::vector<double> ours, theirs, ratios;
  for (int turn = 0; turn < kTurns; ++turn) {
    settle();
    ours.push_back(count / training.steps(count).seconds);
    if (!torch.is_running()) continue;
    settle();
    theirs.push_back(count / torch_steps(torch, count).seconds);
    ratios.push_back(ours.back() / theirs.back());
  }
  fmt::print("{:<15} {:>9.1f}", c.name, quartiles(ours).median);
  if (torch.is_running()) {
    const Quartiles q = quartiles(ratios);
    fmt::print(" {:>9.1f} {:>7.2f}   {:.2f} … {:.2f}", quartiles(theirs).median, q.median, q.low, q.high);
  }
  fmt::print("\n");
}

/// One token through a Network of one Dense layer, and through its packed matrix alone.
void compare_forward(DType dtype) {
  constexpr std::size_t kWidth = 4096;
  constexpr int kProducts = 20;
  Network network(layer_list(dense(kWidth, kWidth)), 1);
  morph_network(network, dtype);
  const Tensor<float> x = random_reals({1, kWidth});
  std::vector<float> y(kWidth);
  const Layer& layer = network.layers()[0];
  const auto matrix = host_matrix(*layer.weights, layer.config.scheme(), {.rows = kWidth, .cols = kWidth});
  std::vector<double> whole, bare, ratios;
  for (int turn = 0; turn < 25; ++turn) {
    whole.push_back(measure(kProducts, [&] { network.forward(x); }).median);
    bare.push_back(measure(kProducts, [&] { matrix->multiply(x.values(), 1, y); }).median);
    ratios.push_back(bare.back() / whole.back());
  }
  const Quartiles q = quartiles(ratios);
  fmt::print("{:<15} {:>9.1f} {:>9.1f} {:>7.2f}   {:.2f} … {:.2f}   {}, {:.1f} MB\n", name(dtype),
             1e6 * quartiles(whole).median, 1e6 * quartiles(bare).median, q.median, q.low, q.high,
             matrix->kernel().name, 1e-6 * static_cast<double>(matrix->bytes()));
}

/// `only`: cases whose names hold this. `alone`: without PyTorch, for a profiler.
int run(const std::string& only, bool alone) {
  const int threads = thread_count();
  TorchChild torch(alone ? 0 : threads);
  fmt::print("{}, {} threads, imago {}, {}\n", cpu_model_name(), threads, version(),
             torch.is_running()
                 ? torch.greeting()
                 : "no PyTorch for /usr/bin/python3: our own steps alone (make bench TORCH=1 installs it)");
  fmt::print("training steps/s, medians of {} turns; the ratio with its quartiles\n", kTurns);
  fmt::print("{:<15} {:>9} {:>9} {:>7}\n", "", "imago", "PyTorch", "ratio");
  for (const Case& c : cases()) {
    if (c.name.find(only) != std::string::npos) compare(c, torch);
  }
  if (!only.empty()) return 0;
  fmt::print("\nDense 4096 × 4096, one token, µs; the ratio of their speeds with its quartiles\n");
  fmt::print("{:<15} {:>9} {:>9} {:>7}\n", "", "Network", "product", "ratio");
  for (const DType dtype : {DType::int8, DType::int4, DType::ternary, DType::float16}) compare_forward(dtype);
  return 0;
}

}  // namespace
}  // namespace imago::bench

int main(int argc, char** argv) {
  try {
    return imago::bench::run(argc > 1 ? argv[1] : "", argc > 2 && std::string_view(argv[2]) == "alone");
  } catch (const std::exception& error) {
    fmt::print(stderr, "imago_bench_training: error: {}\n", error.what());
    return 1;
  }
}
