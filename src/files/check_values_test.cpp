// Weights from strangers: what is not finite, what stands for nothing (threats.md 35–39).

#include <gtest/gtest.h>

#include <cstring>

#include "files/tensor_file.h"
#include "imago/codec.h"
#include "imago/error.h"
#include "testing/blocks.h"

namespace imago::files {
namespace {

StoredTensor tensor_of(Format format, std::span<const std::byte> bytes, std::size_t count) {
  StoredTensor tensor;
  tensor.name = "w";
  tensor.type = format.name();
  tensor.format = format;
  tensor.shape = Shape{count};
  tensor.bytes = bytes;
  tensor.offset = 1000;
  tensor.file = "f";
  return tensor;
}

std::string problem_of(const StoredTensor& tensor) {
  try {
    check_values(tensor);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "no error";
}

/// Weights of `Word`; `wrong` are codes that must be refused, `right` ones that look like them.
template <class Word>
void check_words(DType dtype, std::initializer_list<std::uint64_t> wrong, std::initializer_list<std::uint64_t> right) {
  constexpr std::size_t kCount = 100'003;  // several chunks and parts of the pool, and a tail
  std::vector<std::byte> bytes(kCount * sizeof(Word) + 1);
  const auto put = [&](std::size_t index, std::uint64_t code) {
    const Word word = static_cast<Word>(code);
    std::memcpy(bytes.data() + 1 + index * sizeof(Word), &word, sizeof word);
  };
  // Files align nothing.
  const StoredTensor tensor = tensor_of(dtype, std::span(bytes).subspan(1), kCount);
  std::size_t next = 0;
  for (const std::uint64_t code : right) put(next++ * 7919 % kCount, code);
  EXPECT_EQ(problem_of(tensor), "no error") << name(dtype);
  for (const std::uint64_t code : wrong) {
    for (const std::size_t index : {std::size_t{0}, std::size_t{4095}, std::size_t{65536}, kCount - 1}) {
      put(index, code);
      put(kCount - 1, code);
      const std::string wanted = "f: at byte " + std::to_string(1000 + index * sizeof(Word)) + ": tensor 'w' (" +
                                 std::string(name(dtype)) + "): " + (index == kCount - 1 ? "1" : "2") +
                                 " of its 100003 weights are not finite (NaN or infinite), the first at index " +
                                 std::to_string(index) + "; use --allow-nonfinite to convert anyway";
      EXPECT_EQ(problem_of(tensor), wanted);
      put(index, 0);
      put(kCount - 1, 0);
    }
  }
}

TEST(CheckValues, FloatsThatAreNotFinite) {
  check_words<std::uint16_t>(DType::float16, {0x7C00, 0xFC00, 0x7E00, 0xFFFF}, {0x7BFF, 0xFBFF, 0x03FF, 0x8000});
  check_words<std::uint16_t>(DType::bfloat16, {0x7F80, 0xFF80, 0x7FC0, 0xFFFF}, {0x7F7F, 0xFF7F, 0x007F, 0x8000});
  check_words<std::uint32_t>(DType::float32, {0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001},
                             {0x7F7FFFFF, 0xFF7FFFFF, 0x007FFFFF, 0x80000000});
  check_words<std::uint64_t>(DType::float64, {0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000},
                             {0x7FEFFFFFFFFFFFFF, 0x000FFFFFFFFFFFFF, 0x7F80000000000000});
  check_words<std::uint8_t>(DType::fp8e4m3, {0x7F, 0xFF}, {0x7E, 0xFE, 0x78, 0x80});
  check_words<std::uint8_t>(DType::fp8e5m2, {0x7C, 0xFC, 0x7D, 0xFF}, {0x7B, 0xFB, 0x80});
}

TEST(CheckValues, IntegersAreAlwaysRight) {
  const std::vector<std::byte> ones(800, std::byte{0xFF});
  for (const DType dtype : {DType::int64, DType::int32, DType::int16, DType::int8, DType::uint64, DType::uint32,
                            DType::uint16, DType::uint8}) {
    EXPECT_EQ(problem_of(tensor_of(dtype, ones, 6400 / static_cast<std::size_t>(bits(dtype)))), "no error");
  }
}

TEST(CheckValues, ExponentTensors) {
  std::vector<std::byte> bytes(9, std::byte{0xFE});
  StoredTensor tensor = tensor_of(DType::uint8, bytes, 9);
  tensor.format.reset();
  tensor.safetensors_type = SafetensorsType::f8_e8m0;
  EXPECT_EQ(problem_of(tensor), "no error");
  bytes[8] = std::byte{0xFF};
  EXPECT_NE(problem_of(tensor).find("1 of its 9 weights are not finite"), std::string::npos);
  tensor.safetensors_type = SafetensorsType::f4;
  EXPECT_EQ(problem_of(tensor), "no error");
}

TEST(CheckValues, TernaryCode10) {
  // 01 11 00 01 | 11 .. of docs/formats/checkpoint.md, then a hole as weight 6.
  std::vector<std::byte> bytes = {std::byte{0x71}, std::byte{0xC0}};
  EXPECT_EQ(problem_of(tensor_of(DType::ternary, bytes, 5)), "no error");
  EXPECT_EQ(problem_of(tensor_of(DType::ternary, bytes, 8)), "no error");
  bytes[1] = std::byte{0xCA};
  EXPECT_EQ(
      problem_of(tensor_of(DType::ternary, bytes, 8)),
      "f: at byte 1001: tensor 'w' (ternary): 2 of its 8 weights have the code 10, which stands for no value, the "
      "first at index 6; use --allow-nonfinite to convert anyway");
}

TEST(CheckValues, PaddingBits) {
  struct Case {
    DType dtype;
    std::size_t count;
    int last;
    int bits;
  };
  for (const auto& [dtype, count, last, unused] :
       {Case{DType::int4, 3, 0x11, 4}, Case{DType::uint4, 3, 0x01, 4}, Case{DType::fp4, 1, 0x08, 4},
        Case{DType::int2, 5, 0x01, 6}, Case{DType::uint2, 7, 0x03, 2}, Case{DType::ternary, 6, 0x01, 4},
        Case{DType::binary, 9, 0x40, 7}, Case{DType::binary, 15, 0x01, 1}}) {
    std::vector<std::byte> bytes(packed_bytes(dtype, count));
    EXPECT_EQ(problem_of(tensor_of(dtype, bytes, count)), "no error");
    bytes.back() = static_cast<std::byte>(last);
    const std::string wanted = "the " + std::to_string(unused) + " bits after the last of " + std::to_string(count);
    EXPECT_NE(problem_of(tensor_of(dtype, bytes, count)).find(wanted), std::string::npos) << name(dtype) << count;
    const std::size_t whole = bytes.size() * 8 / static_cast<std::size_t>(bits(dtype));
    EXPECT_EQ(problem_of(tensor_of(dtype, bytes, whole)), "no error") << "all bits are used";
  }
}

/// The places of the scales of a block, from the pages of docs/blocks.
struct ScalePlaces {
  BlockFormat format;
  std::vector<std::size_t> halves;
};

TEST(CheckValues, ScalesOfBlocks) {
  const std::vector<ScalePlaces> all = {
      {BlockFormat::q4_0, {0}},    {BlockFormat::q4_1, {0, 2}}, {BlockFormat::q5_0, {0}},
      {BlockFormat::q5_1, {0, 2}}, {BlockFormat::q8_0, {0}},    {BlockFormat::q2_k, {80, 82}},
      {BlockFormat::q3_k, {108}},  {BlockFormat::q4_k, {0, 2}}, {BlockFormat::q5_k, {0, 2}},
      {BlockFormat::q6_k, {208}},  {BlockFormat::iq4_nl, {0}},  {BlockFormat::iq4_xs, {0}},
      {BlockFormat::tq1_0, {52}},  {BlockFormat::tq2_0, {64}},  {BlockFormat::iq1_s, {0}},
      {BlockFormat::iq2_xxs, {0}}, {BlockFormat::iq2_xs, {0}},  {BlockFormat::iq2_s, {0}},
      {BlockFormat::iq3_xxs, {0}}, {BlockFormat::iq3_s, {0}},   {BlockFormat::q1_0, {0}},
      {BlockFormat::q2_0, {0}}};
  constexpr std::size_t kBlocks = 9000;
  for (const auto& [format, halves] : all) {
    const auto block_bytes = static_cast<std::size_t>(info(format).bytes);
    const std::size_t count = kBlocks * static_cast<std::size_t>(info(format).values);
    // Bytes that would be NaN everywhere but in the scales; tq2_0 allows no 11.
    std::vector<std::byte> bytes(kBlocks * block_bytes,
                                 static_cast<std::byte>(format == BlockFormat::tq2_0 ? 0xAA : 0xFF));
    const auto put = [&](std::size_t block, std::size_t place, unsigned code) {
      bytes[block * block_bytes + place] = static_cast<std::byte>(code & 0xFF);
      bytes[block * block_bytes + place + 1] = static_cast<std::byte>(code >> 8);
    };
    for (std::size_t i = 0; i < kBlocks; ++i) {
      for (const std::size_t place : halves) put(i, place, i % 2 == 0 ? 0x0000 : 0xFBFF);  // zero, the least finite
    }
    EXPECT_EQ(problem_of(tensor_of(format, bytes, count)), "no error") << name(format);
    for (const std::size_t place : halves) {
      for (const unsigned code : {0x7C00u, 0xFC00u, 0x7E01u}) {
        put(4097, place, code);
        put(8999, place, code);
        const std::string problem = problem_of(tensor_of(format, bytes, count));
        EXPECT_NE(
            problem.find("2 of its 9000 blocks have a scale that is not finite or not allowed, the first at index "
                         "4097; use --allow-nonfinite"),
            std::string::npos)
            << name(format) << ": " << problem;
        put(4097, place, 0);
        put(8999, place, 0);
      }
    }
  }
}

TEST(CheckValues, ScalesThatAreNoHalves) {
  std::vector<std::byte> mxfp4(3 * 17, std::byte{0xFF});
  for (std::size_t i = 0; i < 3; ++i) mxfp4[i * 17] = std::byte{0xFE};
  EXPECT_EQ(problem_of(tensor_of(BlockFormat::mxfp4, mxfp4, 96)), "no error");
  mxfp4[2 * 17] = std::byte{0xFF};
  EXPECT_NE(problem_of(tensor_of(BlockFormat::mxfp4, mxfp4, 96)).find("1 of its 3 blocks"), std::string::npos);

  std::vector<std::byte> iq1_m(3 * 56, std::byte{0xFF});  // the four upper bits of its last four 16-bit numbers
  for (std::size_t i = 0; i < 3; ++i) iq1_m[i * 56 + 55] = std::byte{0xBF};
  EXPECT_EQ(problem_of(tensor_of(BlockFormat::iq1_m, iq1_m, 768)), "no error");
  iq1_m[2 * 56 + 55] = std::byte{0x7F};
  EXPECT_NE(problem_of(tensor_of(BlockFormat::iq1_m, iq1_m, 768)).find("1 of its 3 blocks"), std::string::npos);

  std::vector<std::byte> nvfp4(2 * 36, std::byte{0x7E});
  EXPECT_EQ(problem_of(tensor_of(BlockFormat::nvfp4, nvfp4, 128)), "no error");
  for (const int code : {0x7F, 0xFF, 0x80}) {
    for (std::size_t place = 0; place < 4; ++place) {
      nvfp4[36 + place] = static_cast<std::byte>(code);
      EXPECT_NE(problem_of(tensor_of(BlockFormat::nvfp4, nvfp4, 128)).find("the first at index 1"), std::string::npos);
      nvfp4[36 + place] = std::byte{0};
    }
  }

  std::vector<std::byte> entity(20, std::byte{0xFF});
  const std::uint32_t largest = 0x7F7FFFFF, infinite = 0x7F800000;
  std::memcpy(entity.data(), &largest, 4);
  EXPECT_EQ(problem_of(tensor_of(BlockFormat::entity_q4_0, entity, 32)), "no error");
  std::memcpy(entity.data(), &infinite, 4);
  EXPECT_NE(problem_of(tensor_of(BlockFormat::entity_q4_0, entity, 32)).find("1 of its 1 blocks"), std::string::npos);
}

TEST(CheckValues, TernaryFieldsOf3) {
  std::vector<std::byte> bytes(2 * 66, std::byte{0x91});
  bytes[65] = bytes[66 + 65] = std::byte{0x3C};
  EXPECT_EQ(problem_of(tensor_of(BlockFormat::tq2_0, bytes, 512)), "no error");
  for (const int code : {0x03, 0x0C, 0x30, 0xC0}) {
    bytes[66 + 63] = static_cast<std::byte>(code);
    EXPECT_NE(problem_of(tensor_of(BlockFormat::tq2_0, bytes, 512)).find("1 of its 2 blocks hold the ternary code 11"),
              std::string::npos);
  }
}

TEST(CheckValues, WhatEncodersWriteIsRight) {
  for (const BlockFormatInfo& block : kBlockFormats) {
    const auto values = static_cast<std::size_t>(block.values);
    std::vector<float> weights = testing::gaussian(64 * values, 5);
    std::fill_n(weights.begin(), values, 0.0f);
    weights[2 * values] = 1e38f;
    weights[3 * values] = -1e-42f;
    std::fill_n(weights.begin() + static_cast<std::ptrdiff_t>(4 * values), values, 0.7f);
    for (std::size_t i = 5 * values; i < 6 * values; ++i) weights[i] = i % 2 == 0 ? 1e-30f : -1e-30f;
    std::vector<std::byte> bytes(packed_bytes(block.id, weights.size()));
    encode(block.id, weights, bytes);
    EXPECT_EQ(problem_of(tensor_of(block.id, bytes, weights.size())), "no error") << block.name;
  }
}

}  // namespace
}  // namespace imago::files
