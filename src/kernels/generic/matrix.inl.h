// The matrix kernels of one instruction set: which functions serve which format. Compiled inside a kernel's namespace
// after its lanes, the block codecs and the scalar lanes.

/// What a stored level has to be multiplied with: the levels of fp4 are doubled to be integers.
template <class T>
inline constexpr float kPackedUnit = std::is_same_v<T, Fp4> ? 0.5f : 1.0f;

// In this order: later files build on earlier ones.
// clang-format off
#include "kernels/generic/matrix_codes.inl.h"
#include "kernels/generic/matrix_scales.inl.h"
#include "kernels/generic/matrix_formats.inl.h"
#include "kernels/generic/matrix_product.inl.h"
#include "kernels/generic/matrix_dot.inl.h"
#include "kernels/generic/matrix_levels.inl.h"
#include "kernels/generic/matrix_tables.inl.h"
#include "kernels/generic/matrix_fast.inl.h"
#include "kernels/generic/matrix_exact.inl.h"
#include "kernels/generic/matrix_pack.inl.h"
#include "kernels/generic/matrix_columns.inl.h"
// clang-format on

template <class T>
constexpr MatrixFunctions exact_planes() noexcept {
  using Format = RunFormatOf<T>;
  return {panel_bytes<Format>,         pack_planes<T>,
          exact_matvec<Format>,        exact_matmul<Format>,
          exact_scratch_bytes<Format>, Format::Scales::kHasOffset};
}
template <class T>
constexpr MatrixFunctions fast_planes() noexcept {
  using Format = RunFormatOf<T>;
  return {
      panel_bytes<Format>, pack_planes<T>, fast_matvec<Format>, fast_matmul<Format>, fast_scratch_bytes<Format>, true};
}
template <class T>
constexpr MatrixFunctions exact_columns() noexcept {
  using Form = ColumnForm<T>;
  return {Form::panel_bytes, Form::pack, Form::matvec, Form::matmul, float_scratch_bytes, false};
}

/// fp8 has too wide a range for integer products: the int8 activations are turned back into floats.
template <class T>
constexpr MatrixFunctions fast_columns() noexcept {
  using Form = ColumnForm<T>;
  return {Form::panel_bytes, Form::pack, Form::fast_matvec, Form::fast_matmul, Form::fast_scratch_bytes, false};
}

// The functions of each format; none for the format of `.entity` files, which is converted when it is loaded, and no
// fast ones for types of more than 8 bits. Apart, because a file with other integer products needs only those.

template <class Block>
constexpr MatrixFunctions fast_block_functions() noexcept {
  if constexpr (std::is_same_v<Block, EntityQ4_0>) {
    return {};
  } else {
    return fast_planes<Block>();
  }
}
template <class Block>
constexpr MatrixFunctions exact_block_functions() noexcept {
  if constexpr (std::is_same_v<Block, EntityQ4_0>) {
    return {};
  } else {
    return exact_planes<Block>();
  }
}

template <class T>
inline constexpr bool kIsFp8 = kBits<T> == 8 && kKind<T> == NumberKind::narrow_float;

/// Products of integers.
template <class T>
constexpr MatrixFunctions integer_dtype_functions() noexcept {
  if constexpr (8 < kBits<T> || kIsFp8<T>) {
    return {};
  } else {
    return fast_planes<T>();
  }
}
template <class T>
constexpr MatrixFunctions fast_dtype_functions() noexcept {
  if constexpr (kIsFp8<T>) {
    return fast_columns<T>();
  } else {
    return integer_dtype_functions<T>();
  }
}
template <class T>
constexpr MatrixFunctions exact_dtype_functions() noexcept {
  if constexpr (kBits<T> < 8) {
    return exact_planes<T>();
  } else {
    return exact_columns<T>();
  }
}
