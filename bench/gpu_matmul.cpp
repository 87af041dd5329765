#include "gpu_matmul.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <string>
#include <vector>

#include "device/cuda/stream.h"
#include "harness.h"
#include "imago/codec.h"
#include "imago/numeric.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/matmul.h"

namespace imago::bench {

namespace {

using imago::cuda::Array;
using imago::cuda::Event;
using imago::cuda::Stream;
using kernels::Arithmetic;
using kernels::cuda::Activations;
using kernels::cuda::GpuMatrix;
using kernels::cuda::GpuProduct;
using kernels::cuda::MatMulPath;
using kernels::cuda::MatMulPlan;
using kernels::cuda::ProductScratch;

/// Weights of different copies are read in turn, so that none is found in the L2.
constexpr std::size_t kBytesInTurn = 128 << 20;

/// Encodes some rows and repeats them: time does not depend on the values, as long as they are numbers.
GpuMatrix make_matrix(const std::shared_ptr<Device>& device, Format format, std::size_t rows, std::size_t cols) {
  constexpr std::size_t kPattern = 64;
  const std::vector<float> weights = synthetic_weights(kPattern * cols);
  std::vector<std::byte> some(packed_bytes(format, weights.size()));
  std::vector<float> scales;
  scales.assign(rows, derive_scale(format, weights));
  encode(format, weights, {std::span(scales).first(kPattern), cols}, some);
  std::vector<std::byte> all;
  all.reserve(some.size() * rows / kPattern);
  for (std::size_t i = 0; i < rows / kPattern; ++i) all.insert(all.end(), some.begin(), some.end());
  return GpuMatrix(device, {format, rows, cols, all, {scales, cols}});
}

template <class Body>
double seconds(Stream& stream, int runs, Body&& body) {
  for (int i = 0; i < 2; ++i) body(i);
  std::vector<double> all;
  for (int round = 0; round < 5; ++round) {
    Event begin, end;
    begin.record(stream);
    for (int i = 0; i < runs; ++i) body(i);
    end.record(stream);
    all.push_back(Event::seconds_between(begin, end) / runs);
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

struct Extents {
  std::size_t rows, cols, tokens;
  double flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(cols) * static_cast<double>(tokens);
  }
};

class Table {
 public:
  explicit Table(const std::shared_ptr<Device>& device) : device_(device), stream_(device), scratch_(device) {}

  /// TFLOP/s of cuBLAS on bfloat16 weights and activations that are there already.
  double dense(const Extents& e) {
    using namespace kernels::cuda;
    if (!cublas_problem().empty()) return 0;
    Array<std::uint16_t> w(*device_, e.rows * e.cols), x(*device_, e.tokens * e.cols);
    Array<float> y(*device_, e.rows * e.tokens);
    std::vector<std::uint16_t> values(std::max(e.rows, e.tokens) * e.cols);
    const std::vector<float> some = synthetic_weights(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(some[i]) >> 16);
    }
    device_->upload(std::as_bytes(std::span(values).first(w.size())), w.buffer(), 0);
    device_->upload(std::as_bytes(std::span(values).first(x.size())), x.buffer(), 0);
    const WeightProduct product{.type = GemmType::bfloat16,
                                .rows = e.rows,
                                .cols = e.cols,
                                .tokens = e.tokens,
                                .w = w.data(),
                                .x = x.data(),
                                .y = y.data()};
    return e.flops() / seconds(stream_, 10, [&](int) { weight_product(product, stream_); }) * 1e-12;
  }

  std::vector<GpuMatrix> copies(Format format, const Extents& e) const {
    std::vector<GpuMatrix> copies;
    copies.push_back(make_matrix(device_, format, e.rows, e.cols));
    while (copies.size() * copies[0].bytes() < kBytesInTurn)
      copies.push_back(make_matrix(device_, format, e.rows, e.cols));
    return copies;
  }

  double packed(const std::vector<GpuMatrix>& copies, const Extents& e, const MatMulPlan& plan) {
    Array<float> x(*device_, e.tokens * e.cols), y(*device_, e.rows * e.tokens);
    std::vector<float> values = synthetic_weights(x.size());
    device_->upload(std::as_bytes(std::span(values)), x.buffer(), 0);
    const Activations tokens{.x = x.data(), .q = nullptr, .scales = nullptr, .count = e.tokens, .cols = e.cols};
    return e.flops() * 1e-12 / seconds(stream_, 10, [&](int i) {
             const GpuProduct product{.matrix = &copies[static_cast<std::size_t>(i) % copies.size()],
                                      .up = nullptr,
                                      .y = y.data(),
                                      .y_stride = 0,
                                      .epilogue = {}};
             if (plan.path == MatMulPath::automatic) {
               matmul({&product, 1}, tokens, Arithmetic::fast, scratch_, stream_);
             } else {
               matmul_by(plan, {&product, 1}, tokens, scratch_, stream_);
             }
           });
  }

 private:
  std::shared_ptr<Device> device_;
  Stream stream_;
  ProductScratch scratch_;
};

}  // namespace

void gpu_matmul_table(const std::shared_ptr<Device>& device, bool paths) {
  Table table(device);
  const std::vector<Format> all = {BlockFormat::q4_0, BlockFormat::q4_k, BlockFormat::q8_0, DType::int8,
                                   DType::int4,       DType::fp8e4m3,    BlockFormat::q5_k, BlockFormat::q6_k,
                                   DType::fp4,        DType::ternary};
  for (const Extents& e : {Extents{14336, 4096, 512}, Extents{4096, 14336, 512}}) {
    const double dense = table.dense(e);
    std::printf("matmul %zu x %zu, %zu tokens: cuBLAS bfloat16 %.0f TFLOP/s\n", e.rows, e.cols, e.tokens, dense);
    for (const Format format : all) {
      const double rate = table.packed(table.copies(format, e), e, {});
      std::printf("  %-10s %6.0f TFLOP/s, %.2f of cuBLAS (target 0.60)%s\n", std::string(format.name()).c_str(), rate,
                  rate / dense, rate < 0.6 * dense ? "  BELOW" : "");
      std::fflush(stdout);
    }
  }
  for (const Extents& shape : {Extents{14336, 4096, 0}, Extents{4096, 4096, 0}}) {
    for (const Format format : {Format(BlockFormat::q4_0), Format(BlockFormat::q4_k)}) {
      std::printf("matmul %zu x %zu, %s, TFLOP/s by tokens (beside: cuBLAS bfloat16)\n", shape.rows, shape.cols,
                  std::string(format.name()).c_str());
      const std::vector<GpuMatrix> copies = table.copies(format, shape);
      for (const std::size_t tokens : {16, 32, 64, 128, 256, 512, 1024, 2048}) {
        const Extents e{shape.rows, shape.cols, tokens};
        std::printf("  %5zu: %4.0f (%4.0f)", tokens, table.packed(copies, e, {}), table.dense(e));
        if (paths) {
          for (const MatMulPath path : {MatMulPath::wide, MatMulPath::square, MatMulPath::half, MatMulPath::narrow}) {
            if (path == MatMulPath::wide && !kernels::cuda::has_hopper_kernels()) continue;
            std::printf(" | %s", std::string(name(path)).c_str());
            for (const std::uint32_t splits : {1u, 2u, 4u}) {
              if (splits > 1 && tokens > 512) continue;
              std::printf(" %.0f", table.packed(copies, e, {path, splits}));
            }
          }
        }
        std::printf("\n");
        std::fflush(stdout);
      }
    }
  }
}

}  // namespace imago::bench
