// Which planes, levels and scales make up the run form of each format.

/// Codes whose level is kStep · code - kZero.
template <int kZero, int kStep = 1>
struct LinearLevels {
  static constexpr bool kIsTable = false;
  static constexpr int zero = kZero;
  static constexpr int step = kStep;
  static constexpr float level(int code) noexcept { return static_cast<float>(kStep * code - kZero); }
};

/// Codes that index 16 levels, all of a magnitude up to kLargest.
template <const std::int8_t (&kTable)[16], int kLargest>
struct TableLevels {
  static constexpr bool kIsTable = true;
  static constexpr int largest = kLargest;
  static constexpr float level(int code) noexcept { return static_cast<float>(kTable[code & 15]); }
};

using Iq4RunLevels = TableLevels<Iq4Levels::kCodes, 127>;
using E2M1RunLevels = TableLevels<E2M1Levels::kCodes, 12>;

template <int kCodeBits, class CodeLevels, class ScaleLayout>
struct RunFormat {
  static constexpr int kBits = kCodeBits;
  using Levels = CodeLevels;
  using Scales = ScaleLayout;
  using Codes = Planes<kBits>;
};

template <class T>
struct RunFormatOf_;
/// Types with the same planes, levels and scales have the same run form, and so the same kernels.
template <class T>
using RunFormatOf = typename RunFormatOf_<T>::Type;
template <>
struct RunFormatOf_<Q4_0> {
  using Type = RunFormat<4, LinearLevels<8>, HalfScales<false>>;
};
template <>
struct RunFormatOf_<Q4_1> {
  using Type = RunFormat<4, LinearLevels<0>, HalfScales<true>>;
};
template <>
struct RunFormatOf_<Q5_0> {
  using Type = RunFormat<5, LinearLevels<16>, HalfScales<false>>;
};
template <>
struct RunFormatOf_<Q5_1> {
  using Type = RunFormat<5, LinearLevels<0>, HalfScales<true>>;
};
template <>
struct RunFormatOf_<Q8_0> {
  using Type = RunFormat<8, LinearLevels<128>, HalfScales<false>>;
};
template <>
struct RunFormatOf_<Q2_K> {
  using Type = RunFormat<2, LinearLevels<0>, SuperScales<16, false, true>>;
};
template <>
struct RunFormatOf_<Q3_K> {
  using Type = RunFormat<3, LinearLevels<4>, SuperScales<16, true, false>>;
};
template <>
struct RunFormatOf_<Q4_K> {
  using Type = RunFormat<4, LinearLevels<0>, SuperScales<32, false, true>>;
};
template <>
struct RunFormatOf_<Q5_K> {
  using Type = RunFormat<5, LinearLevels<0>, SuperScales<32, false, true>>;
};
template <>
struct RunFormatOf_<Q6_K> {
  using Type = RunFormat<6, LinearLevels<32>, SuperScales<16, true, false>>;
};
template <>
struct RunFormatOf_<IQ4_NL> {
  using Type = RunFormat<4, Iq4RunLevels, HalfScales<false>>;
};
template <>
struct RunFormatOf_<IQ4_XS> {
  using Type = RunFormat<4, Iq4RunLevels, SuperScales<32, true, false>>;
};
template <>
struct RunFormatOf_<TQ1_0> {
  using Type = RunFormat<2, LinearLevels<1>, WideScales>;
};
template <>
struct RunFormatOf_<TQ2_0> {
  using Type = RunFormat<2, LinearLevels<1>, WideScales>;
};
template <>
struct RunFormatOf_<MXFP4> {
  using Type = RunFormat<4, E2M1RunLevels, ExponentScales>;
};
template <>
struct RunFormatOf_<NVFP4> {
  using Type = RunFormat<4, E2M1RunLevels, SmallFloatScales>;
};
// Scalar types, where their codes are integers or few: the levels of fp4 are doubled, which its pack makes up for.
template <>
struct RunFormatOf_<std::int8_t> {
  using Type = RunFormat<8, LinearLevels<128>, FloatScales>;
};
template <>
struct RunFormatOf_<std::uint8_t> {
  using Type = RunFormat<8, LinearLevels<0>, FloatScales>;
};
template <>
struct RunFormatOf_<Int4> {
  using Type = RunFormat<4, LinearLevels<8>, FloatScales>;
};
template <>
struct RunFormatOf_<UInt4> {
  using Type = RunFormat<4, LinearLevels<0>, FloatScales>;
};
template <>
struct RunFormatOf_<Fp4> {
  using Type = RunFormat<4, E2M1RunLevels, FloatScales>;
};
template <>
struct RunFormatOf_<Int2> {
  using Type = RunFormat<2, LinearLevels<2>, FloatScales>;
};
template <>
struct RunFormatOf_<UInt2> {
  using Type = RunFormat<2, LinearLevels<0>, FloatScales>;
};
template <>
struct RunFormatOf_<Ternary> {
  using Type = RunFormat<2, LinearLevels<2>, FloatScales>;
};
template <>
struct RunFormatOf_<Binary> {
  using Type = RunFormat<1, LinearLevels<1, 2>, FloatScales>;
};
