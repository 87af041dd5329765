#include "kernels/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <vector>

#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/folder_table.h"
#include "quant/rows.h"
#include "quant/scheme.h"

namespace imago::kernels {

namespace {

std::vector<CodecKernel> make_table() {
  std::vector<CodecKernel> table;
  for (const Format format : kFormats) {
    for (const Folder& f : kFolders) {
      if (f.encoder == nullptr) continue;
      table.push_back(
          {fmt::format("{}/{}", format.name(), f.name), format, f.needs, f.encoder(format), f.decoder(format)});
    }
  }
  return table;
}

}  // namespace

std::span<const CodecKernel> all_codecs() {
  static const std::vector<CodecKernel> table = make_table();
  return table;
}

const CodecKernel& choose_codec(Format format, CpuFeatures features) {
  const auto chosen = std::ranges::find_if(
      all_codecs(), [&](const CodecKernel& row) { return row.format == format && within(row.needs, features); });
  assert(chosen != all_codecs().end());  // every format has a ref row
  return *chosen;
}

void check_scales(Format format, std::size_t count, const Scales& scales) {
  if (!format.has_scales() || count == 0) return;
  if (scales.group == 0) throw ShapeError("a group of scales must span at least one weight");
  const std::size_t wanted = (count - 1) / scales.group + 1;
  if (scales.values.size() < wanted) {
    throw ShapeError(fmt::format("{} weights in groups of {} need {} scales, not {}", count, scales.group, wanted,
                                 scales.values.size()));
  }
  std::ranges::for_each(scales.values, check_scale);
  if (scales.zero_points.empty()) return;
  if (scales.zero_points.size() < wanted) {
    throw ShapeError(fmt::format("{} zero points beside {} scales", scales.zero_points.size(), wanted));
  }
  for (const float zero_point : scales.zero_points) check_zero_point(format, zero_point);
}

const float* zero_points_of(const Scales& scales) noexcept {
  return scales.zero_points.empty() ? nullptr : scales.zero_points.data();
}

}  // namespace imago::kernels

// The public bulk conversions: check once, choose a kernel, split the work over the pool.

namespace imago {

namespace {

// A part must be a multiple of every block (256) and big enough to be worth a thread: 16 Ki weights take some 10 µs.
constexpr std::size_t kGrain = 16384;

/// Calls run(first weight, weights, their place among the packed bytes) for parts of `count` weights.
template <class Run>
void for_each_part(Format format, std::size_t count, Run run) {
  parallel_for(count, kGrain,
               [&](std::size_t begin, std::size_t end) { run(begin, end - begin, packed_bytes(format, begin)); });
}

/// The scales that kernels read: types without scales have one that is 1.
Scales checked_scales(Format format, std::size_t count, const Scales& scales) {
  static constexpr float kOne[] = {1.0f};
  kernels::check_scales(format, count, scales);
  return format.has_scales() ? scales : Scales{kOne, count + 1};
}

}  // namespace

void encode(Format format, std::span<const float> weights, Scales scales, std::span<std::byte> packed,
            std::span<const float> importance) {
  check_packed_size(format, weights.size(), packed.size());
  quant::check_importance(format, weights.size(), importance);
  const Scales used = checked_scales(format, weights.size(), scales);
  const kernels::EncodeFunction run = kernels::choose_codec(format, allowed_cpu_features()).encode;
  for_each_part(format, weights.size(), [&](std::size_t first, std::size_t count, std::size_t at) {
    run({.weights = weights.data() + first,
         .count = count,
         .packed = packed.data() + at,
         .scales = used.values.data(),
         .group = used.group,
         .first = first,
         .importance = importance.empty() ? nullptr : importance.data(),
         .row_values = importance.size(),
         .zero_points = kernels::zero_points_of(used)});
  });
}

void decode(Format format, std::span<const std::byte> packed, Scales scales, std::span<float> weights) {
  check_packed_size(format, weights.size(), packed.size());
  const Scales used = checked_scales(format, weights.size(), scales);
  const kernels::DecodeFunction run = kernels::choose_codec(format, allowed_cpu_features()).decode;
  for_each_part(format, weights.size(), [&](std::size_t first, std::size_t count, std::size_t at) {
    run({.packed = packed.data() + at,
         .count = count,
         .weights = weights.data() + first,
         .scales = used.values.data(),
         .group = used.group,
         .first = first,
         .zero_points = kernels::zero_points_of(used)});
  });
}

void encode(BlockFormat format, std::span<const float> weights, std::span<std::byte> packed,
            std::span<const float> importance) {
  encode(format, weights, {}, packed, importance);
}

void decode(BlockFormat format, std::span<const std::byte> packed, std::span<float> weights) {
  decode(format, packed, {}, weights);
}

}  // namespace imago
