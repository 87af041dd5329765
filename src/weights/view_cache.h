#pragma once

#include <compare>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "imago/device.h"
#include "imago/weights.h"
#include "kernels/cuda/matrix.h"
#include "kernels/matrix.h"
#include "weights/once_map.h"
#include "weights/views.h"

namespace imago {

/// Decoded weights, 64-byte aligned.
struct DecodedWeights {
  explicit DecodedWeights(std::size_t count);
  std::span<float> values() noexcept;
  std::span<const float> values() const noexcept;
  std::size_t bytes() const noexcept { return buffer.size(); }

  Buffer buffer;
};

/// Decoded weights in the memory of an accelerator.
struct DeviceWeights {
  Buffer buffer;
  std::size_t bytes() const noexcept { return buffer.size(); }
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
  // Values hold their device, so its address is no other's as long as the entry is there.
  struct DeviceFormKey {
    const Device* device;
    Scheme scheme;
    std::size_t first, rows, cols;
    friend auto operator<=>(const DeviceFormKey&, const DeviceFormKey&) = default;
  };
  struct DeviceWeightsKey {
    const Device* device;
    Scheme scheme;
    std::size_t first, count;
    friend auto operator<=>(const DeviceWeightsKey&, const DeviceWeightsKey&) = default;
  };

  OnceMap<RunFormKey, kernels::RunMatrix> run_forms;
  OnceMap<DecodedKey, DecodedWeights> decoded;
  OnceMap<DeviceFormKey, kernels::cuda::GpuMatrix> device_forms;
  OnceMap<DeviceWeightsKey, DeviceWeights> device_weights;

  void drop(const Scheme& scheme) {
    const auto of_scheme = [&](const auto& key) { return key.scheme == scheme; };
    run_forms.drop_if(of_scheme);
    decoded.drop_if(of_scheme);
    device_forms.drop_if(of_scheme);
    device_weights.drop_if(of_scheme);
  }
  void drop(const Device& device) {
    const auto of_device = [&](const auto& key) { return key.device == &device; };
    device_forms.drop_if(of_device);
    device_weights.drop_if(of_device);
  }
  /// Drops all but what accelerators have of `scheme`.
  void keep_devices(const Scheme& scheme) {
    const auto of_others = [&](const auto& key) { return key.scheme != scheme; };
    run_forms.clear();
    decoded.clear();
    device_forms.drop_if(of_others);
    device_weights.drop_if(of_others);
  }
  void clear() {
    run_forms.clear();
    decoded.clear();
    device_forms.clear();
    device_weights.clear();
  }
  /// In host memory.
  std::size_t bytes() const noexcept { return run_forms.bytes() + decoded.bytes(); }
  std::size_t bytes(const Device& device) const noexcept {
    std::size_t total = 0;
    const auto add = [&](const auto& key, const auto& value) { total += key.device == &device ? value->bytes() : 0; };
    device_forms.for_each(add);
    device_weights.for_each(add);
    return total;
  }
};

ViewCache& view_cache(const WeightStore& store) noexcept;

/// A slice in the form that kernels are made from, with what its bytes belong to.
struct PackedSlice {
  kernels::PackedMatrix matrix;
  std::shared_ptr<const Version> version;  ///< null: the master's bytes, or those of `decoded`
  std::optional<DecodedWeights> decoded;   ///< where no kernel reads the codes
};

/// Makes the version if it is absent. Throws ShapeError if the slice leaves the store or is empty. `scheme` is a
/// checked one.
PackedSlice packed_slice(const WeightStore& store, const Scheme& scheme, const MatrixSlice& slice);

}  // namespace imago
