#include <fmt/format.h>

#include <utility>

#include "device/backend.h"
#include "imago/device.h"
#include "imago/error.h"

namespace imago {

Buffer::Buffer(std::shared_ptr<Device> device, std::byte* memory, std::size_t bytes) noexcept
    : device_(std::move(device)), memory_(memory), bytes_(bytes) {}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::move(other.device_)),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer taken(std::move(other));  // what this buffer held is released now, not when `other` ends
  std::swap(device_, taken.device_);
  std::swap(memory_, taken.memory_);
  std::swap(bytes_, taken.bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (memory_ != nullptr) device_->release(memory_, bytes_);
}

std::span<std::byte> Buffer::host() {
  if (device_ && !device_->is_host()) throw UnsupportedError("this buffer is in the memory of " + device_->name());
  return {memory_, bytes_};
}

std::span<const std::byte> Buffer::host() const { return const_cast<Buffer*>(this)->host(); }

void check_range(const Buffer& buffer, std::size_t offset, std::size_t bytes) {
  if (offset > buffer.size() || bytes > buffer.size() - offset) {
    throw ShapeError(
        fmt::format("{} bytes at offset {} do not fit a buffer of {} bytes", bytes, offset, buffer.size()));
  }
}

}  // namespace imago
