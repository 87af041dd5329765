// What passes something from token to token: short convolutions and scans. Over generic/math.inl.h; compiled inside a
// kernel's namespace, so it includes nothing itself.

/// The rows that a token sees besides its own stay in registers.
template <class Part>
inline void short_conv(const ShortConvArgs& a, std::size_t c, Part part) noexcept {
  const std::size_t before = a.kernel - 1;
  Floats seen[kMaxTaps], taps[kMaxTaps];
  for (std::size_t k = 0; k < before; ++k) seen[k] = part.load(a.state + k * a.stride + c);
  for (std::size_t k = 0; k < a.kernel; ++k) taps[k] = part.load(a.taps + k * a.stride + c);
  const Floats bias = a.bias == nullptr ? splat(0.0f) : part.load(a.bias + c);
  for (std::size_t t = 0; t < a.tokens; ++t) {
    seen[before] = part.load(a.x + t * a.stride + c);
    Floats sum = bias;
    for (std::size_t k = 0; k < a.kernel; ++k) sum = fused(taps[k], seen[k], sum);
    if (t >= a.first_result) {
      if (a.activation == Activation::silu) sum = activation_of<Activation::silu>(sum);
      part.store(sum, a.y + (t - a.first_result) * a.stride + c);
    }
    for (std::size_t k = 0; k < before; ++k) seen[k] = seen[k + 1];
  }
  for (std::size_t k = 0; k < before; ++k) part.store(seen[k], a.state + k * a.stride + c);
}

/// ln(1 + e^x) = max(x, 0) + 2 · atanh(z / (2 + z)) with z = e^-|x|, whose series needs seven terms up to z = 1.
inline Floats softplus_of(Floats x) noexcept {
  constexpr float kP[] = {2.0f / 15, 2.0f / 13, 2.0f / 11, 2.0f / 9, 2.0f / 7, 2.0f / 5, 2.0f / 3, 2.0f};
  const Floats z = exp_of(splat(0.0f) - abs_of(x));
  const Floats s = z / (z + splat(2.0f));
  return fused(polynomial(kP, s * s), s, max_of(splat(0.0f), x));  // where x is NaN, x is taken
}

inline void step_size_row(const StepSizeArgs& a, std::size_t first) noexcept {
  for_each_vector(a.cols, [&](std::size_t i, auto part) {
    const Floats softplus = softplus_of(part.load(a.x + first + i) + part.load(a.bias + i));
    const Floats step = min_of(splat(a.high), max_of(splat(a.low), softplus));
    if (a.decay != nullptr) part.store(exp_of(step * part.load(a.rate + i)), a.decay + first + i);
    if (a.step != nullptr) part.store(step, a.step + first + i);
  });
}

/// Some columns of the state over all tokens, so that they stay in the first-level cache. One pass over them does it
/// all: what the next token finds under its key is summed while they are there.
template <bool kDelta, int kVectors, class Part>
inline void linear_scan_columns(const LinearScanArgs& a, std::size_t column, Part part) noexcept {
  const auto lane = [](int j) { return static_cast<std::size_t>(j) * kLanes; };
  float* const state = a.state + column;
  Floats found[kVectors];
  for (int j = 0; j < kVectors; ++j) found[j] = splat(0.0f);
  for (std::size_t i = 0; kDelta && i < a.keys; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      found[j] = fused(splat(a.k[i]), part.load(state + i * a.values + lane(j)), found[j]);
    }
  }
  for (std::size_t t = 0; t < a.tokens; ++t) {
    const float* const q = a.q + t * a.stride;
    const float* const k = a.k + t * a.stride;
    const float* const v = a.v + t * a.stride + column;
    const float* const next_k = t + 1 < a.tokens ? k + a.stride : k;
    const Floats decay = splat(a.decay[t * a.scalar_stride]), strength = splat(a.strength[t * a.scalar_stride]);
    Floats delta[kVectors], sum[kVectors], next[kVectors];
    for (int j = 0; j < kVectors; ++j) {
      const Floats value = part.load(v + lane(j));
      delta[j] = strength * (kDelta ? value - decay * found[j] : value);
      sum[j] = splat(a.skip) * value;
      next[j] = splat(0.0f);
    }
    for (std::size_t i = 0; i < a.keys; ++i) {
      for (int j = 0; j < kVectors; ++j) {
        float* const at = state + i * a.values + lane(j);
        const Floats s = fused(splat(k[i]), delta[j], decay * part.load(at));
        part.store(s, at);
        sum[j] = fused(splat(q[i]), s, sum[j]);
        if constexpr (kDelta) next[j] = fused(splat(next_k[i]), s, next[j]);
      }
    }
    for (int j = 0; j < kVectors; ++j) {
      found[j] = next[j];
      if (t >= a.first_result) part.store(sum[j], a.y + (t - a.first_result) * a.y_stride + column + lane(j));
    }
  }
}

/// Two vectors share each load of q and k; more would need more registers than AVX2 has.
template <bool kDelta>
inline void linear_scan(const LinearScanArgs& a) noexcept {
  std::size_t column = 0;
  for (; column + 2 * kLanes <= a.values; column += 2 * kLanes)
    linear_scan_columns<kDelta, 2>(a, column, WholeVector{});
  for_each_vector(a.values - column,
                  [&](std::size_t i, auto part) { linear_scan_columns<kDelta, 1>(a, column + i, part); });
}

template <class Part>
inline void channel_scan(const ChannelScanArgs& a, std::size_t c, Part part) noexcept {
  const Floats skip = part.load(a.skip + c);
  for (std::size_t t = 0; t < a.tokens; ++t) {
    const Floats x = part.load(a.x + t * a.stride + c), step = part.load(a.step + t * a.stride + c);
    const Floats input = step * x;
    const float* const b = a.b + t * a.b_stride;
    const float* const r = a.r + t * a.b_stride;
    Floats sum = skip * x;
    for (std::size_t n = 0; n < a.states; ++n) {
      float* const at = a.state + n * a.stride + c;
      const Floats decay = exp_of(step * part.load(a.rates + n * a.stride + c));
      const Floats h = fused(decay, part.load(at), input * splat(b[n]));
      part.store(h, at);
      sum = fused(h, splat(r[n]), sum);
    }
    if (t >= a.first_result) part.store(sum, a.y + (t - a.first_result) * a.stride + c);
  }
}
