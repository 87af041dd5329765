// Every row of the optimizer's operations against float64 arithmetic written out here, and against each other bit by
// bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/cpu.h"
#include "kernels/ops.h"
#include "kernels/ops_table.h"
#include "testing/random_values.h"

namespace imago::kernels {

namespace {

using testing::gaussian;

constexpr std::size_t kUpdateCounts[] = {1, 7, 16, 17, 33, 100, 1025};

template <class Args>
std::vector<OpKernel<Args>> rows_that_run() {
  std::vector<OpKernel<Args>> rows;
  std::ranges::copy_if(all_ops<Args>(), std::back_inserter(rows),
                       [](const OpKernel<Args>& row) { return (row.needs & host_cpu_features()) == row.needs; });
  return rows;
}

struct Arrays {
  std::vector<float> weights, gradient, moment1, moment2;

  explicit Arrays(std::size_t count)
      : weights(gaussian(count, 1)), gradient(gaussian(count, 2)), moment1(gaussian(count, 3)), moment2(count) {
    for (std::size_t i = 0; i < count; ++i) moment2[i] = moment1[i] * moment1[i] * 1.5f;
  }

  UpdateArgs args(UpdateKind kind) {
    return {.weights = weights.data(),
            .gradient = gradient.data(),
            .moment1 = moment1.data(),
            .moment2 = moment2.data(),
            .count = weights.size(),
            .kind = kind,
            .rate = 0.1f,
            .keep = 0.99f,
            .momentum = 0.9f,
            .beta2 = 0.999f,
            .blend1 = 0.1f,
            .blend2 = 0.001f,
            .root_correction2 = 0.7f,
            .epsilon = 1e-3f,
            .bound = 0.8f,
            .factor = 0.5f,
            .floor = -1.0f};
  }
};

/// What weight i and its moments become, by the formulas of UpdateArgs.
struct Wanted {
  double weight, moment1, moment2;
};
Wanted wanted(const Arrays& before, const UpdateArgs& a, std::size_t i) {
  const auto wide = [](float value) { return static_cast<double>(value); };
  const double g = std::clamp(wide(before.gradient[i]), -wide(a.bound), wide(a.bound)) * wide(a.factor);
  const double w = wide(before.weights[i]), m1 = wide(before.moment1[i]), m2 = wide(before.moment2[i]);
  Wanted result{w, m1, m2};
  switch (a.kind) {
    case UpdateKind::plain: result.weight = w - wide(a.rate) * g; break;
    case UpdateKind::momentum:
      result.moment1 = wide(a.momentum) * m1 + g;
      result.weight = w - wide(a.rate) * result.moment1;
      break;
    case UpdateKind::adam:
      result.moment1 = m1 * (1 - wide(a.blend1)) + g * wide(a.blend1);
      result.moment2 = m2 * wide(a.beta2) + wide(a.blend2) * g * g;
      result.weight = w * wide(a.keep) - wide(a.rate) * result.moment1 /
                                             (std::sqrt(result.moment2) / wide(a.root_correction2) + wide(a.epsilon));
      break;
  }
  result.weight = std::max(result.weight, wide(a.floor));
  return result;
}

TEST(Update, EveryRowFollowsTheFormulas) {
  for (const UpdateKind kind : {UpdateKind::plain, UpdateKind::momentum, UpdateKind::adam}) {
    for (const std::size_t count : kUpdateCounts) {
      const Arrays before(count);
      Arrays first(count);
      for (const OpKernel<UpdateArgs>& row : rows_that_run<UpdateArgs>()) {
        Arrays after(count);
        const UpdateArgs args = after.args(kind);
        row.run(args);
        for (std::size_t i = 0; i < count; ++i) {
          const Wanted want = wanted(before, args, i);
          ASSERT_NEAR(after.weights[i], want.weight, 1e-6) << row.name << ", " << i << " of " << count;
          ASSERT_NEAR(after.moment1[i], want.moment1, 1e-6) << row.name;
          ASSERT_NEAR(after.moment2[i], want.moment2, 1e-6) << row.name;
        }
        if (row.name == rows_that_run<UpdateArgs>().front().name) first = after;
        EXPECT_EQ(after.weights, first.weights) << row.name << " differs in bits";
        EXPECT_EQ(after.moment1, first.moment1) << row.name << " differs in bits";
        EXPECT_EQ(after.moment2, first.moment2) << row.name << " differs in bits";
      }
    }
  }
}

double squares(const OpKernel<SquaresArgs>& row, const std::vector<float>& x, float bound) {
  double sum = -1;
  row.run({.x = x.data(), .count = x.size(), .bound = bound, .sum = &sum});
  return sum;
}

TEST(Squares, EveryRowAddsUpClippedOnes) {
  for (const std::size_t count : kUpdateCounts) {
    std::vector<float> x = gaussian(count, 4);
    x[count / 2] = 3e38f;  // its square overflows float32
    for (const float bound : {0.5f, std::numeric_limits<float>::infinity()}) {
      double sum = 0;
      for (const float value : x) {
        const double clipped = static_cast<double>(std::clamp(value, -bound, bound));
        sum += clipped * clipped;
      }
      const auto rows = rows_that_run<SquaresArgs>();
      for (const OpKernel<SquaresArgs>& row : rows) {
        EXPECT_NEAR(squares(row, x, bound), sum, 1e-12 * sum) << row.name;
        EXPECT_EQ(squares(row, x, bound), squares(rows.front(), x, bound)) << row.name << " differs in bits";
      }
    }
  }
}

TEST(Squares, WhatIsNotFiniteIsSeenWhereverItStands) {
  for (const OpKernel<SquaresArgs>& row : rows_that_run<SquaresArgs>()) {
    for (const float broken : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN()}) {
      for (std::size_t at = 0; at < 40; ++at) {
        std::vector<float> x(40, 1.0f);
        x[at] = broken;
        EXPECT_FALSE(std::isfinite(squares(row, x, 0.5f))) << row.name << ", " << broken << " at " << at;
        EXPECT_FALSE(std::isfinite(squares(row, x, std::numeric_limits<float>::infinity())))
            << row.name << ", " << broken << " at " << at;
      }
    }
  }
}

TEST(Arrays, CopyAndClearReachEveryValue) {
  for (const std::size_t count : {0u, 1u, 40000u, 100001u}) {
    const std::vector<float> from = gaussian(count, 5);
    std::vector<float> to(count);
    copy(from, to);
    EXPECT_EQ(to, from);
    clear(to);
    EXPECT_EQ(to, std::vector<float>(count));
  }
}

}  // namespace

}  // namespace imago::kernels
