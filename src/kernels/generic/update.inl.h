// The optimizer's passes over weights and gradients. Plain loops, which compilers turn into vectors of the folder's
// instruction set; nothing in them is contracted or reordered, so that every folder gives the same bits. Compiled
// inside a kernel's namespace, so it includes nothing itself.

namespace update {

inline float slope(const UpdateArgs& a, float g) noexcept {
  const float above = g < -a.bound ? -a.bound : g;
  return (above > a.bound ? a.bound : above) * a.factor;
}

inline float limited(const UpdateArgs& a, float weight) noexcept { return weight < a.floor ? a.floor : weight; }

inline void plain(const UpdateArgs args) noexcept {
  float* __restrict const weights = args.weights;
  const float* __restrict const gradient = args.gradient;
  for (std::size_t i = 0; i < args.count; ++i) {
    weights[i] = limited(args, weights[i] - args.rate * slope(args, gradient[i]));
  }
}

inline void momentum(const UpdateArgs args) noexcept {
  float* __restrict const weights = args.weights;
  const float* __restrict const gradient = args.gradient;
  float* __restrict const moment1 = args.moment1;
  for (std::size_t i = 0; i < args.count; ++i) {
    const float velocity = args.momentum * moment1[i] + slope(args, gradient[i]);
    moment1[i] = velocity;
    weights[i] = limited(args, weights[i] - args.rate * velocity);
  }
}

inline void adam(const UpdateArgs args) noexcept {
  float* __restrict const weights = args.weights;
  const float* __restrict const gradient = args.gradient;
  float* __restrict const moment1 = args.moment1;
  float* __restrict const moment2 = args.moment2;
  for (std::size_t i = 0; i < args.count; ++i) {
    const float g = slope(args, gradient[i]);
    const float mean = moment1[i] + (g - moment1[i]) * args.blend1;
    const float square = moment2[i] * args.beta2 + args.blend2 * g * g;
    moment1[i] = mean;
    moment2[i] = square;
    const float root = __builtin_sqrtf(square) / args.root_correction2 + args.epsilon;
    weights[i] = limited(args, weights[i] * args.keep - args.rate * (mean / root));
  }
}

}  // namespace update

void run(const UpdateArgs& a) noexcept {
  switch (a.kind) {
    case UpdateKind::plain: return update::plain(a);
    case UpdateKind::momentum: return update::momentum(a);
    case UpdateKind::adam: return update::adam(a);
  }
}

void run(const SquaresArgs& args) noexcept {
  constexpr std::size_t kSums = 16;  // side by side: one addition would wait for the other
  double sums[kSums] = {};
  const float* __restrict const x = args.x;
  const float bound = args.bound;
  const auto square = [bound](float value) {
    const float above = value < -bound ? -bound : value;
    const double clipped = static_cast<double>(above > bound ? bound : above);
    // What clipping hides: the difference is NaN for an infinity.
    return clipped * clipped + static_cast<double>(value - value);
  };
  std::size_t i = 0;
  for (; i + kSums <= args.count; i += kSums) {
    for (std::size_t lane = 0; lane < kSums; ++lane) sums[lane] += square(x[i + lane]);
  }
  for (; i < args.count; ++i) sums[i % kSums] += square(x[i]);
  double total = 0;
  for (std::size_t lane = 0; lane < kSums; ++lane) total += sums[lane];
  *args.sum = total;
}
