// Decoders in the style of Llama out of Hugging Face folders, and out of GGUF files by way of
// the folder that they would become. What these layers cannot
// compute (other norms, scaled rotary angles, experts, windows) is refused by the field of config.json that asks for
// it: a network that answers wrongly is worse than none.

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

// ---- sources

/// A tensor under the name that Hugging Face gives it: as it lies in the file, or made of it by a recipe.
struct ImportTensor {
  std::string name;
  Shape shape;
  const files::StoredTensor* stored = nullptr;   // the first of them, where there are several
  const models::TensorRecipe* recipe = nullptr;  // none: as it lies there

  void read(std::span<float> out) const {
    recipe == nullptr ? files::decode_tensor(*stored, 0, out) : models::apply_recipe(*recipe, out);
  }
  [[noreturn]] void fail(std::string_view problem) const { throw FormatError(stored->file, stored->offset, problem); }
};

std::vector<float> values_of(const ImportTensor& tensor) {
  std::vector<float> values(tensor.shape.elements());
  tensor.read(values);
  return values;
}

/// A folder, or what stands in for one: config.json and tensors.
struct ImportSource {
  std::string path;
  files::JsonValue config;
  std::vector<ImportTensor> tensors;
};

ImportSource folder_source(const TensorFile& file) {
  ImportSource source{file.path(), file.folder()->config().root(), {}};
  for (const files::StoredTensor& tensor : file.tensors()) {
    source.tensors.push_back({tensor.name, tensor.shape, &tensor, nullptr});
  }
  return source;
}

/// Tensors of a GGUF file, made by a recipe. Recipe and config must outlive the result.
ImportSource recipe_source(const std::string& path, const models::ModelRecipe& recipe,
                           const files::JsonDocument& config) {
  ImportSource source{path, config.root(), {}};
  for (const models::TensorRecipe& tensor : recipe.tensors) {
    source.tensors.push_back({tensor.name, tensor.shape, tensor.parts.front().tensor, &tensor});
  }
  return source;
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
enum class Part : std::uint8_t { weight, bias, scale };

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
    const Part part = rest.ends_with(".bias")          ? Part::bias
                      : rest.ends_with("weight_scale") ? Part::scale
                                                       : Part::weight;
    return Name{found->first, rule.slot, part};
  }
  return std::nullopt;
}

struct Found {
  const ImportTensor* weight = nullptr;
  const ImportTensor* bias = nullptr;
  const ImportTensor* scale = nullptr;
};
using Block = std::array<Found, kSlots>;

bool is_matrix(Slot slot) { return (slot >= kQuery && slot <= kOutput) || (slot >= kGate && slot <= kDown); }

/// Every tensor of a block to its slot; the others are listed.
std::map<std::size_t, Block> sort_tensors(const ImportSource& source, std::vector<std::string>& others) {
  std::map<std::size_t, Block> blocks;
  for (const ImportTensor& tensor : source.tensors) {
    const std::optional<Name> name = parse_name(tensor.name);
    if (!name || (name->part != Part::weight && !is_matrix(name->slot))) {
      others.push_back(tensor.name);
      continue;
    }
    Found& found = blocks[name->block][name->slot];
    const ImportTensor*& place = name->part == Part::bias    ? found.bias
                                 : name->part == Part::scale ? found.scale
                                                             : found.weight;
    if (place != nullptr) {
      tensor.fail(fmt::format("tensors '{}' and '{}' are for the same place", place->name, tensor.name));
    }
    place = &tensor;
  }
  return blocks;
}

// ---- weights

void expect_count(const ImportTensor& tensor, std::size_t count) {
  if (tensor.shape.elements() == count) return;
  tensor.fail(fmt::format("tensor '{}' has the shape {}, but config.json asks for {} elements", tensor.name,
                          tensor.shape.to_string(), count));
}

/// Codes of BitNet: byte (r, c) has four of them, for the rows r, r + rows/4, …
bool is_packed(const ImportTensor& tensor, std::size_t rows, std::size_t cols) {
  return tensor.stored->safetensors_type == SafetensorsType::u8 && rows % 4 == 0 &&
         tensor.shape.elements() == rows / 4 * cols;
}

void unpack_ternary(const ImportTensor& tensor, std::size_t rows, std::size_t cols, std::span<float> to) {
  constexpr float kValues[] = {-1, 0, 1, 0};
  const std::size_t quarter = rows / 4;
  for (std::size_t r = 0; r < quarter; ++r) {
    for (std::size_t c = 0; c < cols; ++c) {
      const auto byte = std::to_integer<unsigned>(tensor.stored->bytes[r * cols + c]);
      for (std::size_t j = 0; j < 4; ++j) to[(j * quarter + r) * cols + c] = kValues[byte >> (2 * j) & 3];
    }
  }
}

/// Fills masters slot after slot, in the order of docs/layers.md.
class MasterWriter {
 public:
  MasterWriter(const Block& block, std::size_t count, std::vector<std::string>& notes)
      : block_(block), notes_(notes), store_(1, count), master_(store_.edit_master()) {}

  void matrix(Slot slot, std::size_t rows, std::size_t cols) {
    const ImportTensor& tensor = *block_[slot].weight;
    const std::span<float> to = next(rows * cols);
    if (is_packed(tensor, rows, cols)) {
      unpack_ternary(tensor, rows, cols, to);
    } else {
      tensor.read(to);
    }
    if (block_[slot].scale != nullptr) apply_scale(tensor, *block_[slot].scale, to);
  }
  void vector(const ImportTensor* tensor, std::size_t count) {
    const std::span<float> to = next(count);
    if (tensor != nullptr) tensor->read(to);
  }
  WeightStore take() { return std::move(store_); }

 private:
  std::span<float> next(std::size_t count) {
    const std::span<float> part = master_.subspan(used_, count);
    used_ += count;
    return part;
  }
  void apply_scale(const ImportTensor& tensor, const ImportTensor& stored, std::span<float> to) {
    float scale = 0;
    stored.read({&scale, 1});
    if (!(scale > 0) || !std::isfinite(scale)) {
      stored.fail(fmt::format("the scale '{}' is {}, not above 0", stored.name, scale));
    }
    if (std::ranges::all_of(to, [](float code) { return code == 0 || code == 1 || code == -1; })) {
      for (float& code : to) code *= scale;
    } else {
      notes_.push_back(fmt::format("'{}' is not ternary, so '{}' was not applied", tensor.name, stored.name));
    }
  }

  const Block& block_;
  std::vector<std::string>& notes_;
  WeightStore store_;
  std::span<float> master_;
  std::size_t used_ = 0;
};

class DecoderImport {
 public:
  DecoderImport(const ImportSource& source, const ImportOptions& options) : source_(source), options_(options) {}

  ImportedNetwork run() {
    // First, so that a kind of model that is not known is not taken for a file with wrong tensors.
    sizes_ = read_import_sizes(source_.config, source_.path);
    std::vector<std::string> others;
    const std::map<std::size_t, Block> blocks = sort_tensors(source_, others);
    if (blocks.empty()) {
      throw FormatError(source_.path, 0, "no tensor belongs to a block: names have no 'layers.0.' or 'h.0.' in them");
    }
    if (sizes_.blocks == 0) sizes_.blocks = blocks.rbegin()->first + 1;
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
    const std::size_t d = sizes_.width, q = sizes_.queries(), k = sizes_.keys(), m = sizes_.inner;
    struct Want {
      Slot slot;
      std::string_view role;
      std::size_t rows, cols;
    };
    const Want wanted[] = {
        {kNorm1, "input_layernorm", 1, d}, {kQuery, "q_proj", q, d},  {kKey, "k_proj", k, d},
        {kValue, "v_proj", k, d},          {kOutput, "o_proj", d, q}, {kNorm2, "post_attention_layernorm", 1, d},
        {kGate, "gate_proj", m, d},        {kUp, "up_proj", m, d},    {kDown, "down_proj", d, m}};
    for (const auto& [index, block] : blocks) {
      for (const Want& want : wanted) {
        const Found& found = block[want.slot];
        if (found.weight == nullptr) {
          throw FormatError(source_.path, 0, fmt::format("block {} has no {}", index, want.role));
        }
        if (!is_matrix(want.slot) || !is_packed(*found.weight, want.rows, want.cols)) {
          expect_count(*found.weight, checked_mul(want.rows, want.cols, "a matrix of a decoder"));
        }
        if (found.bias != nullptr) expect_count(*found.bias, want.rows);
        if (found.scale != nullptr) expect_count(*found.scale, 1);
      }
      if (const ImportTensor* norm = block[kAttentionNorm].weight) expect_count(*norm, q);
      if (const ImportTensor* norm = block[kFeedForwardNorm].weight) expect_count(*norm, m);
      for (const Slot slot : {kQueryNorm, kKeyNorm}) {
        if (const ImportTensor* norm = block[slot].weight) expect_count(*norm, sizes_.head_values);
      }
    }
  }

  static std::vector<float> values_or_none(const Found& found) {
    return found.weight == nullptr ? std::vector<float>() : values_of(*found.weight);
  }

  void make_block(Network& network, std::size_t index, const Block& block) {
    const auto as_int = [](std::size_t size) { return checked_cast<int>(size, "a size of a decoder"); };
    const std::size_t d = sizes_.width, q = sizes_.queries(), k = sizes_.keys(), m = sizes_.inner;
    const std::span<Layer> layers = network.layers().subspan(4 * index, 4);
    const auto put = [&](Layer& layer, LayerConfig config, auto&& fill) {
      config.rms_norm_eps = sizes_.eps;
      const std::size_t count = weight_shape(config).count();
      MasterWriter master(block, count, *notes_);
      fill(master);
      layer.config = std::move(config);
      layer.weights = master.take();
    };
    for (const auto& [place, slot] : {std::pair(0, kNorm1), std::pair(2, kNorm2)}) {
      LayerConfig config = rms_norm(as_int(d)).config;
      const ImportTensor* gamma = block[slot].weight;
      put(layers[static_cast<std::size_t>(place)], std::move(config), [&](MasterWriter& to) { to.vector(gamma, d); });
    }
    LayerConfig attention;
    attention.type = LayerType::multi_head_attention;
    attention.activation = Activation::linear;
    attention.d_model = as_int(d);
    attention.num_heads = as_int(sizes_.heads);
    attention.num_kv_heads = as_int(sizes_.kv_heads);
    attention.head_dim = as_int(sizes_.head_values);
    attention.query_dim = as_int(q);
    attention.rope_freq_base = sizes_.rope_base;
    attention.q_norm = values_or_none(block[kQueryNorm]);
    attention.k_norm = values_or_none(block[kKeyNorm]);
    attention.inner_norm = values_or_none(block[kAttentionNorm]);
    if (options_.dtype) attention.dtype = *options_.dtype;
    put(layers[1], std::move(attention), [&](MasterWriter& to) {
      to.matrix(kQuery, q, d);
      to.matrix(kKey, k, d);
      to.matrix(kValue, k, d);
      to.matrix(kOutput, d, q);
      to.vector(block[kQuery].bias, q);
      to.vector(block[kKey].bias, k);
      to.vector(block[kValue].bias, k);
      to.vector(block[kOutput].bias, d);
    });
    LayerConfig feed_forward = swiglu(as_int(d), as_int(m)).config;
    feed_forward.activation = sizes_.activation;
    feed_forward.inner_norm = values_or_none(block[kFeedForwardNorm]);
    if (options_.dtype) feed_forward.dtype = *options_.dtype;
    put(layers[3], std::move(feed_forward), [&](MasterWriter& to) {
      to.matrix(kGate, m, d);
      to.matrix(kUp, m, d);
      to.matrix(kDown, d, m);
      to.vector(block[kGate].bias, m);
      to.vector(block[kUp].bias, m);
      to.vector(block[kDown].bias, d);
    });
  }

  /// The first of `names` that a tensor outside the blocks has, as a whole or as its end.
  const ImportTensor* find_global(std::vector<std::string>& others, std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) {
      for (const bool whole : {true, false}) {
        const auto found = std::ranges::find_if(others, [&](const std::string& other) {
          return !block_of(other) && (whole ? other == name : other.ends_with(name));
        });
        if (found == others.end()) continue;
        const auto tensor = std::ranges::find(source_.tensors, *found, &ImportTensor::name);
        others.erase(found);
        return &*tensor;
      }
    }
    return nullptr;
  }

  Tensor<float> read_global(const ImportTensor* tensor, std::string_view what, bool is_table) const {
    if (tensor == nullptr) return Tensor<float>(Shape{0});
    const bool fits = tensor->shape.rank() == (is_table ? 2u : 1u) && tensor->shape.last() == sizes_.width;
    if (!fits) {
      tensor->fail(fmt::format("the {} '{}' have the shape {}, but hidden_size is {}", what, tensor->name,
                               tensor->shape.to_string(), sizes_.width));
    }
    return Tensor<float>(tensor->shape, values_of(*tensor));
  }

  void read_globals(ImportedNetwork& result, std::vector<std::string>& others) {
    const ImportTensor* embeddings = find_global(
        others, {"model.embed_tokens.weight", "transformer.wte.weight", "embeddings.weight", "embed_tokens.weight"});
    if (embeddings == nullptr) throw FormatError(source_.path, 0, "there are no embeddings: no 'embed_tokens.weight'");
    result.embeddings = read_global(embeddings, "embeddings", true);
    const ImportTensor* norm =
        find_global(others, {"model.norm.weight", "transformer.ln_f.weight", "ln_f.weight", "norm.weight"});
    result.final_norm = read_global(norm, "weights of the final norm", false);
    result.head = read_global(find_global(others, {"lm_head.weight", "output.weight"}), "weights of the head", true);
    if (result.head.size() != 0 && result.head.shape()[0] != result.embeddings.shape()[0]) {
      throw FormatError(source_.path, 0,
                        fmt::format("the head is for {} tokens, the embeddings are of {}", result.head.shape()[0],
                                    result.embeddings.shape()[0]));
    }
  }

  const ImportSource& source_;
  const ImportOptions& options_;
  ImportSizes sizes_;
  std::vector<std::string>* notes_ = nullptr;
};

}  // namespace

ImportedNetwork import_decoder(const TensorFile& file, const ImportOptions& options) {
  if (file.folder() != nullptr) return DecoderImport(folder_source(file), options).run();
  const models::ModelRecipe recipe = models::folder_recipe(file, false);
  const auto text = std::ranges::find(recipe.side_files, "config.json", &files::HuggingFaceWriter::SideFile::name);
  const files::JsonDocument config = files::JsonDocument::parse(text->text, file.path());
  ImportedNetwork imported = DecoderImport(recipe_source(file.path(), recipe, config), options).run();
  imported.notes.insert(imported.notes.end(), recipe.notes.begin(), recipe.notes.end());
  return imported;
}

}  // namespace imago::checkpoint
