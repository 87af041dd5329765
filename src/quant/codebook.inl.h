// What the formats with codebooks share (iq1, iq2, iq3): an entry of a codebook gives the magnitudes of eight or four
// weights at once, signs come from bits of their own, or all weights of a group are shifted a little up or down (iq1).
//
// To encode, every entry is tried: with the scale fixed, the cost of an entry is the sum of what its two halves cost,
// and halves are few. So the search costs two loads and an addition per entry, for the weights of all lanes.

/// Magnitudes of iq2; index 3 is not used.
struct Iq2Levels {
  static constexpr bool kIsTable = true;
  static constexpr std::int8_t kTable[16] = {8, 25, 43, 43, -8, -25, -43, -43, 8, 25, 43, 43, -8, -25, -43, -43};
};
struct Iq3XxsLevels {
  static constexpr bool kIsTable = true;
  static constexpr std::int8_t kTable[16] = {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62};
};
struct Iq3SLevels {
  static constexpr bool kIsTable = true;
  static constexpr std::int8_t kTable[16] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
};
/// Eighths: 8 · (-1, 0, 1) + 1, and - 1 from index 4 on; indices 3 and 7 are not used.
struct Iq1Levels {
  static constexpr bool kIsTable = true;
  static constexpr int kHighSpan = 8;  ///< consecutive weights that have the same upper bit in their codes
  static constexpr std::int8_t kTable[16] = {-7, 1, 9, 9, -9, -1, 7, 7, -7, 1, 9, 9, -9, -1, 7, 7};
};

// ---- decoding

inline std::uint32_t load_word(const std::uint8_t* from) noexcept {
  std::uint32_t word;
  __builtin_memcpy(&word, from, 4);
  return word;
}

/// Eight levels: negative where a bit of `signs` is set.
inline void store_signed(std::uint64_t magnitudes, unsigned signs, std::int8_t* out) noexcept {
  constexpr std::uint64_t kOnes = 0x0101010101010101u;
  const std::uint64_t alone = signs * kOnes & 0x8040201008040201u;  // sign i at bit i of byte i
  const std::uint64_t negative = (alone + 0x7F7F7F7F7F7F7F7Fu) >> 7 & kOnes;
  const std::uint64_t levels = (magnitudes ^ negative * 255) + negative;  // no carries: magnitudes are not 0
  __builtin_memcpy(out, &levels, 8);
}

/// Seven signs as eight: the number of negative weights is even.
inline unsigned even_signs(unsigned seven) noexcept {
  return seven | static_cast<unsigned>(__builtin_parity(seven)) << 7;
}

/// Eight levels of iq1.
inline void store_shifted(std::uint64_t entry, bool down, std::int8_t* out) noexcept {
  constexpr std::uint64_t kOnes = 0x0101010101010101u;
  const std::uint64_t levels = (down ? entry - kOnes : entry + kOnes) ^ 0x8080808080808080u;
  __builtin_memcpy(out, &levels, 8);
}

// ---- encoding

/// How a format uses its codebook. Sub-blocks have odd integers 1 … kTopSub as scales.
template <const auto& kCodebook, int kSubBlock, int kLargestSub, int kShared = 0>
struct CodebookUse {
  static constexpr const auto& kBook = kCodebook;
  static constexpr int kWeights = std::remove_cvref_t<decltype(kCodebook)>::kWeights;
  static constexpr int kEntries = std::remove_cvref_t<decltype(kCodebook)>::kEntries;
  static constexpr int kSubValues = kSubBlock, kSubs = 256 / kSubBlock, kTopSub = kLargestSub;
  static constexpr int kSubEntries = kSubBlock / kWeights;
  static constexpr int kShiftValues = kShared;  ///< weights that are shifted together; 0: none are
};

/// Values of a digit, and where trials put the largest weight of a sub-block.
struct Iq1Digits {
  static constexpr int kBase = 3, kTrials = 7;
  static constexpr float kLevels[kBase] = {-8, 0, 8};
  static constexpr float kOffset = 128;  ///< offset of the bytes in the codebook
  static constexpr float trial(int i) noexcept {
    constexpr float kSteps[kTrials] = {12, 14.5f, 10, 17.5f, 8, 21, 26};
    return kSteps[i];
  }
};
struct Iq2Digits {
  static constexpr int kBase = 3, kTrials = 8;
  static constexpr float kLevels[kBase] = {8, 25, 43};
  static constexpr float kOffset = 0;
  static constexpr float trial(int i) noexcept {
    constexpr float kSteps[kTrials] = {43, 49, 38, 56, 33, 63, 28, 22};
    return kSteps[i];
  }
};
struct Iq3XxsDigits {
  static constexpr int kBase = 8, kTrials = 8;
  static constexpr float kLevels[kBase] = {4, 12, 20, 28, 36, 44, 52, 62};
  static constexpr float kOffset = 0;
  static constexpr float trial(int i) noexcept {
    constexpr float kSteps[kTrials] = {62, 58, 66, 54, 70, 50, 75, 45};
    return kSteps[i];
  }
};
struct Iq3SDigits {
  static constexpr int kBase = 8, kTrials = 8;
  static constexpr float kLevels[kBase] = {1, 3, 5, 7, 9, 11, 13, 15};
  static constexpr float kOffset = 0;
  static constexpr float trial(int i) noexcept {
    constexpr float kSteps[kTrials] = {15, 14, 16, 13, 17, 12, 18.5f, 11};
    return kSteps[i];
  }
};

/// Magnitudes of eight weights; returns the bits of the negative ones. With kEven their number is made even: the weight
/// that loses least by it changes its sign, so its magnitude is negative.
template <bool kEven, bool kWeighted>
inline Ints split_signs(const Floats* x, const Floats* w, Floats* magnitudes) noexcept {
  const Ints none = splat_int(0);
  Ints signs = none;
  Ints count = none;
  Ints cheapest = none;
  Floats least = splat(3.4e38f);
  for (int i = 0; i < 8; ++i) {
    const Ints bit = splat_int(1 << i);
    const Mask negative = x[i] < splat(0.0f);
    magnitudes[i] = abs_of(x[i]);
    signs = signs | select(negative, bit, none);
    count = count + select(negative, splat_int(1), none);
    const Floats loss = kWeighted ? w[i] * magnitudes[i] : magnitudes[i];
    const Mask cheaper = loss < least;
    least = select(cheaper, loss, least);
    cheapest = select(cheaper, bit, cheapest);
  }
  if constexpr (!kEven) return signs;
  const Ints flipped = select((count & splat_int(1)) == splat_int(1), cheapest, none);
  for (int i = 0; i < 8; ++i) {
    magnitudes[i] = select(flipped == splat_int(1 << i), splat(0.0f) - magnitudes[i], magnitudes[i]);
  }
  return select((signs & flipped) == flipped, signs - flipped, signs + flipped);
}

struct NearestEntry {
  Ints entry;
  Floats cost;
};

/// The entry of least Σ w (a - level)².
template <class Use, class Digits, bool kWeighted>
inline NearestEntry nearest_entry(const Floats* a, const Floats* w) noexcept {
  constexpr int kHalfWeights = Use::kWeights / 2;
  constexpr int kHalves = Digits::kBase == 3 ? 81 : 64;
  Floats halves[2][kHalves];
  for (int half = 0; half < 2; ++half) {
    Floats* const sums = halves[half];
    sums[0] = splat(0.0f);
    int count = 1;  // sums over the digits so far
    for (int i = half * kHalfWeights; i < (half + 1) * kHalfWeights; ++i) {
      for (int digit = Digits::kBase - 1; digit >= 0; --digit) {
        const Floats e = a[i] - splat(Digits::kLevels[digit]);
        const Floats cost = kWeighted ? w[i] * (e * e) : e * e;
        for (int k = 0; k < count; ++k) sums[digit * count + k] = sums[k] + cost;
      }
      count *= Digits::kBase;
    }
  }
  const Ints one = splat_int(1);
  Ints number = splat_int(0);
  NearestEntry best{number, halves[0][Use::kBook.low[0]] + halves[1][Use::kBook.high[0]]};
  for (int n = 1; n < Use::kEntries; ++n) {
    number = number + one;
    const Floats cost = halves[0][Use::kBook.low[n]] + halves[1][Use::kBook.high[n]];
    const Mask better = cost < best.cost;
    best.cost = select(better, cost, best.cost);
    best.entry = select(better, number, best.entry);
  }
  return best;
}

/// The levels of the entry that each lane has chosen.
template <class Use, class Digits>
inline void levels_of(Ints entry, Floats* levels) noexcept {
  std::int32_t numbers[kLanes];
  __builtin_memcpy(numbers, &entry, sizeof entry);
  float values[Use::kWeights][kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto word = Use::kBook.levels[numbers[lane]];
    for (int i = 0; i < Use::kWeights; ++i) {
      values[i][lane] = static_cast<float>(word >> 8 * i & 0xFF) - Digits::kOffset;
    }
  }
  __builtin_memcpy(levels, values, sizeof values);
}

/// The codes of a sub-block.
template <class Use>
struct SubCodes {
  Ints entries[Use::kSubEntries];
  Ints down[Use::kSubEntries];  // 1: shifted down; only where shifts exist
};

/// The best codes of a sub-block under a scale.
template <class Use, class Digits, bool kWeighted>
inline SubCodes<Use> nearest_codes(const Floats* x, const Floats* w, Floats inverse) noexcept {
  constexpr int kWeights = Use::kWeights;
  SubCodes<Use> codes;
  Floats a[Use::kSubValues];
  // Far beyond all levels; the squares of such distances are finite.
  for (int i = 0; i < Use::kSubValues; ++i) a[i] = clamp(x[i] * inverse, -255.0f, 255.0f);
  if constexpr (Use::kShiftValues == 0) {
    for (int e = 0; e < Use::kSubEntries; ++e) {
      codes.entries[e] = nearest_entry<Use, Digits, kWeighted>(a + e * kWeights, w + e * kWeights).entry;
    }
  } else {
    constexpr int kTogether = Use::kShiftValues / kWeights;
    for (int first = 0; first < Use::kSubEntries; first += kTogether) {
      Floats costs[2] = {splat(0.0f), splat(0.0f)};
      Ints entries[2][kTogether];
      for (int down = 0; down < 2; ++down) {
        for (int e = 0; e < kTogether; ++e) {
          Floats shifted[kWeights];
          const Floats* const from = a + (first + e) * kWeights;
          for (int i = 0; i < kWeights; ++i) shifted[i] = from[i] - splat(down == 0 ? 1.0f : -1.0f);
          const NearestEntry nearest = nearest_entry<Use, Digits, kWeighted>(shifted, w + (first + e) * kWeights);
          costs[down] = costs[down] + nearest.cost;
          entries[down][e] = nearest.entry;
        }
      }
      const Mask down = costs[1] < costs[0];
      for (int e = 0; e < kTogether; ++e) {
        codes.entries[first + e] = select(down, entries[1][e], entries[0][e]);
        codes.down[first + e] = select(down, splat_int(1), splat_int(0));
      }
    }
  }
  return codes;
}

template <class Use, class Digits, bool kWeighted>
inline ScaleFit fit_of(const Floats* x, const Floats* w, const SubCodes<Use>& codes) noexcept {
  ScaleFit fit{splat(0.0f), splat(0.0f)};
  for (int e = 0; e < Use::kSubEntries; ++e) {
    Floats levels[Use::kWeights];
    levels_of<Use, Digits>(codes.entries[e], levels);
    for (int i = 0; i < Use::kWeights; ++i) {
      const int at = e * Use::kWeights + i;
      Floats level = levels[i];
      if constexpr (Use::kShiftValues != 0) level = level + splat(1.0f) - to_floats(codes.down[e] + codes.down[e]);
      const Floats weighted = kWeighted ? w[at] * level : level;
      fit.xl = fit.xl + weighted * x[at];
      fit.ll = fit.ll + weighted * level;
    }
  }
  return fit;
}

/// Σ w (x - s · level)², less Σ w x².
inline Floats error_of(ScaleFit fit, Floats s) noexcept { return s * (s * fit.ll - fit.xl - fit.xl); }

template <class Use>
struct CodebookFit {
  Floats scale;           // as binary16 holds it
  Ints subs[Use::kSubs];  // (odd integer - 1) / 2
  SubCodes<Use> codes[Use::kSubs];
};

/// The best real scale of every sub-block; a common scale that the odd integers under it fit best; for each sub-block
/// the best of the three odd integers around its own; the common scale of least squares; the codes under that.
/// value = 2^kUnitExponent · scale · odd integer · level.
template <class Use, class Digits, int kUnitExponent, bool kWeighted>
inline void fit_codebook(const Floats* x, const Floats* w, CodebookFit<Use>& out) noexcept {
  constexpr int kSubs = Use::kSubs, kSubValues = Use::kSubValues;
  constexpr float kTop = static_cast<float>(Use::kTopSub);
  const Floats unit = splat(1.0f / static_cast<float>(1 << -kUnitExponent));
  const Floats peak = abs_of(extremum(x, 256));
  const Floats inverse_peak = reciprocal(peak);
  Floats relative[256];  // so that squares neither overflow nor vanish
  for (int i = 0; i < 256; ++i) relative[i] = x[i] * inverse_peak;
  const auto of_sub = [&](int j) { return kWeighted ? w + j * kSubValues : w; };

  Floats real[kSubs];
  Floats stiffness[kSubs];  // Σ w level²
  Floats largest = splat(0.0f);
  for (int j = 0; j < kSubs; ++j) {
    const Floats* const part = relative + j * kSubValues;
    const Floats inverse_sub = reciprocal(abs_of(extremum(part, kSubValues)));
    Floats explained = splat(0.0f);
    real[j] = stiffness[j] = splat(0.0f);
    const auto consider = [&](Floats inverse) {
      const ScaleFit fit = fit_of<Use, Digits, kWeighted>(
          part, of_sub(j), nearest_codes<Use, Digits, kWeighted>(part, of_sub(j), inverse));
      const Mask better = both(fit.xl > splat(0.0f), fit.explained() > explained);
      explained = select(better, fit.explained(), explained);
      real[j] = select(better, fit.scale(), real[j]);
      stiffness[j] = select(better, fit.ll, stiffness[j]);
    };
    for (int i = 0; i < Digits::kTrials; ++i) consider(inverse_sub * splat(Digits::trial(i)));
    consider(reciprocal(real[j]));
    largest = max_of(real[j], largest);
  }

  const auto odd_of = [&](Floats value) {
    const Floats half = round_even(clamp((value - splat(1.0f)) * splat(0.5f), 0.0f, (kTop - 1) / 2));
    return half + half + splat(1.0f);
  };
  Floats scale = splat(0.0f);  // relative, but as binary16 holds it
  Floats subs[kSubs];
  Floats least = splat(0.0f);
  for (int inside = 0; inside < 12; ++inside) {
    const Floats top = unit * splat(kTop - 0.5f * static_cast<float>(inside));
    const Floats trial = through_half(largest / top * peak) * inverse_peak;
    const Floats inverse = reciprocal(trial * unit);
    Floats error = splat(0.0f);
    for (int j = 0; j < kSubs; ++j) {
      const Floats e = odd_of(real[j] * inverse) * trial * unit - real[j];
      error = error + stiffness[j] * (e * e);
    }
    const Mask better = error < least;
    least = inside == 0 ? error : select(better, error, least);
    scale = inside == 0 ? trial : select(better, trial, scale);
  }

  const Floats inverse = reciprocal(scale * unit);
  Floats xl = splat(0.0f);
  Floats ll = splat(0.0f);
  for (int j = 0; j < kSubs; ++j) {
    const Floats* const part = relative + j * kSubValues;
    const Floats centre = odd_of(real[j] * inverse);
    Floats lowest = splat(3.4e38f);
    ScaleFit chosen{splat(0.0f), splat(0.0f)};
    subs[j] = centre;
    constexpr float kMoves[] = {0, -2, 2};
    for (const float move : kMoves) {
      const Floats sub = clamp(centre + splat(move), 1.0f, kTop);
      const SubCodes<Use> codes =
          nearest_codes<Use, Digits, kWeighted>(part, of_sub(j), reciprocal(scale * unit * sub));
      const ScaleFit fit = fit_of<Use, Digits, kWeighted>(part, of_sub(j), codes);
      const Floats error = error_of(fit, scale * unit * sub);
      const Mask better = error < lowest;
      lowest = select(better, error, lowest);
      subs[j] = select(better, sub, subs[j]);
      chosen.xl = select(better, fit.xl, chosen.xl);
      chosen.ll = select(better, fit.ll, chosen.ll);
    }
    xl = xl + subs[j] * chosen.xl;
    ll = ll + subs[j] * subs[j] * chosen.ll;
  }
  const ScaleFit all{xl * unit, ll * unit * unit};
  const Floats refitted = through_half(all.scale() * peak) * inverse_peak;
  scale = select(both(refitted > splat(0.0f), error_of(all, refitted) < error_of(all, scale)), refitted, scale);

  out.scale = through_half(scale * peak);
  for (int j = 0; j < kSubs; ++j) {
    out.subs[j] = shift_right(truncate(subs[j]), 1);
    out.codes[j] =
        nearest_codes<Use, Digits, kWeighted>(relative + j * kSubValues, of_sub(j), reciprocal(scale * unit * subs[j]));
  }
}

/// The same for magnitudes under signs, of which `signs` gets the bits, eight to a lane.
template <class Use, class Digits, int kUnitExponent, bool kEven, bool kWeighted>
inline void fit_signed_codebook(const Floats* x, const Floats* w, CodebookFit<Use>& out, Ints* signs) noexcept {
  Floats magnitudes[256];
  for (int i = 0; i < 32; ++i) {
    signs[i] = split_signs<kEven, kWeighted>(x + 8 * i, kWeighted ? w + 8 * i : w, magnitudes + 8 * i);
  }
  fit_codebook<Use, Digits, kUnitExponent, kWeighted>(magnitudes, w, out);
}
