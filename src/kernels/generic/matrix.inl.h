// The matrix kernels of one instruction set: which functions serve which format. Compiled inside a kernel's namespace
// after its lanes, the block codecs and the scalar lanes.

/// What a stored level has to be multiplied with: the levels of fp4 are doubled to be integers.
template <class T>
inline constexpr float kPackedUnit = std::is_same_v<T, Fp4> ? 0.5f : 1.0f;

// In this order: later files build on earlier ones.
// clang-format off
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
    return {panel_bytes<Layout>,        pack_panels<T>,
            fast_matvec<Layout>,        fast_matmul<Layout>,
            fast_scratch_bytes<Layout>, true};
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
            Columns::fast_scratch_bytes, false};
  } else {
    return integer_functions<T>();
  }
}

template <class T>
constexpr MatrixFunctions exact_panel_functions() noexcept {
  if constexpr (kHasPanels<T>) {
    using Layout = PanelLayoutOf<T>;
    return {panel_bytes<Layout>,         pack_panels<T>,
            exact_matvec<Layout>,        exact_matmul<Layout>,
            exact_scratch_bytes<Layout>, Layout::Scales::kHasOffset};
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
    return {Columns::panel_bytes, Columns::pack, Columns::matvec, Columns::matmul, float_scratch_bytes, false};
  }
}
