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

/// The kernels of a type with panels: each takes the layout that the scales of the matrix call for.
template <class T>
struct PanelFunctions {
  static constexpr bool kOneLayout = std::is_same_v<PanelLayoutOf<T, true>, PanelLayoutOf<T>>;

  /// Calls body(std::type_identity<layout>) with the layout of a matrix whose scales sit so.
  template <class Body>
  static auto with_layout(std::size_t scale_group, Body body) noexcept {
    if constexpr (!kOneLayout) {
      if (scale_group != 0) return body(std::type_identity<PanelLayoutOf<T, true>>{});
    }
    return body(std::type_identity<PanelLayoutOf<T>>{});
  }

  static std::size_t bytes(std::size_t cols, std::size_t scale_group) noexcept {
    return with_layout(
        scale_group, [=]<class Layout>(std::type_identity<Layout>) { return panel_bytes<Layout>(cols, scale_group); });
  }
  static void pack(const PackArgs& a) noexcept {
    with_layout(a.scale_group, [&]<class Layout>(std::type_identity<Layout>) { pack_panels<T, Layout>(a); });
  }
  static void fast_vector(const ProductArgs& a) noexcept {
    with_layout(a.scale_group, [&]<class Layout>(std::type_identity<Layout>) { fast_matvec<Layout>(a); });
  }
  static void fast_batch(const ProductArgs& a) noexcept {
    with_layout(a.scale_group, [&]<class Layout>(std::type_identity<Layout>) { fast_matmul<Layout>(a); });
  }
  static void exact_vector(const ProductArgs& a) noexcept {
    with_layout(a.scale_group, [&]<class Layout>(std::type_identity<Layout>) { exact_matvec<Layout>(a); });
  }
  static void exact_batch(const ProductArgs& a) noexcept {
    with_layout(a.scale_group, [&]<class Layout>(std::type_identity<Layout>) { exact_matmul<Layout>(a); });
  }
};

template <class T>
constexpr float centre_of() noexcept {
  if constexpr (kHasZeroPoints<T>) return static_cast<float>(kCentre<T>);
  return 0;
}

/// Products of integers.
template <class T>
constexpr MatrixFunctions integer_functions() noexcept {
  if constexpr (kHasPanels<T>) {
    using Functions = PanelFunctions<T>;
    return {Functions::bytes,
            Functions::pack,
            Functions::fast_vector,
            Functions::fast_batch,
            fast_scratch_bytes<PanelLayoutOf<T>>,
            true,
            kAnyBatch,
            centre_of<T>()};
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
    using Functions = PanelFunctions<T>;
    return {Functions::bytes,
            Functions::pack,
            Functions::exact_vector,
            Functions::exact_batch,
            exact_scratch_bytes<Layout>,
            Layout::Scales::kHasOffset || kHasZeroPoints<T>,
            kUsesTables<Layout> ? 1 : kDirectTokens,
            centre_of<T>()};
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
