#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace imago {

class Buffer;

/// Where weights live and are computed on. The host is always there; accelerators implement the same three calls.
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

/// One block of device memory, 64-byte aligned (2 MiB pages asked for when it is large). Move-only; empty when
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

}  // namespace imago
