// Sets of values that a code can stand for, before the scale. Each answers two questions about a weight divided by the
// scale: which level is nearest, and which code is that.

/// Integers low..high; the code counts from `low`.
template <int kLow, int kHigh>
struct IntegerLevels {
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
  static Floats nearest(Floats t) noexcept { return round_even(clamp(t, -1.0f, 1.0f)); }
  static Ints code(Floats t) noexcept { return truncate(nearest(t)) + splat_int(1); }
  static constexpr int kTrials = 16;
  static constexpr float trial(int i) noexcept { return 1.0f + 0.3f * static_cast<float>(i); }
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
  static constexpr std::int8_t kCodes[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

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
  static constexpr std::int8_t kCodes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
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
