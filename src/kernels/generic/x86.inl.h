// What lanes of AVX2 and of AVX-512 have in common. Included at the end of their vocabulary.

inline float half_to_float(std::uint16_t code) noexcept { return _cvtsh_ss(code); }

template <int kBytes>
inline void store_lanes(Ints v, std::byte* const* targets, int offset) noexcept {
  alignas(64) std::uint32_t lanes[kLanes];
  store_32(v, reinterpret_cast<std::byte*>(lanes));
  for (int i = 0; i < kLanes; ++i) __builtin_memcpy(targets[i] + offset, &lanes[i], kBytes);
}

// ---- thirty-two codes of one byte each: the counterpart of Bytes in quant/lanes_scalar.h

struct Bytes {
  __m256i v;
};

inline Bytes load_bytes(const std::uint8_t* p) noexcept {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
inline void store_codes(Bytes b, std::int8_t* p) noexcept { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), b.v); }
inline Bytes low_bits(Bytes b, int mask) noexcept {
  return {_mm256_and_si256(b.v, _mm256_set1_epi8(static_cast<char>(mask)))};
}
// There are no shifts of bytes: shift pairs, then clear what came over from the neighbour.
inline Bytes shift_right(Bytes b, int by) noexcept {
  return low_bits({_mm256_srl_epi16(b.v, _mm_cvtsi32_si128(by))}, 255 >> by);
}
inline Bytes shift_left(Bytes b, int by) noexcept {
  return low_bits({_mm256_sll_epi16(b.v, _mm_cvtsi32_si128(by))}, (255 << by) & 255);
}
inline Bytes join(Bytes a, Bytes b) noexcept { return {_mm256_or_si256(a.v, b.v)}; }
inline Bytes plus(Bytes a, Bytes b) noexcept { return {_mm256_add_epi8(a.v, b.v)}; }
inline Bytes minus(Bytes b, int value) noexcept {
  return {_mm256_sub_epi8(b.v, _mm256_set1_epi8(static_cast<char>(value)))};
}
inline Bytes at_least(Bytes b, int value) noexcept {
  const __m256i bound = _mm256_set1_epi8(static_cast<char>(value));
  return low_bits({_mm256_cmpeq_epi8(_mm256_max_epu8(b.v, bound), b.v)}, 1);
}
inline Bytes nibble_pair(const std::uint8_t* p) noexcept {
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return low_bits({_mm256_set_m128i(_mm_srli_epi16(packed, 4), packed)}, 15);
}
inline Bytes bits32(const std::uint8_t* p, int value) noexcept {
  std::int32_t word;
  __builtin_memcpy(&word, p, 4);
  const __m256i copies = _mm256_set1_epi32(word);
  const __m256i byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit_of = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
  const __m256i bit = _mm256_and_si256(_mm256_shuffle_epi8(copies, byte_of), bit_of);
  return low_bits({_mm256_cmpeq_epi8(bit, bit_of)}, value);
}
inline Bytes lookup_levels(const std::int8_t* table, Bytes index) noexcept {
  const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(levels), index.v)};
}
inline Bytes swap_middle_quarters(Bytes b) noexcept { return {_mm256_permute4x64_epi64(b.v, 0xD8)}; }
inline Bytes interleave_halves(Bytes b) noexcept {
  const __m128i first = _mm256_castsi256_si128(b.v);
  const __m128i second = _mm256_extracti128_si256(b.v, 1);
  return {_mm256_set_m128i(_mm_unpackhi_epi8(first, second), _mm_unpacklo_epi8(first, second))};
}
