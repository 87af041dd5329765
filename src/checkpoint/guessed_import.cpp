// Layers out of a safetensors file of unknown architecture, by the shapes of its tensors.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "checkpoint/network_import.h"
#include "imago/error.h"
#include "quant/packed_array.h"

namespace imago::checkpoint {

namespace {

using files::StoredTensor;
using files::TensorFile;

constexpr double kGamma = 0.4, kBias = 0.2;  // mean |w|: above the first a scale, below the second an offset
constexpr std::size_t kFewest = 10;          // smaller tensors are figures about a model, not weights

/// All elements as float32.
std::vector<float> read_values(const StoredTensor& tensor) {
  std::vector<float> values(tensor.shape.elements());
  files::decode_tensor(tensor, 0, values);
  return values;
}

struct Candidate {
  const StoredTensor* tensor = nullptr;
  double mean = 0;  // of |w|; of vectors only
  bool used = false;

  std::size_t rank() const { return tensor->shape.rank(); }
  std::size_t rows() const { return tensor->shape[0]; }
  std::size_t cols() const { return tensor->shape.last(); }
  bool is_vector(std::size_t length) const { return !used && rank() == 1 && rows() == length; }
  bool is_matrix(std::size_t r, std::size_t c) const { return !used && rank() == 2 && rows() == r && cols() == c; }
};

double mean_magnitude(const StoredTensor& tensor) {
  double sum = 0;
  for (const float value : read_values(tensor)) sum += std::abs(static_cast<double>(value));
  return sum / static_cast<double>(std::max<std::size_t>(tensor.shape.elements(), 1));
}

int as_int(std::size_t size) { return checked_cast<int>(size, "a size of a tensor"); }

class Guesser {
 public:
  Guesser(const TensorFile& file, const ImportOptions& options) : file_(file), options_(options) {
    for (const StoredTensor& tensor : file.tensors()) {
      if (files::is_decodable(tensor) && tensor.shape.elements() != 0 && tensor.shape.rank() != 0) {
        candidates_.push_back({&tensor, tensor.shape.rank() == 1 ? mean_magnitude(tensor) : 0, false});
      } else {
        unmatched_.push_back(tensor.name);
      }
    }
    std::ranges::sort(candidates_, {}, [](const Candidate& c) -> const std::string& { return c.tensor->name; });
  }

  ImportedNetwork run() {
    for (const auto& [index, type] : options_.hints) take_hint(index, type);
    for (Candidate& first : candidates_) {
      if (!first.used) static_cast<void>(attention(first) || lstm(first) || swiglu_of(first) || norm(first));
    }
    for (Candidate& rest : candidates_) {
      if (!rest.used) take_alone(rest);
    }
    for (const Candidate& rest : candidates_) {
      if (!rest.used) unmatched_.push_back(rest.tensor->name);
    }
    if (layers_.empty()) {
      throw FormatError(file_.path(), 0, "no tensor in it has the shape of a layer's weights");
    }
    ImportedNetwork result{.network = Network(1, 1, 1, as_int(layers_.size()))};
    const std::span<Layer> grid = result.network.layers();
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      layers_[i].at = grid[i].at;
      grid[i] = std::move(layers_[i]);
    }
    result.unmatched = std::move(unmatched_);
    result.notes = std::move(notes_);
    return result;
  }

 private:
  using Group = std::vector<Candidate*>;

  void take_hint(std::size_t index, LayerType type) {
    if (index >= candidates_.size()) {
      throw UsageError(fmt::format("a hint for tensor {}, but there are {}", index, candidates_.size()));
    }
    constexpr std::pair<LayerType, bool (Guesser::*)(Candidate&)> kBegin[] = {
        {LayerType::multi_head_attention, &Guesser::attention},
        {LayerType::lstm, &Guesser::lstm},
        {LayerType::swiglu, &Guesser::swiglu_of},
        {LayerType::layer_norm, &Guesser::norm},
        {LayerType::rms_norm, &Guesser::rms},
        {LayerType::dense, &Guesser::dense_of},
        {LayerType::embedding, &Guesser::embedding_of},
        {LayerType::cnn1, &Guesser::convolution_of<1>},
        {LayerType::cnn2, &Guesser::convolution_of<2>},
        {LayerType::cnn3, &Guesser::convolution_of<3>}};
    Candidate& first = candidates_[index];
    const auto* begin = std::ranges::find(kBegin, type, [](const auto& row) { return row.first; });
    if (first.used || begin == std::end(kBegin) || !(this->*begin->second)(first)) {
      throw UsageError(fmt::format("{}: tensor '{}' {} cannot begin a layer of type {}", file_.path(),
                                   first.tensor->name, first.tensor->shape.to_string(), name(type)));
    }
  }

  // ---- groups

  template <class Fits>
  Group find(std::size_t most, Fits&& fits) {
    Group group;
    for (Candidate& candidate : candidates_) {
      if (group.size() < most && !candidate.used && fits(candidate)) group.push_back(&candidate);
    }
    return group;
  }
  Group find_biases(std::size_t most, std::size_t length) {
    return find(most, [&](const Candidate& c) { return c.is_vector(length) && c.mean < kBias; });
  }

  bool attention(Candidate& first) {
    if (first.rank() != 2 || first.rows() != first.cols()) return false;
    const std::size_t n = first.rows();
    const Group matrices = find(4, [&](const Candidate& c) { return c.is_matrix(n, n); });
    if (matrices.size() != 4) return false;
    if (options_.heads < 1 || n % static_cast<std::size_t>(options_.heads) != 0) {
      throw UsageError(fmt::format("{}: attention of width {} cannot have {} heads; set the number of heads",
                                   file_.path(), n, options_.heads));
    }
    const Group biases = find_biases(4, n);
    std::vector<float> master;
    for (const Candidate* matrix : matrices) append(master, *matrix);
    for (const Candidate* bias : biases) append(master, *bias);
    master.resize(4 * n * n + 4 * n);
    Layer layer = imago::attention({.width = as_int(n), .heads = options_.heads});
    add(std::move(layer), matrices, master);
    for (Candidate* bias : biases) bias->used = true;
    return true;
  }

  bool lstm(Candidate& first) {
    if (first.rank() != 2 || first.rows() != 4 * first.cols()) return false;
    const std::size_t h = first.cols();
    const Group matrices = find(2, [&](const Candidate& c) { return c.is_matrix(4 * h, h); });
    if (matrices.size() != 2) return false;
    // The file has the gates of each matrix below each other, a layer has the matrices of each gate.
    const std::vector<float> ih = read_values(*matrices[0]->tensor), hh = read_values(*matrices[1]->tensor);
    std::vector<float> master;
    for (std::size_t gate = 0; gate < 4; ++gate) {
      const auto begin = static_cast<std::ptrdiff_t>(gate * h * h),
                 end = static_cast<std::ptrdiff_t>((gate + 1) * h * h);
      master.insert(master.end(), ih.begin() + begin, ih.begin() + end);
      master.insert(master.end(), hh.begin() + begin, hh.begin() + end);
      master.insert(master.end(), h, 0.0f);
    }
    add(imago::lstm(as_int(h), as_int(h), 1), matrices, master);
    return true;
  }

  bool swiglu_of(Candidate& first) {
    if (first.rank() != 2) return false;
    const std::size_t a = first.rows(), b = first.cols();
    const Group group = find(3, [&](const Candidate& c) { return c.is_matrix(a, b) || c.is_matrix(b, a); });
    const auto is_wide = [](const Candidate* c) { return c->rows() < c->cols(); };
    if (group.size() != 3 || std::ranges::none_of(group, is_wide)) return false;
    Candidate* down = nullptr;
    for (Candidate* candidate : group) down = is_wide(candidate) ? candidate : down;
    const std::size_t width = down->rows(), inner = down->cols();
    std::vector<float> master;
    for (const Candidate* candidate : group) {
      if (candidate == down) continue;
      is_wide(candidate) ? append_transposed(master, *candidate) : append(master, *candidate);
    }
    append(master, *down);
    master.resize(3 * width * inner + 2 * inner + width);
    add(imago::swiglu(as_int(width), as_int(inner)), group, master);
    return true;
  }

  bool rms(Candidate& gamma) {
    if (gamma.rank() != 1) return false;
    add(imago::rms_norm(as_int(gamma.rows())), {&gamma}, read_values(*gamma.tensor));
    return true;
  }

  bool norm(Candidate& first) {
    if (first.rank() != 1 || first.rows() < kFewest) return false;
    const std::size_t n = first.rows();
    const bool is_gamma = first.mean > kGamma;
    if (!is_gamma && !(first.mean < kBias)) return false;
    const Group others =
        find(1, [&](const Candidate& c) { return c.is_vector(n) && (is_gamma ? c.mean < kBias : c.mean > kGamma); });
    if (others.empty()) return is_gamma && rms(first);
    Candidate* gamma = is_gamma ? &first : others[0];
    Candidate* beta = is_gamma ? others[0] : &first;
    std::vector<float> master;
    append(master, *gamma);
    append(master, *beta);
    add(imago::layer_norm(as_int(n)), {gamma, beta}, master);
    return true;
  }

  // ---- one tensor

  void take_alone(Candidate& rest) {
    if (rest.tensor->shape.elements() < kFewest) {
      rest.used = true;
      notes_.push_back(fmt::format("'{}' {} was taken for a figure about the model, not for weights", rest.tensor->name,
                                   rest.tensor->shape.to_string()));
      return;
    }
    switch (rest.rank()) {
      case 1:
        if (rest.mean > kGamma) rms(rest);
        return;
      case 2: rest.rows() > 10 * rest.cols() ? embedding_of(rest) : dense_of(rest); return;
      case 3: convolution_of<1>(rest); return;
      case 4: convolution_of<2>(rest); return;
      default: return;
    }
  }

  bool dense_of(Candidate& matrix) {
    if (matrix.rank() != 2) return false;
    add_alone(imago::dense(as_int(matrix.cols()), as_int(matrix.rows())), matrix);
    drop_bias(matrix);
    return true;
  }

  bool embedding_of(Candidate& matrix) {
    if (matrix.rank() != 2) return false;
    add_alone(imago::embedding(as_int(matrix.rows()), as_int(matrix.cols())), matrix);
    return true;
  }

  template <int axes>
  bool convolution_of(Candidate& kernel) {
    const Shape& shape = kernel.tensor->shape;
    if (shape.rank() != std::size_t{axes} + 2) return false;
    for (std::size_t axis = 2; axis < shape.rank(); ++axis) {
      if (shape[axis] != shape.last()) return false;  // kernels of layers have one size
    }
    const int size = as_int(shape.last());
    add_alone(imago::convolution(
                  axes, {.channels = as_int(shape[1]), .filters = as_int(shape[0]), .kernel = size, .height = size}),
              kernel);
    notes_.push_back(fmt::format("'{}' does not tell the size of its input; it was set to that of the kernel, {}",
                                 kernel.tensor->name, size));
    drop_bias(kernel);
    return true;
  }

  void drop_bias(const Candidate& of) {
    const Group biases = find_biases(1, of.rows());
    if (biases.empty()) return;
    biases[0]->used = true;
    notes_.push_back(fmt::format("'{}' seems to be the bias of '{}', whose layer has no place for one",
                                 biases[0]->tensor->name, of.tensor->name));
  }

  // ---- weights

  static void append(std::vector<float>& to, const Candidate& candidate) {
    const std::vector<float> values = read_values(*candidate.tensor);
    to.insert(to.end(), values.begin(), values.end());
  }

  void append_transposed(std::vector<float>& to, const Candidate& candidate) {
    const std::vector<float> values = read_values(*candidate.tensor);
    const std::size_t rows = candidate.rows(), cols = candidate.cols();
    for (std::size_t c = 0; c < cols; ++c) {
      for (std::size_t r = 0; r < rows; ++r) to.push_back(values[r * cols + c]);
    }
    notes_.push_back(fmt::format("'{}' was transposed to fit into a SwiGLU layer", candidate.tensor->name));
  }

  /// A layer of several tensors: in their type, if they have one without scales in common.
  void add(Layer layer, const Group& tensors, std::span<const float> master) {
    const std::optional<Format> format = tensors[0]->tensor->format;
    const bool common = std::ranges::all_of(tensors, [&](const Candidate* c) { return c->tensor->format == format; });
    if (common && format && format->is_wide()) layer.config.dtype = format->dtype();
    const WeightShape shape = weight_shape(layer.config);
    layer.weights.emplace(shape).set_master(master);
    for (Candidate* candidate : tensors) candidate->used = true;
    layers_.push_back(std::move(layer));
  }

  /// A layer of one tensor, whose codes it keeps.
  void add_alone(Layer layer, Candidate& candidate) {
    const StoredTensor& tensor = *candidate.tensor;
    LayerConfig& config = layer.config;
    const WeightShape shape = weight_shape(config);
    const bool has_codes =
        tensor.format && !tensor.format->is_wide() && fitting_type(*tensor.format, shape) == tensor.format;
    if (!has_codes) return add(std::move(layer), {&candidate}, read_values(tensor));
    config.dtype = *tensor.format;
    const std::vector<float> one = {1};
    const bool lacks_scales = config.dtype.has_scales() && tensor.scale_values.empty();
    const std::vector<float>& scales = lacks_scales ? one : tensor.scale_values;
    if (scales.size() > 1) {
      config.granularity = tensor.scale_group == shape.cols ? Granularity::row : Granularity::group;
      if (config.granularity == Granularity::group) config.group = as_int(tensor.scale_group);
    }
    layer.weights.emplace(shape).set_loaded(config.scheme(), tensor.bytes, scales, tensor.zero_points);
    candidate.used = true;
    layers_.push_back(std::move(layer));
  }

  const TensorFile& file_;
  const ImportOptions& options_;
  std::vector<Candidate> candidates_;  // by name
  std::vector<Layer> layers_;
  std::vector<std::string> unmatched_, notes_;
};

}  // namespace

ImportedNetwork import_guessed(const TensorFile& file, const ImportOptions& options) {
  return Guesser(file, options).run();
}

}  // namespace imago::checkpoint
