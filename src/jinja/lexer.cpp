#include "jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "imago/error.h"
#include "jinja/text.h"

namespace imago::jinja {

std::size_t Source::line_of(std::size_t offset) const noexcept {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(offset, text.size()));
  return 1 + static_cast<std::size_t>(std::count(text.begin(), end, '\n'));
}

void Source::fail(std::size_t offset, std::string_view problem) const {
  throw FormatError("chat template", offset, fmt::format("line {}: {}", line_of(offset), problem));
}

void Source::refuse(std::size_t offset, std::string_view problem) const {
  throw UnsupportedError(fmt::format("chat template: line {}: {}", line_of(offset), problem));
}

namespace {

/// Parses a number of at most `digits` digits at `at`. Returns its length, 0 if there is none.
std::size_t read_code(std::string_view text, std::size_t at, std::size_t digits, int base, std::uint32_t& code) {
  const char* const first = text.data() + at;
  const char* const last = first + std::min(digits, text.size() - at);
  const auto [end, error] = std::from_chars(first, last, code, base);
  return error == std::errc() ? static_cast<std::size_t>(end - first) : 0;
}

/// The byte that backslash and `c` mean; 0 if that is not a simple escape.
char simple_escape(char c) noexcept {
  switch (c) {
    case 'n': return '\n';
    case 't': return '\t';
    case 'r': return '\r';
    case 'a': return '\a';
    case 'b': return '\b';
    case 'f': return '\f';
    case 'v': return '\v';
    case '\\':
    case '\'':
    case '"': return c;
    default: return '\0';
  }
}

/// The value of a string literal, bytes [from, to) of the source. Throws FormatError for an invalid escape.
std::string resolve_escapes(const Source& source, std::size_t from, std::size_t to) {
  const std::string_view text = std::string_view(source.text).substr(0, to);
  std::string meaning;
  for (std::size_t at = from; at < to;) {
    if (text[at] != '\\' || at + 1 == to) {
      meaning += text[at++];
      continue;
    }
    const char c = text[at + 1];
    std::uint32_t code = 0;
    if (const char byte = simple_escape(c)) {
      meaning += byte;
      at += 2;
    } else if (c == '\n') {  // line continuation
      at += 2;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      if (read_code(text, at + 2, digits, 16, code) != digits) {
        source.fail(at, "an escape has too few hexadecimal digits: \\xHH, \\uHHHH or \\UHHHHHHHH");
      }
      append_utf8(meaning, code);
      at += 2 + digits;
    } else if (c >= '0' && c <= '7') {
      at += 1 + read_code(text, at + 1, 3, 8, code);
      append_utf8(meaning, code);
    } else {  // Python keeps unknown escapes
      meaning += '\\';
      ++at;
    }
  }
  return meaning;
}

constexpr std::string_view kBlanks = " \t\n\r\f\v";

bool is_name_start(char c) noexcept {
  return c == '_' || std::isalpha(static_cast<unsigned char>(c)) != 0 || static_cast<unsigned char>(c) >= 0x80;
}
bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
bool is_name_part(char c) noexcept { return is_name_start(c) || is_digit(c); }

class Lexer {
 public:
  explicit Lexer(const Source& source) : source_(source), text_(source.text) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) read_data();
    add(TokenKind::end, "", text_.size());
    return std::move(tokens_);
  }

 private:
  void add(TokenKind kind, std::string text, std::size_t at) { tokens_.push_back({kind, std::move(text), at}); }
  bool starts(std::string_view what, std::size_t at) const { return text_.substr(at, what.size()) == what; }

  void skip_blanks() {
    at_ = std::min(text_.find_first_not_of(kBlanks, at_), text_.size());
    line_starts_ = at_ > 0 && text_[at_ - 1] == '\n';
  }

  /// Text up to the next tag, and that tag.
  void read_data() {
    std::size_t tag = at_;
    for (;; ++tag) {
      tag = text_.find('{', tag);
      if (tag == std::string_view::npos) break;
      if (tag + 1 < text_.size() && (text_[tag + 1] == '{' || text_[tag + 1] == '%' || text_[tag + 1] == '#')) break;
    }
    if (tag == std::string_view::npos) {
      add_data(text_.substr(at_));
      at_ = text_.size();
      return;
    }
    const char kind = text_[tag + 1];
    const char control = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
    add_data(before_tag(text_.substr(at_, tag - at_), kind, control));
    at_ = tag + (control == '-' || control == '+' ? 3 : 2);
    if (kind == '#') {
      read_comment(tag);
    } else if (kind == '%' && is_raw_tag()) {
      read_raw(tag);
    } else {
      read_tag(tag, kind == '%');
    }
  }

  void add_data(std::string_view data) {
    if (!data.empty()) add(TokenKind::data, std::string(data), at_);
  }

  std::string_view before_tag(std::string_view data, char kind, char control) const {
    if (control == '-') return data.substr(0, data.find_last_not_of(kBlanks) + 1);
    if (control == '+' || kind == '{') return data;
    const std::size_t line = data.rfind('\n') + 1;  // npos + 1 is 0
    if (line == 0 && !line_starts_) return data;
    return data.find_first_not_of(kBlanks, line) == std::string_view::npos ? data.substr(0, line) : data;
  }

  /// Handles white space after the end of a block or comment at at_.
  void after_block(char control) {
    line_starts_ = false;
    if (control == '-') {
      skip_blanks();
    } else if (control != '+' && starts("\n", at_)) {
      ++at_;
      line_starts_ = true;
    }
  }

  void read_comment(std::size_t tag) {
    const std::size_t end = text_.find("#}", at_);
    if (end == std::string_view::npos) source_.fail(tag, "the comment that starts here has no end; add '#}'");
    const char control = end > at_ ? text_[end - 1] : '\0';
    at_ = end + 2;
    after_block(control);
  }

  /// The end of the tag `{% name %}` whose content starts at `from`, and its closing control; 0 if it is another tag.
  std::size_t simple_tag(std::string_view name, std::size_t from, char& control) const {
    std::size_t at = std::min(text_.find_first_not_of(kBlanks, from), text_.size());
    if (!starts(name, at)) return 0;
    at = std::min(text_.find_first_not_of(kBlanks, at + name.size()), text_.size());
    control = at < text_.size() ? text_[at] : '\0';
    if (control == '-' || control == '+') ++at;
    return starts("%}", at) ? at + 2 : 0;
  }

  bool is_raw_tag() const {
    char control = '\0';
    return simple_tag("raw", at_, control) != 0;
  }

  void read_raw(std::size_t tag) {
    char control = '\0';
    at_ = simple_tag("raw", at_, control);
    line_starts_ = false;
    if (control == '-') skip_blanks();  // trim_blocks does not apply to raw text
    for (std::size_t end = text_.find("{%", at_); end != std::string_view::npos; end = text_.find("{%", end + 2)) {
      const char begin_control = end + 2 < text_.size() ? text_[end + 2] : '\0';
      const std::size_t inside = end + (begin_control == '-' || begin_control == '+' ? 3 : 2);
      char end_control = '\0';
      const std::size_t after = simple_tag("endraw", inside, end_control);
      if (after == 0) continue;
      add_data(before_tag(text_.substr(at_, end - at_), '%', begin_control));
      at_ = after;
      after_block(end_control);
      return;
    }
    source_.fail(tag, "the raw block that starts here has no end; add '{% endraw %}'");
  }

  void read_tag(std::size_t tag, bool block) {
    add(block ? TokenKind::block_begin : TokenKind::print_begin, "", tag);
    open_.clear();
    for (;;) {
      at_ = std::min(text_.find_first_not_of(kBlanks, at_), text_.size());
      if (at_ == text_.size()) {
        source_.fail(tag, fmt::format("the tag that starts here has no end; add '{}'", block ? "%}" : "}}"));
      }
      if (open_.empty() && read_end(block)) return;
      read_token();
    }
  }

  bool read_end(bool block) {
    const std::string_view end = block ? "%}" : "}}";
    const char control = text_[at_];
    const bool controlled = control == '-' || (control == '+' && block);
    if (!starts(end, at_ + (controlled ? 1 : 0))) return false;
    add(block ? TokenKind::block_end : TokenKind::print_end, "", at_);
    at_ += end.size() + (controlled ? 1 : 0);
    if (block) {
      after_block(controlled ? control : '\0');
    } else {
      line_starts_ = false;
      if (controlled) skip_blanks();
    }
    return true;
  }

  void read_token() {
    const char c = text_[at_];
    if (is_name_start(c)) {
      const std::size_t from = at_;
      while (at_ < text_.size() && is_name_part(text_[at_])) ++at_;
      add(TokenKind::name, std::string(text_.substr(from, at_ - from)), from);
    } else if (is_digit(c)) {
      read_number();
    } else if (c == '\'' || c == '"') {
      read_string(c);
    } else {
      read_sign();
    }
  }

  void read_number() {
    const std::size_t from = at_;
    bool real = false;
    const bool prefixed = starts("0x", at_) || starts("0X", at_) || starts("0o", at_) || starts("0b", at_);
    const auto digits = [&] {
      while (at_ < text_.size() && (is_digit(text_[at_]) || text_[at_] == '_')) ++at_;
    };
    if (prefixed) {
      at_ += 2;
      while (at_ < text_.size() && is_name_part(text_[at_])) ++at_;
    } else {
      digits();
      if (at_ + 1 < text_.size() && text_[at_] == '.' && is_digit(text_[at_ + 1])) {
        real = true;
        ++at_;
        digits();
      }
      std::size_t power = at_ + 1;
      if (power < text_.size() && (text_[power] == '+' || text_[power] == '-')) ++power;
      if (at_ < text_.size() && (text_[at_] | 0x20) == 'e' && power < text_.size() && is_digit(text_[power])) {
        real = true;
        at_ = power;
        digits();
      }
    }
    std::string number(text_.substr(from, at_ - from));
    std::erase(number, '_');
    add(real ? TokenKind::real : TokenKind::integer, std::move(number), from);
  }

  void read_string(char quote) {
    const std::size_t from = at_;
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
      if (text_[at_] == '\\') ++at_;
    }
    if (at_ >= text_.size()) source_.fail(from, fmt::format("the string that starts here has no end; add {}", quote));
    ++at_;
    add(TokenKind::string, resolve_escapes(source_, from + 1, at_ - 1), from);
  }

  void read_sign() {
    static constexpr std::array<std::string_view, 6> kPairs = {"==", "!=", "<=", ">=", "//", "**"};
    std::string_view sign = text_.substr(at_, 1);
    const std::string_view pair = text_.substr(at_, 2);
    if (std::find(kPairs.begin(), kPairs.end(), pair) != kPairs.end()) sign = pair;
    if (sign.size() == 1 && std::string_view("+-*/%~<>=.,:|()[]{}").find(sign) == std::string_view::npos) {
      source_.fail(at_, fmt::format("'{}' has no meaning in a tag", sign));
    }
    if (sign == "(" || sign == "[" || sign == "{") {
      open_ += sign == "(" ? ')' : sign == "[" ? ']' : '}';
    } else if (sign == ")" || sign == "]" || sign == "}") {
      if (open_.empty()) source_.fail(at_, fmt::format("'{}' has no opening bracket", sign));
      if (open_.back() != sign[0]) source_.fail(at_, fmt::format("expected '{}', got '{}'", open_.back(), sign));
      open_.pop_back();
    }
    add(TokenKind::sign, std::string(sign), at_);
    at_ += sign.size();
  }

  const Source& source_;
  std::string_view text_;
  std::size_t at_ = 0;
  bool line_starts_ = true;  // the text consumed so far ends with a newline
  std::string open_;         // closing brackets that are still expected
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(const Source& source) { return Lexer(source).run(); }

std::string normalize_newlines(std::string text) {
  std::size_t kept = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool carriage = text[at] == '\r';
    if (carriage && at + 1 < text.size() && text[at + 1] == '\n') ++at;
    text[kept++] = carriage ? '\n' : text[at];
  }
  text.resize(kept);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace imago::jinja
