#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "device/cuda/check.h"
#include "device/cuda/stream.h"
#include "imago/device.h"
#include "imago/error.h"
#include "testing/gpu.h"

namespace imago::cuda {
namespace {

class CudaDeviceTest : public testing::GpuTest {};

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// Bytes that no piece, chunk or page repeats.
std::vector<std::byte> noise(std::size_t bytes) {
  std::vector<std::byte> values(bytes);
  std::uint32_t state = 1;
  for (std::byte& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<std::byte>(state >> 24);
  }
  return values;
}

std::size_t first_difference(std::span<const std::byte> a, std::span<const std::byte> b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

TEST_F(CudaDeviceTest, IsOnePerNumber) {
  EXPECT_EQ(device(), open_device("cuda:0"));
  EXPECT_EQ(device()->name(), "cuda:0");
  EXPECT_FALSE(device()->is_host());
  EXPECT_EQ(number_of(*device()), 0);
  EXPECT_THROW(number_of(*host_device()), UsageError);
  EXPECT_THROW(Stream{host_device()}, UsageError);
}

TEST_F(CudaDeviceTest, IsDescribed) {
  const std::vector<DeviceInfo> all = accelerators();
  ASSERT_FALSE(all.empty());
  const DeviceInfo& info = all.front();
  EXPECT_EQ(info.name, "cuda:0");
  EXPECT_FALSE(info.model.empty());
  EXPECT_GE(info.architecture, "8.0");
  EXPECT_GT(info.memory, 1024 * kMiB);
  EXPECT_GT(info.free_memory, 0u);
  EXPECT_LE(info.free_memory, info.memory);
  EXPECT_GT(info.multiprocessors, 0);
  EXPECT_GT(info.clock_ghz, 0.1);
  EXPECT_EQ(accelerator_problem(), "");
  RecordProperty("device", info.model);
}

TEST_F(CudaDeviceTest, MemoryIsAlignedAndZero) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{63}, std::size_t{65}, 40 * kMiB - 1}) {
    for (int round = 0; round < 2; ++round) {  // the second may get the memory of the first, which was written to
      Buffer buffer = device()->allocate(bytes);
      ASSERT_EQ(buffer.size(), bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.address()) % 256, 0u);
      std::vector<std::byte> got(bytes, std::byte{1});
      device()->download(buffer, 0, got);
      EXPECT_EQ(std::ranges::count(got, std::byte{0}), static_cast<std::ptrdiff_t>(bytes));
      device()->upload(std::vector<std::byte>(bytes, std::byte{0xFF}), buffer, 0);
      EXPECT_THROW(buffer.host(), UnsupportedError);
    }
  }
}

TEST_F(CudaDeviceTest, CopiesGoThereAndBack) {
  // Around the small staging buffer, the large one, and several of it.
  const std::size_t sizes[] = {1, 3, 255, 65535, 65536, 65537, 8 * kMiB - 1, 8 * kMiB, 8 * kMiB + 1, 33 * kMiB + 77};
  for (const std::size_t bytes : sizes) {
    for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{129}}) {
      const std::vector<std::byte> sent = noise(bytes);
      Buffer buffer = device()->allocate(offset + bytes + 5);
      device()->upload(sent, buffer, offset);
      std::vector<std::byte> got(offset + bytes + 5, std::byte{0xEE});
      device()->download(buffer, 0, got);
      const auto middle = std::span(got).subspan(offset, bytes);
      ASSERT_TRUE(std::ranges::equal(middle, sent))
          << bytes << " bytes at " << offset << ": first difference at " << first_difference(middle, sent);
      std::fill(middle.begin(), middle.end(), std::byte{0});
      ASSERT_EQ(std::ranges::count(got, std::byte{0}), static_cast<std::ptrdiff_t>(got.size())) << "beyond the edges";

      std::vector<std::byte> part(bytes / 2);
      device()->download(buffer, offset + bytes / 3, part);
      ASSERT_TRUE(std::ranges::equal(part, std::span(sent).subspan(bytes / 3, bytes / 2))) << bytes;
    }
  }
}

TEST_F(CudaDeviceTest, WrongCopiesAreRefused) {
  Buffer buffer = device()->allocate(8);
  std::vector<std::byte> five(5);
  EXPECT_THROW(device()->upload(five, buffer, 4), ShapeError);
  EXPECT_THROW(device()->download(buffer, 4, five), ShapeError);
  EXPECT_THROW(device()->upload(five, buffer, std::numeric_limits<std::size_t>::max() - 1), ShapeError);
  Buffer host = host_device()->allocate(8);
  EXPECT_THROW(device()->upload(five, host, 0), UnsupportedError);
  EXPECT_THROW(device()->download(host, 0, five), UnsupportedError);
  EXPECT_THROW(host_device()->upload(five, buffer, 0), UnsupportedError);
  Buffer none = device()->allocate(0);
  EXPECT_TRUE(none.empty());
  EXPECT_NO_THROW(device()->upload({}, none, 0));
  EXPECT_NO_THROW(device()->download(none, 0, {}));
}

TEST_F(CudaDeviceTest, TooMuchMemoryIsRefusedWithWhatWouldFit) {
  const std::size_t wanted = accelerators().front().memory + kMiB;
  for (const std::size_t bytes : {wanted, std::size_t{1} << 60, std::numeric_limits<std::size_t>::max()}) {
    try {
      device()->allocate(bytes);
      ADD_FAILURE() << bytes << " bytes were given";
    } catch (const DeviceError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("cuda:0"), std::string::npos) << text;
      EXPECT_TRUE(bytes != wanted || text.find("at most that would fit") != std::string::npos) << text;
      std::printf("message: %s\n", text.c_str());
    }
  }
  EXPECT_NO_THROW(device()->allocate(kMiB)) << "the error must not stick";
}

TEST_F(CudaDeviceTest, SeveralThreadsCopyAtOnce) {
  const std::vector<std::byte> sent = noise(3 * kMiB + 1);
  std::vector<std::thread> threads;
  std::vector<int> right(4);
  for (int& ok : right) {
    threads.emplace_back([&] {
      Buffer buffer = device()->allocate(sent.size());
      std::vector<std::byte> got(sent.size());
      device()->upload(sent, buffer, 0);
      device()->download(buffer, 0, got);
      ok = got == sent ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, std::vector<int>(4, 1));
}

TEST_F(CudaDeviceTest, StreamsCopyInOrder) {
  Stream stream(device());
  PinnedMemory in(kMiB + 3), out(kMiB + 3);
  std::ranges::copy(noise(kMiB + 3), in.bytes().begin());
  Array<std::byte> first(*device(), kMiB + 3), second(*device(), kMiB + 3);
  stream.copy_in(in.bytes(), first.data());
  stream.copy_within(first.data(), second.data(), kMiB + 3);
  stream.fill_zero(second.data() + 5, 7);
  stream.copy_out(second.data(), out.bytes());
  stream.wait();
  std::ranges::fill(in.bytes().subspan(5, 7), std::byte{0});
  EXPECT_TRUE(std::ranges::equal(in.bytes(), out.bytes())) << first_difference(in.bytes(), out.bytes());

  Stream moved = std::move(stream);
  moved.fill_zero(first.data(), 1);
  EXPECT_NO_THROW(moved.wait());
}

TEST_F(CudaDeviceTest, AGraphFollowsWhatItsPointersHold) {
  Stream stream(device());
  Array<std::uint32_t> a(*device(), 1000), b(*device(), 1000);
  Graph graph(stream, [&] { stream.copy_within(a.data(), b.data(), 4000); });
  ASSERT_FALSE(graph.empty());
  std::vector<std::uint32_t> values(1000), got(1000);
  for (std::uint32_t round = 1; round <= 3; ++round) {
    std::iota(values.begin(), values.end(), round);
    device()->upload(std::as_bytes(std::span(values)), a.buffer(), 0);
    graph.launch(stream);
    stream.wait();
    device()->download(b.buffer(), 0, std::as_writable_bytes(std::span(got)));
    EXPECT_EQ(got, values) << "round " << round;
  }
  const Graph moved = std::move(graph);
  EXPECT_NO_THROW(moved.launch(stream));
  stream.wait();
  EXPECT_THROW(Graph().launch(stream), UsageError);
}

TEST_F(CudaDeviceTest, AGraphThatFailsLeavesTheStreamUsable) {
  Stream stream(device());
  Array<std::byte> a(*device(), 16);
  EXPECT_THROW(Graph(stream, [] { throw ShapeError("wrong"); }), ShapeError);
  EXPECT_THROW(Graph(stream, [&] { stream.wait(); }), DeviceError) << "waiting cannot be recorded";
  EXPECT_NO_THROW(stream.fill_zero(a.data(), 16));
  EXPECT_NO_THROW(stream.wait());
}

TEST_F(CudaDeviceTest, EventsMeasureTime) {
  Stream stream(device());
  Array<std::byte> a(*device(), 256 * kMiB);
  Event begin, end, never;
  begin.record(stream);
  for (int i = 0; i < 4; ++i) stream.fill_zero(a.data(), a.size());
  end.record(stream);
  const double seconds = Event::seconds_between(begin, end);
  EXPECT_GT(seconds, 1e-6);
  EXPECT_LT(seconds, 10);
  EXPECT_THROW(Event::seconds_between(begin, never), UsageError);
}

TEST_F(CudaDeviceTest, FailedCallsBecomeErrorsOnce) {
  Stream stream(device());
  try {
    check(cudaErrorInvalidValue, "trying");
    ADD_FAILURE();
  } catch (const DeviceError& error) {
    EXPECT_EQ(std::string(error.what()).substr(0, 8), "trying: ");
  }
  EXPECT_THROW(check(cudaMemcpyAsync(nullptr, nullptr, 1, cudaMemcpyHostToDevice, stream.handle()), "copy"),
               DeviceError);
  EXPECT_NO_THROW(check_launch("no kernel"));
}

TEST_F(CudaDeviceTest, CopyBandwidthIsMeasured) {
  const double bandwidth = measure_copy_bandwidth(*device());
  EXPECT_GT(bandwidth, 10e9);
  std::printf("copy bandwidth: %.0f GB/s\n", bandwidth * 1e-9);
}

TEST_F(CudaDeviceTest, TransferRates) {  // no claim: a figure to look at
  Buffer buffer = device()->allocate(256 * kMiB);
  std::vector<std::byte> host(256 * kMiB, std::byte{1});
  for (int round = 0; round < 2; ++round) {
    const auto start = std::chrono::steady_clock::now();
    device()->upload(host, buffer, 0);
    const auto middle = std::chrono::steady_clock::now();
    device()->download(buffer, 0, host);
    const auto end = std::chrono::steady_clock::now();
    const auto rate = [](auto time) { return 0.268435456 / std::chrono::duration<double>(time).count(); };
    std::printf("upload %.1f GB/s, download %.1f GB/s\n", rate(middle - start), rate(end - middle));
  }
}

}  // namespace
}  // namespace imago::cuda
