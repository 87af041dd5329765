// Scalar types of 8 bits and more with float32 activations: their panels keep the codes as they are, kLanes rows
// side by side, column by column. Scales of groups stand in front of the columns they belong to; a scale per row in
// front of the panel. Zero points of unsigned types follow their scales.

/// The codes of one column as floats, in units of kColumnUnit. fp8 is read as binary16: e5m2 is its upper byte,
/// e4m3 its exponent and mantissa moved into place, 2^8 too small. NaN of e4m3 would come out as a number; pack makes
/// the scale of such a row NaN, which is what any sum with a NaN is.
template <class T>
inline constexpr float kColumnUnit = std::is_same_v<T, Fp8E4M3> ? 256.0f : 1.0f;

template <class T>
inline Floats column_values(const std::byte* codes) noexcept {
  if constexpr (std::is_same_v<T, Fp8E5M2>) {
    return upper_bytes_of_halves(codes);
  } else if constexpr (std::is_same_v<T, Fp8E4M3>) {
    return e4m3_in_halves(codes);
  } else {
    return decode_lanes<T>(codes);
  }
}

template <class T>
struct ColumnPanels {
  static constexpr std::size_t kColumnBytes = sizeof(T) * kLanes;
  static constexpr std::size_t kScaleBytes = (kHasZeroPoints<T> ? 8 : 4) * kLanes;

  static std::size_t panel_bytes(std::size_t cols, std::size_t scale_group) noexcept {
    const std::size_t groups = scale_group == 0 ? 0 : (cols + scale_group - 1) / scale_group;
    return kScaleBytes + groups * kScaleBytes + cols * kColumnBytes;
  }

  static Floats row_scale(const std::byte* panel) noexcept { return from_bits(load_32(panel)); }

  /// A column of codes minus the zero points that follow `scales`.
  struct ZeroPoints {
    Floats values;
    explicit ZeroPoints(const std::byte* scales) noexcept
        : values(kHasZeroPoints<T> ? from_bits(load_32(scales + 4 * kLanes)) : splat(0.0f)) {}
    Floats column(const std::byte* codes) const noexcept {
      if constexpr (kHasZeroPoints<T>) return column_values<T>(codes) - values;
      return column_values<T>(codes);
    }
  };

  /// Calls body(columns, first column, count, scale, zero points) for runs of columns with one scale, from `first` on.
  template <class Body>
  static void each_run(const std::byte* panel, std::size_t scale_group, std::size_t first, std::size_t count,
                       Body body) noexcept {
    const std::byte* at = panel + kScaleBytes;
    if (scale_group == 0) return body(at + first * kColumnBytes, first, count, splat(1.0f), ZeroPoints(panel));
    const std::size_t group_bytes = kScaleBytes + scale_group * kColumnBytes;
    while (count != 0) {
      const std::size_t inside = first % scale_group;
      const std::size_t run = scale_group - inside < count ? scale_group - inside : count;
      const std::byte* group = at + first / scale_group * group_bytes;
      body(group + kScaleBytes + inside * kColumnBytes, first, run, from_bits(load_32(group)), ZeroPoints(group));
      first += run;
      count -= run;
    }
  }

  /// Columns of one panel as floats, scales applied.
  static void decode(const std::byte* panel, std::size_t scale_group, std::size_t first, std::size_t count,
                     float* out) noexcept {
    const Floats rows = row_scale(panel);
    each_run(panel, scale_group, first, count,
             [&](const std::byte* columns, std::size_t begin, std::size_t run, Floats scale, const ZeroPoints& zeros) {
               const Floats factor = scale * rows;
               float* to = out + (begin - first) * kLanes;
               for (std::size_t c = 0; c < run; ++c) {
                 store_floats(zeros.column(columns + c * kColumnBytes) * factor, to + c * kLanes);
               }
             });
  }

  template <int kTokens>
  static void tile(const ProductArgs& a, const std::byte* panel, std::size_t first_row, std::size_t token) noexcept {
    const Ahead ahead = Ahead::of_light(a);
    Floats sums[kTokens];
    for (int t = 0; t < kTokens; ++t) sums[t] = splat(0.0f);
    each_run(
        panel, a.scale_group, 0, a.cols,
        [&](const std::byte* columns, std::size_t first, std::size_t count, Floats scale, const ZeroPoints& zeros) {
          Floats parts[kTokens][kChains];
          for (int t = 0; t < kTokens; ++t) {
            for (int i = 0; i < kChains; ++i) parts[t][i] = splat(0.0f);
          }
          const auto column = [&](std::size_t c, std::size_t chain) {
            const Floats w = zeros.column(columns + c * kColumnBytes);
            for (int t = 0; t < kTokens; ++t) {
              const float x = a.in.x[(token + static_cast<std::size_t>(t)) * a.in.stride + first + c];
              parts[t][chain] = fused(w, splat(x), parts[t][chain]);
            }
          };
          std::size_t c = 0;
          for (; c + kChains <= count; c += kChains) {
            ahead.ask_for(columns + c * kColumnBytes, kChains * kColumnBytes);
            for (std::size_t i = 0; i < kChains; ++i) column(c + i, i);
          }
          for (; c < count; ++c) column(c, 0);
          for (int t = 0; t < kTokens; ++t) {
            const Floats part = (parts[t][0] + parts[t][1]) + (parts[t][2] + parts[t][3]);
            sums[t] = fused(scale, part, sums[t]);
          }
        });
    for (int t = 0; t < kTokens; ++t) {
      store_rows(sums[t] * row_scale(panel), a, first_row, token + static_cast<std::size_t>(t));
    }
  }

  static void matvec(const ProductArgs& a) noexcept {
    const std::size_t bytes = panel_bytes(a.cols, a.scale_group);
    for (std::size_t p = a.first_panel; p < a.last_panel; ++p) tile<1>(a, a.run + p * bytes, p * kLanes, 0);
  }

  static void matmul(const ProductArgs& a) noexcept {
    const std::size_t bytes = panel_bytes(a.cols, a.scale_group);
    if (a.in.batch > kDirectTokens || a.many) {
      float_matmul(a, bytes, [&](const std::byte* panel, std::size_t first, std::size_t count, float* out) {
        decode(panel, a.scale_group, first, count, out);
      });
      return;
    }
    for (std::size_t p = a.first_panel; p < a.last_panel; ++p) {
      each_tile<kDirectTile>(a.in.batch, [&](auto tokens, std::size_t token) {
        tile<decltype(tokens)::value>(a, a.run + p * bytes, p * kLanes, token);
      });
    }
  }

  // ---- int8 activations, turned back into floats: exact products with what they stand for

  static std::size_t fast_scratch_bytes(std::size_t cols, std::size_t batch) noexcept {
    return float_scratch_bytes(cols, batch) + (cols + kTokenGap + 31) / 32 * 32 * batch * sizeof(float);
  }
  static ProductArgs with_floats(const ProductArgs& a, float* x) noexcept {
    for (std::size_t i = 0; i < a.in.batch * a.in.stride; ++i)
      x[i] = static_cast<float>(a.in.q[i]) * a.in.scales[i / 32];
    ProductArgs converted = a;
    converted.in.x = x;
    return converted;
  }
  static void fast_matvec(const ProductArgs& a) noexcept {
    matvec(with_floats(a, reinterpret_cast<float*>(a.scratch)));
  }
  static void fast_matmul(const ProductArgs& a) noexcept {
    const std::size_t batch = a.many && a.in.batch < kManyTokens ? kManyTokens : a.in.batch;
    float* x = reinterpret_cast<float*>(a.scratch + float_scratch_bytes(a.cols, batch));
    matmul(with_floats(a, x));
  }

  static void pack(const PackArgs& args) noexcept {
    const MatrixSource& s = args.source;
    const std::size_t scale_group = args.scale_group;
    const std::size_t bytes = panel_bytes(s.cols, scale_group);
    for (std::size_t p = args.first_panel; p < args.last_panel; ++p) {
      std::byte* panel = args.run + p * bytes;
      __builtin_memset(panel, 0, bytes);  // rows past the end are zeros
      for (std::size_t lane = 0; lane < kLanes && p * kLanes + lane < s.rows; ++lane) {
        pack_row(s, p * kLanes + lane, scale_group, panel, lane);
      }
    }
  }

  static void pack_row(const MatrixSource& s, std::size_t row, std::size_t scale_group, std::byte* panel,
                       std::size_t lane) noexcept {
    const std::byte* codes = s.packed + (s.first + row * s.cols) * sizeof(T);
    float row_scale = (scale_group == 0 ? scale_of(s, row, 0) : 1.0f) * kColumnUnit<T>;
    if constexpr (std::is_same_v<T, Fp8E4M3>) {
      for (std::size_t c = 0; c < s.cols; ++c) {
        if ((codes[c] & std::byte{0x7F}) == std::byte{0x7F}) row_scale = __builtin_nanf("");
      }
    }
    __builtin_memcpy(panel + lane * 4, &row_scale, 4);
    const auto put_zero_point = [&](std::size_t column, std::byte* scales) {
      if constexpr (!kHasZeroPoints<T>) return;
      const float zero_point = zero_point_of(s, row, column);
      __builtin_memcpy(scales + 4 * kLanes + lane * 4, &zero_point, 4);
    };
    if (scale_group == 0) put_zero_point(0, panel);
    std::byte* at = panel + kScaleBytes;
    for (std::size_t c = 0; c < s.cols; ++c) {
      if (scale_group != 0 && c % scale_group == 0) {
        const float scale = scale_of(s, row, c);
        __builtin_memcpy(at + lane * 4, &scale, 4);
        put_zero_point(c, at);
        at += kScaleBytes;
      }
      __builtin_memcpy(at + lane * sizeof(T), codes + c * sizeof(T), sizeof(T));
      at += kColumnBytes;
    }
  }
};
