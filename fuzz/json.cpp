// Any text: an error with a place in it, or a document that can be walked.

#include "files/json.h"

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "imago/error.h"

namespace imago::files {
namespace {

void walk(const JsonValue& value, std::size_t size) {
  if (value.offset() >= size || value.source().empty()) std::abort();  // every value has a place in the text
  switch (value.kind()) {
    case JsonKind::array:
      for (const JsonMember& element : value.elements("x")) walk(element.value, size);
      break;
    case JsonKind::object:
      for (const JsonMember& member : value.members("x")) {
        walk(member.value, size);
        if (!member.value.is_null() && !value.find(member.key)) std::abort();
      }
      break;
    case JsonKind::string: value.string("x"); break;
    case JsonKind::number: try { value.number("x");
      } catch (const FormatError&) {
      }
      break;
    case JsonKind::boolean: value.boolean("x"); break;
    case JsonKind::null: break;
  }
}

}  // namespace
}  // namespace imago::files

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto document = imago::files::JsonDocument::parse(text, "fuzz");
    imago::files::walk(document.root(), size);
  } catch (const imago::FormatError& error) {
    if (error.offset() > size) std::abort();
  }
  return 0;
}
