// Views of a store in the memory of an accelerator: what views.cpp has for the host.

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/checked.h"
#include "imago/error.h"
#include "quant/scheme.h"
#include "weights/device_forms.h"
#include "weights/device_source.h"
#include "weights/view_cache.h"
#include "weights/views.h"

namespace imago {

namespace {

void check_device(const std::shared_ptr<Device>& device) {
  if (!device || device->is_host()) throw UsageError("weights are in host memory as they are: name an accelerator");
}

MatrixSlice whole(const WeightStore& store) { return {.first = 0, .rows = store.rows(), .cols = store.cols()}; }

std::shared_ptr<const DeviceWeights> make_device_weights(const WeightStore& store, const Scheme& scheme,
                                                         std::size_t first, std::size_t count,
                                                         const std::shared_ptr<Device>& device) {
  auto made = std::make_shared<DeviceWeights>(
      DeviceWeights{device->allocate(checked_mul(count, sizeof(float), "decoded weights"))});
  const MatrixSlice all = whole(store);
  if (first == 0 && count == store.count() && count != 0) {
    const auto form = view_cache(store).device_forms.find({device.get(), scheme, all.first, all.rows, all.cols});
    if (form) {
      dequantize_on_device(*form, made->buffer);
      return made;
    }
    const PackedSlice packed = packed_slice(store, scheme, all);
    if (packed.version) {  // fewer bytes travel packed
      dequantize_on_device(*make_device_form(device, packed.matrix), made->buffer);
    } else {
      device->upload(packed.matrix.packed.first(count * sizeof(float)), made->buffer, 0);
    }
    return made;
  }
  std::vector<float> decoded(count);
  decode_slice(store, scheme, first, decoded);
  device->upload(std::as_bytes(std::span(decoded)), made->buffer, 0);
  return made;
}

}  // namespace

std::shared_ptr<const kernels::cuda::GpuMatrix> device_form(const WeightStore& store, const Scheme& requested,
                                                            const MatrixSlice& slice,
                                                            const std::shared_ptr<Device>& device) {
  check_device(device);
  const Scheme scheme = checked_scheme(requested);
  return view_cache(store).device_forms.get({device.get(), scheme, slice.first, slice.rows, slice.cols}, [&] {
    return make_device_form(device, packed_slice(store, scheme, slice).matrix);
  });
}

std::shared_ptr<const Buffer> device_weights(const WeightStore& store, const Scheme& requested, std::size_t first,
                                             std::size_t count, const std::shared_ptr<Device>& device) {
  check_device(device);
  const Scheme scheme = checked_scheme(requested);
  const auto found = view_cache(store).device_weights.get(
      {device.get(), scheme, first, count}, [&] { return make_device_weights(store, scheme, first, count, device); });
  return {found, &found->buffer};
}

DeviceSource device_source(const WeightStore& store, const Scheme& scheme, const std::shared_ptr<Device>& device) {
  check_device(device);
  DeviceSource source{.device = device, .pieces = {}};
  const auto mine = [&](const auto& key) { return key.device == device.get() && key.scheme == scheme; };
  ViewCache& cache = view_cache(store);
  cache.device_forms.for_each([&](const ViewCache::DeviceFormKey& key, const auto& form) {
    if (mine(key)) source.pieces.push_back({key.first, key.rows * key.cols, form, nullptr});
  });
  cache.device_weights.for_each([&](const ViewCache::DeviceWeightsKey& key, const auto& weights) {
    if (mine(key)) source.pieces.push_back({key.first, key.count, nullptr, weights});
  });
  std::ranges::sort(source.pieces, {}, &DeviceSource::Piece::first);
  std::size_t covered = 0;
  for (const DeviceSource::Piece& piece : source.pieces) {
    if (piece.first > covered) break;
    covered = std::max(covered, piece.first + piece.count);
  }
  if (covered < store.count()) {
    source.pieces.assign(1, {0, store.count(), device_form(store, scheme, whole(store), device), nullptr});
  }
  return source;
}

void DeviceSource::download(std::span<float> weights) const {
  std::size_t done = 0;
  for (const Piece& piece : pieces) {
    if (piece.first + piece.count <= done) continue;
    const std::span<float> out = weights.subspan(piece.first, piece.count);
    if (piece.matrix) {
      download_decoded(*piece.matrix, device, out);
    } else {
      device->download(piece.weights->buffer, 0, std::as_writable_bytes(out));
    }
    done = piece.first + piece.count;
  }
}

}  // namespace imago
