// The dtype rows of the codec table against `ref`, byte for byte.

#include "kernels/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "testing/random_values.h"

namespace imago {

namespace kernels {
void PrintTo(const CodecKernel& row, std::ostream* out) { *out << row.name; }  // for the messages of the test library
}  // namespace kernels

namespace {

using testing::gaussian;

using kernels::all_codecs;
using kernels::CodecKernel;

// Around one vector, one chunk of 256, and the ends between them.
constexpr std::size_t kCodecCounts[] = {0,  1,  2,   3,   4,   5,   7,   8,   9,   15,  16,  17,   31,  33,
                                        63, 65, 127, 129, 255, 256, 257, 263, 511, 513, 777, 1024, 1031};

// 1 is a scale per weight; 3, 5 and 7 end amid bytes and vectors; 256 with the chunk; 300 amid a chunk.
constexpr std::size_t kGroups[] = {1, 3, 5, 7, 8, 32, 100, 256, 300, 1'000'000};

bool host_runs(const CodecKernel& row) { return (row.needs & host_cpu_features()) == row.needs; }

const CodecKernel& ref_row(Format format) { return kernels::choose_codec(format, kNoFeatures); }

std::vector<float> random_bit_patterns(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  return values;
}

/// Where rules change: halves and their neighbours, the ends of every integer type, subnormals, infinities, NaNs.
std::vector<float> corner_values() {
  std::vector<float> positive = {0,        0.25f,    0.5f,     0.75f,     1.25f,     1.75f,    2.5f,
                                 5,        6,        7,        448,       464,       57344,    61440,
                                 65504,    65520,    0x1p-6f,  0x1p-9f,   0x1p-10f,  0x1p-14f, 0x1p-16f,
                                 0x1p-17f, 0x1p-24f, 0x1p-25f, 0x1p-126f, 0x1p-133f, 0x1p-149f};
  for (int exponent = 0; exponent <= 65; ++exponent) {
    for (const float offset : {-1.0f, -0.5f, 0.0f, 0.5f, 1.0f}) {
      positive.push_back(std::ldexp(1.0f, exponent) + offset);
    }
  }
  positive.push_back(std::numeric_limits<float>::max());
  std::vector<float> values;
  for (const float value : positive) {
    for (const float near : {std::nextafterf(value, -INFINITY), value, std::nextafterf(value, INFINITY)}) {
      values.push_back(near);
      values.push_back(-near);
    }
  }
  for (const std::uint32_t nan : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFF800001u, 0x7FFFFFFFu, 0x7FA12345u}) {
    values.push_back(std::bit_cast<float>(nan));
  }
  values.push_back(INFINITY);
  values.push_back(-INFINITY);
  return values;
}

struct Grouped {
  std::vector<float> scales;
  std::size_t group;
  std::vector<float> zero_points = {};

  const float* zeros() const { return zero_points.empty() ? nullptr : zero_points.data(); }
};

bool has_zero_points(const CodecKernel& row) { return info(row.format.dtype()).kind == NumberKind::unsigned_integer; }

/// As many zero points as scales, from none to the largest.
std::vector<float> zero_points_for(const CodecKernel& row, std::size_t count) {
  const auto most = static_cast<std::uint32_t>(info(row.format.dtype()).scale_divisor);
  std::mt19937 random(5);
  std::vector<float> zeros(count);
  for (float& zero : zeros) zero = static_cast<float>(random() % (most + 1));
  zeros.back() = static_cast<float>(most);
  return zeros;
}

/// `count` elements between bytes that nobody may write. Bytes start at an odd address: packed weights have no
/// alignment.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::size_t count) : storage_(count + 2 * kGuards, guard()) {}
  T* data() { return storage_.data() + kGuards; }
  const T* data() const { return storage_.data() + kGuards; }
  std::size_t bytes() const { return (storage_.size() - 2 * kGuards) * sizeof(T); }
  bool is_intact() const {
    const T wanted = guard();
    const auto is_guard = [&](const T& v) { return std::memcmp(&v, &wanted, sizeof v) == 0; };
    return std::all_of(storage_.begin(), storage_.begin() + kGuards, is_guard) &&
           std::all_of(storage_.end() - kGuards, storage_.end(), is_guard);
  }
  bool operator==(const Guarded& other) const {
    return bytes() == other.bytes() && std::memcmp(data(), other.data(), bytes()) == 0;
  }

 private:
  static constexpr std::ptrdiff_t kGuards = 61;
  static T guard() {
    T value;
    std::memset(&value, 0xA5, sizeof value);
    return value;
  }
  std::vector<T> storage_;
};

using Packed = Guarded<std::byte>;
using Unpacked = Guarded<float>;

Packed encode_with(const CodecKernel& row, std::span<const float> weights, const Grouped& scales, std::size_t first) {
  Packed packed(packed_bytes(row.format, weights.size()));
  row.encode({.weights = weights.data(),
              .count = weights.size(),
              .packed = packed.data(),
              .scales = scales.scales.data(),
              .group = scales.group,
              .first = first,
              .importance = nullptr,
              .row_values = 0,
              .zero_points = scales.zeros()});
  return packed;
}

Unpacked decode_with(const CodecKernel& row, const Packed& packed, std::size_t count, const Grouped& scales,
                     std::size_t first) {
  Unpacked weights(count);
  row.decode({.packed = packed.data(),
              .count = count,
              .weights = weights.data(),
              .scales = scales.scales.data(),
              .group = scales.group,
              .first = first,
              .zero_points = scales.zeros()});
  return weights;
}

class DTypeRow : public ::testing::TestWithParam<CodecKernel> {
 protected:
  void SetUp() override {
    if (!host_runs(row_)) GTEST_SKIP() << "this host cannot run " << row_.name;
  }

  void expect_encodes_as_ref(std::span<const float> weights, const Grouped& scales, std::size_t first = 0) {
    const Packed got = encode_with(row_, weights, scales, first);
    const Packed wanted = encode_with(ref_, weights, scales, first);
    ASSERT_TRUE(got == wanted) << row_.name << " encodes " << weights.size() << " weights from " << first
                               << " on otherwise, groups of " << scales.group;
    ASSERT_TRUE(got.is_intact()) << row_.name << " writes outside, " << weights.size() << " weights";
    expect_decodes_as_ref(got, weights.size(), scales, first);
  }

  void expect_decodes_as_ref(const Packed& packed, std::size_t count, const Grouped& scales, std::size_t first = 0) {
    const Unpacked got = decode_with(row_, packed, count, scales, first);
    ASSERT_TRUE(got == decode_with(ref_, packed, count, scales, first))
        << row_.name << " decodes " << count << " weights from " << first << " on otherwise, groups of "
        << scales.group;
    ASSERT_TRUE(got.is_intact()) << row_.name << " writes outside, " << count << " weights";
  }

  const CodecKernel row_ = GetParam();
  const CodecKernel& ref_ = ref_row(GetParam().format);
};

TEST_P(DTypeRow, AnyCountAndGroup) {
  for (const std::size_t count : kCodecCounts) {
    const std::vector<float> weights = gaussian(count, static_cast<std::uint32_t>(count));
    for (const std::size_t group : kGroups) {
      for (const std::size_t first : {0, 8, 16, 248, 1000}) {
        Grouped scales{gaussian((first + count) / group + 1, 7), group};
        for (float& scale : scales.scales) scale = std::fabs(scale) / 7;
        scales.scales[0] = 0;  // acts as 1
        expect_encodes_as_ref(weights, scales, first);
        if (!has_zero_points(row_)) continue;
        scales.zero_points = zero_points_for(row_, scales.scales.size());
        expect_encodes_as_ref(weights, scales, first);
      }
    }
  }
}

TEST_P(DTypeRow, CornersUnderManyScales) {
  const std::vector<float> corners = corner_values();
  for (const float scale : {1.0f, 0.0f, 0.1f, 3.0f, 1 / 127.0f, 0x1p-20f, 0x1p-31f, 0x1p-64f, 1e-30f, 1e30f, 0x1p-149f,
                            std::numeric_limits<float>::max()}) {
    std::vector<float> weights = corners;
    for (const float corner : corners) weights.push_back(corner * scale);
    expect_encodes_as_ref(weights, {{scale}, weights.size()});
    if (!has_zero_points(row_)) continue;
    for (const float zero : {1.0f, zero_points_for(row_, 1).front()}) {
      expect_encodes_as_ref(weights, {{scale}, weights.size(), {zero}});
    }
  }
}

TEST_P(DTypeRow, RandomBitPatterns) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> weights = random_bit_patterns(5003, seed);
    expect_encodes_as_ref(weights, {{1, 0.01f, 1e-9f, 1e20f}, 1300});
  }
}

// Some codes encode no weight: ternary -2, NaNs with payloads, 64-bit integers that float32 cannot represent.
TEST_P(DTypeRow, DecodesEveryPattern) {
  std::mt19937 random(1);
  const std::size_t count = 1 << 16;
  Packed packed(packed_bytes(row_.format, count));
  for (std::size_t i = 0; i < packed.bytes(); ++i) packed.data()[i] = static_cast<std::byte>(random());
  if (bits(row_.format.dtype()) == 16) {
    for (std::size_t i = 0; i < count; ++i) std::memcpy(packed.data() + 2 * i, &i, 2);
  } else if (bits(row_.format.dtype()) <= 8) {
    for (std::size_t i = 0; i < packed.bytes(); ++i) packed.data()[i] = static_cast<std::byte>(i);
  }
  for (const float scale : {1.0f, 0.3f, 1e-38f, 1e38f}) {
    expect_decodes_as_ref(packed, count, {{scale}, count});
    if (has_zero_points(row_)) expect_decodes_as_ref(packed, count, {{scale}, count, zero_points_for(row_, 1)});
  }
}

TEST_P(DTypeRow, UnusedBitsAreZero) {
  const std::size_t per_byte = static_cast<std::size_t>(8 / std::min(bits(row_.format.dtype()), 8));
  for (std::size_t count = 1; count < 2 * per_byte; ++count) {
    const std::vector<float> weights(count, 1.0f);
    const Packed packed = encode_with(row_, weights, {{1}, count}, 0);
    const std::size_t unused_bits = (per_byte - count % per_byte) % per_byte * (8 / per_byte);
    const unsigned last = std::to_integer<unsigned>(packed.data()[packed.bytes() - 1]);
    EXPECT_EQ(last & ((1u << unused_bits) - 1), 0u) << count;
    if (!has_zero_points(row_)) continue;
    const Packed shifted = encode_with(row_, weights, {{1}, count, {1}}, 0);
    EXPECT_EQ(std::to_integer<unsigned>(shifted.data()[shifted.bytes() - 1]) & ((1u << unused_bits) - 1), 0u) << count;
  }
}

std::vector<CodecKernel> dtype_rows() {
  std::vector<CodecKernel> rows;
  for (const CodecKernel& row : all_codecs()) {
    if (!row.format.is_block()) rows.push_back(row);
  }
  return rows;
}

std::string test_name(const ::testing::TestParamInfo<CodecKernel>& row) {
  std::string name = row.param.name;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Table, DTypeRow, ::testing::ValuesIn(dtype_rows()), test_name);

TEST(CodecTable, EveryDTypeEndsWithRef) {
  const std::vector<CodecKernel> rows = dtype_rows();
  for (const DTypeInfo& type : kDTypes) {
    const auto last =
        std::find_if(rows.rbegin(), rows.rend(), [&](const CodecKernel& r) { return r.format == type.id; });
    ASSERT_NE(last, rows.rend()) << type.name;
    EXPECT_EQ(last->name, std::string(type.name) + "/ref");
    EXPECT_EQ(last->needs, kNoFeatures);
  }
}

TEST(CodecTable, ChoosesTheFirstRowThatRuns) {
  EXPECT_EQ(kernels::choose_codec(DType::int4, kNoFeatures).name, "int4/ref");
#if defined(__x86_64__)
  EXPECT_EQ(kernels::choose_codec(DType::int4, kAvx2).name, "int4/avx2");
  EXPECT_EQ(kernels::choose_codec(DType::int4, kAvx2 | kAvx512).name, "int4/avx512");
  EXPECT_EQ(kernels::choose_codec(DType::int4, kAvx512).name, "int4/ref");  // no machine is like that
#elif defined(__aarch64__)
  EXPECT_EQ(kernels::choose_codec(DType::int4, kNeonDot).name, "int4/neon");
#endif
}

}  // namespace
}  // namespace imago
