#pragma once

// Weights in mxfp4 as gpt-oss is published: codes and scales in two tensors, U8 both.

#include <memory>
#include <vector>

#include "files/tensor_file.h"

namespace imago::files {

/// Joins `NAME_blocks`, [..., blocks][16], and `NAME_scales`, [..., blocks], to `NAME`, [..., blocks · 32] in the block
/// format mxfp4; other tensors stay. The codes of a byte are neighbours there and 16 apart in a block, so the bytes are
/// made here, and `owner` holds them. Throws FormatError, naming the tensor, for shapes that do not belong together.
std::vector<StoredTensor> join_mxfp4(std::vector<StoredTensor> tensors, std::shared_ptr<const void>& owner);

}  // namespace imago::files
