#pragma once

// Statistics of the inputs of a model's weight matrices, and the file that holds them: a GGUF file without an
// architecture that llama.cpp reads as an importance matrix. Keys and tensors marked "ours" are additions of imago.
//
// | key | what |
// |---|---|
// | `general.type` | "imatrix" |
// | `imatrix.datasets` | strings: what it was made from |
// | `imatrix.chunk_count`, `imatrix.chunk_size` | u32: windows, and tokens of each |
// | `imago.text_hash` | u64, ours: hash of the text |
// | `imago.sketch` | f32 array, ours: weights sampled from the model |
// | `imago.shared` | strings, ours: "A=B", matrix A reads what B reads, and has B's products |
//
// | tensor, F32 | shape | what |
// |---|---|---|
// | `NAME.in_sum2` | [experts, columns] | sums of x[i]² over the inputs of each expert |
// | `NAME.counts` | [experts, 1] | how many inputs these were |
// | `NAME.products` | [experts, columns, columns], ours | means of x[i]·x[j] |

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace imago::guided {

class Feedback;

/// The embedding table. Calibrations contain it only if it is tied, that is if it gives the logits too.
inline constexpr std::string_view kTableName = "token_embd.weight";

/// Statistics of the inputs of one matrix, or of one expert's matrix. Matrices that read the same inputs share them.
struct InputStatistics {
  std::uint64_t rows = 0;             ///< inputs seen; 0: nothing is known
  std::vector<float> second_moments;  ///< mean of x[i]², one per column
  /// Mean of x[i]·x[j], [columns][columns], symmetric; empty unless requested.
  std::vector<float> products;
  /// The matrix is a tied embedding: its rows are also looked up, so their own error counts besides that of the
  /// outputs.
  bool is_table = false;
  /// Made from the products on first use (encode_matrix.cpp).
  mutable std::shared_ptr<const Feedback> feedback = nullptr;
};

/// Statistics by models::matrix_name (by path for layers of networks), and where they come from. Copies share the
/// statistics.
class Calibration {
 public:
  /// Reads imago's files and llama.cpp's. Throws IoError, FormatError; for llama.cpp's older files, with a hint.
  static Calibration read(const std::string& path);
  /// Writes the file atomically. Throws IoError.
  void write(const std::string& to) const;

  /// Null if the matrix is unknown.
  const InputStatistics* find(std::string_view name, std::size_t expert = 0) const noexcept;
  /// The same, and throws UsageError, naming both, if it is known with another number of columns.
  const InputStatistics* find(std::string_view name, std::size_t expert, std::size_t columns) const;
  /// Throws UsageError, naming both, unless the matrix is known with that many columns.
  const InputStatistics& require(std::string_view name, std::size_t expert, std::size_t columns) const;

  /// By name and expert; never null.
  std::map<std::pair<std::string, std::size_t>, std::shared_ptr<InputStatistics>> matrices;
  std::string path;                ///< where it was read from; empty: made in memory
  std::vector<std::string> texts;  ///< what it was made from
  std::uint64_t text_hash = 0, windows = 0, context = 0;
  /// Weights sampled from the model (sketch.h). Empty if the file has none.
  std::vector<float> sketch;
};

/// Whether a calibration file holds products, which error-compensating rounding needs. False for anything that is not
/// a GGUF file; `Calibration::read` says what is wrong with it.
bool has_products(const std::string& path);

/// The calibration that `file` holds. `path` names it in errors. Throws FormatError.
Calibration parse_calibration(std::span<const std::byte> file, const std::string& path);

}  // namespace imago::guided
