// What is done to values one by one, and rows of a table.

#include "device/cuda/check.h"
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

bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

/// f on four values at a time where they lie for it, else on each.
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

}  // namespace imago::kernels::cuda
