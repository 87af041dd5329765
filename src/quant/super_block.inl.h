// Super-blocks: sub-blocks whose scales are themselves small integers times one binary16 scale for all.
//
// First every sub-block gets its best real scale. The common scale is chosen so that the largest of them takes the end
// of the integer range; then each sub-block picks, by true error, among the integers next to its own; then the common
// scale is fitted to all weights at once and kept if the whole super-block gains.

/// value = scale · sub[j] · level.
template <int kSubs>
struct SymmetricSuper {
  Floats scale;       // as binary16 holds it
  Floats sub[kSubs];  // integers
};

template <class Levels, int kSubs, int kSubValues, bool kWeighted>
inline Floats super_error(const Floats* x, const Floats* w, const SymmetricSuper<kSubs>& s) noexcept {
  Floats sum = splat(0.0f);
  for (int j = 0; j < kSubs; ++j) {
    sum = sum + scale_error<Levels, kWeighted>(x + j * kSubValues, w + j * kSubValues, kSubValues, s.scale * s.sub[j]);
  }
  return sum;
}

/// Least squares for the common scale, codes and sub-scales fixed.
template <class Levels, int kSubs, int kSubValues, bool kWeighted>
inline Floats refit_scale(const Floats* x, const Floats* w, const SymmetricSuper<kSubs>& s) noexcept {
  Floats numerator = splat(0.0f);
  Floats denominator = splat(0.0f);
  for (int j = 0; j < kSubs; ++j) {
    const Floats inverse = reciprocal(s.scale * s.sub[j]);
    const ScaleFit fit = fit_scale<Levels, kWeighted>(x + j * kSubValues, w + j * kSubValues, kSubValues, inverse);
    numerator = numerator + s.sub[j] * fit.xl;
    denominator = denominator + s.sub[j] * s.sub[j] * fit.ll;
  }
  return ratio(numerator, denominator);
}

/// Puts the largest sub-scale on the end of the integer range or a little inside it, whichever common scale survives
/// the rounding to binary16 best, and rounds the others to the integers it gives.
template <class Levels, int kSubs, int kSubValues, int kLow, int kHigh, bool kWeighted>
inline SymmetricSuper<kSubs> choose_common_scale(const Floats* x, const Floats* w, const Floats* real) noexcept {
  const Floats peak = extremum(real, kSubs);
  SymmetricSuper<kSubs> best;
  Floats least = splat(3e38f);
  for (int inside = 0; inside < 4; ++inside) {
    SymmetricSuper<kSubs> s;
    s.scale = through_half(peak * splat(1.0f / static_cast<float>(kLow + inside)));
    const Floats inverse = reciprocal(s.scale);
    for (int j = 0; j < kSubs; ++j) {
      s.sub[j] = round_even(clamp(real[j] * inverse, static_cast<float>(kLow), static_cast<float>(kHigh)));
    }
    const Floats error = super_error<Levels, kSubs, kSubValues, kWeighted>(x, w, s);
    if (inside == 0) {
      best = s;
      least = error;
      continue;
    }
    const Mask better = error < least;
    least = select(better, error, least);
    best.scale = select(better, s.scale, best.scale);
    for (int j = 0; j < kSubs; ++j) best.sub[j] = select(better, s.sub[j], best.sub[j]);
  }
  return best;
}

/// Moves every sub-scale to the neighbour with the least error.
template <class Levels, int kSubs, int kSubValues, int kLow, int kHigh, bool kWeighted>
inline void refine_subs(const Floats* x, const Floats* w, SymmetricSuper<kSubs>& s) noexcept {
  for (int j = 0; j < kSubs; ++j) {
    const Floats centre = s.sub[j];
    Floats least = splat(3e38f);
    for (int step = -1; step <= 1; ++step) {
      const Floats candidate =
          clamp(centre + splat(static_cast<float>(step)), static_cast<float>(kLow), static_cast<float>(kHigh));
      const Floats error =
          scale_error<Levels, kWeighted>(x + j * kSubValues, w + j * kSubValues, kSubValues, s.scale * candidate);
      const Mask better = error < least;
      least = select(better, error, least);
      s.sub[j] = select(better, candidate, s.sub[j]);
    }
  }
}

/// Sub-scales are integers kLow..kHigh.
template <class Levels, int kSubs, int kSubValues, int kLow, int kHigh, bool kWeighted>
inline SymmetricSuper<kSubs> fit_symmetric_super(const Floats* x, const Floats* w) noexcept {
  Floats real[kSubs];
  for (int j = 0; j < kSubs; ++j) {
    real[j] = best_scale<Levels, kWeighted>(x + j * kSubValues, w + j * kSubValues, kSubValues);
  }
  SymmetricSuper<kSubs> s = choose_common_scale<Levels, kSubs, kSubValues, kLow, kHigh, kWeighted>(x, w, real);
  refine_subs<Levels, kSubs, kSubValues, kLow, kHigh, kWeighted>(x, w, s);
  SymmetricSuper<kSubs> refitted = s;
  refitted.scale = through_half(refit_scale<Levels, kSubs, kSubValues, kWeighted>(x, w, s));
  const Mask better = super_error<Levels, kSubs, kSubValues, kWeighted>(x, w, refitted) <
                      super_error<Levels, kSubs, kSubValues, kWeighted>(x, w, s);
  s.scale = select(better, refitted.scale, s.scale);
  return s;
}

/// value = scale · sub[j] · q - min · low[j], q in 0..kTop.
template <int kSubs>
struct AffineSuper {
  Floats scale, min;              // as binary16 holds them
  Floats sub[kSubs], low[kSubs];  // integers >= 0
  Affine at(int j) const noexcept { return {scale * sub[j], min * low[j]}; }
};

/// The codes of all weights, `sub_values` of each sub-block.
template <int kTop, int kSubs>
inline void affine_codes(const Floats* x, const AffineSuper<kSubs>& s, int sub_values, Ints* codes) noexcept {
  for (int j = 0; j < kSubs; ++j) {
    const Affine at = s.at(j);
    const Floats inverse = reciprocal(at.scale);
    for (int i = j * sub_values; i < (j + 1) * sub_values; ++i) {
      codes[i] = truncate(affine_code<kTop>(x[i], at.offset, inverse));
    }
  }
}

template <int kTop, int kSubs, int kSubValues, bool kWeighted>
inline Floats super_error(const Floats* x, const Floats* w, const AffineSuper<kSubs>& s) noexcept {
  Floats sum = splat(0.0f);
  for (int j = 0; j < kSubs; ++j) {
    sum = sum + affine_error<kTop, kWeighted>(x + j * kSubValues, w + j * kSubValues, kSubValues, s.at(j));
  }
  return sum;
}

/// Least squares for both common scales at once, codes and sub-scales fixed: x ≈ scale · a - min · b with a = sub·q, b
/// = low.
template <int kTop, int kSubs, int kSubValues, bool kWeighted>
inline AffineSuper<kSubs> refit(const Floats* x, const Floats* w, const AffineSuper<kSubs>& s) noexcept {
  const Floats zero = splat(0.0f);
  Floats aa = zero, ab = zero, bb = zero, xa = zero, xb = zero;
  for (int j = 0; j < kSubs; ++j) {
    const Affine at = s.at(j);
    const AffineFit f = fit_affine<kTop, kWeighted>(x + j * kSubValues, w + j * kSubValues, kSubValues, at.offset,
                                                    reciprocal(at.scale));
    aa = aa + s.sub[j] * s.sub[j] * f.sqq;
    ab = ab + s.sub[j] * s.low[j] * f.sq;
    bb = bb + s.low[j] * s.low[j] * f.sw;
    xa = xa + s.sub[j] * f.sqy;
    xb = xb + s.low[j] * f.sy;
  }
  const Floats determinant = aa * bb - ab * ab;
  const Mask solvable = determinant > aa * bb * splat(1e-6f);
  AffineSuper<kSubs> refitted = s;
  refitted.scale = through_half(select(solvable, ratio(bb * xa - ab * xb, determinant), ratio(xa + s.min * ab, aa)));
  refitted.min = through_half(select(solvable, ratio(ab * xa - aa * xb, determinant), s.min));
  const Mask usable = both(refitted.scale > zero, refitted.min >= zero);
  refitted.scale = select(usable, refitted.scale, s.scale);
  refitted.min = select(usable, refitted.min, s.min);
  return refitted;
}

/// Moves every sub-scale and sub-offset to the neighbour with the least error.
template <int kTop, int kSubs, int kSubValues, int kMost, bool kWeighted>
inline void refine_subs(const Floats* x, const Floats* w, AffineSuper<kSubs>& s) noexcept {
  constexpr float kMostFloat = static_cast<float>(kMost);
  for (int j = 0; j < kSubs; ++j) {
    const Floats sub = s.sub[j];
    const Floats low = s.low[j];
    Floats least = splat(3e38f);
    for (int step = 0; step < 9; ++step) {
      const int sub_move = step / 3 - 1, low_move = step % 3 - 1;
      const Floats try_sub = clamp(sub + splat(static_cast<float>(sub_move)), 0.0f, kMostFloat);
      const Floats try_low = clamp(low + splat(static_cast<float>(low_move)), 0.0f, kMostFloat);
      const Floats error = affine_error<kTop, kWeighted>(x + j * kSubValues, w + j * kSubValues, kSubValues,
                                                         {s.scale * try_sub, s.min * try_low});
      const Mask better = error < least;
      least = select(better, error, least);
      s.sub[j] = select(better, try_sub, s.sub[j]);
      s.low[j] = select(better, try_low, s.low[j]);
    }
  }
}

/// Sub-scales and sub-offsets are integers 0..kMost.
template <int kTop, int kSubs, int kSubValues, int kMost, bool kWeighted>
inline AffineSuper<kSubs> fit_affine_super(const Floats* x, const Floats* w) noexcept {
  constexpr float kMostFloat = static_cast<float>(kMost);
  Affine real[kSubs];
  Floats largest_scale = splat(0.0f);
  Floats largest_offset = splat(0.0f);
  for (int j = 0; j < kSubs; ++j) {
    real[j] = best_affine<kTop, true, kWeighted>(x + j * kSubValues, w + j * kSubValues, kSubValues);
    largest_scale = max_of(real[j].scale, largest_scale);
    largest_offset = max_of(real[j].offset, largest_offset);
  }
  AffineSuper<kSubs> s;
  s.scale = through_half(largest_scale * splat(1.0f / kMostFloat));
  s.min = through_half(largest_offset * splat(1.0f / kMostFloat));
  const Floats inverse_scale = reciprocal(s.scale);
  const Floats inverse_min = reciprocal(s.min);
  for (int j = 0; j < kSubs; ++j) {
    s.sub[j] = round_even(clamp(real[j].scale * inverse_scale, 0.0f, kMostFloat));
    s.low[j] = round_even(clamp(real[j].offset * inverse_min, 0.0f, kMostFloat));
  }
  for (int round = 0; round < 2; ++round) {  // a third round gains less than one part in a thousand
    refine_subs<kTop, kSubs, kSubValues, kMost, kWeighted>(x, w, s);
    const AffineSuper<kSubs> refitted = refit<kTop, kSubs, kSubValues, kWeighted>(x, w, s);
    const Mask better = super_error<kTop, kSubs, kSubValues, kWeighted>(x, w, refitted) <
                        super_error<kTop, kSubs, kSubValues, kWeighted>(x, w, s);
    s.scale = select(better, refitted.scale, s.scale);
    s.min = select(better, refitted.min, s.min);
  }
  return s;
}
