#include "checkpoint/entity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "imago/error.h"
#include "layers/settings.h"

namespace imago::checkpoint {

namespace {

/// A matrix in the master.
struct Place {
  std::size_t first, count;
  Shape shape;
};

/// Reads a blob from the front. Throws ShapeError where it ends too early.
class BlobReader {
 public:
  explicit BlobReader(const EntityBlob& blob) : blob_(blob), rest_(blob.bytes) {}

  template <class T>
  T take() {
    T value{};
    std::memcpy(&value, take_bytes(sizeof value).data(), sizeof value);
    return value;
  }
  template <class T>
  std::vector<T> take_all(std::size_t count) {
    const std::span<const std::byte> bytes = take_bytes(checked_mul(count, sizeof(T), "the size of a blob"));
    std::vector<T> values(count);
    if (count != 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  void expect_end() const {
    if (!rest_.empty()) throw ShapeError(fmt::format("blob {} has {} bytes too many", blob_.path, rest_.size()));
  }

 private:
  std::span<const std::byte> take_bytes(std::size_t count) {
    if (count > rest_.size()) throw ShapeError(fmt::format("blob {} is too short", blob_.path));
    const std::span<const std::byte> taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }

  const EntityBlob& blob_;
  std::span<const std::byte> rest_;
};

void check_scale(const EntityBlob& blob, float scale) {
  if (!(scale >= 0) || !std::isfinite(scale)) {
    throw UsageError(fmt::format("blob {} has the scale {}: it must be finite and not negative", blob.path, scale));
  }
}

// ---- Q4_0: u32 blocks, u32 words, float32 scales, u32 words of eight codes, the first in the low bits

struct BlockMatrix {
  Place place;
  std::vector<float> scales;
  std::vector<std::uint32_t> words;
};

BlockMatrix read_blocks(const EntityBlob& blob, const Place& place) {
  BlobReader reader(blob);
  const std::size_t blocks = reader.take<std::uint32_t>();
  const std::size_t words = reader.take<std::uint32_t>();
  if (blocks != (place.count + 31) / 32 || words < 4 * blocks) {
    throw ShapeError(
        fmt::format("blob {} has {} blocks and {} words for {} weights", blob.path, blocks, words, place.count));
  }
  BlockMatrix matrix{place, reader.take_all<float>(blocks), reader.take_all<std::uint32_t>(words)};
  reader.expect_end();
  for (const float scale : matrix.scales) check_scale(blob, scale);
  return matrix;
}

void decode(const BlockMatrix& matrix, std::span<float> master) {
  for (std::size_t i = 0; i < matrix.place.count; ++i) {
    const std::uint32_t code = matrix.words[i / 8] >> (4 * (i % 8)) & 15;
    const int value = code < 8 ? static_cast<int>(code) : static_cast<int>(code) - 16;
    master[matrix.place.first + i] = static_cast<float>(value) * matrix.scales[i / 32];
  }
}

// ---- ternary: u32 rows, cols, first weight, float32 scale, u32 words per row, u32 words, words of 16 codes

struct TernaryMatrix {
  Place place;
  std::size_t cols, words_per_row;
  float scale;
  std::vector<std::uint32_t> words;
};

TernaryMatrix read_ternary(const EntityBlob& blob) {
  BlobReader reader(blob);
  const std::size_t rows = reader.take<std::uint32_t>(), cols = reader.take<std::uint32_t>();
  const std::size_t first = reader.take<std::uint32_t>();
  const float scale = reader.take<float>();
  const std::size_t words_per_row = reader.take<std::uint32_t>(), words = reader.take<std::uint32_t>();
  check_scale(blob, scale);
  if (words_per_row < (cols + 15) / 16 || words != rows * words_per_row) {  // 32 bits each: no overflow
    throw ShapeError(fmt::format("blob {} has {} words, {} per row, for {} × {} codes", blob.path, words, words_per_row,
                                 rows, cols));
  }
  TernaryMatrix matrix{
      {first, rows * cols, {rows, cols}}, cols, words_per_row, scale, reader.take_all<std::uint32_t>(words)};
  reader.expect_end();
  return matrix;
}

void decode(const TernaryMatrix& matrix, const EntityBlob& blob, std::span<float> master) {
  const float factor = matrix.scale == 0 ? 1.0f : matrix.scale;
  for (std::size_t i = 0; i < matrix.place.count; ++i) {
    const std::size_t row = i / matrix.cols, col = i % matrix.cols;
    const std::uint32_t code = matrix.words[row * matrix.words_per_row + col / 16] >> (2 * (col % 16)) & 3;
    if (code == 3) throw UsageError(fmt::format("blob {} has the code 3 for weight {}", blob.path, i));
    master[matrix.place.first + i] = static_cast<float>(static_cast<int>(code) - 1) * factor;
  }
}

// ---- where matrices lie

std::vector<Place> places_of(const LayerConfig& config) {
  std::vector<Shape> shapes;
  if (config.type == LayerType::multi_head_attention) {
    const layers::AttentionDims dims = layers::attention_dims(config);
    weight_shape(config);  // throws if a product overflows
    const Shape keys{dims.keys, dims.width};
    shapes = {Shape{dims.queries, dims.width}, keys, keys, Shape{dims.width, dims.queries}};
  } else if (config.type == LayerType::swiglu) {
    weight_shape(config);
    const auto width = static_cast<std::size_t>(config.input_height);
    const auto inner = static_cast<std::size_t>(config.output_height);
    shapes = {Shape{inner, width}, Shape{inner, width}, Shape{width, inner}};
  } else {
    throw UsageError(fmt::format("{} has no packed matrices", name(config.type)));
  }
  std::vector<Place> places;
  std::size_t first = 0;
  for (const Shape& shape : shapes) {
    places.push_back({first, shape.elements(), shape});
    first += shape.elements();
  }
  return places;
}

/// The matrices must fill their part of the master, each weight once.
void check_cover(std::vector<Place> filled, std::size_t matrix_weights) {
  std::ranges::sort(filled, {}, &Place::first);
  std::size_t covered = 0;
  for (const Place& place : filled) {
    if (place.first != covered) throw ShapeError("its packed matrices overlap or leave gaps");
    covered += place.count;
  }
  if (covered != matrix_weights) {
    throw ShapeError(fmt::format("its packed matrices have {} weights, not {}", covered, matrix_weights));
  }
}

/// The place of a Q4_0 matrix, by its key.
const Place& place_of(const LayerConfig& config, std::span<const Place> places, const DecoderMatrix& matrix) {
  const int index = matrix.key - (config.type == LayerType::multi_head_attention ? 200 : 100);
  if (index < 0 || index >= static_cast<int>(places.size())) {
    throw UsageError(fmt::format("blob {} names no matrix of {}", matrix.blob->path, name(config.type)));
  }
  return places[static_cast<std::size_t>(index)];
}

void check_biases(const LayerConfig& config, std::size_t matrix_weights, std::size_t biases) {
  const std::size_t wanted = weight_shape(config).count() - matrix_weights;
  if (biases != 0 && biases != wanted) throw ShapeError(fmt::format("{} biases, not {}", biases, wanted));
}

bool is_ternary(const EntityBlob& blob) { return blob.dtype == "BITNET_TERNARY"; }

}  // namespace

std::vector<Shape> measure_decoder_matrices(const LayerConfig& config, std::span<const DecoderMatrix> matrices,
                                            std::size_t biases) {
  const std::vector<Place> places = places_of(config);
  std::vector<Place> filled;
  std::vector<Shape> shapes;
  for (const DecoderMatrix& matrix : matrices) {
    filled.push_back(is_ternary(*matrix.blob) ? read_ternary(*matrix.blob).place
                                              : read_blocks(*matrix.blob, place_of(config, places, matrix)).place);
    shapes.push_back(filled.back().shape);
  }
  const std::size_t matrix_weights = places.back().first + places.back().count;
  check_cover(std::move(filled), matrix_weights);
  check_biases(config, matrix_weights, biases);
  return shapes;
}

void install_decoder_matrices(Layer& layer, std::span<const DecoderMatrix> matrices, std::span<const float> biases) {
  const std::vector<Place> places = places_of(layer.config);
  const std::size_t matrix_weights = places.back().first + places.back().count;

  std::vector<BlockMatrix> blocks;
  std::vector<std::pair<TernaryMatrix, const EntityBlob*>> ternary;
  std::vector<Place> filled;
  for (const DecoderMatrix& matrix : matrices) {
    if (is_ternary(*matrix.blob)) {
      ternary.emplace_back(read_ternary(*matrix.blob), matrix.blob);
      filled.push_back(ternary.back().first.place);
    } else {
      blocks.push_back(read_blocks(*matrix.blob, place_of(layer.config, places, matrix)));
      filled.push_back(blocks.back().place);
    }
  }
  check_cover(std::move(filled), matrix_weights);
  check_biases(layer.config, matrix_weights, biases.size());

  const WeightShape shape = weight_shape(layer.config);
  layer.config.dtype = DType::float32;  // no dtype has blocks; the values are kept exactly
  WeightStore store(shape.rows, shape.cols);
  const std::span<float> master = store.edit_master();
  for (const BlockMatrix& matrix : blocks) decode(matrix, master);
  for (const auto& [matrix, blob] : ternary) decode(matrix, *blob, master);
  std::ranges::copy(biases, master.begin() + static_cast<std::ptrdiff_t>(matrix_weights));
  layer.weights = std::move(store);
}

}  // namespace imago::checkpoint
