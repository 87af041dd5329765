// The one-token matvecs of a GPU, run on the host lane by lane, against sums in double. The shapes cover every path of
// the kernels: one tile of a row for each warp or several, whole tiles and partial ones, tiles past the last row.

#include "emulated_gpu/emulated_gpu.h"  // before the kernels, whose keywords it defines

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/host_layout.h"
#include "kernels/cuda/matvec_batch.cuh"
#include "kernels/cuda/matvec_rows.cuh"
#include "kernels/cuda/matvec_tiles.cuh"
#include "testing/gpu_samples.h"

namespace imago::kernels::cuda {

std::byte memory[1];  // kernels' name for their shared memory, which lies in the emulated block: only named

namespace {

using testing::expected_product;
using testing::gaussian;
using testing::packed_sample;
using testing::PackedSample;
using testing::ProductSums;

/// A matrix laid out for a GPU.
struct LaidOut {
  std::vector<uint4> memory;
  Planes planes;

  explicit LaidOut(const PackedSample& m) {
    const PlaneLayout layout(m.source());  // of unsigned types: with the zero point of all weights
    memory.resize(layout.bytes / sizeof(uint4) + 1);
    std::byte* const base = reinterpret_cast<std::byte*>(memory.data());
    lay_out_rows(m.source(), layout, 0, m.rows,
                 {base + layout.codes_at, base + layout.high_at, base + layout.scales_at,
                  reinterpret_cast<float*>(base + layout.row_scales_at)});
    planes = layout.planes(base);
  }
};

/// Activations as kernels take them.
struct ActivationMemory {
  std::vector<float4> x;
  std::vector<uint4> q;
  std::vector<float2_pod> scales;

  /// `values`: those of one token after the other, of as many columns.
  ActivationMemory(std::span<const float> values, std::size_t cols) : x(padded_cols(values.size()) / 4) {
    std::copy(values.begin(), values.end(), reinterpret_cast<float*>(x.data()));
    for (std::size_t first = 0; first < values.size(); first += cols) {
      for (const Int8Block& block : testing::int8_of_gpu(values.subspan(first, cols))) {
        q.resize(q.size() + 2);
        std::memcpy(&q[q.size() - 2], block.q, 32);
        scales.push_back({block.scale, block.scale * static_cast<float>(block.sum)});
      }
    }
  }
};

/// Quantized activations: plain weights take none; else kernels find them, or make them themselves.
enum class Int8Form { none, is_there, is_made };

std::string name_of(const PackedSample& m) {
  return std::string(m.format.name()) + ' ' + std::to_string(m.rows) + " × " + std::to_string(m.cols) +
         ", scales for " + std::to_string(m.scale_group);
}

/// A launch: its products, all of matrices with the columns of the first.
class Launch {
 public:
  Launch(std::size_t cols, Int8Form form, std::uint32_t tokens = 1)
      : values_(gaussian(tokens * cols, 9)), activations_(values_, cols), form_(form) {
    args_.tokens = tokens;
    args_.x = reinterpret_cast<const float*>(activations_.x.data());
    if (form == Int8Form::is_there) {
      args_.q = reinterpret_cast<const std::int8_t*>(activations_.q.data());
      args_.scales = activations_.scales.data();
    }
  }

  /// `up`: null unless the product is gated.
  void add(const PackedSample& m, const PackedSample* up = nullptr) {
    products_.push_back({&m, up, std::vector<float>(args_.tokens * m.rows + 1, 77.0f)});
    MatVecProduct& product = args_.products[args_.count++];
    product = {.planes = planes_of(m),
               .up = up != nullptr ? planes_of(*up) : Planes{},
               .y = products_.back().y.data(),
               .bias = nullptr,
               .y_stride = static_cast<std::uint32_t>(m.rows),
               .scale = 1,
               .activation = Activation::linear,
               .accumulate = false,
               .gated = up != nullptr};
  }

  /// Results of the first product, and one value after them.
  const std::vector<float>& results() {
    run_all();
    return products_[0].y;
  }
  void expect_results() {
    run_all();
    for (const Product& product : products_) expect_result(product);
  }

 private:
  struct Product {
    const PackedSample* m;
    const PackedSample* up;
    std::vector<float> y;
  };

  Planes planes_of(const PackedSample& m) { return matrices_.emplace_back(m).planes; }

  void run_all() {
    SplitNeeds needs{.gated = args_.products[0].gated, .multiprocessors = 1};  // warp rows have several tile rows
    for (std::size_t p = 0; p < products_.size(); ++p) needs.rows[p] = args_.products[p].planes.rows;
    visit_form(products_[0].m->format, [&]<class Form>(std::type_identity<Form>) { run<Form>(needs); });
    ASSERT_EQ(emulated::Block::problem(), "") << name_of(*products_[0].m);
  }

  template <class Form>
  void run(const SplitNeeds& needs) {
    const auto in_blocks = [&](auto kernel, const MatVecSplit& split) {
      ASSERT_NE(split.column_warps, 0u);
      std::vector<std::span<const std::byte>> readable;
      for (const LaidOut& matrix : matrices_) readable.push_back(std::as_bytes(std::span(matrix.memory)));
      emulated::Block::run_all(split.blocks, split.column_warps * split.block_rows * 32, split.bytes, readable,
                               [&] { kernel(args_, split); });
    };
    if constexpr (!Form::kCoded) {
      if constexpr (sizeof(typename Form::Value) <= 2) {
        in_blocks(matvec_rows<typename Form::Value>, split_rows<typename Form::Value>(args_, needs));
      }
    } else {
      const auto run = [&]<bool kGrouped>(std::bool_constant<kGrouped>) {
        if constexpr (kLeastBatchTokens<Form> != 0) {
          if (args_.tokens != 1) return with_batch<Form, kGrouped>(args_, needs, in_blocks);
        }
        with_tiles<Form, kGrouped>(args_, needs, in_blocks);
      };
      if constexpr (Form::Scales::kRow) {
        if (args_.products[0].planes.row_scale_count > 1) return run(std::true_type());
      }
      run(std::false_type());
    }
  }

  void expect_result(const Product& product) {
    const bool int8 = form_ != Int8Form::none;
    const std::size_t outputs = args_.tokens * product.m->rows;
    const ProductSums gate = expected_product(*product.m, values_, args_.tokens, int8);
    ProductSums up{std::vector<double>(outputs, 1.0), std::vector<double>(outputs, 1.0)};
    if (product.up != nullptr) up = expected_product(*product.up, values_, args_.tokens, int8);
    const double roundings = product.up != nullptr ? 2e-5 : 1e-5;
    for (std::size_t i = 0; i < outputs; ++i) {
      ASSERT_NEAR(static_cast<double>(product.y[i]), gate.y[i] * up.y[i],
                  roundings * gate.magnitude[i] * up.magnitude[i] + 1e-6)
          << name_of(*product.m) << ", token " << i / product.m->rows << " of " << args_.tokens << ", row "
          << i % product.m->rows;
    }
    EXPECT_EQ(product.y.back(), 77.0f) << name_of(*product.m);
  }

  std::vector<float> values_;
  ActivationMemory activations_;
  Int8Form form_;
  std::deque<LaidOut> matrices_;
  std::deque<Product> products_;
  MatVecArgs args_{};
};

void expect_product(const PackedSample& m, Int8Form form, std::uint32_t tokens = 1) {
  Launch launch(m.cols, form, tokens);
  launch.add(m);
  launch.expect_results();
}

TEST(EmulatedMatVec, CodedWeights) {
  for (const Format format : testing::all_formats()) {
    const bool coded = visit_form(format, []<class Form>(std::type_identity<Form>) { return Form::kCoded; });
    if (!coded) continue;
    const bool odd = format.block_values() <= 32;  // columns need not be a multiple of 256
    for (const std::size_t cols : {odd ? 288 : 256, 2048, odd ? 4640 : 6400}) {
      expect_product(packed_sample(format, 37, cols, 1, 5), Int8Form::is_there);
    }
    expect_product(packed_sample(format, 37, 512, 1, 6), Int8Form::is_made);
    if (format.is_block()) continue;
    for (const std::size_t group : {32, 64, 128}) {
      expect_product(packed_sample(format, 9, 640, group, 7), Int8Form::is_there);
    }
  }
}

/// Whether matvec_batch.cuh has a kernel for the format.
bool has_batches(Format format) {
  return visit_form(format, []<class Form>(std::type_identity<Form>) {
    if constexpr (Form::kCoded) return kLeastBatchTokens<Form> != 0;
    return false;
  });
}

TEST(EmulatedMatVec, CodedWeightsWithSeveralTokens) {
  for (const Format format : testing::all_formats()) {
    if (!has_batches(format)) continue;
    const bool odd = format.block_values() <= 32;
    expect_product(packed_sample(format, 37, odd ? 288 : 256, 1, 5), Int8Form::is_there, 8);
    expect_product(packed_sample(format, 21, 2048, 1, 5), Int8Form::is_there, 3);
    expect_product(packed_sample(format, 19, odd ? 4640 : 6400, 1, 5), Int8Form::is_there, 5);
    if (format.is_block()) continue;
    for (const std::size_t group : {32, 64, 128}) {
      expect_product(packed_sample(format, 9, 640, group, 7), Int8Form::is_there, 8);
      expect_product(packed_sample(format, 9, 9088, group, 7), Int8Form::is_there, 2);
    }
  }
}

/// More activations than are asked for at a time.
TEST(EmulatedMatVec, LongRows) {
  for (const Format format : {Format(BlockFormat::q4_0), Format(BlockFormat::mxfp4), Format(DType::int2)}) {
    for (const Int8Form form : {Int8Form::is_there, Int8Form::is_made}) {
      expect_product(packed_sample(format, 9, 18432, 1, 7), form);
    }
  }
}

/// Reads past the end of a row, such as scales of the next one, must not affect its result.
TEST(EmulatedMatVec, InfiniteScalesStayInTheirRows) {
  for (const BlockFormat format : {BlockFormat::q4_0, BlockFormat::iq4_nl}) {
    for (const std::size_t cols : {288, 4640}) {
      PackedSample m = packed_sample(format, 4, cols, 0, 3);
      const std::size_t row_bytes = m.bytes.size() / 4;
      const std::uint16_t infinity = 0x7C00;
      std::memcpy(m.bytes.data() + row_bytes, &infinity, 2);
      Launch launch(cols, Int8Form::is_there);
      launch.add(m);
      const std::vector<float>& y = launch.results();
      for (std::size_t r = 0; r < 4; ++r) EXPECT_EQ(std::isfinite(y[r]), r != 1) << name_of(m) << ", row " << r;
    }
  }
}

TEST(EmulatedMatVec, PlainWeights) {
  for (const DType type : {DType::float16, DType::bfloat16, DType::fp8e4m3, DType::fp8e5m2, DType::int16}) {
    for (const std::size_t cols : {32, 1056, 2048}) {
      expect_product(packed_sample(type, 21, cols, 1, 8), Int8Form::none);
    }
  }
}

/// Warps go from one matrix to the next with copies under way.
TEST(EmulatedMatVec, SeveralMatrices) {
  for (const Format format : {Format(BlockFormat::q4_k), Format(BlockFormat::mxfp4), Format(DType::int4),
                              Format(BlockFormat::q6_k), Format(DType::float16)}) {
    const bool coded = format != Format(DType::float16);
    for (const std::size_t cols : {512, coded ? 4608 : 2048}) {
      const PackedSample a = packed_sample(format, 24, cols, 1, 1), b = packed_sample(format, 9, cols, 1, 2),
                         c = packed_sample(format, 40, cols, 1, 3);
      Launch launch(cols, coded ? Int8Form::is_there : Int8Form::none);
      for (const PackedSample* m : {&a, &b, &c}) launch.add(*m);
      launch.expect_results();
      const PackedSample up = packed_sample(format, 40, cols, 1, 4);
      Launch gated(cols, coded ? Int8Form::is_made : Int8Form::none);
      gated.add(c, &up);
      gated.expect_results();
      if (!has_batches(format)) continue;
      Launch several(cols, Int8Form::is_there, 6), both(cols, Int8Form::is_there, 4);
      for (const PackedSample* m : {&a, &b, &c}) several.add(*m);
      several.expect_results();
      both.add(c, &up);
      both.expect_results();
    }
  }
}

}  // namespace
}  // namespace imago::kernels::cuda
