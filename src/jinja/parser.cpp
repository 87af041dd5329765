// Parses text, {{ }} and {% %} into statements.

#include "jinja/parser.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

namespace imago::jinja {

namespace {

/// What a value is assigned to: names, or one attribute of a namespace.
struct Target {
  std::vector<std::string> names;
  std::string attribute;  ///< of the namespace names[0]; empty: the names themselves
  bool unpack = false;    ///< one value per name

  void assign(Run& run, const Value& value) const {
    if (!attribute.empty()) return set_attribute(run, value);
    if (!unpack) return run.assign(names[0], value);
    const ListRef items = items_of(run, value);
    if (items->items.size() != names.size()) {
      run.fail(fmt::format("expected {} values, got {}", names.size(), items->items.size()));
    }
    for (std::size_t i = 0; i < names.size(); ++i) run.assign(names[i], items->items[i]);
  }

 private:
  void set_attribute(Run& run, const Value& value) const {
    const Value* held = run.find(names[0]);
    if (held == nullptr) run.fail(fmt::format("'{}' is undefined", names[0]));
    Namespace* const* space = held->get<Namespace*>();
    if (space == nullptr) {
      run.fail(fmt::format("'{}' is not a namespace, so its attributes cannot be assigned to", names[0]));
    }
    auto& items = (*space)->items;
    const auto known = std::ranges::find(items, attribute, &std::pair<std::string, Value>::first);
    if (known != items.end()) {
      known->second = value;
      return;
    }
    run.allocate(attribute.size() + sizeof(Value) + 32);
    items.emplace_back(attribute, value);
  }
};

Value filtered(Run& run, const std::vector<Filter>& filters, std::string text) {
  Value value = run.text(std::move(text));
  for (const Filter& filter : filters) value = filter.apply(run, value);
  return value;
}

class Parser {
 public:
  explicit Parser(const Source& source) : source_(source), tokens_(source) {}

  Block run() {
    Block block = statements();
    if (!tokens_.is(TokenKind::end)) fail_tag("does not belong to a block");
    return block;
  }

 private:
  [[noreturn]] void fail_tag(std::string_view problem) const {
    source_.fail(tokens_.now().at, fmt::format("'{}' {}", tokens_.ahead().text, problem));
  }

  /// Parses up to a tag that ends a block or a branch, or to the end of the template. The next token is that tag.
  Block statements() {
    const TokenStream::Level level(tokens_);
    Block block;
    for (;;) {
      const std::size_t at = tokens_.now().at;
      if (tokens_.is(TokenKind::end)) return block;
      if (tokens_.is(TokenKind::data)) {
        block.push_back({at, [text = tokens_.take().text](Run& run) {
                           run.write(text);
                           return Flow::next;
                         }});
      } else if (tokens_.is(TokenKind::print_begin)) {
        block.push_back(print(at));
      } else {
        const Token& word = tokens_.ahead();
        const bool ends = word.text == "else" || word.text == "elif" || word.text.starts_with("end");
        if (word.kind == TokenKind::name && ends) return block;
        block.push_back(statement(at));
      }
    }
  }

  Statement print(std::size_t at) {
    tokens_.take();
    Expression value = parse_expressions(tokens_);
    tokens_.expect_end(TokenKind::print_end);
    return {at, [value = std::move(value)](Run& run) {
              const Value printed = run.evaluate(value);
              if (const std::string* text = printed.string()) {
                run.write(*text);
              } else {
                run.write(to_text(run, printed));
              }
              return Flow::next;
            }};
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
    tokens_.expect_end(TokenKind::block_end);
  }
  bool is_tag(std::string_view name) const {
    return tokens_.is(TokenKind::block_begin) && tokens_.ahead().text == name;
  }

  /// The block between "else" and `end`, if there is one, and that end.
  Block otherwise(std::string_view end, std::size_t opened) {
    Block block;
    if (is_tag("else")) {
      close("else", opened);
      block = statements();
    }
    close(end, opened);
    return block;
  }

  Statement statement(std::size_t at) {
    tokens_.take();
    const std::string name = tokens_.expect_name();
    if (name == "if") return read_if(at);
    if (name == "for") return read_for(at);
    if (name == "set") return read_set(at);
    if (name == "macro") return read_macro(at);
    if (name == "filter" || name == "generation") return read_filter(at, name == "filter");
    if (name == "break" || name == "continue") {
      if (loops_ == 0) source_.fail(at, fmt::format("'{}' outside a for block", name));
      tokens_.expect_end(TokenKind::block_end);
      return {at, [flow = name == "break" ? Flow::break_loop : Flow::continue_loop](Run&) { return flow; }};
    }
    source_.refuse(at,
                   fmt::format("the tag '{}' is not supported; use if, for, set, macro, filter, raw, break, continue "
                               "and generation",
                               name));
  }

  Statement read_if(std::size_t at) {
    std::vector<std::pair<Expression, Block>> branches;
    for (;;) {
      Expression condition = parse_expressions(tokens_);
      tokens_.expect_end(TokenKind::block_end);
      branches.emplace_back(std::move(condition), statements());
      if (!is_tag("elif")) break;
      take_tag("elif", at);
    }
    return {at, [branches = std::move(branches), rest = otherwise("endif", at)](Run& run) {
              for (const auto& [condition, block] : branches) {
                if (truth(run.evaluate(condition))) return run.execute(block);
              }
              return run.execute(rest);
            }};
  }

  /// Items of `iterable` for which the condition holds, if there is one.
  static ListRef selected(Run& run, const Target& target, const Expression& iterable,
                          const std::optional<Expression>& condition) {
    ListRef all = items_of(run, run.evaluate(iterable));
    if (!condition) return all;
    std::vector<Value> kept;
    Run::Scope scope(run, Run::Scope::Sees::all);
    for (const Value& value : all->items) {
      scope.clear();
      target.assign(run, value);
      if (truth(run.evaluate(*condition))) kept.push_back(value);
    }
    return *run.list(std::move(kept)).get<ListRef>();
  }

  Statement read_for(std::size_t at) {
    Target target = names();
    tokens_.expect_word("in");
    Expression iterable = parse_expressions(tokens_, false);
    std::optional<Expression> condition;
    if (tokens_.skip_word("if")) condition = parse_expression(tokens_);
    if (tokens_.is_word("recursive")) source_.refuse(at, "recursive for blocks are not supported");
    tokens_.expect_end(TokenKind::block_end);
    ++loops_;
    Block body = statements();
    --loops_;
    return {at, [target = std::move(target), iterable = std::move(iterable), condition = std::move(condition),
                 body = std::move(body), rest = otherwise("endfor", at)](Run& run) {
              const ListRef items = selected(run, target, iterable, condition);
              if (items->items.empty()) return run.execute(rest);
              Run::Scope scope(run, Run::Scope::Sees::all);
              Loop* const loop = run.make_loop(items);
              for (; loop->index < items->items.size(); ++loop->index) {
                run.spend(1);
                scope.clear();
                target.assign(run, items->items[loop->index]);
                run.assign("loop", Value(static_cast<const Loop*>(loop)));
                if (run.execute(body) == Flow::break_loop) break;
              }
              return Flow::next;
            }};
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
    const std::size_t at = tokens_.now().at;
    std::string name = tokens_.expect_name();
    for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
      if (name == constant) source_.fail(at, fmt::format("'{}' is a constant and cannot be assigned to", name));
    }
    return name;
  }

  /// {% set x = value %}, or {% set x | filters %}…{% endset %}
  Statement read_set(std::size_t at) {
    Target target = names();
    if (!target.unpack && tokens_.skip_sign(".")) target.attribute = tokens_.expect_name();
    if (tokens_.skip_sign("=")) {
      Expression value = parse_expressions(tokens_);
      tokens_.expect_end(TokenKind::block_end);
      return {at, [target = std::move(target), value = std::move(value)](Run& run) {
                target.assign(run, run.evaluate(value));
                return Flow::next;
              }};
    }
    std::vector<Filter> filters;
    while (tokens_.skip_sign("|")) filters.push_back(parse_filter(tokens_));
    return {at, [target = std::move(target), filters = std::move(filters), body = isolated("endset", at)](Run& run) {
              target.assign(run, filtered(run, filters, run.capture(body)));
              return Flow::next;
            }};
  }

  /// {% filter x %}…{% endfilter %}, and {% generation %}, which has no filters
  Statement read_filter(std::size_t at, bool has_filters) {
    std::vector<Filter> filters;
    if (has_filters) {
      do {
        filters.push_back(parse_filter(tokens_));
      } while (tokens_.skip_sign("|"));
    }
    Block body = isolated(has_filters ? "endfilter" : "endgeneration", at);
    return {at, [filters = std::move(filters), body = std::move(body)](Run& run) {
              run.write(to_text(run, filtered(run, filters, run.capture(body))));
              return Flow::next;
            }};
  }

  /// A body in which break and continue cannot refer to an enclosing loop.
  Block isolated(std::string_view end, std::size_t at) {
    const int loops = std::exchange(loops_, 0);
    tokens_.expect_end(TokenKind::block_end);
    Block block = statements();
    close(end, at);
    loops_ = loops;
    return block;
  }

  Statement read_macro(std::size_t at) {
    // Macros only see the outermost variables, because they may outlive the block in which they are defined.
    if (loops_ > 0 || in_macro_) source_.refuse(at, "macros inside for blocks and other macros are not supported");
    auto macro = std::make_shared<MacroDefinition>();
    macro->name = target_name();
    tokens_.expect_sign("(");
    tokens_.read_list(")", [&] {
      MacroDefinition::Parameter parameter{target_name(), std::nullopt};
      for (const auto& other : macro->parameters) {
        if (other.name == parameter.name) source_.fail(at, fmt::format("the parameter '{}' is repeated", other.name));
      }
      if (tokens_.skip_sign("=")) parameter.otherwise = parse_expression(tokens_);
      macro->parameters.push_back(std::move(parameter));
    });
    in_macro_ = true;
    macro->body = isolated("endmacro", at);
    in_macro_ = false;
    return {at, [macro](Run& run) {
              run.assign(macro->name, Value(Function{nullptr, macro.get()}));
              return Flow::next;
            }};
  }

  const Source& source_;
  TokenStream tokens_;
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
