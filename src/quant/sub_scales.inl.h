// The 12 bytes of q4_k and q5_k that hold eight 6-bit sub-scales s and eight 6-bit sub-minima m:
//   bytes 0..3    s[j] in the low 6 bits, the upper 2 bits of s[j + 4] above them
//   bytes 4..7    m[j] in the low 6 bits, the upper 2 bits of m[j + 4] above them
//   bytes 8..11   the low 4 bits of s[j + 4], then those of m[j + 4]

inline void store_sub_scales(const Floats* sub, const Floats* low, std::byte* const* out, int offset) noexcept {
  Ints bytes[12];
  for (int j = 0; j < 4; ++j) {
    const Ints s = truncate(sub[j]);
    const Ints m = truncate(low[j]);
    const Ints s_upper = truncate(sub[j + 4]);
    const Ints m_upper = truncate(low[j + 4]);
    const Ints mask = splat_int(15);
    bytes[j] = s | shift_left(shift_right(s_upper, 4), 6);
    bytes[j + 4] = m | shift_left(shift_right(m_upper, 4), 6);
    bytes[j + 8] = (s_upper & mask) | shift_left(m_upper & mask, 4);
  }
  store_bytes(bytes, 12, out, offset);
}

inline void expand_sub_scales(const std::uint8_t* bytes, float scale, float min, Expanded& out) noexcept {
  for (int j = 0; j < 4; ++j) {
    const int s_upper = (bytes[j + 8] & 15) | (bytes[j] >> 6 << 4);
    const int m_upper = (bytes[j + 8] >> 4) | (bytes[j + 4] >> 6 << 4);
    out.scales[j] = scale * static_cast<float>(bytes[j] & 63);
    out.offsets[j] = min * static_cast<float>(bytes[j + 4] & 63);
    out.scales[j + 4] = scale * static_cast<float>(s_upper);
    out.offsets[j + 4] = min * static_cast<float>(m_upper);
  }
}
