#include "convert/network_conversion.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <regex>
#include <utility>

#include "base/atomic_file.h"
#include "checkpoint/network_import.h"
#include "convert/guidance.h"
#include "convert/planned_types.h"
#include "convert/run_conversion.h"
#include "files/json.h"
#include "files/tensor_file.h"
#include "guided/encode_matrix.h"
#include "guided/sketch.h"
#include "imago/error.h"
#include "imago/files.h"
#include "models/recipe.h"
#include "quant/scheme.h"

namespace imago::convert {

namespace {

bool is_entity(const std::string& path) { return std::filesystem::path(path).extension() == ".entity"; }

void check_finite(const Network& network, const std::string& file) {
  for (const NamedLayer& named : named_layers(network)) {
    if (!named.layer->weights) continue;
    const std::vector<float> weights = named.layer->weights->active(named.layer->config.scheme());
    const auto wrong = [](float weight) { return !std::isfinite(weight); };
    const auto first = std::ranges::find_if(weights, wrong);
    if (first == weights.end()) continue;
    throw FormatError(
        file, 0,
        fmt::format("{} of the {} weights of {} are not finite, the first is number {}; convert with "
                    "--allow-nonfinite to keep them",
                    std::ranges::count_if(weights, wrong), weights.size(), named.path, first - weights.begin()));
  }
}

// ---- decoders

constexpr std::string_view kLeftOut =
    "the embeddings, the final norm and the head of the decoder are left out: this form holds layers only; write "
    ".entity "
    "to keep them";

/// With the type that the layers have now.
void save_decoder(checkpoint::Entity& entity, const std::string& out) {
  const files::JsonDocument document = files::JsonDocument::parse(entity.transformer, out);
  std::string transformer = entity.transformer;
  const std::span<const Layer> layers = std::as_const(entity.network).layers();
  const auto attention =
      std::ranges::find(layers, LayerType::multi_head_attention, [](const Layer& layer) { return layer.config.type; });
  const std::optional<files::JsonValue> stated = document.root().find("weight_dtype");
  if (stated && attention != layers.end()) {
    transformer.replace(stated->offset(), stated->source().size(),
                        fmt::format("\"{}\"", name(attention->config.dtype)));
  }
  AtomicFile file(out);
  files::FileSink sink(file);
  checkpoint::write_entity(sink, entity.network, transformer, entity.decoder_blobs);
  file.commit();
}

// ---- network to network

struct Wish {
  std::optional<DType> dtype;  // none: as it is
  std::string reason = "kept";
};

class LayerTypes {
 public:
  LayerTypes(const ConvertOptions& options, const std::vector<std::string>& paths) : options_(options) {
    if (!options.plan.empty()) planned_ = PlannedTypes(options.plan, paths);
    for (const auto& [text, format] : options.tensor_types) {
      try {
        patterns_.push_back({text, std::regex(text), format.dtype()});
      } catch (const std::regex_error& error) {
        throw UsageError(fmt::format("'{}' is no regular expression: {}", text, error.what()));
      }
    }
  }

  Wish wish_for(const std::string& path) const {
    for (const Pattern& pattern : patterns_) {
      if (std::regex_search(path, pattern.expression)) {
        return {pattern.dtype, fmt::format("asked for by '{}'", pattern.text)};
      }
    }
    if (const std::optional<Format> planned = planned_.find(path)) return {planned->dtype(), "planned"};
    if (options_.type) return {options_.type->dtype(), "asked for"};
    return {};
  }

  /// The scheme that a layer of that shape gets. Groups need rows that are multiples of them.
  Scheme scheme_for(DType dtype, std::size_t cols) const {
    Scheme scheme(dtype);
    if (!is_scaled(dtype)) return scheme;
    scheme.granularity = options_.granularity;
    scheme.group = options_.granularity == Granularity::group ? options_.group : 0;
    if (scheme.group != 0 && cols % static_cast<std::size_t>(scheme.group) != 0) {
      scheme.granularity = Granularity::row;
      scheme.group = 0;
    }
    scheme.calibrator = options_.calibrator;
    scheme.percentile = options_.percentile;
    return checked_scheme(scheme);
  }

 private:
  struct Pattern {
    std::string text;
    std::regex expression;
    DType dtype;
  };
  const ConvertOptions& options_;
  std::vector<Pattern> patterns_;
  PlannedTypes planned_;
};

std::size_t stored_bytes(const Scheme& scheme, const WeightShape& shape) {
  const ScaleLayout scales = scale_layout(scheme, shape.rows, shape.cols);
  return packed_bytes(scheme.format, shape.count()) + scales.count * sizeof(float);
}

/// Gives `layer` the type. Scales that another calibrator or a calibration finds are kept as given ones: a file states
/// scales, and not how they were found.
void take_type(Layer& layer, const Scheme& scheme, const guided::InputStatistics* inputs, Rounding rounding) {
  layer.config.dtype = scheme.format.dtype();
  if (is_scaled(layer.config.dtype)) {
    layer.config.granularity = scheme.granularity;
    layer.config.group = scheme.group;
  }
  if (inputs != nullptr && is_scaled(layer.config.dtype)) {
    const WeightStore& store = *layer.weights;
    const guided::EncodedMatrix encoded =
        guided::encode_matrix(store.master(), store.rows(), store.cols(), scheme, rounding, inputs);
    layer.weights->set_loaded(layer.config.scheme(), encoded.codes, encoded.scales);
    return;
  }
  const std::shared_ptr<const Version> version = layer.weights->morph(scheme);
  if (version == nullptr || scheme.calibrator == Calibrator::absmax) return;
  layer.weights->set_loaded(layer.config.scheme(), version->codes(), version->scales());
}

/// The calibration of a network. Throws UsageError if it is of another one.
std::optional<guided::Calibration> read_calibration(const Network& network, const std::string& in,
                                                    const ConvertOptions& options) {
  if (options.calibration.empty()) return std::nullopt;
  if (options.rounding == Rounding::scaled) {
    throw UnsupportedError(fmt::format("{}: activation-aware scaling is for language models", in));
  }
  guided::Calibration calibration = guided::Calibration::read(options.calibration);
  guided::check_same_model(calibration, guided::sketch_network(network), in);
  return calibration;
}

ConvertReport convert_layers(Network& network, const std::string& in, const ConvertOptions& options) {
  std::vector<std::string> paths;
  for (const NamedLayer& named : named_layers(network)) {
    if (named.layer->weights) paths.push_back(named.path);
  }
  const LayerTypes types(options, paths);
  const std::optional<guided::Calibration> calibration = read_calibration(network, in, options);
  std::size_t unknown = 0;
  ConvertReport report;
  double signal = 0, noise = 0;
  for (const NamedLayer& named : named_layers(network)) {
    // The network is ours to change; named_layers only looks.
    Layer& layer = const_cast<Layer&>(*named.layer);
    if (!layer.weights) continue;
    const WeightShape shape{layer.weights->rows(), layer.weights->cols()};
    const Scheme before = layer.config.scheme();
    const Wish wish = types.wish_for(named.path);
    const Scheme after = wish.dtype ? types.scheme_for(*wish.dtype, shape.cols) : before;
    ConvertedTensor tensor;
    tensor.name = named.path;
    tensor.shape = shape.rows == 1 ? Shape{shape.cols} : Shape{shape.rows, shape.cols};
    tensor.from_type = before.format.name();
    tensor.to_type = after.format.name();
    tensor.reason = wish.reason;
    tensor.from_bytes = stored_bytes(before, shape);
    tensor.to_bytes = stored_bytes(after, shape);
    if (wish.dtype && !options.dry_run) {
      const bool measure = options.measure_error && before.format != after.format;
      const std::vector<float> was = measure ? layer.weights->active(before) : std::vector<float>();
      const guided::InputStatistics* inputs = nullptr;
      if (calibration && calibration->find(named.path) != nullptr) {
        inputs = &calibration->require(named.path, 0, shape.cols);
      }
      unknown += calibration && inputs == nullptr ? 1 : 0;
      take_type(layer, after, inputs, options.rounding);
      if (measure) {
        const Distortion change = measure_distortion(was, layer.weights->active(layer.config.scheme()));
        tensor.relative_rmse = change.relative_rmse;
        const double squares = change.rmse * change.rmse * static_cast<double>(was.size());
        for (const float weight : was) signal += static_cast<double>(weight) * static_cast<double>(weight);
        noise += squares;
        report.relative_rmse = noise == 0 ? 0 : std::sqrt(noise / signal);
      }
    }
    report.from_bytes += tensor.from_bytes;
    report.to_bytes += tensor.to_bytes;
    report.parameters += shape.count();
    report.tensors.push_back(std::move(tensor));
  }
  if (unknown != 0) {
    report.notes.push_back(
        fmt::format("the calibration knows nothing of {} layers, which are rounded plainly", unknown));
  }
  if (report.tensors.empty() && options.type) {
    report.notes.push_back("no layer has weights, so there is nothing that could take another type");
  }
  return report;
}

// ---- network to a bag of tensors

ConvertReport convert_to_bag(const Network& network, const std::string& in, const std::string& out, FileForm to,
                             const ConvertOptions& options) {
  const bool typed = options.type || !options.tensor_types.empty() || !options.plan.empty();
  std::vector<files::StoredTensor> tensors;
  std::vector<std::size_t> tensor_layers;  // the place of each tensor's layer in the grid
  const std::span<const Layer> layers = network.layers();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i].weights) continue;
    const WeightStore& store = *layers[i].weights;
    tensor_layers.push_back(i);
    files::StoredTensor& tensor = tensors.emplace_back();
    tensor.name = fmt::format("layer_{}.weights", i);
    tensor.type = name(SafetensorsType::f32);
    tensor.format = DType::float32;
    tensor.safetensors_type = SafetensorsType::f32;
    // Flat as ever; but types with blocks or scales need to see the rows.
    tensor.shape = typed && store.rows() > 1 ? Shape{store.rows(), store.cols()} : Shape{store.count()};
    tensor.bytes = std::as_bytes(store.master());
    tensor.file = in;
  }
  models::ModelRecipe recipe;
  recipe.target = to;
  for (const files::StoredTensor& tensor : tensors) {
    models::TensorRecipe& made = recipe.tensors.emplace_back();
    made.name = tensor.name;
    made.shape = tensor.shape;
    made.parts.push_back({&tensor, 0, tensor.rows()});
    made.use = tensor.shape.rank() < 2 ? models::TensorUse::vector : models::TensorUse::matrix;
    made.matrices.name = fmt::format("layers.{}", tensor_layers[recipe.tensors.size() - 1]);
  }
  std::size_t inner = 0;
  for (const NamedLayer& named : named_layers(network)) inner += named.layer->weights ? 1 : 0;
  inner -= tensors.size();
  if (inner != 0) {
    recipe.notes.push_back(
        fmt::format("the weights of {} layers inside others are left out: a {} file has tensors for "
                    "the layers of the grid only",
                    inner, name(to)));
  }
  Guidance guidance;
  guidance.calibration = read_calibration(network, in, options);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    guidance.names[fmt::format("layer_{}.weights", i)] = {fmt::format("layers.{}", i), 0, 1};
  }
  return run_conversion(recipe, out, options, guidance);
}

}  // namespace

ConvertReport convert_network(checkpoint::Entity source, const std::string& in, const std::string& out, FileForm to,
                              const ConvertOptions& options) {
  Network& network = source.network;
  const bool decoder = !source.transformer.empty();
  if (decoder && (to == FileForm::huggingface || to == FileForm::gguf)) {
    throw UnsupportedError(
        fmt::format("{}: a decoder in an .entity file has no tokenizer and not all settings that a {} model needs; "
                    "convert the model that it was made of, or write .entity, .json or .safetensors",
                    in, name(to)));
  }
  if (to == FileForm::huggingface) {
    throw UnsupportedError(fmt::format(
        "{}: a network of layers makes no Hugging Face folder; write it as .json, .entity, .safetensors or .gguf", in));
  }
  if (!options.allow_nonfinite) check_finite(network, in);
  const bool bag = to == FileForm::gguf || to == FileForm::safetensors;
  ConvertReport report = bag ? convert_to_bag(network, in, out, to, options) : convert_layers(network, in, options);
  if (decoder && to != FileForm::entity) report.notes.emplace_back(kLeftOut);
  if (bag || options.dry_run) return report;
  if (decoder && to == FileForm::entity) {
    save_decoder(source, out);
  } else {
    save_network(network, out);
  }
  return report;
}

ConvertReport convert_to_network(const files::TensorFile& file, const std::string& out, const ConvertOptions& options) {
  ImportedNetwork imported = checkpoint::import_network(file, {});
  if (!options.allow_nonfinite) check_finite(imported.network, file.path());
  ConvertReport report = convert_layers(imported.network, file.path(), options);
  report.notes.insert(report.notes.end(), imported.notes.begin(), imported.notes.end());
  if (!imported.unmatched.empty()) {
    report.notes.push_back(fmt::format("{} tensors are in no layer and left out, the first is '{}'",
                                       imported.unmatched.size(), imported.unmatched.front()));
  }
  if (imported.is_decoder && !is_entity(out)) {
    report.notes.emplace_back(kLeftOut);
  }
  if (!options.dry_run) save_network(imported, out);
  return report;
}

}  // namespace imago::convert
