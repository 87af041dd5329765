// The operations of generic/folder.inl.h. The includer provides lanes, kernels/folders.h and quant/int8_scale.h.

namespace {
// In this order: later files build on earlier ones.
// clang-format off
#include "kernels/generic/math.inl.h"
#include "kernels/generic/ops.inl.h"
#include "kernels/generic/attention_cache.inl.h"
#include "kernels/generic/attention.inl.h"
#include "kernels/generic/recurrent.inl.h"
// clang-format on
}  // namespace

#include "kernels/generic/update.inl.h"

void run(const RmsNormArgs& a) noexcept {
  for (std::size_t row = 0; row < a.rows; ++row) rms_norm_row(a, a.x + row * a.cols, a.y + row * a.cols);
}

void run(const LayerNormArgs& a) noexcept {
  for (std::size_t row = 0; row < a.rows; ++row) layer_norm_row(a, a.x + row * a.cols, a.y + row * a.cols);
}

void run(const SoftmaxArgs& a) noexcept {
  for (std::size_t row = 0; row < a.rows; ++row) softmax_row(a.x + row * a.cols, a.cols, a.scale, a.cap);
}

void run(const RopeArgs& a) noexcept {
  const std::size_t half = a.rotary / 2;
  const auto turn = a.pairs == RopePairs::halves ? rope_halves : rope_adjacent;
  for (std::size_t head = 0; head < a.heads; ++head) {
    turn(a.x + head * a.head_values, a.cos_sin, a.cos_sin + half, half);
  }
}

void run(const ActivateArgs& a) noexcept {
  switch (a.function) {
    case Activation::linear: return activate<Activation::linear>(a);
    case Activation::relu: return activate<Activation::relu>(a);
    case Activation::relu2: return activate<Activation::relu2>(a);
    case Activation::leaky_relu: return activate<Activation::leaky_relu>(a);
    case Activation::silu: return activate<Activation::silu>(a);
    case Activation::gelu: return activate<Activation::gelu>(a);
    case Activation::tanh: return activate<Activation::tanh>(a);
    case Activation::sigmoid: return activate<Activation::sigmoid>(a);
    case Activation::gelu_erf: return activate<Activation::gelu_erf>(a);
    case Activation::clamped_swish: return activate<Activation::clamped_swish>(a);
  }
}

void run(const AddScaledArgs& a) noexcept {
  for_each_vector(a.count, [&](std::size_t i, auto part) {
    part.store(fused(part.load(a.x + i), splat(a.factor), part.load(a.y + i)), a.y + i);
  });
}

void run(const ScaleArgs& a) noexcept {
  for_each_vector(a.count,
                  [&](std::size_t i, auto part) { part.store(part.load(a.x + i) * splat(a.factor), a.y + i); });
}

void run(const QuantizeArgs& a) noexcept {
  const std::size_t whole = a.cols / 32;
  for (std::size_t b = 0; b < whole; ++b) quantize_block(a.x + b * 32, a.q + b * 32, a.scales[b], a.sums16 + b * 2);
  if (a.cols % 32 == 0) return;
  float last[32] = {};
  __builtin_memcpy(last, a.x + whole * 32, a.cols % 32 * sizeof(float));
  quantize_block(last, a.q + whole * 32, a.scales[whole], a.sums16 + whole * 2);
}

void run(const AttentionArgs& a) noexcept {
  const std::size_t queries = a.tokens * a.group;
  for (std::size_t first = 0; first < queries; first += kTileQueries) {
    attend(a, first, queries - first < kTileQueries ? queries - first : kTileQueries);
  }
}

void run(const ShortConvArgs& a) noexcept {
  for_each_vector(a.channels, [&](std::size_t c, auto part) { short_conv(a, c, part); });
}

void run(const StepSizeArgs& a) noexcept {
  for (std::size_t row = 0; row < a.rows; ++row) step_size_row(a, row * a.cols);
}

void run(const LinearScanArgs& a) noexcept { a.delta ? linear_scan<true>(a) : linear_scan<false>(a); }

void run(const ChannelScanArgs& a) noexcept {
  for_each_vector(a.channels, [&](std::size_t c, auto part) { channel_scan(a, c, part); });
}
