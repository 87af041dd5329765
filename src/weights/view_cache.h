#pragma once

#include <compare>
#include <cstddef>
#include <span>

#include "imago/device.h"
#include "imago/weights.h"
#include "kernels/matrix.h"
#include "weights/once_map.h"

namespace imago {

/// Decoded weights, 64-byte aligned.
struct DecodedWeights {
  explicit DecodedWeights(std::size_t count);
  std::span<float> values() noexcept;
  std::span<const float> values() const noexcept;
  std::size_t bytes() const noexcept { return buffer.size(); }

  Buffer buffer;
};

/// The views (weights/views.h) of one store.
class ViewCache {
 public:
  struct RunFormKey {
    Scheme scheme;
    std::size_t first, rows, cols;
    kernels::Arithmetic arithmetic;
    friend auto operator<=>(const RunFormKey&, const RunFormKey&) = default;
  };
  struct DecodedKey {
    Scheme scheme;
    std::size_t first, count;
    friend auto operator<=>(const DecodedKey&, const DecodedKey&) = default;
  };

  OnceMap<RunFormKey, kernels::RunMatrix> run_forms;
  OnceMap<DecodedKey, DecodedWeights> decoded;

  void drop(const Scheme& scheme) {
    run_forms.drop_if([&](const RunFormKey& key) { return key.scheme == scheme; });
    decoded.drop_if([&](const DecodedKey& key) { return key.scheme == scheme; });
  }
  void clear() {
    run_forms.clear();
    decoded.clear();
  }
  std::size_t bytes() const noexcept { return run_forms.bytes() + decoded.bytes(); }
};

ViewCache& view_cache(const WeightStore& store) noexcept;

}  // namespace imago
