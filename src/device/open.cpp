// Devices by name, and how fast their memory is.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>

#include "base/parallel.h"
#include "device/backend.h"
#include "imago/device.h"
#include "imago/error.h"

namespace imago {

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
  return error == std::errc() ? number : std::numeric_limits<int>::max();  // a number, if one that no device has
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
  std::memset(from.address(), 1, kBytes);  // untouched pages are all the same page of zeros
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
  if (!number)
    throw UsageError(fmt::format("there is no device '{}': write cpu, cuda, or cuda:1 for a second GPU", name));
  return cuda::open(*number);
}

double measure_copy_bandwidth(Device& device) {
  return device.is_host() ? host_copy_bandwidth(device) : cuda::copy_bandwidth(device);
}

}  // namespace imago
