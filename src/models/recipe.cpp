#include "models/recipe.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <unordered_map>

#include "base/file.h"
#include "imago/error.h"
#include "models/recipe_parts.h"

namespace imago::models {

namespace {

using files::StoredTensor;
using files::TensorFile;

constexpr std::size_t kGgufNameBytes = 63;  // llama.cpp's own limit; the format itself has none
constexpr std::size_t kGgufExtents = 4;

/// What belongs to a model beside its weights.
constexpr std::array<const char*, 10> kSideFiles = {"config.json",
                                                    "generation_config.json",
                                                    "tokenizer.json",
                                                    "tokenizer_config.json",
                                                    "chat_template.jinja",
                                                    "vocab.json",
                                                    "special_tokens_map.json",
                                                    "added_tokens.json",
                                                    "merges.txt",
                                                    "tokenizer.model"};

/// Says of each tensor what it is for, if the file holds a decoder that imago knows. Kept files need not be one: what
/// is wrong with it then is a note.
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
    const auto note = [&](const std::vector<LayoutTensor>& layout, std::size_t block) {
      for (const LayoutTensor& wanted : layout) {
        if (const StoredTensor* tensor = find_weight(file, wanted.name)) {
          uses[tensor] = {use_of(wanted.roles), block, matrices_of(traits, wanted, block)};
        }
      }
    };
    note(outer_layout(traits, naming), 0);
    for (std::size_t block = 0; block < traits.blocks; ++block) note(block_layout(traits, naming, block), block);
    blocks = traits.blocks;
  } catch (const Error& error) {
    recipe.notes.push_back(
        fmt::format("treated as tensors only, since it is no decoder that imago knows: {}", error.what()));
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

std::vector<files::HuggingFaceWriter::SideFile> side_files_of(const std::string& folder) {
  std::vector<files::HuggingFaceWriter::SideFile> files;
  for (const char* name : kSideFiles) {
    const std::filesystem::path path = std::filesystem::path(folder) / name;
    if (!std::filesystem::is_regular_file(path)) continue;
    const MappedFile mapped = MappedFile::open(path.string(), Reading::eager);
    files.push_back({name, std::string(mapped.text())});
  }
  return files;
}

/// Names and shapes as they are.
ModelRecipe bag_recipe(const TensorFile& file, FileForm target) {
  ModelRecipe recipe;
  recipe.target = target;
  for (const StoredTensor& tensor : file.tensors()) recipe.tensors.push_back(kept_tensor(tensor));
  const GgufFile* gguf = file.gguf();
  const files::HuggingFaceFolder* folder = file.folder();
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
      recipe.side_files = side_files_of(folder->path());
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
        fmt::format("{}: a bag of tensors cannot become a file of form '{}'; gguf, safetensors and "
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
