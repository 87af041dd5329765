#pragma once

// HTML and SVG with every text escaped and every element closed.

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace imago::precision {

/// `text` for HTML, between tags or quotes. Control characters and invalid UTF-8 become U+FFFD.
std::string escape_html(std::string_view text);

/// A coordinate or a size: at most two decimals, "0.5", "12".
std::string number_text(double value);

/// Writes nested elements. Names of elements and attributes are trusted; values and texts need not be.
class HtmlWriter {
 public:
  using Attributes = std::initializer_list<std::pair<std::string_view, std::string>>;

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

}  // namespace imago::precision
