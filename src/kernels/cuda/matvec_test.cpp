// Products with few tokens on the GPU, against sums in double.

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>

#include "imago/error.h"
#include "kernels/cuda/matrix.h"
#include "kernels/cuda/ops.h"
#include "testing/gpu.h"
#include "testing/gpu_samples.h"

namespace imago::kernels::cuda {
namespace {

using imago::cuda::Array;
using testing::expected_product;
using testing::from_device;
using testing::gaussian;
using testing::on_device;
using testing::packed_sample;
using testing::PackedSample;
using testing::ProductSums;

/// fp8 and types wider than 8 bits have no int8 form: `fast` takes float32 activations there.
bool takes_int8(Format format) {
  if (format.is_block()) return true;
  return bits(format.dtype()) <= 8 && format.dtype() != DType::fp8e4m3 && format.dtype() != DType::fp8e5m2;
}

const char* name_of(Arithmetic arithmetic) { return arithmetic == Arithmetic::fast ? "fast" : "exact"; }

class GpuMatVec : public testing::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    stream_.emplace(device());
    scratch_.emplace(device());
  }

  std::vector<float> product(const GpuMatrix& matrix, std::span<const float> x, std::size_t tokens,
                             Arithmetic arithmetic) {
    const Array<float> input = on_device(x, *stream_);
    Array<float> y = on_device(std::vector<float>(tokens * matrix.rows() + 1, 77.0f), *stream_);
    const GpuProduct one{.matrix = &matrix, .y = y.data()};
    multiply({&one, 1}, {.x = input.data(), .count = tokens, .cols = matrix.cols()}, arithmetic, *scratch_, *stream_);
    return from_device(y, *stream_);
  }

  /// The first wrong element of each case, with how many there are.
  bool matches(const PackedSample& m, std::size_t tokens, Arithmetic arithmetic, unsigned seed) {
    const GpuMatrix matrix(device(), m.source());
    const std::vector<float> x = gaussian(tokens * m.cols, seed);
    const std::vector<float> y = product(matrix, x, tokens, arithmetic);
    const ProductSums e = expected_product(m, x, tokens, arithmetic == Arithmetic::fast && takes_int8(m.format));
    std::size_t wrong = 0, first = 0;
    for (std::size_t i = 0; i < e.y.size(); ++i) {
      double bound = 1e-5 * e.magnitude[i] + 1e-6;
      if (m.format == Format(DType::uint8)) {
        // Codes count from -128, which is taken back at the end: two sums of this size cancel, and leave their
        // roundings.
        double cancelling = 0;
        for (std::size_t c = 0; c < m.cols; ++c)
          cancelling += std::fabs(static_cast<double>(x[i / m.rows * m.cols + c]));
        bound += 1e-6 * 128 * cancelling * static_cast<double>(*std::max_element(m.scales.begin(), m.scales.end()));
      }
      if (std::fabs(static_cast<double>(y[i]) - e.y[i]) <= bound) continue;
      if (wrong++ == 0) first = i;
    }
    if (y.back() != 77.0f) ADD_FAILURE() << m.format.name() << " writes past the end";
    if (wrong == 0) return true;
    ADD_FAILURE() << fmt::format(
        "{} {} {} × {}, {} tokens, scales for {}: {} of {} wrong, first token {} row {}: {} not {} (of {})",
        m.format.name(), name_of(arithmetic), m.rows, m.cols, tokens, m.scale_group, wrong, e.y.size(), first / m.rows,
        first % m.rows, y[first], e.y[first], e.magnitude[first]);
    return false;
  }

  std::optional<Stream> stream_;
  std::optional<ProductScratch> scratch_;
};

std::vector<std::size_t> column_counts(Format format) {
  const std::size_t block = static_cast<std::size_t>(format.block_values());
  if (block == 1) return {1, 31, 32, 33, 96, 100, 517, 4096};
  return {block, 3 * block, 4096};
}

TEST_F(GpuMatVec, EveryFormatMatchesTheDefinition) {
  int compared = 0;
  for (const Format format : testing::all_formats()) {
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::fast}) {
      unsigned seed = 1;
      int failures = 0;
      for (const std::size_t cols : column_counts(format)) {
        for (const std::size_t rows : {1, 7, 33}) {
          const PackedSample m = packed_sample(format, rows, cols, rows % 2, ++seed);
          for (const std::size_t tokens : {1, 2, 3, 8}) {
            if (cols > 1000 && rows < 33) continue;
            ++compared;
            if (failures < 3 && !matches(m, tokens, arithmetic, ++seed)) ++failures;  // three of each say enough
          }
        }
      }
    }
  }
  std::printf("%d products compared\n", compared);
}

/// Blocks of threads norm their token themselves where it is not too long, and else it is done before.
TEST_F(GpuMatVec, NormsItsToken) {
  for (const Format format : {Format(BlockFormat::q4_k), Format(BlockFormat::q8_0), Format(DType::int4),
                              Format(BlockFormat::q6_k), Format(DType::binary), Format(BlockFormat::mxfp4)}) {
    for (const std::size_t cols : {256, 2048, 4096, 8192, 14336}) {
      const PackedSample m = packed_sample(format, 33, cols, 0, 3);
      const GpuMatrix matrix(device(), m.source());
      const std::vector<float> x = gaussian(cols, 4), weight = gaussian(cols, 5);
      std::vector<float> weighted(cols);
      double squares = 0;
      for (std::size_t i = 0; i < cols; ++i) {
        weighted[i] = x[i] * weight[i];
        squares += double{x[i]} * double{x[i]};
      }
      const double factor = 1 / std::sqrt(squares / static_cast<double>(cols) + 1e-5);
      const Array<float> input = on_device(x, *stream_), gpu_weight = on_device(weight, *stream_);
      Array<float> y = on_device(std::vector<float>(33, 77.0f), *stream_);
      const GpuProduct one{.matrix = &matrix, .y = y.data()};
      multiply({&one, 1}, {.x = input.data(), .norm = {gpu_weight.data(), 1e-5f}, .count = 1, .cols = cols},
               Arithmetic::fast, *scratch_, *stream_);
      const std::vector<float> got = from_device(y, *stream_);
      // Where a norm goes before, its values are rounded once more: some fall to another code.
      const ProductSums e = expected_product(m, weighted, 1, true);
      const double bound = cols <= 8192 ? 1e-5 : 1e-3;
      for (std::size_t r = 0; r < 33; ++r) {
        ASSERT_NEAR(got[r], factor * e.y[r], factor * bound * e.magnitude[r] + 1e-6)
            << format.name() << ", " << cols << " columns, row " << r;
      }
    }
  }
  const PackedSample plain = packed_sample(DType::float16, 4, 64, 0, 3);
  const GpuMatrix matrix(device(), plain.source());
  const Array<float> x(*device(), 64), y(*device(), 4);
  const GpuProduct one{.matrix = &matrix, .y = y.data()};
  EXPECT_THROW(multiply({&one, 1}, {.x = x.data(), .norm = {x.data(), 0}, .count = 1, .cols = 64}, Arithmetic::fast,
                        *scratch_, *stream_),
               UsageError);
}

TEST_F(GpuMatVec, GroupsOfScales) {
  for (const DTypeInfo& type : kDTypes) {
    if (!is_scaled(type.id)) continue;
    for (const std::size_t group : {32, 64, 128}) {
      const PackedSample m = packed_sample(type.id, 19, 640, group, 5);
      for (const std::size_t tokens : {1, 4}) {
        for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::fast}) matches(m, tokens, arithmetic, 6);
      }
      matches(packed_sample(type.id, 19, 8448, group, 5), 1, Arithmetic::fast,
              6);  // warps have several pieces of a row
    }
  }
}

/// Rows of which a warp has several pieces, in every form: whole pieces, a last one that is shorter, odd numbers of
/// them.
TEST_F(GpuMatVec, SeveralPiecesOfARow) {
  for (const Format format : testing::all_formats()) {
    for (const std::size_t cols : {4352, 8448, 14336}) {
      matches(packed_sample(format, 33, cols, 1, 7), 1, Arithmetic::fast, 8);
    }
    if (format.block_values() <= 32) matches(packed_sample(format, 33, 8736, 1, 7), 1, Arithmetic::fast, 8);
  }
}

TEST_F(GpuMatVec, LongRowsAndManyRows) {
  for (const Format format : {Format(DType::int4), Format(BlockFormat::q8_0), Format(BlockFormat::q4_0),
                              Format(DType::binary), Format(DType::float16), Format(BlockFormat::tq2_0)}) {
    for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>{3, 28672}, {130, 14336}, {9001, 256}}) {
      const PackedSample m = packed_sample(format, rows, cols, 1, 7);
      for (const std::size_t tokens : {1, 5}) matches(m, tokens, Arithmetic::fast, 8);
    }
  }
}

TEST_F(GpuMatVec, NanWeightsGiveNan) {
  for (const DType type : {DType::fp8e4m3, DType::fp8e5m2, DType::float16, DType::bfloat16, DType::float32}) {
    PackedSample m = packed_sample(type, 20, 64, 0, 3);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    m.decoded[5 * 64 + 7] = nan;
    encode(type, m.decoded, {m.scales, m.scale_group}, m.bytes);
    const std::vector<float> y = product(GpuMatrix(device(), m.source()), gaussian(3 * 64, 4), 3, Arithmetic::fast);
    for (std::size_t i = 0; i < 60; ++i) EXPECT_EQ(std::isnan(y[i]), i % 20 == 5) << name(type) << " row " << i % 20;
  }
}

/// What kernels read past the end of a row, scales of the next one, must not reach its result.
TEST_F(GpuMatVec, InfiniteScalesStayInTheirRows) {
  for (const BlockFormat format : {BlockFormat::q4_0, BlockFormat::q8_0, BlockFormat::entity_q4_0}) {
    for (const std::size_t cols : {32, 96, 4128, 4608, 8736}) {
      PackedSample m = packed_sample(format, 20, cols, 0, 3);
      const std::size_t block = m.bytes.size() / (20 * cols / 32);
      const float infinity = std::numeric_limits<float>::infinity();
      const std::uint16_t half = 0x7C00;
      for (const std::size_t row : {0, 5, 19}) {
        for (std::size_t b = 0; b < std::min<std::size_t>(16, cols / 32); ++b) {
          std::byte* scale = m.bytes.data() + (row * (cols / 32) + b) * block;
          if (format == BlockFormat::entity_q4_0) {
            std::memcpy(scale, &infinity, 4);
          } else {
            std::memcpy(scale, &half, 2);
          }
        }
      }
      const std::vector<float> y = product(GpuMatrix(device(), m.source()), gaussian(cols, 4), 1, Arithmetic::fast);
      for (std::size_t i = 0; i < 20; ++i) {
        EXPECT_EQ(std::isfinite(y[i]), i != 0 && i != 5 && i != 19) << name(format) << ", " << cols << ", row " << i;
      }
    }
  }
}

double activation(Activation function, double x) {
  const auto sigmoid = [](double t) { return 1 / (1 + std::exp(-t)); };
  switch (function) {
    case Activation::linear: return x;
    case Activation::relu: return x < 0 ? 0 : x;
    case Activation::relu2: return x < 0 ? 0 : x * x;
    case Activation::leaky_relu: return x < 0 ? 0.01 * x : x;
    case Activation::silu: return x * sigmoid(x);
    case Activation::gelu: return x * sigmoid(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    case Activation::tanh: return std::tanh(x);
    case Activation::sigmoid: return sigmoid(x);
    case Activation::gelu_erf: return x / 2 * std::erfc(-x / std::sqrt(2.0));
    case Activation::clamped_swish: return std::min(x, 7.0) * sigmoid(1.702 * std::min(x, 7.0));
  }
  return x;
}

/// One product among others: its matrix, what is expected of it, and where its results go.
struct Case {
  PackedSample m;
  std::optional<PackedSample> up;
  GpuEpilogue epilogue;
  std::size_t y_stride;
  std::unique_ptr<GpuMatrix> matrix, up_matrix;
  Array<float> y, bias;
};

class GpuProducts : public GpuMatVec {
 protected:
  void add(PackedSample m, std::optional<PackedSample> up, GpuEpilogue epilogue, bool has_bias, std::size_t gap = 0) {
    Case c{std::move(m), std::move(up), epilogue, 0, nullptr, nullptr, {}, {}};
    c.y_stride = c.m.rows + gap;
    c.matrix = std::make_unique<GpuMatrix>(device(), c.m.source());
    if (c.up) c.up_matrix = std::make_unique<GpuMatrix>(device(), c.up->source());
    if (has_bias) {
      c.bias = on_device(gaussian(c.m.rows, 31), *stream_);
      c.epilogue.bias = c.bias.data();
    }
    cases_.push_back(std::move(c));
  }

  void expect_all(std::size_t tokens, std::size_t cols, Arithmetic arithmetic) {
    const std::vector<float> x = gaussian(tokens * cols, 32, 0.2f);
    const Array<float> input = on_device(x, *stream_);
    std::vector<GpuProduct> products;
    for (Case& c : cases_) {
      c.y = on_device(gaussian(tokens * c.y_stride, 33), *stream_);
      products.push_back({.matrix = c.matrix.get(),
                          .up = c.up_matrix.get(),
                          .y = c.y.data(),
                          .y_stride = c.y_stride == c.m.rows ? 0 : c.y_stride,
                          .epilogue = c.epilogue});
    }
    multiply(products, {.x = input.data(), .count = tokens, .cols = cols}, arithmetic, *scratch_, *stream_);
    for (std::size_t n = 0; n < cases_.size(); ++n) {
      const Case& c = cases_[n];
      const std::vector<float> before = gaussian(tokens * c.y_stride, 33), y = from_device(c.y, *stream_);
      const bool fast = arithmetic == Arithmetic::fast;
      const ProductSums gate = expected_product(c.m, x, tokens, fast && takes_int8(c.m.format));
      ProductSums up;
      if (c.up) up = expected_product(*c.up, x, tokens, fast && takes_int8(c.up->format));
      const std::vector<float> bias = gaussian(c.m.rows, 31);
      int shown = 0;
      for (std::size_t i = 0; i < tokens * c.y_stride && shown < 2; ++i) {
        const std::size_t t = i / c.y_stride, r = i % c.y_stride;
        double want = static_cast<double>(before[i]);
        double bound = 0;
        if (r < c.m.rows) {
          const std::size_t at = t * c.m.rows + r;
          const double sum = gate.y[at] + (c.epilogue.bias != nullptr ? static_cast<double>(bias[r]) : 0.0);
          const double factor = (c.up ? up.y[at] : 1.0) * static_cast<double>(c.epilogue.scale);
          want = activation(c.epilogue.activation, sum) * factor + (c.epilogue.accumulate ? want : 0.0);
          const double slope = c.epilogue.activation == Activation::relu2 ? 2 * std::fabs(sum) + 1 : 1.2;
          bound = 2e-5 * (slope * (gate.magnitude[at] + std::fabs(sum)) * std::fabs(factor) + std::fabs(want)) + 1e-6;
          if (c.up)
            bound += 1e-5 * up.magnitude[at] *
                     std::fabs(activation(c.epilogue.activation, sum) * static_cast<double>(c.epilogue.scale));
        }
        if (std::fabs(static_cast<double>(y[i]) - want) <= bound) continue;
        ++shown;
        ADD_FAILURE() << fmt::format(
            "product {} ({}{}{}), {}, {} tokens, activation {}: token {} row {}: {} not {} ± {}", n, c.m.format.name(),
            c.up ? " with " : "", c.up ? c.up->format.name() : "", name_of(arithmetic), tokens,
            static_cast<int>(c.epilogue.activation), t, r, y[i], want, bound);
      }
    }
  }

  std::vector<Case> cases_;
};

TEST_F(GpuProducts, Epilogues) {
  constexpr std::size_t kCols = 256;
  int n = 0;
  for (const Format format : {Format(BlockFormat::q4_k), Format(DType::int8), Format(DType::bfloat16)}) {
    for (int f = 0; f < kActivationCount; ++f, ++n) {
      add(packed_sample(format, 37, kCols, 0, 41), std::nullopt,
          {.activation = static_cast<Activation>(f), .scale = f % 2 == 0 ? 1.0f : 0.7f, .accumulate = f % 3 == 0},
          f % 4 != 1, f % 2 == 0 ? 0 : 5);
    }
  }
  for (const std::size_t tokens : {1, 3, 8}) {
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::fast}) expect_all(tokens, kCols, arithmetic);
  }
}

TEST_F(GpuProducts, GatedPairs) {
  constexpr std::size_t kCols = 512;
  const auto pair = [&](Format gate, Format up, std::size_t rows, GpuEpilogue epilogue, bool bias) {
    add(packed_sample(gate, rows, kCols, 0, 51), packed_sample(up, rows, kCols, 1, 52), epilogue, bias);
  };
  pair(BlockFormat::q4_k, BlockFormat::q4_k, 65, {.activation = Activation::silu}, false);
  pair(BlockFormat::q4_k, BlockFormat::q6_k, 64, {.activation = Activation::silu}, false);
  pair(DType::int4, DType::uint4, 33, {.activation = Activation::gelu, .scale = 0.5f, .accumulate = true}, true);
  pair(DType::float16, DType::float16, 7, {.activation = Activation::relu}, false);
  pair(DType::float16, BlockFormat::q8_0, 7, {.activation = Activation::silu, .scale = 2.0f, .accumulate = true}, true);
  pair(BlockFormat::q5_0, BlockFormat::q5_0, 1, {.activation = Activation::silu}, false);
  pair(BlockFormat::q8_0, BlockFormat::q8_0, 5, {.activation = Activation::gelu_erf}, false);
  for (const std::size_t tokens : {1, 2, 4, 7}) {
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::fast}) expect_all(tokens, kCols, arithmetic);
  }
}

TEST_F(GpuProducts, SeveralShareTheirActivations) {
  constexpr std::size_t kCols = 256;
  for (const Format format : {Format(BlockFormat::q4_k), Format(BlockFormat::q4_k), Format(BlockFormat::q6_k),
                              Format(DType::int2), Format(DType::ternary), Format(BlockFormat::q4_k),
                              Format(BlockFormat::q4_k), Format(BlockFormat::q4_k), Format(DType::float32)}) {
    add(packed_sample(format, 16 + 9 * cases_.size(), kCols, 0, 61 + static_cast<unsigned>(cases_.size())),
        std::nullopt, {}, false);
  }
  for (const std::size_t tokens : {1, 6}) expect_all(tokens, kCols, Arithmetic::fast);
}

TEST_F(GpuMatVec, TakesTheInt8FormAlone) {
  constexpr std::size_t kCols = 96, kTokens = 3;
  const std::vector<float> x = gaussian(kTokens * kCols, 71);
  const Array<float> input = on_device(x, *stream_);
  Array<std::int8_t> q(*device(), kTokens * kCols);
  Array<float2_pod> scales(*device(), kTokens * kCols / 32);
  quantize(input.data(), kTokens, kCols, {q.data(), scales.data()}, *stream_);
  for (const Format format : {Format(BlockFormat::q5_1), Format(DType::float32), Format(DType::fp8e4m3)}) {
    const PackedSample m = packed_sample(format, 33, kCols, 0, 72);
    const GpuMatrix matrix(device(), m.source());
    Array<float> y(*device(), kTokens * m.rows);
    const GpuProduct one{.matrix = &matrix, .y = y.data()};
    multiply({&one, 1}, {.q = q.data(), .scales = scales.data(), .count = kTokens, .cols = kCols}, Arithmetic::fast,
             *scratch_, *stream_);
    const std::vector<float> got = from_device(y, *stream_);
    const ProductSums e = expected_product(m, x, kTokens, true);
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(got[i]), e.y[i], 1e-5 * e.magnitude[i] + 1e-6) << format.name() << " at " << i;
    }
  }
}

TEST_F(GpuMatVec, RunsInAGraph) {
  const PackedSample m = packed_sample(BlockFormat::q4_0, 64, 64, 0, 81);
  const GpuMatrix matrix(device(), m.source());
  const std::vector<float> x = gaussian(64, 82);
  const Array<float> input = on_device(x, *stream_);
  Array<float> y(*device(), 64), z(*device(), 64), w(*device(), 64);
  // Three in a row, each with the results of the one before: overlapping launches must wait for them.
  const auto work = [&] {
    const GpuProduct first{.matrix = &matrix, .y = y.data()}, second{.matrix = &matrix, .y = z.data()},
        third{.matrix = &matrix, .y = w.data()};
    multiply({&first, 1}, {.x = input.data(), .count = 1, .cols = 64}, Arithmetic::exact, *scratch_, *stream_);
    multiply({&second, 1}, {.x = y.data(), .count = 1, .cols = 64}, Arithmetic::exact, *scratch_, *stream_);
    multiply({&third, 1}, {.x = z.data(), .count = 1, .cols = 64}, Arithmetic::exact, *scratch_, *stream_);
  };
  work();
  const std::vector<float> want = from_device(w, *stream_);
  stream_->fill_zero(w.data(), 64 * sizeof(float));
  const imago::cuda::Graph graph(*stream_, work);
  for (int i = 0; i < 5; ++i) graph.launch(*stream_);
  EXPECT_EQ(from_device(w, *stream_), want);
  std::vector<double> expected(x.begin(), x.end());
  for (int i = 0; i < 3; ++i) {
    std::vector<double> next(64);
    for (std::size_t r = 0; r < 64; ++r) {
      for (std::size_t c = 0; c < 64; ++c) next[r] += static_cast<double>(m.decoded[r * 64 + c]) * expected[c];
    }
    expected = next;
  }
  for (std::size_t r = 0; r < 64; ++r) EXPECT_NEAR(static_cast<double>(want[r]), expected[r], 1e-3) << r;
}

TEST_F(GpuMatVec, BadShapesAreRefused) {
  const PackedSample m = packed_sample(DType::int8, 4, 64, 0, 1), other = packed_sample(DType::int8, 5, 64, 0, 1);
  const GpuMatrix matrix(device(), m.source()), second(device(), other.source());
  Array<float> memory(*device(), 1024);
  const GpuProduct one{.matrix = &matrix, .y = memory.data()},
      two{.matrix = &matrix, .up = &second, .y = memory.data()};
  const Activations narrow{.x = memory.data(), .count = 1, .cols = 63},
      right{.x = memory.data(), .count = 1, .cols = 64};
  EXPECT_THROW(multiply({&one, 1}, narrow, Arithmetic::fast, *scratch_, *stream_), ShapeError);
  EXPECT_THROW(multiply({&two, 1}, right, Arithmetic::fast, *scratch_, *stream_), ShapeError);
  PackedMatrix bad = m.source();
  bad.rows = 5;
  EXPECT_THROW(GpuMatrix(device(), bad), ShapeError);
}

}  // namespace
}  // namespace imago::kernels::cuda
