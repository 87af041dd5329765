#include "kernels/folders.h"

#include <algorithm>
#include <cstring>

#include "quant/blocks.h"

namespace imago::kernels::ref {

namespace {

// Panels are single rows of the decoded matrix in float32.

std::size_t panel_bytes(std::size_t cols, std::size_t) noexcept { return cols * sizeof(float); }
std::size_t scratch_bytes(std::size_t, std::size_t) noexcept { return 0; }

float* row_of(const PackArgs& args, std::size_t row) noexcept {
  return reinterpret_cast<float*>(args.run) + row * args.source.cols;
}

template <class Block>
requires(!Numeric<Block>) void pack(const PackArgs& args) noexcept {
  const MatrixSource& s = args.source;
  const std::size_t row_bytes = s.cols / Block::kValues * sizeof(Block);
  const std::byte* first = s.packed + s.first / Block::kValues * sizeof(Block);
  const DecodeFunction decode = decoder(Block::kFormat);
  for (std::size_t row = args.first_panel; row < args.last_panel; ++row) {
    decode({first + row * row_bytes, s.cols, row_of(args, row), nullptr, 0, 0});
  }
}

template <Numeric T>
void pack(const PackArgs& args) noexcept {
  const MatrixSource& s = args.source;
  constexpr float kOne = 1.0f;
  const DecodeFunction decode = decoder(dtype_of<T>);
  for (std::size_t row = args.first_panel; row < args.last_panel; ++row) {
    // Rows may begin inside a byte: decode from the last multiple of 8 weights, eight at a time.
    const std::size_t begin = s.first + row * s.cols;
    const std::size_t end = begin + s.cols;
    for (std::size_t i = begin / 8 * 8; i < end; i += 8) {
      float values[8];
      const std::size_t count = std::min<std::size_t>(8, s.first + s.rows * s.cols - i);
      const std::byte* packed = s.packed + i / 8 * static_cast<std::size_t>(bits(dtype_of<T>));
      const bool scaled = s.scales != nullptr;
      decode({packed, count, values, scaled ? s.scales : &kOne, scaled ? s.scale_group : s.first + s.rows * s.cols + 8,
              i, s.zero_points});
      for (std::size_t j = 0; j < count; ++j) {
        if (i + j >= begin && i + j < end) row_of(args, row)[i + j - begin] = values[j];
      }
    }
  }
}

/// `activation(token, column)` gives x as a double.
template <class X>
void multiply(const ProductArgs& a, X activation) noexcept {
  for (std::size_t row = a.first_panel; row < a.last_panel; ++row) {
    const float* w = reinterpret_cast<const float*>(a.run) + row * a.cols;
    for (std::size_t t = 0; t < a.in.batch; ++t) {
      double sum = a.bias != nullptr ? static_cast<double>(a.bias[row]) : 0.0;
      for (std::size_t c = 0; c < a.cols; ++c) sum += static_cast<double>(w[c]) * activation(t, c);
      a.y[t * a.y_stride + row] = static_cast<float>(sum);
    }
  }
}

void exact_product(const ProductArgs& a) noexcept {
  multiply(a, [&](std::size_t t, std::size_t c) { return static_cast<double>(a.in.x[t * a.in.stride + c]); });
}

void fast_product(const ProductArgs& a) noexcept {
  multiply(a, [&](std::size_t t, std::size_t c) {
    const std::size_t i = t * a.in.stride + c;
    return static_cast<double>(a.in.scales[i / kBlockColumns]) * a.in.q[i];
  });
}

MatrixFunctions functions(PackFunction lay_out, bool fast) noexcept {
  const ProductFunction product = fast ? fast_product : exact_product;
  return {panel_bytes, lay_out, product, product, scratch_bytes, false, kAnyBatch};
}

}  // namespace

MatrixFunctions matrix(Format format, bool fast) noexcept {
  return quant::visit(format, [=]<class T>(std::type_identity<T>) -> MatrixFunctions {
    if constexpr (Numeric<T>) {
      if (fast && bits(dtype_of<T>) > 8) return {};
    }
    return functions(pack<T>, fast);
  });
}

}  // namespace imago::kernels::ref
