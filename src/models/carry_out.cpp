// Recipes of single tensors, carried out in memory. src/convert does it in pieces.

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "imago/error.h"
#include "models/recipe.h"

namespace imago::models {

namespace {

bool moves_rows(Rework rework) noexcept { return rework == Rework::to_adjacent || rework == Rework::to_halves; }

}  // namespace

std::size_t source_row(const TensorRecipe& recipe, std::size_t row, std::size_t rows) noexcept {
  if (!moves_rows(recipe.rework)) return row;
  const std::size_t head_rows = rows / std::max<std::size_t>(recipe.heads, 1), half = head_rows / 2;
  const std::size_t head = row / head_rows, j = row % head_rows;
  const std::size_t from =
      recipe.rework == Rework::to_adjacent ? j / 2 + (j % 2) * half : (j < half ? 2 * j : 2 * (j - half) + 1);
  return head * head_rows + from;
}

void carry_out(const TensorRecipe& recipe, std::span<float> out) {
  std::size_t there = 0;
  for (const SourceRows& part : recipe.parts) there += part.rows * part.tensor->cols();
  if (there != out.size() || recipe.shape.elements() != out.size()) {
    throw ShapeError(fmt::format("tensor '{}' {} is made of {} elements and asked for as {}", recipe.name,
                                 recipe.shape.to_string(), there, out.size()));
  }
  const bool in_place = recipe.rework != Rework::transpose && !moves_rows(recipe.rework);
  std::vector<float> before(in_place ? 0 : out.size());
  const std::span<float> read = in_place ? out : std::span<float>(before);
  std::size_t at = 0;
  for (const SourceRows& part : recipe.parts) {
    const std::size_t cols = part.tensor->cols(), count = part.rows * cols;
    files::decode_tensor(*part.tensor, part.first_row * cols, read.subspan(at, count));
    at += count;
  }
  // The values of a vector that are put in another order are rows of one.
  const std::size_t cols = recipe.shape.rank() < 2 ? 1 : std::max<std::size_t>(recipe.shape.last(), 1);
  const std::size_t rows = out.size() / cols;
  switch (recipe.rework) {
    case Rework::none: break;
    case Rework::to_adjacent:
    case Rework::to_halves:
      for (std::size_t row = 0; row < rows; ++row) {
        std::ranges::copy(read.subspan(source_row(recipe, row, rows) * cols, cols), out.begin() + row * cols);
      }
      break;
    case Rework::transpose:
      for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t col = 0; col < cols; ++col) out[row * cols + col] = read[col * rows + row];
      }
      break;
    case Rework::add_one:
    case Rework::subtract_one:
      for (float& value : out) value += recipe.rework == Rework::add_one ? 1.0f : -1.0f;
      break;
  }
}

}  // namespace imago::models
