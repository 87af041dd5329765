// Language models found in networks: the parts of a decoder, its traits, its tensors.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <list>
#include <utility>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/decoder_network.h"
#include "checkpoint/network_tensors.h"
#include "imago/error.h"
#include "layers/settings.h"
#include "models/architectures.h"
#include "models/open_model.h"
#include "models/recipe_parts.h"
#include "models/tensor_layout.h"
#include "models/traits_reading.h"
#include "quant/packed_array.h"
#include "weights/views.h"

namespace imago::checkpoint {

namespace {

using files::StoredTensor;
using models::Architecture;
using models::Role;
using models::Traits;

// ---- what a decoder looks like

/// Attention or SwiGLU, with a norm before it or after it.
struct Branch {
  const Layer *before = nullptr, *core = nullptr, *after = nullptr;
};
struct BlockParts {
  Branch attention, feed_forward;
};
struct Decoder {
  const Layer *embedding = nullptr, *norm = nullptr, *head = nullptr;
  std::vector<BlockParts> blocks;
};

/// Finds the parts of a decoder in a network, or says what is not as it should be.
class DecoderFinder {
 public:
  explicit DecoderFinder(const std::string& path) : path_(path) {}

  Decoder find(const Network& network) const {
    refuse_foreign_layers(network);
    const std::span<const Layer> grid = network.layers();
    if (grid.size() < 4) refuse(fmt::format("its grid has {} of the 4 layers and more that one has", grid.size()));
    Decoder decoder;
    decoder.embedding = &of_type(grid.front(), LayerType::embedding, "layers.0");
    const std::size_t last = grid.size() - 1;
    for (std::size_t i = 1; i + 1 < last; ++i) decoder.blocks.push_back(block(grid[i], fmt::format("layers.{}", i)));
    decoder.norm = &of_type(grid[last - 1], LayerType::rms_norm, fmt::format("layers.{}", last - 1));
    decoder.head = &of_type(grid[last], LayerType::dense, fmt::format("layers.{}", last));
    for (const Layer* ends : {decoder.embedding, decoder.head}) {
      if (ends->config.activation != Activation::linear) refuse("its embedding or its head has an activation");
    }
    return decoder;
  }

  [[noreturn]] void refuse(std::string_view reason) const {
    throw UnsupportedError(fmt::format(
        "{}: this network of layers is not a language model as Hugging Face folders hold them: {}", path_, reason));
  }

 private:
  void refuse_foreign_layers(const Network& network) const {
    using enum LayerType;
    constexpr std::array kParts = {embedding, dense, multi_head_attention, swiglu, rms_norm, sequential, residual};
    for (const NamedLayer& named : named_layers(network)) {
      if (std::ranges::find(kParts, named.layer->config.type) != kParts.end()) continue;
      refuse(fmt::format("{} is of type {}, which no such model has", named.path, name(named.layer->config.type)));
    }
  }

  const Layer& of_type(const Layer& layer, LayerType type, const std::string& place) const {
    const LayerConfig& config = layer.config;
    if (config.is_disabled || config.is_remote_link) refuse(fmt::format("{} is disabled or a remote link", place));
    if (config.type != type) refuse(fmt::format("{} is {}, not {}", place, name(config.type), name(type)));
    const bool owns = type != LayerType::sequential && type != LayerType::residual;
    if (owns && !layer.weights) refuse(fmt::format("{} has no weights", place));
    return layer;
  }

  const Layer& child(const Layer& parent, std::size_t index, LayerType type, const std::string& place) const {
    return of_type(parent.sub_layers[index], type, fmt::format("{}.sequential_layers.{}", place, index));
  }

  BlockParts block(const Layer& layer, const std::string& place) const {
    of_type(layer, LayerType::sequential, place);
    if (layer.sub_layers.size() != 4) refuse(fmt::format("{} has {} layers, not 4", place, layer.sub_layers.size()));
    const auto branch_at = [&](std::size_t index, LayerType core) {
      child(layer, index + 1, LayerType::residual, place);
      return branch(child(layer, index, LayerType::sequential, place), core,
                    fmt::format("{}.sequential_layers.{}", place, index));
    };
    return {branch_at(0, LayerType::multi_head_attention), branch_at(2, LayerType::swiglu)};
  }

  Branch branch(const Layer& layer, LayerType core, const std::string& place) const {
    if (layer.sub_layers.size() != 2) refuse(fmt::format("{} has {} layers, not 2", place, layer.sub_layers.size()));
    const bool before = layer.sub_layers[0].config.type == LayerType::rms_norm;
    Branch found;
    (before ? found.before : found.after) = &child(layer, before ? 0 : 1, LayerType::rms_norm, place);
    found.core = &child(layer, before ? 1 : 0, core, place);
    return found;
  }

  const std::string& path_;
};

// ---- its traits

/// Weights of a layer as it computes with them.
std::vector<float> values_of(const Layer& layer, std::size_t first, std::size_t count) {
  std::vector<float> values(count);
  imago::decode_slice(*layer.weights, layer.config.scheme(), first, values);
  return values;
}

bool any_bias(const Layer& layer, std::size_t first, std::size_t count) {
  return std::ranges::any_of(values_of(layer, first, count), [](float value) { return value != 0; });
}

bool same_weights(const Layer& a, const Layer& b) {
  if (a.weights->rows() != b.weights->rows() || a.weights->cols() != b.weights->cols()) return false;
  const EmittedWeights one = emit_weights(a), other = emit_weights(b);
  return a.config.scheme() == b.config.scheme() && one.scale == other.scale && one.zero_point == other.zero_point &&
         std::ranges::equal(one.scales, other.scales) && std::ranges::equal(one.zeros, other.zeros) &&
         std::ranges::equal(one.bytes, other.bytes);
}

/// What a decoder computes. Throws UnsupportedError where the blocks differ, or have what no language model has.
class TraitsFinder {
 public:
  TraitsFinder(const Decoder& decoder, const DecoderFinder& finder) : decoder_(decoder), finder_(finder) {}

  /// With an architecture whose config.json says exactly this; `hint` is tried first.
  Traits find(std::string_view hint) {
    read_blocks();
    read_ends();
    std::vector<Architecture> candidates;
    if (const models::ArchitectureFacts* row = models::find_model_type(hint)) candidates.push_back(row->architecture);
    if (biased_ && !output_biased_) candidates.push_back(Architecture::qwen2);
    candidates.insert(candidates.end(),
                      {Architecture::llama, Architecture::qwen3, Architecture::smollm3, Architecture::exaone4});
    for (const Architecture architecture : candidates) {
      if (!can_be_biased(architecture)) continue;
      Traits traits = as(architecture);
      if (reads_back(traits)) return traits;
    }
    finder_.refuse("no architecture that imago knows is put together like it");
  }

  models::ConfigExtras extras() const {
    const Format format = decoder_.embedding->config.dtype;
    const bool plain = format == DType::float16 || format == DType::bfloat16;
    return {.dtype = plain ? format.dtype() : DType::float32, .attention_bias = biased_};
  }
  bool biased() const noexcept { return biased_; }

 private:
  void require(bool holds, std::size_t block, std::string_view what) const {
    if (!holds) finder_.refuse(fmt::format("in layers.{}, {}", block + 1, what));
  }

  void read_blocks() {
    const std::string_view kAlike = "sizes or settings differ from those of the first block";
    for (std::size_t i = 0; i < decoder_.blocks.size(); ++i) {
      const auto& [attention, feed_forward] = decoder_.blocks[i];
      const LayerConfig &a = attention.core->config, &f = feed_forward.core->config;
      const layers::AttentionDims dims = layers::attention_dims(a);
      const layers::SwiGluParts parts = layers::swiglu_parts(f);
      if (i == 0) read_first(dims, parts, a);
      const auto norm = models::QueryNorm::head;
      require(
          a.q_norm.size() == (traits_.query_norm == norm ? dims.head_values : 0) && a.k_norm.size() == a.q_norm.size(),
          i, "q_norm and k_norm are not one weight for each value of a head");
      require(a.inner_norm.empty() && f.inner_norm.empty(), i, "attention or SwiGLU has a norm inside");
      require(dims.width == traits_.width && dims.heads == traits_.heads && dims.kv_heads == traits_.kv_heads &&
                  dims.head_values == traits_.head_values && dims.rope_base == traits_.rope_base &&
                  parts.width == traits_.width && parts.inner == inner_ && parts.function == traits_.activation &&
                  a.max_seq_len == max_seq_len_ && (attention.before != nullptr) == traits_.pre_norms &&
                  (feed_forward.before != nullptr) == traits_.pre_norms,
              i, kAlike);
      require(dims.eps == traits_.norm_eps, i, kAlike);
      for (const Branch& branch : {attention, feed_forward}) check_norm(branch.before ? branch.before : branch.after);
      traits_.block.push_back({.rope = !a.no_rope, .feed_forward = inner_});
      read_biases(i, *attention.core, dims, *feed_forward.core, parts);
    }
  }

  void read_first(const layers::AttentionDims& dims, const layers::SwiGluParts& parts, const LayerConfig& config) {
    traits_.blocks = decoder_.blocks.size();
    traits_.width = dims.width;
    traits_.heads = dims.heads;
    traits_.kv_heads = dims.kv_heads;
    traits_.head_values = traits_.rotary = dims.head_values;
    inner_ = parts.inner;
    traits_.activation = parts.function;
    traits_.norm_eps = dims.eps;
    traits_.rope_base = dims.rope_base;
    traits_.pre_norms = decoder_.blocks.front().attention.before != nullptr;
    traits_.post_norms = !traits_.pre_norms;
    traits_.query_norm = config.q_norm.empty() ? models::QueryNorm::none : models::QueryNorm::head;
    traits_.attention_scale = models::usual_attention_scale(traits_);
    constexpr int kUnstated = 512;  // what the original takes
    max_seq_len_ = config.max_seq_len;
    traits_.context = static_cast<std::size_t>(config.max_seq_len > 0 ? config.max_seq_len : kUnstated);
  }

  void check_norm(const Layer* norm) const {
    if (layers::norm_width(norm->config) != traits_.width ||
        layers::effective_eps(norm->config.rms_norm_eps) != traits_.norm_eps) {
      finder_.refuse("its norms differ in width or epsilon");
    }
  }

  void read_biases(std::size_t block, const Layer& attention, const layers::AttentionDims& dims,
                   const Layer& feed_forward, const layers::SwiGluParts& parts) {
    if (dims.biased) {
      const std::size_t first = dims.matrix_values();
      output_biased_ = output_biased_ || any_bias(attention, first + dims.projected(), dims.width);
      biased_ = biased_ || output_biased_ || any_bias(attention, first, dims.projected());
    }
    require(
        feed_forward.config.no_bias || !any_bias(feed_forward, parts.matrix_values(), 2 * parts.inner + parts.width),
        block, "SwiGLU has biases that are not 0");
  }

  void read_ends() {
    const LayerConfig &embedding = decoder_.embedding->config, &head = decoder_.head->config;
    const bool fits = static_cast<std::size_t>(embedding.embedding_dim) == traits_.width &&
                      static_cast<std::size_t>(head.input_height) == traits_.width &&
                      head.output_height == embedding.vocab_size;
    if (!fits) finder_.refuse("the embedding, the blocks and the head differ in their sizes");
    check_norm(decoder_.norm);
    traits_.vocabulary = static_cast<std::size_t>(embedding.vocab_size);
    traits_.tied_output = same_weights(*decoder_.embedding, *decoder_.head);
  }

  /// Whether models of this architecture have the biases that this one has.
  bool can_be_biased(Architecture architecture) const {
    using enum Architecture;
    if (!biased_) return true;
    if (architecture == qwen2) return !output_biased_;
    return architecture == llama || architecture == qwen3 || architecture == smollm3 || architecture == granite;
  }

  Traits as(Architecture architecture) const {
    Traits traits = traits_;
    traits.architecture = architecture;
    return traits;
  }

  bool reads_back(const Traits& traits) const {
    try {
      return models::config_traits(files::JsonFile::parse(models::config_text(traits, extras()), "config.json")) ==
             traits;
    } catch (const Error&) {
      return false;  // sizes that it cannot have, such as an odd number of values in a head
    }
  }

  const Decoder& decoder_;
  const DecoderFinder& finder_;
  Traits traits_;
  int max_seq_len_ = 0;
  std::size_t inner_ = 0;
  bool biased_ = false, output_biased_ = false;
};

// ---- its tensors

/// What the tensors of a model view.
struct ModelOwner {
  std::shared_ptr<const Network> network;
  std::vector<std::shared_ptr<const Version>> versions;
  std::list<std::vector<float>> made;
};

class TensorMaker {
 public:
  TensorMaker(const Decoder& decoder, ModelOwner& owner) : decoder_(decoder), owner_(owner) {}

  StoredTensor make(const models::LayoutTensor& wanted, std::size_t block) {
    StoredTensor tensor = content(wanted, block);
    tensor.name = wanted.name;
    tensor.type = tensor.format->name();
    tensor.shape = wanted.shape;
    return tensor;
  }

 private:
  struct Place {
    const Layer* layer;
    std::size_t first;
  };

  /// Where the weights of a role begin. Those of one tensor follow each other.
  Place place_of(Role wanted, std::size_t block) const {
    const auto& [attention, feed_forward] = decoder_.blocks[block];
    const layers::AttentionDims dims = layers::attention_dims(attention.core->config);
    const layers::SwiGluParts parts = layers::swiglu_parts(feed_forward.core->config);
    const std::pair<Role, Place> places[] = {
        {Role::token_embedding, {decoder_.embedding, 0}},
        {Role::output_norm, {decoder_.norm, 0}},
        {Role::output, {decoder_.head, 0}},
        {Role::attention_norm, {attention.before, 0}},
        {Role::query, {attention.core, 0}},
        {Role::key, {attention.core, dims.queries * dims.width}},
        {Role::value, {attention.core, (dims.queries + dims.keys) * dims.width}},
        {Role::attention_output, {attention.core, dims.projected() * dims.width}},
        {Role::query_bias, {attention.core, dims.matrix_values()}},
        {Role::key_bias, {attention.core, dims.matrix_values() + dims.queries}},
        {Role::value_bias, {attention.core, dims.matrix_values() + dims.queries + dims.keys}},
        {Role::attention_output_bias, {attention.core, dims.matrix_values() + dims.projected()}},
        {Role::attention_post_norm, {attention.after, 0}},
        {Role::feed_forward_norm, {feed_forward.before, 0}},
        {Role::gate, {feed_forward.core, parts.gate.matrix.first}},
        {Role::up, {feed_forward.core, parts.up.matrix.first}},
        {Role::down, {feed_forward.core, parts.down.matrix.first}},
        {Role::feed_forward_post_norm, {feed_forward.after, 0}}};
    return std::ranges::find(places, wanted, &std::pair<Role, Place>::first)->second;
  }

  StoredTensor content(const models::LayoutTensor& wanted, std::size_t block) {
    const Role role = wanted.roles.front();
    const LayerConfig& attention = decoder_.blocks[block].attention.core->config;
    if (role == Role::query_norm) return floats(attention.q_norm);
    if (role == Role::key_norm) return floats(attention.k_norm);
    const Place place = place_of(role, block);
    const bool bias = role == Role::query_bias || role == Role::key_bias || role == Role::value_bias ||
                      role == Role::attention_output_bias;
    if (bias && attention.no_bias) return floats(std::vector<float>(wanted.shape.elements()));
    if (std::optional<StoredTensor> packed = slice(place, wanted.shape)) return std::move(*packed);
    return floats(values_of(*place.layer, place.first, wanted.shape.elements()));
  }

  StoredTensor floats(std::vector<float> values) {
    StoredTensor tensor;
    tensor.format = DType::float32;
    tensor.bytes = std::as_bytes(std::span<const float>(owner_.made.emplace_back(std::move(values))));
    return tensor;
  }

  /// The codes of a matrix as the layer has them; none where they share bytes, blocks or scales with others.
  std::optional<StoredTensor> slice(const Place& place, const Shape& shape) {
    if (shape.rank() < 2) return std::nullopt;  // vectors are wide in model files
    const WeightStore& store = *place.layer->weights;
    const std::shared_ptr<const Version> version = store.morph(place.layer->config.scheme());
    const Format format = version ? version->scheme().format : Format(DType::float32);
    const std::size_t count = shape.elements(), cols = shape.last();
    const bool whole_rows = cols % static_cast<std::size_t>(format.block_values()) == 0;
    if (!whole_rows || !begins_anew(format, place.first) || !begins_anew(format, place.first + count)) {
      return std::nullopt;
    }
    StoredTensor tensor;
    tensor.format = format;
    const std::span<const std::byte> bytes = version ? version->codes() : std::as_bytes(store.master());
    tensor.bytes = bytes.subspan(packed_bytes(format, place.first), packed_bytes(format, count));
    if (!version) return tensor;
    if (const std::span<const float> scales = version->scales(); !scales.empty()) {
      const std::size_t group = version->scale_group();
      const bool single = scales.size() == 1;
      if (!single && (place.first % group != 0 || cols % group != 0)) return std::nullopt;
      const std::size_t first = single ? 0 : place.first / group, own = single ? 1 : count / group;
      const auto copy = [&](std::span<const float> all, std::vector<float>& to) {
        if (!all.empty()) std::ranges::copy(all.subspan(first, own), std::back_inserter(to));
      };
      copy(scales, tensor.scale_values);
      copy(version->zero_points(), tensor.zero_points);
      tensor.scale_group = single ? count : group;
    }
    owner_.versions.push_back(version);
    return tensor;
  }

  const Decoder& decoder_;
  ModelOwner& owner_;
};

/// The special tokens that config.json repeats.
void add_special_tokens(std::span<const files::SideFile> side_files, const std::string& path,
                        models::ConfigExtras& extras) {
  const auto file = std::ranges::find(side_files, "generation_config.json", &files::SideFile::name);
  if (file == side_files.end()) return;
  const files::JsonFile config = files::JsonFile::parse(file->text, fmt::format("{}, {}", path, file->name));
  const auto id = [&](std::string_view key) -> std::optional<std::int32_t> {
    std::optional<files::JsonValue> value = config.root().find(key);
    if (value && value->kind() == files::JsonKind::array) {
      if (value->elements(key).size() == 0) return std::nullopt;
      value = (*value->elements(key).begin()).value;
    }
    if (!value) return std::nullopt;
    return static_cast<std::int32_t>(value->integer(key, 0, models::kMaxVocabulary));
  };
  extras.bos = id("bos_token_id");
  extras.eos = id("eos_token_id");
  extras.padding = id("pad_token_id");
}

std::vector<files::SideFile> tokenizer_files(const Network& network) {
  constexpr std::array<std::string_view, 4> kNames = {"tokenizer.json", "tokenizer_config.json",
                                                      "generation_config.json", "chat_template.jinja"};
  std::vector<files::SideFile> found;
  for (const auto& [name, text] : network.files) {
    if (std::ranges::find(kNames, name) != kNames.end()) found.push_back({name, text});
  }
  return found;
}

}  // namespace

files::TensorFile model_of(std::shared_ptr<const Network> network, const std::string& path) {
  try {
    network->check();
  } catch (const Error& error) {
    throw FormatError(path, 0, error.what());
  }
  const DecoderFinder finder(path);
  const Decoder decoder = finder.find(*network);
  TraitsFinder traits_finder(decoder, finder);
  const Traits traits = traits_finder.find(network->id);
  models::ConfigExtras extras = traits_finder.extras();
  std::vector<files::SideFile> side_files = tokenizer_files(*network);
  add_special_tokens(side_files, path, extras);
  side_files.push_back({"config.json", models::config_text(traits, extras)});

  const auto owner = std::make_shared<ModelOwner>();
  owner->network = std::move(network);
  TensorMaker maker(decoder, *owner);
  std::vector<StoredTensor> tensors;
  models::for_each_tensor(
      traits, models::usual_naming(traits, false), [&](const models::LayoutTensor& wanted, std::size_t block) {
        if (wanted.optional && !traits_finder.biased()) return;
        if (wanted.roles.front() == Role::attention_output_bias && traits.architecture == Architecture::qwen2) {
          return;
        }
        tensors.push_back(maker.make(wanted, block));
      });
  return files::TensorFile::make(files::HuggingFaceFolder::make(path, std::move(side_files)), std::move(tensors),
                                 owner);
}

}  // namespace imago::checkpoint

namespace imago {

files::TensorFile models::open_model(const std::string& path, bool eager) {
  return checkpoint::open_model(path, {.eager = eager});
}

std::optional<files::HuggingFaceFolder> models::stored_tokenizer(const std::string& path) {
  using namespace checkpoint;
  using files::JsonDocument;
  if (!holds_network(path)) return std::nullopt;
  const auto topology = [&] {
    const FileForm form = detect_form(path);
    if (form == FileForm::safetensors || form == FileForm::gguf) {
      return read_tensors_topology(files::TensorFile::open(path));
    }
    const MappedFile file = MappedFile::open(path);
    if (form == FileForm::entity) return measure_entity(file.bytes(), path).network;
    const JsonDocument document = JsonDocument::parse(file.text(), path, {.max_depth = kMaxCheckpointJsonDepth});
    return read_network(document.root(), {.weights = WeightsInJson::ignore});
  };
  std::vector<files::SideFile> side_files = tokenizer_files(topology());
  if (std::ranges::find(side_files, "tokenizer.json", &files::SideFile::name) == side_files.end()) {
    throw UnsupportedError(fmt::format("{}: this network was saved without a tokenizer", path));
  }
  side_files.push_back({"config.json", "{}"});
  return files::HuggingFaceFolder::make(path, std::move(side_files));
}

}  // namespace imago
