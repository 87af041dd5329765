#include "kernels/cuda/matmul.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cassert>

#include "device/cuda/check.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/matmul_decode.cuh"
#include "kernels/cuda/matmul_launch.cuh"
#include "kernels/cuda/matmul_steps.cuh"
#include "kernels/cuda/scratch.h"

namespace imago::kernels::cuda {

namespace {

using imago::cuda::check;

/// Decoded weights of one stripe: with the activations beside them they stay in an L2 of 40 MB and more.
constexpr std::size_t kStripeBytes = std::size_t{24} << 20;

constexpr std::uint32_t pieces(std::size_t all, std::size_t of) {
  return static_cast<std::uint32_t>((all + of - 1) / of);
}

/// Compiled as the products are: how many threads it may have tells for which chips.
__global__ void __launch_bounds__(kMatMulThreads) marker_kernel() {}

int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

bool is(Format format, DType dtype) { return !format.is_block() && format.dtype() == dtype; }

bool same(Format a, Format b) { return a.is_block() ? b.is_block() && a.block() == b.block() : is(b, a.dtype()); }

bool is_packed(Format format) {
  return visit_form(format, []<class Form>(std::type_identity<Form>) { return kHasTensorDecoder<Form>; });
}

/// Activations of a block, and blocks on a multiprocessor.
struct ShapeInfo {
  MatMulShape shape;
  std::uint32_t tokens, blocks;
};

ShapeInfo shape_info(MatMulPath path) {
  switch (path) {
    case MatMulPath::wide: return {MatMulShape::wide, 256, 1};
    case MatMulPath::half: return {MatMulShape::half, 64, 1};
    case MatMulPath::narrow: return {MatMulShape::narrow, 32, 2};
    case MatMulPath::automatic:
    case MatMulPath::square: break;
  }
  return {MatMulShape::square, 128, 1};
}

MatMulPath choose_path(std::size_t tokens) {
  if (tokens <= 32) return MatMulPath::narrow;
  if (tokens <= 64) return MatMulPath::half;
  return tokens <= 128 || !has_hopper_kernels() ? MatMulPath::square : MatMulPath::wide;
}

/// Blocks that share the columns of a row: the last round of blocks should keep the whole chip busy, and each block
/// have enough columns to be worth its start. Parts of sums have to be written and read once more.
std::uint32_t choose_splits(const ShapeInfo& shape, std::size_t rows, bool gated, std::size_t tokens,
                            std::uint32_t chunks) {
  constexpr std::uint32_t kFewestChunks = 8, kMostSplits = 8;
  // Seconds, as an H200 has them: only how they compare matters.
  constexpr double kPerTerm = 1.0 / 1.9e12;  // one weight times one activation, by one multiprocessor
  constexpr double kPerByte = 1.0 / 2.5e12;  // of parts that go through the L2
  const std::uint32_t blocks = pieces(rows, gated ? 64 : 128) * pieces(tokens, shape.tokens);
  const std::uint32_t room = static_cast<std::uint32_t>(attribute(cudaDevAttrMultiProcessorCount)) * shape.blocks;
  // Few tokens cost no less: their weights have to be decoded.
  const double chunk_seconds = 128.0 * kChunk * std::max(shape.tokens, 64u) * shape.blocks * kPerTerm;
  std::uint32_t best = 1;
  double best_time = 1e30;
  for (std::uint32_t splits = 1; splits <= kMostSplits; ++splits) {
    if (splits > 1 && chunks / splits < kFewestChunks) break;
    const double parts = splits == 1 ? 0.0 : 8.0 * splits * static_cast<double>(tokens * rows) * (gated ? 2 : 1);
    const double time = pieces(blocks * splits, room) * pieces(chunks, splits) * chunk_seconds + parts * kPerByte;
    if (time < best_time) best = splits, best_time = time;
  }
  return best;
}

/// The products of one call: activations are brought into each form once.
class Run {
 public:
  Run(const Activations& tokens, ProductScratch& scratch, Stream& stream)
      : tokens_(tokens), scratch_(scratch.state().matmul), device_(*stream.device()), stream_(stream) {
    imago::cuda::make_current(device_);
  }

  void by_tensor_cores(const GpuProduct& product, MatMulPlan plan);
  void by_cublas(const GpuProduct& product, Arithmetic arithmetic);

 private:
  TokenPanels panels(std::uint32_t tile);
  const std::uint16_t* rows(Rounded type);
  const float* floats();
  void dense(const GpuMatrix& matrix, GemmType type, float* y, std::size_t y_stride, float alpha, float beta);
  cudaStream_t handle() const { return stream_.handle(); }

  const Activations& tokens_;
  MatMulScratch& scratch_;
  Device& device_;
  Stream& stream_;
  std::uint32_t panel_capacity_ = 0;
  bool has_floats_ = false, has_rows_ = false;
  Rounded rows_type_ = Rounded::bfloat16;
};

TokenPanels Run::panels(std::uint32_t tile) {
  const std::uint32_t capacity = pieces(tokens_.count, tile) * tile;
  const std::uint32_t chunks = pieces(tokens_.cols, kChunk);
  if (panel_capacity_ != capacity) {
    scratch_.panels.reserve(device_, static_cast<std::size_t>(capacity) * chunks * kChunk);
    write_panels(tokens_, scratch_.panels.data(), capacity, chunks, handle());
    panel_capacity_ = capacity;
  }
  return {scratch_.panels.data(), capacity, static_cast<std::uint32_t>(tokens_.count)};
}

const std::uint16_t* Run::rows(Rounded type) {
  if (!has_rows_ || rows_type_ != type) {
    const std::size_t stride = padded_cols(tokens_.cols);
    scratch_.rows.reserve(device_, tokens_.count * stride);
    write_rows(tokens_, type, scratch_.rows.data(), stride, handle());
    has_rows_ = true;
    rows_type_ = type;
  }
  return scratch_.rows.data();
}

const float* Run::floats() {
  if (tokens_.x != nullptr) return tokens_.x;
  if (!has_floats_) {
    scratch_.floats.reserve(device_, tokens_.count * tokens_.cols);
    write_floats(tokens_, scratch_.floats.data(), handle());
    has_floats_ = true;
  }
  return scratch_.floats.data();
}

void Run::by_tensor_cores(const GpuProduct& product, MatMulPlan plan) {
  const ShapeInfo shape = shape_info(plan.path);
  const std::size_t rows = product.matrix->rows();
  const bool gated = product.up != nullptr;
  const bool together = gated && same(product.up->format(), product.matrix->format());
  const std::uint32_t chunks = pieces(tokens_.cols, kChunk);
  const std::uint32_t wanted =
      plan.splits != 0 ? plan.splits : choose_splits(shape, rows, together, tokens_.count, chunks);
  const std::uint32_t split_chunks = pieces(chunks, std::min(wanted, chunks));
  const std::uint32_t splits = pieces(chunks, split_chunks);
  const bool in_parts = splits > 1 || (gated && !together);
  const std::size_t plane = tokens_.count * rows;
  if (in_parts) scratch_.sums.reserve(device_, (gated ? 2 : 1) * splits * plane);

  MatMulArgs args;
  args.weights = product.matrix->planes();
  args.gated = together;
  if (together) args.up = product.up->planes();
  args.x = panels(shape.tokens);
  args.rows = static_cast<std::uint32_t>(rows);
  args.chunks = chunks;
  args.split_chunks = split_chunks;
  args.y = product.y;
  args.y_stride = product.y_stride == 0 ? rows : product.y_stride;
  args.epilogue = product.epilogue;
  args.partial = in_parts ? scratch_.sums.data() : nullptr;
  const auto launch = [&](Format format) {
    visit_form(format, [&]<class Form>(std::type_identity<Form>) {
      if constexpr (kHasTensorDecoder<Form>) launch_matmul<Form>(args, shape.shape, splits, handle());
    });
  };
  launch(product.matrix->format());
  if (gated && !together) {
    args.weights = product.up->planes();
    args.partial += splits * plane;
    launch(product.up->format());
  }
  if (in_parts) {
    finish({scratch_.sums.data(), splits, args.x.tokens, args.rows, rows, gated, args.y, args.y_stride, args.epilogue},
           handle());
  }
}

/// The type in which cuBLASLt multiplies with weights of `format`.
GemmType dense_type(Format format, Arithmetic arithmetic) {
  if (arithmetic == Arithmetic::exact) return GemmType::float32;
  if (is(format, DType::float16)) return GemmType::float16;
  if (is(format, DType::bfloat16)) return GemmType::bfloat16;
  return is(format, DType::float32) ? GemmType::tf32 : GemmType::float32;
}

/// y = alpha · W x + beta · y by cuBLASLt: on the weights as they lie, where they are of that type, else in stripes of
/// float32.
void Run::dense(const GpuMatrix& matrix, GemmType type, float* y, std::size_t y_stride, float alpha, float beta) {
  const bool half = type == GemmType::float16 || type == GemmType::bfloat16;
  WeightProduct w;
  w.type = type;
  w.tokens = tokens_.count;
  w.cols = half ? padded_cols(tokens_.cols) : tokens_.cols;
  w.x_stride = w.cols;
  w.x = half ? static_cast<const void*>(rows(type == GemmType::float16 ? Rounded::float16 : Rounded::bfloat16))
             : floats();
  w.y_stride = y_stride;
  w.alpha = alpha;
  w.beta = beta;
  if (half || is(matrix.format(), DType::float32)) {
    w.rows = matrix.rows();
    w.w = matrix.planes().codes;
    w.w_stride = matrix.planes().stride * kGroup;
    w.y = y;
    return weight_product(w, stream_);
  }
  const std::size_t most = std::max<std::size_t>(kStripeBytes / (4 * w.cols) / 128 * 128, 128);
  const std::size_t stripe = std::min(matrix.rows(), most);
  scratch_.decoded.reserve(device_, stripe * w.cols);
  if (scratch_.row_numbers.size() < matrix.rows()) {
    scratch_.row_numbers.reserve(device_, matrix.rows());
    write_numbers(scratch_.row_numbers.data(), static_cast<std::uint32_t>(matrix.rows()), handle());
  }
  w.w = scratch_.decoded.data();
  w.w_stride = w.cols;
  for (std::size_t first = 0; first < matrix.rows(); first += stripe) {
    w.rows = std::min(stripe, matrix.rows() - first);
    w.y = y + first;
    dequantize_rows(matrix, scratch_.row_numbers.data() + first, w.rows, 1.0f, scratch_.decoded.data(), stream_);
    weight_product(w, stream_);
  }
}

void Run::by_cublas(const GpuProduct& product, Arithmetic arithmetic) {
  const GpuEpilogue& e = product.epilogue;
  const GemmType type = dense_type(product.matrix->format(), arithmetic);
  const std::size_t rows = product.matrix->rows();
  const std::size_t y_stride = product.y_stride == 0 ? rows : product.y_stride;
  // cuBLASLt has its best kernels, and for 16 bits its only ones, for results in whole 16-byte pieces.
  const bool aligned = y_stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(product.y) % 16 == 0;
  if (e.bias == nullptr && e.activation == Activation::linear && product.up == nullptr && aligned) {
    return dense(*product.matrix, type, product.y, y_stride, e.scale, e.accumulate ? 1.0f : 0.0f);
  }
  const std::size_t stride = (rows + 7) / 8 * 8;
  const bool gated = product.up != nullptr;
  scratch_.sums.reserve(device_, (gated ? 2 : 1) * tokens_.count * stride);
  dense(*product.matrix, type, scratch_.sums.data(), stride, 1, 0);
  if (gated) {
    float* const up = scratch_.sums.data() + tokens_.count * stride;
    dense(*product.up, dense_type(product.up->format(), arithmetic), up, stride, 1, 0);
  }
  finish({scratch_.sums.data(), 1, static_cast<std::uint32_t>(tokens_.count), static_cast<std::uint32_t>(rows), stride,
          gated, product.y, y_stride, e},
         handle());
}

/// What there is without cuBLASLt.
void by_matvec(const GpuProduct& product, const Activations& tokens, Arithmetic arithmetic, ProductScratch& scratch,
               Stream& stream) {
  GpuProduct part = product;
  part.y_stride = product.y_stride == 0 ? product.matrix->rows() : product.y_stride;
  const std::size_t padded = padded_cols(tokens.cols);
  for (std::size_t first = 0; first < tokens.count; first += kMatVecTokens) {
    Activations some = tokens;
    some.count = std::min(kMatVecTokens, tokens.count - first);
    if (some.x != nullptr) some.x += first * tokens.cols;
    if (some.q != nullptr) some.q += first * padded, some.scales += first * padded / kGroup;
    part.y = product.y + first * part.y_stride;
    multiply({&part, 1}, some, arithmetic, scratch, stream);
  }
}

}  // namespace

bool has_hopper_kernels() {
  static std::atomic<int> threads = 0;  // one answer for all devices: those of a machine are rarely of two kinds
  if (threads == 0) {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, marker_kernel), "a kernel of products");
    threads = attributes.maxThreadsPerBlock;
  }
  return threads == kHopperThreads;
}

std::string_view name(MatMulPath path) noexcept {
  constexpr std::string_view kNames[] = {"automatic", "wide", "square", "half", "narrow"};
  return kNames[static_cast<std::size_t>(path)];
}

void matmul_by(const MatMulPlan& plan, std::span<const GpuProduct> products, const Activations& tokens,
               ProductScratch& scratch, Stream& stream) {
  Run run(tokens, scratch, stream);
  MatMulPlan chosen = plan;
  if (plan.path == MatMulPath::automatic) chosen.path = choose_path(tokens.count);
  for (const GpuProduct& product : products) run.by_tensor_cores(product, chosen);
}

void matmul(std::span<const GpuProduct> products, const Activations& tokens, Arithmetic arithmetic,
            ProductScratch& scratch, Stream& stream) {
  if (tokens.count == 0) return;
  Run run(tokens, scratch, stream);
  for (const GpuProduct& product : products) {
    assert(product.matrix->cols() == tokens.cols);
    if (product.matrix->rows() == 0) continue;
    const bool packed =
        is_packed(product.matrix->format()) && (product.up == nullptr || is_packed(product.up->format()));
    if (arithmetic == Arithmetic::fast && packed) {
      run.by_tensor_cores(product, {choose_path(tokens.count), 0});
    } else if (!cublas_problem().empty()) {
      by_matvec(product, tokens, arithmetic, scratch, stream);
    } else {
      run.by_cublas(product, arithmetic);
    }
  }
}

}  // namespace imago::kernels::cuda
