#pragma once

// The elements of a target tensor, read from where they lie in the source: parts one behind the other, rows in another
// order, transposes.

#include <cstddef>
#include <span>
#include <vector>

#include "convert/type_plan.h"

namespace imago::convert {

/// Positions are elements of the target. Pieces must start and end at multiples of unit(), or at the end of the tensor;
/// they can be read from many threads at a time.
class PieceReader {
 public:
  /// `planned` and what it points to must outlive the reader.
  explicit PieceReader(const PlannedTensor& planned);

  std::size_t elements() const noexcept { return elements_; }
  std::size_t unit() const noexcept { return unit_; }
  /// Of transposes all must be decoded before pieces are read.
  bool needs_whole() const noexcept { return needs_whole_; }
  /// Decodes all of it, on the pool. Memory: the tensor in float32, until release_whole.
  void load_whole();
  void release_whole() noexcept { whole_ = {}; }

  /// As float32, with what the recipe does to them. Throws as files::decode_tensor.
  void read(std::size_t first, std::span<float> out) const;
  /// The bytes of a tensor that is copied, if they lie together; else empty.
  std::span<const std::byte> view(std::size_t first, std::size_t count) const;
  /// The bytes of a tensor that is copied. REQUIRES: out is as long as they are.
  void copy(std::size_t first, std::size_t count, std::span<std::byte> out) const;
  /// Numbers of a tensor whose integers become wider ones. Throws FormatError for a number that does not fit.
  void widen(std::size_t first, std::size_t count, std::span<std::byte> out) const;
  /// Where a piece is read from, as whole ranges: for checks, and for advice about pages.
  std::vector<std::span<const std::byte>> sources(std::size_t first, std::size_t count) const;

  /// Throws FormatError as files::check_values, for the sources of a piece or of all.
  void check(std::size_t first, std::size_t count) const;
  void check_all() const;

 private:
  /// A part in elements: of the target, and of the stored tensor.
  struct Part {
    const files::StoredTensor* tensor;
    std::size_t begin, end;  // in the target
    std::size_t first;       // in the stored tensor
  };
  /// Calls visit(tensor, first element in it, place in the target, count) for what a range consists of.
  template <class Visit>
  void for_each_range(std::size_t first, std::size_t count, Visit&& visit) const;
  std::size_t source_row(std::size_t row) const noexcept;
  bool permutes() const noexcept;

  const PlannedTensor& planned_;
  std::vector<Part> parts_;
  std::size_t elements_ = 0, rows_ = 0, cols_ = 0, unit_ = 1;
  bool needs_whole_ = false;
  std::vector<float> whole_;
};

}  // namespace imago::convert
