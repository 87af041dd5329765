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

inline constexpr std::int8_t kIq4Table[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr std::int8_t kE2M1Table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
using Iq4RunLevels = TableLevels<kIq4Table, 127>;
using E2M1RunLevels = TableLevels<kE2M1Table, 12>;

template <int kCodeBits, class CodeLevels, class ScaleLayout>
struct RunFormat {
  static constexpr int kBits = kCodeBits;
  using Levels = CodeLevels;
  using Scales = ScaleLayout;
  using Codes = Planes<kBits>;
};

template <class T>
struct RunFormatOf;
template <>
struct RunFormatOf<Q4_0> : RunFormat<4, LinearLevels<8>, HalfScales<false>> {};
template <>
struct RunFormatOf<Q4_1> : RunFormat<4, LinearLevels<0>, HalfScales<true>> {};
template <>
struct RunFormatOf<Q5_0> : RunFormat<5, LinearLevels<16>, HalfScales<false>> {};
template <>
struct RunFormatOf<Q5_1> : RunFormat<5, LinearLevels<0>, HalfScales<true>> {};
template <>
struct RunFormatOf<Q8_0> : RunFormat<8, LinearLevels<128>, HalfScales<false>> {};
template <>
struct RunFormatOf<Q2_K> : RunFormat<2, LinearLevels<0>, SuperScales<16, false, true>> {};
template <>
struct RunFormatOf<Q3_K> : RunFormat<3, LinearLevels<4>, SuperScales<16, true, false>> {};
template <>
struct RunFormatOf<Q4_K> : RunFormat<4, LinearLevels<0>, SuperScales<32, false, true>> {};
template <>
struct RunFormatOf<Q5_K> : RunFormat<5, LinearLevels<0>, SuperScales<32, false, true>> {};
template <>
struct RunFormatOf<Q6_K> : RunFormat<6, LinearLevels<32>, SuperScales<16, true, false>> {};
template <>
struct RunFormatOf<IQ4_NL> : RunFormat<4, Iq4RunLevels, HalfScales<false>> {};
template <>
struct RunFormatOf<IQ4_XS> : RunFormat<4, Iq4RunLevels, SuperScales<32, true, false>> {};
template <>
struct RunFormatOf<TQ1_0> : RunFormat<2, LinearLevels<1>, WideScales> {};
template <>
struct RunFormatOf<TQ2_0> : RunFormat<2, LinearLevels<1>, WideScales> {};
template <>
struct RunFormatOf<MXFP4> : RunFormat<4, E2M1RunLevels, ExponentScales> {};
template <>
struct RunFormatOf<NVFP4> : RunFormat<4, E2M1RunLevels, SmallFloatScales> {};
// Scalar types, where their codes are integers or few: the levels of fp4 are doubled, which its pack makes up for.
template <>
struct RunFormatOf<std::int8_t> : RunFormat<8, LinearLevels<128>, FloatScales> {};
template <>
struct RunFormatOf<std::uint8_t> : RunFormat<8, LinearLevels<0>, FloatScales> {};
template <>
struct RunFormatOf<Int4> : RunFormat<4, LinearLevels<8>, FloatScales> {};
template <>
struct RunFormatOf<UInt4> : RunFormat<4, LinearLevels<0>, FloatScales> {};
template <>
struct RunFormatOf<Fp4> : RunFormat<4, E2M1RunLevels, FloatScales> {};
template <>
struct RunFormatOf<Int2> : RunFormat<2, LinearLevels<2>, FloatScales> {};
template <>
struct RunFormatOf<UInt2> : RunFormat<2, LinearLevels<0>, FloatScales> {};
template <>
struct RunFormatOf<Ternary> : RunFormat<2, LinearLevels<2>, FloatScales> {};
template <>
struct RunFormatOf<Binary> : RunFormat<1, LinearLevels<1, 2>, FloatScales> {};
