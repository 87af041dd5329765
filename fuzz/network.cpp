// An architecture that is accepted is built and run, forward and back. Large networks are
// skipped: the target looks for inconsistent settings, not for time and memory.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>

#include "imago/error.h"
#include "imago/files.h"

namespace {

using namespace imago;

constexpr int kMostCells = 64, kMostSetting = 64;
constexpr std::size_t kMostValues = 4096;

bool is_small(const Network& network);

bool is_small(const Layer& layer) {
  const LayerConfig& c = layer.config;
  const int sizes[] = {c.input_height,   c.input_width,    c.input_depth,   c.output_height, c.output_width,
                       c.output_depth,   c.input_channels, c.filters,       c.kernel_size,   c.padding,
                       c.output_padding, c.num_heads,      c.num_kv_heads,  c.head_dim,      c.query_dim,
                       c.d_model,        c.vocab_size,     c.embedding_dim, c.num_clusters,  c.stride};
  if (std::ranges::any_of(sizes, [](int size) { return size > kMostSetting; })) return false;
  // Cubes of settings within the bound are large all the same.
  const auto spread = [](int a, int b, int d) { return std::max(1, a) * std::max(1, b) * std::max(1, d); };
  const int side = std::max({c.input_height, c.input_width, c.input_depth, c.output_height, c.output_width,
                             c.output_depth, c.padding, c.output_padding});
  if (spread(side, side, std::max(c.input_channels, c.filters)) > kMostSetting * kMostSetting) return false;
  if (spread(c.kernel_size, c.kernel_size, c.kernel_size) > kMostSetting) return false;
  if (std::ranges::any_of(layer.rules, [](const MetaRule& rule) { return !(rule.param <= kMostSetting); }))
    return false;
  const auto small = [](const auto& inner) { return inner == nullptr || is_small(*inner); };
  return std::ranges::all_of(layer.branches, [](const Layer& l) { return is_small(l); }) &&
         std::ranges::all_of(layer.sub_layers, [](const Layer& l) { return is_small(l); }) &&
         small(layer.filter_gate) && small(layer.observed) && small(layer.meta_network);
}

bool is_small(const Network& network) {
  return network.layers().size() <= static_cast<std::size_t>(kMostCells) &&
         std::ranges::all_of(network.layers(), [](const Layer& layer) { return is_small(layer); });
}

/// The first layer says what it wants only in part; some shapes that common layers take are tried in turn.
void run(Network& network, const Shape& shape) {
  Tensor<float> x(shape);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 2;
  try {
    network.forward(x);
    const Tensor<float> y = network.forward_training(x);
    network.clear_gradients();
    network.backward(y);
    network.forward(x);
  } catch (const Error&) {  // shapes that do not fit, layers changed by commands
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    // Without weights first: they are made for networks of a size that is known.
    if (!is_small(deserialize_network(text))) return 0;
    Network network = build_network_from_json(text, 1);
    if (network.parameters() > kMostValues * 16) return 0;
    const LayerConfig first = std::as_const(network).layers()[0].config;
    const auto width = static_cast<std::size_t>(std::max({1, first.input_height, first.d_model}));
    const auto channels = static_cast<std::size_t>(std::max(1, first.input_channels));
    for (const Shape& shape : {Shape{2, width}, Shape{1, channels, width}, Shape{1, channels, width, width}, Shape{}}) {
      if (shape.elements() <= kMostValues) run(network, shape);
    }
  } catch (const Error&) {
  }
  return 0;
}
