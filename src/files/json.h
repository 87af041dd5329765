#pragma once

// A JSON parser for model files. Why not a library: a checkpoint is a few kilobytes of structure around strings of
// hundreds of megabytes, in a file that may be hostile. nlohmann::json copies every string and loses the position of
// values; simdjson needs a padded copy of the file and copies strings again; neither rejects duplicate keys.
// A document here is an index of 16 bytes per value over the unchanged text: a string costs nothing until it is read,
// and every error names the byte.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace imago::files {

enum class JsonKind : std::uint8_t { null, boolean, number, string, array, object };

class JsonDocument;

/// One value of a document: a handle, valid as long as the document. Accessors throw FormatError with the place of the
/// value when it is of another kind; `what` names the field in that text.
class JsonValue {
 public:
  JsonKind kind() const noexcept;
  bool is_null() const noexcept { return kind() == JsonKind::null; }
  /// Where it starts in the file.
  std::uint64_t offset() const noexcept;
  /// Its text as the file has it; a string with its quotes.
  std::string_view source() const noexcept;

  bool boolean(std::string_view what) const;
  /// Any number that a double holds; an overflow (1e999) is an error.
  double number(std::string_view what) const;
  /// As float32, rounded once.
  float single(std::string_view what) const;
  /// Digits only, with a sign or without. Throws unless low <= value <= high.
  std::int64_t integer(std::string_view what, std::int64_t low, std::int64_t high) const;
  /// As `integer`, but 3.0 and 1e3 are integers too.
  std::int64_t integral(std::string_view what, std::int64_t low, std::int64_t high) const;
  /// With escapes resolved.
  std::string string(std::string_view what) const;
  /// The text between the quotes, not copied; escapes are not resolved.
  std::string_view raw_string(std::string_view what) const;

  class Members;
  /// Elements of an array, or members of an object, in the order of the file: for (JsonMember m : value.members("…")).
  /// The key of an array element is empty.
  Members elements(std::string_view what) const;
  Members members(std::string_view what) const;
  /// The member of that name of an object; `null` counts as absent.
  std::optional<JsonValue> find(std::string_view key) const;

  /// The same, but throws FormatError, "`owner` has no KEY", if it is absent.
  JsonValue require(std::string_view key, std::string_view owner) const;

  /// Throws FormatError at this value.
  [[noreturn]] void fail(std::string_view problem) const;

 private:
  friend class JsonDocument;
  JsonValue(const JsonDocument& document, std::size_t node) : document_(&document), node_(node) {}
  void expect(JsonKind wanted, std::string_view what) const;
  template <class Float>
  Float parse_number(std::string_view what) const;
  std::int64_t within(std::int64_t value, std::string_view what, std::int64_t low, std::int64_t high) const;

  const JsonDocument* document_;
  std::size_t node_;
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

class JsonValue::Members {
 public:
  class Iterator {
   public:
    JsonMember operator*() const;
    Iterator& operator++();
    bool operator!=(const Iterator& other) const noexcept { return node_ != other.node_; }

   private:
    friend class Members;
    Iterator(const JsonDocument& document, std::size_t node, bool keyed)
        : document_(&document), node_(node), keyed_(keyed) {}
    const JsonDocument* document_;
    std::size_t node_;
    bool keyed_;
  };
  Iterator begin() const;
  Iterator end() const;
  /// Walks over all of them.
  std::size_t size() const;

 private:
  friend class JsonValue;
  explicit Members(const JsonValue& container) : container_(container) {}
  JsonValue container_;
};

struct JsonOptions {
  std::uint64_t base = 0;      ///< where the text starts in its file, for the offsets in errors
  std::size_t max_depth = 64;  ///< of arrays and objects in each other
};

/// A parsed text. Checks all of it: grammar, UTF-8, escapes, depth, that no object has a key twice. Numbers are
/// checked for form only. Time and memory are linear in the text (n log n in the keys of one object). The text must
/// outlive the document.
class JsonDocument {
 public:
  /// `file` is the name that errors give. Throws FormatError.
  static JsonDocument parse(std::string_view text, std::string_view file, const JsonOptions& options = {});

  JsonValue root() const noexcept { return JsonValue(*this, 0); }
  const std::string& file() const noexcept { return file_; }

 private:
  friend class JsonValue;
  friend class JsonValue::Members::Iterator;
  friend class JsonParser;
  friend class JsonValue::Members;

  /// Values in the order of the text; members of an object as key, value, key, value.
  struct Node {
    std::uint64_t start : 60;
    std::uint64_t kind : 3;
    std::uint64_t escaped : 1;  ///< of a string: it holds a backslash
    std::uint64_t extent;       ///< of a scalar: bytes of its text; of a container: the node after the last one inside
  };
  std::size_t next(std::size_t node) const noexcept;
  std::size_t end_of(std::size_t node) const noexcept;

  std::string_view text_;
  std::string file_;
  std::uint64_t base_ = 0;
  std::vector<Node> nodes_;
};

}  // namespace imago::files
