#include "files/json.h"

// Text to nodes, without recursion: how deep a file nests is its own choice, how deep our stack goes is not.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

JsonValue JsonValue::require(std::string_view key, std::string_view owner) const {
  const std::optional<JsonValue> value = find(key);
  if (!value) fail(fmt::format("{} has no {}", owner, key));
  return *value;
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

// ---- parsing

class JsonParser {
 public:
  JsonParser(JsonDocument& document, const JsonOptions& options)
      : document_(document), text_(document.text_), options_(options) {}

  void parse() {
    skip_space();
    do {
      value();
    } while (go_on());
    skip_space();
    if (at_ != text_.size()) fail(at_, "there is text after the end of the JSON value");
  }

 private:
  using Node = JsonDocument::Node;

  [[noreturn]] void fail(std::size_t at, std::string_view problem) const {
    throw FormatError(document_.file_, options_.base + at, problem);
  }

  bool at_end() const { return at_ >= text_.size(); }
  char peek() const {
    if (at_end()) fail(at_, "the JSON text ends too early: the file may be cut off");
    return text_[at_];
  }

  void skip_space() {
    while (!at_end() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
  }

  void add(JsonKind kind, std::size_t start, std::size_t end, bool escaped = false) {
    document_.nodes_.push_back({start, static_cast<std::uint64_t>(kind), escaped, end - start});
  }

  /// A scalar, or the start of containers down to the first scalar or empty container.
  void value() {
    for (;;) {
      const char c = peek();
      if (c != '{' && c != '[') return scalar(c);
      if (open_.size() == options_.max_depth) {
        fail(at_, fmt::format("arrays and objects are nested deeper than {}", options_.max_depth));
      }
      open_.push_back(document_.nodes_.size());
      add(c == '{' ? JsonKind::object : JsonKind::array, at_, at_);
      ++at_;
      skip_space();
      if (peek() == (c == '{' ? '}' : ']')) return;  // go_on closes it
      if (c == '{') key();
    }
  }

  void scalar(char c) {
    const std::size_t start = at_;
    if (c == '"') return string();
    if (c == '-' || (c >= '0' && c <= '9')) {
      number();
      return add(JsonKind::number, start, at_);
    }
    for (const auto& [word, kind] : {std::pair<std::string_view, JsonKind>{"true", JsonKind::boolean},
                                     {"false", JsonKind::boolean},
                                     {"null", JsonKind::null}}) {
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      return add(kind, start, at_);
    }
    fail(at_, "a JSON value was expected");
  }

  void string() {
    const JsonStringScan scan = scan_json_string(text_, at_);
    if (scan.problem) fail(scan.problem->at, scan.problem->problem);
    add(JsonKind::string, at_, scan.end, scan.escaped);
    at_ = scan.end;
  }

  std::size_t digits() {
    const std::size_t start = at_;
    while (!at_end() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    return at_ - start;
  }

  void number() {
    const std::size_t start = at_;
    const auto next_is = [&](std::string_view any) { return !at_end() && any.find(text_[at_]) != any.npos; };
    if (next_is("-")) ++at_;
    const bool zero = next_is("0");
    const std::size_t whole = digits();
    if (whole == 0 || (zero && whole > 1)) fail(start, "a malformed number");
    if (next_is(".")) {
      ++at_;
      if (digits() == 0) fail(start, "a malformed number");
    }
    if (next_is("eE")) {
      ++at_;
      if (next_is("+-")) ++at_;
      if (digits() == 0) fail(start, "a malformed number");
    }
  }

  void key() {
    if (peek() != '"') fail(at_, "a key in quotes was expected");
    string();
    skip_space();
    if (peek() != ':') fail(at_, "expected ':' after the key");
    ++at_;
    skip_space();
  }

  /// After a value: closes what ends here. True if another value follows.
  bool go_on() {
    while (!open_.empty()) {
      const Node& container = document_.nodes_[open_.back()];
      const bool object = container.kind == static_cast<std::uint64_t>(JsonKind::object);
      const bool is_empty = open_.back() + 1 == document_.nodes_.size();
      skip_space();
      const char c = peek();
      if (c == ',' && !is_empty) {
        ++at_;
        skip_space();
        if (object) key();
        return true;
      }
      if (c != (object ? '}' : ']')) fail(at_, object ? "',' or '}' was expected" : "',' or ']' was expected");
      ++at_;
      close();
    }
    return false;
  }

  void close() {
    const std::size_t node = open_.back();
    open_.pop_back();
    document_.nodes_[node].extent = document_.nodes_.size();
    if (document_.nodes_[node].kind == static_cast<std::uint64_t>(JsonKind::object)) check_keys(node);
  }

  /// Sorted, not hashed: keys that a stranger chose to collide must not make this slow.
  void check_keys(std::size_t object) {
    keys_.clear();
    for (std::size_t node = object + 1; node < document_.nodes_.size(); node = document_.next(node + 1)) {
      const Node& key = document_.nodes_[node];
      const std::string_view inside = text_.substr(key.start + 1, key.extent - 2);
      keys_.emplace_back(key.escaped ? unescape_json(inside) : std::string(inside), key.start);
    }
    std::ranges::sort(keys_);
    const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
    const auto twice = std::ranges::adjacent_find(keys_, same);
    if (twice == keys_.end()) return;
    fail(std::next(twice)->second, fmt::format("the key \"{}\" comes twice in one object", printable(twice->first)));
  }

  /// Keys in messages may end up on a terminal.
  static std::string printable(std::string text) {
    std::erase_if(text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
    if (text.size() > 80) text.resize(80);
    return text;
  }

  JsonDocument& document_;
  std::string_view text_;
  const JsonOptions& options_;
  std::size_t at_ = 0;
  std::vector<std::size_t> open_;  // containers that are not closed yet
  std::vector<std::pair<std::string, std::size_t>> keys_;
};

JsonDocument JsonDocument::parse(std::string_view text, std::string_view file, const JsonOptions& options) {
  JsonDocument document;
  document.text_ = text;
  document.file_ = file;
  document.base_ = options.base;
  JsonParser(document, options).parse();
  return document;
}

}  // namespace imago::files
