// A network built, trained, morphed and compared: the example of docs/networks.md.

#include <algorithm>
#include <cstdio>
#include <string>

#include "imago/files.h"
#include "imago/train.h"

using namespace imago;

int main() {
  Dataset data{Tensor<float>({400, 3}), Tensor<float>({400})};  // points and a constant; is the point in the ring?
  for (std::size_t i = 0; i < 400; ++i) {
    const float x = static_cast<float>(i % 20) / 10 - 0.95f, y = static_cast<float>(i / 20) / 10 - 0.95f;
    const float points[] = {x, y, 1};
    std::copy_n(points, 3, &data.x[i * 3]);
    data.y[i] = x * x + y * y > 0.2f && x * x + y * y < 0.7f ? 1.0f : 0.0f;
  }
  Network network(
      layer_list(dense(3, 32, Activation::silu),
                 sequential(layer_list(dense(32, 32, Activation::silu), residual(), rms_norm(32))), dense(32, 2)),
      /*seed=*/1);
  TrainOptions options{.epochs = 100, .batch = 20};
  options.loss.kind = LossKind::cross_entropy_logits;
  options.optimizer.kind = OptimizerKind::adam;
  options.schedule = {.kind = ScheduleKind::cosine, .rate = 0.02f};
  const TrainResult result = train(network, data, options);
  std::printf("trained %zu weights: loss %.2f, accuracy %.2f\n", network.parameters(), result.final_loss,
              accuracy(network, data));
  options.epochs = 30;
  options.optimizer.learn_scales = true;
  for (const DType dtype : {DType::int8, DType::int4, DType::ternary}) {
    Network smaller = deserialize_network(serialize_network(network));
    morph_network(smaller, dtype);
    std::printf("%-7s similarity %.4f, accuracy %.2f", std::string(name(dtype)).c_str(),
                compare_networks(network, smaller).overall, accuracy(smaller, data));
    train(smaller, data, options);
    std::printf(", trained through the rounding %.2f\n", accuracy(smaller, data));
  }
}
