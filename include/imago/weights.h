#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "imago/codec.h"
#include "imago/device.h"
#include "imago/format.h"
#include "imago/numeric.h"

namespace imago {

/// The master in one scheme: packed codes and their scales in canonical layout (the one files use). Immutable once
/// made; shared freely between threads.
class Version {
 public:
  Version(Scheme scheme, const WeightShape& shape, Buffer codes, std::vector<float> scales,
          std::vector<float> zero_points, std::size_t scale_group, bool explicit_scale);

  const Scheme& scheme() const noexcept { return scheme_; }
  const WeightShape& shape() const noexcept { return shape_; }
  std::size_t count() const noexcept { return shape_.count(); }
  std::span<const std::byte> codes() const { return codes_.host(); }
  /// The codes one by one: `codes<std::int8_t>()` of int8, `codes<Half>()` of float16. Codes below 8 bits share bytes
  /// and have no such span. Throws UsageError if T is not the code type of the version.
  template <Numeric T>
  requires(bits(dtype_of<T>) >= 8) std::span<const T> codes()
  const {
    check_code_type(dtype_of<T>);
    return {reinterpret_cast<const T*>(codes().data()), count()};
  }
  /// One per tensor, row or group; empty for block formats and for types without a scale.
  std::span<const float> scales() const noexcept { return scales_; }
  /// Zero points of unsigned integers, one per scale; empty if all are 0.
  std::span<const float> zero_points() const noexcept { return zero_points_; }
  std::size_t scale_group() const noexcept { return scale_group_; }  ///< weights per scale; 0 without scales
  /// Both as the codec takes them.
  Scales scaling() const noexcept { return {scales_, scale_group_, zero_points_}; }
  /// The scale as a checkpoint states it: the first one, 1 for types without.
  float scale() const noexcept { return scales_.empty() ? 1.0f : scales_.front(); }
  /// The zero point in the same way: the first one, 0 for types without.
  float zero_point() const noexcept { return zero_points_.empty() ? 0.0f : zero_points_.front(); }
  /// True if the scale was given by the caller or a file: it is then kept when the master changes.
  bool has_explicit_scale() const noexcept { return explicit_scale_; }
  /// Bytes held: codes, scales and zero points.
  std::size_t bytes() const noexcept { return codes_.size() + (scales_.size() + zero_points_.size()) * sizeof(float); }
  /// Decodes into `weights`. Throws ShapeError if that is not count() long.
  void decode_into(std::span<float> weights) const;

 private:
  void check_code_type(DType dtype) const;

  Scheme scheme_;
  WeightShape shape_;
  Buffer codes_;
  std::vector<float> scales_, zero_points_;
  std::size_t scale_group_;
  bool explicit_scale_;
};

/// How far one array is from another, by several measures.
struct Distortion {
  double cosine = 1;         ///< 1 if both are zero, 0 if one is
  double rmse = 0;           ///< sqrt(mean squared difference)
  double relative_rmse = 0;  ///< rmse / root mean square of the reference; 0 if both are zero
  double max_error = 0;
  double sqnr_db = 0;  ///< 10·log10(signal / noise power); +infinity when equal
};

/// Throws ShapeError if the lengths differ. Sums in double.
Distortion measure_distortion(std::span<const float> reference, std::span<const float> got);

class ViewCache;

/// One weight array: a float32 master, and packed versions of it, each made on first use and cached.
///
/// Any write to the master drops all versions. Threads: every const call and `morph`, `active` may run at the same time
/// from many threads (the first one makes the version, the others wait for it); calls that change the master must not
/// overlap with any other call. A Version that a caller holds stays valid, and stays what it was, whatever happens to
/// the store.
class WeightStore {
 public:
  /// A zero master. Throws ShapeError on overflow. A flat array has one row.
  explicit WeightStore(const WeightShape& shape);
  explicit WeightStore(std::size_t rows, std::size_t cols) : WeightStore(WeightShape{.rows = rows, .cols = cols}) {}
  explicit WeightStore(std::size_t count) : WeightStore(1, count) {}
  WeightStore(WeightStore&&) noexcept;
  WeightStore& operator=(WeightStore&&) noexcept;
  ~WeightStore();
  /// A store of its own with the same master, versions and fixed scales; nothing of it is on accelerators.
  WeightStore copy() const;

  const WeightShape& shape() const noexcept;
  std::size_t rows() const noexcept { return shape().rows; }
  std::size_t cols() const noexcept { return shape().cols; }
  std::size_t count() const noexcept { return shape().count(); }

  /// The source of truth, 64-byte aligned. Made by unpacking when it was released.
  std::span<const float> master() const;
  bool has_master() const noexcept;
  /// Replaces the master; drops all versions. Throws ShapeError if the length differs.
  void set_master(std::span<const float> weights);
  /// The master for writing; drops all versions at the call. The span is for this one change: call again for the next.
  std::span<float> edit_master();
  /// Frees the master and every version but that of `scheme`: a served model. Later calls that need the master make it
  /// by unpacking. Copies of `scheme` on accelerators stay.
  void release_master(const Scheme& scheme);

  /// The version of `scheme`, made if absent. float32 is the master itself and never makes a version: returns null.
  /// Throws UsageError for an invalid scheme, ShapeError if rows do not fit the block or group.
  std::shared_ptr<const Version> morph(const Scheme& scheme) const;
  /// The version if it exists, else null.
  std::shared_ptr<const Version> find(const Scheme& scheme) const;
  /// All versions that exist, in the order of their schemes.
  std::vector<std::shared_ptr<const Version>> versions() const;
  /// Drops the version of `scheme` and all that was made of it, also on accelerators. A released master is made first.
  void drop(const Scheme& scheme);
  /// Drops that version, then morphs.
  std::shared_ptr<const Version> force_morph(const Scheme& scheme);
  /// Wq: the weights as `scheme` computes with them, in float32.
  std::vector<float> active(const Scheme& scheme) const;
  /// Overwrites the master with the decoded version of `scheme`; that version stays, all others are dropped.
  void unpack(const Scheme& scheme);
  /// Installs a version as a file has it: codes verbatim, scales explicit. The master becomes what they decode to; it
  /// is made when first asked for, so a model that is only served does without it. Throws ShapeError unless `codes`
  /// are exactly packed_bytes(...) long and there are as many scales as the scheme has, UsageError for unused bits that
  /// are set, ternary code 10, scales that are negative or not finite, and zero points that the type does not have. A
  /// scale of 0 acts as 1 and is kept as it is. Without zero points all are 0: negative weights then have no codes.
  /// On an error the store is as before.
  void set_loaded(const Scheme& scheme, std::span<const std::byte> codes, std::span<const float> scales,
                  std::span<const float> zero_points = {});
  /// With one scale, as checkpoints have it; for types without a scale it is kept but not used (see `scale`).
  void set_loaded(Format format, std::span<const std::byte> codes, float scale, float zero_point = 0);

  /// Fixes the scale of the bare scheme of `format` (one scale, absmax), and its zero point; drops that version. Kept
  /// until `clear_scale`, through every change of the master. Throws UsageError for a scale that is negative or not
  /// finite, and for a zero point that is not an integer from 0 to the largest code, or not 0 where the type has none;
  /// for a format whose scales are in its blocks.
  void set_scale(Format format, float scale, float zero_point = 0);
  /// Fixes all scales of `scheme`, one per tensor, row or group, in the same way. Throws ShapeError unless there are as
  /// many as it has; zero points are as many or none.
  void set_scales(const Scheme& scheme, std::span<const float> scales, std::span<const float> zero_points = {});
  /// Lets the scale be derived again, also one that came with `set_loaded`; drops that version.
  void clear_scale(Format format);
  /// The scale that was set or loaded for the bare scheme of `format`, if one was.
  std::optional<float> explicit_scale(Format format) const;
  /// The explicit scale, else that of the cached version, else 1; and the zero point that goes with it, else 0.
  float scale(Format format) const;
  float zero_point(Format format) const;
  /// Whether `scheme` rounds negative weights to 0: an unsigned type without zero points, or whose explicit scales have
  /// none. Training then keeps the master from becoming negative.
  bool loses_negatives(const Scheme& scheme) const;

  /// Uniform in [-range, range]; normal with sd = sqrt(2 / fan_in). Same seed, same weights, on every machine and for
  /// every number of threads. Throws UsageError for a range that is negative or not finite, and for a fan-in of 0.
  void randomize(std::uint64_t seed, float range);
  void he_randomize(std::uint64_t seed, std::size_t fan_in);

  /// master[i] -= rate · clip(gradient[i]); clip > 0 bounds each element to ±clip. Negative masters become 0 where
  /// `scheme` loses them. Drops all versions, then morphs `scheme` again (derived scales are derived anew). Throws
  /// ShapeError.
  void apply_gradients(std::span<const float> gradient, float rate, float clip = 0,
                       const Scheme& scheme = DType::float32);

  /// The version of `scheme` against the master.
  Distortion distortion(const Scheme& scheme) const;

  /// Copies the weights to an accelerator as the forward of their layer reads them there: matrices as `scheme` packs
  /// them, codes and scales in the device layout; norms, biases and what is computed with decoded, in float32. Done
  /// once, kept beside the versions, dropped with them when the master changes; a second call costs nothing. Copies on
  /// the host stay. Throws like `morph`, UsageError for the host, DeviceError if they do not fit.
  void sync_to(const std::shared_ptr<Device>& device, const Scheme& scheme) const;
  /// Wq in float32, row by row, in the memory of `device`: for layers without a packed kernel. Kept and dropped
  /// as above; what the caller holds stays valid and unchanged. Throws like sync_to.
  std::shared_ptr<const Buffer> dequantized_for(const std::shared_ptr<Device>& device, const Scheme& scheme) const;
  /// Frees the host memory of all weights; the copy of `scheme` on `device` (made if absent) is then the only one.
  /// Later calls that need the master download it: it is then Wq, as after `release_master`. A version that is needed
  /// again has the same codes, except for the sign of a zero in fp4; block formats are encoded again. Throws like
  /// sync_to, and the store is then as before.
  void release_host(const std::shared_ptr<Device>& device, const Scheme& scheme);
  /// Frees the copies on `device`, downloading the master first if they are the only ones.
  void release_device(const Device& device);
  /// Bytes held in the memory of `device`.
  std::size_t device_bytes(const Device& device) const noexcept;

  /// Bytes held now in host memory: master, versions, and the views of them that layers compute with.
  std::size_t bytes() const noexcept;

 private:
  friend ViewCache& view_cache(const WeightStore& store) noexcept;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace imago
