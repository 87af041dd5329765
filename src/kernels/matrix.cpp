#include "kernels/matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/checked.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/ops_table.h"

namespace imago::kernels {

namespace {

std::size_t padded(std::size_t cols) noexcept { return (cols + kBlockColumns - 1) / kBlockColumns * kBlockColumns; }

/// Memory that a thread keeps from one product to the next.
template <class T>
T* reserve(std::vector<T>& buffer, std::size_t count) {
  if (buffer.size() < count) buffer.resize(count);
  return buffer.data();
}

/// Activations as kernels want them: padded, with sums, and quantized for the fast form.
class PreparedActivations {
 public:
  PreparedActivations(std::span<const float> x, std::size_t batch, std::size_t cols, Arithmetic arithmetic) {
    const std::size_t stride = padded(cols) + (batch > 1 ? kTokenGap : 0);
    view_ = {x.data(), nullptr, nullptr, nullptr, reserve(memory_.sums, batch * stride / 16), stride, batch};
    if (arithmetic == Arithmetic::fast) {
      quantize(x, batch, cols);
    } else {
      if (stride != cols) pad(x, batch, cols);
      sum_groups(padded(cols) / 16);
    }
  }
  PreparedActivations(const PreparedActivations&) = delete;  // the memory is the thread's
  PreparedActivations& operator=(const PreparedActivations&) = delete;
  const Activations& view() const noexcept { return view_; }

 private:
  void pad(std::span<const float> x, std::size_t batch, std::size_t cols) {
    float* to = reserve(memory_.x, batch * view_.stride);
    for (std::size_t t = 0; t < batch; ++t) {
      std::copy_n(x.data() + t * cols, cols, to + t * view_.stride);
      std::fill_n(to + t * view_.stride + cols, view_.stride - cols, 0.0f);
    }
    view_.x = to;
  }

  void sum_groups(std::size_t groups) {
    for (std::size_t t = 0; t < view_.batch; ++t) {
      for (std::size_t g = 0; g < groups; ++g) {
        const float* x = view_.x + t * view_.stride + g * 16;
        double sum = 0;
        for (std::size_t i = 0; i < 16; ++i) sum += static_cast<double>(x[i]);
        memory_.sums[t * view_.stride / 16 + g] = static_cast<float>(sum);
      }
    }
  }

  void quantize(std::span<const float> x, std::size_t batch, std::size_t cols) {
    const std::size_t stride = view_.stride;
    std::int8_t* q = reserve(memory_.q, batch * stride);
    float* scales = reserve(memory_.scales, batch * stride / 32);
    std::int32_t* code_sums = reserve(memory_.code_sums, batch * stride / 16);
    float* sums = memory_.sums.data();
    const OpKernel<QuantizeArgs>& op = choose_op<QuantizeArgs>(allowed_cpu_features());
    parallel_for(batch, 4, [&](std::size_t begin, std::size_t end) {
      for (std::size_t t = begin; t < end; ++t) {
        op.run({x.data() + t * cols, cols, q + t * stride, scales + t * stride / 32, sums + t * stride / 16});
        for (std::size_t g = 0; g < padded(cols) / 16; ++g) {
          const std::int8_t* codes = q + t * stride + g * 16;
          std::int32_t sum = 0;
          for (int i = 0; i < 16; ++i) sum += codes[i];
          code_sums[t * stride / 16 + g] = sum;
        }
      }
    });
    view_.x = nullptr;
    view_.q = q;
    view_.scales = scales;
    view_.code_sums = code_sums;
  }

  /// Kept by the calling thread from one product to the next, so that a product allocates nothing once it has run.
  struct Memory {
    std::vector<float> x, sums, scales;
    std::vector<std::int8_t> q;
    std::vector<std::int32_t> code_sums;
  };
  static Memory& thread_memory() {
    thread_local Memory memory;
    return memory;
  }

  Memory& memory_ = thread_memory();
  Activations view_{};
};

const MatrixKernel& require_kernel(Format format, Arithmetic arithmetic) {
  const MatrixKernel* kernel = choose_matrix_kernel(format, arithmetic, allowed_cpu_features());
  if (kernel == nullptr) {
    throw UnsupportedError(fmt::format("{} has no product with {} activations", format.name(),
                                       arithmetic == Arithmetic::fast ? "int8" : "float32"));
  }
  return *kernel;
}

/// Columns that share a scale, 0 when whole rows do. Throws ShapeError for anything that a run form has no place for.
std::size_t columns_per_scale(std::size_t scale_group, std::size_t cols) {
  if (scale_group != 0 && scale_group % cols == 0) return 0;
  const bool is_group = scale_group == 32 || scale_group == 64 || scale_group == 128;
  if (!is_group || cols % scale_group != 0) {
    throw ShapeError(fmt::format(
        "a scale for {} weights does not fit rows of {}: groups are 32, 64 or 128 that divide the row, or whole rows",
        scale_group, cols));
  }
  return scale_group;
}

void check_shape(std::size_t values, std::size_t wanted, const char* what) {
  if (values != wanted) throw ShapeError(fmt::format("{} values of {}, not {}", values, what, wanted));
}

}  // namespace

RunMatrix::RunMatrix(Format format, const MatrixSource& source, Arithmetic arithmetic)
    : RunMatrix(require_kernel(format, arithmetic), source) {}

RunMatrix::RunMatrix(const MatrixKernel& kernel, const MatrixSource& source)
    : kernel_(&kernel), rows_(source.rows), cols_(source.cols) {
  if (rows_ == 0 || cols_ == 0) throw ShapeError(fmt::format("a matrix of {} × {} has no products", rows_, cols_));
  checked_mul(checked_mul(rows_, cols_, "a matrix"), sizeof(double), "a matrix");  // no index below can wrap
  if (cols_ % static_cast<std::size_t>(kernel.format.block_values()) != 0) {
    throw ShapeError(fmt::format("rows of {} columns are no multiple of the {} of a block of {}", cols_,
                                 kernel.format.block_values(), kernel.format.name()));
  }
  scale_group_ = source.scales == nullptr ? 0 : columns_per_scale(source.scale_group, cols_);
  const std::size_t panel_rows = static_cast<std::size_t>(kernel.panel_rows);
  const std::size_t panels = (rows_ + panel_rows - 1) / panel_rows;
  const std::size_t panel_bytes = kernel.functions.panel_bytes(cols_, scale_group_);
  data_ = host_device()->allocate(checked_mul(panels, panel_bytes, "a matrix"));
  parallel_for(panels, 1, [&](std::size_t begin, std::size_t end) {
    kernel.functions.pack({source, data_.address(), begin, end});
  });
}

void RunMatrix::run(const Activations& in, std::span<float> y, const Epilogue& epilogue, const float* up) const {
  const std::size_t panel_rows = static_cast<std::size_t>(kernel_->panel_rows);
  const std::size_t panels = (rows_ + panel_rows - 1) / panel_rows;
  const std::size_t scratch = kernel_->functions.scratch_bytes(cols_, in.batch) + 64;
  parallel_for(panels, 2, [&](std::size_t begin, std::size_t end) {
    thread_local std::vector<std::byte> memory;
    std::byte* at = reserve(memory, scratch);
    at += (64 - reinterpret_cast<std::uintptr_t>(at) % 64) % 64;
    const ProductArgs args{.run = data_.address(),
                           .rows = rows_,
                           .cols = cols_,
                           .scale_group = scale_group_,
                           .first_panel = begin,
                           .last_panel = end,
                           .in = in,
                           .y = y.data(),
                           .y_stride = rows_,
                           .bias = epilogue.bias.empty() ? nullptr : epilogue.bias.data(),
                           .scratch = at};
    (in.batch == 1 ? kernel_->functions.matvec : kernel_->functions.matmul)(args);
    if (epilogue.activation == Activation::linear && up == nullptr) return;
    const OpKernel<ActivateArgs>& op = choose_op<ActivateArgs>(allowed_cpu_features());
    const std::size_t first_row = begin * panel_rows;
    const std::size_t count = std::min(end * panel_rows, rows_) - first_row;
    for (std::size_t t = 0; t < in.batch; ++t) {
      float* part = y.data() + t * rows_ + first_row;
      op.run({part, up == nullptr ? nullptr : up + t * rows_ + first_row, part, count, epilogue.activation});
    }
  });
}

void RunMatrix::multiply(std::span<const float> x, std::size_t batch, std::span<float> y,
                         const Epilogue& epilogue) const {
  check_shape(x.size(), checked_mul(batch, cols_, "a batch"), "activations");
  check_shape(y.size(), checked_mul(batch, rows_, "a batch"), "results");
  if (!epilogue.bias.empty()) check_shape(epilogue.bias.size(), rows_, "bias");
  if (batch == 0) return;
  run(PreparedActivations(x, batch, cols_, kernel_->arithmetic).view(), y, epilogue, nullptr);
}

void multiply_gated(const RunMatrix& gate, const RunMatrix& up, std::span<const float> x, std::size_t batch,
                    std::span<float> y) {
  if (gate.rows() != up.rows() || gate.cols() != up.cols()) {
    throw ShapeError(fmt::format("a gate of {} × {} and an up projection of {} × {}", gate.rows(), gate.cols(),
                                 up.rows(), up.cols()));
  }
  check_shape(x.size(), checked_mul(batch, gate.cols(), "a batch"), "activations");
  check_shape(y.size(), checked_mul(batch, gate.rows(), "a batch"), "results");
  if (batch == 0) return;
  thread_local std::vector<float> memory;
  const std::span<float> second(reserve(memory, y.size()), y.size());
  constexpr Epilogue kSilu{.bias = {}, .activation = Activation::silu};
  if (gate.kernel().arithmetic == up.kernel().arithmetic) {
    const PreparedActivations prepared(x, batch, gate.cols(), gate.kernel().arithmetic);
    up.run(prepared.view(), second, {}, nullptr);
    gate.run(prepared.view(), y, kSilu, second.data());
  } else {
    up.multiply(x, batch, second);
    gate.run(PreparedActivations(x, batch, gate.cols(), gate.kernel().arithmetic).view(), y, kSilu, second.data());
  }
}

}  // namespace imago::kernels
