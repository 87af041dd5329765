#pragma once

// Arithmetic on sizes that may come from outside. Each function returns the exact result or throws ShapeError naming
// `what`, so that no size wraps silently.

#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "imago/error.h"

namespace imago {

[[noreturn]] void throw_overflow(std::string_view what);

template <std::unsigned_integral T>
constexpr T checked_add(T a, T b, std::string_view what) {
  T result{};
  if (__builtin_add_overflow(a, b, &result)) throw_overflow(what);
  return result;
}

template <std::unsigned_integral T>
constexpr T checked_mul(T a, T b, std::string_view what) {
  T result{};
  if (__builtin_mul_overflow(a, b, &result)) throw_overflow(what);
  return result;
}

/// Rounds up to a multiple of `alignment`. REQUIRES: `alignment` is a power of two.
template <std::unsigned_integral T>
constexpr T checked_align_up(T value, T alignment, std::string_view what) {
  return checked_add<T>(value, alignment - 1, what) & ~(alignment - 1);
}

template <std::integral To, std::integral From>
constexpr To checked_cast(From value, std::string_view what) {
  const To result = static_cast<To>(value);
  const bool sign_lost = (result < To{}) != (value < From{});
  if (static_cast<From>(result) != value || sign_lost) throw_overflow(what);
  return result;
}

}  // namespace imago
