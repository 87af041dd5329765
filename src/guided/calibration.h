#pragma once

// What the activations of a model said about the inputs of its weight matrices, and the file that keeps it: a GGUF file
// that llama.cpp reads as an importance matrix, with more in it for us.

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

/// The matrix that is looked up in: calibrations know of it only where it gives the logits too.
inline constexpr std::string_view kTableName = "token_embd.weight";

/// Of the inputs of one matrix, or of one expert's. Matrices that read the same inputs share it.
struct InputStatistics {
  std::uint64_t rows = 0;             ///< inputs seen; 0: nothing is known
  std::vector<float> second_moments;  ///< mean of x[i]², one per column
  /// Mean of x[i]·x[j], [columns][columns], symmetric; empty unless they were asked for.
  std::vector<float> products;
  /// The matrix is a tied embedding: its rows are looked up as they are, too, and their own error counts beside that of
  /// the products with these inputs.
  bool is_table = false;
  /// Made of the products when it is first needed (encode_matrix.cpp).
  mutable std::shared_ptr<const Feedback> feedback = nullptr;
};

/// Matrices by models::matrix_name (layers of networks by their paths), and where the figures come from. Copies share
/// the statistics.
class Calibration {
 public:
  /// Ours or llama.cpp's, old files without GGUF refused with a hint. Throws IoError, FormatError.
  static Calibration read(const std::string& path);
  /// Appears whole or not at all. Throws IoError.
  void write(const std::string& to) const;

  /// Null if nothing is known of it.
  const InputStatistics* find(std::string_view name, std::size_t expert = 0) const noexcept;
  /// Throws UsageError, naming both, unless the matrix is known with that many columns.
  const InputStatistics& require(std::string_view name, std::size_t expert, std::size_t columns) const;

  /// By name and expert; never null.
  std::map<std::pair<std::string, std::size_t>, std::shared_ptr<InputStatistics>> matrices;
  std::string path;                ///< where it was read from; empty: made in memory
  std::vector<std::string> texts;  ///< what it was made from
  std::uint64_t text_hash = 0, windows = 0, context = 0;
  /// Weights sampled from the model, so that another model is told apart whatever form or type it is in. Empty where
  /// the file says nothing.
  std::vector<float> sketch;
};

}  // namespace imago::guided
