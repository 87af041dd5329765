#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "base/parallel.h"
#include "imago/codec.h"
#include "imago/error.h"
#include "imago/weights.h"
#include "quant/packed_array.h"
#include "quant/scheme.h"
#include "weights/once_map.h"
#include "weights/random.h"
#include "weights/view_cache.h"

namespace imago {

namespace {

// Weights worth a thread in a gradient step, which memory bounds: some 10 µs.
constexpr std::size_t kGrain = 16384;

std::span<float> as_floats(Buffer& buffer) {
  const std::span<std::byte> bytes = buffer.host();
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

}  // namespace

/// Invariant: there is a master, or a `source` or `device_source` to unpack it from. Members that are not atomic change
/// only in calls that must not run beside any other, with one exception: the first reader of a released master makes
/// it, under the lock `unpacking`.
struct WeightStore::State {
  explicit State(const WeightShape& array)
      : shape(array),
        count(checked_mul(shape.rows, shape.cols, "the weights of a store")),
        master_bytes(checked_mul(count, sizeof(float), "the bytes of a store")),
        master(host_device()->allocate(master_bytes)) {}

  const WeightShape shape;
  const std::size_t count, master_bytes;

  std::mutex unpacking;
  std::atomic<bool> has_master{true};
  Buffer master;
  std::shared_ptr<const Version> source;
  std::optional<DeviceSource> device_source;
  // Scales of the version that release_host gave up: encoding with them gives the same codes again.
  std::optional<std::pair<Scheme, ScaleValues>> released_scales;

  std::map<Scheme, ScaleValues> explicit_scales;  // kept when versions are dropped
  OnceMap<Scheme, Version> versions;
  ViewCache views;  // dropped with the versions

  std::span<float> read_master() {
    if (!has_master.load(std::memory_order_acquire)) {
      std::lock_guard lock(unpacking);
      if (!has_master.load(std::memory_order_relaxed)) {
        Buffer unpacked = host_device()->allocate(master_bytes);
        source ? source->decode_into(as_floats(unpacked)) : device_source->download(as_floats(unpacked));
        master = std::move(unpacked);
        source.reset();
        device_source.reset();
        has_master.store(true, std::memory_order_release);
      }
    }
    return as_floats(master);
  }

  void drop_all() {
    versions.clear();
    views.clear();
    released_scales.reset();
  }

  /// The master, to be overwritten as a whole: it is not unpacked first, and everything derived from it is dropped.
  std::span<float> new_master() {
    if (!has_master.load(std::memory_order_relaxed)) {
      master = host_device()->allocate(master_bytes);
      has_master.store(true, std::memory_order_relaxed);
    }
    source.reset();
    device_source.reset();
    drop_all();
    return as_floats(master);
  }

  /// Makes `version` the source of the master, which is unpacked from it when next asked for.
  void keep_only(std::shared_ptr<const Version> version) {
    versions.clear();
    versions.put(version->scheme(), version);
    source = std::move(version);
    device_source.reset();
    give_up_master();
  }

  void give_up_master() {
    master = Buffer();
    has_master.store(false, std::memory_order_relaxed);
  }

  /// Drops one version. The master is made first, since that version may be its only source.
  void drop(const Scheme& scheme) {
    read_master();
    versions.drop(scheme);
    views.drop(scheme);
    released_scales.reset();
  }

  std::shared_ptr<const Version> make_version(const Scheme& scheme, const ScaleLayout& layout) {
    const std::span<const float> weights = read_master();
    Buffer codes = host_device()->allocate(packed_bytes(scheme.format, shape));
    const auto given = explicit_scales.find(scheme);
    const bool is_explicit = given != explicit_scales.end();
    const bool is_known = released_scales && released_scales->first == scheme;
    ScaleValues scales;
    if (layout.count != 0) {
      scales = is_explicit ? given->second
               : is_known  ? released_scales->second
                           : derive_scales(scheme, layout, weights);
    }
    encode_array(scheme.format, shape, weights, scales.over(layout.group), codes.host());
    return std::make_shared<const Version>(scheme, shape, std::move(codes), std::move(scales.scales),
                                           std::move(scales.zero_points), layout.group, is_explicit);
  }

  /// Given scales of `scheme`, whose layout this is. Throws ShapeError.
  static ScaleValues checked_scales(const Scheme& scheme, const ScaleLayout& layout, std::span<const float> scales,
                                    std::span<const float> zero_points, std::size_t weights) {
    if (scales.size() != layout.count) {
      throw ShapeError(fmt::format("{} scales for {} weights in {}, which have {}", scales.size(), weights,
                                   scheme.format.name(), layout.count));
    }
    if (!zero_points.empty() && zero_points.size() != layout.count) {
      throw ShapeError(fmt::format("{} zero points beside {} scales", zero_points.size(), layout.count));
    }
    std::ranges::for_each(scales, check_scale);
    for (const float zero_point : zero_points) check_zero_point(scheme.format, zero_point);
    ScaleValues values{{scales.begin(), scales.end()}, {zero_points.begin(), zero_points.end()}};
    values.normalize();
    return values;
  }

  void check_length(std::size_t length, std::string_view what) const {
    if (length != count) throw ShapeError(fmt::format("{} {} for a store of {}", length, what, count));
  }
};

Version::Version(Scheme scheme, const WeightShape& shape, Buffer codes, std::vector<float> scales,
                 std::vector<float> zero_points, std::size_t scale_group, bool explicit_scale)
    : scheme_(scheme),
      shape_(shape),
      codes_(std::move(codes)),
      scales_(std::move(scales)),
      zero_points_(std::move(zero_points)),
      scale_group_(scale_group),
      explicit_scale_(explicit_scale) {}

void Version::decode_into(std::span<float> weights) const {
  if (weights.size() != count()) {
    throw ShapeError(fmt::format("a version of {} weights cannot be decoded into {}", count(), weights.size()));
  }
  decode_array(scheme_.format, shape_, codes(), scaling(), weights);
}

void Version::check_code_type(DType dtype) const {
  if (scheme_.format == dtype) return;
  throw UsageError(fmt::format("the codes of {} are not {}", scheme_.format.name(), name(dtype)));
}

WeightStore::WeightStore(const WeightShape& shape) : state_(std::make_unique<State>(shape)) {}
WeightStore::WeightStore(WeightStore&&) noexcept = default;
WeightStore& WeightStore::operator=(WeightStore&&) noexcept = default;
WeightStore::~WeightStore() = default;

WeightStore WeightStore::copy() const {
  WeightStore copy(shape());
  State& to = *copy.state_;
  {
    std::lock_guard lock(state_->unpacking);
    to.source = state_->source;
  }
  to.source ? to.give_up_master() : void(std::ranges::copy(master(), as_floats(to.master).begin()));
  to.explicit_scales = state_->explicit_scales;
  to.released_scales = state_->released_scales;
  for (const std::shared_ptr<const Version>& version : versions()) to.versions.put(version->scheme(), version);
  return copy;
}

const WeightShape& WeightStore::shape() const noexcept { return state_->shape; }

// ---- master

std::span<const float> WeightStore::master() const { return state_->read_master(); }

bool WeightStore::has_master() const noexcept { return state_->has_master.load(std::memory_order_acquire); }

void WeightStore::set_master(std::span<const float> weights) {
  state_->check_length(weights.size(), "weights");
  std::ranges::copy(weights, state_->new_master().begin());
}

std::span<float> WeightStore::edit_master() {
  const std::span<float> master = state_->read_master();
  state_->drop_all();
  return master;
}

void WeightStore::release_master(const Scheme& scheme) {
  std::shared_ptr<const Version> version = morph(scheme);
  if (version) {
    state_->views.keep_devices(version->scheme());  // they decode to the same weights
    state_->released_scales.reset();
    state_->keep_only(std::move(version));
  } else {
    edit_master();  // float32 is the master itself
  }
}

void WeightStore::unpack(const Scheme& scheme) {
  release_master(scheme);
  master();
}

void WeightStore::randomize(std::uint64_t seed, float range) {
  if (!(range >= 0) || !std::isfinite(range)) {
    throw UsageError(fmt::format("random weights need a finite range of 0 or more, not {}", range));
  }
  fill_uniform(state_->new_master(), seed, range);
}

void WeightStore::he_randomize(std::uint64_t seed, std::size_t fan_in) {
  if (fan_in == 0) throw UsageError("He initialisation needs a fan-in of at least 1");
  fill_normal(state_->new_master(), seed, std::sqrt(2.0 / static_cast<double>(fan_in)));
}

void WeightStore::apply_gradients(std::span<const float> gradient, float rate, float clip, const Scheme& scheme) {
  state_->check_length(gradient.size(), "gradients");
  scale_layout(checked_scheme(scheme), shape());  // throws before anything has changed
  const std::span<float> master = edit_master();
  const bool clips = clip > 0;
  const bool drops_negative = loses_negatives(scheme);
  parallel_for(master.size(), kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const float step = clips ? std::clamp(gradient[i], -clip, clip) : gradient[i];
      const float w = master[i] - rate * step;
      master[i] = drops_negative && w < 0 ? 0.0f : w;
    }
  });
  morph(scheme);
}

// ---- versions

std::shared_ptr<const Version> WeightStore::morph(const Scheme& requested) const {
  const Scheme scheme = checked_scheme(requested);
  if (is_master(scheme)) return nullptr;
  const ScaleLayout layout = scale_layout(scheme, shape());
  return state_->versions.get(scheme, [&] { return state_->make_version(scheme, layout); });
}

std::shared_ptr<const Version> WeightStore::find(const Scheme& scheme) const {
  return state_->versions.find(checked_scheme(scheme));
}

std::vector<std::shared_ptr<const Version>> WeightStore::versions() const {
  std::vector<std::shared_ptr<const Version>> versions;
  state_->versions.for_each([&](const Scheme&, const auto& version) { versions.push_back(version); });
  return versions;
}

void WeightStore::drop(const Scheme& scheme) { state_->drop(checked_scheme(scheme)); }

std::shared_ptr<const Version> WeightStore::force_morph(const Scheme& requested) {
  const Scheme scheme = checked_scheme(requested);
  state_->drop(scheme);
  return morph(scheme);
}

std::vector<float> WeightStore::active(const Scheme& scheme) const {
  const std::shared_ptr<const Version> version = morph(scheme);
  if (!version) {
    const std::span<const float> weights = master();
    return {weights.begin(), weights.end()};
  }
  std::vector<float> weights(count());
  version->decode_into(weights);
  return weights;
}

Distortion WeightStore::distortion(const Scheme& scheme) const { return measure_distortion(master(), active(scheme)); }

std::size_t WeightStore::bytes() const noexcept {
  return (has_master() ? state_->master_bytes : 0) + state_->versions.bytes() + state_->views.bytes(nullptr);
}

ViewCache& view_cache(const WeightStore& store) noexcept { return store.state_->views; }

// ---- accelerators

void WeightStore::sync_to(const std::shared_ptr<Device>& device, const Scheme& scheme) const {
  const LayerViews views = layer_views(shape());
  for (const MatrixSlice& slice : views.matrices) device_matrix(*this, scheme, slice, device);
  for (const auto& [first, weights] : views.decoded) device_weights(*this, scheme, first, weights, device);
}

std::shared_ptr<const Buffer> WeightStore::dequantized_for(const std::shared_ptr<Device>& device,
                                                           const Scheme& scheme) const {
  return device_weights(*this, scheme, 0, count(), device);
}

void WeightStore::release_host(const std::shared_ptr<Device>& device, const Scheme& requested) {
  if (count() == 0) return;
  const Scheme scheme = checked_scheme(requested);
  DeviceSource source = device_source(*this, scheme, device);
  if (const std::shared_ptr<const Version> version = find(scheme)) {
    const std::span<const float> scales = version->scales(), zero_points = version->zero_points();
    state_->released_scales.emplace(
        scheme, ScaleValues{{scales.begin(), scales.end()}, {zero_points.begin(), zero_points.end()}});
  }
  state_->versions.clear();
  state_->views.keep_devices(scheme);
  state_->source.reset();
  state_->device_source = std::move(source);
  state_->give_up_master();
}

void WeightStore::release_device(const Device& device) {
  if (!has_master() && state_->device_source && state_->device_source->device.get() == &device) master();
  state_->views.drop(device);
}

std::size_t WeightStore::device_bytes(const Device& device) const noexcept { return state_->views.bytes(&device); }

// ---- loaded codes and explicit scales

void WeightStore::set_loaded(const Scheme& requested, std::span<const std::byte> codes, std::span<const float> scales,
                             std::span<const float> zero_points) {
  const Scheme scheme = checked_scheme(requested);
  const ScaleLayout layout = scale_layout(scheme, shape());
  check_array(scheme.format, shape(), codes);
  ScaleValues values = State::checked_scales(scheme, layout, scales, zero_points, count());
  if (is_master(scheme)) {
    if (!codes.empty()) std::memcpy(state_->new_master().data(), codes.data(), codes.size());
    return;
  }
  Buffer stored = host_device()->allocate(codes.size());
  host_device()->upload(codes, stored, 0);
  if (!values.scales.empty()) state_->explicit_scales[scheme] = values;
  state_->drop_all();
  state_->keep_only(std::make_shared<const Version>(scheme, shape(), std::move(stored), std::move(values.scales),
                                                    std::move(values.zero_points), layout.group, true));
}

void WeightStore::set_loaded(Format format, std::span<const std::byte> codes, float scale, float zero_point) {
  check_scale(scale);
  const std::size_t used = format.has_scales() ? 1 : 0;
  check_zero_point(format, zero_point);
  set_loaded(Scheme(format), codes, std::span(&scale, used), std::span(&zero_point, used));
  // Also for types without a scale: files have one, and it is written back.
  if (format.is_wide()) state_->explicit_scales[format] = {{scale}, {}};
}

void WeightStore::set_scale(Format format, float scale, float zero_point) {
  check_scale(scale);
  if (!format.has_scales() && !format.is_wide()) {
    throw UsageError(fmt::format("{} has its scales inside its blocks", format.name()));
  }
  check_zero_point(format, zero_point);
  state_->drop(format);
  ScaleValues& values = state_->explicit_scales[format] = {{scale}, {zero_point}};
  values.normalize();
}

void WeightStore::set_scales(const Scheme& requested, std::span<const float> scales,
                             std::span<const float> zero_points) {
  const Scheme scheme = checked_scheme(requested);
  ScaleValues values = State::checked_scales(scheme, scale_layout(scheme, shape()), scales, zero_points, count());
  state_->drop(scheme);
  state_->explicit_scales[scheme] = std::move(values);
}

void WeightStore::clear_scale(Format format) {
  state_->drop(format);
  state_->explicit_scales.erase(format);
}

std::optional<float> WeightStore::explicit_scale(Format format) const {
  const auto given = state_->explicit_scales.find(format);
  return given == state_->explicit_scales.end() ? std::nullopt : std::optional(given->second.scales.front());
}

float WeightStore::scale(Format format) const {
  if (const std::optional<float> given = explicit_scale(format)) return *given;
  const std::shared_ptr<const Version> version = find(format);
  return version ? version->scale() : 1.0f;
}

float WeightStore::zero_point(Format format) const {
  const auto given = state_->explicit_scales.find(format);
  if (given != state_->explicit_scales.end()) {
    return given->second.zero_points.empty() ? 0.0f : given->second.zero_points.front();
  }
  const std::shared_ptr<const Version> version = find(format);
  return version ? version->zero_point() : 0.0f;
}

bool WeightStore::loses_negatives(const Scheme& requested) const {
  const Scheme scheme = checked_scheme(requested);
  if (!scheme.format.has_scales() || info(scheme.format.dtype()).kind != NumberKind::unsigned_integer) return false;
  const auto given = state_->explicit_scales.find(scheme);
  return given == state_->explicit_scales.end() ? !has_zero_points(scheme) : given->second.zero_points.empty();
}

}  // namespace imago
