#include "models/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <unordered_map>

#include "base/file.h"
#include "files/published.h"
#include "imago/error.h"
#include "models/architectures.h"
#include "models/recipe_parts.h"

namespace imago::models {

TensorUse use_of(const Traits& traits, const LayoutTensor& tensor) noexcept {
  constexpr std::pair<Role, TensorUse> kUses[] = {{Role::token_embedding, TensorUse::embedding},
                                                  {Role::output, TensorUse::output},
                                                  {Role::value, TensorUse::attention_value},
                                                  {Role::down, TensorUse::down},
                                                  {Role::router, TensorUse::router},
                                                  {Role::shared_router, TensorUse::router},
                                                  {Role::stream_router, TensorUse::router},
                                                  {Role::shared_down, TensorUse::down},
                                                  {Role::head_dense, TensorUse::router},
                                                  {Role::head_output, TensorUse::router}};

  if (extent_of(traits, tensor.roles[0]).vector) return TensorUse::vector;
  const auto* const found = std::ranges::find(kUses, tensor.roles[0], &std::pair<Role, TensorUse>::first);
  return tensor.roles.size() > 1 || found == std::end(kUses) ? TensorUse::matrix : found->second;
}

bool is_wide_in_gguf(const Traits& traits, const LayoutTensor& tensor) noexcept {
  const TensorUse use = use_of(traits, tensor);
  return use == TensorUse::vector || use == TensorUse::router || tensor.roles[0] == Role::position_embedding ||
         tensor.roles[0] == Role::token_types;
}

namespace {

using files::StoredTensor;

/// What the rows of a weight are multiplied by in GGUF files of falcon_h1.
std::vector<RowFactor> factors_of(const Traits& traits, Role role, std::size_t rows) {
  const Multipliers& by = traits.multipliers;
  const kernels::LinearScanShape& scan = traits.recurrent.scan;
  if (role == Role::channels) {
    return {{scan.results(), by.scan_in * by.scan[1]},
            {scan.groups * scan.keys, by.scan_in * by.scan[2]},
            {scan.groups * scan.keys, by.scan_in * by.scan[3]}};
  }
  const std::pair<Role, float> factors[] = {{Role::token_embedding, traits.embedding_scale},
                                            {Role::output, traits.logit_scale},
                                            {Role::query, by.attention_in},
                                            {Role::key, by.attention_in * by.key},
                                            {Role::value, by.attention_in},
                                            {Role::attention_output, by.attention_out},
                                            {Role::output_gate, by.scan_in * by.scan.front()},
                                            {Role::step, by.scan_in * by.scan.back()},
                                            {Role::scan_output, by.scan_out},
                                            {Role::gate, by.gate},
                                            {Role::down, by.down}};
  const auto* const found = std::ranges::find(factors, role, &std::pair<Role, float>::first);
  return {{rows, found == std::end(factors) ? 1 : found->second}};
}

bool turns(Role role) {
  return role == Role::query || role == Role::query_bias || role == Role::key || role == Role::key_bias;
}

/// Appends a slice; rows that continue the last part extend it.
void append(std::vector<SourceRows>& parts, const WeightSlice& slice) {
  const StoredTensor& tensor = *slice.tensor;
  // Vectors are taken whole, also those that GGUF has in rows.
  const bool vector = tensor.shape.rank() < 2 || slice.cols != tensor.cols();
  if (!parts.empty() && parts.back().tensor == slice.tensor) {
    if (vector || !slice.contiguous()) return;  // already added as a whole
    if (parts.back().first_row + parts.back().rows == slice.first_row) {
      parts.back().rows += slice.rows;
      return;
    }
  }
  if (vector || !slice.contiguous()) {
    parts.push_back({&tensor, 0, tensor.rows()});
  } else {
    parts.push_back({&tensor, slice.first_row, slice.rows});
  }
}

class RecipeBuilder {
 public:
  RecipeBuilder(const Traits& traits, const DecoderTensors& tensors, const Naming& target)
      : traits_(traits), tensors_(tensors), target_(target) {}

  /// None for an optional tensor that the source does not have.
  std::optional<TensorRecipe> build(const LayoutTensor& wanted, std::size_t block) const {
    TensorRecipe recipe;
    recipe.name = wanted.name;
    recipe.shape = wanted.shape;
    recipe.use = use_of(traits_, wanted);
    recipe.block = block;
    recipe.blocks = traits_.blocks;
    recipe.matrices = matrices_of(traits_, wanted, block);
    // Vectors of several experts are rows of a matrix, not what a slice takes for rows.
    const bool vectors = extent_of(traits_, wanted.roles[0], block).vector;
    bool woven = wanted.key_values || (wanted.experts > 1 && (wanted.transposed || wanted.groups > 1 || vectors));
    WeightSlice last;
    for (std::size_t expert = 0; expert < wanted.experts; ++expert) {
      for (const Role role : wanted.roles) {
        const std::optional<WeightSlice> slice = tensors_.find(role, block, wanted.first_expert + expert);
        if (!slice && wanted.optional && recipe.parts.empty()) return std::nullopt;
        if (!slice) tensors_.require(role, block, wanted.first_expert + expert);  // throws
        woven = woven || slice->first_col != 0 || (wanted.experts > 1 && (slice->transposed || slice->group_rows != 0));
        last = *slice;
        append(recipe.parts, *slice);
      }
    }
    if (woven) {
      weave(wanted, block, recipe);
      return recipe;
    }
    check_whole(recipe, wanted);
    recipe.transform = transform_of(wanted, last);
    recipe.order = order_of(wanted.roles[0]);
    if (target_.gguf && facts(traits_.architecture).multipliers) multiply(wanted, block, recipe);
    if (recipe.transform == RowTransform::to_sections || recipe.transform == RowTransform::to_groups) {
      recipe.heads = traits_.kv_heads;
      for (const Role role : wanted.roles) {
        recipe.group_rows.push_back(extent_of(traits_, role, block).rows / traits_.kv_heads);
      }
    } else if (permutes_rows(recipe.transform)) {
      const bool query = wanted.roles[0] == Role::query || wanted.roles[0] == Role::query_bias;
      recipe.heads = query ? traits_.heads : traits_.kv_heads;
    }
    if (target_.gguf && is_wide_in_gguf(traits_, wanted)) recipe.preferred = DType::float32;
    return recipe;
  }

 private:
  void weave(const LayoutTensor& wanted, std::size_t block, TensorRecipe& recipe) const {
    recipe.transform = RowTransform::weave;
    recipe.parts.clear();
    for (std::size_t expert = 0; expert < wanted.experts; ++expert) {
      for (std::size_t i = 0; i < wanted.roles.size(); ++i) {
        const WeightSlice slice = tensors_.require(wanted.roles[i], block, wanted.first_expert + expert);
        recipe.woven.push_back({slice, place_of(traits_, wanted, block, expert, i)});
        const auto is_there = [&](const SourceRows& part) { return part.tensor == slice.tensor; };
        if (std::ranges::none_of(recipe.parts, is_there))
          recipe.parts.push_back({slice.tensor, 0, slice.tensor->rows()});
      }
    }
    if (target_.gguf && recipe.use == TensorUse::vector) recipe.preferred = DType::float32;
  }

  void multiply(const LayoutTensor& wanted, std::size_t block, TensorRecipe& recipe) const {
    std::vector<RowFactor> factors;
    for (const Role role : wanted.roles) {
      const std::vector<RowFactor> own = factors_of(traits_, role, extent_of(traits_, role, block).rows);
      factors.insert(factors.end(), own.begin(), own.end());
    }
    if (std::ranges::all_of(factors, [](const RowFactor& one) { return one.factor == 1; })) return;
    recipe.transform = RowTransform::scale;
    recipe.factors = std::move(factors);
  }

  /// Vectors and transposed matrices cannot be cut: a part of one cannot become a tensor.
  void check_whole(const TensorRecipe& recipe, const LayoutTensor& wanted) const {
    std::size_t elements = 0;
    for (const SourceRows& part : recipe.parts) elements += part.rows * part.tensor->cols();
    if (elements != wanted.shape.elements()) {
      throw UnsupportedError(fmt::format("{}: tensor '{}' would be a part of '{}', which cannot be split",
                                         recipe.parts[0].tensor->file, wanted.name, recipe.parts[0].tensor->name));
    }
  }

  RowTransform transform_of(const LayoutTensor& wanted, const WeightSlice& source) const {
    const Role role = wanted.roles[0];
    if (source.transposed != wanted.transposed) return RowTransform::transpose;
    if ((source.group_rows != 0) != (wanted.groups > 1)) {
      return wanted.groups > 1 ? RowTransform::to_groups : RowTransform::to_sections;
    }
    const ArchitectureFacts& row = facts(traits_.architecture);
    if (turns(role) && row.adjacent_in_gguf) {
      return target_.gguf ? RowTransform::to_adjacent : RowTransform::to_halves;
    }
    if (role == Role::decay_rate) return target_.gguf ? RowTransform::to_rates : RowTransform::to_log_rates;
    if (is_norm(role) && (row.norms_around_zero || row.mixer_prefix == "linear_attn")) {
      return target_.gguf ? RowTransform::add_one : RowTransform::subtract_one;
    }
    return RowTransform::none;
  }

  /// Heads of scans are tiled in GGUF where files of llama.cpp have them so.
  std::optional<HeadOrder> order_of(Role role) const {
    const kernels::LinearScanShape& scan = traits_.recurrent.scan;
    const bool tiled = scan.delta && traits_.architecture != Architecture::qwen3_next && scan.heads != scan.groups;
    if (!tiled) return std::nullopt;
    HeadOrder order{.groups = scan.groups,
                    .group_heads = scan.heads / scan.groups,
                    .values = scan.values,
                    .columns = role == Role::scan_output,
                    .to_tiled = target_.gguf};
    const bool of_head =
        role == Role::input_gate || role == Role::step || role == Role::step_bias || role == Role::decay_rate;
    const bool of_channels = role == Role::channels || role == Role::taps;
    if (of_head) order.values = 1;
    if (of_channels) order.first = 2 * scan.groups * scan.keys;
    const bool ordered = of_head || of_channels || order.columns || role == Role::output_gate;
    return ordered ? std::optional(order) : std::nullopt;
  }

  const Traits& traits_;
  const DecoderTensors& tensors_;
  const Naming& target_;
};

}  // namespace

std::vector<TensorRecipe> decoder_recipes(const Traits& traits, const DecoderTensors& tensors, const Naming& target) {
  const RecipeBuilder builder(traits, tensors, target);
  std::vector<TensorRecipe> recipes;
  for_each_tensor(traits, target, [&](const LayoutTensor& wanted, std::size_t block) {
    if (wanted.roles[0] == Role::rope_factors) return;
    if (std::optional<TensorRecipe> recipe = builder.build(wanted, block)) recipes.push_back(std::move(*recipe));
  });
  return recipes;
}

TensorRecipe kept_tensor(const StoredTensor& tensor) {
  TensorRecipe recipe;
  recipe.name = tensor.name;
  recipe.shape = tensor.shape;
  recipe.parts = {{&tensor, 0, tensor.rows()}};
  recipe.use = tensor.shape.rank() < 2 ? TensorUse::vector : TensorUse::matrix;
  return recipe;
}

std::optional<DType> main_type(const files::TensorFile& file) {
  std::map<std::string_view, std::pair<std::size_t, const StoredTensor*>> weights;
  for (const StoredTensor& tensor : file.tensors()) {
    auto& entry = weights[tensor.type];
    entry.first += tensor.shape.elements();
    entry.second = &tensor;
  }
  const auto most = std::max_element(weights.begin(), weights.end(),
                                     [](const auto& a, const auto& b) { return a.second.first < b.second.first; });
  if (most == weights.end()) return std::nullopt;
  const std::optional<Format> format = most->second.second->format;
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    if (format == Format(dtype)) return dtype;
  }
  return std::nullopt;
}

namespace {

using files::TensorFile;

constexpr std::size_t kGgufNameBytes = 63;  // limit of llama.cpp; the file format has none
constexpr std::size_t kGgufExtents = 4;

/// The files of a model besides its weights.
constexpr std::array<const char*, 12> kSideFiles = {"config.json",
                                                    "modules.json",
                                                    "1_Pooling/config.json",
                                                    "generation_config.json",
                                                    "tokenizer.json",
                                                    "tokenizer_config.json",
                                                    "chat_template.jinja",
                                                    "vocab.json",
                                                    "special_tokens_map.json",
                                                    "added_tokens.json",
                                                    "merges.txt",
                                                    "tokenizer.model"};

/// Sets the use of each tensor if the file holds a decoder that imago knows; if not, adds a note that says why.
void add_uses(const TensorFile& file, ModelRecipe& recipe) {
  const bool named =
      file.folder() != nullptr || (file.gguf() != nullptr && file.gguf()->find("general.architecture") != nullptr);
  if (!named) return;
  struct Use {
    TensorUse use;
    std::size_t block;
    NamedMatrices matrices;
  };
  std::unordered_map<const StoredTensor*, Use> uses;
  std::size_t blocks = 0;
  try {
    const Traits traits = read_traits(file);
    const DecoderTensors tensors(file, traits);
    const Naming naming = naming_of(file, traits);
    for_each_tensor(traits, naming, [&](const LayoutTensor& wanted, std::size_t block) {
      if (const StoredTensor* tensor = find_weight(file, wanted.name)) {
        uses[tensor] = {use_of(traits, wanted), block, matrices_of(traits, wanted, block)};
      }
    });
    blocks = traits.blocks;
  } catch (const Error& error) {
    recipe.notes.push_back(
        fmt::format("treated as tensors only, since it is not a decoder that imago knows: {}", error.what()));
    return;
  }
  for (TensorRecipe& tensor : recipe.tensors) {
    const auto found = uses.find(tensor.parts[0].tensor);
    if (found == uses.end()) continue;
    tensor.use = found->second.use;
    tensor.block = found->second.block;
    tensor.blocks = blocks;
    tensor.matrices = found->second.matrices;
  }
}

void check_gguf_names(const TensorFile& file) {
  for (const StoredTensor& tensor : file.tensors()) {
    if (tensor.name.size() > kGgufNameBytes) {
      throw UnsupportedError(fmt::format("{}: tensor '{}' has a name of {} bytes; GGUF allows {}", file.path(),
                                         tensor.name, tensor.name.size(), kGgufNameBytes));
    }
    if (tensor.shape.rank() > kGgufExtents) {
      throw UnsupportedError(fmt::format("{}: tensor '{}' has {} dimensions; GGUF allows {}", file.path(), tensor.name,
                                         tensor.shape.rank(), kGgufExtents));
    }
  }
}

std::vector<files::SideFile> side_files_of(const files::HuggingFaceFolder& folder) {
  std::vector<std::string> names(kSideFiles.begin(), kSideFiles.end());
  for (const files::DenseModule& module : folder.dense_modules()) {
    for (const char* name : {"/config.json", "/model.safetensors"}) names.push_back(module.path + name);
  }
  std::vector<files::SideFile> files;
  for (const std::string& name : names) {
    const std::filesystem::path path = std::filesystem::path(folder.path()) / name;
    if (!std::filesystem::is_regular_file(path)) continue;
    const MappedFile mapped = MappedFile::open(path.string(), Reading::eager);
    files.push_back({name, std::string(mapped.text())});
  }
  return files;
}

/// Keeps names and shapes.
ModelRecipe bag_recipe(const TensorFile& file, FileForm target) {
  ModelRecipe recipe;
  recipe.target = target;
  const GgufFile* gguf = file.gguf();
  const files::HuggingFaceFolder* folder = file.folder();
  for (const StoredTensor& tensor : file.tensors()) {
    // Dense modules stay files of their own.
    const bool dense = folder != nullptr && std::ranges::any_of(folder->dense_modules(), [&](const auto& module) {
                         return tensor.file == module.weights.path();
                       });
    if (!dense || target != FileForm::huggingface) recipe.tensors.push_back(kept_tensor(tensor));
  }
  add_uses(file, recipe);
  if (target == FileForm::gguf) {
    check_gguf_names(file);
    if (gguf != nullptr) {
      for (const GgufMetadata& entry : gguf->metadata()) {
        if (entry.key != "general.file_type") recipe.gguf_metadata.push_back(entry);
      }
    } else if (!file.metadata().empty()) {
      recipe.notes.push_back("the __metadata__ of the safetensors file are left out: GGUF has no place for them");
    }
    return recipe;
  }
  if (folder != nullptr) {
    if (!folder->shards().empty()) {
      const auto metadata = folder->shards()[0].metadata();
      recipe.safetensors_metadata.assign(metadata.begin(), metadata.end());
    }
    if (target == FileForm::huggingface) {
      const std::span<const files::SideFile> made = folder->made_of();
      recipe.side_files =
          made.empty() ? side_files_of(*folder) : std::vector<files::SideFile>(made.begin(), made.end());
      if (std::ranges::any_of(file.tensors(), [](const StoredTensor& tensor) { return tensor.published != nullptr; })) {
        for (files::SideFile& side : recipe.side_files) {
          if (side.name == "config.json") side.text = files::without_quantization(folder->config());
        }
      }
    } else {
      recipe.notes.push_back("config.json and tokenizer are left out: a safetensors file holds tensors only");
    }
  } else if (gguf != nullptr) {
    recipe.notes.push_back("the metadata of the GGUF file are left out: a safetensors file holds tensors only");
  } else {
    recipe.safetensors_metadata.assign(file.metadata().begin(), file.metadata().end());
  }
  return recipe;
}

}  // namespace

ModelRecipe make_recipe(const TensorFile& file, FileForm target) {
  if (target != FileForm::gguf && target != FileForm::safetensors && target != FileForm::huggingface) {
    throw UnsupportedError(
        fmt::format("{}: a bag of tensors cannot become a file of format '{}'; gguf, safetensors and "
                    "huggingface hold tensors by name",
                    file.path(), name(target)));
  }
  if (target == FileForm::gguf && file.folder() != nullptr) return gguf_recipe(file);
  if (target != FileForm::huggingface || file.folder() != nullptr) return bag_recipe(file, target);
  const bool model = file.gguf() != nullptr && file.gguf()->find("general.architecture") != nullptr;
  if (!model) {
    throw UnsupportedError(
        fmt::format("{}: a Hugging Face folder needs a model with an architecture, and this file holds tensors only; "
                    "write safetensors",
                    file.path()));
  }
  return folder_recipe(file);
}

}  // namespace imago::models
