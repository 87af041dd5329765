// Codes of a run form: 32 columns of one panel, kLanes rows, stored as planes of 1, 2, 4 or 8 bits. A *step* is four
// columns, one quad per row; 32 columns are 8 steps.
//
//   8 bits   step k is vector k
//   4 bits   vector k/2; even steps in the low halves of the bytes, odd ones in the high halves
//   2 bits   vector k/4; step k%4 in bits 2(k%4), 2(k%4)+1 of every byte
//   1 bit    one vector; step k in bit k of every byte
//
// Codes of 3, 5 and 6 bits are a plane of 2, 4 and 4 bits and one of 1, 1 and 2 bits above it.

/// body(integral_constant<int, 0>{}) … body(integral_constant<int, kCount - 1>{}). A loop that the compiler leaves
/// rolled keeps its sums in memory, or copies every register in every round; this one cannot stay rolled.
template <int kCount, int kFirst = 0, class Body>
inline void unrolled(Body&& body) noexcept {
  if constexpr (kFirst < kCount) {
    body(std::integral_constant<int, kFirst>{});
    unrolled<kCount, kFirst + 1>(body);
  }
}

inline constexpr int kVectorBytes = 4 * kLanes;
inline constexpr int kSteps = 8;

template <int kPlaneBits>
inline constexpr int kPlaneBytes = kPlaneBits* kVectorBytes;

template <int kPlaneBits>
inline Ints plane_step(const std::byte* plane, int k) noexcept {
  if constexpr (kPlaneBits == 8) {
    return load_quads(plane + k * kVectorBytes);
  } else {
    constexpr int kPerByte = 8 / kPlaneBits;
    constexpr int kMask = static_cast<int>(((1u << kPlaneBits) - 1) * 0x01010101u);
    const Ints packed = load_quads(plane + k / kPerByte * kVectorBytes);
    return shift_right(packed, kPlaneBits * (k % kPerByte)) & splat_int(kMask);
  }
}

/// How codes of kBits bits are cut into planes.
template <int kBits>
struct Planes {
  static_assert(kBits == 1 || kBits == 2 || kBits == 3 || kBits == 4 || kBits == 5 || kBits == 6 || kBits == 8);
  static constexpr int kLow = kBits == 3 ? 2 : kBits == 5 || kBits == 6 ? 4 : kBits;
  static constexpr int kHigh = kBits - kLow;
  static constexpr int kBytes = kBits * kVectorBytes;

  /// Codes of step k, one per byte.
  static Ints step(const std::byte* codes, int k) noexcept {
    const Ints low = plane_step<kLow>(codes, k);
    if constexpr (kHigh == 0) {
      return low;
    } else {
      return low | shift_left(plane_step<kHigh>(codes + kPlaneBytes<kLow>, k), kLow);
    }
  }

  /// The reverse: `quads` holds kSteps vectors of codes.
  static void store(const Ints* quads, std::byte* codes) noexcept {
    store_plane<kLow>(quads, 0, codes);
    if constexpr (kHigh != 0) store_plane<kHigh>(quads, kLow, codes + kPlaneBytes<kLow>);
  }

 private:
  template <int kPlaneBits>
  static void store_plane(const Ints* quads, int from_bit, std::byte* plane) noexcept {
    constexpr int kPerByte = 8 / kPlaneBits;
    constexpr int kMask = static_cast<int>(((1u << kPlaneBits) - 1) * 0x01010101u);
    for (int vector = 0; vector < kPlaneBits; ++vector) {
      Ints packed = splat_int(0);
      for (int i = 0; i < kPerByte; ++i) {
        const Ints field = shift_right(quads[vector * kPerByte + i], from_bit) & splat_int(kMask);
        packed = packed | shift_left(field, kPlaneBits * i);
      }
      store_quads(packed, plane + vector * kVectorBytes);
    }
  }
};
