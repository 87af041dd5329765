// Finding scales. Every function works on one block, or sub-block, per lane.
//
// With the codes fixed, the best scale is a linear least-squares problem; with the scale fixed, the best codes are the
// nearest levels. The search tries a spread of scales, keeps the one whose least-squares fit explains most, and then
// alternates the two steps, each of which can only lower the error.

/// Σ w (x - s · nearest level)².
template <class Levels, bool kWeighted>
inline Floats scale_error(const Floats* x, const Floats* w, int count, Floats scale) noexcept {
  const Floats inverse = reciprocal(scale);
  Floats sum = splat(0.0f);
  for (int i = 0; i < count; ++i) {
    const Floats e = x[i] - scale * Levels::nearest(x[i] * inverse);
    sum = sum + (kWeighted ? w[i] * (e * e) : e * e);
  }
  return sum;
}

/// Sums that give the best scale for fixed levels l: Σ w x l and Σ w l².
struct ScaleFit {
  Floats xl, ll;
  /// Squared norm of the part of x that the fit explains; larger is better.
  Floats explained() const noexcept { return ratio(xl * xl, ll); }
  Floats scale() const noexcept { return ratio(xl, ll); }
};

template <class Levels, bool kWeighted>
inline ScaleFit fit_scale(const Floats* x, const Floats* w, int count, Floats inverse) noexcept {
  ScaleFit fit{splat(0.0f), splat(0.0f)};
  for (int i = 0; i < count; ++i) {
    const Floats level = Levels::nearest(x[i] * inverse);
    const Floats weighted = kWeighted ? w[i] * level : level;
    fit.xl = fit.xl + weighted * x[i];
    fit.ll = fit.ll + weighted * level;
  }
  return fit;
}

/// The scale with the least error that the trials of `Levels` and `kRounds` alternating steps find; 0 for zeros.
/// Weights are taken relative to the extremum, so that their squares neither overflow nor vanish.
template <class Levels, bool kWeighted, int kRounds = 2>
inline Floats best_scale(const Floats* x, const Floats* w, int count) noexcept {
  const Floats peak = extremum(x, count);
  const Floats inverse_peak = reciprocal(peak);
  Floats relative[Expanded::kMaxValues];
  for (int i = 0; i < count; ++i) relative[i] = x[i] * inverse_peak;

  Floats best_explained = splat(0.0f);
  Floats best = splat(0.0f);
  const auto consider = [&](Floats inverse) {
    const ScaleFit fit = fit_scale<Levels, kWeighted>(relative, w, count, inverse);
    const Floats explained = fit.explained();
    const Mask better = explained > best_explained;
    best_explained = select(better, explained, best_explained);
    best = select(better, fit.scale(), best);
  };
  for (int i = 0; i < Levels::kTrials; ++i) consider(splat(Levels::trial(i)));
  for (int round = 0; round < kRounds; ++round) consider(reciprocal(best));
  return best * peak;
}

/// value = scale · q - offset, q in 0..kTop.
struct Affine {
  Floats scale, offset;
};

template <int kTop>
inline Floats affine_code(Floats x, Floats offset, Floats inverse) noexcept {
  return round_even(clamp((x + offset) * inverse, 0.0f, static_cast<float>(kTop)));
}

template <int kTop, bool kWeighted>
inline Floats affine_error(const Floats* x, const Floats* w, int count, Affine a) noexcept {
  const Floats inverse = reciprocal(a.scale);
  Floats sum = splat(0.0f);
  for (int i = 0; i < count; ++i) {
    const Floats e = x[i] + a.offset - a.scale * affine_code<kTop>(x[i], a.offset, inverse);
    sum = sum + (kWeighted ? w[i] * (e * e) : e * e);
  }
  return sum;
}

/// Least squares for fixed codes q over y = x - low: sums of w, q, q², y, qy. The shift by the lowest weight keeps the
/// differences below from cancelling when all weights lie far from zero.
struct AffineFit {
  Floats sw, sq, sqq, sy, sqy;
};

template <int kTop, bool kWeighted>
inline AffineFit fit_affine(const Floats* y, const Floats* w, int count, Floats shift, Floats inverse) noexcept {
  AffineFit f{splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  if (!kWeighted) f.sw = splat(static_cast<float>(count));
  for (int i = 0; i < count; ++i) {
    const Floats q = affine_code<kTop>(y[i], shift, inverse);
    const Floats wq = kWeighted ? w[i] * q : q;
    if (kWeighted) f.sw = f.sw + w[i];
    f.sq = f.sq + wq;
    f.sqq = f.sqq + wq * q;
    f.sy = f.sy + (kWeighted ? w[i] * y[i] : y[i]);
    f.sqy = f.sqy + wq * y[i];
  }
  return f;
}

/// The best scale and offset found for one sub-block. With kOffsetNotNegative (the K formats) the offset is >= 0: the
/// grid reaches down to zero or below it.
template <int kTop, bool kOffsetNotNegative, bool kWeighted>
inline Affine best_affine(const Floats* x, const Floats* w, int count) noexcept {
  const Floats zero = splat(0.0f);
  Floats low = x[0];
  Floats high = x[0];
  for (int i = 1; i < count; ++i) {
    low = min_of(x[i], low);
    high = max_of(x[i], high);
  }
  if (kOffsetNotNegative) low = min_of(low, zero);
  // Relative to the range, y runs over 0..1: nothing overflows. Halves first, since high - low itself may be infinite.
  const Floats range = clamp(high * splat(0.5f) - low * splat(0.5f), 0.0f, 1.7e38f) * splat(2.0f);
  const Floats inverse_range = reciprocal(range);
  Floats y[32];
  for (int i = 0; i < count; ++i) y[i] = (x[i] - low) * inverse_range;
  const Floats offset_limit = low * inverse_range;  // the offset -(low + c) stays >= 0 while c <= -low

  Floats least = splat(3e38f);
  Affine best{zero, zero};  // of y: value = scale · q - offset
  const auto consider = [&](Floats shift, Floats inverse) {
    const AffineFit f = fit_affine<kTop, kWeighted>(y, w, count, shift, inverse);
    const Floats determinant = f.sw * f.sqq - f.sq * f.sq;
    const Mask solvable = determinant > f.sw * f.sqq * splat(1e-6f);  // not when all codes are the same
    Floats offset = select(solvable, ratio(f.sq * f.sqy - f.sqq * f.sy, determinant), shift);
    // offset_x = offset_y - low; where that would be negative, offset_x = 0.
    if (kOffsetNotNegative) offset = max_of(offset, offset_limit);
    const Floats scale = ratio(f.sqy + offset * f.sq, f.sqq);  // the best scale for this offset
    const Affine candidate{scale, offset};
    const Floats error = affine_error<kTop, kWeighted>(y, w, count, candidate);
    const Mask better = both(error<least, scale> zero);
    least = select(better, error, least);
    best.scale = select(better, scale, best.scale);
    best.offset = select(better, offset, best.offset);
  };
  // The code of the highest weight: the top one, then a little below and above it.
  constexpr float kSteps[] = {0, -0.8f, -0.6f, -0.4f, -0.2f, 0.2f, 0.4f, 0.6f, 0.8f, 1.0f};
  for (const float step : kSteps) consider(zero, splat(static_cast<float>(kTop) + step));
  for (int round = 0; round < 2; ++round) consider(best.offset, reciprocal(best.scale));
  return {best.scale * range, best.offset * range - low};
}
