#include "files/tensor_file.h"

#include <fmt/format.h>

#include "files/gguf.h"
#include "files/hugging_face.h"
#include "files/packed_safetensors.h"
#include "imago/error.h"

namespace imago::files {

struct TensorFile::State {
  FileForm form;
  std::string path;
  std::optional<SafetensorsFile> safetensors;
  std::optional<GgufFile> gguf;
  std::optional<HuggingFaceFolder> folder;
  std::vector<StoredTensor> tensors;
  std::vector<std::size_t> by_name;  // indices of tensors, sorted
  std::vector<std::pair<std::string, std::string>> metadata;
};

namespace {

std::vector<StoredTensor> list_file(const SafetensorsFile& file) {
  return list_safetensors(file.tensors(), file.metadata(), file.path());
}

std::vector<StoredTensor> list_gguf(const GgufFile& file) {
  std::vector<StoredTensor> list;
  list.reserve(file.tensors().size());
  for (const GgufTensor& tensor : file.tensors()) {
    StoredTensor stored;
    stored.name = tensor.name;
    stored.type = tensor.type.name;
    stored.format = tensor.type.format;
    stored.gguf_type = tensor.type;
    stored.shape = tensor.shape;
    stored.bytes = tensor.bytes;
    stored.offset = tensor.offset;
    stored.file = tensor.file;
    list.push_back(std::move(stored));
  }
  return list;
}

std::vector<StoredTensor> list_folder(const HuggingFaceFolder& folder) {
  std::vector<StoredTensor> list;
  for (const SafetensorsFile& shard : folder.shards()) {
    std::ranges::move(list_file(shard), std::back_inserter(list));
  }
  return list;
}

}  // namespace

TensorFile::TensorFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
TensorFile::TensorFile(TensorFile&&) noexcept = default;
TensorFile& TensorFile::operator=(TensorFile&&) noexcept = default;
TensorFile::~TensorFile() = default;

TensorFile TensorFile::open(const std::string& path, bool eager) {
  auto state = std::make_unique<State>();
  state->form = detect_form(path);
  state->path = path;
  switch (state->form) {
    case FileForm::safetensors:
      state->safetensors = SafetensorsFile::open(path, eager);
      state->tensors = list_file(*state->safetensors);
      for (const auto& entry : state->safetensors->metadata()) {
        if (entry.first != kPackedKey) state->metadata.push_back(entry);
      }
      break;
    case FileForm::gguf:
      state->gguf = GgufFile::open(path, eager);
      state->tensors = list_gguf(*state->gguf);
      break;
    case FileForm::huggingface:
      state->folder = HuggingFaceFolder::open(path, eager);
      state->tensors = list_folder(*state->folder);
      break;
    case FileForm::checkpoint:
    case FileForm::architecture:
    case FileForm::entity:
      throw UnsupportedError(fmt::format(
          "{}: this is a network ({}), not a file of tensors by name as language models are", path, name(state->form)));
  }
  state->by_name =
      sort_by_text(state->tensors.size(), [&](std::size_t i) -> std::string_view { return state->tensors[i].name; });
  return TensorFile(std::move(state));
}

FileForm TensorFile::form() const noexcept { return state_->form; }
const std::string& TensorFile::path() const noexcept { return state_->path; }
std::span<const StoredTensor> TensorFile::tensors() const noexcept { return state_->tensors; }

const StoredTensor* TensorFile::find(std::string_view name) const noexcept {
  const auto name_of = [&](std::size_t i) -> std::string_view { return state_->tensors[i].name; };
  const std::optional<std::size_t> found = find_by_text(state_->by_name, name, name_of);
  return found ? &state_->tensors[*found] : nullptr;
}

const StoredTensor& TensorFile::require(std::string_view name) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr) throw FormatError(path(), 0, fmt::format("there is no tensor '{}'", name));
  return *tensor;
}

const GgufFile* TensorFile::gguf() const noexcept { return state_->gguf ? &*state_->gguf : nullptr; }
const HuggingFaceFolder* TensorFile::folder() const noexcept { return state_->folder ? &*state_->folder : nullptr; }
std::span<const std::pair<std::string, std::string>> TensorFile::metadata() const noexcept { return state_->metadata; }

}  // namespace imago::files
