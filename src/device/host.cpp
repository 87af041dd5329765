// The host as a device: plain memory, huge pages for what is large.

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "device/backend.h"
#include "imago/device.h"

namespace imago {

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
  ::madvise(memory, wanted, MADV_HUGEPAGE);     // a wish: a kernel without huge pages refuses, and all still works
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

}  // namespace imago
