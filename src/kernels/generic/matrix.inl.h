// The matrix kernels of one instruction set: which functions serve which format. The includer provides lanes,
// kernels/folders.h and quant/block_data.h.

using namespace imago::quant;  // the plain data of block formats

namespace {

// In this order: later files build on earlier ones.
// clang-format off
#include "quant/blocks.inl.h"
#include "kernels/generic/dtype_lanes.inl.h"
#include "kernels/generic/matrix_panels.inl.h"
#include "kernels/generic/matrix_product.inl.h"
#include "kernels/generic/matrix_tables.inl.h"
#include "kernels/generic/matrix_fast.inl.h"
#include "kernels/generic/matrix_exact.inl.h"
#include "kernels/generic/matrix_pack.inl.h"
#include "kernels/generic/matrix_columns.inl.h"
// clang-format on

// The functions of a code type or block type T; none where it has no such product. Apart, because a file with other
// integer products needs only those.

/// Products of integers.
template <class T>
constexpr MatrixFunctions integer_functions() noexcept {
  if constexpr (kHasPanels<T>) {
    using Layout = PanelLayoutOf<T>;
    return {panel_bytes<Layout>,
            pack_panels<T>,
            fast_matvec<Layout>,
            fast_matmul<Layout>,
            fast_scratch_bytes<Layout>,
            true,
            kAnyBatch};
  } else {
    return {};
  }
}

/// fp8 has too wide a range for integer products: the int8 activations are turned back into floats.
template <class T>
constexpr MatrixFunctions fast_functions() noexcept {
  if constexpr (kIsFp8<T>) {
    using Columns = ColumnPanels<T>;
    return {Columns::panel_bytes,        Columns::pack, Columns::fast_matvec, Columns::fast_matmul,
            Columns::fast_scratch_bytes, false,         kDirectTokens};
  } else {
    return integer_functions<T>();
  }
}

template <class T>
constexpr MatrixFunctions exact_panel_functions() noexcept {
  if constexpr (kHasPanels<T>) {
    using Layout = PanelLayoutOf<T>;
    return {panel_bytes<Layout>,
            pack_panels<T>,
            exact_matvec<Layout>,
            exact_matmul<Layout>,
            exact_scratch_bytes<Layout>,
            Layout::Scales::kHasOffset,
            kUsesTables<Layout> ? 1 : kDirectTokens};
  } else {
    return {};
  }
}
template <class T>
constexpr MatrixFunctions exact_functions() noexcept {
  if constexpr (kIsBlock<T>) {
    return exact_panel_functions<T>();
  } else if constexpr (kBits<T> < 8) {
    return exact_panel_functions<T>();
  } else {
    using Columns = ColumnPanels<T>;
    return {Columns::panel_bytes, Columns::pack, Columns::matvec, Columns::matmul,
            float_scratch_bytes,  false,         kDirectTokens};
  }
}

}  // namespace
