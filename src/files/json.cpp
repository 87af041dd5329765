#include "files/json.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "files/json_text.h"
#include "imago/error.h"

namespace imago::files {

namespace {

std::string_view name(JsonKind kind) {
  switch (kind) {
    case JsonKind::null: return "null";
    case JsonKind::boolean: return "true or false";
    case JsonKind::number: return "a number";
    case JsonKind::string: return "a string";
    case JsonKind::array: return "an array";
    case JsonKind::object: break;
  }
  return "an object";
}

}  // namespace

// ---- the document

std::size_t JsonDocument::next(std::size_t node) const noexcept {
  const Node& n = nodes_[node];
  return n.kind >= static_cast<std::uint64_t>(JsonKind::array) ? n.extent : node + 1;
}

std::size_t JsonDocument::end_of(std::size_t node) const noexcept {
  const Node& n = nodes_[node];
  if (n.kind < static_cast<std::uint64_t>(JsonKind::array)) return n.start + n.extent;
  std::size_t last = node;
  for (std::size_t child = node + 1; child < n.extent; child = next(child)) last = child;
  const std::size_t inside = last == node ? n.start + 1 : end_of(last);
  return text_.find_first_of("]}", inside) + 1;
}

// ---- values

JsonKind JsonValue::kind() const noexcept { return static_cast<JsonKind>(document_->nodes_[node_].kind); }

std::uint64_t JsonValue::offset() const noexcept { return document_->base_ + document_->nodes_[node_].start; }

std::string_view JsonValue::source() const noexcept {
  const std::size_t start = document_->nodes_[node_].start;
  return document_->text_.substr(start, document_->end_of(node_) - start);
}

void JsonValue::fail(std::string_view problem) const { throw FormatError(document_->file_, offset(), problem); }

void JsonValue::expect(JsonKind wanted, std::string_view what) const {
  if (kind() != wanted) fail(fmt::format("{} must be {}, not {}", what, name(wanted), name(kind())));
}

bool JsonValue::boolean(std::string_view what) const {
  expect(JsonKind::boolean, what);
  return source() == "true";
}

template <class Float>
Float JsonValue::parse_number(std::string_view what) const {
  expect(JsonKind::number, what);
  const std::string_view digits = source();
  Float value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc()) fail(fmt::format("{} is a number out of range", what));
  return value;
}

double JsonValue::number(std::string_view what) const { return parse_number<double>(what); }
float JsonValue::single(std::string_view what) const { return parse_number<float>(what); }

std::int64_t JsonValue::within(std::int64_t value, std::string_view what, std::int64_t low, std::int64_t high) const {
  if (value < low || value > high) {
    fail(fmt::format("{} must be from {} to {}, not {}", what, low, high, value));
  }
  return value;
}

std::int64_t JsonValue::integer(std::string_view what, std::int64_t low, std::int64_t high) const {
  expect(JsonKind::number, what);
  const std::string_view digits = source();
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc::result_out_of_range) fail(fmt::format("{} must be from {} to {}", what, low, high));
  if (end != digits.data() + digits.size()) fail(fmt::format("{} must be a whole number in plain digits", what));
  return within(value, what, low, high);
}

std::int64_t JsonValue::integral(std::string_view what, std::int64_t low, std::int64_t high) const {
  if (kind() == JsonKind::number && source().find_first_of(".eE") == std::string_view::npos) {
    return integer(what, low, high);
  }
  const double value = number(what);
  if (value != std::trunc(value)) fail(fmt::format("{} must be a whole number, not {}", what, value));
  if (std::abs(value) >= 0x1p53) fail(fmt::format("{} must be from {} to {}", what, low, high));
  return within(static_cast<std::int64_t>(value), what, low, high);
}

std::string_view JsonValue::raw_string(std::string_view what) const {
  expect(JsonKind::string, what);
  const std::string_view quoted = source();
  return quoted.substr(1, quoted.size() - 2);
}

std::string JsonValue::string(std::string_view what) const {
  const std::string_view inside = raw_string(what);
  return document_->nodes_[node_].escaped ? unescape_json(inside) : std::string(inside);
}

JsonValue::Members JsonValue::elements(std::string_view what) const {
  expect(JsonKind::array, what);
  return Members(*this);
}

JsonValue::Members JsonValue::members(std::string_view what) const {
  expect(JsonKind::object, what);
  return Members(*this);
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  for (const JsonMember& member : members("this value")) {
    if (member.key != key) continue;
    if (member.value.is_null()) return std::nullopt;
    return member.value;
  }
  return std::nullopt;
}

// ---- members

JsonMember JsonValue::Members::Iterator::operator*() const {
  if (!keyed_) return {std::string(), JsonValue(*document_, node_)};
  return {JsonValue(*document_, node_).string("a key"), JsonValue(*document_, node_ + 1)};
}

JsonValue::Members::Iterator& JsonValue::Members::Iterator::operator++() {
  node_ = document_->next(keyed_ ? node_ + 1 : node_);
  return *this;
}

JsonValue::Members::Iterator JsonValue::Members::begin() const {
  return Iterator(*container_.document_, container_.node_ + 1, container_.kind() == JsonKind::object);
}

JsonValue::Members::Iterator JsonValue::Members::end() const {
  return Iterator(*container_.document_, container_.document_->next(container_.node_), false);
}

std::size_t JsonValue::Members::size() const {
  std::size_t count = 0;
  for (Iterator i = begin(); i != end(); ++i) ++count;
  return count;
}

}  // namespace imago::files
