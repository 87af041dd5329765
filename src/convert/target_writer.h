#pragma once

// One face for the writers of GGUF, safetensors and Hugging Face folders.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "convert/type_plan.h"
#include "files/hugging_face.h"
#include "imago/files.h"

namespace imago::convert {

/// What is written next: the codes of a planned tensor, or its scales.
struct Due {
  std::string name;
  std::size_t tensor = 0;  ///< in the plan
  bool scales = false;
};

/// What a file will consist of, apart from values.
struct TargetLayout {
  std::vector<GgufEntry> gguf;
  std::vector<GgufMetadata> gguf_metadata;
  std::vector<SafetensorsEntry> safetensors;
  std::vector<std::pair<std::string, std::string>> metadata;
};
/// Throws ShapeError, UnsupportedError for what the form cannot hold.
TargetLayout lay_out(const models::ModelRecipe& recipe, std::span<const PlannedTensor> plan);

class TargetWriter {
 public:
  /// Throws IoError; UnsupportedError, naming `path`, for names that the form cannot hold.
  TargetWriter(const std::string& path, const models::ModelRecipe& recipe, std::span<const PlannedTensor> plan,
               std::uint64_t shard_bytes);

  std::span<const Due> due() const noexcept { return due_; }
  void write(std::string_view name, std::span<const std::byte> bytes);
  void commit();

 private:
  std::variant<std::monostate, GgufWriter, SafetensorsWriter, files::HuggingFaceWriter> writer_;
  std::vector<Due> due_;
};

}  // namespace imago::convert
