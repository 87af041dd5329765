#include "device/cuda/stream.h"

#include <utility>

#include "device/cuda/check.h"
#include "device/cuda/pinned_pool.h"
#include "imago/error.h"

namespace imago::cuda {

// Not blocking: a stream that waits for the default one would wait for whatever else the process does on the device.
Stream::Stream(std::shared_ptr<Device> device) : device_(std::move(device)) {
  if (!device_) throw UsageError("a stream of no device");
  number_ = number_of(*device_);
  make_current(*device_);
  check(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "a stream");
}

Stream::Stream(Stream&& other) noexcept
    : device_(std::move(other.device_)), number_(other.number_), handle_(std::exchange(other.handle_, nullptr)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  Stream taken(std::move(other));
  std::swap(device_, taken.device_);
  std::swap(number_, taken.number_);
  std::swap(handle_, taken.handle_);
  return *this;
}

// Work that is still queued goes on; the runtime frees the stream after it.
Stream::~Stream() {
  if (handle_ != nullptr) static_cast<void>(cudaStreamDestroy(handle()));
}

// A failure shows in the call that needs the handle.
CUstream_st* Stream::handle() const noexcept {
  static_cast<void>(cudaSetDevice(number_));
  return handle_;
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

void Stream::fill_zero(void* memory, std::size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(memory, 0, bytes, handle()), "filling device memory");
}

void Stream::wait() { check(cudaStreamSynchronize(handle()), "work on the device"); }

Graph::Graph(Stream& stream, const std::function<void()>& work) {
  // Only this thread's calls are watched: others may allocate meanwhile.
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
  const cudaError_t made = cudaGraphInstantiateWithFlags(&handle_, recorded, 0);
  static_cast<void>(cudaGraphDestroy(recorded));
  check(made, "preparing a graph");
}

Graph::Graph(Graph&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

Graph& Graph::operator=(Graph&& other) noexcept {
  Graph taken(std::move(other));
  std::swap(handle_, taken.handle_);
  return *this;
}

Graph::~Graph() {
  if (handle_ != nullptr) static_cast<void>(cudaGraphExecDestroy(handle_));
}

void Graph::launch(Stream& stream) const {
  if (empty()) throw UsageError("launching a graph that was never recorded");
  check(cudaGraphLaunch(handle_, stream.handle()), "launching a graph");
}

Event::Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  Event taken(std::move(other));
  std::swap(handle_, taken.handle_);
  return *this;
}

Event::~Event() {
  if (handle_ != nullptr) static_cast<void>(cudaEventDestroy(handle_));
}

void Event::record(Stream& stream) {
  CUstream_st* const queue = stream.handle();
  if (handle_ == nullptr) check(cudaEventCreate(&handle_), "an event");
  check(cudaEventRecord(handle_, queue), "recording an event");
}

double Event::seconds_between(const Event& begin, const Event& end) {
  if (begin.handle_ == nullptr || end.handle_ == nullptr) throw UsageError("the time between events that never were");
  check(cudaEventSynchronize(end.handle_), "work on the device");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin.handle_, end.handle_), "the time between two events");
  return 1e-3 * static_cast<double>(milliseconds);
}

namespace {

// Never destroyed: static objects may give memory back after anything that is.
PinnedPool& pinned_pool() {
  static PinnedPool& pool = *new PinnedPool;
  return pool;
}

}  // namespace

PinnedMemory::PinnedMemory(std::size_t bytes) : bytes_(bytes) {
  if (bytes != 0) memory_ = pinned_pool().take(bytes);
}

PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  PinnedMemory taken(std::move(other));
  std::swap(memory_, taken.memory_);
  std::swap(bytes_, taken.bytes_);
  return *this;
}

PinnedMemory::~PinnedMemory() {
  if (memory_ != nullptr) pinned_pool().give_back(memory_);
}

}  // namespace imago::cuda
