// Products with many tokens, every format and way, against sums in double on the host.

#include "kernels/cuda/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <string>

#include "imago/codec.h"
#include "imago/numeric.h"
#include "kernels/cuda/cublas.h"
#include "testing/gpu.h"
#include "testing/gpu_samples.h"
#include "testing/random_values.h"

namespace imago::kernels::cuda {
namespace {

using imago::cuda::Array;

/// A sum of the definition, and how far a product may be from it.
struct Sum {
  double value, exact, fast;
  double off(Arithmetic arithmetic) const { return arithmetic == Arithmetic::exact ? exact : fast; }
};

/// Activations, and the sums of a matrix with them: [token][row].
struct Expected {
  std::vector<float> x;
  std::vector<Sum> sums;
};

/// A matrix on both sides.
struct Sample {
  std::size_t rows, cols;
  std::vector<float> decoded;
  std::optional<GpuMatrix> matrix;
  std::map<std::size_t, Expected> known;  // by the number of tokens: many ways are compared with the same sums

  /// `group`: columns per scale of a dtype; 0: one per row.
  Sample(const std::shared_ptr<Device>& device, Format format, std::size_t r, std::size_t c, std::size_t group,
         unsigned seed)
      : rows(r), cols(c), decoded(r * c) {
    const std::vector<float> weights = testing::gaussian(rows * cols, seed, 0.3f);
    std::vector<std::byte> packed(packed_bytes(format, weights.size()));
    std::vector<float> scales;
    const std::size_t scale_group = group == 0 ? cols : group;
    if (format.is_block()) {
      encode(format.block(), weights, packed);
      decode(format.block(), packed, decoded);
    } else {
      if (is_scaled(format.dtype())) {
        for (std::size_t i = 0; i < weights.size(); i += scale_group) {
          const std::size_t length = std::min(scale_group, weights.size() - i);
          scales.push_back(derive_mse_scale(format.dtype(), std::span(weights).subspan(i, length)));
        }
      }
      encode(format.dtype(), weights, {scales, scale_group}, packed);
      decode(format.dtype(), packed, {scales, scale_group}, decoded);
    }
    matrix.emplace(device, PackedMatrix{format, rows, cols, packed, {scales, scale_group}});
  }

  const Expected& expected(std::size_t tokens) {
    Expected& e = known[tokens];
    if (!e.sums.empty()) return e;
    e.x = testing::gaussian(tokens * cols, 7);
    e.sums.resize(tokens * rows);
    std::vector<double> lengths(tokens);
    for (std::size_t t = 0; t < tokens; ++t) {
      for (std::size_t c = 0; c < cols; ++c) lengths[t] += static_cast<double>(e.x[t * cols + c]) * e.x[t * cols + c];
      lengths[t] = std::sqrt(lengths[t]);
    }
    for (std::size_t row = 0; row < rows; ++row) {
      const float* const w = decoded.data() + row * cols;
      const double range =
          std::max(0.0f, *std::max_element(w, w + cols)) - std::min(0.0f, *std::min_element(w, w + cols));
      for (std::size_t t = 0; t < tokens; ++t) {
        const float* const token = e.x.data() + t * cols;
        double sum = 0, magnitude = 0;
        for (std::size_t c = 0; c < cols; ++c) {
          const double term = static_cast<double>(w[c]) * static_cast<double>(token[c]);
          sum += term;
          magnitude += std::fabs(term);
        }
        // Roundings of weights and activations to bfloat16 are relative to the range of a row's weights, and random but
        // for those of scales, which all weights of a row may share.
        const double exact = 1e-5 * magnitude + 1e-6;
        e.sums[t * rows + row] = {sum, exact, exact + (std::fabs(sum) + 3 * range * lengths[t]) / 256};
      }
    }
    return e;
  }
};

/// The largest sizes that the cases below have.
double activation(Activation function, double x) {
  if (function == Activation::silu) return x / (1 + std::exp(-x));
  return function == Activation::relu ? std::max(x, 0.0) : x;
}

class MatMul : public testing::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    stream_.emplace(device());
    scratch_.emplace(device());
  }

  struct Case {
    std::size_t tokens = 9;
    Arithmetic arithmetic = Arithmetic::fast;
    MatMulPlan plan = {};
    Sample* up = nullptr;
    GpuEpilogue epilogue = {};  // bias: anything but null
    std::size_t y_gap = 0;
    std::string name;
  };

  /// Number of results that are off; the first ones are told.
  int compare(Sample& m, const Case& c) {
    const std::size_t stride = m.rows + c.y_gap;
    const Expected& e = m.expected(c.tokens);
    const std::vector<float> bias = testing::gaussian(m.rows, 8);
    std::vector<float> before(c.tokens * stride);
    for (std::size_t i = 0; i < before.size(); ++i) before[i] = static_cast<float>(i % 17) - 8.0f;
    refill(x_, e.x);
    refill(bias_, bias);
    refill(y_, before);
    GpuProduct product{.matrix = &*m.matrix,
                       .up = c.up ? &*c.up->matrix : nullptr,
                       .y = y_.data(),
                       .y_stride = stride,
                       .epilogue = c.epilogue};
    if (c.epilogue.bias != nullptr) product.epilogue.bias = bias_.data();
    const Activations tokens{.x = x_.data(), .q = nullptr, .scales = nullptr, .count = c.tokens, .cols = m.cols};
    if (c.plan.path == MatMulPath::automatic) {
      matmul({&product, 1}, tokens, c.arithmetic, *scratch_, *stream_);
    } else {
      matmul_by(c.plan, {&product, 1}, tokens, *scratch_, *stream_);
    }
    std::vector<float> y(before.size());
    stream_->copy_out(y_.data(), std::as_writable_bytes(std::span(y)));
    stream_->wait();

    int wrong = 0;
    const Expected* const up_e = c.up ? &c.up->expected(c.tokens) : nullptr;
    for (std::size_t t = 0; t < c.tokens; ++t) {
      for (std::size_t row = 0; row < stride; ++row) {
        double expected = before[t * stride + row], bound = 0;
        if (row < m.rows) {
          const Sum sum = e.sums[t * m.rows + row];
          const Sum up_sum = up_e ? up_e->sums[t * m.rows + row] : Sum{1, 0, 0};
          const double off = sum.off(c.arithmetic), up = up_sum.value, up_off = up_sum.off(c.arithmetic);
          const double value = activation(c.epilogue.activation, sum.value + (c.epilogue.bias ? bias[row] : 0));
          expected = value * up * c.epilogue.scale + (c.epilogue.accumulate ? expected : 0);
          bound =
              (1.2 * off * std::fabs(up) + std::fabs(value) * up_off + 1.2 * off * up_off) * c.epilogue.scale + 2e-6;
        }
        const double got = y[t * stride + row];
        if (std::fabs(got - expected) <= bound) continue;
        if (++wrong <= 3) {
          std::printf("WRONG %s: %zu x %zu, %zu tokens: token %zu row %zu: expected %.6f +- %.6f, got %.6f\n",
                      c.name.c_str(), m.rows, m.cols, c.tokens, t, row, expected, bound, got);
        }
      }
    }
    if (wrong > 0) std::fflush(stdout);
    if (wrong > 3) std::printf("WRONG %s: %d of %zu\n", c.name.c_str(), wrong, y.size());
    return wrong;
  }

  /// Thousands of products are compared: their operands lie in the same memory.
  void refill(Array<float>& there, std::span<const float> values) {
    there.reserve(*device(), values.size());
    device()->upload(std::as_bytes(values), there.buffer(), 0);
  }

  template <class T>
  Array<T> upload(std::span<const T> values) {
    Array<T> there(*device(), values.size());
    device()->upload(std::as_bytes(values), there.buffer(), 0);
    return there;
  }
  Array<float> upload(const std::vector<float>& values) { return upload<float>(std::span<const float>(values)); }

  std::optional<imago::cuda::Stream> stream_;
  std::optional<ProductScratch> scratch_;
  Array<float> x_, bias_, y_;
};

std::vector<Format> all_formats() {
  std::vector<Format> formats;
  for (const DTypeInfo& row : kDTypes) formats.emplace_back(row.id);
  for (const BlockFormatInfo& row : kBlockFormats) formats.emplace_back(row.id);
  return formats;
}

bool is_packed(Format format) { return format.is_block() || bits(format.dtype()) <= 8; }

std::vector<std::size_t> column_counts(Format format) {
  const std::size_t block = static_cast<std::size_t>(format.block_values());
  if (block == 1) return {1, 45, 96, 512};
  return {block, 3 * block, block == 256 ? 1024 : 512 / block * block};
}

constexpr MatMulPath kPaths[] = {MatMulPath::wide, MatMulPath::square, MatMulPath::half, MatMulPath::narrow};

bool runs_here(MatMulPath path) { return path != MatMulPath::wide || has_hopper_kernels(); }

TEST_F(MatMul, EveryFormatAndPath) {
  std::printf("kernels of Hopper: %s; cuBLASLt: %s\n", has_hopper_kernels() ? "yes" : "no",
              cublas_problem().empty() ? "yes" : cublas_problem().c_str());
  int compared = 0;
  for (const Format format : all_formats()) {
    if (!is_packed(format)) continue;
    std::string bad;
    for (const std::size_t rows : {1, 17, 130}) {
      for (const std::size_t cols : column_counts(format)) {
        Sample m(device(), format, rows, cols, 0, static_cast<unsigned>(rows + cols));
        for (const std::size_t tokens : {9, 70, 270}) {
          for (const MatMulPath path : kPaths) {
            if (!runs_here(path) || (rows == 17 && tokens != 9) || (cols < 96 && tokens == 270)) continue;
            for (const std::uint32_t splits : {1u, 3u}) {
              if (splits > 1 && cols < 512) continue;
              const std::string name(std::string(format.name()) + " " + std::string(cuda::name(path)));
              if (compare(m, {.tokens = tokens, .plan = {path, splits}, .name = name}) > 0 &&
                  bad.find(name) == bad.npos) {
                bad += " " + name;
              }
              ++compared;
            }
          }
        }
      }
    }
    EXPECT_EQ(bad, "") << format.name();
  }
  std::printf("%d products compared\n", compared);
  std::fflush(stdout);
}

TEST_F(MatMul, AutomaticFastAndExact) {
  int compared = 0;
  for (const Format format : all_formats()) {
    for (const std::size_t cols : {column_counts(format)[1], column_counts(format).back()}) {
      Sample m(device(), format, 130, cols, 0, 3);
      for (const std::size_t tokens : {9, 33, 512}) {
        if (tokens == 512 && cols > 512) continue;
        for (const Arithmetic arithmetic : {Arithmetic::fast, Arithmetic::exact}) {
          const std::string name = std::string(format.name()) + (arithmetic == Arithmetic::fast ? " fast" : " exact");
          EXPECT_EQ(compare(m, {.tokens = tokens, .arithmetic = arithmetic, .name = name}), 0) << name;
          ++compared;
        }
      }
    }
  }
  std::printf("%d products compared\n", compared);
  std::fflush(stdout);
}

TEST_F(MatMul, GroupsOfScales) {
  for (const Format format : all_formats()) {
    if (format.is_block() || !is_scaled(format.dtype())) continue;
    for (const std::size_t group : {32, 64, 128}) {
      Sample m(device(), format, 33, 640, group, 5);
      const std::string name = std::string(format.name()) + " groups of " + std::to_string(group);
      EXPECT_EQ(compare(m, {.tokens = 40, .name = name}), 0) << name;
    }
  }
}

TEST_F(MatMul, EpiloguesAndGatedPairs) {
  const float some = 0;
  for (const Format format : {Format(BlockFormat::q4_0), Format(DType::int8), Format(DType::bfloat16)}) {
    Sample m(device(), format, 150, 512, 0, 11), up(device(), format, 150, 512, 0, 12);
    Sample other(device(), BlockFormat::q8_0, 150, 512, 0, 13);
    for (Sample* factor : {static_cast<Sample*>(nullptr), &up, &other}) {
      for (const GpuEpilogue& epilogue :
           {GpuEpilogue{}, GpuEpilogue{&some, Activation::silu, 1, false},
            GpuEpilogue{nullptr, Activation::relu, 0.5f, true}, GpuEpilogue{nullptr, Activation::linear, 2, true}}) {
        for (const MatMulPath path :
             {MatMulPath::automatic, MatMulPath::wide, MatMulPath::square, MatMulPath::narrow}) {
          if (!runs_here(path) || (path != MatMulPath::automatic && !is_packed(format))) continue;
          for (const std::uint32_t splits : {1u, 2u}) {
            const std::string name = std::string(format.name()) + " " + std::string(cuda::name(path)) + " splits " +
                                     std::to_string(splits) +
                                     (factor == nullptr ? ""
                                      : factor == &up   ? " gated"
                                                        : " mixed") +
                                     (epilogue.bias ? " bias" : "") + (epilogue.accumulate ? " accumulate" : "");
            EXPECT_EQ(compare(m, {.tokens = 70,
                                  .plan = {path, splits},
                                  .up = factor,
                                  .epilogue = epilogue,
                                  .y_gap = 3,
                                  .name = name}),
                      0)
                << name;
          }
        }
      }
    }
  }
}

TEST_F(MatMul, ActivationsInInt8) {
  constexpr std::size_t kTokens = 20, kCols = 200, kPadded = padded_cols(kCols);
  Sample m(device(), DType::int8, 40, kCols, 0, 17);
  std::vector<float> x = testing::gaussian(kTokens * kCols, 18);
  std::vector<std::int8_t> q(kTokens * kPadded);
  std::vector<float2_pod> scales(kTokens * kPadded / kGroup);
  for (std::size_t t = 0; t < kTokens; ++t) {
    const std::vector<Int8Block> blocks = testing::int8_of_gpu(std::span(x).subspan(t * kCols, kCols));
    for (std::size_t c = 0; c < kCols; ++c) {
      const Int8Block& block = blocks[c / kGroup];
      q[t * kPadded + c] = block.q[c % kGroup];
      scales[t * kPadded / kGroup + c / kGroup].x = block.scale;
      x[t * kCols + c] = block.scale * static_cast<float>(block.q[c % kGroup]);
    }
  }
  const Array<float> x_there = upload(x);
  const Array<std::int8_t> q_there = upload<std::int8_t>(q);
  const Array<float2_pod> scales_there = upload<float2_pod>(scales);
  for (const Arithmetic arithmetic : {Arithmetic::fast, Arithmetic::exact}) {
    std::vector<float> results[2];
    for (const bool as_int8 : {false, true}) {
      Array<float> y(*device(), kTokens * m.rows);
      Activations tokens{.x = x_there.data(), .q = nullptr, .scales = nullptr, .count = kTokens, .cols = kCols};
      if (as_int8) tokens = {.q = q_there.data(), .scales = scales_there.data(), .count = kTokens, .cols = kCols};
      const GpuProduct product{.matrix = &*m.matrix, .up = nullptr, .y = y.data(), .y_stride = 0, .epilogue = {}};
      matmul({&product, 1}, tokens, arithmetic, *scratch_, *stream_);
      results[as_int8].resize(y.size());
      stream_->copy_out(y.data(), std::as_writable_bytes(std::span(results[as_int8])));
      stream_->wait();
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

TEST_F(MatMul, LongSums) {
  for (const Format format : {Format(BlockFormat::q4_k), Format(BlockFormat::q6_k), Format(DType::fp8e4m3)}) {
    Sample m(device(), format, 260, 4096, 0, 21);
    for (const std::size_t tokens : {16, 64, 260}) {
      EXPECT_EQ(compare(m, {.tokens = tokens, .name = std::string(format.name()) + " long"}), 0);
    }
  }
}

TEST_F(MatMul, Gemm) {
  if (!cublas_problem().empty()) GTEST_SKIP() << cublas_problem();
  constexpr std::size_t kM = 37, kN = 29, kK = 53, kBatch = 3;
  const std::vector<float> a = testing::gaussian(kBatch * kM * kK, 1), b = testing::gaussian(kBatch * kK * kN, 2);
  const std::vector<float> c = testing::gaussian(kBatch * kM * kN, 3);
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      Array<float> a_there = upload(a), b_there = upload(b), c_there = upload(c);
      Gemm g{.m = kM,
             .n = kN,
             .k = kK,
             .a = a_there.data(),
             .b = b_there.data(),
             .c = c_there.data(),
             .transpose_a = ta,
             .transpose_b = tb};
      g.alpha = 0.5f;
      g.beta = 2;
      g.batch = kBatch;
      g.a_batch_stride = kM * kK;
      g.b_batch_stride = kK * kN;
      g.c_batch_stride = kM * kN;
      gemm(g, *stream_);
      std::vector<float> got(c.size());
      stream_->copy_out(c_there.data(), std::as_writable_bytes(std::span(got)));
      stream_->wait();
      for (std::size_t i = 0; i < c.size(); ++i) {
        const std::size_t z = i / (kM * kN), m = i / kN % kM, n = i % kN;
        double sum = 0;
        for (std::size_t k = 0; k < kK; ++k) {
          sum += static_cast<double>(a[z * kM * kK + (ta ? k * kM + m : m * kK + k)]) *
                 static_cast<double>(b[z * kK * kN + (tb ? n * kK + k : k * kN + n)]);
        }
        ASSERT_NEAR(got[i], 0.5 * sum + 2.0 * static_cast<double>(c[i]), 1e-4) << ta << tb << " at " << i;
      }
    }
  }
}

}  // namespace
}  // namespace imago::kernels::cuda
