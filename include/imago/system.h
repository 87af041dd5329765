#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "imago/format.h"

namespace imago {

/// The version of the library: "0.1.0".
std::string_view version() noexcept;

/// What this machine offers and which kernels would run on it.
struct KernelChoice {
  std::string operation;  ///< "encode", "decode", "matvec exact", "matvec fast"
  std::string format;
  std::string kernel;  ///< "q4_k/avx512"
};

struct SystemReport {
  std::string cpu;
  std::vector<std::string> cpu_features;  ///< those that kernels ask for and the CPU has
  std::vector<std::string> absent_features;
  std::string kernel_limit;  ///< value of IMAGO_KERNELS, empty when unset
  int usable_cores = 0;      ///< cores this process may run on (affinity and control group respected)
  int cores = 0;             ///< cores of the machine; 0 where unknown
  double core_quota = 0;     ///< processor time that the control group grants, in cores; 0: no limit
  double load = 0;           ///< runnable processes of the whole machine, over the last minute
  std::string governor;      ///< of the clock; empty where the system does not say
  std::uint64_t memory_bytes = 0;
  std::uint64_t available_bytes = 0;
  std::vector<std::uint64_t> cache_bytes;  ///< L1 data, L2, L3; 0 where unknown
  bool huge_pages = false;                 ///< transparent 2 MiB pages can be asked for
  std::vector<KernelChoice> kernels;
  std::vector<std::string> advice;  ///< what makes this machine slower than it could be, one sentence each
};

/// Asks the system; for accelerators see imago/device.h. Throws UsageError for an unknown name in IMAGO_KERNELS.
SystemReport inspect_system();

/// Read bandwidth of memory in bytes per second with the present threads, measured over 256 MiB (about 0.2 s).
double measure_read_bandwidth();

/// Threads of the process-wide pool. 0 sets the default: the cores this process may use. Throws UsageError below 0 or
/// above 1024. Not while another thread computes.
void set_thread_count(int threads);
int thread_count();

struct KernelBenchOptions {
  std::vector<Format> formats = {};  ///< empty: the 21 dtypes and the 16 block formats of GGUF
  std::size_t batch = 1;             ///< tokens per product
  std::size_t matrix_bytes = 0;      ///< of a matrix in panel layout, about; 0: well beyond the last-level cache
  double seconds = 1.0;              ///< spent on each kernel, at least three passes; a longer pass is taken alone
  /// Called before each kernel with its name and how many are done, in all; once more at the end with an empty name.
  std::function<void(const std::string& name, std::size_t done, std::size_t total)> progress = {};
};

/// One product, timed as a caller sees it: with the preparation of the activations. Figures are of the median pass.
struct KernelSpeed {
  std::string name;  ///< "q4_0/avx512vnni"
  std::string format;
  std::string operation;   ///< "matvec", or "matmul" from batch 2
  std::string activation;  ///< "f32" (exact), "int8" (fast), or "bf16" (fast, many tokens, where there are tiles of it)
  std::size_t rows = 0, cols = 0, batch = 0;
  std::size_t matrix_bytes = 0;  ///< in panel layout: what one pass reads of the weights
  double gb_per_s = 0;           ///< matrix_bytes per pass
  double gflops = 0;             ///< 2 per multiply-add
  double read_gb_per_s = 0;      ///< plain reading of the same bytes, alternating with the kernel's passes
  double fraction_of_read = 0;   ///< gb_per_s of that
  double fraction_of_peak = 0;   ///< gflops of the float32, int8 or bfloat16 peak, as its activations are
  double spread = 0;             ///< between the quartiles of the passes, relative to the median
};

/// What was measured, and the limits beside it.
struct KernelBench {
  double read_gb_per_s = 0;        ///< the median over all kernels: on a shared machine it wanders
  double float32_peak_gflops = 0;  ///< multiply-adds in registers, with the instructions that kernels may use
  double int8_peak_gops = 0;
  double bfloat16_peak_gflops = 0;   ///< by tiles; 0 where kernels have none
  std::vector<KernelSpeed> kernels;  ///< in the order of the formats, exact before fast
};

/// Times the kernels that would be chosen, with the present threads: about two minutes for all formats.
/// Throws UsageError if the batch is 0 or for an unknown name in IMAGO_KERNELS, std::bad_alloc if a matrix does not
/// fit.
KernelBench bench_kernels(const KernelBenchOptions& options = {});

/// Removes what unfinished output files have left on disk: for a handler of SIGINT or SIGTERM that then ends the
/// process. Async-signal-safe. Only the first 64 files that are open at a time are
/// known.
void remove_unfinished_files() noexcept;

}  // namespace imago
