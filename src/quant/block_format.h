#pragma once

// The block types behind the names of imago/format.h.

#include <type_traits>
#include <utility>

#include "imago/format.h"
#include "quant/entity_q4_0.h"
#include "quant/iq4_nl.h"
#include "quant/iq4_xs.h"
#include "quant/mxfp4.h"
#include "quant/nvfp4.h"
#include "quant/q2_k.h"
#include "quant/q3_k.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q4_k.h"
#include "quant/q5_0.h"
#include "quant/q5_1.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"
#include "quant/tq1_0.h"
#include "quant/tq2_0.h"

namespace imago::quant {

/// Calls `f(std::type_identity<Block>{})` with the block type of `format` and returns what it returns.
/// REQUIRES: `format` is one of the enumerators.
template <class F>
constexpr decltype(auto) visit(BlockFormat format, F&& f) {
  switch (format) {
    case BlockFormat::q4_0: return std::forward<F>(f)(std::type_identity<Q4_0>{});
    case BlockFormat::q4_1: return std::forward<F>(f)(std::type_identity<Q4_1>{});
    case BlockFormat::q5_0: return std::forward<F>(f)(std::type_identity<Q5_0>{});
    case BlockFormat::q5_1: return std::forward<F>(f)(std::type_identity<Q5_1>{});
    case BlockFormat::q8_0: return std::forward<F>(f)(std::type_identity<Q8_0>{});
    case BlockFormat::q2_k: return std::forward<F>(f)(std::type_identity<Q2_K>{});
    case BlockFormat::q3_k: return std::forward<F>(f)(std::type_identity<Q3_K>{});
    case BlockFormat::q4_k: return std::forward<F>(f)(std::type_identity<Q4_K>{});
    case BlockFormat::q5_k: return std::forward<F>(f)(std::type_identity<Q5_K>{});
    case BlockFormat::q6_k: return std::forward<F>(f)(std::type_identity<Q6_K>{});
    case BlockFormat::iq4_nl: return std::forward<F>(f)(std::type_identity<IQ4_NL>{});
    case BlockFormat::iq4_xs: return std::forward<F>(f)(std::type_identity<IQ4_XS>{});
    case BlockFormat::tq1_0: return std::forward<F>(f)(std::type_identity<TQ1_0>{});
    case BlockFormat::tq2_0: return std::forward<F>(f)(std::type_identity<TQ2_0>{});
    case BlockFormat::mxfp4: return std::forward<F>(f)(std::type_identity<MXFP4>{});
    case BlockFormat::nvfp4: return std::forward<F>(f)(std::type_identity<NVFP4>{});
    case BlockFormat::entity_q4_0: break;
  }
  return std::forward<F>(f)(std::type_identity<EntityQ4_0>{});
}

/// The enumerator of a block type.
template <class Block>
inline constexpr BlockFormat block_format_of = [] {
  for (const BlockFormatInfo& row : kBlockFormats) {
    const bool same = visit(row.id, []<class B>(std::type_identity<B>) { return std::is_same_v<B, Block>; });
    if (same) return row.id;
  }
  throw "no block type";  // at compile time: an error that names this line
}();

namespace detail {
/// The public table and the structs must agree.
constexpr bool table_matches_blocks() {
  for (const BlockFormatInfo& row : kBlockFormats) {
    const bool same = visit(row.id, [&]<class Block>(std::type_identity<Block>) {
      return row.values == Block::kValues && row.bytes == static_cast<int>(sizeof(Block));
    });
    if (!same) return false;
  }
  return true;
}
static_assert(table_matches_blocks());
}  // namespace detail

}  // namespace imago::quant
