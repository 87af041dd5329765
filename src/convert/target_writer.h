#pragma once

// One interface to the writers of GGUF, safetensors, Hugging Face folders and networks.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/source.h"
#include "convert/type_plan.h"
#include "files/hugging_face.h"
#include "imago/files.h"

namespace imago::convert {

/// The next entry to write: the codes of a planned tensor, or what belongs to them.
struct Due {
  enum class Part : std::uint8_t { codes, scales, zero_points };
  std::string name;
  std::size_t tensor = 0;  ///< index in the plan
  Part part = Part::codes;
};

/// The contents of a file, apart from values. Empty for networks, which lay themselves out.
struct TargetLayout {
  std::vector<GgufEntry> gguf;
  std::vector<GgufMetadata> gguf_metadata;
  std::vector<SafetensorsEntry> safetensors;
  std::vector<std::pair<std::string, std::string>> metadata;
};
/// Throws ShapeError, UnsupportedError for what the file format cannot hold.
TargetLayout lay_out(const models::ModelRecipe& recipe, std::span<const PlannedTensor> plan);

class TargetWriter {
 public:
  /// `source` and `plan` must outlive it. Throws IoError; UnsupportedError, naming `path`, for names that the file
  /// format cannot hold.
  TargetWriter(const std::string& path, const Source& source, std::span<const PlannedTensor> plan,
               std::uint64_t shard_bytes);

  std::span<const Due> due() const noexcept { return due_; }
  void write(std::string_view name, std::span<const std::byte> bytes) const { write_(name, bytes); }
  void commit() const { commit_(); }

 private:
  template <class Writer>
  void use(std::shared_ptr<Writer> writer);

  std::function<void(std::string_view name, std::span<const std::byte> bytes)> write_;
  std::function<void()> commit_;
  std::vector<Due> due_;
};

}  // namespace imago::convert
