#pragma once

// Products of packed weights with more tokens than a matvec takes: on tensor cores, or by cuBLASLt.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "device/cuda/stream.h"
#include "kernels/cuda/matrix.h"
#include "kernels/cuda/matvec.h"

namespace imago::kernels::cuda {

/// Memory of products of many tokens between their kernels. Grows to the largest product.
struct MatMulScratch {
  imago::cuda::Array<std::uint16_t> panels;      ///< activations as tensor cores take them (matmul_tile.cuh)
  imago::cuda::Array<std::uint16_t> rows;        ///< activations in 16 bits, row by row, for cuBLASLt
  imago::cuda::Array<float> floats;              ///< activations in float32, if only quantized ones were given
  imago::cuda::Array<float> sums;                ///< partial sums, before epilogues
  imago::cuda::Array<float> decoded;             ///< a stripe of decoded weights
  imago::cuda::Array<std::int32_t> row_numbers;  ///< 0, 1, 2 …
};

/// What ProductScratch owns.
struct ProductScratch::State {
  std::shared_ptr<Device> device;
  LaunchFacts facts;
  imago::cuda::Array<std::int8_t> q;      ///< quantized activations
  imago::cuda::Array<float2_pod> scales;  ///< their scales
  imago::cuda::Array<float> x;            ///< activations padded to whole groups
  imago::cuda::Array<float> up;           ///< gate and up, where their layouts differ
  MatMulScratch matmul;
};

/// Queues products that share their activations, for any number of tokens. With `fast`, weights of 8 bits and fewer and
/// of block formats are decoded to bfloat16 in registers and multiplied with bfloat16 activations on tensor cores, sums
/// in float32; cuBLASLt multiplies float16 and bfloat16 weights as they are, with activations of the same type (float16
/// saturates at 65504), and float32 in TF32. With `exact`, and for all other types, weights are decoded to float32 in
/// stripes for cuBLASLt. Without cuBLASLt these products take the matvec kernels, eight tokens at a time.
void matmul(std::span<const GpuProduct> products, const Activations& x, Arithmetic arithmetic, ProductScratch& scratch,
            Stream& stream);

/// The tile of a block; `automatic` is what matmul chooses. The others are for tests and benchmarks.
enum class MatMulPath : std::uint8_t {
  automatic,
  wide,    ///< tensor cores, blocks of 128 rows by 256 tokens; Hopper only
  square,  ///< 128 by 128
  half,    ///< 128 by 64
  narrow,  ///< 128 by 32
};
std::string_view name(MatMulPath path) noexcept;

struct MatMulPlan {
  MatMulPath path = MatMulPath::automatic;
  std::uint32_t splits = 0;  ///< blocks that share the columns of a row; 0: as many as fill the chip
};

/// matmul with Arithmetic::fast by a given plan. REQUIRES: weights of 8 bits and fewer, or of block formats.
void matmul_by(const MatMulPlan& plan, std::span<const GpuProduct> products, const Activations& x,
               ProductScratch& scratch, Stream& stream);

/// Whether products on this device use the tensor core instructions of Hopper.
bool has_hopper_kernels();

}  // namespace imago::kernels::cuda
