#include "checkpoint/entity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "imago/error.h"
#include "layers/settings.h"
#include "quant/packed_array.h"

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

/// A packed matrix: its codes lie in words from the low bits on, and each row begins a word.
struct PackedMatrix {
  const EntityBlob* blob;
  Place place;
  std::size_t cols, words_per_row;
  std::vector<float> scales;
  std::vector<std::uint32_t> words;
};

/// u32 blocks, u32 words, float32 scales, u32 words of eight codes; rows do not matter
PackedMatrix read_blocks(const EntityBlob& blob, const Place& place) {
  BlobReader reader(blob);
  const std::size_t blocks = reader.take<std::uint32_t>();
  const std::size_t words = reader.take<std::uint32_t>();
  if (blocks != (place.count + 31) / 32 || words < 4 * blocks) {
    throw ShapeError(
        fmt::format("blob {} has {} blocks and {} words for {} weights", blob.path, blocks, words, place.count));
  }
  PackedMatrix matrix{&blob, place, place.count, words, reader.take_all<float>(blocks), {}};
  matrix.words = reader.take_all<std::uint32_t>(words);
  reader.expect_end();
  for (const float scale : matrix.scales) check_scale(blob, scale);
  return matrix;
}

/// u32 rows, cols, first weight, float32 scale, u32 words per row, u32 words, words of 16 codes
PackedMatrix read_ternary(const EntityBlob& blob) {
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
  PackedMatrix matrix{&blob, {first, rows * cols, {rows, cols}}, cols, words_per_row, {scale == 0 ? 1.0f : scale}, {}};
  matrix.words = reader.take_all<std::uint32_t>(words);
  reader.expect_end();
  return matrix;
}

bool is_ternary(const EntityBlob& blob) { return blob.dtype == "BITNET_TERNARY"; }

/// Weight i is value_of(its code, i).
template <std::size_t kBits, class ValueOf>
void decode_codes(const PackedMatrix& matrix, std::span<float> to, ValueOf value_of) {
  constexpr std::size_t kCodes = 32 / kBits;
  const std::uint32_t* row = matrix.words.data();
  for (std::size_t i = 0; i < to.size(); row += matrix.words_per_row) {
    for (std::size_t col = 0; col < matrix.cols; ++col, ++i) {
      to[i] = value_of(static_cast<int>(row[col / kCodes] >> (kBits * (col % kCodes)) & ((1u << kBits) - 1)), i);
    }
  }
}

void decode(const PackedMatrix& matrix, std::span<float> master) {
  const std::span<float> to = master.subspan(matrix.place.first, matrix.place.count);
  if (is_ternary(*matrix.blob)) {
    decode_codes<2>(matrix, to, [&](int code, std::size_t i) {
      if (code == 3) throw UsageError(fmt::format("blob {} has the code 3 for weight {}", matrix.blob->path, i));
      return static_cast<float>(code - 1) * matrix.scales[0];
    });
  } else {
    decode_codes<4>(matrix, to, [&](int code, std::size_t i) {
      return static_cast<float>(code < 8 ? code : code - 16) * matrix.scales[i / 32];
    });
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

/// The key of the first matrix; the others follow.
int first_key_of(const LayerConfig& config) { return config.type == LayerType::multi_head_attention ? 200 : 100; }

/// The place of a Q4_0 matrix, by its key.
Place place_of(const LayerConfig& config, std::span<const Place> places, const DecoderMatrix& matrix) {
  const int index = matrix.key - first_key_of(config);
  if (index < 0 || index >= static_cast<int>(places.size())) {
    throw UsageError(fmt::format("blob {} names no matrix of {}", matrix.blob->path, name(config.type)));
  }
  return places[static_cast<std::size_t>(index)];
}

/// The packed matrices, in their order, which must fill their part of the master, each weight once.
std::vector<PackedMatrix> read_matrices(const LayerConfig& config, std::span<const DecoderMatrix> matrices,
                                        std::size_t biases) {
  const std::vector<Place> places = places_of(config);
  std::vector<PackedMatrix> packed;
  std::vector<Place> filled;
  for (const DecoderMatrix& matrix : matrices) {
    packed.push_back(is_ternary(*matrix.blob) ? read_ternary(*matrix.blob)
                                              : read_blocks(*matrix.blob, place_of(config, places, matrix)));
    filled.push_back(packed.back().place);
  }
  std::ranges::sort(filled, {}, &Place::first);
  std::size_t covered = 0;
  for (const Place& place : filled) {
    if (place.first != covered) throw ShapeError("its packed matrices overlap or leave gaps");
    covered += place.count;
  }
  const std::size_t wanted = places.back().first + places.back().count;
  const std::size_t wanted_biases = weight_shape(config).count() - wanted;
  if (covered != wanted) {
    throw ShapeError(fmt::format("its packed matrices have {} weights, not {}", covered, wanted));
  }
  if (biases != 0 && biases != wanted_biases) throw ShapeError(fmt::format("{} biases, not {}", biases, wanted_biases));
  return packed;
}

}  // namespace

std::vector<Shape> measure_decoder_matrices(const LayerConfig& config, std::span<const DecoderMatrix> matrices,
                                            std::size_t biases) {
  std::vector<Shape> shapes;
  for (const PackedMatrix& matrix : read_matrices(config, matrices, biases)) shapes.push_back(matrix.place.shape);
  return shapes;
}

namespace {

constexpr std::size_t kBlockValues = 32, kBlockBytes = 20, kCodeBytes = 16;  // of entity_q4_0: a float32, then codes
constexpr std::size_t kWordsPerBlock = kCodeBytes / sizeof(std::uint32_t);

void load_blocks(Layer& layer, std::span<const PackedMatrix> matrices, std::span<const float> biases) {
  layer.config.dtype = BlockFormat::entity_q4_0;
  WeightStore store(weight_shape(layer.config));
  std::vector<std::byte> packed(packed_bytes(layer.config.dtype, store.shape()));
  for (const PackedMatrix& matrix : matrices) {
    std::byte* to = packed.data() + matrix.place.first / kBlockValues * kBlockBytes;
    const std::uint32_t* words = matrix.words.data();
    for (const float scale : matrix.scales) {
      std::memcpy(to, &scale, sizeof scale);
      std::memcpy(to + sizeof scale, words, kCodeBytes);
      to += kBlockBytes;
      words += kWordsPerBlock;
    }
  }
  std::ranges::copy(std::as_bytes(biases), packed.end() - static_cast<std::ptrdiff_t>(biases.size_bytes()));
  store.set_loaded(layer.config.scheme(), packed, std::span<const float>());
  layer.weights = std::move(store);
}

/// What the original's buffers on GPUs ask for.
std::size_t padded_words(std::size_t blocks) {
  return std::max<std::size_t>(512, (blocks * kWordsPerBlock + 63) / 64 * 64);
}

template <class T>
void put(std::vector<std::byte>& bytes, T value) {
  const auto raw = std::as_bytes(std::span(&value, 1));
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

}  // namespace

std::vector<OutgoingMatrix> emit_decoder_matrices(const LayerConfig& config, std::span<const std::byte> packed,
                                                  std::span<const std::size_t> words) {
  const int first_key = first_key_of(config);
  std::vector<OutgoingMatrix> emitted;
  for (const Place& place : places_of(config)) {
    const std::size_t index = emitted.size(), blocks = place.count / kBlockValues;
    const std::size_t padded = index < words.size() ? words[index] : padded_words(blocks);
    auto& [key, bytes] = emitted.emplace_back(first_key + static_cast<int>(index), std::vector<std::byte>());
    bytes.reserve(2 * sizeof(std::uint32_t) + blocks * sizeof(float) + padded * sizeof(std::uint32_t));
    put(bytes, checked_cast<std::uint32_t>(blocks, "blocks of a matrix"));
    put(bytes, checked_cast<std::uint32_t>(padded, "words of a matrix"));
    const auto own = packed.subspan(place.first / kBlockValues * kBlockBytes, blocks * kBlockBytes);
    for (std::size_t part = 0; part < 2; ++part) {  // all scales, then all codes
      for (std::size_t i = 0; i < blocks; ++i) {
        const auto block = own.subspan(i * kBlockBytes, kBlockBytes);
        const auto bytes_of_part = part == 0 ? block.first(sizeof(float)) : block.subspan(sizeof(float));
        bytes.insert(bytes.end(), bytes_of_part.begin(), bytes_of_part.end());
      }
    }
    bytes.resize(bytes.size() + (padded - blocks * kWordsPerBlock) * sizeof(std::uint32_t));
  }
  return emitted;
}

std::vector<std::size_t> install_decoder_matrices(Layer& layer, std::span<const DecoderMatrix> matrices,
                                                  std::span<const float> biases) {
  std::vector<PackedMatrix> packed = read_matrices(layer.config, matrices, biases.size());
  const WeightShape shape = weight_shape(layer.config);
  const auto is_blocks = [](const PackedMatrix& matrix) { return !is_ternary(*matrix.blob); };
  if (std::ranges::all_of(packed, is_blocks) && shape.row_length() % kBlockValues == 0) {
    load_blocks(layer, packed, biases);
    std::ranges::sort(packed, {}, [](const PackedMatrix& matrix) { return matrix.place.first; });
    std::vector<std::size_t> words;
    for (const PackedMatrix& matrix : packed) words.push_back(matrix.words.size());
    return words;
  }
  layer.config.dtype = DType::float32;  // the values are kept exactly
  WeightStore store(shape);
  const std::span<float> master = store.edit_master();
  for (const PackedMatrix& matrix : packed) decode(matrix, master);
  if (!biases.empty()) std::ranges::copy(biases, master.last(biases.size()).begin());
  layer.weights = std::move(store);
  return {};
}

}  // namespace imago::checkpoint
