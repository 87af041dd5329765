#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "jinja/source.h"

namespace imago::jinja {

/// What the string between the quotes, bytes [from, to) of the source, means. Throws FormatError for a broken escape.
std::string resolve_escapes(const Source& source, std::size_t from, std::size_t to);

/// UTF-8 of a code point; a surrogate or what is beyond Unicode becomes U+FFFD.
void append_utf8(std::string& text, std::uint32_t code);

}  // namespace imago::jinja
