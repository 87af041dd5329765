#include "train/batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/parallel.h"
#include "imago/error.h"
#include "weights/random.h"

namespace imago {

namespace {

constexpr std::size_t kGrainElements = 32768;  // worth a thread when copied

}  // namespace

std::uint64_t split_seed(std::uint64_t seed) noexcept { return derive_seed(derive_seed(seed, 0), 0); }
std::uint64_t epoch_seed(std::uint64_t seed, std::uint64_t epoch) noexcept {
  return derive_seed(derive_seed(seed, 1), epoch);
}
std::uint64_t step_seed(std::uint64_t seed, std::uint64_t step) noexcept {
  return derive_seed(derive_seed(seed, 2), step);
}

void shuffle(std::span<std::size_t> order, std::uint64_t seed) {
  std::uint64_t index = 0;
  for (std::size_t left = order.size(); left > 1; --left) {
    // Bits that would make the first few remainders more likely than the rest are drawn again.
    const std::uint64_t uneven = (0 - std::uint64_t{left}) % left;
    std::uint64_t bits = derive_seed(seed, index++);
    while (bits < uneven) bits = derive_seed(seed, index++);
    std::swap(order[left - 1], order[static_cast<std::size_t>(bits % left)]);
  }
}

Split split_examples(std::size_t count, double share, std::uint64_t seed) {
  if (!(share >= 0 && share < 1)) {
    throw UsageError(fmt::format("the share of examples for validation must be in [0, 1), not {}", share));
  }
  Split split;
  split.training.resize(count);
  std::iota(split.training.begin(), split.training.end(), std::size_t{0});
  if (share == 0) return split;

  const std::size_t held_back =
      std::max<std::size_t>(1, static_cast<std::size_t>(std::llround(share * static_cast<double>(count))));
  if (held_back >= count) {
    throw UsageError(fmt::format("{} of {} examples for validation leave nothing to train with", held_back, count));
  }
  shuffle(split.training, split_seed(seed));
  split.validation.assign(split.training.end() - static_cast<std::ptrdiff_t>(held_back), split.training.end());
  split.training.resize(count - held_back);
  std::ranges::sort(split.training);
  std::ranges::sort(split.validation);
  return split;
}

void check_dataset(const Dataset& data) {
  const std::size_t targets = data.y.shape().rank() == 0 ? 0 : data.y.shape()[0];
  if (data.size() != targets) {
    throw ShapeError(fmt::format("a dataset with inputs {} and targets {}: the first extents must be equal",
                                 data.x.shape().to_string(), data.y.shape().to_string()));
  }
  if (targets == 0) throw UsageError("a dataset without examples");
}

void gather_examples(const Tensor<float>& from, std::span<const std::size_t> indices, Tensor<float>& to) {
  assert(from.shape().rank() > 0 && from.shape()[0] > 0);
  if (to.shape().rank() != from.shape().rank() || to.shape()[0] != indices.size() ||
      !std::ranges::equal(to.shape().extents().subspan(1), from.shape().extents().subspan(1))) {
    std::vector<std::size_t> extents(from.shape().extents().begin(), from.shape().extents().end());
    extents[0] = indices.size();
    to.resize(Shape(std::move(extents)));
  }
  const std::size_t width = from.size() / from.shape()[0];
  if (width == 0) return;
  const auto copy = [&](std::size_t i) {
    assert(indices[i] < from.shape()[0]);
    std::memcpy(&to[i * width], &from[indices[i] * width], width * sizeof(float));
  };
  parallel_rows(indices.size(), width, copy, kGrainElements);
}

}  // namespace imago
