#include "kernels/cuda/each.cuh"
#include "layers/cuda/kernels.h"

namespace imago::layers::cuda {

using kernels::cuda::for_each;

namespace {

using math::ConvolutionExtents;

struct Position {
  long long at[3];
};

__device__ Position position_of(std::size_t index, const std::size_t (&extents)[3]) {
  return {{static_cast<long long>(index / extents[2] / extents[1]),
           static_cast<long long>(index / extents[2] % extents[1]), static_cast<long long>(index % extents[2])}};
}

constexpr int kTile = 32, kTileLanes = 8;

__global__ void __launch_bounds__(kTile* kTileLanes)
    transpose_kernel(const float* from, float* to, std::size_t rows, std::size_t cols) {
  __shared__ float tile[kTile][kTile + 1];  // one more column avoids bank conflicts
  const std::size_t matrix = static_cast<std::size_t>(blockIdx.z) * rows * cols;
  const std::size_t row0 = static_cast<std::size_t>(blockIdx.y) * kTile,
                    col0 = static_cast<std::size_t>(blockIdx.x) * kTile;
  for (int i = threadIdx.y; i < kTile; i += kTileLanes) {
    if (row0 + i < rows && col0 + threadIdx.x < cols) {
      tile[i][threadIdx.x] = from[matrix + (row0 + i) * cols + col0 + threadIdx.x];
    }
  }
  __syncthreads();
  for (int i = threadIdx.y; i < kTile; i += kTileLanes) {
    if (col0 + i < cols && row0 + threadIdx.x < rows) {
      to[matrix + (col0 + i) * rows + row0 + threadIdx.x] = tile[threadIdx.x][i];
    }
  }
}

}  // namespace

std::size_t taps_of(const ConvolutionExtents& e) { return e.channels * e.kernel[0] * e.kernel[1] * e.kernel[2]; }
std::size_t outputs_of(const ConvolutionExtents& e) { return e.out[0] * e.out[1] * e.out[2]; }
std::size_t inputs_of(const ConvolutionExtents& e) { return e.in[0] * e.in[1] * e.in[2]; }

void gather_taps(const ConvolutionExtents& extents, const float* x, float* rows, Stream& stream) {
  const ConvolutionExtents e = extents;
  const std::size_t taps = taps_of(e), outputs = outputs_of(e);
  const std::size_t kernel = taps / e.channels;
  for_each(e.batch * outputs * taps, "gather_taps", stream, [=] __device__(std::size_t i) {
    const std::size_t tap = i % taps, row = i / taps;
    const std::size_t channel = tap / kernel, sample = row / outputs;
    const Position k = position_of(tap % kernel, e.kernel), o = position_of(row % outputs, e.out);
    std::size_t from = sample * e.channels + channel;
    bool inside = true;
    for (int axis = 0; axis < 3; ++axis) {
      const long long at =
          o.at[axis] * static_cast<long long>(e.stride[axis]) + k.at[axis] - static_cast<long long>(e.padding[axis]);
      inside = inside && at >= 0 && at < static_cast<long long>(e.in[axis]);
      from = from * e.in[axis] + static_cast<std::size_t>(at);
    }
    rows[i] = inside ? x[from] : 0.0f;
  });
}

void sum_taps(const ConvolutionExtents& extents, const float* rows, float* x, Stream& stream) {
  const ConvolutionExtents e = extents;
  const std::size_t taps = taps_of(e), outputs = outputs_of(e), inputs = inputs_of(e);
  const std::size_t kernel = taps / e.channels;
  for_each(e.batch * e.channels * inputs, "sum_taps", stream, [=] __device__(std::size_t index) {
    const Position i = position_of(index % inputs, e.in);
    const std::size_t channel = index / inputs % e.channels, sample = index / inputs / e.channels;
    float sum = 0;
    for (std::size_t tap = 0; tap < kernel; ++tap) {
      const Position k = position_of(tap, e.kernel);
      std::size_t output = 0;
      bool hit = true;
      for (int axis = 0; axis < 3; ++axis) {
        const long long from = i.at[axis] + static_cast<long long>(e.padding[axis]) - k.at[axis];
        const long long stride = static_cast<long long>(e.stride[axis]);
        hit = hit && from >= 0 && from % stride == 0 && from / stride < static_cast<long long>(e.out[axis]);
        output = output * e.out[axis] + static_cast<std::size_t>(hit ? from / stride : 0);
      }
      if (hit) sum += rows[(sample * outputs + output) * taps + channel * kernel + tap];
    }
    x[index] = sum;
  });
}

void transpose(const float* from, float* to, std::size_t batch, std::size_t rows, std::size_t cols, Stream& stream) {
  if (batch == 0 || rows == 0 || cols == 0) return;
  constexpr std::size_t kMostMatrices = 65535;  // in the third axis of a grid
  const auto tiles = [](std::size_t extent) { return static_cast<unsigned>((extent + kTile - 1) / kTile); };
  // The second axis of a grid has the same limit; matrices that tall are rare.
  if (tiles(rows) > kMostMatrices) {
    for_each(batch * rows * cols, "transpose", stream, [=] __device__(std::size_t i) {
      const std::size_t col = i % cols, row = i / cols % rows, matrix = i / cols / rows;
      to[(matrix * cols + col) * rows + row] = from[i];
    });
    return;
  }
  for (std::size_t first = 0; first < batch; first += kMostMatrices) {
    const std::size_t count = std::min(kMostMatrices, batch - first);
    const dim3 grid(tiles(cols), tiles(rows), static_cast<unsigned>(count));
    transpose_kernel<<<grid, dim3(kTile, kTileLanes), 0, stream.handle()>>>(from + first * rows * cols,
                                                                            to + first * rows * cols, rows, cols);
    imago::cuda::check_launch("transpose");
  }
}

void swap_filters(const float* from, float* to, std::size_t filters, std::size_t channels, std::size_t kernel, bool add,
                  Stream& stream) {
  for_each(filters * channels * kernel, "swap_filters", stream, [=] __device__(std::size_t i) {
    const std::size_t k = i % kernel, channel = i / kernel % channels, filter = i / kernel / channels;
    float& target = to[(channel * filters + filter) * kernel + k];
    target = add ? target + from[i] : from[i];
  });
}

}  // namespace imago::layers::cuda
