// f(gate) · up, and its int8 form in the same pass.

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/int8_form.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace imago::kernels::cuda {

namespace {

struct Work {
  const float* gate;
  const float* up;
  float* y;
  Int8Out int8;
  std::size_t rows, cols;
};

/// All values in a row, four a thread: where rows are whole blocks of 32, or nobody asks for blocks.
template <Activation kFunction>
__global__ void activate_flat(Work a) {
  wait_for_previous();
  const std::size_t count = a.rows * a.cols;
  const std::size_t at = (blockIdx.x * std::size_t{blockDim.x} + threadIdx.x) * 4;
  float v[4] = {};
  if (at < count) {
    const float4 gate = *reinterpret_cast<const float4*>(a.gate + at);
    v[0] = activation_of(kFunction, gate.x);
    v[1] = activation_of(kFunction, gate.y);
    v[2] = activation_of(kFunction, gate.z);
    v[3] = activation_of(kFunction, gate.w);
    if (a.up != nullptr) {
      const float4 up = *reinterpret_cast<const float4*>(a.up + at);
      v[0] *= up.x, v[1] *= up.y, v[2] *= up.z, v[3] *= up.w;
    }
    if (a.y != nullptr) *reinterpret_cast<float4*>(a.y + at) = {v[0], v[1], v[2], v[3]};
  }
  if (a.int8.q != nullptr) store_int8_form(v, at < count, a.int8.q + at, a.int8.scales + at / 32);
}

/// A warp for each block of 32 columns.
template <Activation kFunction>
__global__ void activate_blocks(Work a) {
  wait_for_previous();
  const std::size_t blocks = int8_blocks(a.cols);
  const std::size_t block = blockIdx.x * std::size_t{blockDim.x / 32} + threadIdx.x / 32;
  if (block >= a.rows * blocks) return;
  const std::size_t row = block / blocks, col = block % blocks * 32 + threadIdx.x % 32;
  float v[1] = {0};
  if (col < a.cols) {
    const std::size_t at = row * a.cols + col;
    v[0] = activation_of(kFunction, a.gate[at]);
    if (a.up != nullptr) v[0] *= a.up[at];
    if (a.y != nullptr) a.y[at] = v[0];
  }
  if (a.int8.q != nullptr) {
    store_int8_form(v, true, a.int8.q + row * blocks * 32 + col, a.int8.scales + block);
  }
}

bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

template <Activation kFunction>
void launch(const Work& work, Stream& stream) {
  constexpr unsigned kThreads = 256;
  const std::size_t count = work.rows * work.cols;
  const bool whole = work.int8.q == nullptr ? count % 4 == 0 : work.cols % 32 == 0;
  if (whole && is_aligned(work.gate) && is_aligned(work.up) && is_aligned(work.y)) {
    const auto blocks = static_cast<unsigned>((count / 4 + kThreads - 1) / kThreads);
    launch_overlapped("activate", activate_flat<kFunction>, blocks, kThreads, 0, stream, work);
  } else {
    const std::size_t warps = work.rows * (padded_cols(work.cols) / 32);
    const auto blocks = static_cast<unsigned>((warps + kThreads / 32 - 1) / (kThreads / 32));
    launch_overlapped("activate", activate_blocks<kFunction>, blocks, kThreads, 0, stream, work);
  }
}

}  // namespace

void activate(Activation function, const float* gate, const float* up, float* y, std::size_t rows, std::size_t cols,
              Int8Out int8, Stream& stream) {
  if (rows == 0 || cols == 0) return;
  const Work work{gate, up, y, int8, rows, cols};
  switch (function) {
    case Activation::linear: launch<Activation::linear>(work, stream); break;
    case Activation::relu: launch<Activation::relu>(work, stream); break;
    case Activation::relu2: launch<Activation::relu2>(work, stream); break;
    case Activation::leaky_relu: launch<Activation::leaky_relu>(work, stream); break;
    case Activation::silu: launch<Activation::silu>(work, stream); break;
    case Activation::gelu: launch<Activation::gelu>(work, stream); break;
    case Activation::tanh: launch<Activation::tanh>(work, stream); break;
    case Activation::sigmoid: launch<Activation::sigmoid>(work, stream); break;
  }
}

}  // namespace imago::kernels::cuda
