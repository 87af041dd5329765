#pragma once

// Arguments of the kernels that stream packed weights once past a few tokens.

#include <cstddef>
#include <cstdint>

#include "device/cuda/stream.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/matvec_stream_plan.h"
#include "kernels/ops_args.h"

namespace imago::kernels::cuda {

/// One product of a launch. With `gated`, y = activation(planes x + bias) · (up x).
struct MatVecProduct {
  Planes planes, up;
  float* y;
  const float* bias;  ///< null: none
  std::uint32_t y_stride;
  float scale;
  Activation activation;
  bool accumulate, gated;
};

/// All of the same form and the same number of columns.
struct MatVecArgs {
  MatVecProduct products[kMatVecProducts];
  std::int32_t count;
  std::uint32_t tokens;
  const float* x;            ///< float form: [tokens][x_stride], zeros behind the columns up to whole groups
  std::uint32_t x_stride;    ///< a multiple of 4
  const std::int8_t* q;      ///< int8 form: [tokens][groups · 32]
  const float2_pod* scales;  ///< int8 form: [tokens][groups]
  // stream_matvec makes the int8 form by itself where q is null: of x, or of x / rms(x) · norm_weight.
  const float* norm_weight;  ///< null: of x
  float norm_eps;
  // Filled in by launch_matvec. Kernels could compute them, and would, time and again, for want of registers.
  std::uint32_t rows;       ///< of all products
  std::uint32_t units;      ///< of a row
  std::uint32_t stride;     ///< between pieces of activations in shared memory
  std::uint32_t scales_at;  ///< bytes from the activations to their scales
  std::uint32_t rings_at;   ///< bytes from the activations to the rings of the warps
};

/// What a launch has to know of its device.
struct LaunchFacts {
  int multiprocessors = 132;
  std::uint32_t shared_bytes = 90 << 10;  ///< dynamic shared memory that a block may have
};

/// Queues one launch for up to eight tokens. `Form` of decode.cuh; int8 activations if `int8`, for coded forms only.
template <class Form>
void launch_matvec(MatVecArgs args, bool int8, const LaunchFacts& facts, CUstream_st* stream);

/// Queues a product of one token by the kernel for chips that overlap launches; see matvec_stream.cuh. Coded forms take
/// int8 activations, or make them of x: whole groups, aligned to 16 bytes. False, and nothing is done, if it is not for
/// these matrices.
template <class Form>
bool stream_matvec(const MatVecArgs& args, const LaunchFacts& facts, CUstream_st* stream);

}  // namespace imago::kernels::cuda
