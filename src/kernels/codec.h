#pragma once

// Conversion between float32 and packed weights: the table of kernels behind imago/codec.h.

#include <span>
#include <string>

#include "base/cpu.h"
#include "imago/format.h"
#include "kernels/codec_args.h"

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

}  // namespace imago::kernels
