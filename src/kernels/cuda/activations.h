#pragma once

// Small kernels around products: before them, activations in the layout a product reads; after them, partial sums and
// gates. All are queued on a stream.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/matrix.h"

namespace imago::kernels::cuda {

// ---- for matvec

/// Copies rows of `cols` floats to rows of padded_cols(cols), zeros after the last column.
void pad_rows(const float* x, std::size_t rows, std::size_t cols, float* to, Stream& stream);

/// Quantized activations as rows of padded_cols(cols) floats.
void floats_of_int8(const std::int8_t* q, const float2_pod* scales, std::size_t rows, std::size_t cols, float* to,
                    Stream& stream);

/// y = f(gate) · up with the rest of the epilogue except its bias, which the gate already has. gate, up:
/// [tokens][rows].
struct GatedArgs {
  const float* gate;
  const float* up;
  float* y;
  std::size_t tokens, rows, y_stride;
  GpuEpilogue epilogue;
};
void finish_gated(const GatedArgs& args, Stream& stream);

// ---- for matmul

/// Activations as ActivationPanels (matmul_tile.cuh): `capacity` tokens, zeros after the last; `chunks` of 128 columns.
/// With `sources` [capacity], token i is row sources[i] of the activations; zeros where that is negative.
void write_panels(const Activations& from, std::uint16_t* to, std::uint32_t capacity, std::uint32_t chunks,
                  CUstream_st* stream, const std::int32_t* sources = nullptr);

enum class Rounded : std::uint8_t { bfloat16, float16 };
/// Activations in 16 bits, [count][stride], zeros after the last column. float16 saturates.
void write_rows(const Activations& from, Rounded type, std::uint16_t* to, std::size_t stride, CUstream_st* stream);

/// Activations in float32, [count][cols].
void write_floats(const Activations& from, float* to, CUstream_st* stream);

/// to[i] = i.
void write_numbers(std::int32_t* to, std::uint32_t count, CUstream_st* stream);

/// Partial sums of a product: [1, or 2 if gated][splits][tokens][row_stride].
struct FinishArgs {
  const float* sums = nullptr;
  std::uint32_t splits = 1, tokens = 0, rows = 0;
  std::size_t row_stride = 0;
  bool gated = false;
  float* y = nullptr;
  std::size_t y_stride = 0;
  GpuEpilogue epilogue;
};
/// Adds the partial sums and applies the epilogue.
void finish(const FinishArgs& args, CUstream_st* stream);

}  // namespace imago::kernels::cuda
