#pragma once

// Sinks for written bytes.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/atomic_file.h"

namespace imago::files {

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void write(std::string_view text) = 0;
};

class StringSink final : public Sink {
 public:
  void write(std::string_view text) override { text_ += text; }
  std::string& text() noexcept { return text_; }

 private:
  std::string text_;
};

/// Does not commit.
class FileSink final : public Sink {
 public:
  explicit FileSink(AtomicFile& file) : file_(file) {}
  void write(std::string_view text) override { file_.write(text); }

 private:
  AtomicFile& file_;
};

// JSON as checkpoints are written: byte for byte what the original's encoder gives.

enum class JsonStyle : std::uint8_t {
  indented,  ///< two spaces, one key or element per line
  compact,   ///< no spaces at all
};

/// Writes values one after the other as the calls come. A call in the wrong place is our own mistake: an assertion.
class JsonWriter {
 public:
  JsonWriter(Sink& sink, JsonStyle style) : sink_(sink), style_(style) {}

  void begin_object() { begin('{'); }
  void end_object() { end('}'); }
  void begin_array() { begin('['); }
  void end_array() { end(']'); }
  /// In an object: names the value that the next call writes.
  void key(std::string_view name);
  /// In an object: a key and a value of any type that value() takes.
  template <class T>
  void member(std::string_view name, const T& value_of_it) {
    key(name);
    value(value_of_it);
  }

  void value(bool flag);
  void value(std::int64_t number);
  void value(std::uint64_t number);
  void value(int number) { value(std::int64_t{number}); }
  /// The shortest digits that read back to the same value of the same width. Throw UsageError for NaN and infinities.
  void value(float number);
  void value(double number);
  /// Throws UsageError if it is not UTF-8.
  void value(std::string_view text);
  void value(const char* text) { value(std::string_view(text)); }
  /// Numbers or flags as an array.
  template <class Range>
  void array(const Range& elements) {
    begin_array();
    for (const auto& element : elements) value(element);
    end_array();
  }
  /// Bytes as base64 text, made piece by piece.
  void base64(std::span<const std::byte> bytes);
  /// A value that is JSON already.
  void raw(std::string_view json);

 private:
  void begin(char bracket);
  void end(char bracket);
  void separate();
  void new_line();

  Sink& sink_;
  JsonStyle style_;
  std::vector<bool> filled_;  // for each open container: does it hold something
  bool after_key_ = false;
};

/// `text` in quotes with everything escaped that must be. Throws UsageError if it is not UTF-8.
std::string quote_json(std::string_view text);

/// As JsonWriter writes them.
std::string format_number(float number);
std::string format_number(double number);

}  // namespace imago::files
