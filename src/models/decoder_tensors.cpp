#include "models/decoder_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "imago/error.h"
#include "models/tensor_layout.h"

namespace imago::models {

namespace {

using files::StoredTensor;

/// Names that are enough to see what is wrong with a file. Reading stops there: a hostile config that asks for millions
/// of tensors does not get a list of them.
constexpr std::size_t kMissingNames = 8;

bool is_buffer(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

bool is_encoder(std::string_view name) {
  constexpr std::string_view kParts[] = {"vision_tower.", "vision_model.", "visual.",      "multi_modal_projector.",
                                         "audio_tower.",  "embed_vision.", "embed_audio.", "vision_embedder."};
  return std::ranges::any_of(kParts, [&](std::string_view part) {
    return name.starts_with(part) || (name.starts_with("model.") && name.substr(6).starts_with(part));
  });
}

void check_shape(const StoredTensor& tensor, const LayoutTensor& wanted, const Traits& traits, bool gguf) {
  if (tensor.shape == wanted.shape) return;
  std::string hint;
  if (wanted.roles[0] == Role::token_embedding || wanted.roles[0] == Role::output) {
    hint = fmt::format(" (a vocabulary of {} and a width of {})", traits.vocabulary, traits.width);
  }
  throw FormatError(tensor.file, tensor.offset,
                    fmt::format("tensor '{}' has shape {}, but {} ask for {}{}", tensor.name, tensor.shape.to_string(),
                                gguf ? "the metadata" : "the fields of config.json", wanted.shape.to_string(), hint));
}

[[noreturn]] void throw_missing(const std::string& path, const Traits& traits, const std::vector<std::string>& missing,
                                bool all) {
  std::string names;
  for (const std::string& name : missing) names += (names.empty() ? "'" : ", '") + name + "'";
  throw FormatError(path, 0,
                    fmt::format("{} tensors are missing that a {} of {} blocks needs: {}{}",
                                all ? fmt::format("{}", missing.size()) : fmt::format("{} or more", missing.size()),
                                name(traits.architecture), traits.blocks, names, all ? "" : ", …"));
}

/// A stored row has one element of each row of the slice. Of every stored row only that part is decoded, rounded to
/// whole blocks where the type has them, so that reading a tensor in slices costs about as much as reading it at once.
void decode_transposed(const WeightSlice& slice, std::span<float> out) {
  const StoredTensor& tensor = *slice.tensor;
  const std::size_t rows = slice.rows, cols = slice.cols, stored = tensor.cols();
  if (rows == 0 || cols == 0) return;
  const std::size_t unit = tensor.format ? static_cast<std::size_t>(tensor.format->block_values()) : 1;
  const std::size_t begin = slice.stored_row(0) / unit * unit;
  const std::size_t end = std::min(slice.stored_row(rows - 1) / unit * unit + unit, stored);
  const std::size_t width = end - begin;
  // Sixteen columns are a cache line of each row that is written.
  constexpr std::size_t kStep = 16;
  std::vector<float> piece(std::min(kStep, cols) * width);
  for (std::size_t first = 0; first < cols; first += kStep) {
    const std::size_t count = std::min(kStep, cols - first), row = slice.first_col + first;
    if (width == stored) {
      files::decode_tensor(tensor, row * stored, std::span(piece).first(count * stored));
    } else {
      for (std::size_t c = 0; c < count; ++c) {
        files::decode_tensor(tensor, (row + c) * stored + begin, std::span(piece).subspan(c * width, width));
      }
    }
    for (std::size_t r = 0; r < rows; ++r) {
      const std::size_t place = slice.stored_row(r) - begin;
      for (std::size_t c = 0; c < count; ++c) out[r * cols + first + c] = piece[c * width + place];
    }
  }
}

}  // namespace

DecoderTensors::DecoderTensors(const files::TensorFile& file, const Traits& traits) : path_(file.path()) {
  if (file.tensors().empty()) {
    throw FormatError(path_, 0, "the file has no weights: it is the vocabulary of a model, and can only tokenize");
  }
  const Naming naming = naming_of(file, traits);
  std::vector<std::string> missing;
  std::unordered_set<const StoredTensor*> used;

  for_each_tensor(traits, naming, [&](const LayoutTensor& wanted, std::size_t block) {
    const StoredTensor* tensor = find_weight(file, wanted.name);
    if (tensor == nullptr) {
      if (!wanted.optional) missing.push_back(wanted.name);
      if (missing.size() >= kMissingNames) throw_missing(path_, traits, missing, false);
      return;
    }
    check_shape(*tensor, wanted, traits, naming.gguf);
    used.insert(tensor);
    const std::size_t stored = tensor->cols();
    for (std::size_t expert = 0; expert < wanted.experts; ++expert) {
      for (std::size_t i = 0; i < wanted.roles.size(); ++i) {
        const RoleExtent extent = extent_of(traits, wanted.roles[i], block);
        const RolePlace place = place_of(traits, wanted, block, expert, i);
        WeightSlice slice{tensor, place.first / extent.cols, extent.rows, extent.cols};
        if (place.col_apart != 1) {
          slice.transposed = true;
          slice.first_row = place.first % stored;
          slice.first_col = place.first / stored;
        }
        if (wanted.groups > 1) {
          slice.group_rows = place.group_rows;
          slice.rows_per_group = extent.rows / wanted.groups;
        }
        entries_.push_back({{wanted.roles[i], block, wanted.first_expert + expert}, slice});
      }
    }
  });
  if (!missing.empty()) throw_missing(path_, traits, missing, true);

  std::ranges::sort(entries_, {}, &Entry::key);
  for (const StoredTensor& tensor : file.tensors()) {
    if (used.count(&tensor) != 0 || is_buffer(tensor.name)) continue;
    if (is_encoder(tensor.name)) {
      encoders_.push_back(&tensor);
    } else {
      unused_.push_back(tensor.name);
    }
  }
}

std::optional<WeightSlice> DecoderTensors::find(Role role, std::size_t block, std::size_t expert) const {
  const backend::WeightKey key{role, block, expert};
  const auto found = std::ranges::lower_bound(entries_, key, {}, &Entry::key);
  if (found == entries_.end() || found->key != key) return std::nullopt;
  return found->slice;
}

WeightSlice DecoderTensors::require(Role role, std::size_t block, std::size_t expert) const {
  const std::optional<WeightSlice> slice = find(role, block, expert);
  if (!slice) {
    throw FormatError(
        path_, 0,
        fmt::format("block {} lacks a weight that the decoder needs (role {}, expert {})", block, name(role), expert));
  }
  return *slice;
}

std::string encoder_note(const DecoderTensors& tensors) {
  const std::size_t count = tensors.encoders().size();
  if (count == 0) return {};
  return fmt::format("the language model is used without its encoders of images or sounds: {} tensors are left out",
                     count);
}

std::size_t WeightSlice::stored_row(std::size_t row) const noexcept {
  if (group_rows == 0) return first_row + row;
  const std::size_t at = skipped + row;
  return first_row + at / rows_per_group * group_rows + at % rows_per_group;
}

WeightSlice WeightSlice::part(std::size_t first, std::size_t count) const noexcept {
  WeightSlice made = *this;
  (group_rows == 0 ? made.first_row : made.skipped) += first;
  made.rows = count;
  return made;
}

void decode_slice(const WeightSlice& slice, std::span<float> out) {
  const std::size_t rows = slice.rows, cols = slice.cols;
  if (out.size() != rows * cols) {
    throw ShapeError(
        fmt::format("tensor '{}': {} x {} values into a span of {}", slice.tensor->name, rows, cols, out.size()));
  }
  if (slice.transposed) return decode_transposed(slice, out);
  if (slice.contiguous()) return files::decode_tensor(*slice.tensor, slice.first_row * cols, out);
  if (cols == 1 && rows != 0) {  // a vector: cheaper with the values in between than value by value
    const std::size_t first = slice.stored_row(0);
    std::vector<float> all(slice.stored_row(rows - 1) + 1 - first);
    files::decode_tensor(*slice.tensor, first, all);
    for (std::size_t row = 0; row < rows; ++row) out[row] = all[slice.stored_row(row) - first];
    return;
  }
  for (std::size_t row = 0; row < rows;) {
    const std::size_t within = (slice.skipped + row) % slice.rows_per_group;
    const std::size_t count = std::min(slice.rows_per_group - within, rows - row);
    files::decode_tensor(*slice.tensor, slice.stored_row(row) * cols, out.subspan(row * cols, count * cols));
    row += count;
  }
}

}  // namespace imago::models
