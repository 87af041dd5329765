// imago forward: runs a network on a tensor, and backward if the gradient of its output is given.

#include <cmath>
#include <cstring>
#include <type_traits>

#include "command.h"

namespace imago::cli {

namespace {

struct ForwardCommand {
  std::string network, input, output, grad_output, device;
  std::uint64_t seed = 0;
  LoadOptions load;
  bool fast = false;
  int threads = 0;
  bool quiet = false;
};

/// Tensor `name` of a safetensors file as floats or doubles. Throws FormatError for NaN in it.
template <class T>
Tensor<T> read_tensor(const std::string& path, const std::string& name) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const SafetensorsTensor* const stored = file.find(name);
  if (stored == nullptr) {
    throw FormatError(path, 8, fmt::format("there is no tensor '{}' in it; store the values under that name", name));
  }
  Tensor<T> tensor(stored->shape);
  if (std::is_same_v<T, double> && stored->type == SafetensorsType::f64) {
    if (tensor.size() != 0) std::memcpy(tensor.values().data(), stored->bytes.data(), stored->bytes.size());
  } else {
    std::ranges::copy(file.read_float32(name).values(), tensor.values().begin());
  }
  const std::span<const T> values = tensor.values();
  const auto wrong = std::ranges::find_if(values, [](T value) { return std::isnan(value); });
  if (wrong != values.end()) {
    throw FormatError(path, 8,
                      fmt::format("element {} of '{}' {} is NaN; replace it", wrong - values.begin(), name,
                                  tensor.shape().to_string()));
  }
  return tensor;
}

using Tensors = std::vector<std::pair<std::string, Tensor<float>>>;

void add_gradients(Network& network, const Tensor<float>& y, const std::string& file, Tensors& tensors) {
  const Tensor<float> dy = read_tensor<float>(file, "dy");
  if (!(dy.shape() == y.shape())) {
    throw ShapeError(fmt::format("{}: 'dy' has the shape {}, but the output of the network has {}", file,
                                 dy.shape().to_string(), y.shape().to_string()));
  }
  network.clear_gradients();
  tensors.emplace_back("dx", network.backward(dy));
  for (auto& [path, values] : named_gradients(network)) {
    const Shape flat{values.size()};
    tensors.emplace_back("dw." + path, Tensor<float>(flat, std::move(values)));
  }
}

/// The forward of a float64 network, to a file with 'y' in float64.
void forward_wide(Network& network, const ForwardCommand& options) {
  const Tensor<double> x = read_tensor<double>(options.input, "x");
  blame(fmt::format("{} on {}", options.network, options.input), [&] {
    const Tensor<double>& y = network.forward(x);
    SafetensorsWriter writer(options.output, {{"y", SafetensorsType::f64, y.shape()}});
    writer.write("y", std::as_bytes(y.values()));
    writer.commit();
  });
}

void forward(const ForwardCommand& options) {
  set_thread_count(options.threads);
  const bool backward = !options.grad_output.empty();
  const std::shared_ptr<Device> device = open_chosen(options.device);
  if (backward && options.fast) throw UsageError("--grad-output computes exactly; leave out --fast");
  if (backward && device) throw UsageError("--grad-output only works on the CPU; leave out --device");
  Network network = load_runnable(options.network, options.load);
  network.set_run_seed(options.seed);
  network.run_on(device);
  network.set_fast(options.fast);
  if (network.is_float64() && !backward && !device && !options.fast) return forward_wide(network, options);
  const Tensor<float> x = read_tensor<float>(options.input, "x");
  Tensors tensors;
  blame(fmt::format("{} on {}", options.network, options.input),
        [&] { tensors.emplace_back("y", backward ? network.forward_training(x) : network.forward(x)); });
  if (backward) {
    blame(options.grad_output, [&] { add_gradients(network, tensors.front().second, options.grad_output, tensors); });
  }
  save_safetensors(options.output, tensors);
}

}  // namespace

Command add_forward(CLI::App& program) {
  CLI::App* command = program.add_subcommand("forward", "Run a network on a tensor");
  const auto options = std::make_shared<ForwardCommand>();
  command->add_option("NETWORK", options->network, "A network in any file format, or an architecture without weights")
      ->required();
  add_file(*command, "--input", options->input, "Safetensors file with the tensor 'x'")->required();
  add_file(*command, "-o,--output", options->output,
           "Safetensors file to write: 'y', in float64 if the first weights of the network are")
      ->required();
  add_file(*command, "--grad-output", options->grad_output,
           "Safetensors file with 'dy': also write 'dx' and 'dw.PATH' of each layer (default: none)");
  add_seed(*command, options->seed, "Of random numbers in layers (default: 0)");
  add_fp4_legacy(*command, options->load);
  add_device(*command, options->device);
  add_arithmetic(*command, options->fast);
  add_threads(*command, options->threads);
  add_quiet(*command, options->quiet);
  command->footer(
      "Examples:\n  imago forward net.json --input x.safetensors -o y.safetensors\n"
      "  imago forward net.json --input x.safetensors --grad-output dy.safetensors -o y.safetensors");
  return {command, [options] { forward(*options); }};
}

}  // namespace imago::cli
