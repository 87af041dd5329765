// ChatTemplate: a parsed template, and the variables that transformers would give it.

#include <fmt/format.h>

#include "files/json.h"
#include "imago/error.h"
#include "imago/lm.h"
#include "jinja/lexer.h"
#include "jinja/parser.h"
#include "jinja/run.h"

namespace imago {

namespace {

jinja::Value from_json(jinja::Run& run, const files::JsonValue& json) {
  constexpr std::int64_t kLow = std::numeric_limits<std::int64_t>::min(),
                         kHigh = std::numeric_limits<std::int64_t>::max();
  run.spend(1);
  switch (json.kind()) {
    case files::JsonKind::null: return jinja::Value();
    case files::JsonKind::boolean: return jinja::Value(json.boolean("a variable"));
    case files::JsonKind::string: return run.text(json.string("a variable"));
    case files::JsonKind::number:
      if (json.source().find_first_of(".eE") != std::string_view::npos) return jinja::Value(json.number("a variable"));
      return jinja::Value(json.integer("a variable", kLow, kHigh));
    case files::JsonKind::array: {
      std::vector<jinja::Value> items;
      for (const files::JsonMember element : json.elements("a variable")) {
        items.push_back(from_json(run, element.value));
      }
      return run.list(std::move(items));
    }
    case files::JsonKind::object: break;
  }
  jinja::Pairs pairs;  // the parser has seen to it that no key comes twice
  for (const files::JsonMember member : json.members("a variable")) {
    jinja::Value key = run.text(member.key);
    pairs.emplace_back(std::move(key), from_json(run, member.value));
  }
  return run.dict(std::move(pairs));
}

jinja::Value message_list(jinja::Run& run, std::span<const ChatMessage> messages) {
  const jinja::Value role = run.text("role"), content = run.text("content");
  std::vector<jinja::Value> list;
  for (const ChatMessage& message : messages) {
    list.push_back(run.dict({{role, run.text(message.role)}, {content, run.text(message.content)}}));
  }
  return run.list(std::move(list));
}

}  // namespace

struct ChatTemplate::State {
  jinja::Source source;
  jinja::Block block;
};

ChatTemplate ChatTemplate::parse(std::string source) {
  auto state = std::make_unique<State>();
  state->source.text = jinja::normalize_newlines(std::move(source));
  state->block = jinja::parse_template(state->source);
  return ChatTemplate(std::move(state));
}

ChatTemplate::ChatTemplate(std::unique_ptr<const State> state) : state_(std::move(state)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

std::string ChatTemplate::render(std::span<const ChatMessage> messages, const Variables& variables) const {
  jinja::Run run(state_->source, variables.date);
  run.assign("messages", message_list(run, messages));
  // Templates ask whether these are none, and take an absent variable for one that is there.
  run.assign("tools", jinja::Value());
  run.assign("documents", jinja::Value());
  run.assign("bos_token", run.text(variables.bos_token));
  run.assign("eos_token", run.text(variables.eos_token));
  run.assign("add_generation_prompt", jinja::Value(variables.add_generation_prompt));
  for (const auto& [name, text] : variables.more) {
    const auto json = files::JsonDocument::parse(text, fmt::format("chat template variable '{}'", name));
    run.assign(name, from_json(run, json.root()));
  }
  run.execute(state_->block);
  return run.take_output();
}

}  // namespace imago
