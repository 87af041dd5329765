#pragma once

// What a file is, told from its bytes.

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

/// The form by the first bytes; JSON is not looked into: `json` says that it must be.
struct FormByStart {
  bool json = false;
  FileForm form = FileForm::checkpoint;  ///< unless json
};

/// Throws FormatError with what the file seems to be instead: a page of HTML, a pointer of git-lfs, nothing at all.
FormByStart detect_by_start(std::span<const std::byte> bytes, std::string_view path);

/// Throws FormatError with advice if the bytes start like a file that people take for a model. Valid files may start so
/// too: call it for what is wrong already.
void refuse_mistakes(std::span<const std::byte> bytes, std::string_view path);

/// checkpoint or architecture. Throws FormatError if the text is not a network.
FileForm detect_json(const JsonValue& root);

}  // namespace imago::files
