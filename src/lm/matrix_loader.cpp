#include "lm/matrix_loader.h"

#include <algorithm>
#include <utility>

#include "backend/memory.h"
#include "base/file.h"
#include "imago/codec.h"
#include "quant/scheme.h"

namespace imago::lm {

namespace {

using files::StoredTensor;
using models::WeightSlice;

/// Weights that are float32 at a time while a matrix is encoded: 64 MiB.
constexpr std::size_t kPieceWeights = std::size_t{16} << 20;

/// The bytes that hold a slice. A transposed one is spread over its whole tensor.
std::span<const std::byte> bytes_of(const WeightSlice& slice) {
  const StoredTensor& tensor = *slice.tensor;
  const std::size_t rows = tensor.rows();
  if (slice.transposed || rows == 0 || tensor.bytes.size() % rows != 0) return tensor.bytes;
  const std::size_t row_bytes = tensor.bytes.size() / rows;
  if (slice.first_row > rows || slice.rows > rows - slice.first_row) return tensor.bytes;
  return tensor.bytes.subspan(slice.first_row * row_bytes, slice.rows * row_bytes);
}

}  // namespace

kernels::PackedMatrix packed_of(const PreparedMatrix& prepared) {
  const WeightSlice& slice = prepared.slice;
  if (prepared.encoded) return prepared.encoded->view(slice.rows, slice.cols);
  return {.format = prepared.format,
          .rows = slice.rows,
          .cols = slice.cols,
          .packed = slice.tensor->bytes,
          .scales = slice.tensor->scales(),
          .first = slice.first_row * slice.cols};
}

Format MatrixLoader::stored_format(const WeightSlice& slice) const {
  const std::optional<Format> stored = slice.tensor->format;
  if (!stored) return DType::float32;
  // Blocks and scales of a transposed tensor lie across its rows.
  if (slice.transposed && !stored->is_wide()) return DType::float32;
  return *stored;
}

void MatrixLoader::check(const StoredTensor& tensor) {
  if (checked_.insert(&tensor).second) files::check_values(tensor);
}

void MatrixLoader::finish(const WeightSlice& slice) {
  const std::span<const std::byte> bytes = bytes_of(slice);
  release_pages(bytes);
  done_bytes_ = std::min<std::uint64_t>(total_bytes_, done_bytes_ + bytes.size());
  if (options_.progress) options_.progress(done_bytes_, total_bytes_);
}

EncodedWeights MatrixLoader::encode(const WeightSlice& slice, Format format) {
  const std::size_t rows = slice.rows, cols = slice.cols;
  // A piece is whole rows, and rows that begin at a whole byte.
  const std::size_t piece_rows = std::max<std::size_t>(8, kPieceWeights / std::max<std::size_t>(1, cols) / 8 * 8);
  EncodedWeights encoded{.format = format, .packed = host_device()->allocate(packed_bytes(format, rows * cols))};
  if (format.has_scales()) {
    encoded.scales.resize(rows);
    encoded.scale_group = cols;
  }
  std::vector<float> piece(std::min(piece_rows, rows) * cols);
  for (std::size_t row = 0; row < rows; row += piece_rows) {
    const std::size_t count = std::min(piece_rows, rows - row);
    const std::span<float> weights = std::span(piece).first(count * cols);
    WeightSlice part = slice;
    part.first_row += row;
    part.rows = count;
    models::decode_slice(part, weights);
    const std::span<std::byte> packed =
        encoded.packed.host().subspan(packed_bytes(format, row * cols), packed_bytes(format, count * cols));
    if (format.has_scales()) {
      Scheme scheme(format);
      scheme.granularity = Granularity::row;
      const std::vector<float> scales = derive_scales(scheme, scale_layout(scheme, count, cols), weights);
      std::copy(scales.begin(), scales.end(), encoded.scales.begin() + static_cast<std::ptrdiff_t>(row));
    }
    const std::size_t scales = format.has_scales() ? count : 0;
    imago::encode(format, weights, {std::span(encoded.scales).subspan(scales == 0 ? 0 : row, scales), cols}, packed);
  }
  return encoded;
}

PreparedMatrix MatrixLoader::prepare_in(const WeightSlice& slice, Format format) {
  check(*slice.tensor);
  PreparedMatrix prepared{.slice = slice, .format = format, .encoded = std::nullopt};
  if (slice.transposed || slice.tensor->format != format) prepared.encoded.emplace(encode(slice, format));
  return prepared;
}

PreparedMatrix MatrixLoader::prepare_as_stored(const WeightSlice& slice) {
  return prepare_in(slice, stored_format(slice));
}

PreparedMatrix MatrixLoader::prepare(const models::MatrixKey& key, const WeightSlice& slice) {
  if (encoder_) {
    check(*slice.tensor);
    std::vector<float> weights(slice.rows * slice.cols);
    models::decode_slice(slice, weights);
    if (auto encoded = encoder_(key, weights, slice.rows, slice.cols)) {
      const Format format = encoded->format;
      return {.slice = slice, .format = format, .encoded = std::move(encoded)};
    }
  }
  return prepare_in(slice, planned_format(slice));
}

Format MatrixLoader::planned_format(const WeightSlice& slice) const {
  const bool morphs = options_.type && slice.cols % static_cast<std::size_t>(options_.type->block_values()) == 0;
  return morphs ? *options_.type : stored_format(slice);
}

std::uint64_t MatrixLoader::planned_device_bytes(const WeightSlice& slice) const {
  const Format format = planned_format(slice);
  const std::size_t group = slice.tensor->format == format ? slice.tensor->scale_group : 0;
  return backend::device_matrix_bytes(format, slice.rows, slice.cols, group);
}

void MatrixLoader::give(std::span<const backend::WeightKey> keys, std::span<const PreparedMatrix> prepared,
                        backend::Runner& runner) {
  std::vector<backend::KeyedMatrix> matrices;
  for (std::size_t i = 0; i < keys.size(); ++i) matrices.push_back({keys[i], packed_of(prepared[i])});
  runner.take(matrices);
  for (const PreparedMatrix& one : prepared) {
    weights_of_type_[std::string(one.format.name())] += std::uint64_t{one.slice.rows} * one.slice.cols;
    finish(one.slice);
  }
}

std::vector<float> MatrixLoader::vector(const WeightSlice& slice) {
  check(*slice.tensor);
  std::vector<float> values(slice.rows * slice.cols);
  models::decode_slice(slice, values);
  finish(slice);
  return values;
}

std::string MatrixLoader::main_type() const {
  const auto most = std::max_element(weights_of_type_.begin(), weights_of_type_.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == weights_of_type_.end() ? "" : most->first;
}

}  // namespace imago::lm
