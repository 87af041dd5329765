// Operations on single values: activation functions with their quantized output, sums, factors, rows of a table. Four
// values a thread where addresses and sizes allow it.

#include "kernels/cuda/each.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace imago::kernels::cuda {

namespace {

/// y[i] = f(y[i]).
template <class F>
void change(float* y, std::size_t count, const char* name, Stream& stream, const F& f) {
  if (count % 4 == 0 && is_aligned(y)) {
    for_each(count / 4, name, stream, [=] __device__(std::size_t i) {
      float4& v = reinterpret_cast<float4*>(y)[i];
      v = {f(v.x), f(v.y), f(v.z), f(v.w)};
    });
  } else {
    for_each(count, name, stream, [=] __device__(std::size_t i) { y[i] = f(y[i]); });
  }
}

template <class T>
void gather(const T* table, const std::int32_t* ids, std::size_t count, std::size_t cols, T* out, Stream& stream) {
  for_each(count * cols, "gather_rows", stream, [=] __device__(std::size_t i) {
    out[i] = table[static_cast<std::size_t>(ids[i / cols]) * cols + i % cols];
  });
}

// ---- f(gate) · up

struct ActivateWork {
  const float* gate;
  const float* up;
  float* y;
  Int8Out int8;
  std::size_t rows, cols;
};

/// Four values a thread, regardless of rows: for rows of whole blocks of 32, or without quantized output.
template <Activation kFunction>
__global__ void activate_flat(ActivateWork a) {
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
      v[0] *= up_of(kFunction, up.x), v[1] *= up_of(kFunction, up.y);
      v[2] *= up_of(kFunction, up.z), v[3] *= up_of(kFunction, up.w);
    }
    if (a.y != nullptr) *reinterpret_cast<float4*>(a.y + at) = {v[0], v[1], v[2], v[3]};
  }
  if (a.int8.q != nullptr) store_quantized(v, at < count, a.int8.q + at, a.int8.scales + at / 32);
}

/// A warp for each block of 32 columns.
template <Activation kFunction>
__global__ void activate_blocks(ActivateWork a) {
  wait_for_previous();
  const std::size_t blocks = int8_blocks(a.cols);
  const std::size_t block = blockIdx.x * std::size_t{blockDim.x / 32} + threadIdx.x / 32;
  if (block >= a.rows * blocks) return;
  const std::size_t row = block / blocks, col = block % blocks * 32 + threadIdx.x % 32;
  float v[1] = {0};
  if (col < a.cols) {
    const std::size_t at = row * a.cols + col;
    v[0] = activation_of(kFunction, a.gate[at]);
    if (a.up != nullptr) v[0] *= up_of(kFunction, a.up[at]);
    if (a.y != nullptr) a.y[at] = v[0];
  }
  if (a.int8.q != nullptr) {
    store_quantized(v, true, a.int8.q + row * blocks * 32 + col, a.int8.scales + block);
  }
}

template <Activation kFunction>
void launch_activate(const ActivateWork& work, Stream& stream) {
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

void add(const float* x, float factor, float* y, std::size_t count, Stream& stream) {
  if (count % 4 == 0 && is_aligned(x) && is_aligned(y)) {
    for_each(count / 4, "add", stream, [=] __device__(std::size_t i) {
      const float4 a = reinterpret_cast<const float4*>(x)[i];
      float4& b = reinterpret_cast<float4*>(y)[i];
      b = {b.x + factor * a.x, b.y + factor * a.y, b.z + factor * a.z, b.w + factor * a.w};
    });
  } else {
    for_each(count, "add", stream, [=] __device__(std::size_t i) { y[i] += factor * x[i]; });
  }
}

void scale(float* y, float factor, std::size_t count, Stream& stream) {
  change(y, count, "scale", stream, [=] __device__(float v) { return v * factor; });
}

void soft_cap(float* y, float cap, std::size_t count, Stream& stream) {
  change(y, count, "soft_cap", stream, [=] __device__(float v) { return cap * tanhf(v / cap); });
}

void gather_rows(const float* table, const std::int32_t* ids, std::size_t count, std::size_t cols, float* out,
                 Stream& stream) {
  if (cols % 4 == 0 && is_aligned(table) && is_aligned(out)) {
    gather(reinterpret_cast<const float4*>(table), ids, count, cols / 4, reinterpret_cast<float4*>(out), stream);
  } else {
    gather(table, ids, count, cols, out, stream);
  }
}

void add_rows(const float* table, std::size_t rows, const std::int32_t* ids, std::size_t count, std::size_t cols,
              float* x, Stream& stream) {
  const auto last = static_cast<std::int32_t>(rows - 1);
  for_each(count * cols, "add_rows", stream, [=] __device__(std::size_t i) {
    x[i] += table[static_cast<std::size_t>(min(ids[i / cols], last)) * cols + i % cols];
  });
}

void known_ids(const std::int32_t* ids, std::size_t rows, std::size_t count, std::int32_t* out, Stream& stream) {
  for_each(count, "known_ids", stream,
           [=] __device__(std::size_t i) { out[i] = static_cast<std::size_t>(ids[i]) < rows ? ids[i] : 0; });
}

void scale_by(const float* factor, const float* branch, float branch_factor, float* y, std::size_t count,
              Stream& stream) {
  for_each(count, "scale_by", stream, [=] __device__(std::size_t i) {
    y[i] = (branch == nullptr ? y[i] : y[i] + branch_factor * branch[i]) * *factor;
  });
}

void activate_by(Activation function, const float* by, std::size_t stride, float* y, std::size_t rows, std::size_t cols,
                 Stream& stream) {
  for_each(rows * cols, "activate_by", stream, [=] __device__(std::size_t i) {
    y[i] = activation_of(function, y[i]) * up_of(function, by[i / cols * stride + i % cols]);
  });
}

void activate(Activation function, const float* gate, const float* up, float* y, std::size_t rows, std::size_t cols,
              Int8Out int8, Stream& stream) {
  if (rows == 0 || cols == 0) return;
  const ActivateWork work{gate, up, y, int8, rows, cols};
  switch (function) {
    case Activation::linear: launch_activate<Activation::linear>(work, stream); break;
    case Activation::relu: launch_activate<Activation::relu>(work, stream); break;
    case Activation::relu2: launch_activate<Activation::relu2>(work, stream); break;
    case Activation::leaky_relu: launch_activate<Activation::leaky_relu>(work, stream); break;
    case Activation::silu: launch_activate<Activation::silu>(work, stream); break;
    case Activation::gelu: launch_activate<Activation::gelu>(work, stream); break;
    case Activation::tanh: launch_activate<Activation::tanh>(work, stream); break;
    case Activation::sigmoid: launch_activate<Activation::sigmoid>(work, stream); break;
    case Activation::gelu_erf: launch_activate<Activation::gelu_erf>(work, stream); break;
    case Activation::clamped_swish: launch_activate<Activation::clamped_swish>(work, stream); break;
  }
}

}  // namespace imago::kernels::cuda
