#pragma once

// Activation-aware scaling (AWQ): columns that matter are made larger before they are rounded, and what feeds them
// smaller, so that the function stays the same and their error shrinks.
//
// | what feeds | the matrices | where |
// |---|---|---|
// | the norm in front of attention | query, key, value | not with post-norms alone (olmo2) |
// | the norm in front of the feed-forward layer | gate, up | not with experts, whose router reads it too |
// | the rows of up | down | gated layers without experts |
// | the rows of value | attention_output | heads that share values share factors |

#include <span>
#include <string>
#include <vector>

#include "convert/guidance.h"

namespace imago::convert {

/// Finds the factors of each group of matrices and puts them into their guides, statistics as the scaled matrices see
/// them included. Groups that gain nothing are left alone. Reads the matrices of a group at a time. Throws
/// UnsupportedError if the target is no decoder.
void scale_columns(const Guidance& guidance, std::span<const PlannedTensor> plan, std::span<TensorGuide> guides,
                   std::vector<std::string>& notes);

}  // namespace imago::convert
