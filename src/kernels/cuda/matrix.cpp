#include "kernels/cuda/matrix.h"

// GpuMatrix lays rows out on the host and uploads them. `multiply` collects products into launches, quantizes or pads
// their activations where needed, and chooses the kernels.

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "base/parallel.h"
#include "device/cuda/check.h"
#include "imago/error.h"
#include "kernels/cuda/activations.h"
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/host_layout.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/ops.h"

namespace imago::kernels::cuda {

// ---- matrices

namespace {

constexpr std::size_t kStagingBytes = 16 << 20;  // of pinned memory, twice: enough to keep the bus busy

/// Planes of some rows in pinned memory, one plane after the other.
class StagedPlanes {
 public:
  StagedPlanes(const PlaneLayout& layout, std::size_t rows, std::byte* memory) : layout_(layout) {
    codes_ = memory;
    high_ = codes_ + rows * layout.codes_row;
    scales_ = high_ + rows * layout.high_row;
    row_scales_ = scales_ + layout.scale_rows(rows) * layout.scales_row;
  }
  static std::size_t bytes(const PlaneLayout& layout, std::size_t rows) {
    const std::size_t of_row = layout.codes_row + layout.high_row + layout.row_scales_row;
    return rows * of_row + layout.scale_rows(rows) * layout.scales_row;
  }
  PlaneTargets from(std::size_t row) const {
    return {codes_ + row * layout_.codes_row, high_ + row * layout_.high_row, scales_ + row * layout_.scales_row,
            reinterpret_cast<float*>(row_scales_ + row * layout_.row_scales_row)};
  }

 private:
  const PlaneLayout& layout_;
  std::byte* codes_;
  std::byte* high_;
  std::byte* scales_;
  std::byte* row_scales_;
};

/// Lays out rows [first, last), on all threads.
PlaneTargets lay_out_staged(const PackedMatrix& source, const PlaneLayout& layout, std::size_t first, std::size_t last,
                            std::byte* memory) {
  const StagedPlanes staged(layout, last - first, memory);
  constexpr std::size_t kRows = kMostTileRows;  // scale tiles need whole tiles of rows
  parallel_for_dynamic((last - first + kRows - 1) / kRows,
                       std::max<std::size_t>(1, (std::size_t{64} << 10) / (kRows * layout.codes_row)),
                       [&](std::size_t begin, std::size_t end) {
                         lay_out_rows(source, layout, first + begin * kRows, std::min(first + end * kRows, last),
                                      staged.from(begin * kRows));
                       });
  return staged.from(0);
}

}  // namespace

GpuMatrix::GpuMatrix(std::shared_ptr<Device> device, const PackedMatrix& packed) : format_(packed.format) {
  const PlaneSource plane_source(packed);
  const PackedMatrix& source = plane_source.matrix();
  format_ = source.format;
  const PlaneLayout layout(source);
  data_ = device->allocate(layout.bytes);
  planes_ = layout.planes(data_.address());
  const std::size_t sixteen = StagedPlanes::bytes(layout, kMostTileRows);
  const std::size_t staged_rows =
      std::min(std::max<std::size_t>(kStagingBytes / sixteen, 1) * kMostTileRows, source.rows);

  // Two stages of pinned memory: one is transferred while the other is laid out. Each has its own stream, and waiting
  // for that stream tells that the stage is free again.
  std::array<imago::cuda::Stream, 2> streams{imago::cuda::Stream(device), imago::cuda::Stream(device)};
  std::array<imago::cuda::PinnedMemory, 2> memory;
  for (auto& half : memory) {
    half = imago::cuda::PinnedMemory(StagedPlanes::bytes(layout, staged_rows));
    if (staged_rows == source.rows) break;
  }
  std::size_t turn = 0;
  for (std::size_t first = 0; first < source.rows; first += staged_rows, turn ^= 1) {
    const std::size_t last = std::min(first + staged_rows, source.rows);
    streams[turn].wait();
    const PlaneTargets staged = lay_out_staged(source, layout, first, last, memory[turn].bytes().data());
    const auto copy = [&](const void* from, std::size_t rows, std::size_t plane_at, std::size_t plane_row) {
      streams[turn].copy_in({static_cast<const std::byte*>(from), rows * plane_row},
                            data_.address() + plane_at + first * plane_row);
    };
    const std::size_t rows = last - first;
    copy(staged.codes, rows, layout.codes_at, layout.codes_row);
    copy(staged.high, rows, layout.high_at, layout.high_row);
    copy(staged.scales, layout.scale_rows(rows), layout.scales_at, layout.scales_row);
    copy(staged.row_scales, rows, layout.row_scales_at, layout.row_scales_row);
  }
  for (auto& s : streams) s.wait();
}

void GpuMatrix::decode_into(Buffer& to) const {
  Stream stream(to.device());
  dequantize(*this, reinterpret_cast<float*>(to.address()), stream);
  stream.wait();
}

void GpuMatrix::download(std::span<float> out) const {
  // All weights in float32 may not fit beside the packed ones, so they are decoded and copied in chunks of rows.
  constexpr std::size_t kChunkBytes = std::size_t{32} << 20;
  const std::shared_ptr<Device>& device = data_.device();
  const std::size_t chunk_rows = std::clamp<std::size_t>(kChunkBytes / sizeof(float) / cols(), 1, rows());
  Stream stream(device);
  imago::cuda::Array<std::int32_t> ids(*device, chunk_rows);
  imago::cuda::Array<float> chunk(*device, chunk_rows * cols());
  std::vector<std::int32_t> row_ids(chunk_rows);
  for (std::size_t first = 0; first < rows(); first += chunk_rows) {
    const std::size_t count = std::min(chunk_rows, rows() - first);
    std::iota(row_ids.begin(), row_ids.end(), static_cast<std::int32_t>(first));
    device->upload(std::as_bytes(std::span(row_ids).first(count)), ids.buffer(), 0);
    dequantize_rows(*this, ids.data(), count, 1.0f, chunk.data(), stream);
    stream.wait();
    device->download(chunk.buffer(), 0, std::as_writable_bytes(out.subspan(first * cols(), count * cols())));
  }
}

// ---- products

ProductScratch::ProductScratch(std::shared_ptr<Device> device) : state_(std::make_unique<State>()) {
  imago::cuda::make_current(*device);
  const auto attribute = [number = imago::cuda::number_of(*device)](cudaDeviceAttr which) {
    int value = 0;
    imago::cuda::check(cudaDeviceGetAttribute(&value, which, number), "querying a device");
    return value;
  };
  state_->device = std::move(device);
  state_->facts.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
  // Without the static shared memory of kernels and what the system reserves.
  state_->facts.shared_bytes =
      static_cast<std::uint32_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) - (4u << 10);
}
ProductScratch::~ProductScratch() = default;
ProductScratch::ProductScratch(ProductScratch&&) noexcept = default;
ProductScratch& ProductScratch::operator=(ProductScratch&&) noexcept = default;

namespace {

bool is_coded(Format format) {
  return visit_form(format, []<class Form>(std::type_identity<Form>) { return Form::kCoded; });
}

template <class Form>
inline char layout_tag;  // its address identifies the layout

/// Whether stream_matvec is instantiated: not for plain values of more than 16 bits.
template <class Form>
inline constexpr bool kStreams = true;
template <class T>
inline constexpr bool kStreams<Plain<T>> = sizeof(T) <= 2;

/// Beyond this many columns it is cheaper to quantize activations once than in every block.
constexpr std::size_t kMostQuantizedCols = 8192;

/// Products of the same device layout can share a launch.
const void* layout_of(Format format) {
  return visit_form(format, []<class Form>(std::type_identity<Form>) -> const void* { return &layout_tag<Form>; });
}

void check_products(std::span<const GpuProduct> products, const Activations& x, Arithmetic arithmetic) {
  for (const GpuProduct& p : products) {
    if (p.matrix->cols() != x.cols) {
      throw ShapeError(
          fmt::format("a matrix of {} columns cannot multiply activations of {}", p.matrix->cols(), x.cols));
    }
    if (x.norm.weight != nullptr && (x.count != 1 || arithmetic != Arithmetic::fast || !is_coded(p.matrix->format()) ||
                                     (p.up != nullptr && !is_coded(p.up->format())))) {
      throw UsageError(
          fmt::format("products with {} cannot apply a norm: use the norm kernel", p.matrix->format().name()));
    }
    if (p.up != nullptr && p.epilogue.activation == Activation::clamped_swish) {
      throw UsageError("products with a gate do not take clamped_swish: multiply gate and up one by one");
    }
    if (p.up != nullptr && (p.up->cols() != p.matrix->cols() || p.up->rows() != p.matrix->rows())) {
      throw ShapeError(fmt::format("a gate of {} × {} does not match an up matrix of {} × {}", p.matrix->rows(),
                                   p.matrix->cols(), p.up->rows(), p.up->cols()));
    }
  }
}

/// Products with few tokens, collected into launches.
class MatVecs {
 public:
  MatVecs(const Activations& x, Arithmetic arithmetic, ProductScratch::State& state, Stream& stream)
      : x_(x), arithmetic_(arithmetic), state_(state), stream_(stream) {}

  void run(std::span<const GpuProduct> products) {
    std::vector<bool> done(products.size());
    for (std::size_t i = 0; i < products.size(); ++i) {
      if (done[i]) continue;
      if (is_mixed(products[i])) {
        run_mixed(products[i]);
        continue;
      }
      const Format format = products[i].matrix->format();
      const void* layout = layout_of(format);
      MatVecArgs args{};
      args.tokens = static_cast<std::uint32_t>(x_.count);
      for (std::size_t j = i; j < products.size() && args.count < kMatVecProducts; ++j) {
        if (done[j] || is_mixed(products[j]) || layout_of(products[j].matrix->format()) != layout) continue;
        args.products[args.count++] = product(products[j]);
        done[j] = true;
      }
      if (stream_quantizing(format, args)) continue;
      set_activations(format, args);
      launch(format, args);
    }
  }

 private:
  static bool is_mixed(const GpuProduct& p) {
    return p.up != nullptr && layout_of(p.up->format()) != layout_of(p.matrix->format());
  }
  bool uses_int8(Format format) const { return arithmetic_ == Arithmetic::fast && is_coded(format); }

  static MatVecProduct product(const GpuProduct& p) {
    return {.planes = p.matrix->planes(),
            .up = p.up != nullptr ? p.up->planes() : Planes{},
            .y = p.y,
            .bias = p.epilogue.bias,
            .y_stride = static_cast<std::uint32_t>(p.y_stride == 0 ? p.matrix->rows() : p.y_stride),
            .scale = p.epilogue.scale,
            .activation = p.epilogue.activation,
            .accumulate = p.epilogue.accumulate,
            .gated = p.up != nullptr};
  }

  /// Gate and `up` with different layouts: one product after the other, then f(gate) · up.
  void run_mixed(const GpuProduct& p) {
    const std::size_t rows = p.matrix->rows();
    state_.up.reserve(*state_.device, 2 * x_.count * rows);
    float* gate = state_.up.data();
    float* up = gate + x_.count * rows;
    const GpuProduct both[2] = {{.matrix = p.matrix, .y = gate, .epilogue = {.bias = p.epilogue.bias}},
                                {.matrix = p.up, .y = up}};
    run(both);
    finish_gated({gate, up, p.y, x_.count, rows, p.y_stride == 0 ? rows : p.y_stride, p.epilogue}, stream_);
  }

  bool stream(Format format, const MatVecArgs& args) {
    return visit_form(format, [&]<class Form>(std::type_identity<Form>) {
      if constexpr (kStreams<Form>) {
        const bool is_exact = Form::kCoded && !uses_int8(format);
        return !is_exact && stream_matvec<Form>(args, state_.facts, stream_.handle());
      } else {
        return false;
      }
    });
  }

  /// Blocks that quantize activations themselves save a launch.
  bool stream_quantizing(Format format, MatVecArgs args) {
    if (!uses_int8(format) || x_.q != nullptr || quantized_ || !has_whole_groups()) return false;
    if (x_.cols > kMostQuantizedCols || reinterpret_cast<std::uintptr_t>(x_.norm.weight) % 16 != 0) return false;
    args.x = x_.x;
    args.norm_weight = x_.norm.weight;
    args.norm_eps = x_.norm.eps;
    return stream(format, args);
  }

  void launch(Format format, const MatVecArgs& args) {
    if (stream(format, args)) return;
    visit_form(format, [&]<class Form>(std::type_identity<Form>) {
      launch_matvec<Form>(args, uses_int8(format), state_.facts, stream_.handle());
    });
  }

  void quantize_into(Int8Out out) {
    if (x_.norm.weight == nullptr) {
      return quantize(x_.x, x_.count, x_.cols, out, stream_);
    }
    norm({.x = const_cast<float*>(x_.x),  // without a branch x is only read
          .weight = x_.norm.weight,
          .int8 = out,
          .rows = x_.count,
          .cols = x_.cols,
          .eps = x_.norm.eps},
         stream_);
  }

  /// Whether kernels can read float activations as they are.
  bool has_whole_groups() const {
    return x_.x != nullptr && x_.cols % kGroup == 0 && reinterpret_cast<std::uintptr_t>(x_.x) % 16 == 0;
  }

  void set_activations(Format format, MatVecArgs& args) {
    const std::size_t padded = padded_cols(x_.cols);
    if (uses_int8(format)) {
      if (x_.q == nullptr && !quantized_) {
        state_.q.reserve(*state_.device, x_.count * padded);
        state_.scales.reserve(*state_.device, x_.count * padded / kGroup);
        quantize_into({state_.q.data(), state_.scales.data()});
        quantized_ = true;
      }
      args.q = x_.q != nullptr ? x_.q : state_.q.data();
      args.scales = x_.q != nullptr ? x_.scales : state_.scales.data();
      return;
    }
    args.x = x_.x;
    args.x_stride = static_cast<std::uint32_t>(padded);
    if (!has_whole_groups()) {
      if (!padded_) {
        state_.x.reserve(*state_.device, x_.count * padded);
        if (x_.x != nullptr) {
          pad_rows(x_.x, x_.count, x_.cols, state_.x.data(), stream_);
        } else {
          floats_of_int8(x_.q, x_.scales, x_.count, x_.cols, state_.x.data(), stream_);
        }
        padded_ = true;
      }
      args.x = state_.x.data();
    }
  }

  const Activations& x_;
  const Arithmetic arithmetic_;
  ProductScratch::State& state_;
  Stream& stream_;
  bool quantized_ = false, padded_ = false;
};

}  // namespace

void multiply(std::span<const GpuProduct> products, const Activations& x, Arithmetic arithmetic,
              ProductScratch& scratch, Stream& stream) {
  if (x.count == 0) return;
  check_products(products, x, arithmetic);
  if (x.count > kMatVecTokens) return matmul(products, x, arithmetic, scratch, stream);
  MatVecs(x, arithmetic, scratch.state(), stream).run(products);
}

}  // namespace imago::kernels::cuda
