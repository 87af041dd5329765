#include "demo_network.h"

#include "command.h"

namespace imago::cli {

namespace {

constexpr std::size_t kPixels = 64, kInputs = 65;
constexpr int kWidth = 96, kEpochs = 15, kMoreEpochs = 3;

TrainOptions training(int epochs, float rate) {
  TrainOptions options{.epochs = epochs, .batch = 32};
  options.loss.kind = LossKind::cross_entropy_logits;
  options.optimizer.kind = OptimizerKind::adam;
  options.optimizer.learn_scales = true;
  options.schedule = {.kind = ScheduleKind::cosine, .rate = rate, .warmup_steps = 20};
  options.seed = 1;
  return options;
}

/// While it exists, work runs on one thread: so small a network gains nothing from more.
class OneThread {
 public:
  OneThread() { set_thread_count(1); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() { set_thread_count(before_); }

 private:
  int before_ = thread_count();
};

Network copy_of(const Network& network) { return deserialize_network(serialize_network(network)); }

std::size_t bytes_of(const Network& network, DType type) {
  std::size_t bytes = 0;
  for (const Layer& layer : network.layers()) {
    const auto version = layer.weights->morph(type);
    bytes += version ? version->bytes() : layer.weights->count() * sizeof(float);
  }
  return bytes;
}

/// The median of many runs.
double microseconds_per_forward(Network& network, const Dataset& data) {
  constexpr int kTimes = 101;
  Tensor<float> digit({1, kInputs});
  std::ranges::copy(data.x.values().first(kInputs), digit.values().begin());
  network.forward(digit);  // warm-up
  std::vector<double> times;
  for (int i = 0; i < kTimes; ++i) {
    const auto start = std::chrono::steady_clock::now();
    network.forward(digit);
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + kTimes / 2, times.end());
  return times[kTimes / 2];
}

DemoRow measure_type(const DemoNetwork& demo, DType type) {
  DemoRow row{.type = type};
  Network rounded = copy_of(demo.network);
  morph_network(rounded, type);
  row.bytes = bytes_of(rounded, type);
  row.cosine = compare_networks(demo.network, rounded).overall;
  row.rounded = accuracy(rounded, demo.unseen);
  row.microseconds = microseconds_per_forward(rounded, demo.unseen);
  const std::string file = serialize_network(rounded);
  row.same_bytes = serialize_network(deserialize_network(file)) == file;
  train(rounded, demo.seen, training(kMoreEpochs, 0.001f));
  row.trained = accuracy(rounded, demo.unseen);
  return row;
}

}  // namespace

DemoNetwork train_demo_network(std::size_t digits, bool quiet) {
  DemoNetwork demo{drawn_digits(digits, 1), drawn_digits(digits * 2 / 3, 2),
                   Network(layer_list(dense(static_cast<int>(kInputs), kWidth, Activation::relu),
                                      dense(kWidth, kWidth, Activation::relu), dense(kWidth, 10)),
                           /*seed=*/1)};
  // He initialization: with the small weights of a new network it would learn more slowly.
  std::uint64_t seed = 1;
  for (Layer& layer : demo.network.layers()) layer.weights->he_randomize(seed++, layer.weights->cols());
  const OneThread alone;
  Progress progress(quiet);
  TrainOptions options = training(kEpochs, 0.003f);
  options.progress = [&](const TrainProgress& now) {
    progress.show(now.step, now.steps, fmt::format("training, loss {:.3f}", now.loss));
    return true;
  };
  demo.seconds = train(demo.network, demo.seen, options).seconds;
  demo.accuracy = accuracy(demo.network, demo.unseen);
  return demo;
}

std::vector<DemoRow> measure_demo_types(const DemoNetwork& demo, bool quiet) {
  const OneThread alone;
  std::vector<DemoRow> rows;
  Progress progress(quiet);
  for (const DTypeInfo& type : kDTypes) {
    progress.show(rows.size(), kDTypes.size(), std::string(type.name));
    rows.push_back(measure_type(demo, type.id));
  }
  return rows;
}

std::vector<std::string> draw_digits(const Dataset& data, std::size_t first, std::size_t count) {
  constexpr std::size_t kSide = 8;
  constexpr const char* kShades[] = {" ", "░", "▒", "▓", "█"};
  std::vector<std::string> lines(kSide);
  for (std::size_t i = first; i < first + count; ++i) {
    for (std::size_t pixel = 0; pixel < kPixels; ++pixel) {
      const float ink = data.x[i * kInputs + pixel];
      const char* const shade = kShades[std::min<std::size_t>(4, static_cast<std::size_t>(ink * 5))];
      lines[pixel / kSide] += std::string(shade) + shade;  // two columns are about as wide as a line is tall
    }
    for (std::string& line : lines) line += "  ";
  }
  return lines;
}

}  // namespace imago::cli
