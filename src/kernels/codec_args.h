#pragma once

// Plain arguments of the codec kernels. Included by files with instruction-set flags: no functions here, no includes
// that bring any.

#include <cstddef>

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
};

struct DecodeArgs {
  const std::byte* packed;
  std::size_t count;
  float* weights;
  const float* scales;  // as above
  std::size_t group;
  std::size_t first;
};

using EncodeFunction = void (*)(const EncodeArgs&) noexcept;
using DecodeFunction = void (*)(const DecodeArgs&) noexcept;

}  // namespace imago::kernels
