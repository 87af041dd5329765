// Steps of training per second on a GPU and on the host: the same network, weights and batches.
//
//   imago_bench_gpu_training [--no-host]

#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "imago/error.h"
#include "imago/system.h"
#include "imago/train.h"

namespace imago::bench {
namespace {

Network wide() {
  return Network(layer_list(dense(1024, 4096, Activation::relu), dense(4096, 4096, Activation::relu), dense(4096, 10)),
                 1);
}

Network cnn() {
  return Network(
      layer_list(
          convolution(2, {.channels = 3, .filters = 64, .kernel = 3, .padding = 1, .height = 32}, Activation::relu),
          convolution(2, {.channels = 64, .filters = 128, .kernel = 3, .stride = 2, .padding = 1, .height = 32},
                      Activation::relu),
          dense(128 * 16 * 16, 10)),
      1);
}

/// x + part(norm(x)).
Layer with_skip(Layer part) {
  return sequential(layer_list(sequential(layer_list(rms_norm(512), std::move(part))), residual()));
}

Network decoder() {
  std::vector<Layer> layers = layer_list(embedding(1000, 512));
  for (int block = 0; block < 6; ++block) {
    layers.push_back(with_skip(attention({.width = 512, .heads = 8, .seq_length = 256})));
    layers.push_back(with_skip(swiglu(512, 1376)));
  }
  layers.push_back(rms_norm(512));
  layers.push_back(dense(512, 1000));
  return Network(std::move(layers), 1);
}

struct Case {
  std::string name;
  Network (*network)();
  Shape x, y;  ///< of a batch
  int ids;     ///< of x: 0 for random reals, else this many
  int classes;
};

Dataset data_of(const Case& c) {
  std::mt19937 random(3);
  Dataset data{Tensor<float>(c.x), Tensor<float>(c.y)};
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (float& value : data.x.values()) {
    value = c.ids == 0 ? uniform(random) : static_cast<float>(random() % static_cast<unsigned>(c.ids));
  }
  for (float& value : data.y.values()) value = static_cast<float>(random() % static_cast<unsigned>(c.classes));
  return data;
}

struct Measured {
  double steps_per_second = 0;
  double loss = 0;
};

/// Steps in `seconds`, after some that are not counted.
Measured measure(const Case& c, std::shared_ptr<Device> device, double seconds, std::uint64_t warm_up) {
  using Clock = std::chrono::steady_clock;
  Network network = c.network();
  const Dataset data = data_of(c);
  TrainOptions options{.epochs = 1'000'000, .batch = data.size(), .loss = {.kind = LossKind::cross_entropy_logits}};
  options.optimizer.kind = OptimizerKind::adamw;
  options.schedule.rate = 1e-4f;
  options.device = std::move(device);
  Clock::time_point start;
  Measured result;
  options.progress = [&](const TrainProgress& now) {
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    if (now.step == warm_up) start = Clock::now();
    if (now.step <= warm_up) return true;
    if (result.steps_per_second == 0 && elapsed >= seconds) {
      result = {static_cast<double>(now.step - warm_up) / elapsed, now.loss};
    }
    return result.steps_per_second == 0;
  };
  train(network, data, options);
  return result;
}

int run(bool with_host) {
  const Case cases[] = {{"dense 1024-4096-4096-10", wide, {512, 1024}, {512}, 0, 10},
                        {"cnn 3-64-128, 32 x 32", cnn, {128, 3, 32, 32}, {128}, 0, 10},
                        {"decoder 6 x 512, 256 steps", decoder, {16, 256}, {16, 256}, 1000, 1000}};
  const std::shared_ptr<Device> device = open_device("cuda");
  fmt::print("{} of {}; AdamW, float32; steps per second\n", device->name(), accelerators().front().model);
  fmt::print("{:<28} {:>6} {:>10} {:>10} {:>8}\n", "network", "batch", "GPU", "host", "ratio");
  for (const Case& c : cases) {
    const Measured gpu = measure(c, device, 2, 5);
    const Measured host = with_host ? measure(c, nullptr, 3, 1) : Measured{};
    fmt::print("{:<28} {:>6} {:>10.1f} {:>10.2f} {:>8.1f}\n", c.name, c.x[0], gpu.steps_per_second,
               host.steps_per_second, host.steps_per_second == 0 ? 0 : gpu.steps_per_second / host.steps_per_second);
  }
  return 0;
}

}  // namespace
}  // namespace imago::bench

int main(int argc, char** argv) {
  try {
    return imago::bench::run(!(argc > 1 && std::string_view(argv[1]) == "--no-host"));
  } catch (const imago::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
