#pragma once

// Streams, graphs, events and memory of CUDA devices. Only builds with CUDA have them: code that uses them is in
// folders named cuda/.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "imago/device.h"

struct CUstream_st;
struct CUgraphExec_st;
struct CUevent_st;

namespace imago::cuda {

/// The N of "cuda:N". Throws UsageError if `device` is not a CUDA device.
int number_of(const Device& device);
/// Makes `device` current on this thread. Streams do so themselves. Throws like number_of.
void make_current(const Device& device);

/// A queue of work on one device. Streams run concurrently with each other and with Device::upload and download: wait
/// where one needs the result of another. Move-only. Not thread-safe.
class Stream {
 public:
  /// Throws UsageError if `device` is not a CUDA device.
  explicit Stream(std::shared_ptr<Device> device);

  const std::shared_ptr<Device>& device() const noexcept { return device_; }
  /// A cudaStream_t, for kernel launches. Makes its device current on this thread, which launches need.
  CUstream_st* handle() const noexcept;

  /// Queue copies. Host memory must stay as it is until `wait`; pinned memory (below) makes them overlap with the host.
  void copy_in(std::span<const std::byte> from, void* to);
  void copy_out(const void* from, std::span<std::byte> to);
  void copy_within(const void* from, void* to, std::size_t bytes);
  /// Rows of `row_bytes`, `stride` bytes apart.
  void copy_rows_within(const void* from, void* to, std::size_t stride, std::size_t row_bytes, std::size_t rows);
  void fill_zero(void* memory, std::size_t bytes);
  /// Waits until all queued work is done. Throws DeviceError with what failed.
  void wait();

 private:
  struct Destroy {
    int device;
    void operator()(CUstream_st* stream) const noexcept;
  };
  std::shared_ptr<Device> device_;
  int number_ = 0;
  std::unique_ptr<CUstream_st, Destroy> handle_;
};

/// Work recorded once and launched many times with the same pointers. Move-only.
class Graph {
 public:
  Graph() = default;
  /// Records what `work` queues on `stream` instead of running it. Nothing in `work` may wait or allocate. Exceptions
  /// of `work` are passed on, and the stream is as before.
  Graph(Stream& stream, const std::function<void()>& work);

  bool empty() const noexcept { return handle_ == nullptr; }
  /// Queues it. Throws UsageError if it is empty.
  void launch(Stream& stream) const;

 private:
  struct Destroy {
    void operator()(CUgraphExec_st* graph) const noexcept;
  };
  std::unique_ptr<CUgraphExec_st, Destroy> handle_;
};

/// A moment in a stream, for timing. Move-only.
class Event {
 public:
  void record(Stream& stream);
  /// Measured by the device. Waits for `end`. Throws UsageError unless both were recorded.
  static double seconds_between(const Event& begin, const Event& end);

 private:
  struct Destroy {
    void operator()(CUevent_st* event) const noexcept;
  };
  std::unique_ptr<CUevent_st, Destroy> handle_;  // null until it is recorded: it belongs to the device of the stream
};

/// Page-locked host memory, which the device accesses directly; not initialised. Released memory is pooled, up to a
/// limit. Move-only.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(std::size_t bytes);
  std::span<std::byte> bytes() const noexcept { return {memory_.get(), memory_ ? bytes_ : 0}; }

 private:
  struct Release {
    void operator()(std::byte* memory) const noexcept;
  };
  std::unique_ptr<std::byte, Release> memory_;
  std::size_t bytes_ = 0;
};

/// An array of T in device memory, filled with zeros. For scratch memory of known size.
template <class T>
class Array {
 public:
  Array() = default;
  Array(Device& device, std::size_t count) : buffer_(device.allocate(count * sizeof(T))), count_(count) {}
  T* data() const noexcept { return reinterpret_cast<T*>(buffer_.address()); }
  std::size_t size() const noexcept { return count_; }
  Buffer& buffer() noexcept { return buffer_; }
  /// Grows (contents are lost) to `count` if it is smaller.
  void reserve(Device& device, std::size_t count) {
    if (count <= count_) return;
    buffer_ = Buffer();
    buffer_ = device.allocate(count * sizeof(T));
    count_ = count;
  }

 private:
  Buffer buffer_;
  std::size_t count_ = 0;
};

}  // namespace imago::cuda
