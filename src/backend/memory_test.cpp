#include "backend/memory.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "imago/codec.h"
#include "imago/error.h"
#include "kernels/cuda/host_layout.h"

namespace imago::backend {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class Plan : public ::testing::Test {
 protected:
  std::vector<std::uint64_t> blocks_ = std::vector<std::uint64_t>(32, 100 * kMiB);
  DecoderBytes bytes_{.blocks = blocks_, .output = 300 * kMiB, .embedding = 200 * kMiB, .work = 50 * kMiB};
};

TEST_F(Plan, AllBlocksBringTheEmbeddingAlong) {
  for (const std::size_t layers : {std::size_t{32}, std::size_t{99}, std::size_t(-1)}) {
    const DevicePlan plan = plan_device(bytes_, layers, 3750 * kMiB, "cuda:0");
    EXPECT_EQ(plan.first_block, 0u);
    EXPECT_TRUE(plan.embeds());
    EXPECT_EQ(plan.bytes, 3750 * kMiB);
  }
}

TEST_F(Plan, FewerAreTheLastOnes) {
  const DevicePlan plan = plan_device(bytes_, 5, 3750 * kMiB, "cuda:0");
  EXPECT_EQ(plan.first_block, 27u);
  EXPECT_FALSE(plan.embeds());
  EXPECT_EQ(plan.bytes, 850 * kMiB);
}

TEST_F(Plan, WhatDoesNotFitIsToldWithWhatWould) {
  try {
    plan_device(bytes_, 32, 2455 * kMiB, "cuda:1");
    ADD_FAILURE() << "too much";
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(),
                 "32 layers of this model need 3.7 GiB on cuda:1, 1.3 GiB more than the 2.4 GiB that are free; "
                 "--gpu-layers 21 fits");
  }
  try {
    plan_device(bytes_, 1, 100 * kMiB, "cuda:1");
    ADD_FAILURE() << "too much";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("not even one fits"), std::string::npos) << error.what();
  }
}

TEST(DeviceBytes, AreThoseOfTheLayout) {
  // 18 groups of 32 make 20, since strides are multiples of 4 groups, and 4 scale tiles: 640 + 64 bytes a row. A file
  // has 612 bytes a row.
  const std::uint64_t rows = 4096, few = 1024;
  EXPECT_EQ(device_matrix_bytes(BlockFormat::q8_0, rows, 576) - device_matrix_bytes(BlockFormat::q8_0, few, 576),
            (rows - few) * 704);
  EXPECT_GE(device_matrix_bytes(BlockFormat::q4_k, 4096, 4096), 4096u * 4096 / 256 * 144);
  EXPECT_LE(device_matrix_bytes(BlockFormat::q4_k, 4096, 4096), 4096u * 4096 / 256 * 144 * 12 / 10);
  for (const Format format : {Format(BlockFormat::q8_0), Format(BlockFormat::q6_k), Format(DType::float32),
                              Format(DType::int8), Format(DType::int4)}) {
    for (const std::size_t group : {std::size_t{512}, std::size_t{64}}) {
      const std::vector<std::byte> packed(packed_bytes(format, 24 * 512));
      const std::vector<float> scales(24 * 512 / group, 1.0f);
      const kernels::PackedMatrix matrix{
          .format = format, .rows = 24, .cols = 512, .packed = packed, .scales = {scales, group}};
      EXPECT_EQ(device_matrix_bytes(format, 24, 512, group), kernels::cuda::PlaneLayout(matrix).bytes);
    }
  }
}

}  // namespace
}  // namespace imago::backend
