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
#include "kernels/generic/matrix_bits.inl.h"
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
          exact_scratch_bytes<Format>, Format::Scales::kHasOffset || (kUsesBitSums<Format> && Format::kBits == 1)};
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

/// The functions of a block format; none for the format of `.entity` files, which is converted when it is loaded.
template <class Block>
constexpr MatrixFunctions block_functions(bool fast) noexcept {
  if constexpr (std::is_same_v<Block, EntityQ4_0>) {
    return {};
  } else {
    return fast ? fast_planes<Block>() : exact_planes<Block>();
  }
}

/// The functions of a scalar type; no fast ones for types of more than 8 bits.
template <class T>
constexpr MatrixFunctions dtype_functions(bool fast) noexcept {
  constexpr bool kIsFp8 = kBits<T> == 8 && kKind<T> == NumberKind::narrow_float;
  if constexpr (8 < kBits<T>) {
    return fast ? MatrixFunctions{} : exact_columns<T>();
  } else if constexpr (kIsFp8) {
    return fast ? fast_columns<T>() : exact_columns<T>();
  } else if constexpr (kBits<T> == 8) {
    return fast ? fast_planes<T>() : exact_columns<T>();
  } else {
    return fast ? fast_planes<T>() : exact_planes<T>();
  }
}
