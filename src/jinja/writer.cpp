#include "jinja/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

namespace imago::jinja {

namespace {

/// As Python's repr: single quotes, unless only they are inside.
void write_quoted(TextBuilder& out, std::string_view text) {
  const bool doubled = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = doubled ? '"' : '\'';
  std::string made(1, quote);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      made.append({'\\', c});
    } else if (c == '\n') {
      made += "\\n";
    } else if (c == '\t') {
      made += "\\t";
    } else if (c == '\r') {
      made += "\\r";
    } else if (byte < 0x20 || byte == 0x7f) {
      made += fmt::format("\\x{:02x}", byte);
    } else {
      made += c;
    }
  }
  out << made << std::string_view(&quote, 1);
}

class Printer {
 public:
  explicit Printer(Run& run) : run_(run), out_(run) {}

  void write(const Value& value, bool quoted) {
    run_.spend(1);
    if (value.is_none()) {
      out_ << "None";
    } else if (const bool* boolean = value.get<bool>()) {
      out_ << (*boolean ? "True" : "False");
    } else if (const std::int64_t* integer = value.get<std::int64_t>()) {
      out_ << std::to_string(*integer);
    } else if (const double* real = value.get<double>()) {
      out_ << real_text(*real);
    } else if (const std::string* text = value.string()) {
      if (quoted) {
        write_quoted(out_, *text);
      } else {
        out_ << *text;
      }
    } else if (const List* list = value.list()) {
      write_list(*list);
    } else if (const Dict* dict = value.dict()) {
      write_dict(*dict);
    } else if (!value.is_undefined()) {
      out_ << "<" << type_name(value) << ">";
    } else if (quoted) {
      out_ << "Undefined";
    }
  }
  std::string take() { return out_.take(); }

 private:
  void write_list(const List& list) {
    out_ << (list.tuple ? "(" : "[");
    bool first = true;
    for (const Value& item : list.items) {
      if (!std::exchange(first, false)) out_ << ", ";
      write(item, true);
    }
    if (list.tuple && list.items.size() == 1) out_ << ",";
    out_ << (list.tuple ? ")" : "]");
  }
  void write_dict(const Dict& dict) {
    out_ << "{";
    bool first = true;
    for (const auto& [key, item] : dict.items) {
      if (!std::exchange(first, false)) out_ << ", ";
      write(key, true);
      out_ << ": ";
      write(item, true);
    }
    out_ << "}";
  }

  Run& run_;
  TextBuilder out_;
};

}  // namespace

std::string real_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto made = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<std::size_t>(made.ptr - buffer));
  const std::size_t mark = text.find('e');
  int exponent = 0;
  const std::size_t digits_at = mark + (text[mark + 1] == '+' ? 2 : 1);
  std::from_chars(text.data() + digits_at, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);  // both write at least two digits of the exponent
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::fixed);
  std::string plain(buffer, fixed.ptr);
  return plain.find('.') == std::string::npos ? plain + ".0" : plain;
}

std::string to_text(Run& run, const Value& value) {
  Printer printer(run);
  printer.write(value, false);
  return printer.take();
}

}  // namespace imago::jinja
