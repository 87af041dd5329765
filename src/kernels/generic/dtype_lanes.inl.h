// One vector of weights to codes of each of the 21 dtypes and back, over the lanes of the surrounding namespace: the
// same bits as quantize_value and dequantize_value of imago/numeric.h. Compiled inside a kernel's namespace, so it
// includes nothing itself.

template <Numeric T>
inline constexpr int kBits = bits(dtype_of<T>);
template <Numeric T>
inline constexpr NumberKind kKind = info(dtype_of<T>).kind;
template <Numeric T>
inline constexpr bool kIsInteger = kKind<T> == NumberKind::signed_integer || kKind<T> == NumberKind::unsigned_integer ||
                                   kKind<T> == NumberKind::ternary;

inline constexpr std::int32_t kSignBit = -0x7FFFFFFF - 1;

// ---- Integers

/// `truncate` of the result is t rounded to nearest, halves away from zero. What is added is the float below 0.5: 0.5
/// itself would carry the float below 0.5 up to 1. From n + 0.5 on, the sum is rounded up to n + 1; where floats are
/// 1 or more apart, it is rounded back to t.
inline Floats before_truncation(Floats t) noexcept {
  const Ints sign = bits_of(t) & splat_int(kSignBit);
  return t + from_bits(sign | bits_of(splat(0x1.fffffep-2f)));
}

inline Floats nan_to_zero(Floats t) noexcept { return select(t == t, t, splat(0)); }

/// Integers whose range is exact in float: limiting first and rounding then is the same as the other way round. Only
/// unsigned ones read the zero point.
template <Numeric T>
inline Ints narrow_integer_code(Floats t, Floats zero_point) noexcept {
  constexpr bool kUnsigned = kKind<T> == NumberKind::unsigned_integer;
  constexpr int kBeyond = 1 << (kUnsigned ? kBits<T> : kBits<T> - 1);
  constexpr int kLowest = kUnsigned ? 0 : kKind<T> == NumberKind::ternary ? -1 : -kBeyond;
  Floats lowest = splat(static_cast<float>(kLowest)), highest = splat(static_cast<float>(kBeyond - 1));
  if constexpr (kUnsigned) {
    lowest = lowest - zero_point;
    highest = highest - zero_point;
  }
  const Ints code = truncate(before_truncation(min_of(max_of(nan_to_zero(t), lowest), highest)));
  if constexpr (kUnsigned) return code + truncate(zero_point);
  if constexpr (kBits<T> < 8) return code & splat_int((1 << kBits<T>)-1);
  return code;
}

inline Ints int32_code(Floats t) noexcept {
  const Floats number = nan_to_zero(t);
  const Ints code = truncate(before_truncation(number));  // everything out of range gives -2^31: right for one side
  return select(number >= splat(0x1p31f), splat_int(0x7FFFFFFF), code);
}

inline Ints uint32_code(Floats t) noexcept {
  const Floats number = max_of(t, splat(0));  // 0 for NaN too
  const Ints low = truncate(before_truncation(number));
  const Ints high = truncate(number - splat(0x1p31f)) + splat_int(kSignBit);
  const Ints code = select(number >= splat(0x1p31f), high, low);
  return select(number >= splat(0x1p32f), splat_int(-1), code);
}

/// One code of 64 bits, for those beyond 2^31.
template <class Integer>
Integer integer_code_64(float t) noexcept {
  constexpr bool kSigned = Integer(-1) < 0;
  constexpr Integer kHighest = static_cast<Integer>(~std::uint64_t{0} >> (kSigned ? 1 : 0));
  constexpr float kBeyond = kSigned ? 0x1p63f : 0x1p64f;
  constexpr float kLowest = kSigned ? -0x1p63f : 0.0f;
  if (t >= kBeyond) return kHighest;
  if (!(t > kLowest)) return t == t ? static_cast<Integer>(kLowest) : 0;
  return static_cast<Integer>(t + (t < 0 ? -0x1.fffffep-2f : 0x1.fffffep-2f));
}

/// One code of an unsigned type of 32 or 64 bits with a zero point, in double as quantize_value computes it.
template <class Integer>
Integer unsigned_code(float t, float zero_point) noexcept {
  constexpr double kBeyond = sizeof(Integer) == 8 ? 0x1p64 : 0x1p32;
  if (!(t == t)) return static_cast<Integer>(zero_point);
  const bool is_whole = t >= 0x1p24f || t <= -0x1p24f;
  const float whole =
      is_whole ? t : static_cast<float>(static_cast<std::int32_t>(t + (t < 0 ? -0x1.fffffep-2f : 0x1.fffffep-2f)));
  const double code = static_cast<double>(whole) + static_cast<double>(zero_point);
  if (code >= kBeyond) return static_cast<Integer>(~std::uint64_t{0});
  return code > 0 ? static_cast<Integer>(code) : 0;
}

/// One by one: who wants so many bits and negative weights has a signed type for them.
template <class Integer>
void store_unsigned_codes(Floats t, Floats zero_points, std::byte* to) noexcept {
  float lanes[kLanes], zeros[kLanes];
  store_floats(t, lanes);
  store_floats(zero_points, zeros);
  for (std::size_t i = 0; i < kLanes; ++i) {
    const Integer code = unsigned_code<Integer>(lanes[i], zeros[i]);
    __builtin_memcpy(to + i * sizeof(Integer), &code, sizeof code);
  }
}

/// A derived scale keeps codes within 2^20; larger ones come from explicit scales and go one by one.
template <class Integer>
void store_integers_64(Floats t, std::byte* to) noexcept {
  constexpr bool kSigned = Integer(-1) < 0;
  const Floats number = kSigned ? nan_to_zero(t) : max_of(t, splat(0));
  if (!any(abs_of(number) >= splat(0x1p31f))) return store_i64(truncate(before_truncation(number)), to);
  float lanes[kLanes];
  store_floats(t, lanes);
  for (int i = 0; i < kLanes; ++i) {
    const Integer code = integer_code_64<Integer>(lanes[i]);
    __builtin_memcpy(to + i * 8, &code, 8);
  }
}

inline Floats uint32_value(Ints code) noexcept {
  const Floats high = to_floats(shift_right(code, 16)) * splat(65536);  // exact, so that the sum rounds but once
  return high + to_floats(code & splat_int(0xFFFF));
}

// ---- Small floating formats

struct SmallFloat {
  int mantissa_bits;
  int bias;
  float smallest_normal;
  float largest;
};
inline constexpr SmallFloat kE4M3{3, 7, 0x1p-6f, 448};
inline constexpr SmallFloat kE5M2{2, 15, 0x1p-14f, 57344};
inline constexpr SmallFloat kE2M1{1, 1, 1, 6};

/// Code without the sign, rounded to nearest even, saturated. NaN gives the largest.
inline Ints magnitude_code(Floats t, const SmallFloat& f) noexcept {
  const int dropped_bits = 23 - f.mantissa_bits;
  const Floats magnitude = min_of(abs_of(t), splat(f.largest));
  // Half a step less one, plus one if the last bit kept is odd: carries exactly when nearest-even rounds up.
  const Ints pattern = bits_of(magnitude);
  const Ints odd = shift_right(pattern, dropped_bits) & splat_int(1);
  const Ints rounded = shift_right(pattern + splat_int((1 << (dropped_bits - 1)) - 1) + odd, dropped_bits);
  const Ints normal = rounded - splat_int((127 - f.bias) << f.mantissa_bits);
  // Floats from 2^23 subnormal steps on are one step apart: the addition rounds, the low bits count the steps.
  const Floats steps = splat(f.smallest_normal * static_cast<float>(1 << dropped_bits));
  const Ints subnormal = bits_of(magnitude + steps) - bits_of(steps);
  return select(magnitude < splat(f.smallest_normal), subnormal, normal);
}

inline Ints fp8_code(Floats t, const SmallFloat& f) noexcept {
  const Ints sign = shift_left(shift_right(bits_of(t), 31), 7);
  return select(t == t, magnitude_code(t, f), splat_int(0x7F)) | sign;
}

inline Ints fp4_code(Floats t) noexcept {
  const Ints sign = shift_left(shift_right(bits_of(t), 31), 3);
  return select(t == t, magnitude_code(t, kE2M1) | sign, splat_int(0));
}

/// `code` is sign-extended. All NaN codes give the same NaN, with their sign.
inline Floats fp8e4m3_value(Ints code) noexcept {
  const Ints magnitude = code & splat_int(0x7F);
  const Floats subnormal = to_floats(magnitude) * splat(0x1p-9f);
  const Floats normal = from_bits(shift_left(magnitude, 20) + splat_int((127 - kE4M3.bias) << 23));
  const Floats finite = select(magnitude < splat_int(8), subnormal, normal);
  const Ints pattern = select(magnitude == splat_int(0x7F), splat_int(0x7FC00000), bits_of(finite));
  return from_bits(pattern | (code & splat_int(kSignBit)));
}

inline Floats fp8e5m2_value(Ints code) noexcept {  // the upper byte of a binary16
  const Ints nan = splat_int(0x7FC00000) | (code & splat_int(kSignBit));
  return select((code & splat_int(0x7F)) > splat_int(0x7C), from_bits(nan), half_value(shift_left(code, 8)));
}

inline Ints bfloat16_code(Floats w) noexcept {
  const Ints upper = shift_right(bits_of(w), 16);
  const Ints rounded = shift_right(bits_of(w) + splat_int(0x7FFF) + (upper & splat_int(1)), 16);
  return select(w == w, rounded, upper | splat_int(0x40));
}

// ---- Types that share bytes: what each field stands for

struct FieldValues {
  float of[16];
};

template <Numeric T>
constexpr FieldValues field_values() {
  constexpr float kFp4[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  FieldValues values{};
  for (int field = 0; field < 1 << kBits<T>; ++field) {
    constexpr int kSign = 1 << (kBits<T> - 1);
    float& value = values.of[field];
    if (kKind<T> == NumberKind::binary) {
      value = field != 0 ? 1 : -1;
    } else if (kKind<T> == NumberKind::narrow_float) {
      value = field < kSign ? kFp4[field] : -kFp4[field - kSign];
    } else if (kKind<T> == NumberKind::unsigned_integer) {
      value = static_cast<float>(field);
    } else {
      value = static_cast<float>((field ^ kSign) - kSign);
    }
  }
  return values;
}

template <Numeric T>
inline constexpr FieldValues kFieldValues = field_values<T>();

// ---- One vector

/// The codes of scaled types of at most 32 bits, in the low bits of each lane.
template <Numeric T>
inline Ints scaled_codes(Floats weights, Floats scales, Floats zero_points) noexcept {
  if constexpr (std::same_as<T, Binary>) {
    return select(weights >= splat(0), splat_int(1), splat_int(0));
  } else {
    const Floats t = weights / scales;
    if constexpr (std::same_as<T, Fp8E4M3>) return fp8_code(t, kE4M3);
    if constexpr (std::same_as<T, Fp8E5M2>) return fp8_code(t, kE5M2);
    if constexpr (std::same_as<T, Fp4>) return fp4_code(t);
    if constexpr (std::same_as<T, std::int32_t>) return int32_code(t);
    if constexpr (std::same_as<T, std::uint32_t>) return uint32_code(t);
    if constexpr (kIsInteger<T> && kBits<T> <= 16) return narrow_integer_code<T>(t, zero_points);
  }
}

template <Numeric T>
void encode_lanes(Floats weights, Floats scales, Floats zero_points, std::byte* to) noexcept {
  if constexpr (kKind<T> == NumberKind::unsigned_integer && kBits<T> >= 32) {
    if (any(zero_points > splat(0))) return store_unsigned_codes<T>(weights / scales, zero_points, to);
  }
  if constexpr (std::same_as<T, double>) {
    store_doubles(weights, to);
  } else if constexpr (std::same_as<T, float>) {
    store_32(bits_of(weights), to);
  } else if constexpr (std::same_as<T, Half>) {
    store_halves(weights, to);
  } else if constexpr (std::same_as<T, BFloat16>) {
    store_low16(bfloat16_code(weights), to);
  } else if constexpr (kBits<T> == 64) {
    store_integers_64<T>(weights / scales, to);
  } else if constexpr (kBits<T> == 32) {
    store_32(scaled_codes<T>(weights, scales, zero_points), to);
  } else if constexpr (kBits<T> == 16) {
    store_low16(scaled_codes<T>(weights, scales, zero_points), to);
  } else {
    store_low8(scaled_codes<T>(weights, scales, zero_points), to);
  }
}

/// The codes `first` … `first` + kLanes - 1 as floats, before the scale. REQUIRES: `first` is a multiple of kLanes.
template <Numeric T>
inline Floats decode_lanes(const std::byte* packed, int first = 0) noexcept {
  const std::byte* from = packed + first * kBits<T> / 8;
  if constexpr (std::same_as<T, double>) return load_doubles(from);
  if constexpr (std::same_as<T, float>) return from_bits(load_32(from));
  if constexpr (std::same_as<T, Half>) return load_halves(from);
  if constexpr (std::same_as<T, BFloat16>) return from_bits(shift_left(load_u16(from), 16));
  if constexpr (std::same_as<T, Fp8E4M3>) return fp8e4m3_value(load_i8(from));
  if constexpr (std::same_as<T, Fp8E5M2>) return fp8e5m2_value(load_i8(from));
  if constexpr (kIsInteger<T> && kBits<T> == 64) return load_64<T>(from);
  if constexpr (std::same_as<T, std::int32_t>) return to_floats(load_32(from));
  if constexpr (std::same_as<T, std::uint32_t>) return uint32_value(load_32(from));
  if constexpr (std::same_as<T, std::int16_t>) return to_floats(load_i16(from));
  if constexpr (std::same_as<T, std::uint16_t>) return to_floats(load_u16(from));
  if constexpr (std::same_as<T, std::int8_t>) return to_floats(load_i8(from));
  if constexpr (std::same_as<T, std::uint8_t>) return to_floats(load_u8(from));
  if constexpr (kBits<T> < 8) return lookup16(kFieldValues<T>.of, load_fields<kBits<T>>(packed, first));
}
