#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "imago/error.h"
#include "models/recipe.h"

namespace imago::models {

namespace {

using files::StoredTensor;

// A multiple of every block, of every group of scales and of eight, so that ranges never share a byte.
constexpr std::size_t kUnit = 2048;

/// `values` elements take `bytes` bytes.
struct Density {
  std::size_t values, bytes;
};

Density density_of(const StoredTensor& tensor) {
  if (tensor.format) {
    const auto values = static_cast<std::size_t>(std::max(tensor.format->block_values(), 8));
    return {values, packed_bytes(*tensor.format, values)};
  }
  if (tensor.gguf_type) {
    return {static_cast<std::size_t>(tensor.gguf_type->values), static_cast<std::size_t>(tensor.gguf_type->bytes)};
  }
  return {8, static_cast<std::size_t>(tensor.safetensors_type ? bits(*tensor.safetensors_type) : 8)};
}

/// The bytes of elements that start at a byte; the last ones of a tensor may end inside one.
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

/// Where a row of sections is among groups, or of groups among sections.
std::size_t section_row(std::size_t row, std::span<const std::size_t> group_rows, std::size_t groups) noexcept {
  const std::size_t all = std::accumulate(group_rows.begin(), group_rows.end(), std::size_t{0});
  std::size_t before = 0;  // rows of the sections before, in a group
  for (const std::size_t own : group_rows) {
    if (const std::size_t within = row - before * groups; within < own * groups) {
      return within / own * all + before + within % own;
    }
    before += own;
  }
  return row;
}
std::size_t group_row(std::size_t row, std::span<const std::size_t> group_rows, std::size_t groups) noexcept {
  const std::size_t all = std::accumulate(group_rows.begin(), group_rows.end(), std::size_t{0});
  std::size_t before = 0;
  for (const std::size_t own : group_rows) {
    if (row % all < before + own) return before * groups + row / all * own + row % all - before;
    before += own;
  }
  return row;
}

}  // namespace

std::size_t HeadOrder::source(std::size_t at) const noexcept {
  if (at < first) return at;
  const std::size_t head = (at - first) / values, within = (at - first) % values;
  const std::size_t from =
      to_tiled ? head % groups * group_heads + head / groups : head % group_heads * groups + head / group_heads;
  return first + from * values + within;
}

bool permutes_rows(RowTransform transform) noexcept {
  return transform == RowTransform::to_adjacent || transform == RowTransform::to_halves ||
         transform == RowTransform::to_sections || transform == RowTransform::to_groups;
}

RecipeReader::RecipeReader(const TensorRecipe& recipe, bool whole_rows)
    : recipe_(recipe), elements_(recipe.shape.elements()) {
  // A permuted vector is a column: each of its values is a row.
  cols_ = recipe.shape.rank() < 2 ? (permutes() ? 1 : elements_) : recipe.shape.last();
  rows_ = cols_ == 0 ? 0 : elements_ / cols_;
  std::size_t found = 0;
  for (const SourceRows& part : recipe.parts) found += part.rows * part.tensor->cols();
  if (recipe.transform == RowTransform::weave) {
    found = 0;
    for (const WovenSlice& one : recipe.woven) found += one.slice.rows * one.slice.cols;
  }
  if (found != elements_) {
    const StoredTensor& source = *recipe.parts.front().tensor;
    throw FormatError(
        source.file, source.offset,
        fmt::format("tensor '{}' {} would be made of {} elements", recipe.name, recipe.shape.to_string(), found));
  }
  unit_ = whole_rows || permutes() || recipe_.order || needs_whole() ? 8 * std::max<std::size_t>(cols_, 1) : kUnit;
}

bool RecipeReader::permutes() const noexcept {
  return permutes_rows(recipe_.transform) || (recipe_.order && !recipe_.order->columns);
}

std::size_t RecipeReader::source_row(std::size_t row) const noexcept {
  if (recipe_.order) return recipe_.order->source(row);
  if (recipe_.transform == RowTransform::to_sections) return section_row(row, recipe_.group_rows, recipe_.heads);
  if (recipe_.transform == RowTransform::to_groups) return group_row(row, recipe_.group_rows, recipe_.heads);
  const std::size_t head_rows = rows_ / std::max<std::size_t>(recipe_.heads, 1), half = head_rows / 2;
  const std::size_t head = row / head_rows, j = row % head_rows;
  const bool to_adjacent = recipe_.transform == RowTransform::to_adjacent;
  const std::size_t from = to_adjacent ? j / 2 + (j % 2) * half : (j < half ? 2 * j : 2 * (j - half) + 1);
  return head * head_rows + from;
}

/// Calls visit(part, first element in its tensor, offset in the range, count) for each source of a range of the
/// concatenated parts.
template <class Visit>
void RecipeReader::for_each_range(std::size_t first, std::size_t count, Visit&& visit) const {
  std::size_t at = 0;
  for (const SourceRows& part : recipe_.parts) {
    const std::size_t cols = part.tensor->cols(), size = part.rows * cols;
    const std::size_t begin = std::max(first, at), end = std::min(first + count, at + size);
    if (begin < end) visit(part, part.first_row * cols + (begin - at), begin - first, end - begin);
    at += size;
  }
}

void RecipeReader::decode(std::size_t first, std::span<float> out) const {
  for_each_range(first, out.size(), [&](const SourceRows& part, std::size_t from, std::size_t at, std::size_t count) {
    if (part.master.empty()) {
      files::decode_tensor(*part.tensor, from, out.subspan(at, count));
    } else {
      std::ranges::copy(part.master.subspan(from, count), out.subspan(at, count).begin());
    }
  });
}

void RecipeReader::load_whole() {
  whole_.resize(elements_);
  if (recipe_.transform != RowTransform::weave) return decode(0, whole_);
  std::vector<float> values;
  for (const auto& [slice, place] : recipe_.woven) {
    values.resize(slice.rows * slice.cols);
    decode_slice(slice, values);
    for (std::size_t row = 0; row < slice.rows; ++row) {
      for (std::size_t col = 0; col < slice.cols; ++col) {
        whole_[place.first + row * place.row_apart + col * place.col_apart] = values[row * slice.cols + col];
      }
    }
  }
}

void RecipeReader::read(std::size_t first, std::span<float> out) const {
  const auto fetch = [&](std::size_t from, std::span<float> into) {
    if (whole_.empty()) return decode(from, into);
    std::ranges::copy(std::span(whole_).subspan(from, into.size()), into.begin());
  };
  if (recipe_.transform == RowTransform::transpose) {
    for (std::size_t i = 0; i < out.size(); i += cols_) {
      const std::size_t row = (first + i) / cols_;
      for (std::size_t c = 0; c < cols_; ++c) out[i + c] = whole_[c * rows_ + row];
    }
  } else if (permutes()) {
    for (std::size_t i = 0; i < out.size(); i += cols_) {
      fetch(source_row((first + i) / cols_) * cols_, out.subspan(i, cols_));
    }
  } else if (recipe_.order) {  // of columns
    std::vector<float> row(cols_);
    for (std::size_t i = 0; i < out.size(); i += cols_) {
      fetch(first + i, row);
      for (std::size_t c = 0; c < cols_; ++c) out[i + c] = row[recipe_.order->source(c)];
    }
  } else {
    fetch(first, out);
  }
  if (recipe_.transform == RowTransform::add_one || recipe_.transform == RowTransform::subtract_one) {
    const float one = recipe_.transform == RowTransform::add_one ? 1.0f : -1.0f;
    for (float& value : out) value += one;
  } else if (recipe_.transform == RowTransform::to_rates) {
    for (float& value : out) value = -std::exp(value);
  } else if (recipe_.transform == RowTransform::to_log_rates) {
    for (float& value : out) value = std::log(-value);
  } else if (recipe_.transform == RowTransform::scale) {
    std::size_t begin = 0;  // of the rows of a factor
    for (const RowFactor& part : recipe_.factors) {
      const std::size_t end = begin + part.rows * cols_;
      for (std::size_t i = std::max(first, begin); i < std::min(first + out.size(), end); ++i) {
        out[i - first] *= part.factor;
      }
      begin = end;
    }
  }
}

std::span<const std::byte> RecipeReader::view(std::size_t first, std::size_t count) const {
  std::span<const std::byte> found;
  if (permutes() || recipe_.order) return found;
  for_each_range(first, count, [&](const SourceRows& part, std::size_t from, std::size_t, std::size_t size) {
    if (size == count) found = bytes_of(*part.tensor, from, size);
  });
  return found;
}

void RecipeReader::copy(std::size_t first, std::size_t count, std::span<std::byte> out) const {
  std::size_t at = 0;
  const auto append = [&](const SourceRows& part, std::size_t from, std::size_t, std::size_t size) {
    const std::span<const std::byte> bytes = bytes_of(*part.tensor, from, size);
    std::ranges::copy(bytes, out.subspan(at).begin());
    at += bytes.size();
  };
  if (!permutes()) return for_each_range(first, count, append);
  for (std::size_t row = first / cols_; row < (first + count) / cols_; ++row) {
    for_each_range(source_row(row) * cols_, cols_, append);
  }
}

void RecipeReader::widen(std::size_t first, std::size_t count, DType wider, std::span<std::byte> out) const {
  const std::size_t size = static_cast<std::size_t>(bits(wider)) / 8;
  for_each_range(first, count, [&](const SourceRows& part, std::size_t from, std::size_t at, std::size_t values) {
    const StoredTensor& tensor = *part.tensor;
    const std::span<const std::byte> bytes = bytes_of(tensor, from, values);
    const std::span<std::byte> into = out.subspan(at * size, values * size);
    const DType dtype = tensor.format->dtype();
    if (dtype == DType::uint8) return widen_numbers<std::uint8_t, std::int16_t>(tensor, bytes, into);
    if (dtype == DType::uint16) return widen_numbers<std::uint16_t, std::int32_t>(tensor, bytes, into);
    if (dtype == DType::uint32) return widen_numbers<std::uint32_t, std::int64_t>(tensor, bytes, into);
    widen_numbers<std::uint64_t, std::int64_t>(tensor, bytes, into);
  });
}

std::vector<std::span<const std::byte>> RecipeReader::sources(std::size_t first, std::size_t count) const {
  std::vector<std::span<const std::byte>> found;
  for_each_range(first, count, [&](const SourceRows& part, std::size_t from, std::size_t, std::size_t size) {
    found.push_back(bytes_of(*part.tensor, from, size));
  });
  return found;
}

void RecipeReader::check(std::size_t first, std::size_t count) const {
  if (recipe_.transform == RowTransform::weave) {  // its tensors may be larger than the target, or smaller
    if (first == 0) check_all();
    return;
  }
  // In the order of the source: together, the ranges cover all of it whatever the order of rows.
  for_each_range(first, count, [&](const SourceRows& part, std::size_t from, std::size_t, std::size_t size) {
    const StoredTensor& tensor = *part.tensor;
    if (tensor.published) return files::check_values(tensor);
    StoredTensor range;
    range.name = tensor.name;
    range.type = tensor.type;
    range.format = tensor.format;
    range.safetensors_type = tensor.safetensors_type;
    range.gguf_type = tensor.gguf_type;
    range.shape = Shape{size};
    range.bytes = bytes_of(tensor, from, size);
    range.file = tensor.file;
    try {
      files::check_values(range);
    } catch (const FormatError&) {
      files::check_values(tensor);  // counts all of them and locates the first
      throw;
    }
  });
}

void RecipeReader::check_all() const {
  const StoredTensor* checked = nullptr;
  for (const SourceRows& part : recipe_.parts) {
    if (part.tensor != checked) files::check_values(*part.tensor);
    checked = part.tensor;
  }
}

void apply_recipe(const TensorRecipe& recipe, std::span<float> out) {
  RecipeReader reader(recipe);
  if (reader.elements() != out.size()) {
    throw ShapeError(fmt::format("tensor '{}' {} has {} elements, but {} were requested", recipe.name,
                                 recipe.shape.to_string(), reader.elements(), out.size()));
  }
  if (reader.needs_whole() || permutes_rows(recipe.transform)) reader.load_whole();
  reader.read(0, out);
}

std::uint64_t source_bytes(const TensorRecipe& recipe) {
  const RecipeReader reader(recipe);
  std::uint64_t bytes = 0;
  if (recipe.parts.size() == 1) {
    const StoredTensor& source = *recipe.parts.front().tensor;
    bytes = source.stored_bytes() - source.bytes.size();
  }
  for (const auto source : reader.sources(0, reader.elements())) bytes += source.size();
  return bytes;
}

}  // namespace imago::models
