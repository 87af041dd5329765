#include "precision/report/html_writer.h"

#include <fmt/format.h>

#include <cassert>
#include <cmath>
#include <cstdint>

#include "files/json_text.h"

namespace imago::precision {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// C1 controls, two bytes each: some readers interpret them as other characters.
bool is_c1(std::string_view character) {
  return character.size() == 2 && character[0] == '\xC2' && static_cast<std::uint8_t>(character[1]) < 0xA0;
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t bytes = files::utf8_length(text, 0);
    const std::string_view character = text.substr(0, bytes == 0 ? 1 : bytes);
    text.remove_prefix(character.size());
    const char c = character[0];
    const bool control =
        (static_cast<std::uint8_t>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7F || is_c1(character);
    if (bytes == 0 || control) {
      out += kReplacement;
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      out += character;
    }
  }
  return out;
}

std::string number_text(double value) {
  const double rounded = std::round(value * 100) / 100;
  return fmt::format("{}", rounded == 0 ? 0.0 : rounded);  // no "-0"
}

void HtmlWriter::start(std::string_view element, Attributes attributes) {
  out_ += '<';
  out_ += element;
  for (const auto& [name, value] : attributes) {
    out_ += fmt::format(" {}=\"{}\"", name, escape_html(value));
  }
}

HtmlWriter& HtmlWriter::open(std::string_view element, Attributes attributes) {
  start(element, attributes);
  out_ += '>';
  open_.emplace_back(element);
  return *this;
}

HtmlWriter& HtmlWriter::close(std::string_view element) {
  assert(!open_.empty() && open_.back() == element);
  open_.pop_back();
  out_ += fmt::format("</{}>", element);
  return *this;
}

HtmlWriter& HtmlWriter::text(std::string_view text) {
  out_ += escape_html(text);
  return *this;
}

HtmlWriter& HtmlWriter::leaf(std::string_view element, std::string_view text, Attributes attributes) {
  start(element, attributes);
  out_ += fmt::format(">{}</{}>", escape_html(text), element);
  return *this;
}

HtmlWriter& HtmlWriter::empty(std::string_view element, Attributes attributes) {
  start(element, attributes);
  out_ += "/>";
  return *this;
}

HtmlWriter& HtmlWriter::raw(std::string_view markup) {
  out_ += markup;
  return *this;
}

std::string HtmlWriter::finish() {
  assert(open_.empty());
  return std::move(out_);
}

void open_section(HtmlWriter& html, std::string_view heading, std::string_view explanation) {
  html.open("section").leaf("h2", heading).line_break();
  if (!explanation.empty()) html.leaf("p", explanation, {{"class", "explain"}}).line_break();
}

void open_table(HtmlWriter& html, TableKind kind, const std::vector<std::string>& text_columns,
                const std::vector<std::string>& number_columns) {
  kind == TableKind::tall ? html.open("div", {{"class", "scroll tall"}, {"tabindex", "0"}})
                          : html.open("div", {{"class", "scroll"}});
  const bool plain = kind == TableKind::plain;
  plain ? html.open("table") : html.open("table", {{"class", "sortable"}});
  html.open("thead").open("tr");
  for (const std::string& text : text_columns) {
    plain ? html.leaf("th", text, {{"scope", "col"}}) : html.leaf("th", text, {{"scope", "col"}, {"class", "word"}});
  }
  for (const std::string& text : number_columns) html.leaf("th", text, {{"scope", "col"}, {"class", "number"}});
  html.close("tr").close("thead").line_break().open("tbody");
}

void close_table(HtmlWriter& html) { html.close("tbody").close("table").close("div"); }

void write_numbers(HtmlWriter& html, const std::vector<std::string>& cells) {
  for (const std::string& cell : cells) html.leaf("td", cell, {{"class", "number"}});
}

}  // namespace imago::precision
