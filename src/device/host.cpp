// Buffers, the host as a device (plain memory, huge pages for large buffers), devices by name, and memory bandwidth.

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <utility>

#include "base/parallel.h"
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
  Buffer taken(std::move(other));  // releases what this buffer held now, not when `other` is destroyed
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

// ---- the host

namespace {

constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector load
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// From here on memory comes in 2 MiB pages: streaming weights through 4 KiB pages costs up to a fifth of the read
// bandwidth. Below it, rounding up to whole huge pages would waste more than they gain.
constexpr std::size_t kLarge = 2 * kHugePage;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::byte* allocate_small(std::size_t bytes) {
  void* memory = std::aligned_alloc(kAlignment, round_up(bytes, kAlignment));
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, bytes);
  return static_cast<std::byte*>(memory);
}

/// Maps one huge page more than asked for and returns the ends that stick out. The pages are zero and take no memory
/// until they are touched.
std::byte* map_large(std::size_t bytes) {
  if (bytes > std::numeric_limits<std::size_t>::max() - 2 * kHugePage) throw std::bad_alloc();
  const std::size_t wanted = round_up(bytes, kHugePage);
  void* mapping = ::mmap(nullptr, wanted + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  std::byte* const start = static_cast<std::byte*>(mapping);
  const std::size_t past_boundary = reinterpret_cast<std::uintptr_t>(start) % kHugePage;
  const std::size_t head = (kHugePage - past_boundary) % kHugePage;
  std::byte* const memory = start + head;
  if (head != 0) ::munmap(start, head);
  ::munmap(memory + wanted, kHugePage - head);  // head < kHugePage, so there always is a tail
  ::madvise(memory, wanted, MADV_HUGEPAGE);     // optional: fails where the kernel has no huge pages
  return memory;
}

class Host final : public Device {
 public:
  std::string name() const override { return "cpu"; }
  bool is_host() const noexcept override { return true; }

  Buffer allocate(std::size_t bytes) override {
    if (bytes == 0) return Buffer(shared_from_this(), nullptr, 0);
    return Buffer(shared_from_this(), bytes < kLarge ? allocate_small(bytes) : map_large(bytes), bytes);
  }

  void upload(std::span<const std::byte> from, Buffer& to, std::size_t offset) override {
    check_range(to, offset, from.size());
    std::copy(from.begin(), from.end(), to.host().begin() + static_cast<std::ptrdiff_t>(offset));
  }

  void download(const Buffer& from, std::size_t offset, std::span<std::byte> to) override {
    check_range(from, offset, to.size());
    const std::span<const std::byte> range = from.host().subspan(offset, to.size());
    std::copy(range.begin(), range.end(), to.begin());
  }

 private:
  void release(std::byte* memory, std::size_t bytes) noexcept override {
    if (bytes < kLarge) {
      std::free(memory);
    } else {
      ::munmap(memory, round_up(bytes, kHugePage));
    }
  }
};

}  // namespace

std::shared_ptr<Device> host_device() {
  static const std::shared_ptr<Device> host = std::make_shared<Host>();
  return host;
}

// ---- devices by name

namespace {

/// The N of "cuda:N", 0 for "cuda"; nothing for other names.
std::optional<int> cuda_number(std::string_view name) {
  constexpr std::string_view kPrefix = "cuda";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  if (name.empty()) return 0;
  if (name.size() < 2 || name[0] != ':') return std::nullopt;
  name.remove_prefix(1);
  if (!std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; })) return std::nullopt;
  int number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  return error == std::errc() ? number : std::numeric_limits<int>::max();  // a valid number that no device has
}

double host_copy_bandwidth(Device& host) {
  constexpr std::size_t kBytes = std::size_t{128} << 20;  // more than most last-level caches
  constexpr std::size_t kGrain = std::size_t{1} << 20;
  Buffer from = host.allocate(kBytes), to = host.allocate(kBytes);
  const auto copy = [&] {
    parallel_for(kBytes, kGrain, [&](std::size_t begin, std::size_t end) {
      std::memcpy(to.address() + begin, from.address() + begin, end - begin);
    });
  };
  std::memset(from.address(), 1, kBytes);  // untouched pages all map the same page of zeros
  copy();
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    const auto start = std::chrono::steady_clock::now();
    copy();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2.0 * static_cast<double>(kBytes) / time.count());
  }
  return best;
}

}  // namespace

std::shared_ptr<Device> open_device(std::string_view name) {
  if (name == "cpu") return host_device();
  const std::optional<int> number = cuda_number(name);
  if (!number) throw UsageError(fmt::format("unknown device '{}': use cpu, cuda, or cuda:1 for a second GPU", name));
  return cuda::open(*number);
}

double measure_copy_bandwidth(Device& device) {
  return device.is_host() ? host_copy_bandwidth(device) : cuda::copy_bandwidth(device);
}

}  // namespace imago
