// Decoders in the style of Llama out of Hugging Face folders, and out of GGUF files by way of the folder that they
// would become. What these layers cannot compute (other norms, scaled rotary angles, experts, windows) is refused by
// the field of config.json that asks for it: a network that answers wrongly is worse than none.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>

#include "base/checked.h"
#include "checkpoint/network_import.h"
#include "files/hugging_face.h"
#include "imago/error.h"
#include "models/recipe_parts.h"

namespace imago::checkpoint {

namespace {

using files::TensorFile;
using models::TensorRecipe;

// ---- sources

/// A folder, or the one that a GGUF file would become: config.json, and how each of its tensors is made. Both must
/// outlive it.
struct ImportSource {
  std::string path;
  files::JsonValue config;
  std::vector<TensorRecipe> tensors;
};

const files::StoredTensor& stored(const TensorRecipe& tensor) { return *tensor.parts.front().tensor; }

[[noreturn]] void fail(const TensorRecipe& tensor, std::string_view problem) {
  throw FormatError(stored(tensor).file, stored(tensor).offset, problem);
}

std::vector<float> values_of(const TensorRecipe* tensor) {
  if (tensor == nullptr) return {};
  std::vector<float> values(tensor->shape.elements());
  models::apply_recipe(*tensor, values);
  return values;
}

// ---- names

enum Slot : std::size_t {
  kNorm1,
  kQuery,
  kKey,
  kValue,
  kOutput,
  kQueryNorm,
  kKeyNorm,
  kAttentionNorm,
  kNorm2,
  kGate,
  kUp,
  kDown,
  kFeedForwardNorm,
  kSlots
};
enum Part : std::size_t { kWeightPart, kBiasPart, kScalePart, kParts };

struct Name {
  std::size_t block;
  Slot slot;
  Part part;
};

std::optional<std::pair<std::size_t, std::string_view>> block_of(std::string_view name) {
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    const std::string_view component = name.substr(at, end - at);
    at = end + 1;
    if ((component != "layers" && component != "h") || at >= name.size()) continue;
    std::uint32_t index = 0;
    const char* first = name.data() + at;
    const auto [rest, error] = std::from_chars(first, name.data() + name.size(), index);
    if (error != std::errc() || rest == name.data() + name.size() || *rest != '.' || index >= kMaxImportSize) continue;
    return std::pair(std::size_t{index}, name.substr(static_cast<std::size_t>(rest + 1 - name.data())));
  }
  return std::nullopt;
}

std::optional<Name> parse_name(std::string_view name) {
  const auto found = block_of(name);
  if (!found) return std::nullopt;
  const std::string_view rest = found->second;
  struct Rule {
    std::string_view all, any;  // both must be found
    Slot slot;
  };
  constexpr Rule kRules[] = {{"", "inner_attn_ln", kAttentionNorm},
                             {"", "attn_sub_norm", kAttentionNorm},
                             {"", "ffn_layernorm", kFeedForwardNorm},
                             {"", "ffn_sub_norm", kFeedForwardNorm},
                             {"", "input_layernorm", kNorm1},
                             {"", "ln_1", kNorm1},
                             {"attn", "q_proj", kQuery},
                             {"attn", "k_proj", kKey},
                             {"attn", "v_proj", kValue},
                             {"attn", "o_proj", kOutput},
                             {"attn", "q_norm", kQueryNorm},
                             {"attn", "k_norm", kKeyNorm},
                             {"", "post_attention_layernorm", kNorm2},
                             {"", "ln_2", kNorm2},
                             {"mlp", "gate_proj", kGate},
                             {"mlp", "w1", kGate},
                             {"mlp", "up_proj", kUp},
                             {"mlp", "w3", kUp},
                             {"mlp", "down_proj", kDown},
                             {"mlp", "w2", kDown}};
  for (const Rule& rule : kRules) {
    if (rest.find(rule.all) == std::string_view::npos || rest.find(rule.any) == std::string_view::npos) continue;
    const Part part = rest.ends_with(".bias") ? kBiasPart : rest.ends_with("weight_scale") ? kScalePart : kWeightPart;
    return Name{found->first, rule.slot, part};
  }
  return std::nullopt;
}

/// What the tensors of a block are, and null for what it does not have.
using Block = std::array<std::array<const TensorRecipe*, kParts>, kSlots>;

bool is_matrix(std::size_t slot) { return (slot >= kQuery && slot <= kOutput) || (slot >= kGate && slot <= kDown); }

/// Puts every tensor of a block in its slot; lists the others.
std::map<std::size_t, Block> sort_tensors(const ImportSource& source, std::vector<std::string>& others) {
  std::map<std::size_t, Block> blocks;
  for (const TensorRecipe& tensor : source.tensors) {
    const std::optional<Name> name = parse_name(tensor.name);
    if (!name || (name->part != kWeightPart && !is_matrix(name->slot))) {
      others.push_back(tensor.name);
      continue;
    }
    const TensorRecipe*& place = blocks[name->block][name->slot][name->part];
    if (place != nullptr) {
      fail(tensor, fmt::format("tensors '{}' and '{}' are for the same place", place->name, tensor.name));
    }
    place = &tensor;
  }
  return blocks;
}

// ---- weights

void expect_count(const TensorRecipe& tensor, std::size_t count) {
  if (tensor.shape.elements() == count) return;
  fail(tensor, fmt::format("tensor '{}' has the shape {}, but config.json asks for {} elements", tensor.name,
                           tensor.shape.to_string(), count));
}

/// Codes of BitNet: byte (r, c) has four of them, for the rows r, r + rows/4, …
bool is_packed(const TensorRecipe& tensor, std::size_t rows, std::size_t cols) {
  return stored(tensor).safetensors_type == SafetensorsType::u8 && rows % 4 == 0 &&
         tensor.shape.elements() == rows / 4 * cols;
}

void unpack_ternary(const TensorRecipe& tensor, std::size_t rows, std::size_t cols, std::span<float> to) {
  constexpr float kValues[] = {-1, 0, 1, 0};
  const std::size_t quarter = rows / 4;
  for (std::size_t r = 0; r < quarter; ++r) {
    for (std::size_t c = 0; c < cols; ++c) {
      const auto byte = std::to_integer<unsigned>(stored(tensor).bytes[r * cols + c]);
      for (std::size_t j = 0; j < 4; ++j) to[(j * quarter + r) * cols + c] = kValues[byte >> (2 * j) & 3];
    }
  }
}

void apply_scale(const TensorRecipe& tensor, const TensorRecipe& scale_tensor, std::span<float> codes,
                 std::vector<std::string>& notes) {
  const float scale = values_of(&scale_tensor).front();
  if (!(scale > 0) || !std::isfinite(scale)) {
    fail(scale_tensor, fmt::format("the scale '{}' is {}, not above 0", scale_tensor.name, scale));
  }
  if (std::ranges::all_of(codes, [](float code) { return code == 0 || code == 1 || code == -1; })) {
    for (float& code : codes) code *= scale;
  } else {
    notes.push_back(fmt::format("'{}' is not ternary, so '{}' was not applied", tensor.name, scale_tensor.name));
  }
}

/// What config.json says about a slot. Vectors are one row.
struct SlotShape {
  std::string_view name;  // empty: the slot may be empty
  std::size_t rows = 0, cols = 0;

  std::size_t count() const { return checked_mul(rows, cols, "a matrix of a decoder"); }
};

std::array<SlotShape, kSlots> slot_shapes(const ImportSizes& sizes) {
  const std::size_t d = sizes.width, q = sizes.queries(), k = sizes.keys(), m = sizes.inner, h = sizes.head_values;
  std::array<SlotShape, kSlots> shapes;
  shapes[kNorm1] = {"input_layernorm", 1, d};
  shapes[kQuery] = {"q_proj", q, d};
  shapes[kKey] = {"k_proj", k, d};
  shapes[kValue] = {"v_proj", k, d};
  shapes[kOutput] = {"o_proj", d, q};
  shapes[kQueryNorm] = shapes[kKeyNorm] = {"", 1, h};
  shapes[kAttentionNorm] = {"", 1, q};
  shapes[kNorm2] = {"post_attention_layernorm", 1, d};
  shapes[kGate] = {"gate_proj", m, d};
  shapes[kUp] = {"up_proj", m, d};
  shapes[kDown] = {"down_proj", d, m};
  shapes[kFeedForwardNorm] = {"", 1, m};
  return shapes;
}

class DecoderImport {
 public:
  DecoderImport(ImportSource source, const ImportOptions& options) : source_(std::move(source)), options_(options) {}

  ImportedNetwork run() {
    // First, so that a kind of model that is not known is not taken for a file with wrong tensors.
    sizes_ = read_import_sizes(source_.config, source_.path);
    std::vector<std::string> others;
    const std::map<std::size_t, Block> blocks = sort_tensors(source_, others);
    if (blocks.empty()) {
      throw FormatError(source_.path, 0, "no tensor belongs to a block: names have no 'layers.0.' or 'h.0.' in them");
    }
    if (sizes_.blocks == 0) sizes_.blocks = blocks.rbegin()->first + 1;
    shapes_ = slot_shapes(sizes_);
    check(blocks);
    ImportedNetwork result{.network = Network(1, 1, 1, checked_cast<int>(4 * sizes_.blocks, "layers of a decoder"))};
    result.is_decoder = true;
    result.network.id = "decoder";
    notes_ = &result.notes;
    for (const auto& [index, block] : blocks) make_block(result.network, index, block);
    read_globals(result, others);
    result.unmatched = std::move(others);
    return result;
  }

 private:
  /// All that is needed is there and has the right size, before anything is allocated.
  void check(const std::map<std::size_t, Block>& blocks) const {
    if (blocks.size() != sizes_.blocks || blocks.rbegin()->first + 1 != sizes_.blocks) {
      throw FormatError(source_.path, 0,
                        fmt::format("config.json states {} blocks, but the tensors are of {} with indices up to {}",
                                    sizes_.blocks, blocks.size(), blocks.rbegin()->first));
    }
    for (const auto& [index, block] : blocks) {
      for (std::size_t slot = 0; slot < kSlots; ++slot) {
        const SlotShape& shape = shapes_[slot];
        const auto& [weight, bias, scale] = block[slot];
        if (weight == nullptr && !shape.name.empty()) {
          throw FormatError(source_.path, 0, fmt::format("block {} has no {}", index, shape.name));
        }
        const bool packed = weight != nullptr && is_matrix(slot) && is_packed(*weight, shape.rows, shape.cols);
        if (weight != nullptr && !packed) expect_count(*weight, shape.count());
        if (bias != nullptr) expect_count(*bias, shape.rows);
        if (scale != nullptr) expect_count(*scale, 1);
      }
    }
  }

  void read_weights(const Block& block, Slot slot, std::span<float> to) {
    const TensorRecipe& tensor = *block[slot][kWeightPart];
    if (is_matrix(slot) && is_packed(tensor, shapes_[slot].rows, shapes_[slot].cols)) {
      unpack_ternary(tensor, shapes_[slot].rows, shapes_[slot].cols, to);
    } else {
      models::apply_recipe(tensor, to);
    }
    if (const TensorRecipe* scale = block[slot][kScalePart]) apply_scale(tensor, *scale, to, *notes_);
  }

  /// A layer whose master is what `slots` hold: all weights, then the biases of matrices, zeros if there are none
  /// (docs/layers.md).
  void fill(Layer& layer, LayerConfig config, const Block& block, std::initializer_list<Slot> slots) {
    config.rms_norm_eps = sizes_.eps;
    WeightStore store(weight_shape(config));
    std::span<float> rest = store.edit_master();
    const auto next = [&](std::size_t count) {
      const std::span<float> part = rest.first(count);
      rest = rest.subspan(count);
      return part;
    };
    for (const Slot slot : slots) read_weights(block, slot, next(shapes_[slot].count()));
    for (const Slot slot : slots) {
      if (!is_matrix(slot)) continue;
      const std::span<float> to = next(shapes_[slot].rows);
      if (const TensorRecipe* bias = block[slot][kBiasPart]) models::apply_recipe(*bias, to);
    }
    layer.config = std::move(config);
    layer.weights = std::move(store);
  }

  void make_block(Network& network, std::size_t index, const Block& block) {
    const auto as_int = [](std::size_t size) { return checked_cast<int>(size, "a size of a decoder"); };
    const std::span<Layer> layers = network.layers().subspan(4 * index, 4);
    LayerConfig attention;
    attention.type = LayerType::multi_head_attention;
    attention.activation = Activation::linear;
    attention.d_model = as_int(sizes_.width);
    attention.num_heads = as_int(sizes_.heads);
    attention.num_kv_heads = as_int(sizes_.kv_heads);
    attention.head_dim = as_int(sizes_.head_values);
    attention.query_dim = as_int(sizes_.queries());
    attention.rope_freq_base = sizes_.rope_base;
    attention.q_norm = values_of(block[kQueryNorm][kWeightPart]);
    attention.k_norm = values_of(block[kKeyNorm][kWeightPart]);
    attention.inner_norm = values_of(block[kAttentionNorm][kWeightPart]);
    if (options_.dtype) attention.dtype = *options_.dtype;
    LayerConfig feed_forward = swiglu(as_int(sizes_.width), as_int(sizes_.inner)).config;
    feed_forward.activation = sizes_.activation;
    feed_forward.inner_norm = values_of(block[kFeedForwardNorm][kWeightPart]);
    if (options_.dtype) feed_forward.dtype = *options_.dtype;
    const LayerConfig norm = rms_norm(as_int(sizes_.width)).config;
    fill(layers[0], norm, block, {kNorm1});
    fill(layers[1], std::move(attention), block, {kQuery, kKey, kValue, kOutput});
    fill(layers[2], norm, block, {kNorm2});
    fill(layers[3], std::move(feed_forward), block, {kGate, kUp, kDown});
  }

  /// The first of `names` that a tensor outside the blocks has, as a whole or as its end.
  const TensorRecipe* find_global(std::vector<std::string>& others, std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) {
      for (const bool whole : {true, false}) {
        const auto found = std::ranges::find_if(others, [&](const std::string& other) {
          return !block_of(other) && (whole ? other == name : other.ends_with(name));
        });
        if (found == others.end()) continue;
        const auto tensor = std::ranges::find(source_.tensors, *found, &TensorRecipe::name);
        others.erase(found);
        return &*tensor;
      }
    }
    return nullptr;
  }

  Tensor<float> read_global(const TensorRecipe* tensor, std::string_view what, bool is_table) const {
    if (tensor == nullptr) return Tensor<float>(Shape{0});
    const bool fits = tensor->shape.rank() == (is_table ? 2u : 1u) && tensor->shape.last() == sizes_.width;
    if (!fits) {
      fail(*tensor, fmt::format("the {} '{}' have the shape {}, but hidden_size is {}", what, tensor->name,
                                tensor->shape.to_string(), sizes_.width));
    }
    return Tensor<float>(tensor->shape, values_of(tensor));
  }

  void read_globals(ImportedNetwork& result, std::vector<std::string>& others) {
    const TensorRecipe* embeddings = find_global(
        others, {"model.embed_tokens.weight", "transformer.wte.weight", "embeddings.weight", "embed_tokens.weight"});
    if (embeddings == nullptr) throw FormatError(source_.path, 0, "there are no embeddings: no 'embed_tokens.weight'");
    result.embeddings = read_global(embeddings, "embeddings", true);
    const TensorRecipe* norm =
        find_global(others, {"model.norm.weight", "transformer.ln_f.weight", "ln_f.weight", "norm.weight"});
    result.final_norm = read_global(norm, "weights of the final norm", false);
    result.head = read_global(find_global(others, {"lm_head.weight", "output.weight"}), "weights of the head", true);
    if (result.head.size() != 0 && result.head.shape()[0] != result.embeddings.shape()[0]) {
      throw FormatError(source_.path, 0,
                        fmt::format("the head is for {} tokens, the embeddings are of {}", result.head.shape()[0],
                                    result.embeddings.shape()[0]));
    }
  }

  const ImportSource source_;
  const ImportOptions& options_;
  ImportSizes sizes_;
  std::array<SlotShape, kSlots> shapes_;
  std::vector<std::string>* notes_ = nullptr;
};

}  // namespace

ImportedNetwork import_decoder(const TensorFile& file, const ImportOptions& options) {
  if (file.folder() != nullptr) {
    ImportSource source{file.path(), file.folder()->config().root(), {}};
    for (const files::StoredTensor& tensor : file.tensors()) source.tensors.push_back(models::kept_tensor(tensor));
    return DecoderImport(std::move(source), options).run();
  }
  const models::ModelRecipe recipe = models::folder_recipe(file, false);
  const auto text = std::ranges::find(recipe.side_files, "config.json", &files::HuggingFaceWriter::SideFile::name);
  const files::JsonDocument config = files::JsonDocument::parse(text->text, file.path());
  ImportedNetwork imported = DecoderImport({file.path(), config.root(), recipe.tensors}, options).run();
  imported.notes.insert(imported.notes.end(), recipe.notes.begin(), recipe.notes.end());
  return imported;
}

}  // namespace imago::checkpoint
