#include "lm/matrix_source.h"

#include <algorithm>
#include <utility>

#include "base/file.h"
#include "imago/codec.h"
#include "imago/device.h"
#include "quant/scheme.h"

namespace imago::lm {

namespace {

using files::StoredTensor;
using models::WeightSlice;

/// Weights that are float32 at a time while a matrix is encoded: 2 MiB, which stay in the cache.
constexpr std::size_t kPieceWeights = std::size_t{1} << 19;

/// The bytes that hold a slice. One that is not contiguous is spread over its whole tensor.
std::span<const std::byte> bytes_of(const WeightSlice& slice) {
  const StoredTensor& tensor = *slice.tensor;
  const std::size_t rows = tensor.rows();
  if (!slice.contiguous() || rows == 0 || tensor.bytes.size() % rows != 0) return tensor.bytes;
  const std::size_t row_bytes = tensor.bytes.size() / rows;
  if (slice.first_row > rows || slice.rows > rows - slice.first_row) return tensor.bytes;
  return tensor.bytes.subspan(slice.first_row * row_bytes, slice.rows * row_bytes);
}

/// The slice in `format`, encoded piece by piece: float32 is needed for a piece only.
EncodedWeights encode(const WeightSlice& slice, Format format) {
  const std::size_t rows = slice.rows, cols = slice.cols;
  // A piece is whole rows, and rows that begin at a whole byte.
  const std::size_t piece_rows = std::max<std::size_t>(8, kPieceWeights / std::max<std::size_t>(1, cols) / 8 * 8);
  EncodedWeights encoded{.format = format, .packed = host_device()->allocate(packed_bytes(format, rows * cols))};
  if (format.has_scales()) {
    encoded.scales.resize(rows);
    encoded.scale_group = cols;
    if (has_zero_points(format)) encoded.zero_points.resize(rows);
  }
  std::vector<float> piece(std::min(piece_rows, rows) * cols);
  for (std::size_t row = 0; row < rows; row += piece_rows) {
    const std::size_t count = std::min(piece_rows, rows - row);
    const std::span<float> weights = std::span(piece).first(count * cols);
    models::decode_slice(slice.part(row, count), weights);
    const std::span<std::byte> packed =
        encoded.packed.host().subspan(packed_bytes(format, row * cols), packed_bytes(format, count * cols));
    if (format.has_scales()) {
      Scheme scheme(format);
      scheme.granularity = Granularity::row;
      const ScaleValues found = derive_scales(scheme, scale_layout(scheme, count, cols), weights);
      const auto at = static_cast<std::ptrdiff_t>(row);
      std::ranges::copy(found.scales, encoded.scales.begin() + at);
      if (!found.zero_points.empty()) std::ranges::copy(found.zero_points, encoded.zero_points.begin() + at);
    }
    const auto of_piece = [&](std::span<const float> all) { return all.empty() ? all : all.subspan(row, count); };
    imago::encode(format, weights, {of_piece(encoded.scales), cols, of_piece(encoded.zero_points)}, packed);
  }
  return encoded;
}

/// Whether rows begin at whole bytes and blocks, and have no scales beside them.
bool rows_are_whole(Format format, std::size_t cols) {
  if (format.has_scales() || cols % static_cast<std::size_t>(format.block_values()) != 0) return false;
  return 8 * packed_bytes(format, cols) == packed_bytes(format, 8 * cols);
}

/// Rows that take turns with others, as they are. REQUIRES: rows_are_whole.
EncodedWeights gather(const WeightSlice& slice) {
  const Format format = *slice.tensor->format;
  const std::size_t row_bytes = packed_bytes(format, slice.cols);
  EncodedWeights gathered{.format = format, .packed = host_device()->allocate(slice.rows * row_bytes)};
  for (std::size_t r = 0; r < slice.rows; ++r) {
    const std::size_t row = slice.first_row + r * slice.group_rows;
    std::ranges::copy(slice.tensor->bytes.subspan(row * row_bytes, row_bytes),
                      gathered.packed.host().subspan(r * row_bytes).begin());
  }
  return gathered;
}

/// Whether rows begin at whole bytes and blocks, so that they can be decoded one at a time.
bool rows_are_apart(const WeightSlice& slice) {
  if (!slice.contiguous() || slice.first_row != 0 || !slice.tensor->format) return false;
  const Format format = *slice.tensor->format;
  if (slice.cols % static_cast<std::size_t>(format.block_values()) != 0) return false;
  return 8 * packed_bytes(format, slice.cols) == packed_bytes(format, 8 * slice.cols);
}

}  // namespace

kernels::PackedMatrix PreparedMatrix::view() const {
  if (encoded) return encoded->view(slice.rows, slice.cols);
  return {.format = format,
          .rows = slice.rows,
          .cols = slice.cols,
          .packed = slice.tensor->bytes,
          .scales = slice.tensor->scales(),
          .first = slice.first_row * slice.cols};
}

backend::RowTable table_of(PreparedMatrix prepared, bool stays) {
  const WeightSlice& slice = prepared.slice;
  if (!prepared.encoded) {
    const StoredTensor& tensor = *slice.tensor;
    if (!rows_are_apart(slice)) {
      prepared.encoded.emplace(encode(slice, DType::float32));
    } else if (!release_pages(tensor.bytes) && stays) {
      prepared.encoded.emplace(EncodedWeights{.format = *tensor.format,
                                              .packed = host_device()->allocate(tensor.bytes.size()),
                                              .scales = tensor.scale_values,
                                              .scale_group = tensor.scale_group,
                                              .zero_points = tensor.zero_points});
      host_device()->upload(tensor.bytes, prepared.encoded->packed, 0);
    } else {
      return {prepared.view(), prepared.file};
    }
  }
  return table_of(slice.rows, slice.cols, std::move(*prepared.encoded));
}

std::size_t release(const WeightSlice& slice) {
  const std::span<const std::byte> bytes = bytes_of(slice);
  release_pages(bytes);
  return bytes.size();
}

MatrixSource::MatrixSource(files::TensorFile file, const models::Traits& traits)
    : file_(std::make_shared<const files::TensorFile>(std::move(file))), tensors_(*file_, traits) {}

Format MatrixSource::format_for(const WeightSlice& slice, std::optional<Format> type) const {
  if (type) {
    if (const std::optional<Format> fitting = fitting_type(*type, slice.cols)) return *fitting;
  }
  const std::optional<Format> stored = slice.tensor->format;
  // Blocks and scales of a transposed tensor lie across its rows, and scales may stand for rows of several slices.
  return !stored || (!slice.contiguous() && !stored->is_wide()) ? DType::float32 : *stored;
}

PreparedMatrix MatrixSource::prepare(const WeightSlice& slice, Format format) {
  check(*slice.tensor);
  PreparedMatrix prepared{.slice = slice, .format = format, .encoded = std::nullopt, .file = file_};
  if (slice.tensor->format == format && !slice.transposed && slice.rows_per_group == 1 &&
      rows_are_whole(format, slice.cols)) {
    prepared.encoded.emplace(gather(slice));
  } else if (!slice.contiguous() || slice.tensor->format != format) {
    prepared.encoded.emplace(encode(slice, format));
  }
  return prepared;
}

std::vector<float> MatrixSource::values(const WeightSlice& slice) {
  check(*slice.tensor);
  std::vector<float> values(slice.rows * slice.cols);
  models::decode_slice(slice, values);
  return values;
}

void MatrixSource::check(const StoredTensor& tensor) {
  if (checked_.insert(&tensor).second) files::check_values(tensor);
}

}  // namespace imago::lm
