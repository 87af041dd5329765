#include "base/line_vector.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace imago {
namespace {

TEST(LineVector, BeginsAtALineHoweverItGrows) {
  LineVector<std::uint16_t> memory;
  for (std::size_t count = 1; count < 3000000; count = 3 * count + 1) {
    const std::span<std::uint16_t> all = sized(memory, count);
    EXPECT_EQ(all.size(), count);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(all.data()) % 64, 0u) << count;
  }
  EXPECT_EQ(sized(memory, 5).data(), memory.data()) << "what is there is kept";
  EXPECT_THROW(LineAllocator<double>().allocate(static_cast<std::size_t>(-1) / 4), std::bad_array_new_length);
}

}  // namespace
}  // namespace imago
