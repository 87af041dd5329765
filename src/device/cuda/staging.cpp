#include "device/cuda/staging.h"

#include <algorithm>
#include <cstring>

#include "base/parallel.h"
#include "device/cuda/check.h"

namespace imago::cuda {

namespace {

// A transfer of this size (at 55 GB/s over PCIe 5) hides the start of the next one, and little memory is pinned.
constexpr std::size_t kHalf = std::size_t{8} << 20;
constexpr std::size_t kSmall = std::size_t{64} << 10;  // below this size one thread copies

void copy_bytes(const std::byte* from, std::byte* to, std::size_t bytes) {
  parallel_for(bytes, 4 * kSmall,
               [&](std::size_t begin, std::size_t end) { std::memcpy(to + begin, from + begin, end - begin); });
}

}  // namespace

Staging::Staging() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  for (Half& half : halves_) check(cudaEventCreateWithFlags(&half.transferred, cudaEventDisableTiming), "an event");
}

Staging::~Staging() {
  for (Half& half : halves_) {
    if (half.transferred != nullptr) static_cast<void>(cudaEventDestroy(half.transferred));
  }
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
}

void Staging::reserve(std::size_t bytes) {
  const std::size_t wanted = bytes <= kSmall ? kSmall : kHalf;
  for (Half& half : halves_) {
    if (half.memory.bytes().size() < wanted) half.memory = PinnedMemory(wanted);
  }
}

void Staging::upload(std::span<const std::byte> from, std::byte* to) {
  if (from.empty()) return;
  reserve(from.size());
  std::size_t turn = 0;
  for (std::size_t done = 0; done < from.size(); ++turn) {
    Half& half = halves_[turn % 2];
    const std::size_t bytes = std::min(half.memory.bytes().size(), from.size() - done);
    if (turn >= 2) check(cudaEventSynchronize(half.transferred), "copying to the device");
    copy_bytes(from.data() + done, half.memory.bytes().data(), bytes);
    check(cudaMemcpyAsync(to + done, half.memory.bytes().data(), bytes, cudaMemcpyHostToDevice, stream_),
          "copying to the device");
    check(cudaEventRecord(half.transferred, stream_), "an event");
    done += bytes;
  }
  check(cudaStreamSynchronize(stream_), "copying to the device");
}

void Staging::download(const std::byte* from, std::span<std::byte> to) {
  if (to.empty()) return;
  reserve(to.size());
  const std::size_t half_bytes = halves_[0].memory.bytes().size();
  const std::size_t chunks = (to.size() - 1) / half_bytes + 1;
  const auto bytes_of = [&](std::size_t chunk) { return std::min(half_bytes, to.size() - chunk * half_bytes); };
  // One chunk is transferred while the previous one is copied out.
  for (std::size_t chunk = 0; chunk <= chunks; ++chunk) {
    if (chunk < chunks) {
      Half& half = halves_[chunk % 2];
      check(cudaMemcpyAsync(half.memory.bytes().data(), from + chunk * half_bytes, bytes_of(chunk),
                            cudaMemcpyDeviceToHost, stream_),
            "copying from the device");
      check(cudaEventRecord(half.transferred, stream_), "an event");
    }
    if (chunk > 0) {
      Half& half = halves_[(chunk - 1) % 2];
      check(cudaEventSynchronize(half.transferred), "copying from the device");
      copy_bytes(half.memory.bytes().data(), to.data() + (chunk - 1) * half_bytes, bytes_of(chunk - 1));
    }
  }
}

void Staging::fill_zero(std::byte* memory, std::size_t bytes) {
  check(cudaMemsetAsync(memory, 0, bytes, stream_), "filling device memory");
  check(cudaStreamSynchronize(stream_), "filling device memory");
}

}  // namespace imago::cuda
