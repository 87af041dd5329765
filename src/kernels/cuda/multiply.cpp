// Chooses the kernels of products, and makes the form of the activations that they want.

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <vector>

#include "device/cuda/check.h"
#include "imago/error.h"
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/prepare.h"
#include "kernels/cuda/scratch.h"

namespace imago::kernels::cuda {

ProductScratch::ProductScratch(std::shared_ptr<Device> device) : state_(std::make_unique<State>()) {
  imago::cuda::make_current(*device);
  const auto attribute = [number = imago::cuda::number_of(*device)](cudaDeviceAttr which) {
    int value = 0;
    imago::cuda::check(cudaDeviceGetAttribute(&value, which, number), "asking a device");
    return value;
  };
  state_->device = std::move(device);
  state_->facts.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
  // Less what kernels declare themselves, and what the system keeps.
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
inline char form_tag;  // its address stands for the form

/// Whether stream_matvec is there for the form: not for plain ones of more than 16 bits.
template <class Form>
inline constexpr bool kStreams = true;
template <class T>
inline constexpr bool kStreams<Plain<T>> = sizeof(T) <= 2;

/// Past so many columns it is cheaper to make their int8 form once than in every block.
constexpr std::size_t kOwnFormCols = 8192;

/// Products of the same form can share a launch.
const void* form_of(Format format) {
  return visit_form(format, []<class Form>(std::type_identity<Form>) -> const void* { return &form_tag<Form>; });
}

void check_products(std::span<const GpuProduct> products, const Activations& tokens, Arithmetic arithmetic) {
  for (const GpuProduct& p : products) {
    if (p.matrix->cols() != tokens.cols) {
      throw ShapeError(
          fmt::format("a matrix of {} columns cannot multiply tokens of {}", p.matrix->cols(), tokens.cols));
    }
    if (tokens.norm.weight != nullptr &&
        (tokens.count != 1 || arithmetic != Arithmetic::fast || !is_coded(p.matrix->format()) ||
         (p.up != nullptr && !is_coded(p.up->format())))) {
      throw UsageError(fmt::format("a norm before {} is for the norm's own kernel", p.matrix->format().name()));
    }
    if (p.up != nullptr && (p.up->cols() != p.matrix->cols() || p.up->rows() != p.matrix->rows())) {
      throw ShapeError(fmt::format("a gate of {} × {} and an up of {} × {} do not belong together", p.matrix->rows(),
                                   p.matrix->cols(), p.up->rows(), p.up->cols()));
    }
  }
}

/// Products with a few tokens, gathered into launches.
class MatVecs {
 public:
  MatVecs(const Activations& tokens, Arithmetic arithmetic, ProductScratch::State& state, Stream& stream)
      : tokens_(tokens), arithmetic_(arithmetic), state_(state), stream_(stream) {}

  void run(std::span<const GpuProduct> products) {
    std::vector<bool> done(products.size());
    for (std::size_t i = 0; i < products.size(); ++i) {
      if (done[i]) continue;
      if (is_mixed(products[i])) {
        run_mixed(products[i]);
        continue;
      }
      const Format format = products[i].matrix->format();
      const void* form = form_of(format);
      MatVecArgs args{};
      args.tokens = static_cast<std::uint32_t>(tokens_.count);
      for (std::size_t j = i; j < products.size() && args.count < kMatVecProducts; ++j) {
        if (done[j] || is_mixed(products[j]) || form_of(products[j].matrix->format()) != form) continue;
        args.products[args.count++] = product(products[j]);
        done[j] = true;
      }
      if (stream_of_floats(format, args)) continue;
      set_activations(format, args);
      launch(format, args);
    }
  }

 private:
  static bool is_mixed(const GpuProduct& p) {
    return p.up != nullptr && form_of(p.up->format()) != form_of(p.matrix->format());
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

  /// A gate and an `up` of different forms: the one after the other, then f(gate) · up.
  void run_mixed(const GpuProduct& p) {
    const std::size_t rows = p.matrix->rows();
    state_.up.reserve(*state_.device, 2 * tokens_.count * rows);
    float* gate = state_.up.data();
    float* up = gate + tokens_.count * rows;
    const GpuProduct parts[2] = {{.matrix = p.matrix, .y = gate, .epilogue = {.bias = p.epilogue.bias}},
                                 {.matrix = p.up, .y = up}};
    run(parts);
    finish_gated({gate, up, p.y, tokens_.count, rows, p.y_stride == 0 ? rows : p.y_stride, p.epilogue}, stream_);
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

  /// Blocks that make the int8 form themselves spare a launch.
  bool stream_of_floats(Format format, MatVecArgs args) {
    if (!uses_int8(format) || tokens_.q != nullptr || quantized_ || !has_whole_groups()) return false;
    if (tokens_.cols > kOwnFormCols || reinterpret_cast<std::uintptr_t>(tokens_.norm.weight) % 16 != 0) return false;
    args.x = tokens_.x;
    args.norm_weight = tokens_.norm.weight;
    args.norm_eps = tokens_.norm.eps;
    return stream(format, args);
  }

  void launch(Format format, const MatVecArgs& args) {
    if (stream(format, args)) return;
    visit_form(format, [&]<class Form>(std::type_identity<Form>) {
      launch_matvec<Form>(args, uses_int8(format), state_.facts, stream_.handle());
    });
  }

  void make_int8_form(Int8Out out) {
    if (tokens_.norm.weight == nullptr) {
      return quantize(tokens_.x, tokens_.count, tokens_.cols, out, stream_);
    }
    norm({.x = const_cast<float*>(tokens_.x),  // without a branch it is only read
          .weight = tokens_.norm.weight,
          .int8 = out,
          .rows = tokens_.count,
          .cols = tokens_.cols,
          .eps = tokens_.norm.eps},
         stream_);
  }

  /// Whether float activations can be taken as they lie.
  bool has_whole_groups() const {
    return tokens_.x != nullptr && tokens_.cols % kGroup == 0 && reinterpret_cast<std::uintptr_t>(tokens_.x) % 16 == 0;
  }

  void set_activations(Format format, MatVecArgs& args) {
    const std::size_t padded = padded_cols(tokens_.cols);
    if (uses_int8(format)) {
      if (tokens_.q == nullptr && !quantized_) {
        state_.q.reserve(*state_.device, tokens_.count * padded);
        state_.scales.reserve(*state_.device, tokens_.count * padded / kGroup);
        make_int8_form({state_.q.data(), state_.scales.data()});
        quantized_ = true;
      }
      args.q = tokens_.q != nullptr ? tokens_.q : state_.q.data();
      args.scales = tokens_.q != nullptr ? tokens_.scales : state_.scales.data();
      return;
    }
    args.x = tokens_.x;
    args.x_stride = static_cast<std::uint32_t>(padded);
    if (!has_whole_groups()) {
      if (!padded_) {
        state_.x.reserve(*state_.device, tokens_.count * padded);
        if (tokens_.x != nullptr) {
          pad_rows(tokens_.x, tokens_.count, tokens_.cols, state_.x.data(), stream_);
        } else {
          floats_of_int8(tokens_.q, tokens_.scales, tokens_.count, tokens_.cols, state_.x.data(), stream_);
        }
        padded_ = true;
      }
      args.x = state_.x.data();
    }
  }

  const Activations& tokens_;
  const Arithmetic arithmetic_;
  ProductScratch::State& state_;
  Stream& stream_;
  bool quantized_ = false, padded_ = false;
};

}  // namespace

void multiply(std::span<const GpuProduct> products, const Activations& tokens, Arithmetic arithmetic,
              ProductScratch& scratch, Stream& stream) {
  if (tokens.count == 0) return;
  check_products(products, tokens, arithmetic);
  if (tokens.count > kMatVecTokens) return matmul(products, tokens, arithmetic, scratch, stream);
  MatVecs(tokens, arithmetic, scratch.state(), stream).run(products);
}

}  // namespace imago::kernels::cuda
