// Decoders in the style of Llama out of Hugging Face folders, and out of GGUF files by way of the folder that they
// would become. What these layers cannot compute (scaled rotary angles, experts, windows) is refused by name: a network
// that answers wrongly is worse than none.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>

#include "base/checked.h"
#include "checkpoint/decoder_network.h"
#include "checkpoint/network_import.h"
#include "files/hugging_face.h"
#include "imago/codec.h"
#include "imago/error.h"
#include "models/recipe_parts.h"
#include "models/traits_reading.h"

namespace imago::checkpoint {

namespace {

using files::TensorFile;
using models::TensorRecipe;

// ---- sources

/// A folder, or the one that a GGUF file would become. The tensors point into the file, which must outlive it.
struct ImportSource {
  std::string path;
  files::JsonFile config;
  std::vector<TensorRecipe> tensors;
  std::vector<std::pair<std::string, std::string>> side_files;  // of the tokenizer
  std::vector<std::string> notes;
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
  kNorm3,
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
                             {"", "post_feedforward_layernorm", kNorm3},
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

/// What config.json says about a slot. Vectors are one row; a slot without elements must be empty.
struct SlotShape {
  std::string_view name;  // empty: the slot may be empty
  std::size_t rows = 0, cols = 0;

  std::size_t count() const { return checked_mul(rows, cols, "a matrix of a decoder"); }
};

std::array<SlotShape, kSlots> slot_shapes(const ImportSizes& sizes) {
  const std::size_t d = sizes.width, q = sizes.queries(), k = sizes.keys(), m = sizes.inner, h = sizes.head_values;
  std::array<SlotShape, kSlots> shapes;
  if (sizes.post_norms) {
    shapes[kNorm3] = {"post_feedforward_layernorm", 1, d};
  } else {
    shapes[kNorm1] = {"input_layernorm", 1, d};
  }
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

/// The type of most of what such a layer holds, if it is a wide one that holds the rest too: what is read is then kept.
std::optional<Format> native_type(const WeightStore& weights, std::span<const TensorRecipe* const> matrices) {
  const std::optional<Format> format = stored(*matrices.front()).format;
  if (format != Format(DType::float16) && format != Format(DType::bfloat16)) return std::nullopt;
  if (!std::ranges::all_of(matrices, [&](const TensorRecipe* m) { return stored(*m).format == format; })) {
    return std::nullopt;
  }
  std::size_t exact = 0;
  for (const TensorRecipe* matrix : matrices) exact += matrix->shape.elements();
  const std::span<const float> rest = weights.master().subspan(exact);
  std::vector<std::byte> codes(packed_bytes(*format, rest.size()));
  std::vector<float> back(rest.size());
  encode(*format, rest, {}, codes);
  decode(*format, codes, {}, back);
  return std::ranges::equal(rest, back) ? format : std::nullopt;
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
    const Globals globals = find_globals(others);
    std::vector<Layer> made;
    for (const auto& [index, block] : blocks) made.push_back(make_block(index, block));
    ImportedNetwork result{.network = decoder_network(sizes_.id, make_ends(globals), std::move(made))};
    result.network.files = std::move(source_.side_files);
    result.unmatched = std::move(others);
    result.notes = std::move(notes_);
    result.notes.insert(result.notes.end(), source_.notes.begin(), source_.notes.end());
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
        if (weight != nullptr && shape.cols == 0) {
          fail(*weight, fmt::format("tensor '{}' has no place in such a block", weight->name));
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
    if (const TensorRecipe* scale = block[slot][kScalePart]) apply_scale(tensor, *scale, to, notes_);
  }

  /// A layer whose master is what `slots` hold: all weights, then the biases of matrices, zeros if there are none
  /// (docs/layers.md). Matrices keep 16 bits; norms are float32, as the original has them.
  Layer make_layer(LayerConfig config, const Block& block, std::initializer_list<Slot> slots) {
    config.rms_norm_eps = sizes_.eps;
    WeightStore store(weight_shape(config));
    std::span<float> rest = store.edit_master();
    const auto next = [&](std::size_t count) {
      const std::span<float> part = rest.first(count);
      rest = rest.subspan(count);
      return part;
    };
    std::vector<const TensorRecipe*> matrices;
    config.no_bias = std::ranges::any_of(slots, is_matrix) &&
                     std::ranges::none_of(slots, [&](Slot slot) { return block[slot][kBiasPart] != nullptr; });
    for (const Slot slot : slots) {
      read_weights(block, slot, next(shapes_[slot].count()));
      if (is_matrix(slot)) matrices.push_back(block[slot][kWeightPart]);
    }
    for (const Slot slot : slots) {
      if (!is_matrix(slot)) continue;
      const std::span<float> to = next(shapes_[slot].rows);
      if (const TensorRecipe* bias = block[slot][kBiasPart]) models::apply_recipe(*bias, to);
    }
    if (!matrices.empty()) {
      config.dtype = options_.dtype ? Format(*options_.dtype) : native_type(store, matrices).value_or(config.dtype);
    }
    Layer layer(std::move(config));
    layer.weights = std::move(store);
    return layer;
  }

  Layer make_block(std::size_t index, const Block& block) {
    const auto as_int = [](std::size_t size) { return checked_cast<int>(size, "a size of a decoder"); };
    LayerConfig attention;
    attention.type = LayerType::multi_head_attention;
    attention.activation = Activation::linear;
    attention.d_model = as_int(sizes_.width);
    attention.num_heads = as_int(sizes_.heads);
    attention.num_kv_heads = as_int(sizes_.kv_heads);
    attention.head_dim = as_int(sizes_.head_values);
    attention.query_dim = as_int(sizes_.queries());
    attention.rope_freq_base = sizes_.rope_base;
    attention.max_seq_len = as_int(sizes_.context);
    attention.no_rope = !sizes_.rope_in_block.empty() && !sizes_.rope_in_block[index];
    attention.q_norm = values_of(block[kQueryNorm][kWeightPart]);
    attention.k_norm = values_of(block[kKeyNorm][kWeightPart]);
    attention.inner_norm = values_of(block[kAttentionNorm][kWeightPart]);
    LayerConfig feed_forward = swiglu(as_int(sizes_.width), as_int(sizes_.inner)).config;
    feed_forward.activation = sizes_.activation;
    feed_forward.inner_norm = values_of(block[kFeedForwardNorm][kWeightPart]);
    const auto branch = [&](LayerConfig config, std::initializer_list<Slot> slots, Slot norm) {
      Layer layer = make_layer(std::move(config), block, slots);
      Layer normed = make_layer(rms_norm(as_int(sizes_.width)).config, block, {norm});
      return sizes_.post_norms ? layer_list(std::move(layer), std::move(normed))
                               : layer_list(std::move(normed), std::move(layer));
    };
    return decoder_block(branch(std::move(attention), {kQuery, kKey, kValue, kOutput}, post(kNorm1)),
                         branch(std::move(feed_forward), {kGate, kUp, kDown}, post(kNorm2)));
  }

  /// Where a norm is that comes after its layer and not before it.
  Slot post(Slot before) const { return !sizes_.post_norms ? before : before == kNorm1 ? kNorm2 : kNorm3; }

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

  struct Globals {
    const TensorRecipe *embeddings, *norm, *head;
  };

  void check_global(const TensorRecipe* tensor, std::string_view what, bool is_table) const {
    if (tensor == nullptr) return;
    const bool fits = tensor->shape.rank() == (is_table ? 2u : 1u) && tensor->shape.last() == sizes_.width;
    if (!fits) {
      fail(*tensor, fmt::format("the {} '{}' have the shape {}, but hidden_size is {}", what, tensor->name,
                                tensor->shape.to_string(), sizes_.width));
    }
  }

  Globals find_globals(std::vector<std::string>& others) {
    Globals found{};
    found.embeddings = find_global(
        others, {"model.embed_tokens.weight", "transformer.wte.weight", "embeddings.weight", "embed_tokens.weight"});
    if (found.embeddings == nullptr) {
      throw FormatError(source_.path, 0, "there are no embeddings: no 'embed_tokens.weight'");
    }
    check_global(found.embeddings, "embeddings", true);
    found.norm = find_global(others, {"model.norm.weight", "transformer.ln_f.weight", "ln_f.weight", "norm.weight"});
    check_global(found.norm, "weights of the final norm", false);
    found.head = find_global(others, {"lm_head.weight", "output.weight"});
    check_global(found.head, "weights of the head", true);
    if (found.head == nullptr && sizes_.own_head) {
      throw FormatError(source_.path, 0, "there is no head: no 'lm_head.weight', and the embeddings are not tied");
    }
    if (found.head != nullptr && found.head->shape[0] != found.embeddings->shape[0]) {
      throw FormatError(source_.path, 0,
                        fmt::format("the head is for {} tokens, the embeddings are of {}", found.head->shape[0],
                                    found.embeddings->shape[0]));
    }
    return found;
  }

  Layer make_global(const TensorRecipe& tensor, LayerConfig config) const {
    const WeightShape shape = weight_shape(config);
    WeightStore store(shape);
    models::apply_recipe(tensor, store.edit_master());
    const TensorRecipe* const matrix = &tensor;
    if (shape.rows > 1) config.dtype = native_type(store, {&matrix, 1}).value_or(config.dtype);
    Layer layer(std::move(config));
    layer.weights = std::move(store);
    return layer;
  }

  DecoderEnds make_ends(const Globals& globals) const {
    const int vocabulary = checked_cast<int>(globals.embeddings->shape[0], "the vocabulary of a decoder");
    const int width = checked_cast<int>(sizes_.width, "the width of a decoder");
    DecoderEnds ends{.embedding = make_global(*globals.embeddings, embedding(vocabulary, width).config)};
    if (globals.norm != nullptr) ends.norm = make_global(*globals.norm, rms_norm(width, sizes_.eps).config);
    ends.head =
        make_global(globals.head == nullptr ? *globals.embeddings : *globals.head, dense(width, vocabulary).config);
    return ends;
  }

  ImportSource source_;
  const ImportOptions& options_;
  ImportSizes sizes_;
  std::array<SlotShape, kSlots> shapes_;
  std::vector<std::string> notes_;
};

/// The ends of texts, from a config.json of a folder that has no generation_config.json.
std::string generation_config(const files::JsonValue& config) {
  std::string text;
  for (const std::string_view key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    const auto value = config.find(key);
    if (value) text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", files::quote_json(key), value->source());
  }
  return text.empty() ? text : "{" + text + "}";
}

ImportSource open_folder(const files::TensorFile& file) {
  const files::HuggingFaceFolder& folder = *file.folder();
  ImportSource source{file.path(), folder.config(), {}, {}, {}};
  for (const files::StoredTensor& tensor : file.tensors()) source.tensors.push_back(models::kept_tensor(tensor));
  const auto add = [&](const char* name, const std::optional<files::JsonFile>& json) {
    if (json) source.side_files.emplace_back(name, json->text());
  };
  if (!folder.tokenizer()) return source;
  add("tokenizer.json", folder.tokenizer());
  add("tokenizer_config.json", folder.tokenizer_config());
  add("generation_config.json", folder.generation_config());
  if (!folder.generation_config()) {
    const std::string ids = generation_config(folder.config().root());
    if (!ids.empty()) source.side_files.emplace_back("generation_config.json", ids);
  }
  if (folder.chat_template()) source.side_files.emplace_back("chat_template.jinja", *folder.chat_template());
  return source;
}

ImportSource open_gguf(const files::TensorFile& file) {
  const GgufValue* kind = file.gguf()->find("tokenizer.ggml.model");
  const bool tokenizer = kind != nullptr && kind->string() != models::kNoTokenizer;
  models::ModelRecipe recipe;
  std::optional<std::string> problem;
  try {
    recipe = models::folder_recipe(file, tokenizer);
  } catch (const UnsupportedError& error) {
    if (!tokenizer) throw;
    recipe = models::folder_recipe(file, false);  // again, unless it was the tokenizer
    problem = fmt::format("the tokenizer is left out: {}", error.what());
  }
  std::optional<files::JsonFile> config;
  std::vector<std::pair<std::string, std::string>> others;
  for (files::SideFile& side : recipe.side_files) {
    if (side.name == "config.json") {
      config = files::JsonFile::parse(std::move(side.text), file.path());
    } else {
      others.emplace_back(std::move(side.name), std::move(side.text));
    }
  }
  ImportSource source{file.path(), config.value(), std::move(recipe.tensors), std::move(others), recipe.notes};
  if (problem) source.notes.push_back(std::move(*problem));
  return source;
}

}  // namespace

ImportedNetwork import_decoder(const TensorFile& file, const ImportOptions& options) {
  ImportSource source = file.folder() != nullptr ? open_folder(file) : open_gguf(file);
  const std::optional<models::Traits> traits = known_traits(source.config);
  if (traits && models::usual_naming(*traits, false).fused_qkv) {
    read_import_sizes(source.config, source.path);  // before tensors are asked for that such a model may not have
    source.tensors = models::decoder_recipes(*traits, models::DecoderTensors(file, *traits), {});
  }
  return DecoderImport(std::move(source), options).run();
}

}  // namespace imago::checkpoint
