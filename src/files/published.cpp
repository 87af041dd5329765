#include "files/published.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/parallel.h"
#include "imago/error.h"
#include "imago/numeric.h"

namespace imago::files {

namespace {

constexpr std::size_t kPartWeights = 16384;  // weights per part of the pool
/// What stands for a scale of 0, which the types of imago read as 1: no product with it can be told from 0.
constexpr float kNearlyZero = 1e-30f;
/// Halves of E2M1, as imago's own fp4 has them.
constexpr std::array<float, 16> kFp4 = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

const std::array<float, 256>& fp8_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all{};
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = dequantize_value(Fp8E4M3{static_cast<std::uint8_t>(i)}, 1.0f);
    }
    return all;
  }();
  return values;
}

std::size_t divided_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

/// Code `index` of a word, lowest bits first.
unsigned field(const std::byte* words, std::size_t word, std::size_t index, int bits) noexcept {
  std::uint32_t value;
  std::memcpy(&value, words + 4 * word, sizeof value);
  return value >> (static_cast<unsigned>(bits) * static_cast<unsigned>(index)) & ((1u << bits) - 1);
}

/// Where AWQ has column i of eight.
constexpr std::array<std::size_t, 8> kAwqPlace = {0, 4, 1, 5, 2, 6, 3, 7};

std::vector<float> decoded(const StoredTensor& tensor) {
  std::vector<float> values(tensor.shape.elements());
  decode_tensor(tensor, 0, values);
  return values;
}

}  // namespace

PublishedWeights::PublishedWeights(Parts parts) : parts_(std::move(parts)) {
  check_codes_shape();
  row_units_ = parts_.weight.shape.last();
  place_scales();
  if (parts_.groups &&
      (!is_gptq_like() || parts_.groups->format != DType::int32 || parts_.groups->shape.elements() != parts_.cols)) {
    fail(*parts_.groups, fmt::format("must be I32 with the groups of {} columns", parts_.cols));
  }
  for (const auto* one : {&parts_.multiplier, &parts_.divisor}) {
    if (*one && (*one)->shape.elements() != 1) fail(**one, "must be one number");
  }
}

void PublishedWeights::fail(const StoredTensor& part, const std::string& problem) const {
  throw FormatError(part.file, part.offset,
                    fmt::format("tensor '{}' ({} {}), of the matrix '{}': {}", part.name, part.type,
                                part.shape.to_string(), parts_.name, problem));
}

void PublishedWeights::check_codes_shape() const {
  const std::size_t rows = parts_.rows, cols = parts_.cols;
  const auto per_word = static_cast<std::size_t>(32 / parts_.bits);
  Shape wanted{rows, cols};
  if (parts_.layout == Layout::row_words) wanted = Shape{rows, divided_up(cols, per_word)};
  if (parts_.layout == Layout::column_words) wanted = Shape{divided_up(cols, per_word), rows};
  if (parts_.layout == Layout::awq_words) wanted = Shape{cols, divided_up(rows, per_word)};
  if (parts_.layout == Layout::pairs) wanted = Shape{rows, divided_up(cols, 2)};
  if (parts_.weight.shape != wanted) fail(parts_.weight, fmt::format("its shape should be {}", wanted.to_string()));
  if (rows == 0 || cols == 0) fail(parts_.weight, "is empty");
}

void PublishedWeights::place_scales() {
  const StoredTensor& scale = parts_.scale;
  if (!is_decodable(scale)) fail(scale, "its type is not known");
  const std::size_t rows = parts_.rows, cols = parts_.cols, rank = scale.shape.rank();
  std::size_t scale_rows = 1;
  groups_ = 1;
  if (is_gptq_like()) {
    if (rank != 2 || scale.shape.last() != rows) fail(scale, fmt::format("it needs a row of {} for each group", rows));
    groups_ = scale.shape.elements() / rows;
    scale_rows = rows;
  } else if (scale.shape.elements() != 1) {
    groups_ = rank < 2 ? 1 : scale.shape.last();
    scale_rows = groups_ == 0 ? 0 : scale.shape.elements() / groups_;
  }
  const bool blocks = parts_.codes == Codes::fp8 && scale_rows != rows && scale_rows != 1;
  const bool rows_fit =
      scale_rows == 1 || scale_rows == rows || (blocks && scale_rows == divided_up(rows, parts_.block_rows));
  if (groups_ == 0 || groups_ > cols || rank > 2 || !rows_fit) {
    fail(scale, fmt::format("such scales do not fit {} rows of {}", rows, cols));
  }
  rows_per_scale_ = scale_rows == rows ? 1 : scale_rows == 1 ? rows : parts_.block_rows;
  // Blocks have a size of their own; groups of other kinds divide the row, the last of GPTQ may be short.
  const bool in_blocks = parts_.codes == Codes::fp8 && groups_ > 1;
  group_ = in_blocks ? parts_.block_cols : divided_up(cols, groups_);
  if (group_ == 0 || divided_up(cols, group_) != groups_) {
    fail(scale, fmt::format("{} groups do not fit rows of {}", groups_, cols));
  }
}

std::uint64_t PublishedWeights::bytes_beside() const noexcept {
  std::uint64_t bytes = parts_.scale.bytes.size();
  for (const auto* part : {&parts_.zeros, &parts_.groups, &parts_.multiplier, &parts_.divisor}) {
    if (*part) bytes += (*part)->bytes.size();
  }
  return bytes;
}

// ---- scales

std::vector<std::int16_t> PublishedWeights::read_zeros(std::size_t count) const {
  const StoredTensor& zeros = *parts_.zeros;
  const auto per_word = static_cast<std::size_t>(32 / parts_.bits);
  std::vector<std::int16_t> found(count);
  const std::size_t scale_rows = count / groups_;
  if (zeros.format == DType::int8 && !is_gptq_like()) {
    if (zeros.shape.elements() != count) fail(zeros, fmt::format("{} zero points are needed", count));
    const int bias = parts_.is_signed ? 0 : 1 << (parts_.bits - 1);
    for (std::size_t i = 0; i < count; ++i) {
      found[i] = static_cast<std::int16_t>(static_cast<std::int8_t>(zeros.bytes[i]) + bias);
    }
    return found;
  }
  const std::size_t words = divided_up(scale_rows, per_word);
  const Shape wanted = is_gptq_like() ? Shape{groups_, words} : Shape{words, groups_};
  if (zeros.format != DType::int32 || zeros.shape != wanted || parts_.codes != Codes::integer ||
      parts_.layout == Layout::bytes) {
    fail(zeros, fmt::format("zero points should be I32 {}", wanted.to_string()));
  }
  for (std::size_t row = 0; row < scale_rows; ++row) {
    const std::size_t place =
        parts_.layout == Layout::awq_words && per_word == 8 ? kAwqPlace[row % per_word] : row % per_word;
    for (std::size_t g = 0; g < groups_; ++g) {
      const std::size_t word = is_gptq_like() ? g * words + row / per_word : row / per_word * groups_ + g;
      const int stored = static_cast<int>(field(zeros.bytes.data(), word, place, parts_.bits));
      found[row * groups_ + g] = static_cast<std::int16_t>(stored + parts_.zero_bias);
    }
  }
  return found;
}

std::vector<std::uint32_t> PublishedWeights::read_groups() const {
  std::vector<std::uint32_t> groups(parts_.cols);
  bool in_order = true;
  for (std::size_t c = 0; c < groups.size(); ++c) {
    std::int32_t group;
    std::memcpy(&group, parts_.groups->bytes.data() + 4 * c, sizeof group);
    if (group < 0 || static_cast<std::size_t>(group) >= groups_) {
      fail(*parts_.groups, fmt::format("column {} belongs to group {} of {}", c, group, groups_));
    }
    groups[c] = static_cast<std::uint32_t>(group);
    in_order = in_order && groups[c] == c / group_;
  }
  if (in_order) groups.clear();
  return groups;
}

PublishedWeights::Scales PublishedWeights::read_scales() const {
  Scales all;
  const std::vector<float> stored = decoded(parts_.scale);
  all.scales.resize(stored.size());
  const std::size_t rows = stored.size() / groups_;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    all.scales[i] = is_gptq_like() ? stored[i % groups_ * rows + i / groups_] : stored[i];
  }
  float factor = 1;
  if (parts_.multiplier) factor *= decoded(*parts_.multiplier)[0];
  if (parts_.divisor) factor /= decoded(*parts_.divisor)[0];
  for (std::size_t i = 0; i < all.scales.size(); ++i) {
    all.scales[i] *= factor;
    if (!std::isfinite(all.scales[i])) {
      fail(parts_.scale, fmt::format("the scale of row {}, group {} is not finite", i / groups_, i % groups_));
    }
  }
  all.zero = parts_.codes == Codes::integer && !parts_.is_signed ? 1 << (parts_.bits - 1) : 0;
  if (parts_.zeros) {
    all.zeros = read_zeros(all.scales.size());
    const auto usual = [&](int zero) { return zero == all.zero; };
    if (std::ranges::all_of(all.zeros, usual)) all.zeros.clear();
  }
  if (parts_.groups) all.group_of_column = read_groups();
  all.own = find_own(all);
  return all;
}

const PublishedWeights::Scales& PublishedWeights::scales() const {
  std::call_once(once_, [&] { scales_ = read_scales(); });
  return scales_;
}

void PublishedWeights::check() const {
  scales();
  if (parts_.codes == Codes::fp8) check_values(parts_.weight);
}

// ---- weights

unsigned PublishedWeights::code(std::size_t row, std::size_t col) const noexcept {
  const std::byte* const bytes = parts_.weight.bytes.data();
  const std::size_t shift = parts_.bits == 4 ? 3 : 2, mask = (std::size_t{1} << shift) - 1;  // codes of a word
  switch (parts_.layout) {
    case Layout::bytes: return std::to_integer<unsigned>(bytes[row * parts_.cols + col]);
    case Layout::row_words: return field(bytes, row * row_units_ + (col >> shift), col & mask, parts_.bits);
    case Layout::column_words: return field(bytes, (col >> shift) * row_units_ + row, col & mask, parts_.bits);
    case Layout::awq_words: return field(bytes, col * row_units_ + row / 8, kAwqPlace[row % 8], parts_.bits);
    case Layout::pairs: break;
  }
  return std::to_integer<unsigned>(bytes[row * row_units_ + col / 2]) >> 4 * (col % 2) & 15;
}

float PublishedWeights::value(const Scales& all, unsigned code, std::size_t at) const noexcept {
  if (parts_.codes == Codes::fp8) return fp8_values()[code] * all.scales[at];
  if (parts_.codes == Codes::fp4) return kFp4[code] * all.scales[at];
  const int number = parts_.is_signed ? static_cast<std::int8_t>(code) : static_cast<int>(code);
  return static_cast<float>(number - (all.zeros.empty() ? all.zero : all.zeros[at])) * all.scales[at];
}

void PublishedWeights::decode(std::size_t first, std::span<float> out) const {
  const Scales& all = scales();
  const std::size_t cols = parts_.cols;
  parallel_for(out.size(), kPartWeights, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end;) {
      const std::size_t row = (first + i) / cols, col = (first + i) % cols;
      const bool ordered = all.group_of_column.empty();
      const std::size_t group = ordered ? col / group_ : all.group_of_column[col];
      // All of the row that the group has, or a single weight.
      const std::size_t limit = ordered ? std::min((group + 1) * group_, cols) : col + 1;
      const std::size_t count = std::min(limit - col, end - i), at = scale_at(row, group);
      for (std::size_t j = 0; j < count; ++j) out[i + j] = value(all, code(row, col + j), at);
      i += count;
    }
  });
}

std::optional<Format> PublishedWeights::own_type() const { return scales().own; }

std::optional<Format> PublishedWeights::find_own(const Scales& all) const {
  const bool whole_rows = groups_ == 1;
  const bool negative = std::ranges::any_of(all.scales, [](float scale) { return std::signbit(scale); });
  if (parts_.codes == Codes::fp4) {
    const bool powers =
        parts_.scale.safetensors_type == SafetensorsType::f8_e8m0 && !parts_.multiplier && !parts_.divisor;
    if (powers && group_ == 32 && parts_.cols % 32 == 0) return BlockFormat::mxfp4;
    return std::nullopt;
  }
  const bool fits = whole_rows || (parts_.cols % group_ == 0 && (group_ == 32 || group_ == 64 || group_ == 128));
  if (negative || !fits || !all.group_of_column.empty()) return std::nullopt;
  if (parts_.codes == Codes::fp8) return DType::fp8e4m3;
  // Rows of four-bit codes have to begin at whole bytes.
  if (parts_.bits == 4 && parts_.cols % 2 != 0) return std::nullopt;
  if (all.zeros.empty()) return parts_.bits == 4 ? DType::int4 : DType::int8;
  const int most = (1 << parts_.bits) - 1;
  const auto allowed = [&](int zero) { return zero >= 0 && zero <= most; };
  if (parts_.is_signed || !std::ranges::all_of(all.zeros, allowed)) return std::nullopt;
  return parts_.bits == 4 ? DType::uint4 : DType::uint8;
}

OwnWeights PublishedWeights::take(std::size_t first, std::size_t count, std::span<std::byte> packed) const {
  const Scales& all = scales();
  const std::size_t cols = parts_.cols;
  const Format own = *all.own;
  const std::size_t row_bytes = packed_bytes(own, cols);
  // Two's complement of what an unsigned code is less the zero point.
  const unsigned flip = own == Format(DType::int4) ? 8 : own == Format(DType::int8) && !parts_.is_signed ? 0x80 : 0;
  parallel_for(count, std::max<std::size_t>(1, kPartWeights / cols), [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t row = first + i;
      std::byte* const to = packed.data() + i * row_bytes;
      const auto code_at = [&](std::size_t col) { return code(row, col) ^ flip; };
      if (own == Format(BlockFormat::mxfp4)) {
        for (std::size_t b = 0; b < cols / 32; ++b) {
          std::byte* const block = to + 17 * b;
          block[0] = parts_.scale.bytes[row / rows_per_scale_ * groups_ + b];
          for (std::size_t j = 0; j < 16; ++j) {
            block[1 + j] = static_cast<std::byte>(code_at(32 * b + j) | code_at(32 * b + 16 + j) << 4);
          }
        }
      } else if (bits(own.dtype()) == 4) {
        for (std::size_t c = 0; c < cols; c += 2) to[c / 2] = static_cast<std::byte>(code_at(c) << 4 | code_at(c + 1));
      } else {
        for (std::size_t c = 0; c < cols; ++c) to[c] = static_cast<std::byte>(code_at(c));
      }
    }
  });
  OwnWeights weights;
  if (own.is_block()) return weights;
  weights.scale_group = groups_ == 1 ? cols : group_;
  for (std::size_t row = first; row < first + count; ++row) {
    for (std::size_t g = 0; g < groups_; ++g) {
      const float scale = all.scales[scale_at(row, g)];
      weights.scales.push_back(scale == 0 ? kNearlyZero : scale);
      if (!all.zeros.empty()) weights.zero_points.push_back(all.zeros[scale_at(row, g)]);
    }
  }
  return weights;
}

}  // namespace imago::files
