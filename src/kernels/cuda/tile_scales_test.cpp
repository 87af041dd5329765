// How the streaming matvec applies scales, run on the host, against their definition in double.

#include "kernels/cuda/tile_dot.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/cuda/decode.cuh"
#include "testing/gpu_samples.h"

namespace imago::kernels::cuda {
namespace {

std::uint32_t finite_half(std::mt19937& random) { return random() % 0x6000u + 0x1000u; }

/// Scales of two groups, each a number that its format may have.
template <class Scales>
PairBits random_bits(std::mt19937& random) {
  PairBits bits;
  for (std::uint32_t& word : bits.words) word = static_cast<std::uint32_t>(random());
  if constexpr (Scales::kRow) {
    for (float& row : bits.rows) row = static_cast<float>(random() % 1000) / 700.0f;
  } else if constexpr (std::is_same_v<Scales, ScaleFloat>) {
    for (std::uint32_t& word : bits.words) word = bits_of_float(static_cast<float>(random() % 1000) / 700.0f);
  } else if constexpr (!Scales::kSubs && Scales::kBytes >= 2 && Scales::kParts == 1) {  // binary16
    for (std::uint32_t& word : bits.words) word = finite_half(random) | finite_half(random) << 16;
  } else if constexpr (std::is_same_v<Scales, ScaleExponent>) {
    bits.words[0] = (random() % 60 + 90) | (random() % 60 + 90) << 8;
  }
  if constexpr (Scales::kHidesSuper) {
    const auto is_usual = [](float f) { return std::fabs(f) > 1e-3f && std::fabs(f) < 1e3f; };
    SuperScale super{};
    do {
      for (std::uint32_t& word : bits.supers) word = static_cast<std::uint32_t>(random());
      super = Scales::super(bits.supers);
    } while (!is_usual(super.scale) || (Scales::kHasMin && !is_usual(super.min)));
  } else {
    bits.supers[0] = finite_half(random) | finite_half(random) << 16;
  }
  return bits;
}

template <class Form>
void expect_results() {
  using Scales = typename Form::Scales;
  using Scaling = ScaledSums<Form>;
  constexpr int kHalves = Scaling::kHalves;
  const float zero = Scales::kRow && Scaling::kHasZero ? 8.0f : Form::kZeroOfFormat;
  std::mt19937 random(7);
  for (int round = 0; round < 1000; ++round) {
    const PairBits bits = random_bits<Scales>(random);
    std::int32_t dots[2][kHalves];
    std::uint32_t x[2][Scaling::kXWords] = {};
    const double before = static_cast<double>(random() % 100) / 9.0;
    double want = before, magnitude = before;
    for (int u = 0; u < 2; ++u) {
      const float x_scale = static_cast<float>(random() % 1000 + 1) / 9000.0f;
      x[u][0] = bits_of_float(x_scale * Scaling::unit());
      const GroupScale s = Scales::read(bits.group<Scales>(u), bits.supers, bits.rows[u]);
      for (int half = 0; half < kHalves; ++half) {
        const std::int32_t products = static_cast<std::int32_t>(random() % 100001) - 50000;
        const std::int32_t sum = static_cast<std::int32_t>(random() % 4001) - 2000;
        dots[u][half] = products * static_cast<std::int32_t>(Scaling::Dot::factor(half, kHalves));
        if constexpr (Scaling::kHasSum)
          x[u][1 + half] = Scaling::sum_bits(x_scale * static_cast<float>(sum), sum, zero);
        const double parts[] = {static_cast<double>(s.scale[half]) * static_cast<double>(Form::kStep) * products,
                                -static_cast<double>(s.scale[half]) * static_cast<double>(zero) * sum,
                                Scales::kHasMin ? -static_cast<double>(s.min[half]) * sum : 0.0};
        for (const double part : parts) {
          want += static_cast<double>(x_scale) * part;
          magnitude += static_cast<double>(x_scale) * std::fabs(part);
        }
      }
    }
    const float got = Scaling::add(bits, dots, x, static_cast<float>(before));
    ASSERT_NEAR(static_cast<double>(got), want, 1e-6 * magnitude) << "round " << round;
  }
}

TEST(GpuTileScales, ResultsAreThoseOfTheDefinition) {
  int tried = 0;
  for (const Format format : testing::all_formats()) {
    visit_form(format, [&]<class Form>(std::type_identity<Form>) {
      SCOPED_TRACE(format.name());
      if constexpr (Form::kCoded) expect_results<Form>(), ++tried;
    });
  }
  EXPECT_GE(tried, 20);
}

/// All codes, the subnormal ones too. 255 is NaN.
TEST(GpuTileScales, SmallFloatsAreExact) {
  const auto expect_exact = []<class Scales>(std::type_identity<Scales>, std::uint32_t code, std::uint32_t bits) {
    PairBits pair;
    pair.words[0] = bits;
    const PairScales<Scales> quick(pair);
    const GroupScale s = Scales::read(code, nullptr, 1);
    for (int u = 0; u < 2; ++u) {
      for (int part = 0; part < Scales::kParts; ++part) {
        ASSERT_EQ(double{quick.scale[u][part]} * double{PairScales<Scales>::kUnit}, double{s.scale[part]}) << code;
      }
    }
  };
  for (std::uint32_t code = 0; code < 255; ++code) {
    expect_exact(std::type_identity<ScaleExponent>{}, code, code * 0x0101u);
  }
  for (std::uint32_t code = 0; code < 127; ++code) {
    const std::uint32_t both = code | (126 - code) << 8;
    expect_exact(std::type_identity<ScaleSmallFloat>{}, both, both * 0x00010001u);
  }
}

}  // namespace
}  // namespace imago::kernels::cuda
