#pragma once

// A file of tensors whose sizes are known beforehand, written one after the other: what the writers of safetensors and
// GGUF have in common.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/atomic_file.h"

namespace imago::files {

class TensorStream {
 public:
  /// A tensor that is due: its name and all of its bytes.
  struct Due {
    std::string name;
    std::size_t bytes;
  };

  /// Each tensor is padded with zeros to `alignment`, the last one too. Throws IoError.
  TensorStream(const std::string& path, std::vector<Due> tensors, std::size_t alignment);

  /// What stands in front of the tensors, padded as they are. Call once, first.
  void write_header(std::string_view header);
  /// Bytes of tensor `name`, all or the next piece of them. Throws UsageError if another tensor is due or there are
  /// more bytes than it has, IoError.
  void write(std::string_view name, std::span<const std::byte> bytes);
  /// Throws UsageError if a tensor is not complete, IoError.
  void commit();

 private:
  void pad();
  void skip_complete();

  AtomicFile file_;
  std::vector<Due> tensors_;
  std::size_t alignment_;
  std::size_t due_ = 0;      // the tensor whose bytes come next
  std::size_t written_ = 0;  // of that tensor
};

}  // namespace imago::files
