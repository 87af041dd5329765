// Operations on single values: activation functions with their quantized output, sums, factors, rows of a table. Four
// values a thread where addresses and sizes allow it.

#include "device/cuda/check.h"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace imago::kernels::cuda {

namespace {

constexpr unsigned kThreads = 256;

/// f(i) for each i below count.
template <class F>
__global__ void each(std::size_t count, F f) {
  const std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < count) f(i);
}

template <class F>
void for_each(std::size_t count, Stream& stream, const char* name, F f) {
  if (count == 0) return;
  each<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream.handle()>>>(count, f);
  imago::cuda::check_launch(name);
}

template <class F>
struct Change {
  float* y;
  F f;
  __device__ void operator()(std::size_t i) const { y[i] = f(y[i]); }
};
template <class F>
struct Change4 {
  float* y;
  F f;
  __device__ void operator()(std::size_t i) const {
    float4& v = reinterpret_cast<float4*>(y)[i];
    v = {f(v.x), f(v.y), f(v.z), f(v.w)};
  }
};

template <class F>
void change(float* y, std::size_t count, Stream& stream, const char* name, F f) {
  if (count % 4 == 0 && is_aligned(y)) {
    for_each(count / 4, stream, name, Change4<F>{y, f});
  } else {
    for_each(count, stream, name, Change<F>{y, f});
  }
}

struct Scale {
  float factor;
  __device__ float operator()(float v) const { return v * factor; }
};
struct SoftCap {
  float cap;
  __device__ float operator()(float v) const { return cap * tanhf(v / cap); }
};

struct Add {
  const float* x;
  float factor;
  float* y;
  __device__ void operator()(std::size_t i) const { y[i] += factor * x[i]; }
};
struct Add4 {
  const float* x;
  float factor;
  float* y;
  __device__ void operator()(std::size_t i) const {
    const float4 a = reinterpret_cast<const float4*>(x)[i];
    float4& b = reinterpret_cast<float4*>(y)[i];
    b = {b.x + factor * a.x, b.y + factor * a.y, b.z + factor * a.z, b.w + factor * a.w};
  }
};

template <class T>
struct Gather {
  const T* table;
  const std::int32_t* ids;
  std::size_t cols;
  T* out;
  __device__ void operator()(std::size_t i) const {
    out[i] = table[static_cast<std::size_t>(ids[i / cols]) * cols + i % cols];
  }
};

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
      v[0] *= up.x, v[1] *= up.y, v[2] *= up.z, v[3] *= up.w;
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
    if (a.up != nullptr) v[0] *= a.up[at];
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
    for_each(count / 4, stream, "add", Add4{x, factor, y});
  } else {
    for_each(count, stream, "add", Add{x, factor, y});
  }
}

void scale(float* y, float factor, std::size_t count, Stream& stream) {
  change(y, count, stream, "scale", Scale{factor});
}

void soft_cap(float* y, float cap, std::size_t count, Stream& stream) {
  change(y, count, stream, "soft_cap", SoftCap{cap});
}

void gather_rows(const float* table, const std::int32_t* ids, std::size_t count, std::size_t cols, float* out,
                 Stream& stream) {
  if (cols % 4 == 0 && is_aligned(table) && is_aligned(out)) {
    const Gather<float4> gather{reinterpret_cast<const float4*>(table), ids, cols / 4, reinterpret_cast<float4*>(out)};
    for_each(count * (cols / 4), stream, "gather_rows", gather);
  } else {
    for_each(count * cols, stream, "gather_rows", Gather<float>{table, ids, cols, out});
  }
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
  }
}

}  // namespace imago::kernels::cuda
