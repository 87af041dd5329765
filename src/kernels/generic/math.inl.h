// Exponential, hyperbolic tangent and loops over vectors, over the lanes of the surrounding namespace. Compiled inside
// a kernel's namespace, so it includes nothing itself.

inline constexpr float kInfinity = __builtin_inff();

/// coefficients[0] · t^(n-1) + … + coefficients[n-1].
template <int kCount>
inline Floats polynomial(const float (&coefficients)[kCount], Floats t) noexcept {
  Floats value = splat(coefficients[0]);
  for (int i = 1; i < kCount; ++i) value = fused(value, t, splat(coefficients[i]));
  return value;
}

/// 2^n for n in -126 … 127.
inline Floats power_of_2(Ints n) noexcept { return from_bits(shift_left(n + splat_int(127), 23)); }

/// e^x within 2e-7 of its value; subnormal, 0 and infinite where that is the answer; NaN stays NaN.
/// e^x = 2^n · e^r with n the integer nearest to x / ln 2 and |r| <= ln 2 / 2, where e^r is 1 + r + r² · P(r) with the
/// polynomial of Cephes' expf.
inline Floats exp_of(Floats x) noexcept {
  constexpr float kP[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                          4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  // Past these ends the result is 0 or infinite anyway. The limit stands first: where x is NaN, x is taken.
  const Floats t = min_of(splat(90.0f), max_of(splat(-105.0f), x));
  const Floats magic = splat(0x1.8p23f);  // leaves no bits for the fraction
  const Floats n = fused(t, splat(1.44269504f), magic) - magic;
  // ln 2 in two parts, the first of so few bits that n times it is exact.
  const Floats r = fused(n, splat(2.12194440e-4f), fused(n, splat(-0.693359375f), t));
  const Floats value = fused(r * r, polynomial(kP, r), r + splat(1.0f));
  // 2^n in two factors: n reaches from -151 to 130, beyond both ends of a float's exponent.
  const Ints whole = truncate(n);
  const Ints half = truncate(n * splat(0.5f));
  return value * power_of_2(half) * power_of_2(whole - half);
}

/// Near zero an odd polynomial (Cephes' tanhf), since 1 - 2 / (e^2x + 1) would cancel there.
inline Floats tanh_of(Floats x) noexcept {
  constexpr float kP[] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f,
                          -3.33332819422e-1f};
  const Floats size = abs_of(x);
  const Floats square = x * x;
  const Floats near = fused(polynomial(kP, square) * square, x, x);
  const Floats far = splat(1.0f) - splat(2.0f) / (exp_of(size + size) + splat(1.0f));
  const Ints sign = bits_of(x) & splat_int(-0x7FFFFFFF - 1);
  return select(size < splat(0.625f), near, from_bits(bits_of(far) | sign));
}

/// cap · tanh(x / cap).
inline Floats soft_cap(Floats x, float cap) noexcept { return splat(cap) * tanh_of(x / splat(cap)); }

/// Moves all lanes of a vector, or the first of the last one.
struct WholeVector {
  Floats load(const float* from) const noexcept { return load_floats(from); }
  void store(Floats v, float* to) const noexcept { store_floats(v, to); }
  Floats pad(Floats v, float) const noexcept { return v; }
};
struct PartVector {
  std::size_t count;
  Floats load(const float* from) const noexcept { return load_first(from, count); }
  void store(Floats v, float* to) const noexcept { store_first(v, to, count); }
  Floats pad(Floats v, float fill) const noexcept { return pad_first(v, count, fill); }  // lanes past the end
};

/// body(i, part) for each vector of [0, count), where i is its first index.
template <class Body>
inline void for_each_vector(std::size_t count, Body&& body) noexcept {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(i, WholeVector{});
  if (i < count) body(i, PartVector{count - i});
}

/// Σ term(i, part). Lanes add up 1024 values in float32, then their total goes on in float64: the error stays that of
/// 64 or 128 additions however long the row.
template <class Term>
inline double sum_over(std::size_t count, Term&& term) noexcept {
  constexpr std::size_t kChunk = 1024;
  double total = 0;
  for (std::size_t begin = 0; begin < count; begin += kChunk) {
    Floats sum = splat(0.0f);
    for_each_vector(count - begin < kChunk ? count - begin : kChunk,
                    [&](std::size_t i, auto part) { sum = sum + part.pad(term(begin + i, part), 0.0f); });
    total += static_cast<double>(sum_lanes(sum));
  }
  return total;
}

/// The largest of term(i, part), -inf if there is none.
template <class Term>
inline float max_over(std::size_t count, Term&& term) noexcept {
  Floats largest = splat(-kInfinity);
  for_each_vector(count,
                  [&](std::size_t i, auto part) { largest = max_of(largest, part.pad(term(i, part), -kInfinity)); });
  return max_lane(largest);
}
