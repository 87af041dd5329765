#include "files/tensor_file.h"

#include <fmt/format.h>

#include <array>

#include "base/cpu.h"
#include "base/parallel.h"
#include "files/gguf.h"
#include "files/hugging_face.h"
#include "files/mxfp4_pairs.h"
#include "files/packed_safetensors.h"
#include "files/published.h"
#include "files/safetensors.h"
#include "imago/error.h"
#include "kernels/codec.h"

namespace imago::files {

struct TensorFile::State {
  FileForm form;
  std::string path;
  std::optional<SafetensorsFile> safetensors;
  std::optional<GgufFile> gguf;
  std::optional<HuggingFaceFolder> folder;
  std::shared_ptr<const void> owner;  // of what the tensors view, if no file does
  std::vector<StoredTensor> tensors;
  NameIndex<StoredTensor> by_name;
  std::vector<std::pair<std::string, std::string>> metadata;
};

namespace {

std::vector<StoredTensor> list_file(const SafetensorsFile& file) {
  return list_safetensors(file.tensors(), file.metadata(), file.path());
}

std::vector<StoredTensor> list_gguf(const GgufFile& file) {
  std::vector<StoredTensor> list;
  list.reserve(file.tensors().size());
  for (const GgufTensor& tensor : file.tensors()) list.push_back(stored_tensor(tensor));
  const GgufValue* packed = file.find(kPackedKey);
  if (packed == nullptr) return list;
  return unpack_tensors(std::move(list), file.require_string(kPackedKey), file.path());
}

std::vector<StoredTensor> list_folder(const HuggingFaceFolder& folder) {
  std::vector<StoredTensor> list;
  for (const SafetensorsFile& shard : folder.shards()) {
    std::ranges::move(list_file(shard), std::back_inserter(list));
  }
  for (std::size_t i = 0; i < folder.dense_modules().size(); ++i) {
    for (StoredTensor& tensor : list_file(folder.dense_modules()[i].weights)) {
      tensor.name = fmt::format("{}.{}", kDenseNames[i], tensor.name);
      list.push_back(std::move(tensor));
    }
  }
  return find_published(std::move(list), folder.config().root());
}

bool is_mxfp4(const HuggingFaceFolder& folder) {
  const auto quantization = folder.config().root().find("quantization_config");
  const auto method = quantization ? quantization->find("quant_method") : std::nullopt;
  return method && method->string("quant_method") == "mxfp4";
}

}  // namespace

std::uint64_t StoredTensor::stored_bytes() const noexcept {
  const std::uint64_t beside = published ? published->bytes_beside() : 0;
  return bytes.size() + beside + (scale_values.size() + zero_points.size()) * sizeof(float);
}

StoredTensor stored_tensor(const SafetensorsTensor& tensor, std::string_view path) {
  StoredTensor stored;
  stored.name = tensor.name;
  stored.type = name(tensor.type);
  stored.safetensors_type = tensor.type;
  stored.format = safetensors_dtype(tensor.type);
  stored.shape = tensor.shape;
  stored.bytes = tensor.bytes;
  stored.offset = tensor.offset;
  stored.file = path;
  return stored;
}

StoredTensor stored_tensor(const GgufTensor& tensor) {
  StoredTensor stored;
  stored.name = tensor.name;
  stored.type = tensor.type.name;
  stored.format = tensor.type.format;
  stored.gguf_type = tensor.type;
  stored.shape = tensor.shape;
  stored.bytes = tensor.bytes;
  stored.offset = tensor.offset;
  stored.file = tensor.file;
  return stored;
}

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
      if (is_mxfp4(*state->folder)) state->tensors = join_mxfp4(std::move(state->tensors), state->owner);
      break;
    case FileForm::checkpoint:
    case FileForm::architecture:
    case FileForm::entity:
      throw UnsupportedError(fmt::format(
          "{}: this is a network ({}), not a file of tensors by name as language models are", path, name(state->form)));
  }
  state->by_name = {state->tensors, &StoredTensor::name};
  return TensorFile(std::move(state));
}

TensorFile TensorFile::make(HuggingFaceFolder folder, std::vector<StoredTensor> tensors,
                            std::shared_ptr<const void> owner) {
  auto state = std::make_unique<State>();
  state->form = FileForm::huggingface;
  state->path = folder.path();
  state->folder = std::move(folder);
  state->owner = std::move(owner);
  state->tensors = std::move(tensors);
  for (StoredTensor& tensor : state->tensors) tensor.file = state->path;
  state->by_name = {state->tensors, &StoredTensor::name};
  return TensorFile(std::move(state));
}

FileForm TensorFile::form() const noexcept { return state_->form; }
const std::string& TensorFile::path() const noexcept { return state_->path; }
std::span<const StoredTensor> TensorFile::tensors() const noexcept { return state_->tensors; }

const StoredTensor* TensorFile::find(std::string_view name) const noexcept { return state_->by_name.find(name); }

const StoredTensor& TensorFile::require(std::string_view name) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr) throw FormatError(path(), 0, fmt::format("there is no tensor '{}'", name));
  return *tensor;
}

const GgufFile* TensorFile::gguf() const noexcept { return state_->gguf ? &*state_->gguf : nullptr; }
const HuggingFaceFolder* TensorFile::folder() const noexcept { return state_->folder ? &*state_->folder : nullptr; }
std::span<const std::pair<std::string, std::string>> TensorFile::metadata() const noexcept { return state_->metadata; }

namespace {

// As in kernels/codec.cpp: a multiple of every block, and some 10 µs of work.
constexpr std::size_t kDecodeGrain = 16384;
constexpr float kOne = 1;

void check_range(const StoredTensor& tensor, std::size_t first, std::size_t count) {
  const std::size_t elements = tensor.shape.elements();
  if (first > elements || count > elements - first) {
    throw ShapeError(fmt::format("{}: tensor '{}' has {} elements: {} from {} on leave it", tensor.file, tensor.name,
                                 elements, count, first));
  }
}

/// The bytes from element `first` on, which begins one.
const std::byte* bytes_at(const StoredTensor& tensor, std::size_t first) {
  const auto values = static_cast<std::size_t>(tensor.format->unit_values());
  const auto bytes = static_cast<std::size_t>(tensor.format->unit_bytes());
  return tensor.bytes.data() + first / values * bytes + first % values * bytes / values;
}

/// REQUIRES: `first` begins a byte or a block.
void decode_aligned(const StoredTensor& tensor, std::size_t first, std::span<float> out) {
  const bool scaled = !tensor.scale_values.empty();
  const kernels::CodecKernel& kernel = kernels::choose_codec(*tensor.format, allowed_cpu_features());
  parallel_for(out.size(), kDecodeGrain, [&](std::size_t begin, std::size_t end) {
    kernel.decode({.packed = bytes_at(tensor, first + begin),
                   .count = end - begin,
                   .weights = out.data() + begin,
                   .scales = scaled ? tensor.scale_values.data() : &kOne,
                   .group = scaled ? tensor.scale_group : tensor.shape.elements() + 1,
                   .first = first + begin,
                   .zero_points = kernels::zero_points_of(tensor.scales())});
  });
}

void decode_from(const StoredTensor& tensor, std::size_t first, std::span<float> out) {
  const auto block = static_cast<std::size_t>(tensor.format->block_values());
  if (first % block != 0 || out.size() % block != 0) {
    throw ShapeError(fmt::format("{}: tensor '{}' of {}: {} elements from {} on are not whole blocks of {}",
                                 tensor.file, tensor.name, tensor.type, out.size(), first, block));
  }
  // Eight elements fill whole bytes whatever their width.
  std::array<float, 8> eight;
  if (const std::size_t skip = first % 8; skip != 0) {
    const std::size_t start = first - skip;
    const std::size_t there = std::min(eight.size(), tensor.shape.elements() - start);
    const std::size_t wanted = std::min(out.size(), there - skip);
    decode_aligned(tensor, start, std::span(eight).first(there));
    std::copy_n(eight.begin() + skip, wanted, out.begin());
    first += wanted;
    out = out.subspan(wanted);
  }
  if (!out.empty()) decode_aligned(tensor, first, out);
}

}  // namespace

bool is_decodable(const StoredTensor& tensor) noexcept {
  return tensor.format || tensor.safetensors_type || tensor.published;
}

void decode_tensor(const StoredTensor& tensor, std::size_t first, std::span<float> out) {
  if (!is_decodable(tensor)) {
    throw UnsupportedError(fmt::format("{}: tensor '{}' is of type {}, which imago does not compute with", tensor.file,
                                       tensor.name, tensor.type));
  }
  check_range(tensor, first, out.size());
  if (out.empty()) return;
  if (tensor.published) return tensor.published->decode(first, out);
  tensor.format ? decode_from(tensor, first, out) : decode_special(tensor, first, out);
}

}  // namespace imago::files
