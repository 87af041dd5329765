#pragma once

// How much of a decoder goes to an accelerator, and whether it fits there.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "imago/format.h"
#include "models/traits.h"

namespace imago::lm {

/// Bytes of the parts of a decoder in the memory of a device.
struct DecoderBytes {
  std::span<const std::uint64_t> blocks;
  std::uint64_t output = 0;
  std::uint64_t embedding = 0;  ///< 0 where the output is the same matrix
  std::uint64_t work = 0;       ///< what a batch needs beside weights and caches
};

struct DevicePlan {
  std::size_t first_block = 0;  ///< on the device; all from there on are
  bool embeds = false;          ///< the token embedding too
  std::uint64_t bytes = 0;      ///< of all that
};

/// The last `layers` blocks and the output; all blocks and the token embedding where there are no more. Throws
/// DeviceError if they need more than `free` bytes, saying how many would fit. REQUIRES: layers > 0.
DevicePlan plan_device(const DecoderBytes& bytes, std::size_t layers, std::uint64_t free, std::string_view device);

/// Bytes that a matrix takes on a device, rounded up.
std::uint64_t device_matrix_bytes(Format format, std::size_t rows, std::size_t cols);
/// What a batch of `tokens` needs on a device beside weights and caches, roughly.
std::uint64_t device_work_bytes(const models::Traits& traits, std::size_t tokens);
/// Free memory of a device by its name; all there can be if nobody knows.
std::uint64_t free_memory(std::string_view device);
/// "4.9 GiB", "312 MiB".
std::string bytes_text(std::uint64_t bytes);

}  // namespace imago::lm
