#pragma once

// What happens before and after a product: activations brought into the form it takes, parts of sums put together.

#include <cuda_runtime_api.h>

#include "kernels/cuda/matmul_tile.cuh"

namespace imago::kernels::cuda {

/// Queues: activations as TokenPanels, `capacity` tokens (zeros behind the last), `chunks` of 128 columns.
void write_panels(const Activations& from, std::uint16_t* to, std::uint32_t capacity, std::uint32_t chunks,
                  cudaStream_t stream);

enum class Rounded : std::uint8_t { bfloat16, float16 };
/// Queues: activations in 16 bits, [count][stride], zeros behind the last column. float16 saturates.
void write_rows(const Activations& from, Rounded type, std::uint16_t* to, std::size_t stride, cudaStream_t stream);

/// Queues: activations in float32 from their int8 form, [count][cols].
void write_floats(const Activations& from, float* to, cudaStream_t stream);

/// Queues: to[i] = i.
void write_numbers(std::int32_t* to, std::uint32_t count, cudaStream_t stream);

/// sums: [1, or 2 if gated][splits][tokens][row_stride].
struct FinishArgs {
  const float* sums = nullptr;
  std::uint32_t splits = 1, tokens = 0, rows = 0;
  std::size_t row_stride = 0;
  bool gated = false;
  float* y = nullptr;
  std::size_t y_stride = 0;
  GpuEpilogue epilogue;
};
/// Queues: adds the parts of each sum, and does what the epilogue says.
void finish(const FinishArgs& args, cudaStream_t stream);

}  // namespace imago::kernels::cuda
