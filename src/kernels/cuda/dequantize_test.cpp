// Packed weights and activations on the GPU, against the codecs of the host, bit for bit.

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "imago/codec.h"
#include "kernels/cuda/matrix.h"
#include "kernels/cuda/ops.h"
#include "testing/gpu.h"
#include "testing/gpu_samples.h"

namespace imago::kernels::cuda {
namespace {

using imago::cuda::Array;
using testing::from_device;
using testing::gaussian;
using testing::on_device;
using testing::packed_sample;
using testing::PackedSample;

using GpuDequantize = testing::GpuTest;

void expect_equal(std::span<const float> got, std::span<const float> want, std::string_view what) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    ADD_FAILURE() << what << ": weight " << i << " is " << got[i] << ", not " << want[i];
    return;
  }
}

TEST_F(GpuDequantize, EveryFormatIsExact) {
  Stream stream(device());
  for (const Format format : testing::all_formats()) {
    const std::size_t block = static_cast<std::size_t>(format.block_values());
    for (const std::size_t cols : {block == 1 ? std::size_t{37} : block, std::size_t{4096 + 256}}) {
      for (const float size : {0.3f, 1e-6f}) {
        const PackedSample m = packed_sample(format, 9, cols, 0, 3, size);
        const GpuMatrix matrix(device(), m.source());
        Array<float> all(*device(), m.decoded.size());
        dequantize(matrix, all.data(), stream);
        expect_equal(from_device(all, stream), m.decoded, format.name());
        const std::vector<std::int32_t> ids = {8, 0, 3, 3};
        const Array<std::int32_t> device_ids = on_device(ids, stream);
        Array<float> some(*device(), ids.size() * cols);
        dequantize_rows(matrix, device_ids.data(), ids.size(), 3.0f, some.data(), stream);
        std::vector<float> want;
        for (const std::int32_t id : ids) {
          for (std::size_t c = 0; c < cols; ++c)
            want.push_back(m.decoded[static_cast<std::size_t>(id) * cols + c] * 3.0f);
        }
        expect_equal(from_device(some, stream), want, fmt::format("rows of {}", format.name()));
      }
    }
  }
}

TEST_F(GpuDequantize, UploadsInPieces) {
  Stream stream(device());
  for (const Format format : {Format(DType::float32), Format(DType::int8), Format(BlockFormat::q8_0)}) {
    const PackedSample m = packed_sample(format, 5003, 4096, 1, 4);  // 20 MB and more: at least two pieces
    const GpuMatrix matrix(device(), m.source());
    Array<float> all(*device(), m.decoded.size());
    dequantize(matrix, all.data(), stream);
    expect_equal(from_device(all, stream), m.decoded, format.name());
  }
}

TEST_F(GpuDequantize, ActivationsInInt8AreThoseOfTheHost) {
  Stream stream(device());
  for (const std::size_t cols : {1, 31, 32, 33, 100, 4096, 14336}) {
    constexpr std::size_t kRows = 3;
    std::vector<float> x = gaussian(kRows * cols, 9, 2.0f);
    if (cols > 40) {
      x[1] = std::numeric_limits<float>::infinity();
      for (std::size_t i = 32; i < 64; ++i) x[i] = 0;
      x[cols + 3] = 1e-39f;
      x[2 * cols] = 3e38f;
    }
    // One float in front: rows that begin on no multiple of 16 bytes.
    for (const std::size_t front : {0, 1}) {
      std::vector<float> shifted(front, 0.0f);
      shifted.insert(shifted.end(), x.begin(), x.end());
      const Array<float> input = on_device(shifted, stream);
      const std::size_t padded = padded_cols(cols);
      Array<std::int8_t> q = on_device(std::vector<std::int8_t>(kRows * padded, 55), stream);
      Array<float2_pod> scales(*device(), kRows * padded / 32);
      quantize(input.data() + front, kRows, cols, {q.data(), scales.data()}, stream);
      const std::vector<std::int8_t> codes = from_device(q, stream);
      const std::vector<float2_pod> factors = from_device(scales, stream);
      for (std::size_t row = 0; row < kRows; ++row) {
        const std::vector<Int8Block> want = testing::int8_of_gpu(std::span(x).subspan(row * cols, cols));
        for (std::size_t i = 0; i < padded; ++i) {
          ASSERT_EQ(codes[row * padded + i], want[i / 32].q[i % 32])
              << cols << " columns, row " << row << ", column " << i;
          const float2_pod& factor = factors[(row * padded + i) / 32];
          ASSERT_EQ(factor.x, want[i / 32].scale) << cols << " columns, row " << row << ", column " << i;
          ASSERT_EQ(factor.y, want[i / 32].scale * static_cast<float>(want[i / 32].sum));
        }
      }
    }
  }
}

}  // namespace
}  // namespace imago::kernels::cuda
