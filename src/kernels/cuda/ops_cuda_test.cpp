// Operations between products on the GPU against those of the host, with odd sizes, and recorded as graphs.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/ops.h"
#include "kernels/ops.h"
#include "testing/gpu_ops_fixture.h"
#include "testing/gpu_samples.h"
#include "testing/random_values.h"

namespace imago::kernels::cuda {
namespace {

using testing::gaussian;

class CudaOps : public OpsFixture {};

/// Differences relative to the larger of 1 and the value; the first one too many ends the comparison.
void expect_near(const std::vector<float>& got, const std::vector<float>& wanted, float bound,
                 const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float size = std::max(1.0f, std::fabs(wanted[i]));
    ASSERT_LE(std::fabs(got[i] - wanted[i]), bound * size)
        << what << ": value " << i << " of " << got.size() << " is " << got[i] << ", not " << wanted[i];
  }
}

/// The int8 form of `x` against what the GPU wrote.
void expect_int8(const std::vector<float>& x, std::size_t cols, const std::vector<std::int8_t>& q,
                 const std::vector<float2_pod>& scales, const std::string& what) {
  const std::size_t blocks = (cols + 31) / 32, rows = x.size() / cols;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::vector<Int8Block> wanted = testing::int8_of_gpu(std::span(x).subspan(row * cols, cols));
    for (std::size_t b = 0; b < blocks; ++b) {
      for (std::size_t i = 0; i < 32; ++i) {
        ASSERT_EQ(q[(row * blocks + b) * 32 + i], wanted[b].q[i])
            << what << ": code " << b * 32 + i << " of row " << row << ", cols " << cols;
      }
      const float2_pod& scale = scales[row * blocks + b];
      ASSERT_EQ(scale.x, wanted[b].scale) << what << ": scale " << b << " of row " << row << ", cols " << cols;
      ASSERT_EQ(scale.y, wanted[b].scale * static_cast<float>(wanted[b].sum)) << what << ": sum " << b;
    }
  }
}

struct Extents {
  std::size_t rows, cols;
};
constexpr Extents kExtents[] = {{1, 1},     {3, 5},      {2, 31},     {1, 32},   {7, 33},   {5, 64},
                                {9, 100},   {1, 576},    {300, 96},   {4, 1000}, {2, 1024}, {3, 2047},
                                {1, 4096},  {300, 4096}, {2, 5120},   {3, 8192}, {1, 8191}, {2, 16384},
                                {1, 17001}, {1, 40000},  {265, 1028}, {33, 160}};

TEST_F(CudaOps, NormsWithResidualAndInt8) {
  for (const bool layer : {false, true}) {
    for (const Extents e : kExtents) {
      const std::string what =
          (layer ? "layer norm " : "rms norm ") + std::to_string(e.rows) + "x" + std::to_string(e.cols);
      const std::vector<float> x = gaussian(e.rows * e.cols, 1, 2, 0.5f), branch = gaussian(x.size(), 2);
      const std::vector<float> weight = gaussian(e.cols, 3, 0.1f, 1), bias = gaussian(e.cols, 4);
      for (const bool residual : {false, true}) {
        OnDevice<float> gpu_x = up(x), gpu_branch = up(branch), gpu_weight = up(weight), gpu_bias = up(bias);
        OnDevice<float> y = zeros<float>(x.size());
        const std::size_t blocks = (e.cols + 31) / 32;
        OnDevice<std::int8_t> q = zeros<std::int8_t>(e.rows * blocks * 32);
        OnDevice<float2_pod> scales = zeros<float2_pod>(e.rows * blocks);
        norm({.x = gpu_x.data(),
              .branch = residual ? gpu_branch.data() : nullptr,
              .branch_factor = 0.25f,
              .weight = gpu_weight.data(),
              .bias = gpu_bias.data(),
              .y = y.data(),
              .int8 = {q.data(), scales.data()},
              .rows = e.rows,
              .cols = e.cols,
              .eps = 1e-5f,
              .layer_norm = layer},
             stream());
        stream().wait();
        std::vector<float> summed = x;
        if (residual) add_scaled(branch, 0.25f, summed);
        expect_near(gpu_x.values(), summed, 1e-6f, what + ", residual");
        std::vector<float> wanted(x.size());
        if (layer) {
          layer_norm(summed, weight, bias, 1e-5f, wanted);
        } else {
          rms_norm(summed, weight, 1e-5f, wanted);
        }
        // A single column normalises to noise over eps.
        expect_near(y.values(), wanted, e.cols == 1 ? 1e-3f : 2e-5f, what);
        expect_int8(y.values(), e.cols, q.values(), scales.values(), what);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CudaOps, NormInPlaceAndWithoutWeight) {
  const std::vector<float> x = gaussian(3 * 130, 1), branch = gaussian(x.size(), 2), weight = gaussian(130, 3);
  OnDevice<float> gpu_x = up(x), gpu_branch = up(branch), gpu_weight = up(weight);
  norm({.x = gpu_x.data(), .weight = gpu_weight.data(), .y = gpu_x.data(), .rows = 3, .cols = 130, .eps = 1e-6f},
       stream());
  stream().wait();
  std::vector<float> wanted(x.size());
  rms_norm(x, weight, 1e-6f, wanted);
  expect_near(gpu_x.values(), wanted, 1e-5f, "in place");

  OnDevice<float> again = up(x);
  OnDevice<std::int8_t> q = zeros<std::int8_t>(3 * 160);
  OnDevice<float2_pod> scales = zeros<float2_pod>(3 * 5);
  norm({.x = again.data(), .branch = gpu_branch.data(), .int8 = {q.data(), scales.data()}, .rows = 3, .cols = 130},
       stream());
  stream().wait();
  expect_int8(again.values(), 130, q.values(), scales.values(), "residual alone");
}

TEST_F(CudaOps, Int8FormOfHostileValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> x(32 * 8, 1.0f);
  for (std::size_t i = 0; i < 32; ++i) {
    x[i] = static_cast<float>(i) - 15.5f;        // halves
    x[32 + i] = i == 7 ? kInfinity : 1.0f;       // not finite
    x[64 + i] = i == 31 ? std::nanf("") : 2.0f;  // likewise
    x[96 + i] = 1e-40f * static_cast<float>(i);  // next to nothing
    x[128 + i] = 3.4e38f * (i % 2 == 0 ? 1.0f : -1.0f);
    x[160 + i] = 0;
    x[192 + i] = (static_cast<float>(i) + 0.5f) / 127 * (i % 3 == 0 ? -1.0f : 1.0f) + (i == 31 ? 95.5f : 0);
  }
  for (const std::size_t cols : {std::size_t{32}, std::size_t{64}, std::size_t{256}}) {
    OnDevice<float> gate = up(x);
    OnDevice<std::int8_t> q = zeros<std::int8_t>(x.size());
    OnDevice<float2_pod> scales = zeros<float2_pod>(x.size() / 32);
    activate(Activation::linear, gate.data(), nullptr, nullptr, x.size() / cols, cols, {q.data(), scales.data()},
             stream());
    stream().wait();
    expect_int8(x, cols, q.values(), scales.values(), "hostile values");
  }
}

TEST_F(CudaOps, Activations) {
  for (int f = 0; f < kActivationCount; ++f) {
    const auto function = static_cast<Activation>(f);
    for (const Extents e : kExtents) {
      const std::string what =
          "function " + std::to_string(f) + ", " + std::to_string(e.rows) + "x" + std::to_string(e.cols);
      const std::vector<float> gate = gaussian(e.rows * e.cols, 5, 4), factor = gaussian(gate.size(), 6);
      for (const bool gated : {false, true}) {
        OnDevice<float> gpu_gate = up(gate), gpu_up = up(factor), y = zeros<float>(gate.size());
        const std::size_t blocks = (e.cols + 31) / 32;
        OnDevice<std::int8_t> q = zeros<std::int8_t>(e.rows * blocks * 32);
        OnDevice<float2_pod> scales = zeros<float2_pod>(e.rows * blocks);
        activate(function, gpu_gate.data(), gated ? gpu_up.data() : nullptr, y.data(), e.rows, e.cols,
                 {q.data(), scales.data()}, stream());
        stream().wait();
        std::vector<float> wanted(gate.size());
        if (gated) {
          activate_mul(function, gate, factor, wanted);
        } else {
          kernels::activate(function, gate, wanted);
        }
        expect_near(y.values(), wanted, 2e-6f, what);
        expect_int8(y.values(), e.cols, q.values(), scales.values(), what);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CudaOps, Softmax) {
  for (const Extents e : kExtents) {
    for (const float cap : {0.0f, 5.0f}) {
      std::vector<float> x = gaussian(e.rows * e.cols, 7, 10);
      for (std::size_t i = 0; i < x.size(); i += 3) x[i] = -std::numeric_limits<float>::infinity();
      for (std::size_t i = 0; i < e.cols; ++i) x[i] = -std::numeric_limits<float>::infinity();  // nothing in this row
      OnDevice<float> gpu = up(x);
      softmax(gpu.data(), e.rows, e.cols, 0.5f, cap, stream());
      stream().wait();
      kernels::softmax(x, e.cols, 0.5f, cap);
      expect_near(gpu.values(), x, 2e-6f, "softmax " + std::to_string(e.rows) + "x" + std::to_string(e.cols));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaOps, ValuesOneByOne) {
  for (const std::size_t count : {1, 3, 4, 255, 1024, 5001}) {
    const std::vector<float> x = gaussian(count, 8), y = gaussian(count, 9, 20);
    OnDevice<float> gpu_x = up(x), sum = up(y), scaled = up(y), capped = up(y);
    add(gpu_x.data(), 0.3f, sum.data(), count, stream());
    scale(scaled.data(), 0.3f, count, stream());
    soft_cap(capped.data(), 15, count, stream());
    stream().wait();
    std::vector<float> wanted = y;
    add_scaled(x, 0.3f, wanted);
    expect_near(sum.values(), wanted, 1e-6f, "add");
    wanted = y;
    kernels::scale(wanted, 0.3f);
    expect_near(scaled.values(), wanted, 1e-7f, "scale");
    for (std::size_t i = 0; i < count; ++i) wanted[i] = 15 * std::tanh(y[i] / 15);
    expect_near(capped.values(), wanted, 1e-6f, "soft_cap");
  }
}

TEST_F(CudaOps, RowsOfATable) {
  for (const std::size_t cols : {3, 8, 100}) {
    const std::vector<float> table = gaussian(50 * cols, 10);
    const std::vector<std::int32_t> ids = {49, 0, 7, 7, 31};
    OnDevice<float> gpu_table = up(table), out = zeros<float>(ids.size() * cols);
    OnDevice<std::int32_t> gpu_ids(*device(), ids);
    gather_rows(gpu_table.data(), gpu_ids.data(), ids.size(), cols, out.data(), stream());
    stream().wait();
    const std::vector<float> got = out.values();
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], table[static_cast<std::size_t>(ids[i / cols]) * cols + i % cols]) << "value " << i;
    }
  }
}

TEST_F(CudaOps, RowsAreAddedAndTheLastOneServesForMore) {
  constexpr std::size_t kCols = 5;
  const std::vector<float> x = gaussian(4 * kCols, 13);
  const std::vector<std::int32_t> ids = {0, 1, 1, 0};
  for (const std::size_t rows : {1, 2}) {
    const std::vector<float> table = gaussian(rows * kCols, 14);
    OnDevice<float> gpu_x = up(x), gpu_table = up(table);
    OnDevice<std::int32_t> gpu_ids = up(ids);
    add_rows(gpu_table.data(), rows, gpu_ids.data(), ids.size(), kCols, gpu_x.data(), stream());
    stream().wait();
    const std::vector<float> got = gpu_x.values();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::size_t row = rows == 1 ? 0 : static_cast<std::size_t>(ids[i / kCols]);
      ASSERT_EQ(got[i], x[i] + table[row * kCols + i % kCols]) << rows << " rows, value " << i;
    }
  }
}

TEST_F(CudaOps, UnknownIdsBecomeTheFirst) {
  OnDevice<std::int32_t> ids = up(std::vector<std::int32_t>{4, 5, 0, 99, 3}), out = zeros<std::int32_t>(5);
  known_ids(ids.data(), 5, 5, out.data(), stream());
  stream().wait();
  EXPECT_EQ(out.values(), (std::vector<std::int32_t>{4, 0, 0, 0, 3}));
}

TEST_F(CudaOps, TheStreamIsScaledWithWhatIsLeftToAdd) {
  const std::vector<float> x = gaussian(37, 15), branch = gaussian(37, 16);
  OnDevice<float> alone = up(x), both = up(x), gpu_branch = up(branch), factor = up(std::vector<float>{0.75f});
  scale_by(factor.data(), nullptr, 0, alone.data(), x.size(), stream());
  scale_by(factor.data(), gpu_branch.data(), 0.5f, both.data(), x.size(), stream());
  stream().wait();
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_NEAR(alone.values()[i], x[i] * 0.75f, 1e-6);
    ASSERT_NEAR(both.values()[i], (x[i] + 0.5f * branch[i]) * 0.75f, 1e-6);
  }
}

TEST_F(CudaOps, RowsAreGatedByPartsOfWiderOnes) {
  constexpr std::size_t kRows = 4, kCols = 6, kStride = 20;
  for (const Activation function : {Activation::gelu, Activation::silu, Activation::clamped_swish}) {
    const std::vector<float> y = gaussian(kRows * kCols, 17, 3), by = gaussian(kRows * kStride, 18);
    OnDevice<float> gpu_y = up(y), gpu_by = up(by);
    activate_by(function, gpu_by.data() + 8, kStride, gpu_y.data(), kRows, kCols, stream());
    stream().wait();
    std::vector<float> wanted(y.size());
    for (std::size_t row = 0; row < kRows; ++row) {
      const auto part = [&](const std::vector<float>& all, std::size_t at) {
        return std::span(all).subspan(at, kCols);
      };
      activate_mul(function, part(y, row * kCols), part(by, row * kStride + 8),
                   std::span(wanted).subspan(row * kCols, kCols));
    }
    expect_near(gpu_y.values(), wanted, 2e-6f, "rows gated");
  }
}

TEST_F(CudaOps, AGraphDoesWhatTheCallsDo) {
  const std::vector<float> x = gaussian(4 * 4096, 11), weight = gaussian(4096, 12);
  OnDevice<float> direct = up(x), recorded = up(x), gpu_weight = up(weight);
  OnDevice<float> y = zeros<float>(x.size()), recorded_y = zeros<float>(x.size());
  const auto work = [&](float* to, float* from) {
    norm({.x = from, .weight = gpu_weight.data(), .y = to, .rows = 4, .cols = 4096}, stream());
    activate(Activation::silu, to, from, to, 4, 4096, {}, stream());
    softmax(to, 4, 4096, 1, 0, stream());
  };
  work(y.data(), direct.data());
  const imago::cuda::Graph graph(stream(), [&] { work(recorded_y.data(), recorded.data()); });
  graph.launch(stream());
  stream().wait();
  EXPECT_EQ(y.values(), recorded_y.values());
}

}  // namespace
}  // namespace imago::kernels::cuda
