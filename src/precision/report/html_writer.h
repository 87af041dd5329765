#pragma once

// HTML and SVG with every text escaped and every element closed.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace imago::precision {

/// `text` for HTML, between tags or quotes. Control characters and invalid UTF-8 become U+FFFD.
std::string escape_html(std::string_view text);

/// A coordinate or a size: at most two decimals, "0.5", "12".
std::string number_text(double value);

/// Writes nested elements. Names of elements and attributes are trusted; values and texts need not be.
class HtmlWriter {
 public:
  struct Attribute {
    Attribute(std::string_view its_name, std::string_view text) : name(its_name), value(text) {}
    Attribute(std::string_view its_name, double number) : name(its_name), value(number_text(number)) {}
    std::string_view name;
    std::string value;
  };
  using Attributes = std::initializer_list<Attribute>;

  HtmlWriter& open(std::string_view element, Attributes attributes = {});
  /// Closes the innermost element. REQUIRES: it is `element`.
  HtmlWriter& close(std::string_view element);
  HtmlWriter& text(std::string_view text);
  /// An element that contains only text.
  HtmlWriter& leaf(std::string_view element, std::string_view text, Attributes attributes = {});
  /// An element without content, like <path/> or <meta/>.
  HtmlWriter& empty(std::string_view element, Attributes attributes = {});
  /// Trusted text that is HTML already.
  HtmlWriter& raw(std::string_view markup);
  HtmlWriter& line_break() { return raw("\n"); }

  /// REQUIRES: everything is closed.
  std::string finish();

 private:
  void start(std::string_view element, Attributes attributes);

  std::string out_;
  std::vector<std::string> open_;
};

/// <section> with a heading and, unless it is empty, a paragraph that explains it.
void open_section(HtmlWriter& html, std::string_view heading, std::string_view explanation);

enum class TableKind : std::uint8_t {
  plain,
  sortable,  ///< by a click on a heading, if the page may run its script
  tall,      ///< sortable, and scrolls by itself
};
/// <table>, the columns of texts before those of numbers, up to its body. Close with close_table.
void open_table(HtmlWriter& html, TableKind kind, const std::vector<std::string>& text_columns,
                const std::vector<std::string>& number_columns);
void close_table(HtmlWriter& html);
void write_numbers(HtmlWriter& html, const std::vector<std::string>& cells);

}  // namespace imago::precision
