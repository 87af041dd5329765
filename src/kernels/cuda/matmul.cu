#include "kernels/cuda/matmul.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cassert>

#include "device/cuda/check.h"
#include "kernels/cuda/activations.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/expert_products.h"
#include "kernels/cuda/matmul_decode.cuh"
#include "kernels/cuda/matmul_tile.cuh"

namespace imago::kernels::cuda {

namespace {

using imago::cuda::check;

/// Decoded weights of one stripe: with their activations they stay in an L2 of 40 MB and more.
constexpr std::size_t kStripeBytes = std::size_t{24} << 20;

constexpr std::uint32_t divide_up(std::size_t all, std::size_t of) {
  return static_cast<std::uint32_t>((all + of - 1) / of);
}

/// Compiled like the products: its maximum number of threads tells for which chips (see kMatMulThreads).
__global__ void __launch_bounds__(kMatMulThreads) marker_kernel() {}

int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

/// nvcc drops the defaulted comparison of Format.
bool same(Format a, Format b) { return a.name() == b.name(); }

bool is_packed(Format format) {
  return visit_form(format, []<class Form>(std::type_identity<Form>) { return kHasTensorDecoder<Form>; });
}

/// Tokens of a tile, and blocks on a multiprocessor.
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

/// The path for experts that get so many rows each, about: few should need a second tile.
MatMulPath path_of_experts(std::size_t rows, std::size_t experts) {
  const std::size_t each = (rows + experts - 1) / experts;
  return choose_path(each + each / 4);
}

/// Splits of the columns: the last wave of blocks should keep the whole chip busy, and each block needs enough columns
/// to be worth its start. Partial sums have to be written and read once more.
std::uint32_t choose_splits(const ShapeInfo& shape, std::size_t rows, bool gated, std::size_t tokens,
                            std::uint32_t chunks) {
  constexpr std::uint32_t kFewestChunks = 8, kMostSplits = 8;
  // Seconds on an H200; only their ratio matters.
  constexpr double kPerTerm = 1.0 / 1.9e12;  // one weight times one activation, by one multiprocessor
  constexpr double kPerByte = 1.0 / 2.5e12;  // of partial sums that go through the L2
  const std::uint32_t blocks = divide_up(rows, gated ? 64 : 128) * divide_up(tokens, shape.tokens);
  const std::uint32_t room = static_cast<std::uint32_t>(attribute(cudaDevAttrMultiProcessorCount)) * shape.blocks;
  // Fewer than 64 tokens cost as much: weights have to be decoded.
  const double chunk_seconds = 128.0 * kChunk * std::max(shape.tokens, 64u) * shape.blocks * kPerTerm;
  std::uint32_t best = 1;
  double best_time = 1e30;
  for (std::uint32_t splits = 1; splits <= kMostSplits; ++splits) {
    if (splits > 1 && chunks / splits < kFewestChunks) break;
    const double partial_bytes =
        splits == 1 ? 0.0 : 8.0 * splits * static_cast<double>(tokens * rows) * (gated ? 2 : 1);
    const double time =
        divide_up(blocks * splits, room) * divide_up(chunks, splits) * chunk_seconds + partial_bytes * kPerByte;
    if (time < best_time) best = splits, best_time = time;
  }
  return best;
}

/// The products of one call: activations are converted to each layout once.
class Run {
 public:
  Run(const Activations& x, ProductScratch& scratch, Stream& stream)
      : x_(x), scratch_(scratch.state().matmul), device_(*stream.device()), stream_(stream) {
    imago::cuda::make_current(device_);
  }

  void by_tensor_cores(const GpuProduct& product, MatMulPlan plan);
  void by_cublas(const GpuProduct& product, Arithmetic arithmetic);

 private:
  ActivationPanels panels(std::uint32_t tile);
  const std::uint16_t* rows(Rounded type);
  const float* floats();
  void dense(const GpuMatrix& matrix, GemmType type, float* y, std::size_t y_stride, float alpha, float beta);
  cudaStream_t handle() const { return stream_.handle(); }

  const Activations& x_;
  MatMulScratch& scratch_;
  Device& device_;
  Stream& stream_;
  std::uint32_t panel_capacity_ = 0;
  bool has_floats_ = false, has_rows_ = false;
  Rounded rows_type_ = Rounded::bfloat16;
};

ActivationPanels Run::panels(std::uint32_t tile) {
  const std::uint32_t capacity = divide_up(x_.count, tile) * tile;
  const std::uint32_t chunks = divide_up(x_.cols, kChunk);
  if (panel_capacity_ != capacity) {
    scratch_.panels.reserve(device_, static_cast<std::size_t>(capacity) * chunks * kChunk);
    write_panels(x_, scratch_.panels.data(), capacity, chunks, handle());
    panel_capacity_ = capacity;
  }
  return {scratch_.panels.data(), capacity, static_cast<std::uint32_t>(x_.count)};
}

const std::uint16_t* Run::rows(Rounded type) {
  if (!has_rows_ || rows_type_ != type) {
    const std::size_t stride = padded_cols(x_.cols);
    scratch_.rows.reserve(device_, x_.count * stride);
    write_rows(x_, type, scratch_.rows.data(), stride, handle());
    has_rows_ = true;
    rows_type_ = type;
  }
  return scratch_.rows.data();
}

const float* Run::floats() {
  if (x_.x != nullptr) return x_.x;
  if (!has_floats_) {
    scratch_.floats.reserve(device_, x_.count * x_.cols);
    write_floats(x_, scratch_.floats.data(), handle());
    has_floats_ = true;
  }
  return scratch_.floats.data();
}

void Run::by_tensor_cores(const GpuProduct& product, MatMulPlan plan) {
  const ShapeInfo shape = shape_info(plan.path);
  const std::size_t rows = product.matrix->rows();
  const bool gated = product.up != nullptr;
  const bool together = gated && same(product.up->format(), product.matrix->format());
  const std::uint32_t chunks = divide_up(x_.cols, kChunk);
  const std::uint32_t wanted = plan.splits != 0 ? plan.splits : choose_splits(shape, rows, together, x_.count, chunks);
  const std::uint32_t split_chunks = divide_up(chunks, std::min(wanted, chunks));
  const std::uint32_t splits = divide_up(chunks, split_chunks);
  const bool partial = splits > 1 || (gated && !together);
  const std::size_t plane = x_.count * rows;
  if (partial) scratch_.sums.reserve(device_, (gated ? 2 : 1) * splits * plane);

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
  args.partial = partial ? scratch_.sums.data() : nullptr;
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
  if (partial) {
    finish({scratch_.sums.data(), splits, args.x.tokens, args.rows, rows, gated, args.y, args.y_stride, args.epilogue},
           handle());
  }
}

/// The type in which cuBLASLt multiplies with weights of `format`.
GemmType dense_type(Format format, Arithmetic arithmetic) {
  if (arithmetic == Arithmetic::exact) return GemmType::float32;
  if (same(format, DType::float16)) return GemmType::float16;
  if (same(format, DType::bfloat16)) return GemmType::bfloat16;
  return same(format, DType::float32) ? GemmType::tf32 : GemmType::float32;
}

/// y = alpha · W x + beta · y by cuBLASLt: with the weights as they are if they have that type, else in stripes of
/// float32.
void Run::dense(const GpuMatrix& matrix, GemmType type, float* y, std::size_t y_stride, float alpha, float beta) {
  const bool half = type == GemmType::float16 || type == GemmType::bfloat16;
  WeightProduct w;
  w.type = type;
  w.tokens = x_.count;
  w.cols = half ? padded_cols(x_.cols) : x_.cols;
  w.x_stride = w.cols;
  w.x = half ? static_cast<const void*>(rows(type == GemmType::float16 ? Rounded::float16 : Rounded::bfloat16))
             : floats();
  w.y_stride = y_stride;
  w.alpha = alpha;
  w.beta = beta;
  if (half || same(matrix.format(), DType::float32)) {
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
  // The best kernels of cuBLASLt, and for 16 bits the only ones, need results aligned to 16 bytes.
  const bool aligned = y_stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(product.y) % 16 == 0;
  if (e.bias == nullptr && e.activation == Activation::linear && product.up == nullptr && aligned) {
    return dense(*product.matrix, type, product.y, y_stride, e.scale, e.accumulate ? 1.0f : 0.0f);
  }
  const std::size_t stride = (rows + 7) / 8 * 8;
  const bool gated = product.up != nullptr;
  scratch_.sums.reserve(device_, (gated ? 2 : 1) * x_.count * stride);
  dense(*product.matrix, type, scratch_.sums.data(), stride, 1, 0);
  if (gated) {
    float* const up = scratch_.sums.data() + x_.count * stride;
    dense(*product.up, dense_type(product.up->format(), arithmetic), up, stride, 1, 0);
  }
  finish({scratch_.sums.data(), 1, static_cast<std::uint32_t>(x_.count), static_cast<std::uint32_t>(rows), stride,
          gated, product.y, y_stride, e},
         handle());
}

/// The fallback without cuBLASLt.
void by_matvec(const GpuProduct& product, const Activations& x, Arithmetic arithmetic, ProductScratch& scratch,
               Stream& stream) {
  GpuProduct part = product;
  part.y_stride = product.y_stride == 0 ? product.matrix->rows() : product.y_stride;
  const std::size_t padded = padded_cols(x.cols);
  for (std::size_t first = 0; first < x.count; first += kMatVecTokens) {
    Activations some = x;
    some.count = std::min(kMatVecTokens, x.count - first);
    if (some.x != nullptr) some.x += first * x.cols;
    if (some.q != nullptr) some.q += first * padded, some.scales += first * padded / kGroup;
    part.y = product.y + first * part.y_stride;
    multiply({&part, 1}, some, arithmetic, scratch, stream);
  }
}

}  // namespace

ExpertTiles expert_tiles(std::size_t rows, std::size_t experts) {
  const std::uint32_t tile = shape_info(path_of_experts(rows, experts)).tokens;
  return {.rows = tile, .most = static_cast<std::uint32_t>(rows / tile + std::min(rows, experts))};
}

bool takes_expert_tiles(Format format) { return is_packed(format); }

void matmul_experts(Format format, const ExpertMatMul& products, ProductScratch& scratch, Stream& stream) {
  const ExpertLayer& layer = products.layer;
  const ExpertTiles& tiles = products.tiles;
  if (tiles.most == 0 || layer.rows == 0) return;
  Device& device = *stream.device();
  imago::cuda::make_current(device);
  const std::uint32_t capacity = tiles.most * tiles.rows, chunks = divide_up(layer.cols, kChunk);
  imago::cuda::Array<std::uint16_t>& panels = scratch.state().matmul.panels;
  panels.reserve(device, static_cast<std::size_t>(capacity) * chunks * kChunk);
  write_panels({.x = products.x, .count = products.x_rows, .cols = layer.cols}, panels.data(), capacity, chunks,
               stream.handle(), products.sources);
  MatMulArgs args;
  args.gated = layer.gated;
  args.x = {panels.data(), capacity, capacity};
  args.rows = static_cast<std::uint32_t>(layer.rows);
  args.chunks = args.split_chunks = chunks;
  args.y = products.y;
  args.y_stride = layer.rows;
  args.epilogue.activation = layer.activation;
  args.experts = layer.experts;
  args.tiles = products.list;
  constexpr MatMulPath kPaths[] = {MatMulPath::narrow, MatMulPath::half, MatMulPath::square, MatMulPath::wide};
  const auto* const path =
      std::ranges::find_if(kPaths, [&](MatMulPath one) { return shape_info(one).tokens == tiles.rows; });
  visit_form(format, [&]<class Form>(std::type_identity<Form>) {
    if constexpr (kHasTensorDecoder<Form>) launch_matmul<Form>(args, shape_info(*path).shape, 1, stream.handle());
  });
}

bool has_hopper_kernels() {
  static std::atomic<int> threads = 0;  // one answer for all devices: few machines have two kinds
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

void matmul_by(const MatMulPlan& plan, std::span<const GpuProduct> products, const Activations& x,
               ProductScratch& scratch, Stream& stream) {
  Run run(x, scratch, stream);
  MatMulPlan chosen = plan;
  if (plan.path == MatMulPath::automatic) chosen.path = choose_path(x.count);
  for (const GpuProduct& product : products) run.by_tensor_cores(product, chosen);
}

void matmul(std::span<const GpuProduct> products, const Activations& x, Arithmetic arithmetic, ProductScratch& scratch,
            Stream& stream) {
  if (x.count == 0) return;
  Run run(x, scratch, stream);
  for (const GpuProduct& product : products) {
    assert(product.matrix->cols() == x.cols);
    if (product.matrix->rows() == 0) continue;
    const bool packed =
        is_packed(product.matrix->format()) && (product.up == nullptr || is_packed(product.up->format()));
    if (arithmetic == Arithmetic::fast && packed) {
      run.by_tensor_cores(product, {choose_path(x.count), 0});
    } else if (!cublas_problem().empty()) {
      by_matvec(product, x, arithmetic, scratch, stream);
    } else {
      run.by_cublas(product, arithmetic);
    }
  }
}

}  // namespace imago::kernels::cuda
