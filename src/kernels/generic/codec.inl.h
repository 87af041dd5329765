// Packing and unpacking over the lanes of the surrounding namespace; the result is that of kernels/ref/codec.cpp bit
// for bit. The whole of a folder's codec.cpp: the includer provides lanes, kernels/folders.h and quant/block_data.h.
//
// Dtypes are converted in chunks of 256 weights: whole vectors, whole bytes, and enough codes for the last step of
// joining bits (4 · kLanes bytes in, see join_pairs) with 16 lanes. Only the last, short chunk takes a detour
// through a padded copy; no loop below knows about tails. A chunk and its scales stay within the first-level cache.

using namespace imago::quant;  // the plain data of block formats

namespace {

// clang-format off
#include "quant/blocks.inl.h"
#include "kernels/generic/dtype_lanes.inl.h"
// clang-format on

inline constexpr int kChunk = 256;

/// What the weights of a chunk are scaled with, one value for each of them, so that groups may end anywhere, even
/// inside a byte.
struct ChunkScales {
  alignas(64) float scales[kChunk];
  alignas(64) float zero_points[kChunk];
};

template <Numeric T>
void encode_chunk(const float* weights, const ChunkScales& by, std::byte* packed) noexcept {
  const auto encode_all = [&](std::byte* to, int code_bytes) {
    for (int i = 0; i < kChunk; i += kLanes) {
      encode_lanes<T>(load_floats(weights + i), load_floats(by.scales + i), load_floats(by.zero_points + i),
                      to + i * code_bytes);
    }
  };
  if constexpr (kBits<T> >= 8) {
    encode_all(packed, kBits<T> / 8);
  } else {
    std::byte fields[kChunk];
    encode_all(fields, 1);
    int bytes = kChunk;
    for (int width = kBits<T>; width < 8; width *= 2) {
      for (int i = 0; i < bytes; i += 4 * kLanes) join_pairs(fields + i, 1 << width, fields + i / 2);
      bytes /= 2;
    }
    __builtin_memcpy(packed, fields, kChunk * kBits<T> / 8);
  }
}

template <Numeric T>
void decode_chunk(const std::byte* packed, const ChunkScales& by, float* weights) noexcept {
  for (int i = 0; i < kChunk; i += kLanes) {
    const Floats values = decode_lanes<T>(packed, i);
    if constexpr (kKind<T> == NumberKind::wide_float) {
      store_floats(values, weights + i);
    } else if constexpr (kKind<T> == NumberKind::unsigned_integer) {
      store_floats((values - load_floats(by.zero_points + i)) * load_floats(by.scales + i), weights + i);
    } else {
      store_floats(values * load_floats(by.scales + i), weights + i);
    }
  }
}

/// The scales of one chunk after another.
class ScaleWalk {
 public:
  template <class Args>
  explicit ScaleWalk(const Args& a) noexcept
      : scale_(a.scales + a.first / a.group),
        zero_point_(a.zero_points == nullptr ? nullptr : a.zero_points + a.first / a.group),
        group_(a.group),
        left_(a.group - a.first % a.group) {
    clear();
  }

  /// Those of the next `count` weights. Costs nothing while a group goes on.
  const ChunkScales& next(int count) noexcept {
    if (is_uniform_ && left_ >= static_cast<std::size_t>(count)) {
      left_ -= static_cast<std::size_t>(count);
      if (count < kChunk && zero_point_ != nullptr) {
        for (int i = count; i < kChunk; ++i) values_.zero_points[i] = 0;
      }
      return values_;
    }
    if (count < kChunk) clear();
    int run = 0;
    for (int i = 0; i < count; i += run) {
      if (left_ == 0) {
        ++scale_;
        if (zero_point_ != nullptr) ++zero_point_;
        left_ = group_;
      }
      run = left_ < static_cast<std::size_t>(count - i) ? static_cast<int>(left_) : count - i;
      left_ -= static_cast<std::size_t>(run);
      const float scale = *scale_ == 0 ? 1 : *scale_;
      for (int j = i; j < i + run; ++j) values_.scales[j] = scale;
      if (zero_point_ == nullptr) continue;
      for (int j = i; j < i + run; ++j) values_.zero_points[j] = *zero_point_;
    }
    is_uniform_ = run == kChunk;
    return values_;
  }

 private:
  /// What a short chunk leaves unused must be harmless, and the code of NaN there 0.
  void clear() noexcept {
    for (float& value : values_.scales) value = 1;
    for (float& value : values_.zero_points) value = 0;
  }

  ChunkScales values_;
  const float* scale_;
  const float* zero_point_;  // null: all 0
  std::size_t group_;
  std::size_t left_;  // weights that *scale_ still covers
  bool is_uniform_ = false;
};

// ---- Any count

template <Numeric T>
void encode(const EncodeArgs& a) noexcept {
  ScaleWalk scales(a);
  std::size_t done = 0;
  for (; a.count - done >= kChunk; done += kChunk) {
    encode_chunk<T>(a.weights + done, scales.next(kChunk), a.packed + done / 8 * kBits<T>);
  }
  const int left = static_cast<int>(a.count - done);
  if (left == 0) return;
  float weights[kChunk];
  for (float& weight : weights)
    weight = __builtin_nanf("");  // the weight whose field is 0 in every type that shares bytes
  std::byte packed[kChunk * kBits<T> / 8];
  __builtin_memcpy(weights, a.weights + done, static_cast<std::size_t>(left) * sizeof(float));
  encode_chunk<T>(weights, scales.next(left), packed);
  __builtin_memcpy(a.packed + done / 8 * kBits<T>, packed, static_cast<std::size_t>((left * kBits<T> + 7) / 8));
}

template <Numeric T>
void decode(const DecodeArgs& a) noexcept {
  ScaleWalk scales(a);
  std::size_t done = 0;
  for (; a.count - done >= kChunk; done += kChunk) {
    decode_chunk<T>(a.packed + done / 8 * kBits<T>, scales.next(kChunk), a.weights + done);
  }
  const int left = static_cast<int>(a.count - done);
  if (left == 0) return;
  std::byte packed[kChunk * kBits<T> / 8] = {};
  float weights[kChunk];
  __builtin_memcpy(packed, a.packed + done / 8 * kBits<T>, static_cast<std::size_t>((left * kBits<T> + 7) / 8));
  decode_chunk<T>(packed, scales.next(left), weights);
  __builtin_memcpy(a.weights + done, weights, static_cast<std::size_t>(left) * sizeof(float));
}

template <class Block>
requires(!Numeric<Block>) void encode(const EncodeArgs& a) noexcept {
  encode_blocks<Block>(a.weights, a.count, a.importance, a.row_values, a.first, a.packed);
}

template <class Block>
requires(!Numeric<Block>) void decode(const DecodeArgs& a) noexcept {
  decode_blocks<Block>(a.packed, a.count, a.weights);
}

}  // namespace

EncodeFunction encoder(Format format) noexcept {
  return visit(format, []<class T>(std::type_identity<T>) -> EncodeFunction { return &encode<T>; });
}

DecodeFunction decoder(Format format) noexcept {
  return visit(format, []<class T>(std::type_identity<T>) -> DecodeFunction { return &decode<T>; });
}
