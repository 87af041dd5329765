#pragma once

// What the folders of kernels offer, one for each instruction set. Included by files with instruction-set flags: no
// functions here, no includes that bring any.

#include <cstddef>

#include "imago/format.h"
#include "kernels/matrix_args.h"
#include "kernels/ops_args.h"

namespace imago::kernels {

struct EncodeArgs {
  const float* weights;  // count values
  std::size_t count;
  std::byte* packed;
  const float* scales;  // dtypes: weight i has scales[(first + i) / group]
  std::size_t group;
  std::size_t first;        // index in the tensor of weights[0]; a multiple of 8 for dtypes, of the block otherwise
  const float* importance;  // block formats, may be null: weight i has importance[(first + i) % row_values]
  std::size_t row_values;
  const float* zero_points = nullptr;  // unsigned dtypes: beside the scales; null: all 0
};

struct DecodeArgs {
  const std::byte* packed;
  std::size_t count;
  float* weights;
  const float* scales;  // as above
  std::size_t group;
  std::size_t first;
  const float* zero_points = nullptr;  // as above
};

using EncodeFunction = void (*)(const EncodeArgs&) noexcept;
using DecodeFunction = void (*)(const DecodeArgs&) noexcept;

/// A loop that does nothing but multiply and add in registers, in chains that do not wait for each other.
struct PeakLoop {
  void (*run)(std::size_t rounds) noexcept;  // REQUIRES: rounds > 0
  double operations;                         // of one round, 2 per multiply-add
};

struct PeakLoops {
  PeakLoop float32;
  PeakLoop int8;
  PeakLoop bfloat16 = {nullptr, 0};  // by tiles; null where there are none
};

/// Plain C++: the definition of correct.
namespace ref {
inline constexpr std::size_t kPanelRows = 1;
#include "kernels/generic/folder.inl.h"
}  // namespace ref

#if defined(__x86_64__)

namespace avx2 {
inline constexpr std::size_t kPanelRows = 8;
#include "kernels/generic/folder.inl.h"
}  // namespace avx2

namespace avx512 {
inline constexpr std::size_t kPanelRows = 16;
#include "kernels/generic/folder.inl.h"

/// For processors with VNNI: only integer products, all else is as above.
MatrixFunctions vnni_matrix(Format format, bool fast) noexcept;
PeakLoops vnni_peak_loops() noexcept;

/// For processors with AMX: products of many tokens and attention by tiles of bfloat16. Such attention is for results
/// that may be rounded so, and worth it from some 16 queries on.
MatrixFunctions amx_matrix(Format format, bool fast) noexcept;
PeakLoops amx_peak_loops() noexcept;
void run_by_tiles(const AttentionArgs&) noexcept;
}  // namespace avx512

#elif defined(__aarch64__)

namespace neon {
inline constexpr std::size_t kPanelRows = 4;
#include "kernels/generic/folder.inl.h"
}  // namespace neon

#endif

}  // namespace imago::kernels
