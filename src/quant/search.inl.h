// Levels are the values that codes stand for, before the scale; then the search for scales.
//
// A set of levels answers two questions about a weight divided by the scale: which level is nearest, and which code is
// that. Panels, planes and decoders ask it for kIsTable and then kZero and kStep (level = kStep · code - kZero) or
// kTable (level = kTable[code]).

/// Integers low..high; the code counts from `low`.
template <int kLow, int kHigh>
struct IntegerLevels {
  static constexpr bool kIsTable = false;
  static constexpr int kZero = -kLow, kStep = 1;

  static Floats nearest(Floats t) noexcept {
    return round_even(clamp(t, static_cast<float>(kLow), static_cast<float>(kHigh)));
  }
  static Ints code(Floats t) noexcept { return truncate(nearest(t)) - splat_int(kLow); }

  // Where the search puts the weight of largest magnitude: on the longer side (low), first exactly on its end, then
  // from inside the range, which leaves steps wide, to beyond it, which clips that weight and serves the others better;
  // then on the other side. When all trials fit alike (constant weights) the first one stands.
  static constexpr int kTrials = 16;
  static constexpr float trial(int i) noexcept {
    constexpr float kSpread = kHigh <= 3 ? 0.25f : 0.35f;
    constexpr float kSteps[kTrials] = {0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5, -1, 0, 1, 2, 3};
    return static_cast<float>(i < 11 ? kLow : kHigh) + (i < 11 ? -kSpread : kSpread) * kSteps[i];
  }
};

/// -1, 0, +1. The best scale of 256 ternary weights is far below their maximum, so the trials reach far out.
struct TernaryLevels {
  static constexpr bool kIsTable = false;
  static constexpr int kZero = 1, kStep = 1;

  static Floats nearest(Floats t) noexcept { return round_even(clamp(t, -1.0f, 1.0f)); }
  static Ints code(Floats t) noexcept { return truncate(nearest(t)) + splat_int(1); }
  static constexpr int kTrials = 16;
  static constexpr float trial(int i) noexcept { return 1.0f + 0.3f * static_cast<float>(i); }
};

/// -1 and +1.
struct BinaryLevels {
  static constexpr bool kIsTable = false;
  static constexpr int kZero = 1, kStep = 2;
};

/// The 16 levels of iq4_nl and iq4_xs.
inline constexpr float kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/// The range -128..127 cut into 16 buckets of 16. None has more than two midpoints between neighbouring levels, so a
/// base and two comparisons find the nearest level.
struct Iq4Buckets {
  std::int32_t base[16] = {};
  float first[16] = {};
  float second[16] = {};

  constexpr Iq4Buckets() noexcept {
    for (int b = 0; b < 16; ++b) {
      const float low = -128.0f + 16.0f * static_cast<float>(b);
      first[b] = second[b] = 1e9f;
      for (int i = 0; i + 1 < 16; ++i) {
        const float midpoint = (kIq4Levels[i] + kIq4Levels[i + 1]) / 2;
        if (midpoint < low) {
          base[b] = i + 1;
        } else if (midpoint < low + 16) {
          (first[b] > 1e8f ? first[b] : second[b]) = midpoint;
        }
      }
    }
  }
};
inline constexpr Iq4Buckets kIq4Buckets{};

struct Iq4Levels {
  static constexpr bool kIsTable = true;
  static constexpr std::int8_t kTable[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

  static Ints code(Floats t) noexcept {
    const Floats limited = clamp(t, -128.0f, 127.0f);
    const Ints bucket = shift_right(truncate(limited + splat(128.0f)), 4);
    const Ints one = splat_int(1);
    const Ints none = splat_int(0);
    return lookup16(kIq4Buckets.base, bucket) + select(limited > lookup16(kIq4Buckets.first, bucket), one, none) +
           select(limited > lookup16(kIq4Buckets.second, bucket), one, none);
  }
  static Floats nearest(Floats t) noexcept { return lookup16(kIq4Levels, code(t)); }

  static constexpr int kTrials = 20;
  static constexpr float trial(int i) noexcept {
    if (i == 0) return -127.0f;
    return i < 12 ? -152.0f + 5.0f * static_cast<float>(i) : 92.0f + 6.0f * static_cast<float>(i - 12);
  }
};

/// E2M1 doubled, so that the levels are integers: 0 1 2 3 4 6 8 12 and their negatives.
struct E2M1Levels {
  static constexpr bool kIsTable = true;
  static constexpr std::int8_t kTable[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  static constexpr float kLevels[16] = {0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12};

  static Ints code(Floats t) noexcept {
    const Floats a = abs_of(t);
    const Ints one = splat_int(1);
    const Ints none = splat_int(0);
    const Ints small = truncate(round_even(min_of(a, splat(4.0f))));
    const Ints large =
        select(a > splat(5.0f), one, none) + select(a > splat(7.0f), one, none) + select(a > splat(10.0f), one, none);
    return small + large + select(t < splat(0.0f), splat_int(8), none);
  }
  static Floats nearest(Floats t) noexcept { return lookup16(kLevels, code(t)); }
};

// ---- finding scales. Every function works on one block, or sub-block, per lane.
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
