// Every row of the codec table for block formats against `ref`: the same bytes, the same floats.

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>

#include "imago/codec.h"
#include "imago/error.h"
#include "imago/system.h"
#include "kernels/codec.h"
#include "testing/blocks.h"

namespace imago::kernels {
namespace {

constexpr std::byte kGuardByte{0xA5};

struct Sample {
  std::string name;
  std::vector<float> weights;
};

/// Weights of many kinds, `blocks` blocks of them.
std::vector<Sample> samples(std::size_t count) {
  std::vector<Sample> all;
  all.push_back({"gaussian", testing::gaussian(count, 1)});
  all.push_back({"tiny", testing::gaussian(count, 2, 1e-7f)});
  all.push_back({"huge", testing::gaussian(count, 3, 1e6f)});
  all.push_back({"zeros", std::vector<float>(count, 0.0f)});
  all.push_back({"constant", std::vector<float>(count, 0.37f)});
  all.push_back({"denormal", testing::gaussian(count, 4, 1e-41f)});
  std::vector<float> outliers = testing::gaussian(count, 5);
  for (std::size_t i = 3; i < count; i += 97) outliers[i] *= 300;
  all.push_back({"outliers", outliers});
  std::mt19937 generator(6);
  std::vector<float> bits(count);
  for (float& v : bits) {
    const std::uint32_t pattern = static_cast<std::uint32_t>(generator());
    std::memcpy(&v, &pattern, sizeof v);  // NaN, infinities, everything
  }
  all.push_back({"random bits", bits});
  return all;
}

/// Blocks of a row. Searching a codebook takes minutes under sanitizers, which look at memory and not at values.
#ifdef IMAGO_SANITIZED
constexpr std::size_t kBlockCounts[] = {1, 9};
#else
constexpr std::size_t kBlockCounts[] = {1, 2, 7, 8, 9, 16, 17, 35};
#endif

TEST(BlockCodecs, EveryRowGivesTheBytesOfRef) {
  int compared = 0;
  int skipped = 0;
  for (const CodecKernel& row : all_codecs()) {
    if (!row.format.is_block()) continue;
    if ((row.needs & host_cpu_features()) != row.needs) {
      ++skipped;
      continue;
    }
    const CodecKernel& ref = choose_codec(row.format, kNoFeatures);
    const BlockFormatInfo& format = info(row.format.block());
    const std::size_t values = static_cast<std::size_t>(format.values);
    for (const std::size_t blocks : kBlockCounts) {
      const std::size_t count = blocks * values;
      const std::size_t bytes = blocks * static_cast<std::size_t>(format.bytes);
      std::vector<float> importance = testing::gaussian(values, 9);
      for (float& f : importance) f *= f;
      for (const Sample& sample : samples(count)) {
        for (const float* factors :
             {static_cast<const float*>(nullptr), static_cast<const float*>(importance.data())}) {
          std::vector<std::byte> wanted(bytes), got(bytes + 1, kGuardByte);
          EncodeArgs args{sample.weights.data(), count, wanted.data(), nullptr, 0, 0, factors, values};
          ref.encode(args);
          args.packed = got.data();
          row.encode(args);
          ASSERT_EQ(got.back(), kGuardByte) << row.name << " writes past the end";
          got.pop_back();
          ASSERT_EQ(got, wanted) << row.name << ", " << blocks << " blocks, " << sample.name
                                 << (factors != nullptr ? ", weighted" : "");
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 0);
  std::printf("%d encodings compared, %d rows skipped: this CPU lacks their instructions\n", compared, skipped);
}

TEST(BlockCodecs, EveryRowDecodesAnyBytesAsRefDoes) {
  std::mt19937 generator(8);
  for (const CodecKernel& row : all_codecs()) {
    if (!row.format.is_block() || (row.needs & host_cpu_features()) != row.needs) continue;
    const CodecKernel& ref = choose_codec(row.format, kNoFeatures);
    const BlockFormatInfo& format = info(row.format.block());
    constexpr std::size_t kBlocks = 300;
    const std::size_t count = kBlocks * static_cast<std::size_t>(format.values);
    // One byte in front: blocks must be readable at odd addresses.
    std::vector<std::byte> packed(1 + kBlocks * static_cast<std::size_t>(format.bytes));
    for (std::byte& b : packed) b = static_cast<std::byte>(generator());
    std::vector<float> wanted(count), got(count + 1, -7.0f);
    ref.decode({packed.data() + 1, count, wanted.data(), nullptr, 0, 0});
    row.decode({packed.data() + 1, count, got.data(), nullptr, 0, 0});
    ASSERT_EQ(got.back(), -7.0f) << row.name << " writes past the end";
    for (std::size_t i = 0; i < count; ++i) {
      const bool both_nan = std::isnan(got[i]) && std::isnan(wanted[i]);  // the sign of a NaN product is not defined
      ASSERT_TRUE(both_nan || std::memcmp(&got[i], &wanted[i], sizeof(float)) == 0)
          << row.name << " weight " << i << ": " << got[i] << " not " << wanted[i];
    }
  }
}

TEST(BlockCodecs, BulkConversionDoesNotDependOnThreads) {
  const std::vector<float> weights = testing::gaussian(40 * 4096, 12);
  const std::vector<float> importance(4096, 0.5f);
  for (const BlockFormatInfo& format : kBlockFormats) {
    std::vector<std::byte> first(packed_bytes(format.id, weights.size())), second(first.size());
    set_thread_count(1);
    encode(format.id, weights, first, importance);
    set_thread_count(3);
    encode(format.id, weights, second, importance);
    EXPECT_EQ(first, second) << format.name;
    std::vector<float> back(weights.size());
    decode(format.id, second, back);
    EXPECT_LT(testing::weighted_rmse(weights, back), 0.6) << format.name;
  }
  set_thread_count(0);
}

TEST(BlockCodecs, PublicCallsCheckSizes) {
  const std::vector<float> weights(512);
  std::vector<std::byte> packed(packed_bytes(BlockFormat::q6_k, 512));
  EXPECT_NO_THROW(encode(BlockFormat::q6_k, weights, packed));
  EXPECT_THROW(encode(BlockFormat::q6_k, std::span(weights).first(511), packed), ShapeError);
  EXPECT_THROW(encode(BlockFormat::q6_k, weights, std::span(packed).first(210)), ShapeError);
  EXPECT_THROW(encode(BlockFormat::q6_k, weights, packed, std::vector<float>(128, 1.0f)), ShapeError);
  std::vector<float> out(512);
  EXPECT_THROW(decode(BlockFormat::q6_k, std::span(packed).first(419), out), ShapeError);
  EXPECT_NO_THROW(encode(BlockFormat::q6_k, {}, {}));
  EXPECT_NO_THROW(decode(BlockFormat::q6_k, {}, {}));
}

}  // namespace
}  // namespace imago::kernels
