// The table: one row per format and instruction set. A row exists where its folder offers a function for the format.

#include <fmt/format.h>

#include <cassert>
#include <vector>

#include "kernels/codec.h"
#include "kernels/ref/block_codec.h"
#include "kernels/ref/dtype_codec.h"
#if defined(__x86_64__)
#include "kernels/avx2/codec.h"
#include "kernels/avx512/codec.h"
#elif defined(__aarch64__)
#include "kernels/neon/codec.h"
#endif

namespace imago::kernels {

namespace {

/// What one folder offers; best first.
struct Folder {
  const char* name;
  CpuFeatures needs;
  EncodeFunction (*dtype_encoder)(DType) noexcept;
  DecodeFunction (*dtype_decoder)(DType) noexcept;
  EncodeFunction (*block_encoder)(BlockFormat) noexcept;
  DecodeFunction (*block_decoder)(BlockFormat) noexcept;
};

constexpr Folder kFolders[] = {
#if defined(__x86_64__)
    {"avx512", kAvx512 | kAvx2, avx512::dtype_encoder, avx512::dtype_decoder, avx512::block_encoder,
     avx512::block_decoder},
    {"avx2", kAvx2, avx2::dtype_encoder, avx2::dtype_decoder, avx2::block_encoder, avx2::block_decoder},
#elif defined(__aarch64__)
    {"neon", kNeonDot, neon::dtype_encoder, neon::dtype_decoder, neon::block_encoder, neon::block_decoder},
#endif
    {"ref", kNoFeatures, ref::dtype_encoder, ref::dtype_decoder, ref::block_encoder, ref::block_decoder},
};

std::vector<CodecKernel> make_table() {
  std::vector<CodecKernel> table;
  const auto add = [&](Format format, const Folder& folder, EncodeFunction encode, DecodeFunction decode) {
    table.push_back({fmt::format("{}/{}", format.name(), folder.name), format, folder.needs, encode, decode});
  };
  for (const DTypeInfo& type : kDTypes) {
    for (const Folder& f : kFolders) add(type.id, f, f.dtype_encoder(type.id), f.dtype_decoder(type.id));
  }
  for (const BlockFormatInfo& block : kBlockFormats) {
    for (const Folder& f : kFolders) add(block.id, f, f.block_encoder(block.id), f.block_decoder(block.id));
  }
  return table;
}

}  // namespace

std::span<const CodecKernel> all_codecs() {
  static const std::vector<CodecKernel> table = make_table();
  return table;
}

const CodecKernel& choose_codec(Format format, CpuFeatures features) {
  const CodecKernel* chosen = nullptr;
  for (const CodecKernel& row : all_codecs()) {
    if (row.format == format && (row.needs & features) == row.needs) {
      chosen = &row;
      break;
    }
  }
  assert(chosen != nullptr);  // every format has a ref row
  return *chosen;
}

}  // namespace imago::kernels
