// Layout and decoders of the GPU, run on the host, against the codecs that define the formats.

#include "kernels/cuda/decode.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "imago/codec.h"
#include "imago/numeric.h"
#include "kernels/cuda/host_layout.h"
#include "kernels/cuda/tile_dot.cuh"
#include "testing/blocks.h"
#include "testing/gpu_samples.h"

namespace imago::kernels::cuda {
namespace {

using testing::all_formats;

/// A matrix of random bits, so that every code occurs, with the weights that the codec of the host makes of it.
struct Sample {
  Format format = DType::float32;
  std::size_t rows, cols, first, scale_group;
  std::vector<std::byte> packed;
  std::vector<float> scales, decoded;  // decoded[0] is the first weight of the matrix
  std::vector<float> zero_points;      // of unsigned types with codes in planes: the same for all
  std::vector<std::byte> memory;
  Planes planes;

  Sample(Format f, std::size_t r, std::size_t c, std::size_t weights_in_front, std::size_t group, unsigned seed)
      : format(f), rows(r), cols(c), first(weights_in_front), scale_group(group == 0 ? first + r * c : group) {
    const std::size_t all = first + rows * cols;
    packed.resize(packed_bytes(format, all));
    decoded.resize(all);
    if (format.is_block()) {
      encode(format.block(), testing::gaussian(all, seed, 0.3f), packed);
      randomise_codes(seed);
      decode(format.block(), packed, decoded);
    } else {
      std::mt19937 random(seed);
      for (std::size_t i = 0; i <= all / scale_group; ++i)
        scales.push_back(static_cast<float>(random() % 1000) / 700.0f);
      std::vector<float> values = testing::gaussian(all, seed, 0.3f);
      for (float& v : values) v *= 300.0f;
      const DTypeInfo& type = info(format.dtype());
      if (type.kind == NumberKind::unsigned_integer && type.bits <= 8) {
        zero_points.assign(scales.size(), static_cast<float>(seed % 3) * type.scale_divisor / 3);
        for (float& zero : zero_points) zero = std::floor(zero);
      }
      if (bits(format.dtype()) > 8) {
        encode(format.dtype(), values, {scales, scale_group}, packed);
      } else {
        for (std::byte& b : packed) b = static_cast<std::byte>(random());
      }
      decode(format.dtype(), packed, {scales, scale_group, zero_points}, decoded);
    }
    decoded.erase(decoded.begin(), decoded.begin() + static_cast<std::ptrdiff_t>(first));
    const PlaneLayout layout(source());
    memory.resize(layout.bytes + 16, std::byte{0xA5});
    std::byte* base = memory.data();
    const std::size_t middle = std::min<std::size_t>(kMostTileRows, rows);  // two ranges, as an upload in pieces has
    for (const auto& [begin, end] : {std::pair{std::size_t{0}, middle}, {middle, rows}}) {
      lay_out_rows(source(), layout, begin, end,
                   {base + layout.codes_at + begin * layout.codes_row, base + layout.high_at + begin * layout.high_row,
                    base + layout.scales_at + begin * layout.scales_row,
                    reinterpret_cast<float*>(base + layout.row_scales_at + begin * layout.row_scales_row)});
    }
    for (std::size_t i = layout.bytes; i < memory.size(); ++i) EXPECT_EQ(memory[i], std::byte{0xA5});
    planes = layout.planes(base);
  }

  PackedMatrix source() const { return {format, rows, cols, packed, {scales, scale_group, zero_points}, first}; }

 private:
  /// Codes anew, scales as the encoder chose them: it leaves out some codes.
  void randomise_codes(unsigned seed) {
    std::mt19937 random(seed);
    const BlockFormatInfo& f = info(format.block());
    const auto codes = [&]() -> std::pair<std::size_t, std::size_t> {
      const std::size_t end = static_cast<std::size_t>(f.bytes);
      if (f.id == BlockFormat::tq1_0 || f.id == BlockFormat::tq2_0) return {0, 0};  // some digits mean nothing
      if (f.id == BlockFormat::iq1_m) return {0, 48};
      if (f.id == BlockFormat::q2_k) return {16, 80};
      if (f.id == BlockFormat::q3_k) return {0, 96};
      if (f.id == BlockFormat::q6_k) return {0, 192};
      if (f.id == BlockFormat::q4_k || f.id == BlockFormat::q5_k) return {16, end};
      return {end - 16, end};
    }();
    for (std::size_t b = 0; b < packed.size(); b += static_cast<std::size_t>(f.bytes)) {
      for (std::size_t i = codes.first; i < codes.second; ++i) packed[b + i] = static_cast<std::byte>(random());
    }
  }
};

std::vector<Sample> samples(Format format) {
  std::vector<Sample> all;
  const std::size_t block = static_cast<std::size_t>(format.block_values());
  if (format.is_block()) {
    for (const std::size_t blocks : {1, 3, 5}) all.emplace_back(format, 7, blocks * block, 2 * block, 0, 11u);
    // More rows than a range has to have, and rows whose scale tiles lie in pairs.
    all.emplace_back(format, 21, (2 * kScaleTileGroups * kGroup / block + 1) * block, 0, 0, 15u);
    all.emplace_back(format, 18, (kShortTileGroups * kGroup / block + 1) * block, 0, 0, 16u);
    return all;
  }
  for (const std::size_t cols : {1, 31, 32, 37, 100, 256}) {
    for (const std::size_t first : {0, 3}) all.emplace_back(format, 5, cols, first, 0, 12u);
    all.emplace_back(format, 5, cols, 0, cols, 13u);
  }
  all.emplace_back(format, 19, 100, 3, 0, 17u);
  all.emplace_back(format, 19, 100, 0, 100, 18u);
  for (const std::size_t group : {32, 64, 128}) all.emplace_back(format, 3, 640, 128, group, 14u);
  return all;
}

TEST(PlaneSource, ZeroPointsThatDifferAreDecoded) {
  const std::vector<float> weights = testing::gaussian(8 * 64, 3, 0.3f);
  for (const DType dtype : {DType::uint4, DType::uint16}) {
    std::vector<std::byte> packed(packed_bytes(dtype, weights.size()));
    const std::vector<float> scales(8, 0.1f), zeros = {1, 2, 3, 4, 5, 6, 7, 8};
    encode(dtype, weights, {scales, 64, zeros}, packed);
    std::vector<float> decoded(weights.size());
    decode(dtype, packed, {scales, 64, zeros}, decoded);
    const PackedMatrix some{dtype, 3, 64, packed, {scales, 64, zeros}, 128};
    const PlaneSource source(some);
    ASSERT_EQ(source.matrix().format, Format(DType::float32));
    EXPECT_EQ(std::memcmp(source.matrix().packed.data() + 128 * sizeof(float), decoded.data() + 128, 3 * 64 * 4), 0);
    EXPECT_EQ(source.matrix().first, 128u);
    const PackedMatrix one{dtype, 1, 64, packed, {scales, 64, zeros}, 128};
    EXPECT_EQ(PlaneSource(one).matrix().format, Format(dtype == DType::uint4 ? dtype : DType::float32))
        << "a single zero point has a place in planes of codes";
  }
}

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

TEST(GpuDecode, FloatsAreThoseOfTheCodecs) {
  for (const Format format : all_formats()) {
    for (const Sample& s : samples(format)) {
      visit_form(format, [&]<class Form>(std::type_identity<Form>) {
        for (std::size_t i = 0; i < s.rows * s.planes.groups; ++i) {
          const std::size_t row = i / s.planes.groups, group = i % s.planes.groups;
          float values[32];
          decode_group<Form>(s.planes, row, group, values);
          for (std::size_t j = 0; j < 32; ++j) {
            const std::size_t col = group * 32 + j;
            if (col >= s.cols) {
              ASSERT_TRUE(std::isfinite(values[j])) << format.name() << " past the end of the row";
              continue;
            }
            ASSERT_TRUE(same(values[j], s.decoded[row * s.cols + col]))
                << format.name() << " " << s.rows << " × " << s.cols << " from " << s.first << ", groups of "
                << s.scale_group << ", row " << row << ", column " << col << ": " << values[j] << ", not "
                << s.decoded[row * s.cols + col];
          }
        }
      });
      if (HasFatalFailure()) return;
    }
  }
}

/// Dot products as the kernel does them: integers, scales outside.
TEST(GpuDecode, WordsGiveTheDotProducts) {
  std::mt19937 random(5);
  for (const Format format : all_formats()) {
    for (const Sample& s : samples(format)) {
      visit_form(format, [&]<class Form>(std::type_identity<Form>) {
        if constexpr (Form::kCoded) {
          for (std::size_t i = 0; i < s.rows * s.planes.groups; ++i) {
            const GroupBytes<Form> g = load_group<Form>(s.planes, i / s.planes.groups, i % s.planes.groups);
            float values[32];
            decode_floats<Form>(g, Form::zero(s.planes), values);
            std::uint32_t words[8], q[8];
            Form::Codes::words(g.codes, g.high, words);
            const GroupScale scale = scales_of<Form>(g);
            double want = 0, got = 0, magnitude = 0;
            constexpr int kParts = Form::Scales::kParts;
            for (int part = 0; part < kParts; ++part) {
              std::int32_t dot = 0, sum = 0;
              for (int w = part * 8 / kParts; w < (part + 1) * 8 / kParts; ++w) {
                q[w] = static_cast<std::uint32_t>(random());
                dot = dot4(words[w], q[w], dot);
                sum = dot4(0x01010101u, q[w], sum);
                for (int j = 0; j < 4; ++j) {
                  const double product = static_cast<double>(values[4 * w + j]) * signed_byte(q[w], j);
                  want += product;
                  magnitude += std::fabs(product);
                }
              }
              const double code_sum =
                  static_cast<double>(Form::kStep) * dot - static_cast<double>(Form::zero(s.planes)) * sum;
              got += static_cast<double>(scale.scale[part]) * code_sum - static_cast<double>(scale.min[part]) * sum;
            }
            ASSERT_NEAR(got, want, 1e-6 * magnitude + 1e-12) << format.name() << " " << s.cols << " group " << i;
          }
        }
      });
      if (HasFatalFailure()) return;
    }
  }
}

template <class Pair>
double pair_value(std::uint32_t pair, std::size_t i) {
  const std::uint16_t bits = static_cast<std::uint16_t>(pair >> 16 * i);
  return static_cast<double>(std::is_same_v<Pair, PairHalf> ? float_of_half(bits) : float_of_bfloat(bits));
}

template <class Pair>
void expect_pairs(double tolerance) {
  for (const Format format : all_formats()) {
    for (const Sample& s : samples(format)) {
      visit_form(format, [&]<class Form>(std::type_identity<Form>) {
        if constexpr (Form::kCoded) {
          for (std::size_t i = 0; i < s.rows * s.planes.groups; ++i) {
            const GroupBytes<Form> g = load_group<Form>(s.planes, i / s.planes.groups, i % s.planes.groups);
            float values[32];
            decode_floats<Form>(g, Form::zero(s.planes), values);
            std::uint32_t pairs[16];
            decode_pairs<Pair, Form>(g, Form::zero(s.planes), pairs);
            const GroupScale scale = scales_of<Form>(g);
            for (std::size_t j = 0; j < 32; ++j) {
              const std::size_t part = Form::Scales::kParts == 2 ? j / 16 : 0;
              const double min = Form::Scales::kHasMin ? std::fabs(static_cast<double>(scale.min[part])) : 0.0;
              const double size = std::fabs(static_cast<double>(values[j])) + 2 * min;
              ASSERT_NEAR(pair_value<Pair>(pairs[j / 2], j % 2), static_cast<double>(values[j]),
                          tolerance * size + 1e-7)
                  << format.name() << " weight " << j;
            }
          }
        }
      });
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

/// What tensor cores do for CodeDot, for two groups.
struct PlainSums {
  using X = std::uint32_t[2][8];
  std::int32_t group[2] = {};

  template <bool kSigned>
  void add(const WordPair& first, const WordPair& second, const X& x, int i) {
    const auto dot = kSigned ? dot4 : dot4_unsigned;
    for (int g = 0; g < 2; ++g) {
      group[g] = dot(second.group[g], x[g][2 * i + 1], dot(first.group[g], x[g][2 * i], group[g]));
    }
  }
  void times_plus(std::int32_t factor, const PlainSums& others) {
    for (int g = 0; g < 2; ++g) group[g] = group[g] * factor + others.group[g];
  }
};

/// Products of packed codes are those of the words that the codes are taken apart into, for all codes and activations.
template <class Codes, int kParts>
void expect_packed_dots() {
  std::mt19937 random(3);
  const auto fill = [&](auto& words) {
    for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
  };
  for (int round = 0; round < 200; ++round) {
    CodePair<Codes> pair{};
    PlainSums::X x, placed;
    PlainSums got[kParts], of_words[kParts];
    for (int g = 0; g < 2; ++g) {
      fill(pair.codes[g]);
      fill(pair.high[g]);
      fill(x[g]);
      for (std::uint32_t i = 0; i < 8; ++i) placed[g][CodeDot<Codes>::place(i)] = x[g][i];
    }
    CodeDot<Codes>::template dots<kParts>(pair, placed, got);
    CodeWords<Codes>(pair).dots(x, of_words);
    for (int g = 0; g < 2; ++g) {
      std::uint32_t words[8];
      Codes::words(pair.codes[g], pair.high[g], words);
      for (int part = 0; part < kParts; ++part) {
        std::int32_t expected = 0;
        for (int i = part * 8 / kParts; i < (part + 1) * 8 / kParts; ++i) {
          for (int j = 0; j < 4; ++j) {
            const std::int32_t code =
                Codes::kSigned ? signed_byte(words[i], j) : static_cast<std::int32_t>(words[i] >> 8 * j & 0xFFu);
            expected += code * signed_byte(x[g][i], j);
          }
        }
        const int factor = static_cast<int>(CodeDot<Codes>::factor(part, kParts));
        ASSERT_EQ(got[part].group[g], expected * factor) << "part " << part;
        ASSERT_EQ(of_words[part].group[g], expected) << "part " << part;
      }
    }
  }
}

TEST(GpuDecode, PackedCodesGiveTheDotProducts) {
  expect_packed_dots<Codes1, 1>();
  expect_packed_dots<Codes2, 1>();
  expect_packed_dots<Codes2, 2>();
  expect_packed_dots<Codes3, 2>();
  expect_packed_dots<Codes4, 1>();
  expect_packed_dots<Codes5, 1>();
  expect_packed_dots<Codes6, 2>();
  expect_packed_dots<Codes8, 1>();
  expect_packed_dots<CodesTable<quant::Iq4Levels>, 1>();
  expect_packed_dots<CodesTable<quant::E2M1Levels>, 1>();
  expect_packed_dots<CodesTable<quant::E2M1Levels>, 2>();
}

TEST(GpuDecode, PairsOfBfloat) { expect_pairs<PairBfloat>(0x1p-7); }
TEST(GpuDecode, PairsOfHalf) { expect_pairs<PairHalf>(0x1p-10); }

TEST(GpuDecode, HalfConversions) {
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const float value = float_of_half(static_cast<std::uint16_t>(code));
    const float want = from_half(Half{static_cast<std::uint16_t>(code)});
    ASSERT_TRUE(same(value, want)) << code;
    if (!std::isnan(want)) {
      ASSERT_EQ(half_of_float(want), code);
      for (const float off : {std::nextafter(want, 1e9f), want * 1.0004f}) {
        ASSERT_EQ(half_of_float(off), to_half(off).bits) << off;
      }
    }
    if (code < 256) {
      const std::uint8_t byte = static_cast<std::uint8_t>(code);
      ASSERT_TRUE(same(plain_float(Fp8E4M3{byte}), from_fp8e4m3({byte}))) << code;
      ASSERT_TRUE(same(plain_float(Fp8E5M2{byte}), from_fp8e5m2({byte}))) << code;
    }
  }
}

}  // namespace
}  // namespace imago::kernels::cuda
