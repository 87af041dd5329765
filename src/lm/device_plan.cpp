#include "lm/device_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

#include "imago/codec.h"
#include "imago/device.h"
#include "imago/error.h"

namespace imago::lm {

namespace {

DevicePlan cut(const DecoderBytes& bytes, std::size_t layers) {
  const std::size_t blocks = bytes.blocks.size();
  DevicePlan plan{.first_block = layers < blocks ? blocks - layers : 0, .embeds = layers >= blocks, .bytes = 0};
  plan.bytes = bytes.output + bytes.work + (plan.embeds ? bytes.embedding : 0);
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

std::uint64_t device_matrix_bytes(Format format, std::size_t rows, std::size_t cols) {
  // Rows are padded to groups of 32, and scales of sub-blocks to whole bytes: at most 2 bytes a group more than a file
  // has.
  constexpr std::size_t kGroup = 32;
  const std::size_t padded = (cols + kGroup - 1) / kGroup * kGroup;
  const auto block = static_cast<std::size_t>(format.block_values());
  const std::size_t stored = packed_bytes(format, (rows * padded + block - 1) / block * block);
  return stored + (format.is_block() ? rows * (padded / kGroup) * 2 : rows * sizeof(float));
}

std::uint64_t device_work_bytes(const models::Traits& traits, std::size_t tokens) {
  const std::size_t used = std::max<std::size_t>(1, traits.experts_used);
  const std::size_t heads = (2 * traits.heads + 2 * traits.kv_heads) * traits.head_values;
  const std::size_t slots = traits.experts == 0 ? 0 : 2 * traits.experts_used * traits.width;
  // In float32, and once more in the forms that products read; then what libraries keep for themselves.
  constexpr std::uint64_t kLibraries = std::uint64_t{192} << 20;
  return tokens * (4 * traits.width + heads + used * traits.feed_forward + slots) * (sizeof(float) + 2) + kLibraries;
}

std::uint64_t free_memory(std::string_view device) {
  for (const DeviceInfo& info : accelerators()) {
    if (info.name == device) return info.free_memory;
  }
  return std::numeric_limits<std::uint64_t>::max();
}

}  // namespace imago::lm
