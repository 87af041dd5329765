// Published weights against what their formats say a weight is, computed here from the codes before they are packed.

#include "files/published.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "imago/codec.h"
#include "imago/error.h"
#include "testing/problems.h"
#include "testing/temp_dir.h"

namespace imago::files {
namespace {

using testing::problem_of;
using testing::TempDir;

struct Raw {
  std::string name, type;
  std::vector<std::size_t> shape;
  std::string bytes;
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
Raw floats(std::string name, std::vector<std::size_t> shape, const std::vector<float>& values) {
  return {std::move(name), "F32", std::move(shape), bytes_of(values)};
}
Raw words(std::string name, std::vector<std::size_t> shape, const std::vector<std::uint32_t>& values) {
  return {std::move(name), "I32", std::move(shape), bytes_of(values)};
}
Raw codes8(std::string name, std::string type, std::vector<std::size_t> shape, const std::vector<int>& codes) {
  std::string bytes;
  for (const int code : codes) bytes.push_back(static_cast<char>(code));
  return {std::move(name), std::move(type), std::move(shape), std::move(bytes)};
}

/// A matrix of small integers.
struct Grid {
  std::size_t rows, cols;
  std::vector<int> of;

  Grid(std::size_t r, std::size_t c, const std::function<int(std::size_t, std::size_t)>& f) : rows(r), cols(c) {
    for (std::size_t i = 0; i < r; ++i) {
      for (std::size_t j = 0; j < c; ++j) of.push_back(f(i, j));
    }
  }
  int at(std::size_t row, std::size_t col) const { return of[row * cols + col]; }
  Grid transposed() const {
    return {cols, rows, [&](std::size_t i, std::size_t j) { return at(j, i); }};
  }
  /// Neighbours in a row share words, the first in the lowest bits; entry i of a word comes from order[i].
  std::vector<std::uint32_t> packed(int bits, const std::vector<std::size_t>& order = {0, 1, 2, 3, 4, 5, 6, 7}) const {
    const std::size_t per_word = static_cast<std::size_t>(32 / bits);
    std::vector<std::uint32_t> result;
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t first = 0; first < cols; first += per_word) {
        std::uint32_t word = 0;
        for (std::size_t i = 0; i < per_word; ++i) {
          const std::size_t col = first + order[i];
          if (col < cols) word |= static_cast<std::uint32_t>(at(row, col)) << (i * static_cast<std::size_t>(bits));
        }
        result.push_back(word);
      }
    }
    return result;
  }
};

/// Numbers that look random.
int drawn(std::size_t i, std::size_t j, int below) {
  std::mt19937 random(static_cast<unsigned>(7 + 1000 * i + j));
  random.discard(3);
  return static_cast<int>(random() % static_cast<unsigned>(below));
}
float scale_of(std::size_t i, std::size_t j) { return 0.01f + 0.001f * static_cast<float>(drawn(i, j, 100)); }

std::vector<float> scales(std::size_t rows, std::size_t cols) {
  std::vector<float> values;
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < cols; ++j) values.push_back(scale_of(i, j));
  }
  return values;
}

/// E4M3 by its definition.
float e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return static_cast<float>((code & 0x80) != 0 ? -magnitude : magnitude);
}
float e2m1(int code) {
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return (code & 8) != 0 ? -kValues[code & 7] : kValues[code & 7];
}
int fp8_code(std::size_t i, std::size_t j) {
  const int code = drawn(i, j, 256);
  return (code & 0x7F) == 0x7F ? 0 : code;
}

class Published : public ::testing::Test {
 protected:
  using Value = std::function<float(std::size_t, std::size_t)>;

  void write(const std::vector<Raw>& tensors, const nlohmann::json& quantization) const {
    nlohmann::json header = nlohmann::json::object();
    std::string data;
    for (const Raw& tensor : tensors) {
      const std::size_t begin = data.size();
      data += tensor.bytes;
      header[tensor.name] = {{"dtype", tensor.type}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
    }
    const std::string text = header.dump();
    const std::uint64_t size = text.size();
    std::string file(8, '\0');
    std::memcpy(file.data(), &size, 8);
    folder_.write("model.safetensors", file + text + data);
    folder_.write("config.json", nlohmann::json{{"a", 1}, {"quantization_config", quantization}, {"z", 2}}.dump());
  }
  TensorFile open() const { return TensorFile::open(folder_.path().string()); }

  /// The matrix m.weight, and no other tensor, has these values, also in the type of ours that it should have.
  void expect_matrix(std::size_t rows, std::size_t cols, const Value& value, std::optional<Format> own) const {
    const TensorFile file = open();
    ASSERT_EQ(file.tensors().size(), 1u);
    const StoredTensor& tensor = file.require("m.weight");
    ASSERT_EQ(tensor.shape, (Shape{rows, cols}));
    std::vector<float> wanted;
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < cols; ++j) wanted.push_back(value(i, j));
    }
    std::vector<float> all(rows * cols), part(3 * cols + 5);
    decode_tensor(tensor, 0, all);
    EXPECT_EQ(all, wanted);
    decode_tensor(tensor, cols - 2, part);
    const auto begin = wanted.begin() + static_cast<std::ptrdiff_t>(cols - 2);
    EXPECT_EQ(part, std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(part.size())));
    check_values(tensor);

    ASSERT_EQ(tensor.published->own_type(), own);
    if (!own) return;
    const std::size_t first = 2, count = rows - 3;
    std::vector<std::byte> packed(packed_bytes(*own, count * cols));
    const OwnWeights taken = tensor.published->take(first, count, packed);
    std::vector<float> back(count * cols);
    decode(*own, packed, {taken.scales, taken.scale_group, taken.zero_points}, back);
    EXPECT_EQ(back, std::vector<float>(wanted.begin() + static_cast<std::ptrdiff_t>(first * cols),
                                       wanted.begin() + static_cast<std::ptrdiff_t>((first + count) * cols)));
  }

  void expect_problem(const std::vector<Raw>& tensors, const nlohmann::json& quantization,
                      std::string_view text) const {
    write(tensors, quantization);
    const std::string problem = problem_of([&] { check_values(open().require("m.weight")); });
    EXPECT_NE(problem.find(text), std::string::npos) << problem;
  }

  TempDir folder_;
};

const nlohmann::json kFp8 = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
const nlohmann::json kTensors = {{"quant_method", "compressed-tensors"}};
const nlohmann::json kGptq = {{"quant_method", "gptq"}};
const nlohmann::json kAwq = {{"quant_method", "awq"}};

// ---- 8-bit floats

TEST_F(Published, Fp8WithScalesOfBlocks) {
  const Grid codes(130, 256, fp8_code);
  write({codes8("m.weight", "F8_E4M3", {130, 256}, codes.of), floats("m.weight_scale_inv", {2, 2}, scales(2, 2))},
        kFp8);
  expect_matrix(
      130, 256, [&](auto i, auto j) { return e4m3(codes.at(i, j)) * scale_of(i / 128, j / 128); }, DType::fp8e4m3);
}

TEST_F(Published, Fp8BlocksThatEndInsideTheMatrix) {
  const Grid codes(20, 40, fp8_code);
  const nlohmann::json blocks = {{"quant_method", "compressed-tensors"},
                                 {"config_groups", {{"group_0", {{"weights", {{"block_structure", {16, 32}}}}}}}}};
  write({codes8("m.weight", "F8_E4M3", {20, 40}, codes.of), floats("m.weight_scale", {2, 2}, scales(2, 2))}, blocks);
  expect_matrix(
      20, 40, [&](auto i, auto j) { return e4m3(codes.at(i, j)) * scale_of(i / 16, j / 32); }, std::nullopt);
}

TEST_F(Published, Fp8WithScalesOfRowsOrOfTheMatrix) {
  const Grid codes(8, 24, fp8_code);
  const Raw weight = codes8("m.weight", "F8_E4M3", {8, 24}, codes.of);
  for (const std::vector<std::size_t>& shape : {std::vector<std::size_t>{8}, {8, 1}}) {
    write({weight, floats("m.weight_scale", shape, scales(8, 1)), floats("m.input_scale", {1}, {3})}, kTensors);
    expect_matrix(
        8, 24, [&](auto i, auto j) { return e4m3(codes.at(i, j)) * scale_of(i, 0); }, DType::fp8e4m3);
  }
  for (const std::vector<std::size_t>& shape : {std::vector<std::size_t>{}, {1}}) {
    write({weight, floats("m.weight_scale", shape, {0.25f})}, kTensors);
    expect_matrix(
        8, 24, [&](auto i, auto j) { return e4m3(codes.at(i, j)) * 0.25f; }, DType::fp8e4m3);
  }
}

TEST_F(Published, Fp8ThatIsWrong) {
  Grid codes(8, 128, fp8_code);
  const auto with = [&](const Raw& scale) {
    return std::vector<Raw>{codes8("m.weight", "F8_E4M3", {8, 128}, codes.of), scale};
  };
  expect_problem(with(floats("m.weight_scale_inv", {2, 1}, {1, 1})), kFp8, "such scales do not fit 8 rows of 128");
  expect_problem(with(floats("m.weight_scale_inv", {1, 3}, {1, 1, 1})), kFp8, "3 groups do not fit rows of 128");
  expect_problem(with(floats("m.weight_scale_inv", {0, 3}, {})), kFp8, "do not fit");
  for (const float bad : {NAN, INFINITY}) {
    expect_problem(with(floats("m.weight_scale_inv", {8, 1}, {1, 1, bad, 1, 1, 1, 1, 1})), kFp8,
                   "the scale of row 2, group 0 is not finite");
  }
  codes.of[200] = 0xFF;
  expect_problem(with(floats("m.weight_scale_inv", {1, 1}, {1})), kFp8, "1 of its 1024 weights are not finite");
}

// ---- compressed-tensors

TEST_F(Published, Int8) {
  const Grid codes(8, 32, [](auto i, auto j) { return drawn(i, j, 256); });
  write({codes8("m.weight", "I8", {8, 32}, codes.of), floats("m.weight_scale", {8, 1}, scales(8, 1))}, kTensors);
  expect_matrix(
      8, 32,
      [&](auto i, auto j) { return static_cast<float>(static_cast<std::int8_t>(codes.at(i, j))) * scale_of(i, 0); },
      DType::int8);
}

TEST_F(Published, PackedIntegers) {
  for (const int bits : {4, 8}) {
    const int middle = 1 << (bits - 1);
    const std::size_t per_word = static_cast<std::size_t>(32 / bits);
    const Grid codes(10, 64, [&](auto i, auto j) { return drawn(i, j, 2 * middle); });
    const Grid zeros(10, 2, [&](auto i, auto j) { return drawn(i + 50, j, 2 * middle); });
    std::vector<Raw> tensors = {words("m.weight_packed", {10, 64 / per_word}, codes.packed(bits)),
                                floats("m.weight_scale", {10, 2}, scales(10, 2)),
                                {"m.weight_shape", "I64", {2}, bytes_of(std::vector<std::int64_t>{10, 64})}};
    const auto value = [&](auto zero) {
      return [&codes, zero](auto i, auto j) {
        return static_cast<float>(codes.at(i, j) - zero(i, j / 32)) * scale_of(i, j / 32);
      };
    };
    write(tensors, kTensors);
    expect_matrix(10, 64, value([=](auto, auto) { return middle; }), bits == 4 ? DType::int4 : DType::int8);
    // Zero points are packed along the rows.
    const Grid turned = zeros.transposed();
    std::vector<std::uint32_t> by_group = turned.packed(bits), packed;
    const std::size_t zero_words = by_group.size() / 2;
    for (std::size_t w = 0; w < zero_words; ++w) {
      for (std::size_t g = 0; g < 2; ++g) packed.push_back(by_group[g * zero_words + w]);
    }
    tensors.push_back(words("m.weight_zero_point", {zero_words, 2}, packed));
    write(tensors, kTensors);
    expect_matrix(10, 64, value([&](auto i, auto g) { return zeros.at(i, g); }),
                  bits == 4 ? DType::uint4 : DType::uint8);
  }
}

TEST_F(Published, PackedIntegersThatAreWrong) {
  const Grid codes(8, 64, [](auto i, auto j) { return drawn(i, j, 16); });
  const Raw weight = words("m.weight_packed", {8, 8}, codes.packed(4));
  const Raw scale = floats("m.weight_scale", {8, 2}, scales(8, 2));
  const auto shape = [](std::int64_t rows, std::int64_t cols) {
    return Raw{"m.weight_shape", "I64", {2}, bytes_of(std::vector<std::int64_t>{rows, cols})};
  };
  expect_problem({weight, scale}, kTensors, "tensor 'm.weight_shape' is missing");
  expect_problem({weight, shape(8, 64)}, kTensors, "tensor 'm.weight_scale' is missing");
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{8, -64}, {9, 64}, {8, 0}, {8, std::int64_t{1} << 60}}) {
    expect_problem({weight, scale, shape(rows, cols)}, kTensors, "is not that of the packed weights");
  }
  expect_problem({weight, scale, shape(8, 40)}, kTensors, "its shape should be");
  expect_problem({weight, scale, shape(8, 64), words("m.weight_zero_point", {2, 2}, {0, 0, 0, 0})}, kTensors,
                 "zero points should be I32 [1, 2]");
}

TEST_F(Published, Mxfp4AndNvfp4) {
  const Grid codes(8, 64, [](auto i, auto j) { return drawn(i, j, 16); });
  std::vector<int> pairs;
  for (std::size_t i = 0; i < codes.of.size(); i += 2) pairs.push_back(codes.of[i] | codes.of[i + 1] << 4);
  const Raw packed = codes8("m.weight_packed", "U8", {8, 32}, pairs);
  const Grid exponents(8, 2, [](auto i, auto j) { return 120 + drawn(i, j, 10); });
  write({packed, codes8("m.weight_scale", "U8", {8, 2}, exponents.of)}, kTensors);
  expect_matrix(
      8, 64, [&](auto i, auto j) { return std::ldexp(e2m1(codes.at(i, j)), exponents.at(i, j / 32) - 127); },
      BlockFormat::mxfp4);

  const Grid eights(8, 4, [](auto i, auto j) { return 1 + drawn(i, j, 126); });
  const Raw scale = codes8("m.weight_scale", "F8_E4M3", {8, 4}, eights.of);
  write({packed, scale, floats("m.weight_global_scale", {1}, {8})}, kTensors);
  expect_matrix(
      8, 64, [&](auto i, auto j) { return e2m1(codes.at(i, j)) * (e4m3(eights.at(i, j / 16)) / 8); }, std::nullopt);
  write({codes8("m.weight", "U8", {8, 32}, pairs), scale, floats("m.weight_scale_2", {}, {0.25f}),
         floats("m.input_scale", {}, {1})},
        {{"quant_method", "modelopt"}});
  expect_matrix(
      8, 64, [&](auto i, auto j) { return e2m1(codes.at(i, j)) * (e4m3(eights.at(i, j / 16)) * 0.25f); }, std::nullopt);
}

// ---- GPTQ and AWQ

struct Gptq {
  std::size_t rows = 16, cols = 256, group = 128;
  int bits = 4, bias = 1;
  Grid codes{rows, cols, [this](auto i, auto j) { return drawn(i, j, 1 << bits); }};
  Grid zeros{rows, cols / group, [](auto i, auto j) { return 1 + drawn(i + 90, j, 15); }};

  std::vector<Raw> tensors() const {
    const std::size_t per_word = static_cast<std::size_t>(32 / bits), groups = cols / group;
    const std::vector<std::uint32_t> along_cols = codes.packed(bits);  // [rows][cols / 8]
    std::vector<std::uint32_t> qweight;
    for (std::size_t w = 0; w < cols / per_word; ++w) {
      for (std::size_t row = 0; row < rows; ++row) qweight.push_back(along_cols[row * (cols / per_word) + w]);
    }
    Grid stored = zeros.transposed();
    for (int& zero : stored.of) zero -= bias;
    std::vector<float> by_group;
    for (std::size_t g = 0; g < groups; ++g) {
      for (std::size_t row = 0; row < rows; ++row) by_group.push_back(scale_of(row, g));
    }
    return {words("m.qweight", {cols / per_word, rows}, qweight),
            words("m.qzeros", {groups, rows / per_word}, stored.packed(bits)),
            floats("m.scales", {groups, rows}, by_group)};
  }
  Raw order(const std::function<std::size_t(std::size_t)>& group_of) const {
    std::vector<std::uint32_t> groups;
    for (std::size_t c = 0; c < cols; ++c) groups.push_back(static_cast<std::uint32_t>(group_of(c)));
    return words("m.g_idx", {cols}, groups);
  }
  float value(std::size_t row, std::size_t col, std::size_t g) const {
    return static_cast<float>(codes.at(row, col) - zeros.at(row, g)) * scale_of(row, g);
  }
};

TEST_F(Published, GptqOfBothVersionsAndWidths) {
  for (const int bits : {4, 8}) {
    for (const int bias : {1, 0}) {
      Gptq model{.bits = bits, .bias = bias};
      const nlohmann::json config = {{"quant_method", "gptq"}, {"checkpoint_format", bias == 0 ? "gptq_v2" : "gptq"}};
      const auto value = [&](auto i, auto j) { return model.value(i, j, j / 128); };
      auto tensors = model.tensors();
      tensors.push_back(model.order([](std::size_t c) { return c / 128; }));
      write(tensors, config);
      expect_matrix(16, 256, value, bits == 4 ? DType::uint4 : DType::uint8);
      for (int& zero : model.zeros.of) zero = 1 << (bits - 1);
      write(model.tensors(), config);
      expect_matrix(16, 256, value, bits == 4 ? DType::int4 : DType::int8);
    }
  }
}

TEST_F(Published, GptqWithColumnsInAnotherOrder) {
  const Gptq model;
  const auto group_of = [](std::size_t c) { return c * 7 % 3 == 0 ? std::size_t{1} : std::size_t{0}; };
  auto tensors = model.tensors();
  tensors.push_back(model.order(group_of));
  write(tensors, kGptq);
  expect_matrix(
      16, 256, [&](auto i, auto j) { return model.value(i, j, group_of(j)); }, std::nullopt);
  tensors.back() = model.order([](std::size_t c) { return c == 77 ? 2u : 0u; });
  expect_problem(tensors, kGptq, "column 77 belongs to group 2 of 2");
  tensors.back() = model.order([](std::size_t c) { return c == 3 ? 0xFFFFFFFFu : 0u; });
  expect_problem(tensors, kGptq, "column 3 belongs to group -1 of 2");
}

TEST_F(Published, GptqThatIsWrong) {
  const Gptq model;
  auto tensors = model.tensors();
  tensors[1].name = "other";
  expect_problem(tensors, kGptq, "tensor 'm.qzeros' is missing");
  tensors = model.tensors();
  tensors[2] = floats("m.scales", {2, 8}, scales(2, 8));
  expect_problem(tensors, kGptq, "m.qweight");
  tensors = model.tensors();
  tensors[1] = words("m.qzeros", {2, 3}, std::vector<std::uint32_t>(6));
  expect_problem(tensors, kGptq, "other widths are not supported");
  tensors = model.tensors();
  tensors[0].type = "F32";
  expect_problem(tensors, kGptq, "must be a matrix of I32");
}

TEST_F(Published, Awq) {
  const std::vector<std::size_t> order = {0, 2, 4, 6, 1, 3, 5, 7};
  const Grid codes(16, 128, [](auto i, auto j) { return drawn(i, j, 16); });
  const Grid zeros(16, 2, [](auto i, auto j) { return drawn(i + 70, j, 16); });
  std::vector<float> by_group;
  for (std::size_t g = 0; g < 2; ++g) {
    for (std::size_t row = 0; row < 16; ++row) by_group.push_back(scale_of(row, g));
  }
  write({words("m.qweight", {128, 2}, codes.transposed().packed(4, order)),
         words("m.qzeros", {2, 2}, zeros.transposed().packed(4, order)), floats("m.scales", {2, 16}, by_group)},
        kAwq);
  expect_matrix(
      16, 128,
      [&](auto i, auto j) { return static_cast<float>(codes.at(i, j) - zeros.at(i, j / 64)) * scale_of(i, j / 64); },
      DType::uint4);
}

// ---- the folder around them

TEST_F(Published, OtherTensorsStayAndOtherMethodsAreNamed) {
  write({floats("m.weight", {2, 2}, {1, 2, 3, 4}), floats("n.scales", {1}, {5})}, kFp8);
  EXPECT_EQ(open().tensors().size(), 2u);
  const auto problem = [](const std::string& text) {
    return quantization_problem(JsonDocument::parse(text, "config.json").root());
  };
  EXPECT_EQ(problem(R"({"quant_method": "awq", "bits": 4})"), "");
  EXPECT_NE(problem(R"({"quant_method": "bitsandbytes"})").find("quantized by 'bitsandbytes'"), std::string::npos);
  EXPECT_NE(problem("3").find("an unnamed method"), std::string::npos);
}

TEST_F(Published, AConfigWithoutQuantization) {
  const auto without = [](const std::string& text) {
    return nlohmann::json::parse(without_quantization(JsonFile::parse(text, "config.json")));
  };
  const nlohmann::json both = {{"a", {1, 2}}, {"z", "}"}};
  EXPECT_EQ(without(R"({"a": [1, 2], "quantization_config": {"x": ","}, "z": "}"})"), both);
  EXPECT_EQ(without(R"( {"quantization_config": {"x": 1} , "a": [1, 2], "z": "}"})"), both);
  EXPECT_EQ(without(R"({"a": [1, 2], "z": "}", "quantization_config": {"x": 1}})"), both);
  EXPECT_EQ(without(R"({"quantization_config": {"x": 1}})"), nlohmann::json::object());
  EXPECT_EQ(without(R"({"a": [1, 2], "z": "}"})"), both);
}

}  // namespace
}  // namespace imago::files
