
#include <gtest/gtest.h>

#include <cctype>
#include <set>
#include <string>

#include "imago/error.h"
#include "imago/format.h"

namespace imago {
namespace {

static_assert(Numeric<float> && Numeric<double> && Numeric<std::int8_t> && Numeric<Half> && Numeric<Binary>);
static_assert(!Numeric<char> && !Numeric<bool> && !Numeric<long double> && !Numeric<const float> && !Numeric<float&>);
static_assert(dtype_of<float> == DType::float32 && dtype_of<std::uint16_t> == DType::uint16);
static_assert(dtype_of<Fp8E4M3> == DType::fp8e4m3 && dtype_of<Fp8E5M2> == DType::fp8e5m2);
static_assert(dtype_of<Ternary> == DType::ternary && dtype_of<Binary> == DType::binary);
static_assert(bits(DType::int4) == 4 && !is_scaled(DType::bfloat16) && is_scaled(DType::binary));

struct Row {
  int id;
  const char* name;
  int bits;
  float divisor;  // Q of spec §3.2
};

// Typed in from docs/numeric.md, apart from the table under test.
constexpr Row kSpecification[] = {
    {0, "float64", 64, 0},     {1, "float32", 32, 0},    {2, "float16", 16, 0},       {3, "bfloat16", 16, 0},
    {4, "fp8e4m3", 8, 448},    {5, "fp8e5m2", 8, 57344}, {6, "int64", 64, 1048576},   {7, "int32", 32, 1048576},
    {8, "int16", 16, 32767},   {9, "int8", 8, 127},      {10, "uint64", 64, 1048576}, {11, "uint32", 32, 1048576},
    {12, "uint16", 16, 65535}, {13, "uint8", 8, 255},    {14, "int4", 4, 7},          {15, "uint4", 4, 15},
    {16, "fp4", 4, 6},         {17, "int2", 2, 1},       {18, "uint2", 2, 3},         {19, "ternary", 2, 1},
    {20, "binary", 1, 1},
};

TEST(DTypes, AreThoseOfTheSpecification) {
  ASSERT_EQ(std::size(kSpecification), std::size_t{kDTypeCount});
  for (const Row& row : kSpecification) {
    const DTypeInfo& type = kDTypes[static_cast<std::size_t>(row.id)];
    EXPECT_EQ(static_cast<int>(type.id), row.id);
    EXPECT_EQ(type.name, row.name);
    EXPECT_EQ(type.bits, row.bits) << row.name;
    EXPECT_EQ(type.scale_divisor, row.divisor) << row.name;
    EXPECT_EQ(is_scaled(type.id), row.divisor != 0) << row.name;
    EXPECT_EQ(name(type.id), row.name);
  }
}

TEST(DTypes, VisitReachesADifferentTypeForEach) {
  std::set<DType> seen;
  for (const DTypeInfo& type : kDTypes) {
    const DType reached = visit(type.id, []<class T>(std::type_identity<T>) { return dtype_of<T>; });
    EXPECT_EQ(reached, type.id) << type.name;
    const std::size_t code_bytes = visit(type.id, []<class T>(std::type_identity<T>) { return sizeof(T); });
    EXPECT_EQ(code_bytes, static_cast<std::size_t>((type.bits + 7) / 8)) << type.name;
    seen.insert(reached);
  }
  EXPECT_EQ(seen.size(), std::size_t{kDTypeCount});
}

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return result;
}

TEST(DTypes, NamesAndAliasesAreReadInAnyCase) {
  struct Alias {
    const char* text;
    DType dtype;
  };
  constexpr Alias kAliases[] = {
      {"fp64", DType::float64}, {"f64", DType::float64},       {"fp32", DType::float32},    {"f32", DType::float32},
      {"fp16", DType::float16}, {"f16", DType::float16},       {"bf16", DType::bfloat16},   {"fp8", DType::fp8e4m3},
      {"i64", DType::int64},    {"i32", DType::int32},         {"i16", DType::int16},       {"i8", DType::int8},
      {"u64", DType::uint64},   {"u32", DType::uint32},        {"u16", DType::uint16},      {"u8", DType::uint8},
      {"f4", DType::fp4},       {"BFloat16", DType::bfloat16}, {"Ternary", DType::ternary},
  };
  for (const Alias& alias : kAliases) {
    EXPECT_EQ(find_dtype(alias.text), alias.dtype) << alias.text;
    EXPECT_EQ(parse_dtype(upper(alias.text)), alias.dtype) << alias.text;
  }
  for (const DTypeInfo& type : kDTypes) {
    EXPECT_EQ(parse_dtype(type.name), type.id);
    EXPECT_EQ(parse_dtype(upper(type.name)), type.id);
  }
}

TEST(DTypes, AnUnknownNameIsAUsageErrorThatListsTheKnownOnes) {
  for (const char* text : {"", "float", "int3", "int8 ", " int8", "int88", "q4_0", "@nt8"}) {
    EXPECT_EQ(find_dtype(text), std::nullopt) << text;
    try {
      parse_dtype(text);
      ADD_FAILURE() << "no error for '" << text << "'";
    } catch (const UsageError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("'" + std::string(text) + "'"), std::string::npos) << message;
      for (const DTypeInfo& type : kDTypes) EXPECT_NE(message.find(type.name), std::string::npos) << message;
    }
  }
}

TEST(Formats, AreDTypesAndBlocks) {
  EXPECT_EQ(find_format("I8"), Format(DType::int8));
  EXPECT_EQ(find_format("Q4_K"), Format(BlockFormat::q4_k));
  EXPECT_EQ(find_format("entity_q4_0"), std::nullopt) << "found in files, never asked for by name";
  EXPECT_THROW(parse_format("q9_9"), UsageError);
  for (const BlockFormatInfo& block : kBlockFormats) {
    EXPECT_TRUE(Format(block.id).is_block());
    EXPECT_EQ(Format(block.id).block(), block.id);
    EXPECT_EQ(Format(block.id).name(), block.name);
  }
  for (const DTypeInfo& type : kDTypes) {
    EXPECT_FALSE(Format(type.id).is_block());
    EXPECT_EQ(Format(type.id).dtype(), type.id);
  }
}

TEST(Formats, PackedBytesRoundUpToWholeBytes) {
  EXPECT_EQ(packed_bytes(DType::binary, 0), 0u);
  EXPECT_EQ(packed_bytes(DType::binary, 1), 1u);
  EXPECT_EQ(packed_bytes(DType::binary, 8), 1u);
  EXPECT_EQ(packed_bytes(DType::binary, 9), 2u);
  EXPECT_EQ(packed_bytes(DType::int4, 3), 2u);
  EXPECT_EQ(packed_bytes(DType::ternary, 5), 2u);
  EXPECT_EQ(packed_bytes(DType::float64, 3), 24u);
  EXPECT_EQ(packed_bytes(BlockFormat::q4_0, 64), 36u);
  EXPECT_THROW(packed_bytes(BlockFormat::q4_0, 33), ShapeError);
}

TEST(Formats, PackedBytesDoNotOverflow) {
  const std::size_t most = ~std::size_t{0};
  EXPECT_EQ(packed_bytes(DType::int8, most), most);
  EXPECT_EQ(packed_bytes(DType::int4, most), most / 2 + 1);
  EXPECT_EQ(packed_bytes(DType::float16, most / 2), most - 1);
  EXPECT_THROW(packed_bytes(DType::float16, most / 2 + 1), ShapeError);
  EXPECT_THROW(packed_bytes(DType::float64, most / 4), ShapeError);
}

}  // namespace
}  // namespace imago
