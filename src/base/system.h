#pragma once

// What the operating system says about the machine: the part of imago/system.h that knows nothing of kernels.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace imago {

struct Machine {
  std::uint64_t memory_bytes = 0;     ///< what this process may use at most: installed, or the control group's limit
  std::uint64_t available_bytes = 0;  ///< what it may take now without swapping; 0 where unknown
  std::vector<std::uint64_t> cache_bytes;  ///< L1 data, L2, L3 as one core sees them; 0 where unknown
  bool huge_pages = false;                 ///< madvise(MADV_HUGEPAGE) gives 2 MiB pages
  std::optional<double> core_quota;        ///< processor time that the control group grants, in cores
  int cores = 0;                           ///< that the machine has switched on; 0 where unknown
  std::optional<double> load;              ///< runnable processes of the whole machine, over the last minute
  std::string governor;                    ///< of the clock: "powersave"; empty where unknown
};

/// Reads all of `bytes` with the threads of the pool and nothing else: the measure of what memory can deliver.
/// REQUIRES: 64-byte aligned, a multiple of 64 bytes long.
void read_all(std::span<const std::byte> bytes);

/// Public, see imago/system.h.
std::string_view version() noexcept;

/// Reads /proc and /sys below `root`. Never throws for what is missing or malformed there: it stays unknown.
Machine inspect_machine(const std::filesystem::path& root = "/");

/// One sentence for each thing that holds this process back, with what can be done about it. `allowed_cores`: those
/// of its affinity mask.
std::vector<std::string> machine_advice(const Machine& machine, int allowed_cores, int threads);

}  // namespace imago
