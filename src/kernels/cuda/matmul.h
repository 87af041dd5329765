#pragma once

// Products of packed weights with more tokens than a matvec takes: tensor cores, or cuBLASLt.

#include <cstdint>
#include <span>
#include <string_view>

#include "device/cuda/stream.h"
#include "kernels/cuda/matrix.h"

namespace imago::kernels::cuda {

/// Memory of products between their kernels, a part of ProductScratch. Grows to what the largest one needs.
struct MatMulScratch {
  imago::cuda::Array<std::uint16_t> panels;      ///< activations as tensor cores take them (matmul_tile.cuh)
  imago::cuda::Array<std::uint16_t> rows;        ///< activations in 16 bits, row by row, for cuBLASLt
  imago::cuda::Array<float> floats;              ///< activations in float32, where only their int8 form was given
  imago::cuda::Array<float> sums;                ///< parts of results, before epilogues
  imago::cuda::Array<float> decoded;             ///< a stripe of decoded weights
  imago::cuda::Array<std::int32_t> row_numbers;  ///< 0, 1, 2 …
};

/// Queues products that share their activations, for any number of tokens. fast: weights of 8 bits and fewer and of
/// block formats are decoded to bfloat16 on their way to the tensor cores, where bfloat16 activations meet them and
/// sums are float32; float16 and bfloat16 by cuBLASLt as they lie, with activations of the same type (float16 saturates
/// at 65504), float32 in TF32. exact, and all other types: decoded to float32 in stripes, for cuBLASLt in float32.
/// Without cuBLASLt these take eight tokens at a time.
void matmul(std::span<const GpuProduct> products, const Activations& tokens, Arithmetic arithmetic,
            ProductScratch& scratch, Stream& stream);

/// How packed weights meet many tokens; `automatic` is what matmul does. The others are for tests and benchmarks.
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
void matmul_by(const MatMulPlan& plan, std::span<const GpuProduct> products, const Activations& tokens,
               ProductScratch& scratch, Stream& stream);

/// Whether products of this device run on the tensor core instructions of Hopper.
bool has_hopper_kernels();

}  // namespace imago::kernels::cuda
