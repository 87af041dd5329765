#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/checked.h"
#include "files/gguf.h"
#include "files/json_text.h"
#include "files/json_writer.h"
#include "imago/error.h"

namespace imago {

namespace {

/// The number of a type in files is its place in the variant.
template <class T, std::size_t I = 0>
constexpr GgufType type_of() {
  if constexpr (std::is_same_v<T, std::variant_alternative_t<I, GgufValue::Any>>) {
    return static_cast<GgufType>(I);
  } else {
    return type_of<T, I + 1>();
  }
}
static_assert(type_of<bool>() == GgufType::boolean && type_of<GgufArray>() == GgufType::array &&
              type_of<double>() == GgufType::f64);

using files::with_number_type;

template <class T>
constexpr bool is_integer = std::is_integral_v<T> && !std::is_same_v<T, bool>;

}  // namespace

// ---- arrays

template <class T>
GgufArray GgufArray::of(std::span<const T> values) {
  const std::span<const std::byte> bytes = std::as_bytes(values);
  GgufArray array;
  array.type_ = type_of<T>();
  array.size_ = values.size();
  array.owned_ = std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end());
  array.bytes_ = *array.owned_;
  return array;
}

template <class T>
std::vector<T> GgufArray::values() const {
  if (type_ != type_of<T>()) {
    throw UsageError(fmt::format("an array of {} is asked for its elements as {}", name(type_), name(type_of<T>())));
  }
  std::vector<T> values(size_);
  for (std::size_t i = 0; i < size_; ++i) {
    T value{};
    std::memcpy(&value, bytes_.data() + i * sizeof value, sizeof value);
    values[i] = value;
  }
  return values;
}

#define IMAGO_GGUF_ELEMENT(T)                              \
  template GgufArray GgufArray::of<T>(std::span<const T>); \
  template std::vector<T> GgufArray::values<T>() const;
IMAGO_GGUF_ELEMENT(std::uint8_t)
IMAGO_GGUF_ELEMENT(std::int8_t)
IMAGO_GGUF_ELEMENT(std::uint16_t)
IMAGO_GGUF_ELEMENT(std::int16_t)
IMAGO_GGUF_ELEMENT(std::uint32_t)
IMAGO_GGUF_ELEMENT(std::int32_t)
IMAGO_GGUF_ELEMENT(std::uint64_t)
IMAGO_GGUF_ELEMENT(std::int64_t)
IMAGO_GGUF_ELEMENT(float)
IMAGO_GGUF_ELEMENT(double)
IMAGO_GGUF_ELEMENT(bool)
#undef IMAGO_GGUF_ELEMENT

GgufArray GgufArray::of_strings(std::span<const std::string> values) {
  std::vector<std::byte> all;
  for (const std::string& text : values) {
    const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  auto owned = std::make_shared<const std::vector<std::byte>>(std::move(all));
  std::vector<std::string_view> views;
  const char* next = reinterpret_cast<const char*>(owned->data());
  for (const std::string& text : values) {
    views.emplace_back(next, text.size());
    next += text.size();
  }
  GgufArray array = GgufMaker::strings(std::move(views));
  array.owned_ = std::move(owned);
  return array;
}

GgufArray GgufMaker::numbers(GgufType type, std::size_t size, std::span<const std::byte> bytes) {
  GgufArray array;
  array.type_ = type;
  array.size_ = size;
  array.bytes_ = bytes;
  return array;
}

GgufArray GgufMaker::strings(std::vector<std::string_view> views) {
  GgufArray array;
  array.type_ = GgufType::string;
  array.size_ = views.size();
  array.strings_ = std::make_shared<const std::vector<std::string_view>>(std::move(views));
  return array;
}

std::span<const std::string_view> GgufArray::strings() const noexcept {
  return strings_ ? std::span<const std::string_view>(*strings_) : std::span<const std::string_view>();
}

std::vector<std::int64_t> GgufArray::integers() const {
  std::vector<std::int64_t> result;
  bool integral = false;
  with_number_type(type_, [&]<class T>(T) {
    if constexpr (is_integer<T>) {
      integral = true;
      result.reserve(size_);
      for (const T value : this->template values<T>())
        result.push_back(checked_cast<std::int64_t>(value, "an element of an array"));
    }
  });
  if (!integral) throw UsageError(fmt::format("an array of {} is asked for integers", name(type_)));
  return result;
}

bool GgufArray::operator==(const GgufArray& other) const noexcept {
  return type_ == other.type_ && size_ == other.size_ && std::ranges::equal(bytes_, other.bytes_) &&
         std::ranges::equal(strings(), other.strings());
}

// ---- values

GgufValue::GgufValue(std::string text)
    : value_(std::string_view()), owned_(std::make_shared<const std::string>(std::move(text))) {
  value_ = std::string_view(*owned_);
}

GgufValue GgufMaker::string(std::string_view text) {
  GgufValue value(std::uint8_t{0});
  value.value_ = text;
  return value;
}

std::optional<std::int64_t> GgufValue::integer() const noexcept {
  return std::visit(
      []<class T>(const T& value) -> std::optional<std::int64_t> {
        if constexpr (is_integer<T>) {
          if (std::in_range<std::int64_t>(value)) return static_cast<std::int64_t>(value);
        }
        return std::nullopt;
      },
      value_);
}

std::optional<double> GgufValue::number() const noexcept {
  return std::visit(
      []<class T>(const T& value) -> std::optional<double> {
        if constexpr (is_integer<T> || std::is_floating_point_v<T>) return static_cast<double>(value);
        return std::nullopt;
      },
      value_);
}

std::optional<bool> GgufValue::boolean() const noexcept {
  const bool* value = std::get_if<bool>(&value_);
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<std::string_view> GgufValue::string() const noexcept {
  const auto* value = std::get_if<std::string_view>(&value_);
  return value ? std::optional(*value) : std::nullopt;
}

bool GgufValue::operator==(const GgufValue& other) const noexcept {
  if (type() != other.type()) return false;
  return std::visit(
      [&]<class T>(const T& value) {
        const T& same_type = *std::get_if<T>(&other.value_);
        if constexpr (std::is_arithmetic_v<T>) {
          return std::memcmp(&value, &same_type, sizeof value) == 0;  // a NaN is equal to itself
        } else {
          return value == same_type;
        }
      },
      value_);
}

// ---- reading

namespace files {

namespace {

/// A type number, which is one of the enumerators afterwards.
GgufType read_type(ByteReader& reader, std::string_view key) {
  const auto number = reader.read<std::uint32_t>("the type of a value");
  if (number > static_cast<std::uint32_t>(GgufType::f64)) {
    reader.fail(fmt::format("the value of '{}' is of type {}: 0 to 12 are known", key, number));
  }
  return static_cast<GgufType>(number);
}

void check_bools(const ByteReader& reader, std::span<const std::byte> bytes, std::string_view key) {
  const auto wrong = std::ranges::find_if(bytes, [](std::byte b) { return b > std::byte{1}; });
  if (wrong == bytes.end()) return;
  reader.fail(fmt::format("a bool of '{}' is {}, neither 0 nor 1", key, std::to_integer<int>(*wrong)));
}

GgufArray read_array(ByteReader& reader, std::string_view key, GgufBudget& budget) {
  const GgufType type = read_type(reader, key);
  if (type == GgufType::array) {
    reader.fail(
        fmt::format("the value of '{}' is an array of arrays: elements must be numbers, bools or strings", key));
  }
  const auto count = reader.read<std::uint64_t>("the length of an array");
  const std::size_t element_bytes = gguf_element_bytes(type);
  const std::size_t least = type == GgufType::string ? 8 : element_bytes;  // a string is at least its length
  if (count > reader.left() / least) {
    reader.fail(
        fmt::format("the array '{}' has {} elements of {}, for which the file is too short", key, count, name(type)));
  }
  if (type == GgufType::string) {
    if (count > budget.strings) {
      reader.fail(fmt::format("the arrays up to '{}' have more than {} strings", key, kMaxGgufStrings));
    }
    budget.strings -= count;
    std::vector<std::string_view> views;
    views.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) views.push_back(reader.read_string("a string of an array"));
    return GgufMaker::strings(std::move(views));
  }
  const std::span<const std::byte> bytes = reader.take(count * element_bytes, "an array");
  if (type == GgufType::boolean) check_bools(reader, bytes, key);
  return GgufMaker::numbers(type, count, bytes);
}

}  // namespace

GgufValue read_gguf_value(ByteReader& reader, std::string_view key, GgufBudget& budget) {
  const GgufType type = read_type(reader, key);
  if (type == GgufType::string) return GgufMaker::string(reader.read_string("a string"));
  if (type == GgufType::array) return read_array(reader, key, budget);
  if (type == GgufType::boolean) {
    const std::span<const std::byte> byte = reader.take(1, "a bool");
    check_bools(reader, byte, key);
    return byte[0] == std::byte{1};
  }
  std::optional<GgufValue> value;
  with_number_type(type, [&]<class T>(T) { value.emplace(reader.read<T>("a number")); });
  return *std::move(value);
}

}  // namespace files
}  // namespace imago

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
    if (!std::isfinite(number)) return json.value(std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf");
    json.value(number);
  } else if constexpr (std::is_same_v<T, bool>) {
    json.value(number);
  } else if constexpr (std::is_signed_v<T>) {
    json.value(std::int64_t{number});
  } else {
    json.value(std::uint64_t{number});
  }
}

void write_element(JsonWriter& json, const GgufArray& array, std::size_t index) {
  if (array.type() == GgufType::string) return json.value(with_replacements(array.strings()[index]));
  with_number_type(array.type(), [&]<class T>(T number) {  // readers have checked that a bool is 0 or 1
    std::memcpy(&number, array.bytes().data() + index * sizeof number, sizeof number);
    write_number(json, number);
  });
}

void write_array(JsonWriter& json, const GgufArray& array) {
  const bool whole = array.size() <= kMaxElements;
  if (!whole) {
    json.begin_object();
    json.member("type", name(array.type()));
    json.member("count", array.size());
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
          json.value(with_replacements(any));
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
