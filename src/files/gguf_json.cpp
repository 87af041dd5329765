#include "files/gguf_json.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "files/gguf.h"
#include "files/json_text.h"
#include "files/json_writer.h"

namespace imago::files {

namespace {

constexpr std::size_t kMaxElements = 16;  // of an array that is shown whole
constexpr std::size_t kFirstElements = 4;

std::string with_replacements(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    out += length == 0 ? std::string_view("\uFFFD") : text.substr(at, length);
    at += std::max<std::size_t>(length, 1);
  }
  return out;
}

template <class T>
void write_number(JsonWriter& json, T number) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isfinite(number)) {
      json.value(number);
    } else {
      json.value(std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf");
    }
  } else if constexpr (std::is_same_v<T, bool>) {
    json.value(number);
  } else if constexpr (std::is_signed_v<T>) {
    json.value(std::int64_t{number});
  } else {
    json.value(std::uint64_t{number});
  }
}

/// Element `index` of an array of numbers.
template <class T>
void write_element(JsonWriter& json, const GgufArray& array, std::size_t index) {
  T number{};
  std::memcpy(&number, array.bytes().data() + index * sizeof(T), sizeof(T));
  write_number(json, number);
}

void write_array(JsonWriter& json, const GgufArray& array);

void write_element(JsonWriter& json, const GgufArray& array, std::size_t index) {
  switch (array.type()) {
    case GgufType::u8: return write_element<std::uint8_t>(json, array, index);
    case GgufType::i8: return write_element<std::int8_t>(json, array, index);
    case GgufType::u16: return write_element<std::uint16_t>(json, array, index);
    case GgufType::i16: return write_element<std::int16_t>(json, array, index);
    case GgufType::u32: return write_element<std::uint32_t>(json, array, index);
    case GgufType::i32: return write_element<std::int32_t>(json, array, index);
    case GgufType::f32: return write_element<float>(json, array, index);
    case GgufType::boolean: return write_element<bool>(json, array, index);  // readers have checked that it is 0 or 1
    case GgufType::string: return json.value(std::string_view(with_replacements(array.strings()[index])));
    case GgufType::array: return write_array(json, array.arrays()[index]);
    case GgufType::u64: return write_element<std::uint64_t>(json, array, index);
    case GgufType::i64: return write_element<std::int64_t>(json, array, index);
    case GgufType::f64: return write_element<double>(json, array, index);
  }
}

/// Arrays in each other are at most kMaxGgufDepth deep.
void write_array(JsonWriter& json, const GgufArray& array) {
  const bool whole = array.size() <= kMaxElements;
  if (!whole) {
    json.begin_object();
    json.key("type");
    json.value(name(array.type()));
    json.key("count");
    json.value(std::uint64_t{array.size()});
    json.key("first");
  }
  json.begin_array();
  for (std::size_t i = 0; i < (whole ? array.size() : kFirstElements); ++i) write_element(json, array, i);
  json.end_array();
  if (!whole) json.end_object();
}

}  // namespace

std::string to_json(const GgufValue& value) {
  StringSink sink;
  JsonWriter json(sink, JsonStyle::compact);
  std::visit(
      [&]<class T>(const T& any) {
        if constexpr (std::is_same_v<T, std::string_view>) {
          json.value(std::string_view(with_replacements(any)));
        } else if constexpr (std::is_same_v<T, GgufArray>) {
          write_array(json, any);
        } else {
          write_number(json, any);
        }
      },
      value.any());
  return std::move(sink.text());
}

}  // namespace imago::files
