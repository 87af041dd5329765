#include "imago/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <type_traits>
#include <vector>

#include "imago/error.h"

namespace imago {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();

static_assert(!std::is_copy_constructible_v<Buffer> && !std::is_copy_assignable_v<Buffer>);
static_assert(std::is_nothrow_move_constructible_v<Buffer> && std::is_nothrow_move_assignable_v<Buffer>);

std::uintptr_t address(const Buffer& buffer) { return reinterpret_cast<std::uintptr_t>(buffer.address()); }

std::vector<std::byte> counting(std::size_t bytes) {
  std::vector<std::byte> values(bytes);
  for (std::size_t i = 0; i < bytes; ++i) values[i] = static_cast<std::byte>(i + 1);
  return values;
}

/// Counts releases and claims to be elsewhere.
class FarDevice final : public Device {
 public:
  std::string name() const override { return "far:0"; }
  bool is_host() const noexcept override { return false; }
  Buffer allocate(std::size_t bytes) override { return Buffer(shared_from_this(), &memory_, bytes); }
  void upload(std::span<const std::byte>, Buffer&, std::size_t) override {}
  void download(const Buffer&, std::size_t, std::span<std::byte>) override {}
  int releases = 0;

 private:
  void release(std::byte*, std::size_t) noexcept override { ++releases; }
  std::byte memory_{};
};

TEST(HostDevice, IsOneAndTheHost) {
  EXPECT_EQ(host_device(), host_device());
  EXPECT_EQ(host_device()->name(), "cpu");
  EXPECT_TRUE(host_device()->is_host());
}

TEST(HostDevice, MemoryIsAlignedAndZero) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{63}, std::size_t{65}, 4 * kMiB - 1}) {
    // The second allocation may get the memory of the first, which was written to.
    for (int round = 0; round < 2; ++round) {
      Buffer buffer = host_device()->allocate(bytes);
      ASSERT_EQ(buffer.size(), bytes);
      EXPECT_EQ(address(buffer) % 64, 0u) << bytes;
      EXPECT_TRUE(std::ranges::all_of(buffer.host(), [](std::byte b) { return b == std::byte{0}; })) << bytes;
      std::ranges::fill(buffer.host(), std::byte{0xFF});
    }
  }
}

TEST(HostDevice, LargeMemoryStartsOnAHugePage) {
  for (const std::size_t bytes : {4 * kMiB, 4 * kMiB + 1, 7 * kMiB + 12345}) {
    for (int round = 0; round < 3; ++round) {
      Buffer buffer = host_device()->allocate(bytes);
      ASSERT_EQ(buffer.size(), bytes);
      EXPECT_EQ(address(buffer) % (2 * kMiB), 0u) << bytes;
      EXPECT_EQ(std::ranges::count(buffer.host(), std::byte{0}), static_cast<std::ptrdiff_t>(bytes));
      std::ranges::fill(buffer.host(), std::byte{0xFF});  // every byte is mapped
    }
  }
}

TEST(HostDevice, ImpossibleSizesAreBadAlloc) {
  EXPECT_THROW(host_device()->allocate(kMost), std::bad_alloc);
  EXPECT_THROW(host_device()->allocate(kMost - 4 * kMiB), std::bad_alloc);
  EXPECT_THROW(host_device()->allocate(std::size_t{1} << 60), std::bad_alloc);
}

TEST(HostDevice, NothingIsAnEmptyBuffer) {
  Buffer buffer = host_device()->allocate(0);
  EXPECT_TRUE(buffer.empty());
  EXPECT_EQ(buffer.device(), host_device());
  EXPECT_TRUE(buffer.host().empty());
  EXPECT_NO_THROW(host_device()->upload({}, buffer, 0));
  EXPECT_NO_THROW(host_device()->download(buffer, 0, {}));
}

TEST(HostDevice, CopiesInAndOutAtAnOffset) {
  Buffer buffer = host_device()->allocate(8);
  host_device()->upload(counting(3), buffer, 4);
  const std::array<std::byte, 8> expected{{{}, {}, {}, {}, std::byte{1}, std::byte{2}, std::byte{3}, {}}};
  EXPECT_TRUE(std::ranges::equal(buffer.host(), expected));

  std::vector<std::byte> got(4);
  host_device()->download(buffer, 3, got);
  EXPECT_EQ(got, (std::vector<std::byte>{{}, std::byte{1}, std::byte{2}, std::byte{3}}));
}

TEST(HostDevice, CopiesThatDoNotFitAreShapeErrors) {
  Buffer buffer = host_device()->allocate(8);
  std::vector<std::byte> five = counting(5);
  EXPECT_THROW(host_device()->upload(five, buffer, 4), ShapeError);
  EXPECT_THROW(host_device()->download(buffer, 4, five), ShapeError);
  EXPECT_THROW(host_device()->upload({}, buffer, 9), ShapeError);
  // offset + size wraps around to 3, which would fit
  EXPECT_THROW(host_device()->upload(five, buffer, kMost - 1), ShapeError);
  EXPECT_THROW(host_device()->download(buffer, kMost - 1, five), ShapeError);
  EXPECT_TRUE(std::ranges::all_of(buffer.host(), [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_NO_THROW(host_device()->upload(five, buffer, 3));
  EXPECT_NO_THROW(host_device()->upload({}, buffer, 8));
}

TEST(Buffer, MovingLeavesAnEmptyOne) {
  Buffer first = host_device()->allocate(16);
  const std::byte* memory = first.address();
  Buffer second = std::move(first);
  EXPECT_EQ(second.address(), memory);
  EXPECT_EQ(second.size(), 16u);
  EXPECT_TRUE(first.empty());  // NOLINT: the moved-from state is the contract
  EXPECT_EQ(first.address(), nullptr);
  EXPECT_TRUE(first.host().empty());
}

TEST(Buffer, AssignmentReleasesWhatItHeldAtOnce) {
  const auto device = std::make_shared<FarDevice>();
  Buffer first = device->allocate(1);
  Buffer second = device->allocate(1);
  first = std::move(second);
  EXPECT_EQ(device->releases, 1);
  Buffer& same = first;
  first = std::move(same);
  EXPECT_EQ(device->releases, 1) << "moving a buffer to itself keeps it";
  EXPECT_EQ(first.size(), 1u);
  first = Buffer();
  EXPECT_EQ(device->releases, 2);
}

TEST(Buffer, KeepsItsDeviceAlive) {
  auto device = std::make_shared<FarDevice>();
  const std::weak_ptr<FarDevice> watch = device;
  {
    const Buffer buffer = device->allocate(1);
    device.reset();
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

TEST(Buffer, HostBytesOfAnotherDeviceAreUnsupported) {
  const auto device = std::make_shared<FarDevice>();
  Buffer far = device->allocate(1);
  EXPECT_THROW(far.host(), UnsupportedError);
  EXPECT_THROW(std::as_const(far).host(), UnsupportedError);
  const std::vector<std::byte> one(1);
  EXPECT_THROW(host_device()->upload(one, far, 0), UnsupportedError);
  EXPECT_TRUE(Buffer().host().empty());
}

TEST(OpenDevice, TheHostByName) {
  EXPECT_EQ(open_device("cpu"), host_device());
  EXPECT_GT(measure_copy_bandwidth(*host_device()), 1e8);
}

TEST(OpenDevice, OtherNamesAreUsageErrors) {
  for (const char* name :
       {"", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:+1", "cuda:1x", "cuda:0x1", "cuda1", "cuda: 1", "cpu:0"}) {
    EXPECT_THROW(open_device(name), UsageError) << '\'' << name << '\'';
  }
}

TEST(OpenDevice, ADeviceThatIsNotThereIsADeviceError) {
  for (const char* name : {"cuda:4096", "cuda:99999999999999999999"}) {
    try {
      open_device(name);
      ADD_FAILURE() << name;
    } catch (const DeviceError& error) {
      EXPECT_GT(std::string(error.what()).size(), 10u);
    }
  }
}

TEST(OpenDevice, AnEmptyListHasAReason) {
  const std::vector<DeviceInfo> devices = accelerators();
  EXPECT_EQ(devices.empty(), !accelerator_problem().empty()) << accelerator_problem();
  for (const DeviceInfo& device : devices) EXPECT_EQ(open_device(device.name)->name(), device.name);
  if (!devices.empty()) return;
  try {
    open_device("cuda");
    ADD_FAILURE();
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.what(), accelerator_problem());
  }
}

}  // namespace
}  // namespace imago
