#pragma once

// Detects the format of a file from its content.

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "files/json.h"
#include "imago/data.h"

namespace imago::files {

/// The first bytes of an `.entity` file.
inline constexpr std::string_view kEntityMagic("ENTITY\0\0", 8);

/// How deep layers of a checkpoint may be nested, networks of Metacognition included.
inline constexpr int kMaxLayerDepth = 32;
/// The nesting of brackets that such a checkpoint can need: three for a meta network in a layer, three at the top.
inline constexpr std::size_t kMaxCheckpointJsonDepth = 3 * (kMaxLayerDepth + 1);

/// The file format by its first bytes. With `json` the caller must look into the text.
struct FormByStart {
  bool json = false;
  FileForm form = FileForm::checkpoint;  ///< unless json
};

/// Throws FormatError that says what the file seems to be instead: an HTML page, a git-lfs pointer, an empty file.
FormByStart detect_by_start(std::span<const std::byte> bytes, std::string_view path);

/// Throws FormatError with advice if the bytes start like a file that is often mistaken for a model. Valid files may
/// start this way too, so call it only for files that are known to be wrong.
void refuse_mistakes(std::span<const std::byte> bytes, std::string_view path);

/// checkpoint or architecture. Throws FormatError if the text is not a network.
FileForm detect_json(const JsonValue& root);

}  // namespace imago::files
