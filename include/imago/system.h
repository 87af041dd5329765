#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace imago {

/// What this machine offers and which kernels would run on it.
struct KernelChoice {
  std::string operation;  ///< "encode", "decode", "matvec", …
  std::string format;
  std::string kernel;  ///< "q4_k/avx512"
};

struct SystemReport {
  std::string cpu;
  std::vector<std::string> cpu_features;  ///< those that kernels ask for and the CPU has
  std::vector<std::string> absent_features;
  std::string kernel_limit;  ///< value of IMAGO_KERNELS, empty when unset
  int usable_cores = 0;      ///< cores this process may run on (affinity and control group respected)
  std::uint64_t memory_bytes = 0;
  std::uint64_t available_bytes = 0;
  std::vector<std::uint64_t> cache_bytes;  ///< L1 data, L2, L3; 0 where unknown
  bool huge_pages = false;                 ///< transparent 2 MiB pages can be asked for
  std::vector<KernelChoice> kernels;
  std::vector<std::string> devices;  ///< accelerators found; empty without a GPU build
  std::vector<std::string> advice;   ///< what makes this machine slower than it could be, one sentence each
};

/// Asks the system. Throws UsageError if IMAGO_KERNELS names no known kernels.
SystemReport inspect_system();

/// Read bandwidth of memory in bytes per second with the present threads, measured over 256 MiB (about 0.2 s).
double measure_read_bandwidth();

/// Threads of the process-wide pool. 0 sets the default: the cores this process may use. Throws UsageError below 0 or
/// above 1024. Not while another thread computes.
void set_thread_count(int threads);
int thread_count();

}  // namespace imago
