// Digits of 8 × 8 pixels, drawn with a pen of uncertain hand: each one is turned, sheared, stretched, moved and covered
// with noise. They stand in for scanned digits where those are not at hand.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "imago/train.h"
#include "imago/weights.h"

namespace imago {

namespace {

struct PenPoint {
  double x = 0, y = 0;
};
using PenLine = std::vector<PenPoint>;

/// The lines of a digit in the square from -1 to 1, y downwards.
const std::vector<PenLine>& digit_lines(std::size_t digit) {
  static const std::array<std::vector<PenLine>, 10> kDigits = {{
      {{{0, -1}, {0.45, -0.75}, {0.55, 0}, {0.45, 0.75}, {0, 1}, {-0.45, 0.75}, {-0.55, 0}, {-0.45, -0.75}, {0, -1}}},
      {{{-0.35, -0.6}, {0.1, -1}, {0.1, 1}}},
      {{{-0.5, -0.6}, {-0.1, -1}, {0.4, -0.8}, {0.4, -0.3}, {-0.5, 1}, {0.6, 1}}},
      {{{-0.5, -0.9}, {0.3, -0.95}, {0.45, -0.5}, {-0.1, -0.05}, {0.5, 0.4}, {0.3, 0.95}, {-0.5, 0.9}}},
      {{{0.1, -1}, {-0.6, 0.3}, {0.6, 0.3}}, {{0.3, -0.2}, {0.3, 1}}},
      {{{0.5, -1}, {-0.4, -1}, {-0.45, -0.1}, {0.3, -0.1}, {0.5, 0.4}, {0.3, 0.95}, {-0.5, 0.95}}},
      {{{0.3, -1}, {-0.3, -0.4}, {-0.5, 0.4}, {-0.1, 1}, {0.4, 0.7}, {0.35, 0.2}, {-0.1, 0}, {-0.45, 0.3}}},
      {{{-0.5, -1}, {0.5, -1}, {-0.1, 1}}, {{-0.25, 0.05}, {0.4, 0.05}}},
      {{{0, -0.05}, {0.4, -0.5}, {0, -1}, {-0.4, -0.5}, {0, -0.05}, {0.5, 0.5}, {0, 1}, {-0.5, 0.5}, {0, -0.05}}},
      {{{0.4, -0.4}, {0, 0}, {-0.4, -0.4}, {-0.1, -0.95}, {0.4, -0.7}, {0.4, 0.1}, {0.1, 1}}},
  }};
  return kDigits[digit];
}

double distance_to_segment(PenPoint p, PenPoint a, PenPoint b) {
  const double dx = b.x - a.x, dy = b.y - a.y;
  const double along = std::clamp(((p.x - a.x) * dx + (p.y - a.y) * dy) / (dx * dx + dy * dy), 0.0, 1.0);
  return std::hypot(p.x - a.x - along * dx, p.y - a.y - along * dy);
}

/// One digit into 64 pixels from 0 to 1. `draws` are uniform in [-1, 1]: 7 for the hand, 64 for the noise.
void draw_digit(std::size_t digit, std::span<const float> draws, std::span<float> pixels) {
  const auto draw = [&](std::size_t i) { return static_cast<double>(draws[i]); };
  const double turn = 0.26 * draw(0), shear = 0.25 * draw(1);  // 15 degrees
  const double stretch_x = 2.9 * (1 + 0.15 * draw(2)), stretch_y = 3 * (1 + 0.12 * draw(3));
  const PenPoint centre{3.5 + 0.8 * draw(4), 3.5 + 0.8 * draw(5)};
  const double pen = 0.75 + 0.2 * draw(6);  // half its width, in pixels
  const auto place = [&](PenPoint p) {
    const double x = stretch_x * (p.x + shear * p.y), y = stretch_y * p.y;
    return PenPoint{centre.x + std::cos(turn) * x - std::sin(turn) * y,
                    centre.y + std::sin(turn) * x + std::cos(turn) * y};
  };
  for (std::size_t i = 0; i < 64; ++i) {
    const std::size_t row = i / 8, col = i % 8;
    const PenPoint pixel{static_cast<double>(col), static_cast<double>(row)};
    double nearest = 8;
    for (const PenLine& line : digit_lines(digit)) {
      for (std::size_t j = 1; j < line.size(); ++j) {
        nearest = std::min(nearest, distance_to_segment(pixel, place(line[j - 1]), place(line[j])));
      }
    }
    const double ink = std::clamp(pen + 0.5 - nearest, 0.0, 1.0);
    pixels[i] = static_cast<float>(std::clamp(ink + 0.2 * draw(7 + i), 0.0, 1.0));
  }
}

}  // namespace

Dataset drawn_digits(std::size_t examples, std::uint64_t seed) {
  constexpr std::size_t kDraws = 7 + 64, kInputs = 65;
  WeightStore uniform(examples, kDraws);
  uniform.randomize(seed, 1);
  Dataset data{Tensor<float>({examples, kInputs}), Tensor<float>({examples})};
  for (std::size_t i = 0; i < examples; ++i) {
    const std::span<float> row = data.x.values().subspan(i * kInputs, kInputs);
    draw_digit(i % 10, uniform.master().subspan(i * kDraws, kDraws), row.first(64));
    row[64] = 1;
    data.y[i] = static_cast<float>(i % 10);
  }
  return data;
}

}  // namespace imago
