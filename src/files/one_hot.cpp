#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "files/dataset_readers.h"
#include "imago/error.h"

namespace imago::files {

void make_one_hot(Dataset& data) {
  constexpr double kMostElements = 1 << 30;  // 4 GiB
  const std::size_t rows = data.size();
  if (data.y.size() != rows) {
    throw ShapeError(
        fmt::format("one-hot rows need one column of class numbers, not targets {}", data.y.shape().to_string()));
  }
  float last = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    const float number = data.y[row];
    if (!(number >= 0) || number != std::floor(number)) {
      throw UsageError(fmt::format("one-hot rows need class numbers 0, 1, …: example {} has {}", row, number));
    }
    last = std::max(last, number);
  }
  // A class far beyond the number of examples is a mistake, and a small file of such must not cost gigabytes.
  const double most_classes = std::max(4096.0, 16 * static_cast<double>(rows));
  const double classes_wanted = static_cast<double>(last) + 1;
  if (classes_wanted > most_classes || classes_wanted * static_cast<double>(rows) > kMostElements) {
    throw UsageError(
        fmt::format("one-hot rows of {} examples and a class {} are too large; train with class numbers", rows, last));
  }
  const std::size_t classes = static_cast<std::size_t>(last) + 1;
  Tensor<float> one_hot({rows, classes});
  for (std::size_t row = 0; row < rows; ++row) one_hot[row * classes + static_cast<std::size_t>(data.y[row])] = 1;
  data.y = std::move(one_hot);
}

}  // namespace imago::files
