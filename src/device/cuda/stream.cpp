#include "device/cuda/stream.h"

#include <map>
#include <mutex>
#include <utility>

#include "device/cuda/check.h"
#include "imago/error.h"

namespace imago::cuda {

// Non-blocking: a stream that synchronizes with the default stream would wait for other work of the process.
Stream::Stream(std::shared_ptr<Device> device) : device_(std::move(device)) {
  if (!device_) throw UsageError("a stream needs a device");
  number_ = number_of(*device_);
  make_current(*device_);
  CUstream_st* made = nullptr;
  check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "a stream");
  handle_ = {made, Destroy{number_}};
}

// Work that is still queued goes on; the runtime frees the stream after it.
void Stream::Destroy::operator()(CUstream_st* stream) const noexcept {
  static_cast<void>(cudaSetDevice(device));
  static_cast<void>(cudaStreamDestroy(stream));
}

// A failure shows in the call that needs the handle.
CUstream_st* Stream::handle() const noexcept {
  static_cast<void>(cudaSetDevice(number_));
  return handle_.get();
}

void Stream::copy_in(std::span<const std::byte> from, void* to) {
  if (from.empty()) return;
  check(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, handle()), "copying to the device");
}

void Stream::copy_out(const void* from, std::span<std::byte> to) {
  if (to.empty()) return;
  check(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, handle()), "copying from the device");
}

void Stream::copy_within(const void* from, void* to, std::size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, handle()), "copying within the device");
}

void Stream::copy_rows_within(const void* from, void* to, std::size_t stride, std::size_t row_bytes, std::size_t rows) {
  if (rows == 0 || row_bytes == 0) return;
  check(cudaMemcpy2DAsync(to, stride, from, stride, row_bytes, rows, cudaMemcpyDeviceToDevice, handle()),
        "copying rows within the device");
}

void Stream::fill_zero(void* memory, std::size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(memory, 0, bytes, handle()), "filling device memory");
}

void Stream::wait() { check(cudaStreamSynchronize(handle()), "work on the device"); }

Graph::Graph(Stream& stream, const std::function<void()>& work) {
  // Thread-local: other threads may allocate during the capture.
  check(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal), "recording a graph");
  cudaGraph_t recorded = nullptr;
  try {
    work();
  } catch (...) {
    static_cast<void>(cudaStreamEndCapture(stream.handle(), &recorded));
    if (recorded != nullptr) static_cast<void>(cudaGraphDestroy(recorded));
    static_cast<void>(cudaGetLastError());
    throw;
  }
  check(cudaStreamEndCapture(stream.handle(), &recorded), "recording a graph");
  CUgraphExec_st* made = nullptr;
  const cudaError_t status = cudaGraphInstantiateWithFlags(&made, recorded, 0);
  static_cast<void>(cudaGraphDestroy(recorded));
  check(status, "preparing a graph");
  handle_.reset(made);
}

void Graph::Destroy::operator()(CUgraphExec_st* graph) const noexcept {
  static_cast<void>(cudaGraphExecDestroy(graph));
}

void Graph::launch(Stream& stream) const {
  if (empty()) throw UsageError("launching a graph that was never recorded");
  check(cudaGraphLaunch(handle_.get(), stream.handle()), "launching a graph");
}

void Event::Destroy::operator()(CUevent_st* event) const noexcept { static_cast<void>(cudaEventDestroy(event)); }

void Event::record(Stream& stream) {
  CUstream_st* const queue = stream.handle();
  if (handle_ == nullptr) {
    CUevent_st* made = nullptr;
    check(cudaEventCreate(&made), "an event");
    handle_.reset(made);
  }
  check(cudaEventRecord(handle_.get(), queue), "recording an event");
}

double Event::seconds_between(const Event& begin, const Event& end) {
  if (begin.handle_ == nullptr || end.handle_ == nullptr)
    throw UsageError("the time between events that were not recorded");
  check(cudaEventSynchronize(end.handle_.get()), "work on the device");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin.handle_.get(), end.handle_.get()), "the time between two events");
  return 1e-3 * static_cast<double>(milliseconds);
}

namespace {

constexpr std::size_t kMostWaiting = std::size_t{64} << 20;
constexpr std::size_t kGranule = std::size_t{64} << 10;  // matrices of nearly the same size share buffers

/// Keeps returned pinned memory for its next user: pinning takes about as long as a copy over the bus, and a model is
/// uploaded through the same two buffers for each of its matrices. Thread-safe.
class PinnedPool {
 public:
  /// At least `bytes` bytes. Throws DeviceError.
  std::byte* take(std::size_t bytes);
  void give_back(std::byte* memory) noexcept;

 private:
  std::mutex mutex_;
  std::map<std::byte*, std::size_t> sizes_;  // of all blocks, in use or waiting
  std::multimap<std::size_t, std::byte*> waiting_;
  std::size_t waiting_bytes_ = 0;
};

std::byte* PinnedPool::take(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::size_t wanted = (bytes + kGranule - 1) / kGranule * kGranule;
  if (const auto found = waiting_.lower_bound(wanted); found != waiting_.end() && found->first / 2 <= wanted) {
    std::byte* const memory = found->second;
    waiting_bytes_ -= found->first;
    waiting_.erase(found);
    return memory;
  }
  void* made = nullptr;
  // Portable: pinned for every device, whichever is current now.
  check(cudaHostAlloc(&made, wanted, cudaHostAllocPortable), "pinned host memory");
  std::byte* const memory = static_cast<std::byte*>(made);
  sizes_.emplace(memory, wanted);
  return memory;
}

void PinnedPool::give_back(std::byte* memory) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = sizes_.find(memory);
  if (waiting_bytes_ + found->second <= kMostWaiting) {
    try {
      waiting_.emplace(found->second, memory);
      waiting_bytes_ += found->second;
      return;
    } catch (...) {  // no memory for the entry: free it below
    }
  }
  sizes_.erase(found);
  static_cast<void>(cudaFreeHost(memory));
}

// Never destroyed: static objects may return memory after any other static object is gone.
PinnedPool& pinned_pool() {
  static PinnedPool& pool = *new PinnedPool;
  return pool;
}

}  // namespace

PinnedMemory::PinnedMemory(std::size_t bytes) : bytes_(bytes) {
  if (bytes != 0) memory_.reset(pinned_pool().take(bytes));
}

void PinnedMemory::Release::operator()(std::byte* memory) const noexcept { pinned_pool().give_back(memory); }

}  // namespace imago::cuda
