// Models whose tokens have several streams, on the CPU: their start, what mixes them, and their end.

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/pass.h"
#include "base/parallel.h"

namespace imago::backend {

namespace {

double mean_square(std::span<const float> row) {
  double sum = 0;
  for (const float value : row) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum / static_cast<double>(row.size());
}

/// Scales a row to the root mean square of another one. A row of next to nothing stays small.
void resize(std::span<const float> like, std::span<float> row) {
  constexpr double kLeastSquare = 1e-5;
  kernels::scale(row, static_cast<float>(std::sqrt(mean_square(like) / std::max(mean_square(row), kLeastSquare))));
}

}  // namespace

std::span<float> CpuPass::multiply_streams(const WeightKey& first, std::size_t count,
                                           std::span<const std::span<const float>> x) {
  const std::size_t width = sizes_->width, tokens = live_.count;
  const std::span<float> made = sized(work_.results, count * tokens * width);
  for (std::size_t i = 0; i < count; ++i) {
    const Product one{.matrix = first};
    show({&one, 1}, i, x[i], tokens);
    const RowRange rows{0, tokens};
    const kernels::Product product =
        product_of(one, i, made.subspan(i * tokens * width, tokens * width), rows, singles_of(rows));
    kernels::multiply_all({&product, 1}, x[i], tokens);
  }
  return made;
}

void CpuPass::start_streams(const StartStreams& step) {
  const std::size_t width = sizes_->width, others = step.count - 1, tokens = live_.count;
  const std::span<const float> stream = values(Slot::stream);
  const std::vector<std::span<const float>> inputs(others, stream);
  const std::span<float> made = multiply_streams(step.projection, others, inputs);
  const std::span<float> all = values(Slot::streams);
  parallel_for(tokens, kTokensToCopy, [&](std::size_t begin, std::size_t end) {
    for (std::size_t t = begin; t < end; ++t) {
      const std::span<const float> first = stream.subspan(t * width, width);
      const std::span<float> own = all.subspan(t * step.count * width, step.count * width);
      std::ranges::copy(first, own.begin());
      for (std::size_t i = 0; i < others; ++i) {
        const std::span<float> row = own.subspan((i + 1) * width, width);
        std::copy_n(made.data() + (i * tokens + t) * width, width, row.data());
        resize(first, row);
      }
    }
  });
}

template <class Step>
std::span<const float> CpuPass::mixing(const Step& step, std::span<float> gathered) {
  const std::span<const float> stream = values(Slot::stream);
  kernels::rms_norm(stream, vector(step.norm), step.eps, gathered);
  const std::span<float> scores = sized(work_.scores, live_.count * step.count);
  run_router(step.router, std::nullopt, gathered, scores);
  kernels::activate(kernels::Activation::tanh, scores, scores);
  return scores;
}

void CpuPass::run(const PredictStreams& step) {
  const std::size_t width = sizes_->width, count = step.count;
  const std::span<float> stream = values(Slot::stream), all = values(Slot::streams);
  const std::span<const float> m = mixing(step, sized(work_.gathered, stream.size())),
                               table = vector(step.coefficients);
  parallel_for(live_.count, kTokensToCopy, [&](std::size_t begin, std::size_t end) {
    std::vector<float> before(count * width);
    for (std::size_t t = begin; t < end; ++t) {
      const std::span<float> own = all.subspan(t * count * width, count * width);
      std::ranges::copy(own, before.begin());
      for (std::size_t i = 0; i < count; ++i) {
        for (std::size_t j = 0; j < count; ++j) {
          float factor = 0;
          for (std::size_t k = 0; k < count; ++k) factor += table[k * count * count + i * count + j] * m[t * count + k];
          kernels::add_scaled(std::span(before).subspan(j * width, width), factor, own.subspan(i * width, width));
        }
      }
      std::ranges::copy(own.first(width), stream.begin() + static_cast<std::ptrdiff_t>(t * width));
    }
  });
}

void CpuPass::run(const CorrectStreams& step) {
  const std::size_t width = sizes_->width, count = step.count;
  const std::span<float> stream = values(Slot::stream), all = values(Slot::streams);
  const std::span<const float> m = mixing(step, sized(work_.gathered, stream.size())),
                               table = vector(step.coefficients);
  parallel_for(live_.count, kTokensToCopy, [&](std::size_t begin, std::size_t end) {
    for (std::size_t t = begin; t < end; ++t) {
      const std::span<float> own = all.subspan(t * count * width, count * width);
      const std::span<float> news = stream.subspan(t * width, width);
      kernels::add_scaled(own.first(width), -1, news);
      for (std::size_t i = 0; i < count; ++i) {
        float factor = 1;
        for (std::size_t k = 0; k < count; ++k) factor += table[k * count + i] * m[t * count + k];
        kernels::add_scaled(news, factor, own.subspan(i * width, width));
      }
      std::ranges::copy(own.first(width), news.begin());
    }
  });
}

void CpuPass::run(const MergeStreams& step) {
  const std::size_t width = sizes_->width, others = step.count - 1, tokens = live_.count;
  const std::span<float> stream = values(Slot::stream), all = values(Slot::streams);
  const std::span<float> gathered = sized(work_.gathered, others * tokens * width);
  std::vector<std::span<const float>> inputs;
  for (std::size_t i = 0; i < others; ++i) {
    for (std::size_t t = 0; t < tokens; ++t) {
      std::copy_n(all.data() + (t * step.count + i + 1) * width, width, gathered.data() + (i * tokens + t) * width);
    }
    inputs.push_back(gathered.subspan(i * tokens * width, tokens * width));
  }
  const std::span<float> made = multiply_streams(step.matrix, others, inputs);
  parallel_for(tokens, kTokensToCopy, [&](std::size_t begin, std::size_t end) {
    for (std::size_t t = begin; t < end; ++t) {
      const std::span<const float> first = all.subspan(t * step.count * width, width);
      const std::span<float> sum = stream.subspan(t * width, width);
      std::ranges::copy(first, sum.begin());
      for (std::size_t i = 0; i < others; ++i) {
        const std::span<float> row = made.subspan((i * tokens + t) * width, width);
        resize(first, row);
        kernels::add(row, sum);
      }
      kernels::scale(sum, 1 / static_cast<float>(step.count));
    }
  });
}

void CpuPass::run(const SparseGate& step) {
  const std::size_t cols = sizes_->feed_forward;
  const std::span<float> hidden = values(Slot::hidden);
  parallel_for(live_.count, kTokensToCopy, [&](std::size_t begin, std::size_t end) {
    for (std::size_t t = begin; t < end; ++t) {
      const std::span<float> row = hidden.subspan(t * cols, cols);
      double sum = 0, squares = 0;
      for (const float value : row) sum += static_cast<double>(value);
      const double mean = sum / static_cast<double>(cols);
      for (const float value : row)
        squares += (static_cast<double>(value) - mean) * (static_cast<double>(value) - mean);
      const double deviation = std::sqrt(squares / static_cast<double>(cols));
      const auto least = static_cast<float>(mean + static_cast<double>(step.deviations) * deviation);
      for (float& value : row) value = std::max(0.0F, value - least);
    }
  });
  kernels::activate_mul(step.activation, hidden, values(Slot::up), hidden);
}

}  // namespace imago::backend
