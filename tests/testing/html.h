#pragma once

// Pages of HTML, as far as tests look into them.

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace imago::testing {

struct HtmlPage {
  std::vector<std::string> problems;  ///< elements that do not close, attributes without quotes, …
  std::vector<std::string> elements;  ///< names of opened elements, in order
  std::vector<std::pair<std::string, std::string>> attributes;  ///< names and values as written
  std::string text;  ///< between the tags, entities resolved; without styles and scripts

  bool has_text(const std::string& words) const { return text.find(words) != std::string::npos; }
  std::size_t count(std::string_view element) const {
    return static_cast<std::size_t>(std::count(elements.begin(), elements.end(), element));
  }
};

inline std::string resolve_entities(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kEntities[] = {
      {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&#39;", "'"}, {"&amp;", "&"}};
  for (const auto& [entity, character] : kEntities) {
    for (std::size_t at = 0; (at = text.find(entity, at)) != std::string::npos; at += character.size()) {
      text.replace(at, entity.size(), character);
    }
  }
  return text;
}

/// Reads the attributes of a tag, `name="value"` each; `tag` is the text between the brackets, after the name.
inline void read_attributes(std::string_view tag, HtmlPage& page) {
  std::size_t at = 0;
  const auto skip_spaces = [&] {
    while (at < tag.size() && std::isspace(static_cast<unsigned char>(tag[at]))) ++at;
  };
  for (skip_spaces(); at < tag.size(); skip_spaces()) {
    const std::size_t equals = tag.find("=\"", at);
    const std::size_t end = equals == std::string_view::npos ? equals : tag.find('"', equals + 2);
    if (end == std::string_view::npos) {
      page.problems.push_back("attribute without quotes in '" + std::string(tag) + "'");
      return;
    }
    page.attributes.emplace_back(tag.substr(at, equals - at), tag.substr(equals + 2, end - equals - 2));
    at = end + 1;
  }
}

/// Strict where browsers forgive: every element must be closed, in order, or end with "/>".
inline HtmlPage read_html(std::string_view html) {
  HtmlPage page;
  std::vector<std::string> open;
  std::size_t at = 0;
  while (at < html.size()) {
    const std::size_t begin = html.find('<', at);
    page.text += html.substr(at, std::min(begin, html.size()) - at);
    if (begin == std::string_view::npos) break;
    const std::size_t end = html.find('>', begin);
    if (end == std::string_view::npos) {
      page.problems.push_back("a tag that does not end");
      break;
    }
    std::string_view tag = html.substr(begin + 1, end - begin - 1);
    at = end + 1;
    if (tag == "!doctype html") continue;
    if (tag.starts_with('/')) {
      const std::string name(tag.substr(1));
      if (open.empty() || open.back() != name) {
        page.problems.push_back("</" + name + "> closes nothing, or " + (open.empty() ? "" : open.back()));
      } else {
        open.pop_back();
      }
      page.text += ' ';
      continue;
    }
    const bool closed = tag.ends_with('/');
    if (closed) tag.remove_suffix(1);
    const std::string name(tag.substr(0, std::min(tag.find(' '), tag.size())));
    page.elements.push_back(name);
    read_attributes(tag.substr(name.size()), page);
    if (closed) continue;
    open.push_back(name);
    if (name == "style" || name == "script") at = std::min(html.find("</" + name, at), html.size());
  }
  for (const std::string& name : open) page.problems.push_back("<" + name + "> is not closed");
  page.text = resolve_entities(page.text);
  return page;
}

/// What a page would load from elsewhere, or do on its own: attributes that fetch, and addresses anywhere.
inline std::vector<std::string> outside_references(std::string_view html, const HtmlPage& page) {
  std::vector<std::string> found;
  for (const char* address : {"http://", "https://", "url(", "@import", "fetch(", "XMLHttpRequest"}) {
    if (html.find(address) != std::string_view::npos) found.emplace_back(address);
  }
  for (const auto& [name, value] : page.attributes) {
    if (name == "src" || name == "href" || name == "xlink:href" || name.starts_with("on")) found.push_back(name);
  }
  for (const char* element : {"link", "img", "iframe", "object", "embed", "image", "use", "foreignObject"}) {
    if (page.count(element) != 0) found.emplace_back(element);
  }
  return found;
}

}  // namespace imago::testing
