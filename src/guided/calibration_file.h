#pragma once

// The file of a calibration, apart from reading and writing it: what fuzzers need.
//
// A GGUF file without an architecture, as llama.cpp keeps importance matrices:
//
// | key | what |
// |---|---|
// | `general.type` | "imatrix" |
// | `imatrix.datasets` | strings: what it was made from |
// | `imatrix.chunk_count`, `imatrix.chunk_size` | u32: windows, and tokens of each |
// | `imago.text_hash` | u64, ours: of the text |
// | `imago.sketch` | f32 array, ours: weights sampled from the model |
// | `imago.shared` | strings, ours: "A=B", matrix A reads what B reads, and has B's products |
//
// | tensor, F32 | shape | what |
// |---|---|---|
// | `NAME.in_sum2` | [experts, columns] | sums of x[i]² over the inputs of each expert |
// | `NAME.counts` | [experts, 1] | how many inputs these were |
// | `NAME.products` | [experts, columns, columns], ours | means of x[i]·x[j] |

#include <cstddef>
#include <span>
#include <string>

#include "guided/calibration.h"

namespace imago::guided {

/// The calibration that `file` holds. `path` names it in errors. Throws FormatError.
Calibration parse_calibration(std::span<const std::byte> file, const std::string& path);

}  // namespace imago::guided
