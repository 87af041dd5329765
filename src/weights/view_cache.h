#pragma once

// What a WeightStore keeps beside its versions: the views that weights/views.h hands out.

#include <compare>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "imago/device.h"
#include "imago/weights.h"
#include "kernels/cuda/matrix.h"
#include "kernels/matrix.h"
#include "weights/once_map.h"
#include "weights/views.h"

namespace imago {

/// Weights in float32, 64-byte aligned, in the memory of one device.
struct DecodedWeights {
  /// All zero.
  DecodedWeights(Device& device, std::size_t count);
  std::size_t bytes() const noexcept { return buffer.size(); }
  /// REQUIRES: host memory.
  std::span<float> values() const noexcept {
    return {reinterpret_cast<float*>(buffer.address()), buffer.size() / sizeof(float)};
  }

  Buffer buffer;
};

/// The views of one store.
class ViewCache {
 public:
  struct Key {
    const Device* device;  ///< null: the host. Values hold their device, so no other one can have its address
    Scheme scheme;
    std::size_t first, rows, cols;  ///< decoded weights: one row
    kernels::Arithmetic arithmetic = kernels::Arithmetic::exact;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  OnceMap<Key, kernels::RunMatrix> host_matrices;
  OnceMap<Key, kernels::cuda::GpuMatrix> device_matrices;
  OnceMap<Key, DecodedWeights> decoded;

  void drop(const Scheme& scheme) {
    drop_if([&](const Key& key) { return key.scheme == scheme; });
  }
  void drop(const Device& device) {
    drop_if([&](const Key& key) { return key.device == &device; });
  }
  /// Drops everything except the views of `scheme` on accelerators.
  void keep_devices(const Scheme& scheme) {
    drop_if([&](const Key& key) { return key.device == nullptr || key.scheme != scheme; });
  }
  void clear() {
    drop_if([](const Key&) { return true; });
  }
  /// Bytes in the memory of `device`; null: of the host.
  std::size_t bytes(const Device* device) const noexcept {
    std::size_t total = 0;
    const auto add = [&](const Key& key, const auto& value) { total += key.device == device ? value->bytes() : 0; };
    host_matrices.for_each(add);
    device_matrices.for_each(add);
    decoded.for_each(add);
    return total;
  }

 private:
  template <class Condition>
  void drop_if(const Condition& condition) {
    host_matrices.drop_if(condition);
    device_matrices.drop_if(condition);
    decoded.drop_if(condition);
  }
};

ViewCache& view_cache(const WeightStore& store) noexcept;

/// The only copy of a store's weights when it is in the memory of an accelerator: the views that layers asked for where
/// those cover the store, else one view of the whole.
struct DeviceSource {
  struct View {  // one of the two pointers is set
    std::size_t first, count;
    std::shared_ptr<const kernels::cuda::GpuMatrix> matrix;
    std::shared_ptr<const DecodedWeights> weights;
  };
  std::shared_ptr<Device> device;
  std::vector<View> views;  ///< in order; they may overlap

  /// Wq of all weights. Throws DeviceError.
  void download(std::span<float> weights) const;
};

/// Makes the views that are missing. Throws like device_matrix.
DeviceSource device_source(const WeightStore& store, const Scheme& scheme, const std::shared_ptr<Device>& device);

}  // namespace imago
