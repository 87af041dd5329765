#pragma once

// How many blocks of a program go to a GPU, and whether they fit into its memory.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "backend/program.h"
#include "imago/format.h"

namespace imago::backend {

/// Bytes of the parts of a decoder in the memory of a device.
struct DecoderBytes {
  std::span<const std::uint64_t> blocks;
  std::uint64_t output = 0;
  std::uint64_t embedding = 0;  ///< without a matrix that the output has, too
  std::uint64_t work = 0;       ///< what a batch needs besides weights and caches
};

struct DevicePlan {
  std::size_t first_block = 0;  ///< on the device; all from there on are
  std::uint64_t bytes = 0;      ///< their sum

  bool embeds() const noexcept { return first_block == 0; }  ///< the token embedding is on the device too
};

/// The last `layers` blocks and the output; with all blocks the token embedding too. Throws DeviceError if they need
/// more than `free` bytes, saying how many layers would fit. REQUIRES: layers > 0.
DevicePlan plan_device(const DecoderBytes& bytes, std::size_t layers, std::uint64_t free, std::string_view device);

/// Bytes that a matrix takes in GPU memory. `scale_group`: weights that share a scale of a scaled dtype; 0: a row.
std::uint64_t device_matrix_bytes(Format format, std::size_t rows, std::size_t cols, std::size_t scale_group = 0);
/// What a batch of `tokens` needs on a device besides weights and caches, roughly.
std::uint64_t device_work_bytes(const Sizes& sizes, std::size_t tokens);
/// Free memory of a device by its name, on the host what can be taken without swapping; the largest number if there is
/// no such device.
std::uint64_t free_memory(std::string_view device);
/// "4.9 GiB", "312 MiB".
std::string bytes_text(std::uint64_t bytes);

}  // namespace imago::backend
