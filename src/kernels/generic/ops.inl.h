// Norms, softmax, rotary positions, activations and quantization of tokens, over generic/math.inl.h. Compiled inside a
// kernel's namespace, so it includes nothing itself.

// ---- Norms

/// A mean in two parts, so that one far larger than the deviations from it costs them no digits.
struct Mean {
  float high, low;
  explicit Mean(double mean) noexcept
      : high(static_cast<float>(mean)), low(static_cast<float>(mean - static_cast<double>(high))) {}
  Floats subtracted_from(Floats x) const noexcept { return (x - splat(high)) - splat(low); }
};

/// Σ (x - mean)². Squares of numbers beyond 2^63 overflow: then all are taken 2^70 times smaller.
inline double sum_of_squares(const float* x, std::size_t count, Mean mean) noexcept {
  const auto with_factor = [&](float factor) {
    return sum_over(count, [&](std::size_t i, auto part) {
      const Floats t = mean.subtracted_from(part.load(x + i)) * splat(factor);
      return t * t;
    });
  };
  const double sum = with_factor(1.0f);
  return sum <= 3e38 ? sum : with_factor(0x1p-70f) * 0x1p140;
}

/// In two steps: float32 sums of the values give it roughly, those of the deviations from that make it right.
inline Mean mean_of(const float* x, std::size_t count) noexcept {
  const double values = static_cast<double>(count);
  const double rough = sum_over(count, [&](std::size_t i, auto part) { return part.load(x + i); }) / values;
  const Mean base(rough);
  const double rest = sum_over(count, [&](std::size_t i, auto part) { return base.subtracted_from(part.load(x + i)); });
  return Mean(rough + rest / values);
}

inline void rms_norm_row(const RmsNormArgs& a, const float* x, float* y) noexcept {
  const double mean_square = sum_of_squares(x, a.cols, Mean(0)) / static_cast<double>(a.cols);
  const Floats factor = splat(static_cast<float>(1 / __builtin_sqrt(mean_square + static_cast<double>(a.eps))));
  const Floats offset = splat(a.weight_offset);
  for_each_vector(a.cols, [&](std::size_t i, auto part) {
    const Floats normal = part.load(x + i) * factor;
    part.store(a.weight == nullptr ? normal : normal * (part.load(a.weight + i) + offset), y + i);
  });
}

inline void layer_norm_row(const LayerNormArgs& a, const float* x, float* y) noexcept {
  const Mean mean = mean_of(x, a.cols);
  const double variance = sum_of_squares(x, a.cols, mean) / static_cast<double>(a.cols);
  const Floats factor = splat(static_cast<float>(1 / __builtin_sqrt(variance + static_cast<double>(a.eps))));
  for_each_vector(a.cols, [&](std::size_t i, auto part) {
    const Floats normal = mean.subtracted_from(part.load(x + i)) * factor;
    const Floats beta = a.beta == nullptr ? splat(0.0f) : part.load(a.beta + i);
    part.store(fused(normal, part.load(a.gamma + i), beta), y + i);
  });
}

// ---- Softmax

/// The largest is subtracted before the scale is applied: the difference is what counts, and it keeps its digits.
inline void softmax_row(float* x, std::size_t count, float scale, float cap) noexcept {
  if (cap > 0) {
    for_each_vector(count, [&](std::size_t i, auto part) {
      const Floats v = part.load(x + i);
      part.store(select(v == splat(-kInfinity), v, soft_cap(v * splat(scale), cap)), x + i);
    });
    scale = 1;
  }
  const float largest = max_over(count, [&](std::size_t i, auto part) { return part.load(x + i); });
  if (largest == -kInfinity) {
    for_each_vector(count, [&](std::size_t i, auto part) { part.store(splat(0.0f), x + i); });
    return;
  }
  const double sum = sum_over(count, [&](std::size_t i, auto part) {
    const Floats weight = exp_of((part.load(x + i) - splat(largest)) * splat(scale));
    part.store(weight, x + i);
    return weight;
  });
  const Floats factor = splat(static_cast<float>(1 / sum));
  for_each_vector(count, [&](std::size_t i, auto part) { part.store(part.load(x + i) * factor, x + i); });
}

// ---- Rotary positions

inline Floats turned_first(Floats a, Floats b, Floats cos, Floats sin) noexcept {
  return fused(a, cos, splat(0.0f) - b * sin);
}
inline Floats turned_second(Floats a, Floats b, Floats cos, Floats sin) noexcept { return fused(a, sin, b * cos); }

inline void rope_halves(float* x, const float* cos, const float* sin, std::size_t half) noexcept {
  for_each_vector(half, [&](std::size_t i, auto part) {
    const Floats a = part.load(x + i), b = part.load(x + half + i);
    const Floats c = part.load(cos + i), s = part.load(sin + i);
    part.store(turned_first(a, b, c, s), x + i);
    part.store(turned_second(a, b, c, s), x + half + i);
  });
}

inline void rope_adjacent(float* x, const float* cos, const float* sin, std::size_t half) noexcept {
  std::size_t j = 0;
  for (; j + kLanes <= half; j += kLanes) {
    Floats a, b;
    load_pairs(x + 2 * j, a, b);
    const Floats c = load_floats(cos + j), s = load_floats(sin + j);
    store_pairs(turned_first(a, b, c, s), turned_second(a, b, c, s), x + 2 * j);
  }
  for (; j < half; ++j) {
    const float a = x[2 * j], b = x[2 * j + 1];
    x[2 * j] = a * cos[j] - b * sin[j];
    x[2 * j + 1] = a * sin[j] + b * cos[j];
  }
}

// ---- Activations

inline Floats sigmoid_of(Floats x) noexcept { return splat(1.0f) / (splat(1.0f) + exp_of(splat(0.0f) - x)); }

/// 0.5 · x · (1 + tanh u) is x · sigmoid(2u), which loses no digits where tanh u is near -1.
inline Floats gelu_of(Floats x) noexcept {
  constexpr float kTwiceRoot = 1.5957691216f;  // 2 · sqrt(2 / pi)
  const Floats cubic = fused(x * x, splat(0.044715f), splat(1.0f)) * x;
  return x * sigmoid_of(cubic * splat(kTwiceRoot));
}

/// x · the probability of a normal value below x. Its tail, erfc(z) / 2 with z = |x| / √2, is e^(-z²) · t · P(t) / 2
/// with t = 1 / (1 + z / 2); P is a Chebyshev fit whose relative error is below 3e-7 for every z.
inline Floats gelu_erf_of(Floats x) noexcept {
  constexpr float kP[] = {-5.2370410e-2f, 2.5408130e-1f, -4.2936500e-1f, 2.1894042e-1f, 8.5688802e-3f,
                          1.9040604e-1f,  2.4550032e-1f, 2.8214396e-1f,  2.8209449e-1f};
  const Floats t = splat(1.0f) / fused(abs_of(x), splat(0.35355339f), splat(1.0f));
  const Floats tail = exp_of(x * x * splat(-0.5f)) * splat(0.5f) * t * polynomial(kP, t);
  return x * select(x < splat(0.0f), tail, splat(1.0f) - tail);
}

inline Floats clamped_swish_of(Floats x) noexcept {
  const Floats limited = select(splat(kSwishLimit) < x, splat(kSwishLimit), x);
  return limited * sigmoid_of(splat(kSwishSlope) * limited);
}
/// What the other operand of an activation becomes.
template <Activation kFunction>
inline Floats up_of(Floats up) noexcept {
  if constexpr (kFunction != Activation::clamped_swish) return up;
  const Floats limit = splat(kSwishLimit), low = splat(-kSwishLimit);
  return select(limit < up, limit, select(up < low, low, up)) + splat(1.0f);
}

template <Activation kFunction>
inline Floats activation_of(Floats x) noexcept {
  const Mask negative = x < splat(0.0f);
  if constexpr (kFunction == Activation::relu) return select(negative, splat(0.0f), x);
  if constexpr (kFunction == Activation::relu2) return select(negative, splat(0.0f), x * x);
  if constexpr (kFunction == Activation::leaky_relu) return select(negative, splat(0.01f) * x, x);
  if constexpr (kFunction == Activation::silu) return x * sigmoid_of(x);
  if constexpr (kFunction == Activation::gelu) return gelu_of(x);
  if constexpr (kFunction == Activation::tanh) return tanh_of(x);
  if constexpr (kFunction == Activation::sigmoid) return sigmoid_of(x);
  if constexpr (kFunction == Activation::gelu_erf) return gelu_erf_of(x);
  if constexpr (kFunction == Activation::clamped_swish) return clamped_swish_of(x);
  return x;
}

template <Activation kFunction>
inline void activate(const ActivateArgs& a) noexcept {
  for_each_vector(a.count, [&](std::size_t i, auto part) {
    const Floats value = activation_of<kFunction>(part.load(a.x + i));
    part.store(a.up == nullptr ? value : value * up_of<kFunction>(part.load(a.up + i)), a.y + i);
  });
}

// ---- Quantization

/// The best scale but for its refinement; see quant/int8_scale.h. Magnitudes are compared as integers, in the order of
/// which infinities and NaNs stand above all numbers.
inline quant::Int8Scale int8_scale(const float* x) noexcept {
  static_assert(quant::kInt8Scales == 4);
  const Ints magnitude = splat_int(0x7FFFFFFF);
  Ints largest = splat_int(0);
  for (int i = 0; i < 32; i += kLanes) largest = max_of(largest, bits_of(load_floats(x + i)) & magnitude);
  const std::int32_t bits = max_lane(largest);
  float top, scales[4], inverses[4], squares[4];
  __builtin_memcpy(&top, &bits, sizeof top);
  for (int s = 0; s < 4; ++s) scales[s] = top / quant::kInt8Steps[s];
  for (int s = 0; s < 4; ++s) inverses[s] = 1.0f / scales[s];
  if (bits >= 0x7F800000 || inverses[0] == kInfinity) return {0, 0};
  Floats sums[4];
  for (int s = 0; s < 4; ++s) {
    sums[s] = splat(0.0f);
    for (int i = 0; i < 32; i += kLanes) {
      const Floats residual = nearest_64th(rest_of(load_floats(x + i) * splat(inverses[s])));
      sums[s] = fused(residual, residual, sums[s]);
    }
  }
  store_sums4(sums, squares);
  for (int s = 0; s < 4; ++s) squares[s] *= quant::kInt8Squares[s];
  std::int32_t keys[4];  // in the order of the squares: integers are compared without jumps, which none could foresee
  __builtin_memcpy(keys, squares, sizeof keys);
  const int low = keys[1] < keys[0] ? 1 : 0, high = keys[3] < keys[2] ? 3 : 2;
  const int best = keys[high] < keys[low] ? high : low;
  return {scales[best], inverses[best]};
}

/// 32 values; the same bits as imago::quantize_activations.
inline void quantize_block(const float* x, std::int8_t* q, float& scale, float* sums16) noexcept {
  const quant::Int8Scale chosen = int8_scale(x);
  Floats slope = splat(0.0f), power = splat(0.0f);
  Ints sums[2];
  for (int half = 0; half < 2; ++half) {
    sums[half] = splat_int(0);
    for (int i = half * 16; i < half * 16 + 16; i += kLanes) {
      const Floats t = chosen.scale == 0.0f ? splat(0.0f) : load_floats(x + i) * splat(chosen.inverse);
      // Halves away from zero: with the float below 0.5, since 0.5 itself would carry the float below 0.5 up to 1.
      const Ints sign = bits_of(t) & splat_int(-0x7FFFFFFF - 1);
      const Ints code = truncate(t + from_bits(sign | bits_of(splat(0x1.fffffep-2f))));
      store_low8(code, reinterpret_cast<std::byte*>(q + i));
      sums[half] = sums[half] + code;
      const Floats steps = to_floats(code);
      slope = fused(steps, nearest_64th(t - steps), slope);
      power = fused(steps, steps, power);
    }
  }
  const Floats four[4] = {slope, power, to_floats(sums[0]), to_floats(sums[1])};
  float totals[4];
  store_sums4(four, totals);
  scale = chosen.scale;
  if (scale != 0.0f) scale *= 1.0f + totals[0] / totals[1];
  for (int half = 0; half < 2; ++half) sums16[half] = scale * totals[2 + half];
}
