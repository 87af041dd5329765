// Every row of the matrix table against `ref`, and `ref` against sums in double.

#include "kernels/matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <random>

#include "imago/codec.h"
#include "imago/error.h"
#include "imago/numeric.h"
#include "imago/system.h"
#include "testing/blocks.h"
#include "testing/safetensors.h"

namespace imago::kernels {
namespace {

/// A matrix packed in one format, with everything that belongs to it.
struct Packed {
  Format format = DType::float32;
  std::size_t rows = 0, cols = 0;
  std::vector<std::byte> bytes;
  std::vector<float> scales;
  std::size_t scale_group = 0;
  std::vector<float> decoded;

  PackedMatrix source() const { return {format, rows, cols, bytes, {scales, scale_group}}; }
};

/// `group`: columns per scale of a dtype, 0: one per tensor, 1: one per row.
Packed pack(Format format, std::size_t rows, std::size_t cols, std::size_t group, std::span<const float> weights) {
  Packed m{.format = format, .rows = rows, .cols = cols, .bytes = {}, .scales = {}, .scale_group = 0, .decoded = {}};
  m.bytes.resize(packed_bytes(format, weights.size()));
  m.decoded.resize(weights.size());
  if (format.is_block()) {
    encode(format.block(), weights, m.bytes);
    decode(format.block(), m.bytes, m.decoded);
    return m;
  }
  m.scale_group = group == 0 ? rows * cols : group == 1 ? cols : group;
  if (is_scaled(format.dtype())) {
    for (std::size_t i = 0; i < weights.size(); i += m.scale_group) {
      const std::size_t length = std::min(m.scale_group, weights.size() - i);
      m.scales.push_back(derive_mse_scale(format.dtype(), weights.subspan(i, length)));
    }
  }
  const Scales scales{m.scales, m.scale_group};
  encode(format.dtype(), weights, scales, m.bytes);
  decode(format.dtype(), m.bytes, scales, m.decoded);
  return m;
}

struct Expected {
  std::vector<double> y, bound;  // the sum in double, and how far a kernel may be from it
};

/// Rounded to the nearest bfloat16, ties to even; numbers too small for a normal float32 are zero.
double as_bfloat16(double value) {
  if (std::fabs(value) < std::numeric_limits<float>::min()) return 0;
  int exponent = 0;
  const double mantissa = std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8);
}

/// The definition of fast products by tiles: activations and weights as bfloat16 has them. A kernel decodes weights in
/// float32, so one that lies as good as between two neighbours may become either of them.
Expected expected_by_tiles(const Packed& m, std::span<const float> x, std::size_t batch) {
  constexpr double kSlack = 0x1p-21;  // of a weight: what decoding in float32 may be off by
  std::vector<double> weights(m.decoded.size()), doubts(m.decoded.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double weight = m.decoded[i];
    weights[i] = as_bfloat16(weight);
    doubts[i] = std::fabs(as_bfloat16(weight * (1 + kSlack)) - as_bfloat16(weight * (1 - kSlack)));
  }
  Expected e{std::vector<double>(batch * m.rows), std::vector<double>(batch * m.rows)};
  for (std::size_t t = 0; t < batch; ++t) {
    for (std::size_t r = 0; r < m.rows; ++r) {
      double sum = 0, magnitude = 0, doubt = 0;
      for (std::size_t c = 0; c < m.cols; ++c) {
        const double activation = as_bfloat16(x[t * m.cols + c]);
        sum += weights[r * m.cols + c] * activation;
        magnitude += std::fabs(weights[r * m.cols + c] * activation);
        doubt += std::fabs(doubts[r * m.cols + c] * activation);
      }
      e.y[t * m.rows + r] = sum;
      e.bound[t * m.rows + r] = 1e-5 * magnitude + doubt + 1e-6;
    }
  }
  return e;
}

/// The definition: activations as they are, or as int8 has them, times the decoded weights.
Expected expected(const Packed& m, std::span<const float> x, std::size_t batch, Arithmetic arithmetic) {
  Expected e{std::vector<double>(batch * m.rows), std::vector<double>(batch * m.rows)};
  for (std::size_t t = 0; t < batch; ++t) {
    std::vector<double> token(m.cols);
    const std::vector<Int8Block> blocks = quantize_activations(x.subspan(t * m.cols, m.cols));
    for (std::size_t c = 0; c < m.cols; ++c) {
      const Int8Block& block = blocks[c / 32];
      token[c] = arithmetic == Arithmetic::exact ? static_cast<double>(x[t * m.cols + c])
                                                 : static_cast<double>(block.scale) * block.q[c % 32];
    }
    for (std::size_t r = 0; r < m.rows; ++r) {
      double sum = 0;
      double magnitude = 0;
      for (std::size_t c = 0; c < m.cols; ++c) {
        const double product = static_cast<double>(m.decoded[r * m.cols + c]) * token[c];
        sum += product;
        magnitude += std::fabs(product);
      }
      e.y[t * m.rows + r] = sum;
      e.bound[t * m.rows + r] = 1e-5 * magnitude + 1e-6;
    }
  }
  return e;
}

bool host_runs(const MatrixKernel& row) { return (row.needs & host_cpu_features()) == row.needs; }

void expect_matches(const MatrixKernel& kernel, const Packed& m, std::size_t batch, std::span<const float> x) {
  const RunMatrix matrix(kernel, m.source());
  std::vector<float> y(batch * m.rows + 1, 77.0f);
  matrix.multiply(x, batch, std::span(y).first(batch * m.rows));
  ASSERT_EQ(y.back(), 77.0f) << kernel.name << " writes past the end";
  const bool rounds = kernel.takes_tiles(batch) && kernel.arithmetic == Arithmetic::fast;
  const Expected e = rounds ? expected_by_tiles(m, x, batch) : expected(m, x, batch, kernel.arithmetic);
  for (std::size_t i = 0; i < e.y.size(); ++i) {
    ASSERT_NEAR(y[i], e.y[i], e.bound[i])
        << kernel.name << (kernel.arithmetic == Arithmetic::fast ? " fast " : " exact ") << m.rows << " × " << m.cols
        << ", batch " << batch << ", token " << i / m.rows << ", row " << i % m.rows << ", groups of " << m.scale_group;
  }
}

/// Columns must be whole blocks; scalar types take any number.
std::vector<std::size_t> column_counts(Format format) {
  const std::size_t block = static_cast<std::size_t>(format.block_values());
  if (block == 1) return {1, 31, 32, 33, 100, 288, 520};
  return {block, 3 * block, block == 256 ? 512 : 544 / block * block};
}

TEST(Matrix, EveryRowMatchesTheDefinition) {
  int compared = 0;
  int skipped = 0;
  for (const MatrixKernel& kernel : all_matrix_kernels()) {
    if (!host_runs(kernel)) {
      ++skipped;
      continue;
    }
    unsigned seed = 1;
    for (const std::size_t rows : {1, 17, 33}) {
      for (const std::size_t cols : column_counts(kernel.format)) {
        const Packed m = pack(kernel.format, rows, cols, rows % 2, testing::gaussian(rows * cols, ++seed, 0.3f));
        for (const std::size_t batch : {1, 3, 9, 27, 50}) {
          if (batch > 3 && rows > 17) continue;
          if (batch > 32 && !kernel.takes_tiles(batch)) continue;  // others have seen every size of tile by then
          expect_matches(kernel, m, batch, testing::gaussian(batch * cols, ++seed));
          if (HasFatalFailure()) return;
          ++compared;
        }
      }
    }
  }
  std::printf("%d products compared, %d rows skipped: this CPU lacks their instructions\n", compared, skipped);
  EXPECT_GT(compared, 0);
}

TEST(Matrix, GroupsOfScales) {
  for (const MatrixKernel& kernel : all_matrix_kernels()) {
    if (!host_runs(kernel) || kernel.format.is_block() || !is_scaled(kernel.format.dtype())) continue;
    for (const std::size_t group : {32, 64, 128}) {
      const Packed m = pack(kernel.format, 19, 640, group, testing::gaussian(19 * 640, 5));
      for (const std::size_t batch : {1, 4, 20}) {
        expect_matches(kernel, m, batch, testing::gaussian(batch * 640, 6));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Matrix, ZerosExtremesAndDenormals) {
  for (const MatrixKernel& kernel : all_matrix_kernels()) {
    if (!host_runs(kernel)) continue;
    const std::size_t cols = 512;
    for (const float size : {0.0f, 1e-20f, 1e4f}) {
      std::vector<float> weights = testing::gaussian(17 * cols, 3, size);
      if (kernel.format == Format(DType::float16) && size == 1e-20f) continue;  // all zeros there, tested by 0
      const Packed m = pack(kernel.format, 17, cols, 0, weights);
      for (const float x_size : {0.0f, 1e-38f, 1e3f}) {
        std::vector<float> x = testing::gaussian(2 * cols, 4, x_size);
        expect_matches(kernel, m, 1, std::span(x).first(cols));
        expect_matches(kernel, m, 2, x);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Matrix, NanWeightsGiveNan) {
  for (const MatrixKernel& kernel : all_matrix_kernels()) {
    const bool keeps_nan = kernel.format == Format(DType::fp8e4m3) || kernel.format == Format(DType::fp8e5m2) ||
                           kernel.format == Format(DType::float16) || kernel.format == Format(DType::float32);
    if (!host_runs(kernel) || !keeps_nan) continue;
    std::vector<float> weights = testing::gaussian(20 * 64, 3);
    weights[5 * 64 + 7] = std::numeric_limits<float>::quiet_NaN();
    const Packed m = pack(kernel.format, 20, 64, 0, weights);
    for (const std::size_t batch : {1, 15, 40}) {
      std::vector<float> y(batch * 20);
      RunMatrix(kernel, m.source()).multiply(testing::gaussian(batch * 64, 4), batch, y);
      for (std::size_t i = 0; i < y.size(); ++i)
        EXPECT_EQ(std::isnan(y[i]), i % 20 == 5) << kernel.name << " row " << i % 20;
    }
  }
}

TEST(Matrix, GgmlDotProducts) {
  const testing::SafetensorsFile file("ggml/blocks.safetensors");
  const std::vector<float> activation = file.values<float>("activation");
  for (const MatrixKernel& kernel : all_matrix_kernels()) {
    if (!host_runs(kernel) || !kernel.format.is_block() || !info(kernel.format.block()).in_gguf) continue;
    std::string name(kernel.format.name());
    if (name.ends_with("_k")) name.back() = 'K';
    const std::vector<std::byte> bytes = file.values<std::byte>(name + ".bytes");
    const std::vector<float> decoded = file.values<float>(name + ".dequantized");
    const std::vector<float> dots = file.values<float>(name + ".dot_f64");
    const RunMatrix matrix(kernel, {kernel.format, 12, 1024, bytes});
    std::vector<float> y(12);
    matrix.multiply(activation, 1, y);
    for (std::size_t r = 0; r < 12; ++r) {
      double variance = 0;  // of what int8 rounds away: evenly spread over a step
      for (std::size_t c = 0; c < 1024; ++c) {
        double largest = 0;
        for (std::size_t i = 0; i < 32; ++i)
          largest = std::max(largest, std::fabs(double{activation[c / 32 * 32 + i]}));
        variance += std::pow(double{decoded[r * 1024 + c]} * largest / 120, 2) / 12;
      }
      EXPECT_NEAR(y[r], dots[r], 4 * std::sqrt(variance) + 1e-9) << kernel.name << " row " << r;
    }
  }
}

TEST(Matrix, TilesOfLongRowsAndManyPanels) {
  // More columns than a stripe, more panels than a group, and blocks of tokens whose sums wait for the next stripe.
  int compared = 0;
  const std::pair<Format, Arithmetic> cases[] = {
      {BlockFormat::q4_k, Arithmetic::fast}, {BlockFormat::q6_k, Arithmetic::fast},
      {DType::int8, Arithmetic::fast},       {DType::float16, Arithmetic::exact},
      {DType::bfloat16, Arithmetic::exact},  {DType::float32, Arithmetic::exact}};
  for (const auto& [format, arithmetic] : cases) {
    const MatrixKernel* kernel = choose_matrix_kernel(format, arithmetic, host_cpu_features());
    if (!kernel->takes_tiles(70)) continue;
    const std::size_t cols = format.is_block() ? 4608 : 4111;
    const Packed m = pack(format, 16 * 17 + 3, cols, 0, testing::gaussian((16 * 17 + 3) * cols, 31, 0.3f));
    expect_matches(*kernel, m, 70, testing::gaussian(70 * cols, 32));
    ++compared;
  }
  if (compared == 0) GTEST_SKIP() << "this processor multiplies no tiles";
}

TEST(Matrix, ExactTilesLoseNothingThatFloat32HasNot) {
  // One weight a row, so that nothing is added up: every product is rounded once. Activations fill all of their 24
  // bits. What an infinite one touches is infinite or no number, and others do not notice.
  constexpr std::size_t kRows = 20, kCols = 64, kBatch = 40;
  int compared = 0;
  for (const DType type : {DType::float32, DType::float16, DType::bfloat16}) {
    const MatrixKernel* kernel = choose_matrix_kernel(type, Arithmetic::exact, host_cpu_features());
    if (!kernel->takes_tiles(kBatch)) continue;
    std::vector<float> weights(kRows * kCols);
    for (std::size_t r = 0; r < kRows; ++r) weights[r * kCols + 3 * r] = 0.37f + 0.219f * static_cast<float>(r);
    const Packed m = pack(type, kRows, kCols, 0, weights);
    std::vector<float> x = testing::gaussian(kBatch * kCols, 35);
    x[7 * kCols] = std::numeric_limits<float>::infinity();
    x[8 * kCols + 3] = std::numeric_limits<float>::max();  // times the zeros of rows but one
    std::vector<float> y(kBatch * kRows);
    RunMatrix(*kernel, m.source()).multiply(x, kBatch, y);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const std::size_t t = i / kRows, r = i % kRows;
      const double product = double{m.decoded[r * kCols + 3 * r]} * double{x[t * kCols + 3 * r]};
      if (t == 7) {
        EXPECT_FALSE(std::isfinite(y[i])) << kernel->name << " row " << r;
      } else {
        EXPECT_NEAR(y[i], product, 0x1p-22 * std::fabs(product)) << kernel->name << " token " << t << " row " << r;
      }
    }
    ++compared;
  }
  if (compared == 0) GTEST_SKIP() << "this processor multiplies no tiles";
}

TEST(Matrix, TilesOfSomeTokensOfABatch) {
  // As experts have them: from any token on, perhaps fewer than a tile, and beside tokens whose values are no numbers.
  constexpr std::size_t kRows = 40, kCols = 96, kBatch = 60;
  const Packed m = pack(BlockFormat::q8_0, kRows, kCols, 0, testing::gaussian(kRows * kCols, 33));
  const RunMatrix matrix(m.source(), Arithmetic::fast);
  if (!matrix.kernel().takes_tiles(kBatch)) GTEST_SKIP() << "this processor multiplies no tiles";
  for (const std::size_t first : {0, 1, 15, 16, 37}) {
    for (const std::size_t tokens : {1, 5, 16, 23}) {
      std::vector<float> x = testing::gaussian(kBatch * kCols, 34);
      const auto inside = std::span(x).subspan(first * kCols, tokens * kCols);
      const Expected e = expected_by_tiles(m, inside, tokens);
      for (std::size_t t = 0; t < kBatch; ++t) {
        if (t < first || t >= first + tokens) x[t * kCols + 5] = std::numeric_limits<float>::quiet_NaN();
      }
      std::vector<float> y(tokens * kRows);
      const Product product{.matrix = &matrix, .y = y, .first_token = first, .tokens = tokens};
      multiply_all({&product, 1}, x, kBatch);
      for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], e.y[i], e.bound[i]) << first << " " << tokens;
    }
  }
}

TEST(Matrix, DoesNotDependOnThreads) {
  for (const MatrixKernel& kernel : all_matrix_kernels()) {
    if (!host_runs(kernel)) continue;
    const Packed m = pack(kernel.format, 100, 256, 0, testing::gaussian(100 * 256, 8));
    for (const std::size_t batch : {1, 5, 30}) {
      const std::vector<float> x = testing::gaussian(batch * 256, 9);
      std::vector<float> one(batch * 100), three(batch * 100);
      set_thread_count(1);
      RunMatrix(kernel, m.source()).multiply(x, batch, one);
      set_thread_count(3);
      RunMatrix(kernel, m.source()).multiply(x, batch, three);
      ASSERT_EQ(one, three) << kernel.name << " batch " << batch;
    }
  }
  set_thread_count(0);
}

TEST(Matrix, BiasActivationAndGate) {
  const std::vector<float> weights = testing::gaussian(40 * 96, 1);
  const std::vector<float> bias = testing::gaussian(40, 2);
  const std::vector<float> x = testing::gaussian(3 * 96, 3);
  for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::fast}) {
    const Packed m = pack(DType::int8, 40, 96, 0, weights);
    const Packed other = pack(BlockFormat::q4_0, 40, 96, 0, testing::gaussian(40 * 96, 4));
    const RunMatrix matrix(m.source(), arithmetic);
    const RunMatrix second(other.source(), arithmetic);
    for (const std::size_t batch : {1, 3}) {
      const auto input = std::span(x).first(batch * 96);
      std::vector<float> plain(batch * 40), with(batch * 40), up(batch * 40), gated(batch * 40);
      matrix.multiply(input, batch, plain);
      matrix.multiply(input, batch, with, {.bias = bias, .activation = Activation::relu});
      second.multiply(input, batch, up);
      multiply_gated(matrix, second, input, batch, gated);
      for (std::size_t i = 0; i < plain.size(); ++i) {
        EXPECT_NEAR(with[i], std::max(0.0f, plain[i] + bias[i % 40]), 1e-5);
        const double silu = plain[i] / (1 + std::exp(-static_cast<double>(plain[i])));
        EXPECT_NEAR(gated[i], silu * up[i], 1e-4 * (1 + std::fabs(silu * up[i])));
      }
    }
  }
}

TEST(Matrix, SeveralProductsAreThoseOfEachAlone) {
  // Types, sizes and arithmetics mixed, some tokens for each, and more matrices than threads: as experts are.
  constexpr std::size_t kCols = 96, kBatch = 7;
  const std::vector<float> x = testing::gaussian(kBatch * kCols, 21);
  struct Case {
    Format format;
    Arithmetic arithmetic;
    std::size_t rows, first, tokens;
    bool gated;
  };
  const std::vector<Case> cases = {
      {BlockFormat::q8_0, Arithmetic::fast, 40, 0, 7, false}, {DType::int8, Arithmetic::exact, 17, 0, 7, false},
      {BlockFormat::q4_0, Arithmetic::fast, 33, 2, 1, true},  {BlockFormat::q4_1, Arithmetic::exact, 16, 3, 4, true},
      {DType::float32, Arithmetic::exact, 5, 6, 1, false},    {BlockFormat::q5_0, Arithmetic::fast, 70, 0, 0, false},
      {BlockFormat::q6_k, Arithmetic::fast, 1, 0, 0, false}};
  for (const int threads : {1, 2, 3}) {
    set_thread_count(threads);
    std::vector<std::unique_ptr<RunMatrix>> matrices;
    std::vector<std::vector<float>> results, wanted, rooms;
    std::vector<Product> products;
    results.reserve(cases.size());
    rooms.reserve(cases.size());
    for (const Case& c : cases) {
      if (kCols % static_cast<std::size_t>(c.format.block_values()) != 0) continue;
      const Packed m = pack(c.format, c.rows, kCols, 0, testing::gaussian(c.rows * kCols, 22));
      const Packed up = pack(BlockFormat::q8_0, c.rows, kCols, 0, testing::gaussian(c.rows * kCols, 23));
      matrices.push_back(std::make_unique<RunMatrix>(m.source(), c.arithmetic));
      const RunMatrix& matrix = *matrices.back();
      matrices.push_back(std::make_unique<RunMatrix>(up.source(), Arithmetic::fast));
      const RunMatrix& second = *matrices.back();
      const auto tokens = std::span(x).subspan(c.first * kCols, c.tokens * kCols);
      wanted.emplace_back(c.tokens * c.rows);
      results.emplace_back(c.tokens * c.rows);
      rooms.emplace_back(c.tokens * c.rows);
      Product product{.matrix = &matrix, .y = results.back(), .first_token = c.first, .tokens = c.tokens};
      if (c.gated) {
        multiply_gated(matrix, second, tokens, c.tokens, wanted.back());
        product.epilogue.activation = Activation::silu;
        product.up = &second;
        product.up_y = rooms.back();
      } else {
        matrix.multiply(tokens, c.tokens, wanted.back());
      }
      products.push_back(product);
    }
    multiply_all(products, x, kBatch);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      for (std::size_t j = 0; j < wanted[i].size(); ++j) {
        EXPECT_NEAR(results[i][j], wanted[i][j], 1e-4 * (1 + std::fabs(wanted[i][j]))) << i << " " << j;
      }
    }
    Product wrong = products.front();
    wrong.first_token = 1;
    EXPECT_THROW(multiply_all({&wrong, 1}, x, kBatch), ShapeError) << "tokens 1 to 8 of 7";
    wrong = products.front();
    wrong.up = products.back().matrix;
    EXPECT_THROW(multiply_all({&wrong, 1}, x, kBatch), ShapeError) << "a gate and an up of other rows";
  }
  set_thread_count(0);
}

TEST(Matrix, MayLieAmidOtherWeights) {
  constexpr std::size_t kRows = 5, kBatch = 2;
  for (const MatrixKernel& kernel : all_matrix_kernels()) {
    if ((kernel.needs & host_cpu_features()) != kernel.needs) continue;
    const bool is_block = kernel.format.is_block();
    const std::size_t block = static_cast<std::size_t>(kernel.format.block_values());
    const std::size_t cols = is_block ? block : 37;
    const std::size_t first = is_block ? 3 * block : 3;  // amid a byte for the small types
    const Packed all =
        pack(kernel.format, 1, first + kRows * cols + block, 0, testing::gaussian(first + kRows * cols + block, 11));
    Packed part = all;
    part.rows = kRows;
    part.cols = cols;
    part.decoded.erase(part.decoded.begin(), part.decoded.begin() + static_cast<std::ptrdiff_t>(first));
    PackedMatrix source = all.source();
    source.rows = kRows;
    source.cols = cols;
    source.first = first;
    const std::vector<float> x = testing::gaussian(kBatch * cols, 12);
    std::vector<float> y(kBatch * kRows);
    RunMatrix(kernel, source).multiply(x, kBatch, y);
    const Expected want = expected(part, x, kBatch, kernel.arithmetic);
    for (std::size_t i = 0; i < y.size(); ++i) {
      EXPECT_NEAR(static_cast<double>(y[i]), want.y[i], want.bound[i]) << kernel.name << " at " << i;
    }
  }
}

TEST(Matrix, BadShapesAreRefused) {
  const std::vector<float> weights(64 * 64);
  const Packed m = pack(DType::int4, 64, 64, 0, weights);
  const RunMatrix matrix(m.source(), Arithmetic::exact);
  std::vector<float> x(64), y(64);
  EXPECT_NO_THROW(matrix.multiply(x, 1, y));
  EXPECT_THROW(matrix.multiply(std::span(x).first(63), 1, y), ShapeError);
  EXPECT_THROW(matrix.multiply(x, 1, std::span(y).first(63)), ShapeError);
  EXPECT_THROW(matrix.multiply(x, 2, y), ShapeError);
  EXPECT_THROW(matrix.multiply(x, 1, y, {.bias = std::span(x).first(3), .activation = Activation::linear}), ShapeError);
  for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::fast}) {
    // Groups are 32, 64 or 128 columns, or whole rows; 96 divides neither a super-block nor a row of scales.
    const std::vector<float> scales(2 * 192, 1.0f);
    for (const std::size_t group : {0, 1, 33, 96, 100, 193}) {
      PackedMatrix odd = m.source();
      odd.rows = 2;
      odd.cols = 192;
      odd.scales = {scales, group};
      EXPECT_THROW(RunMatrix(odd, arithmetic), ShapeError) << group;
    }
    for (const auto& [rows, cols] : {std::pair<std::size_t, std::size_t>{0, 64}, {64, 0}, {0, 0}}) {
      PackedMatrix empty = m.source();
      empty.rows = rows;
      empty.cols = cols;
      EXPECT_THROW(RunMatrix(empty, arithmetic), ShapeError) << rows << " × " << cols;
    }
    PackedMatrix huge = m.source();
    huge.rows = huge.cols = std::size_t{1} << 40;
    huge.scales.group = huge.cols;
    EXPECT_THROW(RunMatrix(huge, arithmetic), ShapeError);
  }
  EXPECT_THROW(RunMatrix({DType::float32, 1, 8, m.bytes}, Arithmetic::fast), UnsupportedError);
  EXPECT_THROW(RunMatrix({BlockFormat::q4_k, 1, 64, m.bytes}, Arithmetic::exact), ShapeError);
  EXPECT_THROW(RunMatrix({BlockFormat::q4_0, 1, 64, m.bytes, {}, 16}, Arithmetic::exact), ShapeError);
  // Bytes and scales that end too early, and a scale that is none.
  PackedMatrix bad = m.source();
  bad.packed = bad.packed.first(bad.packed.size() - 1);
  EXPECT_THROW(RunMatrix(bad, Arithmetic::exact), ShapeError);
  bad = m.source();
  bad.first = 1;
  EXPECT_THROW(RunMatrix(bad, Arithmetic::exact), ShapeError);
  bad = m.source();
  bad.scales.values = {};
  EXPECT_THROW(RunMatrix(bad, Arithmetic::exact), ShapeError);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  bad.scales.values = std::span(&nan, 1);
  EXPECT_THROW(RunMatrix(bad, Arithmetic::exact), UsageError);
  EXPECT_THROW(RunMatrix(*choose_matrix_kernel(DType::int8, Arithmetic::exact, kNoFeatures), m.source()), UsageError);
}

}  // namespace
}  // namespace imago::kernels
