// Parses blocks: text, {{ }} and {% %}.

#include "jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace imago::jinja {

namespace {

class Parser {
 public:
  explicit Parser(const Source& source) : source_(source), tokens_(source), expressions_(tokens_) {}

  Block run() {
    Block block = statements({});
    if (!tokens_.is(TokenKind::end)) fail_tag("does not belong to a block");
    return block;
  }

 private:
  using Words = std::initializer_list<std::string_view>;

  [[noreturn]] void fail_tag(std::string_view problem) const {
    source_.fail(tokens_.now().at, fmt::format("'{}' {}", tokens_.ahead().text, problem));
  }

  /// Parses up to a tag that starts with one of the words, or to the end of the template. The next token is that tag.
  Block statements(Words ends) {
    const TokenStream::Level level(tokens_);
    Block block;
    for (;;) {
      const std::size_t at = tokens_.now().at;
      if (tokens_.is(TokenKind::end)) return block;
      if (tokens_.is(TokenKind::data)) {
        block.push_back(std::make_unique<Data>(at, tokens_.take().text));
      } else if (tokens_.is(TokenKind::print_begin)) {
        tokens_.take();
        block.push_back(std::make_unique<Print>(at, expressions_.expressions()));
        tokens_.expect(TokenKind::print_end);
      } else {
        const Token& word = tokens_.ahead();
        if (word.kind == TokenKind::name && std::find(ends.begin(), ends.end(), word.text) != ends.end()) return block;
        if (is_an_end(word)) return block;
        block.push_back(statement(at));
      }
    }
  }

  static bool is_an_end(const Token& word) {
    static constexpr std::array<std::string_view, 3> kEnds = {"else", "elif", "end"};
    return word.kind == TokenKind::name && std::any_of(kEnds.begin(), kEnds.end(), [&](std::string_view end) {
             return word.text == end || (end == "end" && word.text.starts_with(end));
           });
  }

  /// Consumes the start of the tag `name`, which must be next.
  void take_tag(std::string_view name, std::size_t opened) {
    if (!tokens_.is(TokenKind::block_begin)) {
      source_.fail(opened, fmt::format("the block that starts here has no end; add '{{% {} %}}'", name));
    }
    if (tokens_.ahead().text != name) fail_tag(fmt::format("instead of '{}'", name));
    tokens_.take();
    tokens_.take();
  }
  void close(std::string_view name, std::size_t opened) {
    take_tag(name, opened);
    tokens_.expect(TokenKind::block_end);
  }
  Block body(std::string_view end, std::size_t opened) {
    tokens_.expect(TokenKind::block_end);
    Block block = statements({end});
    close(end, opened);
    return block;
  }

  std::unique_ptr<const Statement> statement(std::size_t at) {
    tokens_.take();
    const std::string name = tokens_.expect_name();
    if (name == "if") return read_if(at);
    if (name == "for") return read_for(at);
    if (name == "set") return read_set(at);
    if (name == "macro") return read_macro(at);
    if (name == "filter" || name == "generation") return read_filter(at, name == "filter");
    if (name == "break" || name == "continue") {
      if (loops_ == 0) source_.fail(at, fmt::format("'{}' outside a for block", name));
      tokens_.expect(TokenKind::block_end);
      return std::make_unique<Jump>(at, name == "break" ? Flow::break_loop : Flow::continue_loop);
    }
    source_.refuse(at,
                   fmt::format("the tag '{}' is not supported; use if, for, set, macro, filter, raw, break, continue "
                               "and generation",
                               name));
  }

  std::unique_ptr<const Statement> read_if(std::size_t at) {
    auto made = std::make_unique<If>(at);
    for (;;) {
      ExpressionPtr condition = expressions_.expressions();
      tokens_.expect(TokenKind::block_end);
      made->branches.emplace_back(std::move(condition), statements({"elif", "else", "endif"}));
      if (!tokens_.is(TokenKind::block_begin) || tokens_.ahead().text != "elif") break;
      take_tag("elif", at);
    }
    if (tokens_.is(TokenKind::block_begin) && tokens_.ahead().text == "else") {
      close("else", at);
      made->otherwise = statements({"endif"});
    }
    close("endif", at);
    return made;
  }

  std::unique_ptr<const Statement> read_for(std::size_t at) {
    auto made = std::make_unique<For>(at);
    made->target = names();
    tokens_.expect_word("in");
    made->iterable = expressions_.expressions(false);
    if (tokens_.skip_word("if")) made->condition = expressions_.expression();
    if (tokens_.is_word("recursive")) source_.refuse(at, "recursive for blocks are not supported");
    tokens_.expect(TokenKind::block_end);
    ++loops_;
    made->body = statements({"else", "endfor"});
    --loops_;
    if (tokens_.is(TokenKind::block_begin) && tokens_.ahead().text == "else") {
      close("else", at);
      made->otherwise = statements({"endfor"});
    }
    close("endfor", at);
    return made;
  }

  /// "a", "a, b" or "(a, b)"
  Target names() {
    Target target;
    const bool brackets = tokens_.skip_sign("(");
    do {
      if (!target.names.empty() && (tokens_.is_sign(")") || tokens_.is_word("in") || tokens_.is_sign("="))) break;
      target.names.push_back(target_name());
      target.unpack = tokens_.is_sign(",");
    } while (tokens_.skip_sign(","));
    target.unpack = target.unpack || target.names.size() > 1;
    if (brackets) tokens_.expect_sign(")");
    return target;
  }
  std::string target_name() {
    static constexpr std::array<std::string_view, 6> kConstants = {"true", "false", "none", "True", "False", "None"};
    const std::size_t at = tokens_.now().at;
    std::string name = tokens_.expect_name();
    if (std::find(kConstants.begin(), kConstants.end(), name) != kConstants.end()) {
      source_.fail(at, fmt::format("'{}' is a constant and cannot be assigned to", name));
    }
    return name;
  }

  std::unique_ptr<const Statement> read_set(std::size_t at) {
    Target target = names();
    if (!target.unpack && tokens_.skip_sign(".")) target.attribute = tokens_.expect_name();
    if (tokens_.skip_sign("=")) {
      auto made = std::make_unique<Set>(at);
      made->target = std::move(target);
      made->value = expressions_.expressions();
      tokens_.expect(TokenKind::block_end);
      return made;
    }
    auto made = std::make_unique<SetBlock>(at);
    made->target = std::move(target);
    while (tokens_.skip_sign("|")) made->filters.push_back(expressions_.filter());
    made->body = isolated("endset", at);
    return made;
  }

  std::unique_ptr<const Statement> read_filter(std::size_t at, bool filters) {
    auto made = std::make_unique<FilterBlock>(at);
    if (filters) {
      do {
        made->filters.push_back(expressions_.filter());
      } while (tokens_.skip_sign("|"));
    }
    made->body = isolated(filters ? "endfilter" : "endgeneration", at);
    return made;
  }

  /// A body in which break and continue cannot refer to an enclosing loop.
  Block isolated(std::string_view end, std::size_t at) {
    const int loops = std::exchange(loops_, 0);
    Block block = body(end, at);
    loops_ = loops;
    return block;
  }

  std::unique_ptr<const Statement> read_macro(std::size_t at) {
    // Macros only see the outermost variables, because they may outlive the block in which they are defined.
    if (loops_ > 0 || in_macro_) source_.refuse(at, "macros inside for blocks and other macros are not supported");
    auto made = std::make_unique<MacroDefinition>(at);
    made->name = target_name();
    tokens_.expect_sign("(");
    while (!tokens_.skip_sign(")")) {
      if (!made->parameters.empty()) {
        tokens_.expect_sign(",");
        if (tokens_.skip_sign(")")) break;
      }
      MacroDefinition::Parameter parameter{target_name(), nullptr};
      for (const auto& other : made->parameters) {
        if (other.name == parameter.name) source_.fail(at, fmt::format("the parameter '{}' is repeated", other.name));
      }
      if (tokens_.skip_sign("=")) parameter.otherwise = expressions_.expression();
      made->parameters.push_back(std::move(parameter));
    }
    in_macro_ = true;
    made->body = isolated("endmacro", at);
    in_macro_ = false;
    return made;
  }

  const Source& source_;
  TokenStream tokens_;
  ExpressionParser expressions_;
  int loops_ = 0;
  bool in_macro_ = false;
};

}  // namespace

Block parse_template(const Source& source) {
  if (source.text.size() > kMaxSourceBytes) {
    source.fail(kMaxSourceBytes,
                fmt::format("the template has {} bytes; the limit is {}", source.text.size(), kMaxSourceBytes));
  }
  return Parser(source).run();
}

}  // namespace imago::jinja
