// Feeds bytes to the readers of datasets: each gives examples that fit together, or an error of ours.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "files/datasets.h"
#include "imago/error.h"

namespace imago {
namespace {

template <class Read>
void expect_dataset_or_error(Read&& read) {
  try {
    const Dataset data = read();
    const bool fits = data.size() > 0 && data.y.shape().rank() > 0 && data.y.shape()[0] == data.size();
    if (!fits) std::abort();
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace imago

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace imago;
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  const std::span<const std::byte> raw = std::as_bytes(std::span(bytes, size));
  expect_dataset_or_error([&] { return files::parse_csv(text, "fuzz", 1); });
  expect_dataset_or_error([&] {
    Dataset data = files::parse_csv(text, "fuzz", 1);
    files::make_one_hot(data);
    return data;
  });
  expect_dataset_or_error(
      [&] { return files::join_idx(files::parse_idx(raw, "fuzz"), files::parse_idx(raw, "fuzz")); });
  expect_dataset_or_error([&] { return make_text_dataset(text, {.context = 3}).data; });
  expect_dataset_or_error([&] { return make_text_dataset(text, {.context = 3, .unit = TextUnit::byte}).data; });
  return 0;
}
