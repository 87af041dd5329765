#include "files/json_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <charconv>
#include <cmath>

#include "files/base64.h"
#include "files/json_text.h"
#include "imago/error.h"

namespace imago::files {

namespace {

/// Positional notation for decimal exponents from -6 to 20, else d.ddde±x: the rule of encoding/json, whose files these
/// must equal.
template <class Float>
std::string shortest(Float number) {
  if (!std::isfinite(number)) throw UsageError("a number that is not finite cannot be written as JSON");
  char buffer[64];
  const auto made = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<std::size_t>(made.ptr - buffer));  // [-]d[.ddd]e±xx
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const std::size_t mark = text.find('e');
  std::string digits(text.substr(0, mark));
  std::erase(digits, '.');
  const std::string_view power = text.substr(mark + 2);
  int exponent = 0;
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  if (text[mark + 1] == '-') exponent = -exponent;

  // Compared in the width of the number: 1e-6 as float32 is a little below 1e-6.
  const Float magnitude = std::abs(number);
  if (magnitude != 0 && (magnitude < static_cast<Float>(1e-6) || magnitude >= static_cast<Float>(1e21))) {
    out += digits[0];
    if (digits.size() > 1) out.append(1, '.').append(digits, 1);
    return out + (exponent < 0 ? fmt::format("e-{}", -exponent) : fmt::format("e+{:02}", exponent));
  }
  const int count = static_cast<int>(digits.size());
  if (exponent < 0) return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  if (exponent + 1 >= count) return out + digits + std::string(static_cast<std::size_t>(exponent + 1 - count), '0');
  return out + digits.substr(0, static_cast<std::size_t>(exponent + 1)) + "." +
         digits.substr(static_cast<std::size_t>(exponent + 1));
}

}  // namespace

std::string format_number(float number) { return shortest(number); }
std::string format_number(double number) { return shortest(number); }

std::string quote_json(std::string_view text) {
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    if (length == 0) throw UsageError("a text that is not UTF-8 cannot be written as JSON");
    const std::string_view character = text.substr(at, length);
    at += length;
    const unsigned char c = static_cast<unsigned char>(character.front());
    if (character == "\"" || character == "\\") {
      out += '\\';
      out += character;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (c < 0x20 || c == '<' || c == '>' || c == '&') {
      out += fmt::format("\\u{:04x}", c);
    } else if (character == "\u2028" || character == "\u2029") {
      out += character == "\u2028" ? "\\u2028" : "\\u2029";
    } else {
      out += character;
    }
  }
  return out + '"';
}

void JsonWriter::new_line() {
  if (style_ == JsonStyle::compact) return;
  sink_.write("\n");
  for (std::size_t i = 0; i < filled_.size(); ++i) sink_.write("  ");
}

/// In front of a key or an element.
void JsonWriter::separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (filled_.empty()) return;
  if (filled_.back()) sink_.write(",");
  filled_.back() = true;
  new_line();
}

void JsonWriter::begin(char bracket) {
  separate();
  sink_.write({&bracket, 1});
  filled_.push_back(false);
}

void JsonWriter::end(char bracket) {
  assert(!filled_.empty() && !after_key_);
  const bool filled = filled_.back();
  filled_.pop_back();
  if (filled) new_line();
  sink_.write({&bracket, 1});
}

void JsonWriter::key(std::string_view name) {
  assert(!filled_.empty() && !after_key_);
  separate();
  sink_.write(quote_json(name));
  sink_.write(style_ == JsonStyle::compact ? ":" : ": ");
  after_key_ = true;
}

void JsonWriter::raw(std::string_view json) {
  separate();
  sink_.write(json);
}

void JsonWriter::value(bool flag) { raw(flag ? "true" : "false"); }
void JsonWriter::value(std::int64_t number) { raw(fmt::format_int(number).c_str()); }
void JsonWriter::value(std::uint64_t number) { raw(fmt::format_int(number).c_str()); }
void JsonWriter::value(float number) { raw(shortest(number)); }
void JsonWriter::value(double number) { raw(shortest(number)); }
void JsonWriter::value(std::string_view text) { raw(quote_json(text)); }

void JsonWriter::base64(std::span<const std::byte> bytes) {
  raw("\"");
  // 3 MiB give 4 MiB of text: enough for every thread, and not much beside the weights themselves.
  constexpr std::size_t kPiece = 3 << 20;
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    const std::span<const std::byte> piece = bytes.subspan(at, std::min(kPiece, bytes.size() - at));
    text.resize(base64_length(piece.size()));
    encode_base64(piece, text);
    sink_.write(text);
  }
  sink_.write("\"");
}

}  // namespace imago::files
