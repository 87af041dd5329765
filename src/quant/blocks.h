#pragma once

// The block formats, one block at a time in plain C++: the definition of correct. Kernels compile blocks.inl.h once
// more with the lanes of their instruction set.

#include <type_traits>
#include <utility>

#include "imago/format.h"
#include "quant/block_data.h"
#include "quant/lanes_scalar.h"

namespace imago::quant {

#include "quant/blocks.inl.h"

/// The rows of imago/format.h and the structs agree.
static_assert([] {
  for (const BlockFormatInfo& row : kBlockFormats) {
    const bool same = visit(row.id, [&]<class Block>(std::type_identity<Block>) {
      return row.id == Block::kFormat && row.values == Block::kValues && row.bytes == static_cast<int>(sizeof(Block));
    });
    if (!same) return false;
  }
  return true;
}());

}  // namespace imago::quant
