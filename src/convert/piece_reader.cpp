#include "convert/piece_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "imago/error.h"

namespace imago::convert {

namespace {

using files::StoredTensor;
using models::Rework;

// A multiple of every block, of every group of scales and of eight, so that pieces never share a byte.
constexpr std::size_t kUnit = 2048;

/// `values` elements take `bytes` bytes.
struct Density {
  std::size_t values, bytes;
};

Density density_of(const StoredTensor& tensor) {
  if (tensor.format && tensor.format->is_block()) {
    const BlockFormatInfo& block = info(tensor.format->block());
    return {static_cast<std::size_t>(block.values), static_cast<std::size_t>(block.bytes)};
  }
  if (tensor.format) return {8, static_cast<std::size_t>(bits(tensor.format->dtype()))};
  if (tensor.gguf_type) {
    return {static_cast<std::size_t>(tensor.gguf_type->values), static_cast<std::size_t>(tensor.gguf_type->bytes)};
  }
  return {8, static_cast<std::size_t>(tensor.safetensors_type ? bits(*tensor.safetensors_type) : 8)};
}

/// Elements that take whole bytes, from a place that is one too; the last ones of a tensor may end inside a byte.
std::span<const std::byte> bytes_of(const StoredTensor& tensor, std::size_t first, std::size_t count) {
  const Density density = density_of(tensor);
  const auto offset = [&](std::size_t element) {
    return element / density.values * density.bytes +
           (element % density.values * density.bytes + density.values - 1) / density.values;
  };
  const std::size_t begin = std::min(offset(first), tensor.bytes.size());
  const std::size_t end = std::min(offset(first + count), tensor.bytes.size());
  return tensor.bytes.subspan(begin, end - begin);
}

template <class From, class To>
void widen_numbers(const StoredTensor& tensor, std::span<const std::byte> from, std::span<std::byte> to) {
  const std::size_t count = from.size() / sizeof(From);
  for (std::size_t i = 0; i < count; ++i) {
    From number;
    std::memcpy(&number, from.data() + i * sizeof(From), sizeof number);
    const To wide = static_cast<To>(number);
    if (wide < 0) {
      throw FormatError(tensor.file, tensor.offset,
                        fmt::format("tensor '{}' holds {}, which no type of GGUF can hold", tensor.name, number));
    }
    std::memcpy(to.data() + i * sizeof(To), &wide, sizeof wide);
  }
}

}  // namespace

PieceReader::PieceReader(const PlannedTensor& planned) : planned_(planned) {
  const models::TensorRecipe& recipe = *planned.recipe;
  elements_ = recipe.shape.elements();
  const bool vector = recipe.shape.rank() < 2;
  // The values of a vector that are put in another order are rows of one.
  cols_ = vector ? (permutes() ? 1 : elements_) : recipe.shape.last();
  rows_ = cols_ == 0 ? 0 : elements_ / cols_;
  std::size_t at = 0;
  for (const models::SourceRows& part : recipe.parts) {
    const std::size_t cols = part.tensor->cols();
    parts_.push_back({part.tensor, at, at + part.rows * cols, part.first_row * cols});
    at += part.rows * cols;
  }
  if (at != elements_) {
    throw FormatError(
        planned.source().file, planned.source().offset,
        fmt::format("tensor '{}' {} would be made of {} elements", recipe.name, recipe.shape.to_string(), at));
  }
  const bool whole_rows = permutes() || planned.scheme.granularity == Granularity::row;
  const bool transposes = recipe.rework == Rework::transpose;
  unit_ = whole_rows || transposes ? 8 * std::max<std::size_t>(cols_, 1) : kUnit;
  needs_whole_ = transposes;
}

bool PieceReader::permutes() const noexcept {
  return planned_.recipe->rework == Rework::to_adjacent || planned_.recipe->rework == Rework::to_halves;
}

std::size_t PieceReader::source_row(std::size_t row) const noexcept {
  return models::source_row(*planned_.recipe, row, rows_);
}

template <class Visit>
void PieceReader::for_each_range(std::size_t first, std::size_t count, Visit&& visit) const {
  for (const Part& part : parts_) {
    const std::size_t begin = std::max(first, part.begin), end = std::min(first + count, part.end);
    if (begin < end) visit(*part.tensor, part.first + (begin - part.begin), begin - first, end - begin);
  }
}

void PieceReader::load_whole() {
  whole_.resize(elements_);
  for_each_range(0, elements_, [&](const StoredTensor& tensor, std::size_t from, std::size_t at, std::size_t count) {
    files::decode_tensor(tensor, from, std::span(whole_).subspan(at, count));
  });
}

void PieceReader::read(std::size_t first, std::span<float> out) const {
  const auto decode = [&](std::size_t from, std::span<float> into) {
    for_each_range(from, into.size(),
                   [&](const StoredTensor& tensor, std::size_t at, std::size_t offset, std::size_t count) {
                     files::decode_tensor(tensor, at, into.subspan(offset, count));
                   });
  };
  const Rework rework = planned_.recipe->rework;
  if (rework == Rework::transpose) {
    for (std::size_t i = 0; i < out.size(); i += cols_) {
      const std::size_t row = (first + i) / cols_;
      for (std::size_t c = 0; c < cols_; ++c) out[i + c] = whole_[c * rows_ + row];
    }
  } else if (permutes()) {
    for (std::size_t i = 0; i < out.size(); i += cols_) {
      const std::size_t from = source_row((first + i) / cols_) * cols_;
      if (whole_.empty()) {
        decode(from, out.subspan(i, cols_));
      } else {
        std::copy_n(whole_.begin() + static_cast<std::ptrdiff_t>(from), cols_,
                    out.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  } else if (!whole_.empty()) {
    std::copy_n(whole_.begin() + static_cast<std::ptrdiff_t>(first), out.size(), out.begin());
  } else {
    decode(first, out);
  }
  if (rework == Rework::add_one || rework == Rework::subtract_one) {
    const float one = rework == Rework::add_one ? 1.0f : -1.0f;
    for (float& value : out) value += one;
  }
}

std::span<const std::byte> PieceReader::view(std::size_t first, std::size_t count) const {
  std::span<const std::byte> found;
  if (permutes()) return found;
  for_each_range(first, count, [&](const StoredTensor& tensor, std::size_t from, std::size_t, std::size_t part) {
    if (part == count) found = bytes_of(tensor, from, part);
  });
  return found;
}

void PieceReader::copy(std::size_t first, std::size_t count, std::span<std::byte> out) const {
  std::size_t at = 0;
  const auto append = [&](const StoredTensor& tensor, std::size_t from, std::size_t, std::size_t part) {
    const std::span<const std::byte> bytes = bytes_of(tensor, from, part);
    std::ranges::copy(bytes, out.begin() + static_cast<std::ptrdiff_t>(at));
    at += bytes.size();
  };
  if (!permutes()) return for_each_range(first, count, append);
  for (std::size_t row = first / cols_; row < (first + count) / cols_; ++row) {
    for_each_range(source_row(row) * cols_, cols_, append);
  }
}

void PieceReader::widen(std::size_t first, std::size_t count, std::span<std::byte> out) const {
  const auto size = static_cast<std::size_t>(bits(planned_.type.format->dtype())) / 8;
  for_each_range(first, count, [&](const StoredTensor& tensor, std::size_t from, std::size_t at, std::size_t part) {
    const std::span<const std::byte> bytes = bytes_of(tensor, from, part);
    const std::span<std::byte> into = out.subspan(at * size, part * size);
    const DType dtype = tensor.format->dtype();
    if (dtype == DType::uint8) return widen_numbers<std::uint8_t, std::int16_t>(tensor, bytes, into);
    if (dtype == DType::uint16) return widen_numbers<std::uint16_t, std::int32_t>(tensor, bytes, into);
    if (dtype == DType::uint32) return widen_numbers<std::uint32_t, std::int64_t>(tensor, bytes, into);
    widen_numbers<std::uint64_t, std::int64_t>(tensor, bytes, into);
  });
}

std::vector<std::span<const std::byte>> PieceReader::sources(std::size_t first, std::size_t count) const {
  std::vector<std::span<const std::byte>> found;
  for_each_range(first, count, [&](const StoredTensor& tensor, std::size_t from, std::size_t, std::size_t part) {
    found.push_back(bytes_of(tensor, from, part));
  });
  return found;
}

void PieceReader::check(std::size_t first, std::size_t count) const {
  // In the order of the source: all pieces together see all of it, whatever the order of rows.
  for_each_range(first, count, [&](const StoredTensor& tensor, std::size_t from, std::size_t, std::size_t part) {
    StoredTensor piece;
    piece.name = tensor.name;
    piece.type = tensor.type;
    piece.format = tensor.format;
    piece.safetensors_type = tensor.safetensors_type;
    piece.gguf_type = tensor.gguf_type;
    piece.shape = Shape{part};
    piece.bytes = bytes_of(tensor, from, part);
    piece.file = tensor.file;
    try {
      files::check_values(piece);
    } catch (const FormatError&) {
      files::check_values(tensor);  // says how many there are, and where the first is
      throw;
    }
  });
}

void PieceReader::check_all() const {
  const StoredTensor* checked = nullptr;
  for (const Part& part : parts_) {
    if (part.tensor != checked) files::check_values(*part.tensor);
    checked = part.tensor;
  }
}

}  // namespace imago::convert
