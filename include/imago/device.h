#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace imago {

class Buffer;

/// Where weights are stored and computed on: the host, which always exists, or an accelerator.
/// Thread-safe. A device outlives its buffers because each buffer holds a reference to it.
class Device : public std::enable_shared_from_this<Device> {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;  ///< "cpu", "cuda:0"
  virtual bool is_host() const noexcept = 0;

  /// A zeroed buffer of `bytes` bytes. Throws DeviceError (host: std::bad_alloc) when it does not fit.
  virtual Buffer allocate(std::size_t bytes) = 0;
  /// Copies host memory into `to` at `offset`. Throws ShapeError if it does not fit.
  virtual void upload(std::span<const std::byte> from, Buffer& to, std::size_t offset) = 0;
  /// Copies from `from` at `offset` into host memory. Throws ShapeError if it does not fit.
  virtual void download(const Buffer& from, std::size_t offset, std::span<std::byte> to) = 0;

 protected:
  friend class Buffer;
  virtual void release(std::byte* memory, std::size_t bytes) noexcept = 0;
};

/// One block of device memory, 64-byte aligned (on 2 MiB pages, if possible, when it is large). Move-only; empty when
/// moved from or of size 0.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::shared_ptr<Device> device, std::byte* memory, std::size_t bytes) noexcept;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::size_t size() const noexcept { return bytes_; }
  bool empty() const noexcept { return bytes_ == 0; }
  /// Null for a buffer that was never allocated.
  const std::shared_ptr<Device>& device() const noexcept { return device_; }

  /// The bytes themselves. Throws UnsupportedError if the buffer is not in host memory.
  std::span<std::byte> host();
  std::span<const std::byte> host() const;
  /// The device's own address, for its kernels.
  std::byte* address() const noexcept { return memory_; }

 private:
  std::shared_ptr<Device> device_;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

/// The host, one per process.
std::shared_ptr<Device> host_device();

/// An accelerator of this machine.
struct DeviceInfo {
  std::string name;          ///< what open_device takes: "cuda:0"
  std::string model;         ///< "NVIDIA H200"
  std::string architecture;  ///< "9.0"
  std::uint64_t memory = 0, free_memory = 0;
  int multiprocessors = 0;
  double clock_ghz = 0;
};

/// The accelerators that this build can use now, in the order of their numbers. Never throws: none is an empty list.
std::vector<DeviceInfo> accelerators();
/// Why `accelerators` is empty, as a sentence for people: no CUDA in this build, no driver, a driver that is too old,
/// no device. Empty where there are some.
std::string accelerator_problem();

/// "cpu", "cuda" (the first one) or "cuda:1"; one object per device and process. Throws UsageError for other names,
/// DeviceError with accelerator_problem, and for a number that no device has, listing those that exist.
std::shared_ptr<Device> open_device(std::string_view name);

/// Bytes read and written per second by copying within the memory of `device`. Takes some milliseconds and up to 1 GiB
/// of its memory.
double measure_copy_bandwidth(Device& device);

}  // namespace imago
