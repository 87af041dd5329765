#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/file.h"
#include "files/dataset_readers.h"
#include "imago/data.h"
#include "imago/error.h"

namespace imago {

namespace {

bool starts_with(std::span<const std::byte> bytes, std::initializer_list<unsigned char> wanted) {
  return bytes.size() >= wanted.size() &&
         std::equal(wanted.begin(), wanted.end(), bytes.begin(),
                    [](unsigned char a, std::byte b) { return a == std::to_integer<unsigned char>(b); });
}

void refuse_gzip(std::span<const std::byte> bytes, const std::string& path) {
  if (starts_with(bytes, {0x1F, 0x8B})) {
    throw FormatError(path, 0, "compressed with gzip; unpack it first (gzip -d)");
  }
}

/// A header of at most 4 GiB in JSON: byte 8 opens it, and the length before it is small.
bool is_safetensors(std::span<const std::byte> bytes) {
  return bytes.size() > 8 && bytes[8] == std::byte{'{'} &&
         std::all_of(bytes.begin() + 4, bytes.begin() + 8, [](std::byte b) { return b == std::byte{0}; });
}

/// "train-labels-idx1-ubyte" for "train-images-idx3-ubyte", whatever is before and after.
std::string labels_beside(const std::string& images) {
  std::string labels = images;
  const std::size_t folder_end = images.find_last_of('/') == std::string::npos ? 0 : images.find_last_of('/') + 1;
  const std::size_t what = labels.rfind("images");
  if (what == std::string::npos || what < folder_end) {
    throw UsageError(
        fmt::format("{}: no labels beside it: 'images' is not in its name; name the file of the labels", images));
  }
  labels.replace(what, 6, "labels");
  const std::size_t rank = labels.find("idx3", folder_end);
  if (rank != std::string::npos) labels.replace(rank, 4, "idx1");
  return labels;
}

Dataset load_idx(const MappedFile& images, const DatasetOptions& options) {
  const MappedFile labels = MappedFile::open(options.labels.empty() ? labels_beside(images.path()) : options.labels);
  refuse_gzip(labels.bytes(), labels.path());
  return files::join_idx(files::parse_idx(images.bytes(), images.path()),
                         files::parse_idx(labels.bytes(), labels.path()));
}

Dataset load_safetensors(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  Dataset data{file.read_float32("x"), file.read_float32("y")};
  const auto examples = [](const Tensor<float>& tensor) { return tensor.shape().rank() == 0 ? 0 : tensor.shape()[0]; };
  if (examples(data.x) == 0 || examples(data.x) != examples(data.y)) {
    throw FormatError(
        path, 8,
        fmt::format("x {} and y {} are not as many examples", data.x.shape().to_string(), data.y.shape().to_string()));
  }
  return data;
}

Dataset load_any(const MappedFile& file, const DatasetOptions& options) {
  refuse_gzip(file.bytes(), file.path());
  if (is_safetensors(file.bytes())) return load_safetensors(file.path());
  if (files::is_idx(file.bytes())) return load_idx(file, options);
  return files::parse_csv(file.text(), file.path(), options.target_columns);
}

}  // namespace

Dataset load_dataset(const std::string& path, const DatasetOptions& options) {
  Dataset data = load_any(MappedFile::open(path), options);
  if (options.one_hot) files::make_one_hot(data);
  return data;
}

}  // namespace imago
