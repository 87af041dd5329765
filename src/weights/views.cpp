#include "weights/views.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/checked.h"
#include "base/line_vector.h"
#include "imago/codec.h"
#include "imago/error.h"
#include "quant/packed_array.h"
#include "quant/scheme.h"
#include "weights/view_cache.h"

namespace imago {

namespace {

/// Weights of every dtype that together fill whole bytes.
constexpr std::size_t kWholeBytes = 8;

void check_slice(const WeightStore& store, std::size_t first, std::size_t count) {
  if (first > store.count() || count > store.count() - first) {
    throw ShapeError(
        fmt::format("weights {} to {} of a store of {}", first, checked_add(first, count, "a slice"), store.count()));
  }
}

/// Whether kernels can read the slice from its codes; the rules are those of kernels::PackedMatrix.
bool is_packable(const Version& version, const MatrixSlice& slice) {
  const Format format = version.scheme().format;
  const std::size_t block = static_cast<std::size_t>(format.block_values()), count = slice.rows * slice.cols;
  const ArrayPart part = part_at(format, version.shape(), slice.first, count);
  if (part.is_vector || part.count != count || slice.cols % block != 0 || part.place % block != 0) return false;
  if (!format.has_scales()) return true;
  const std::size_t group = version.scale_group();
  if (slice.first + count <= group) return true;
  if (group % slice.cols == 0 && slice.first % slice.cols == 0) return true;
  return version.scheme().granularity == Granularity::group && slice.cols % group == 0 && slice.first % group == 0;
}

/// Scales from number `first` on, `count` of them.
Scales some_scales(const Scales& scales, std::size_t first, std::size_t count, std::size_t group) {
  return {scales.values.subspan(first, count), group,
          scales.zero_points.empty() ? scales.zero_points : scales.zero_points.subspan(first, count)};
}

/// `scales` is counted from `first` on.
void decode_codes(const Version& version, std::size_t first, Scales scales, std::span<float> out) {
  const Format format = version.scheme().format;
  const auto unit = static_cast<std::size_t>(format.unit_values()),
             block = static_cast<std::size_t>(format.block_values());
  const std::size_t begin = first / unit * unit;
  const std::size_t count = (first - begin + out.size() + block - 1) / block * block;
  const auto codes = version.codes().subspan(packed_bytes(format, begin), packed_bytes(format, count));
  if (count == out.size()) {
    decode(format, codes, scales, out);
    return;
  }
  thread_local std::vector<float> memory;  // also for weights that share a byte or a block with those asked for
  const std::span<float> whole = sized(memory, count);
  decode(format, codes, scales, whole);
  std::ranges::copy(whole.subspan(first - begin, out.size()), out.begin());
}

/// Weights that lie in one piece, `place` among those of the matrices.
void decode_piece(const Version& version, std::size_t place, std::span<float> out) {
  if (!version.scheme().format.has_scales()) return decode_codes(version, place, {}, out);
  const std::size_t group = version.scale_group();
  const Scales scales = version.scaling();
  if (place % group == 0 && place % kWholeBytes == 0) {
    const std::size_t begin = place / group;
    return decode_codes(version, place, some_scales(scales, begin, scales.values.size() - begin, group), out);
  }
  // One scale at a time. Weights decoded before `place` only because they share its byte are discarded, so their scale
  // does not matter.
  while (!out.empty()) {
    const std::size_t count = std::min(out.size(), group - place % group);
    decode_codes(version, place, some_scales(scales, place / group, 1, count + kWholeBytes), out.first(count));
    place += count;
    out = out.subspan(count);
  }
}

void decode_version(const Version& version, std::size_t first, std::span<float> out) {
  const Format format = version.scheme().format;
  while (!out.empty()) {
    const ArrayPart part = part_at(format, version.shape(), first, out.size());
    const std::span<float> values = out.first(part.count);
    if (part.is_vector) {
      const auto vectors = version.codes().subspan(block_bytes(format, version.shape()));
      std::memcpy(values.data(), vectors.data() + part.place * sizeof(float), values.size_bytes());
    } else {
      decode_piece(version, part.place, values);
    }
    first += part.count;
    out = out.subspan(part.count);
  }
}

/// A slice as kernels take it, with the owner of its bytes.
struct PackedSlice {
  kernels::PackedMatrix matrix;
  std::shared_ptr<const Version> version;  ///< null: the bytes belong to the master or to `decoded`
  std::optional<DecodedWeights> decoded;   ///< set where no kernel can read the codes
};

/// Makes the version if it is absent. Throws ShapeError if the slice leaves the store or is empty.
/// REQUIRES: a checked scheme.
PackedSlice packed_slice(const WeightStore& store, const Scheme& scheme, const MatrixSlice& slice) {
  check_slice(store, slice.first, checked_mul(slice.rows, slice.cols, "a slice"));
  if (slice.rows == 0 || slice.cols == 0) {
    throw ShapeError(fmt::format("a slice of {} × {} has no products", slice.rows, slice.cols));
  }
  PackedSlice made{
      .matrix = {.rows = slice.rows, .cols = slice.cols, .packed = {}}, .version = store.morph(scheme), .decoded = {}};
  if (made.version == nullptr) {
    made.matrix.packed = std::as_bytes(store.master());
    made.matrix.first = slice.first;
  } else if (is_packable(*made.version, slice)) {
    made.matrix.format = scheme.format;
    made.matrix.packed = made.version->codes();
    made.matrix.scales = made.version->scaling();
    made.matrix.first = part_at(scheme.format, store.shape(), slice.first, 1).place;
  } else {
    made.decoded.emplace(*host_device(), slice.rows * slice.cols);
    decode_version(*made.version, slice.first, made.decoded->values());
    made.matrix.packed = made.decoded->buffer.host();
    made.version.reset();
  }
  return made;
}

void check_device(const std::shared_ptr<Device>& device) {
  if (!device || device->is_host()) throw UsageError("the weights are in host memory already: name an accelerator");
}

MatrixSlice whole(const WeightStore& store) { return {.first = 0, .rows = store.rows(), .cols = store.cols()}; }

std::shared_ptr<const DecodedWeights> make_device_weights(const WeightStore& store, const Scheme& scheme,
                                                          std::size_t first, std::size_t count,
                                                          const std::shared_ptr<Device>& device) {
  auto made = std::make_shared<DecodedWeights>(*device, count);
  const MatrixSlice all = whole(store);
  if (first == 0 && count == store.count() && count != 0) {
    const auto matrix = view_cache(store).device_matrices.find({device.get(), scheme, all.first, all.rows, all.cols});
    if (matrix) {
      matrix->decode_into(made->buffer);
      return made;
    }
    const PackedSlice packed = packed_slice(store, scheme, all);
    if (packed.version) {  // fewer bytes travel packed
      kernels::cuda::GpuMatrix(device, packed.matrix).decode_into(made->buffer);
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

DecodedWeights::DecodedWeights(Device& device, std::size_t count)
    : buffer(device.allocate(checked_mul(count, sizeof(float), "decoded weights"))) {}

std::shared_ptr<const kernels::RunMatrix> host_matrix(const WeightStore& store, const Scheme& requested,
                                                      const MatrixSlice& slice, kernels::Arithmetic arithmetic) {
  const Scheme scheme = checked_scheme(requested);
  const bool asks = arithmetic == kernels::Arithmetic::fast;
  if (asks && kernels::choose_matrix_kernel(scheme.format, arithmetic, allowed_cpu_features()) == nullptr) {
    arithmetic = kernels::Arithmetic::exact;
  }
  return view_cache(store).host_matrices.get({nullptr, scheme, slice.first, slice.rows, slice.cols, arithmetic}, [&] {
    const PackedSlice packed = packed_slice(store, scheme, slice);
    // Decoded weights have no kernel with fast arithmetic.
    return std::make_shared<const kernels::RunMatrix>(packed.matrix,
                                                      packed.decoded ? kernels::Arithmetic::exact : arithmetic);
  });
}

std::span<const float> decoded_weights(const WeightStore& store, const Scheme& scheme) {
  return decoded_slice(store, scheme, 0, store.count());
}

std::span<const float> decoded_slice(const WeightStore& store, const Scheme& requested, std::size_t first,
                                     std::size_t count) {
  const Scheme scheme = checked_scheme(requested);
  check_slice(store, first, count);
  if (is_master(scheme)) return store.master().subspan(first, count);
  const auto decoded = view_cache(store).decoded.get({nullptr, scheme, first, 1, count}, [&] {
    auto values = std::make_shared<DecodedWeights>(*host_device(), count);
    decode_version(*store.morph(scheme), first, values->values());
    return values;
  });
  return decoded->values();
}

void decode_slice(const WeightStore& store, const Scheme& requested, std::size_t first, std::span<float> out) {
  const Scheme scheme = checked_scheme(requested);
  check_slice(store, first, out.size());
  if (is_master(scheme)) {
    std::ranges::copy(store.master().subspan(first, out.size()), out.begin());
  } else {
    decode_version(*store.morph(scheme), first, out);
  }
}

LayerViews layer_views(const WeightShape& shape) {
  LayerViews views;
  if (shape.count() == 0) return views;
  if (shape.decoded || shape.matrix_count() == 0) {
    views.decoded.push_back({0, shape.count()});
    return views;
  }
  if (shape.is_one_matrix()) {
    views.matrices.push_back({.first = 0, .rows = shape.rows, .cols = shape.cols});
    return views;
  }
  std::size_t first = 0;
  for (std::size_t repeat = 0; repeat < shape.repeats; ++repeat) {
    for (const auto& [rows, cols] : shape.matrices) {
      if (rows != 0) views.matrices.push_back({first, rows, cols});
      first += rows * cols;
    }
    std::size_t left = shape.vectors;
    for (const MatrixExtents& matrix : shape.matrices) {
      const std::size_t count = std::min(left, matrix.rows);
      if (count != 0) views.decoded.push_back({first, count});
      first += count;
      left -= count;
    }
    if (left != 0) views.decoded.push_back({first, left});
    first += left;
  }
  return views;
}

// ---- accelerators

std::shared_ptr<const kernels::cuda::GpuMatrix> device_matrix(const WeightStore& store, const Scheme& requested,
                                                              const MatrixSlice& slice,
                                                              const std::shared_ptr<Device>& device) {
  check_device(device);
  const Scheme scheme = checked_scheme(requested);
  return view_cache(store).device_matrices.get({device.get(), scheme, slice.first, slice.rows, slice.cols}, [&] {
    return std::make_shared<const kernels::cuda::GpuMatrix>(device, packed_slice(store, scheme, slice).matrix);
  });
}

std::shared_ptr<const Buffer> device_weights(const WeightStore& store, const Scheme& requested, std::size_t first,
                                             std::size_t count, const std::shared_ptr<Device>& device) {
  check_device(device);
  const Scheme scheme = checked_scheme(requested);
  const auto found = view_cache(store).decoded.get({device.get(), scheme, first, 1, count}, [&] {
    return make_device_weights(store, scheme, first, count, device);
  });
  return {found, &found->buffer};
}

DeviceSource device_source(const WeightStore& store, const Scheme& scheme, const std::shared_ptr<Device>& device) {
  check_device(device);
  DeviceSource source{.device = device, .views = {}};
  const auto fits = [&](const ViewCache::Key& key) { return key.device == device.get() && key.scheme == scheme; };
  ViewCache& cache = view_cache(store);
  cache.device_matrices.for_each([&](const ViewCache::Key& key, const auto& matrix) {
    if (fits(key)) source.views.push_back({key.first, key.rows * key.cols, matrix, nullptr});
  });
  cache.decoded.for_each([&](const ViewCache::Key& key, const auto& weights) {
    if (fits(key)) source.views.push_back({key.first, key.cols, nullptr, weights});
  });
  std::ranges::sort(source.views, {}, &DeviceSource::View::first);
  std::size_t covered = 0;
  for (const DeviceSource::View& view : source.views) {
    if (view.first > covered) break;
    covered = std::max(covered, view.first + view.count);
  }
  if (covered < store.count()) {
    store.sync_to(device, scheme);
    return device_source(store, scheme, device);
  }
  return source;
}

void DeviceSource::download(std::span<float> weights) const {
  std::size_t done = 0;
  for (const View& view : views) {
    if (view.first + view.count <= done) continue;
    const std::span<float> out = weights.subspan(view.first, view.count);
    if (view.matrix) {
      view.matrix->download(out);
    } else {
      device->download(view.weights->buffer, 0, std::as_writable_bytes(out));
    }
    done = view.first + view.count;
  }
}

}  // namespace imago
