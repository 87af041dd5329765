// Values as text: as Python prints them (str, repr), and as JSON (json.dumps).

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "jinja/text.h"

namespace imago::jinja {

namespace {

/// repr() of a string: in single quotes, unless it contains single but no double quotes.
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
  template <class Items, class Write>
  void write_all(const Items& items, Write one) {
    bool first = true;
    for (const auto& item : items) {
      if (!std::exchange(first, false)) out_ << ", ";
      one(item);
    }
  }
  void write_list(const List& list) {
    out_ << (list.tuple ? "(" : "[");
    write_all(list.items, [&](const Value& item) { write(item, true); });
    if (list.tuple && list.items.size() == 1) out_ << ",";
    out_ << (list.tuple ? ")" : "]");
  }
  void write_dict(const Dict& dict) {
    out_ << "{";
    write_all(dict.items, [&](const auto& item) {
      write(item.first, true);
      out_ << ": ";
      write(item.second, true);
    });
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
  if (exponent < -4 || exponent >= 16)
    return std::string(text);  // Python and to_chars both write at least two digits of the exponent
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::fixed);
  std::string plain(buffer, fixed.ptr);
  return plain.find('.') == std::string::npos ? plain + ".0" : plain;
}

std::string to_text(Run& run, const Value& value) {
  Printer printer(run);
  printer.write(value, false);
  return printer.take();
}

namespace {

/// A character that is not ASCII as \u escapes.
std::string escaped(std::string_view character) {
  const std::int32_t code = code_of(character);
  if (code < 0x10000) return fmt::format("\\u{:04x}", code < 0 ? 0xfffd : code);
  return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + ((code - 0x10000) >> 10), 0xdc00 + (code & 0x3ff));
}

class JsonPrinter {
 public:
  JsonPrinter(Run& run, const JsonStyle& style) : run_(run), style_(style), out_(run) {}

  void write(const Value& value, std::size_t level) {
    run_.spend(1);
    if (const std::string* text = value.string()) {
      write_string(*text);
    } else if (const double* real = value.get<double>()) {
      write_real(*real);
    } else if (value.is_none()) {
      out_ << "null";
    } else if (const bool* boolean = value.get<bool>()) {
      out_ << (*boolean ? "true" : "false");
    } else if (value.is_number()) {
      out_ << to_text(run_, value);
    } else if (const List* list = value.list()) {
      write_all("[", "]", list->items, level, [&](const Value& item) { write(item, level + 1); });
    } else if (const Dict* dict = value.dict()) {
      write_dict(*dict, level);
    } else if (value.is_undefined()) {
      run_.fail(*value.get<Undefined>()->why);
    } else {
      run_.fail(fmt::format("a {} cannot be written as JSON", type_name(value)));
    }
  }
  std::string take() { return out_.take(); }

 private:
  template <class Items, class Write>
  void write_all(std::string_view open, std::string_view close, const Items& items, std::size_t level, Write one) {
    out_ << open;
    bool first = true;
    for (const auto& item : items) {
      if (!std::exchange(first, false)) out_ << style_.item_separator;
      new_line(level + 1);
      one(item);
    }
    if (!first) new_line(level);
    out_ << close;
  }
  void new_line(std::size_t level) {
    if (!style_.indent) return;
    out_ << "\n";
    for (std::size_t i = 0; i < level; ++i) out_ << *style_.indent;
  }

  void write_dict(const Dict& dict, std::size_t level) {
    const auto write_pair = [&](const std::pair<Value, Value>& pair) {
      const Value& key = pair.first;
      if (key.is_string()) {
        write_string(*key.string());
      } else if (key.is_number() || key.is_none()) {
        out_ << "\"";
        write(key, 0);
        out_ << "\"";
      } else {
        run_.fail(fmt::format("a {} cannot be a key of JSON", type_name(key)));
      }
      out_ << style_.key_separator;
      write(pair.second, level + 1);
    };
    if (!style_.sorted) return write_all("{", "}", dict.items, level, write_pair);
    run_.spend(8 * dict.items.size());
    Pairs sorted = dict.items;
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](const auto& a, const auto& b) { return compare(run_, a.first, b.first) < 0; });
    write_all("{", "}", sorted, level, write_pair);
  }

  void write_real(double real) {
    if (std::isfinite(real)) {
      out_ << real_text(real);
    } else {
      out_ << (std::isnan(real) ? "NaN" : real < 0 ? "-Infinity" : "Infinity");
    }
  }

  void write_string(std::string_view text) {
    run_.touch(text.size());
    const Characters characters(text);
    std::string made = "\"";
    for (std::size_t i = 0; i < characters.size(); ++i) {
      const std::string_view character = characters.range(i, i + 1);
      const auto byte = static_cast<unsigned char>(character[0]);
      switch (character[0]) {
        case '"': made += "\\\""; break;
        case '\\': made += "\\\\"; break;
        case '\n': made += "\\n"; break;
        case '\r': made += "\\r"; break;
        case '\t': made += "\\t"; break;
        case '\f': made += "\\f"; break;
        case '\b': made += "\\b"; break;
        default:
          if (byte < 0x20) {
            made += fmt::format("\\u{:04x}", byte);
          } else if (byte >= 0x80 && style_.ascii) {
            made += escaped(character);
          } else {
            made += character;
          }
      }
    }
    out_ << made << "\"";
  }

  Run& run_;
  const JsonStyle& style_;
  TextBuilder out_;
};

}  // namespace

std::string to_json(Run& run, const Value& value, const JsonStyle& style) {
  JsonPrinter printer(run, style);
  printer.write(value, 0);
  return printer.take();
}

}  // namespace imago::jinja
