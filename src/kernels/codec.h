#pragma once

// Conversion between float32 and packed weights: the table of kernels that imago/codec.h runs.

#include <span>
#include <string>

#include "base/cpu.h"
#include "imago/codec.h"
#include "imago/format.h"
#include "kernels/folders.h"

namespace imago::kernels {

/// One way to convert one format. A row converts whole packed units: for dtypes any count of weights from a byte
/// boundary on, for block formats whole blocks. All rows of a format give the same bytes.
struct CodecKernel {
  std::string name;  ///< "q4_k/avx512"
  Format format;
  CpuFeatures needs;
  EncodeFunction encode;
  DecodeFunction decode;
};

/// The whole table, best rows of a format first, `ref` last.
std::span<const CodecKernel> all_codecs();

/// The first row of `format` whose needs are within `features`.
const CodecKernel& choose_codec(Format format, CpuFeatures features);

/// Throws ShapeError if there are too few scales for `count` weights, or zero points but too few; UsageError for a
/// scale that is negative, infinite or NaN, and for a zero point that the format does not have. Types without a scale
/// pass.
void check_scales(Format format, std::size_t count, const Scales& scales);

/// As kernels take them: null if there are none.
const float* zero_points_of(const Scales& scales) noexcept;

}  // namespace imago::kernels
