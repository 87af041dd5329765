// A GPU as a device: memory from cudaMalloc, copies through pinned memory (staging.h).

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "device/backend.h"
#include "device/cuda/check.h"
#include "device/cuda/staging.h"
#include "device/cuda/stream.h"
#include "imago/device.h"
#include "imago/error.h"

namespace imago {

namespace {

std::string name_of(int number) { return fmt::format("cuda:{}", number); }

std::string gibibytes(std::size_t bytes) { return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30)); }

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int number) : number_(number) {}

  int number() const noexcept { return number_; }
  void make_current() const { cuda::check(cudaSetDevice(number_), "choosing the device"); }

  std::string name() const override { return name_of(number_); }
  bool is_host() const noexcept override { return false; }

  Buffer allocate(std::size_t bytes) override {
    if (bytes == 0) return Buffer(shared_from_this(), nullptr, 0);
    make_current();
    void* memory = nullptr;
    if (const cudaError_t status = cudaMalloc(&memory, bytes); status != cudaSuccess) refuse(bytes, status);
    Buffer buffer(shared_from_this(), static_cast<std::byte*>(memory), bytes);
    const std::lock_guard lock(mutex_);
    staging().fill_zero(buffer.address(), bytes);
    return buffer;
  }

  void upload(std::span<const std::byte> from, Buffer& to, std::size_t offset) override {
    check_range(to, offset, from.size());
    check_mine(to);
    make_current();
    const std::lock_guard lock(mutex_);
    staging().upload(from, to.address() + offset);
  }

  void download(const Buffer& from, std::size_t offset, std::span<std::byte> to) override {
    check_range(from, offset, to.size());
    check_mine(from);
    make_current();
    const std::lock_guard lock(mutex_);
    staging().download(from.address() + offset, to);
  }

 private:
  // Ignores errors: after the end of main the runtime may be gone, and the memory with it.
  void release(std::byte* memory, std::size_t) noexcept override {
    static_cast<void>(cudaSetDevice(number_));
    static_cast<void>(cudaFree(memory));
    static_cast<void>(cudaGetLastError());
  }

  void check_mine(const Buffer& buffer) const {
    if (buffer.device().get() != this && !buffer.empty()) {
      throw UnsupportedError(fmt::format("{} was given a buffer in the memory of {}", name(), buffer.device()->name()));
    }
  }

  [[noreturn]] void refuse(std::size_t bytes, cudaError_t status) const {
    static_cast<void>(cudaGetLastError());
    std::size_t free = 0, total = 0;
    if (status != cudaErrorMemoryAllocation || cudaMemGetInfo(&free, &total) != cudaSuccess) {
      cuda::check(status, fmt::format("{} for {}", gibibytes(bytes), name()).c_str());
    }
    throw DeviceError(fmt::format("{} has no room for {} more: {} of its {} are free, so at most that would fit",
                                  name(), gibibytes(bytes), gibibytes(free), gibibytes(total)));
  }

  cuda::Staging& staging() {
    if (!staging_) staging_.emplace();
    return *staging_;
  }

  const int number_;
  std::mutex mutex_;
  std::optional<cuda::Staging> staging_;  // guarded by mutex_
};

const CudaDevice* as_cuda(const Device& device) { return dynamic_cast<const CudaDevice*>(&device); }

/// How many GPUs there are, or why the runtime cannot say. Cheap: no context is created.
struct Census {
  int count = 0;
  cudaError_t status = cudaSuccess;
};

Census take_census() {
  Census census;
  census.status = cudaGetDeviceCount(&census.count);
  static_cast<void>(cudaGetLastError());
  if (census.status != cudaSuccess) census.count = 0;
  return census;
}

int attribute(cudaDeviceAttr which, int number) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, which, number) == cudaSuccess ? value : 0;
}

std::string architecture_of(int number) {
  return fmt::format("{}.{}", attribute(cudaDevAttrComputeCapabilityMajor, number),
                     attribute(cudaDevAttrComputeCapabilityMinor, number));
}

std::string model_of(int number) {
  cudaDeviceProp properties{};
  return cudaGetDeviceProperties(&properties, number) == cudaSuccess ? properties.name : "unknown";
}

bool usable(int number) { return cudaSetDevice(number) == cudaSuccess && cuda::has_kernels_for_current(); }

DeviceInfo describe(int number) {
  DeviceInfo info;
  info.name = name_of(number);
  info.model = model_of(number);
  info.architecture = architecture_of(number);
  std::size_t free = 0, total = 0;
  if (cudaSetDevice(number) == cudaSuccess && cudaMemGetInfo(&free, &total) == cudaSuccess) {
    info.memory = total;
    info.free_memory = free;
  }
  info.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, number);
  info.clock_ghz = 1e-6 * attribute(cudaDevAttrClockRate, number);
  return info;
}

std::string cuda_version(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string problem_of(const Census& census) {
  if (census.status == cudaErrorInsufficientDriver) {
    int driver = 0, runtime = 0;
    static_cast<void>(cudaDriverGetVersion(&driver));
    static_cast<void>(cudaRuntimeGetVersion(&runtime));
    if (driver == 0) return "this machine has no NVIDIA driver";
    return fmt::format("the NVIDIA driver is too old: it offers CUDA {}, and this build needs {}.0 or later",
                       cuda_version(driver), runtime / 1000);
  }
  if (census.status == cudaErrorNoDevice || (census.status == cudaSuccess && census.count == 0)) {
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return visible == nullptr ? "the NVIDIA driver sees no GPU"
                              : fmt::format("CUDA_VISIBLE_DEVICES='{}' hides all GPUs", visible);
  }
  if (census.status != cudaSuccess) return fmt::format("CUDA does not start: {}", cudaGetErrorString(census.status));
  return "";
}

std::string no_kernels(int number) {
  return fmt::format("this build has no kernels for {} ({}, architecture {})", name_of(number), model_of(number),
                     architecture_of(number));
}

}  // namespace

std::vector<DeviceInfo> accelerators() {
  std::vector<DeviceInfo> found;
  const int count = take_census().count;
  for (int number = 0; number < count; ++number) {
    if (usable(number)) found.push_back(describe(number));
  }
  return found;
}

std::string accelerator_problem() {
  const Census census = take_census();
  if (const std::string problem = problem_of(census); !problem.empty()) return problem;
  for (int number = 0; number < census.count; ++number) {
    if (usable(number)) return "";
  }
  return no_kernels(0);
}

namespace cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // else the next launch would report it again
  std::string text = fmt::format("{}: {}", what, cudaGetErrorString(status));
  std::size_t free = 0, total = 0;
  if (status == cudaErrorMemoryAllocation && cudaMemGetInfo(&free, &total) == cudaSuccess) {
    text += fmt::format(" ({:.2f} of {:.2f} GiB are free on the device)", static_cast<double>(free) / (1 << 30),
                        static_cast<double>(total) / (1 << 30));
  }
  throw DeviceError(text);
}

std::shared_ptr<Device> open(int number) {
  // Never destroyed: buffers of static objects may outlive anything that is.
  static std::mutex& mutex = *new std::mutex;
  static std::map<int, std::shared_ptr<CudaDevice>>& opened = *new std::map<int, std::shared_ptr<CudaDevice>>;
  const std::lock_guard lock(mutex);
  if (const auto found = opened.find(number); found != opened.end()) return found->second;

  const Census census = take_census();
  if (const std::string problem = problem_of(census); !problem.empty()) throw DeviceError(problem);
  if (number >= census.count) {
    throw DeviceError(
        fmt::format("there is no {}: this machine has {}", name_of(number),
                    census.count == 1 ? "cuda:0 only" : fmt::format("cuda:0 to cuda:{}", census.count - 1)));
  }
  check(cudaSetDevice(number), fmt::format("opening {}", name_of(number)).c_str());
  if (!has_kernels_for_current()) throw DeviceError(no_kernels(number));
  return opened.emplace(number, std::make_shared<CudaDevice>(number)).first->second;
}

int number_of(const Device& device) {
  const CudaDevice* const found = as_cuda(device);
  if (found == nullptr) throw UsageError(device.name() + " is not a CUDA device");
  return found->number();
}

void make_current(const Device& device) { check(cudaSetDevice(number_of(device)), "choosing the device"); }

double copy_bandwidth(Device& device) {
  make_current(device);
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free memory");
  // Two buffers, each several times as large as any L2 cache (126 MB on Blackwell), unless memory is short.
  const std::size_t bytes = std::min<std::size_t>(std::size_t{512} << 20, free / 4 / 256 * 256);
  Buffer from = device.allocate(bytes), to = device.allocate(bytes);
  Stream stream(device.shared_from_this());
  double best = 0;
  for (int round = 0; round < 6; ++round) {  // the first rounds bring the clocks up
    Event begin, end;
    begin.record(stream);
    stream.copy_within(from.address(), to.address(), bytes);
    end.record(stream);
    best = std::max(best, 2.0 * static_cast<double>(bytes) / Event::seconds_between(begin, end));
  }
  return best;
}

}  // namespace cuda
}  // namespace imago
