#pragma once

// Datasets out of the bytes of files. Each reader checks every size it finds against the bytes that are there before it
// allocates, and throws FormatError with the place of what is wrong; `file` is the name that errors give.

#include <cstddef>
#include <span>
#include <string_view>

#include "imago/data.h"

namespace imago::files {

/// Numbers in rows: separated by commas, semicolons or tabs (what the first line has), with or without a header line,
/// quotes around fields allowed. All rows have the same number of columns.
Dataset parse_csv(std::string_view text, std::string_view file, std::size_t target_columns);

/// One array of the IDX format (MNIST): big-endian, of bytes, 16- and 32-bit integers, or floats.
struct IdxArray {
  Tensor<float> values;
  bool is_bytes = false;
};
bool is_idx(std::span<const std::byte> bytes) noexcept;
IdxArray parse_idx(std::span<const std::byte> bytes, std::string_view file);

/// Images or other inputs with their labels: unsigned bytes are scaled to [0, 1], labels stay as they are. Throws
/// ShapeError if their numbers differ.
Dataset join_idx(IdxArray images, IdxArray labels);

/// Class numbers of one column to rows with a single 1. Throws ShapeError for several columns, UsageError for values
/// that are not class numbers and for implausibly many classes.
void make_one_hot(Dataset& data);

}  // namespace imago::files
