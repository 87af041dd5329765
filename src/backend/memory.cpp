#include "backend/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

#include "base/system.h"
#include "imago/device.h"
#include "imago/error.h"
#include "kernels/cuda/host_layout.h"
#include "quant/scheme.h"

namespace imago::backend {

namespace {

DevicePlan cut(const DecoderBytes& bytes, std::size_t layers) {
  const std::size_t blocks = bytes.blocks.size();
  DevicePlan plan{.first_block = layers < blocks ? blocks - layers : 0};
  plan.bytes = bytes.output + bytes.work + (plan.embeds() ? bytes.embedding : 0);
  for (std::size_t i = plan.first_block; i < blocks; ++i) plan.bytes += bytes.blocks[i];
  return plan;
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib >= 1024 ? fmt::format("{:.1f} GiB", mib / 1024) : fmt::format("{:.0f} MiB", mib);
}

DevicePlan plan_device(const DecoderBytes& bytes, std::size_t layers, std::uint64_t free, std::string_view device) {
  const DevicePlan plan = cut(bytes, layers);
  if (plan.bytes <= free) return plan;
  std::size_t fitting = std::min(layers, bytes.blocks.size());
  while (fitting > 0 && cut(bytes, fitting).bytes > free) --fitting;
  throw DeviceError(fmt::format("{} layers of this model need {} on {}, {} more than the {} that are free; {}",
                                bytes.blocks.size() - plan.first_block, bytes_text(plan.bytes), device,
                                bytes_text(plan.bytes - free), bytes_text(free),
                                fitting > 0 ? fmt::format("--gpu-layers {} fits", fitting)
                                            : "not even one fits: run it on the host, --device cpu"));
}

std::uint64_t device_matrix_bytes(Format format, std::size_t rows, std::size_t cols, std::size_t scale_group) {
  if (has_zero_points(format)) format = DType::float32;  // what becomes of a zero point per row
  return kernels::cuda::PlaneLayout(format, rows, cols, scale_group < cols ? scale_group : 0).bytes;
}

std::uint64_t device_work_bytes(const Sizes& sizes, std::size_t tokens) {
  const std::size_t used = std::max<std::size_t>(1, sizes.experts_used);
  const std::size_t heads = (2 * sizes.heads + 2 * sizes.kv_heads) * sizes.head_values;
  const std::size_t rows = sizes.experts == 0 ? 0 : 2 * sizes.experts_used * sizes.width;
  // In float32, and once more as products read them; then what libraries keep for themselves.
  constexpr std::uint64_t kLibraries = std::uint64_t{192} << 20;
  return tokens *
             (4 * sizes.width + heads + used * sizes.feed_forward + sizes.shared_feed_forward + rows +
              2 * sizes.layer_inputs) *
             (sizeof(float) + 2) +
         kLibraries;
}

std::uint64_t free_memory(std::string_view device) {
  if (device == host_device()->name()) return inspect_machine().available_bytes;
  for (const DeviceInfo& info : accelerators()) {
    if (info.name == device) return info.free_memory;
  }
  return std::numeric_limits<std::uint64_t>::max();
}

}  // namespace imago::backend
