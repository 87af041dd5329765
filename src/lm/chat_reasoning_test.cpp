// Templates in the manner of families whose models think and call tools: typed arguments, thoughts that are kept or
// dropped, and messages that depend on their neighbours. Written for this test; what they give was computed by Python's
// jinja2 3.1.6 with trim_blocks and lstrip_blocks, as transformers sets it up.

#include <gtest/gtest.h>

#include "imago/lm.h"

namespace imago {
namespace {

constexpr const char* kTypedCalls = R"j({%- macro quoted(value) -%}
    {%- if value is string -%}
        {{- '<|"|>' + value + '<|"|>' -}}
    {%- elif value is boolean -%}
        {{- 'true' if value else 'false' -}}
    {%- elif value is none -%}
        {{- 'null' -}}
    {%- elif value is mapping -%}
        {{- '{' -}}
        {%- for key, inner in value | dictsort -%}
            {{- key + ':' + quoted(inner) -}}
            {%- if not loop.last -%},{%- endif -%}
        {%- endfor -%}
        {{- '}' -}}
    {%- elif value is sequence -%}
        {{- '[' -}}
        {%- for inner in value -%}
            {{- quoted(inner) -}}
            {{- ',' if not loop.last -}}
        {%- endfor -%}
        {{- ']' -}}
    {%- else -%}
        {{- value -}}
    {%- endif -%}
{%- endmacro -%}
{%- macro without_thoughts(text) -%}
    {%- set ns = namespace(kept='') -%}
    {%- for part in text.split('<channel|>') -%}
        {%- set ns.kept = ns.kept + (part.split('<|channel>')[0] if '<|channel>' in part else part) -%}
    {%- endfor -%}
    {{- ns.kept | trim -}}
{%- endmacro -%}
{{ bos_token }}
{%- set ns = namespace(previous=none) -%}
{%- set turns = messages -%}
{%- if tools or messages[0]['role'] in ['system', 'developer'] -%}
    {{- '<|turn>system\n' -}}
    {%- if messages[0]['role'] in ['system', 'developer'] -%}
        {{- messages[0]['content'] | trim -}}
        {%- set turns = messages[1:] -%}
    {%- endif -%}
    {%- for tool in tools or [] -%}
        {{- '<|tool>declaration:' + tool['function']['name'] + quoted(tool['function']['parameters']) + '<tool|>' -}}
    {%- endfor -%}
    {{- '<turn|>\n' }}
{%- endif %}
{%- for message in turns if message['role'] != 'tool' %}
    {%- set ns.previous = none -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{- '<|turn>' + role + '\n' }}
    {%- for call in message.tool_calls or [] -%}
        {{- '<|tool_call>call:' + call.function.name + quoted(call.function.arguments) + '<tool_call|>' -}}
        {%- set ns.previous = 'tool_call' -%}
    {%- endfor -%}
    {%- if message['content'] is string -%}
        {{- without_thoughts(message['content']) if role == 'model' else message['content'] | trim -}}
    {%- else -%}
        {%- for part in message['content'] or [] -%}
            {%- if part['type'] == 'text' -%}
                {{- part['text'] | trim -}}
            {%- elif part['type'] == 'image' -%}
                {{- '\n\n<|image|>\n\n' -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{- '<turn|>\n' if not ns.previous else '' }}
{%- endfor -%}
{%- if add_generation_prompt and ns.previous != 'tool_call' -%}
    {{- '<|turn>model\n' -}}
    {%- if not enable_thinking | default(false) -%}
        {{- '<|channel>thought\n<channel|>' -}}
    {%- endif -%}
{%- endif -%}
)j";

constexpr const char* kThoughts = R"j({%- macro render_content(content) %}
    {%- if content is string %}
        {{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for item in content %}
            {{- item.text if 'text' in item else raise_exception('Unexpected item') }}
        {%- endfor %}
    {%- else %}
        {{- '' }}
    {%- endif %}
{%- endmacro %}
{%- if tools and tools is iterable and tools is not mapping %}
    {{- '<|im_start|>system\n# Tools\n<tools>' }}
    {%- for tool in tools %}
        {{- '\n' ~ tool | tojson }}
    {%- endfor %}
    {{- '\n</tools><|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and not (render_content(message.content).startswith('<tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = render_content(message.content) | trim %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {{- '<|im_start|>assistant\n<think>\n' + reasoning_content|trim + '\n</think>\n\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\n' + content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- set call = tool_call.function if tool_call.function is defined else tool_call %}
            {{- ('\n\n' if loop.first and content else '') + '<tool_call>\n<function=' + call.name + '>\n' }}
            {%- for name, value in call.arguments|items %}
                {{- '<parameter=' + name + '>\n' }}
                {%- set value = value | tojson | safe if value is mapping or (value is sequence and value is not string) else value | string %}
                {{- value }}
                {{- '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != "tool" %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
)j";

constexpr const char* kChannelled = R"j({%- macro type_of(spec) -%}
    {%- if spec.type == "array" -%}
        {{- (type_of(spec['items']) if spec['items'] else 'any') + '[]' }}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string -%}
        {{- spec.type | join(' | ') }}
    {%- elif spec.enum -%}
        {{- '"' + spec.enum|join('" | "') + '"' }}
    {%- elif spec.type == "object" and spec.properties -%}
        {{- '{\n' }}
        {%- for name, inner in spec.properties.items() -%}
            {{- name ~ ('' if name in (spec.required or []) else '?') ~ ': ' ~ type_of(inner) }}
            {%- if not loop.last %},{{ ' ' }}{%- endif -%}
        {%- endfor -%}
        {{- '\n}' }}
    {%- elif spec.oneOf or spec.anyOf -%}
        {%- for one in spec.oneOf or spec.anyOf -%}
            {{- type_of(one) ~ ('' if loop.last else ' | ') -}}
        {%- endfor -%}
    {%- else -%}
        {{- {'integer': 'number', 'number': 'number'}.get(spec.type, spec.type) or 'any' }}
    {%- endif -%}
{%- endmacro -%}
{{- "<|start|>system<|message|>Reasoning: " + (reasoning_effort if reasoning_effort is defined else "medium") + "<|end|>" }}
{%- if tools -%}
    {{- "<|start|>developer<|message|># Tools\n" }}
    {%- for tool in tools | map(attribute='function') -%}
        {{- "// " + tool.description + "\ntype " + tool.name + " = (_: " + type_of(tool.parameters) + ") => any;\n" }}
    {%- endfor -%}
    {{- "<|end|>" }}
{%- endif -%}
{%- set last = namespace(call=none) %}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if 'tool_calls' in message and message.tool_calls -%}
            {%- if message.content and message.thinking -%}
                {{- raise_exception("thinking and content beside a call") }}
            {%- endif -%}
            {%- set future = namespace(answer=false) -%}
            {%- for later in messages[loop.index:] -%}
                {%- if later.role == 'assistant' and 'tool_calls' not in later -%}
                    {%- set future.answer = true -%}
                    {%- break -%}
                {%- endif -%}
            {%- endfor -%}
            {%- if message.thinking and not future.answer -%}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
            {%- endif -%}
            {%- set call = message.tool_calls[0].function -%}
            {{- "<|start|>assistant to=functions." ~ call.name ~ "<|channel|>commentary json<|message|>" ~ call.arguments|tojson ~ "<|call|>" }}
            {%- set last.call = call.name -%}
        {%- elif loop.last and not add_generation_prompt -%}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else -%}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
            {%- set last.call = none -%}
        {%- endif -%}
    {%- elif message.role == 'tool' -%}
        {%- if last.call is none -%}
            {{- raise_exception("a tool answers, but nothing was called") }}
        {%- endif -%}
        {{- "<|start|>functions." + last.call + " to=assistant<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}
)j";

constexpr const char* kWeather =
    R"j([{"type": "function", "function": {"name": "weather", "description": "Of a place", "parameters": {"type": "object", "properties": {"place": {"type": "string", "enum": ["Zürich", "Bern"]}, "days": {"type": "integer"}, "hours": {"type": "array", "items": {"type": "number"}}, "note": {"type": ["string", "null"]}, "unit": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"deep": {"type": "boolean"}}}]}}, "required": ["place"]}}}])j";

/// A conversation with a thought under that name, and a call.
std::string conversation(const std::string& thought, bool parts, bool answered) {
  return std::string() +
         R"j([{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>\nso\n</think>\n\nHello <|channel>x<channel|>there"}, {"role": "user", "content": )j" +
         (parts ? R"j([{"type": "text", "text": " Rain? "}])j" : R"j(" Rain? ")j") +
         R"j(}, {"role": "assistant", "content": )j" + (parts ? R"j("Let me see")j" : R"j("")j") +
         R"j(, "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"place": "Zürich", "days": 2, "hours": [1, 2.5], "sure": true, "note": null, "unit": {"z": "<x>", "a": []}}}}], )j" +
         "\"" + thought + "\"" + R"j(: "perhaps\n"}, {"role": "tool", "content": "{\"mm\": 3}"})j" +
         (answered ? R"j(, {"role": "assistant", "content": "3 mm"}])j" : "]");
}

std::string rendered(const char* source, const std::string& messages, bool asks, bool tools) {
  ChatTemplate::Variables variables{.bos_token = "<s>", .eos_token = "</s>", .add_generation_prompt = asks, .date = {}};
  variables.more = {{"messages", messages}};
  if (tools) variables.more.emplace_back("tools", kWeather);
  if (tools && asks) variables.more.emplace_back("enable_thinking", "false");
  return ChatTemplate::parse(source).render({}, variables);
}

constexpr const char* kGreeting =
    R"j([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<think>\nso\n</think>\n\nHello <|channel>x<channel|>there"}])j";

TEST(ChatReasoning, ArgumentsInTheirOwnNotation) {
  EXPECT_EQ(rendered(kTypedCalls, conversation("reasoning_content", true, false), true, true),
            R"j(<s><|turn>system
Be brief.<|tool>declaration:weather{properties:{days:{type:<|"|>integer<|"|>},hours:{items:{type:<|"|>number<|"|>},type:<|"|>array<|"|>},note:{type:[<|"|>string<|"|>,<|"|>null<|"|>]},place:{enum:[<|"|>Zürich<|"|>,<|"|>Bern<|"|>],type:<|"|>string<|"|>},unit:{anyOf:[{type:<|"|>string<|"|>},{properties:{deep:{type:<|"|>boolean<|"|>}},type:<|"|>object<|"|>}]}},required:[<|"|>place<|"|>],type:<|"|>object<|"|>}<tool|><turn|>
<|turn>user
Hi<turn|>
<|turn>model
<think>
so
</think>

Hello there<turn|>
<|turn>user
Rain?<turn|>
<|turn>model
<|tool_call>call:weather{days:2,hours:[1,2.5],note:null,place:<|"|>Zürich<|"|>,sure:true,unit:{a:[],z:<|"|><x><|"|>}}<tool_call|>Let me see)j");
  EXPECT_EQ(rendered(kTypedCalls, conversation("reasoning_content", true, true), false, true),
            R"j(<s><|turn>system
Be brief.<|tool>declaration:weather{properties:{days:{type:<|"|>integer<|"|>},hours:{items:{type:<|"|>number<|"|>},type:<|"|>array<|"|>},note:{type:[<|"|>string<|"|>,<|"|>null<|"|>]},place:{enum:[<|"|>Zürich<|"|>,<|"|>Bern<|"|>],type:<|"|>string<|"|>},unit:{anyOf:[{type:<|"|>string<|"|>},{properties:{deep:{type:<|"|>boolean<|"|>}},type:<|"|>object<|"|>}]}},required:[<|"|>place<|"|>],type:<|"|>object<|"|>}<tool|><turn|>
<|turn>user
Hi<turn|>
<|turn>model
<think>
so
</think>

Hello there<turn|>
<|turn>user
Rain?<turn|>
<|turn>model
<|tool_call>call:weather{days:2,hours:[1,2.5],note:null,place:<|"|>Zürich<|"|>,sure:true,unit:{a:[],z:<|"|><x><|"|>}}<tool_call|>Let me see<|turn>model
3 mm<turn|>
)j");
  EXPECT_EQ(rendered(kTypedCalls, kGreeting, true, false),
            R"j(<s><|turn>user
Hi<turn|>
<|turn>model
<think>
so
</think>

Hello there<turn|>
<|turn>model
<|channel>thought
<channel|>)j");
}

TEST(ChatReasoning, ThoughtsAfterTheLastQuestionAreKept) {
  EXPECT_EQ(rendered(kThoughts, conversation("reasoning_content", true, false), true, true),
            R"j(<|im_start|>system
# Tools
<tools>
{"type": "function", "function": {"name": "weather", "description": "Of a place", "parameters": {"type": "object", "properties": {"place": {"type": "string", "enum": ["Zürich", "Bern"]}, "days": {"type": "integer"}, "hours": {"type": "array", "items": {"type": "number"}}, "note": {"type": ["string", "null"]}, "unit": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"deep": {"type": "boolean"}}}]}}, "required": ["place"]}}}
</tools><|im_end|>
<|im_start|>system
Be brief.<|im_end|>
<|im_start|>user
Hi<|im_end|>
<|im_start|>assistant
Hello <|channel>x<channel|>there<|im_end|>
<|im_start|>user
Rain?<|im_end|>
<|im_start|>assistant
<think>
perhaps
</think>

Let me see

<tool_call>
<function=weather>
<parameter=place>
Zürich
</parameter>
<parameter=days>
2
</parameter>
<parameter=hours>
[1, 2.5]
</parameter>
<parameter=sure>
True
</parameter>
<parameter=note>
None
</parameter>
<parameter=unit>
{"z": "<x>", "a": []}
</parameter>
</function>
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
{"mm": 3}
</tool_response><|im_end|>
<|im_start|>assistant
<think>

</think>

)j");
  EXPECT_EQ(rendered(kThoughts, conversation("reasoning_content", true, true), false, true),
            R"j(<|im_start|>system
# Tools
<tools>
{"type": "function", "function": {"name": "weather", "description": "Of a place", "parameters": {"type": "object", "properties": {"place": {"type": "string", "enum": ["Zürich", "Bern"]}, "days": {"type": "integer"}, "hours": {"type": "array", "items": {"type": "number"}}, "note": {"type": ["string", "null"]}, "unit": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"deep": {"type": "boolean"}}}]}}, "required": ["place"]}}}
</tools><|im_end|>
<|im_start|>system
Be brief.<|im_end|>
<|im_start|>user
Hi<|im_end|>
<|im_start|>assistant
Hello <|channel>x<channel|>there<|im_end|>
<|im_start|>user
Rain?<|im_end|>
<|im_start|>assistant
<think>
perhaps
</think>

Let me see

<tool_call>
<function=weather>
<parameter=place>
Zürich
</parameter>
<parameter=days>
2
</parameter>
<parameter=hours>
[1, 2.5]
</parameter>
<parameter=sure>
True
</parameter>
<parameter=note>
None
</parameter>
<parameter=unit>
{"z": "<x>", "a": []}
</parameter>
</function>
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
{"mm": 3}
</tool_response><|im_end|>
<|im_start|>assistant
<think>

</think>

3 mm<|im_end|>
)j");
  EXPECT_EQ(rendered(kThoughts, kGreeting, true, false),
            R"j(<|im_start|>user
Hi<|im_end|>
<|im_start|>assistant
<think>
so
</think>

Hello <|channel>x<channel|>there<|im_end|>
<|im_start|>assistant
)j");
}

TEST(ChatReasoning, TypesOfToolsAndChannels) {
  EXPECT_EQ(rendered(kChannelled, conversation("thinking", false, false), true, true),
            R"j(<|start|>system<|message|>Reasoning: medium<|end|><|start|>developer<|message|># Tools
// Of a place
type weather = (_: {
place: "Zürich" | "Bern", days?: number, hours?: number[], note?: string | null, unit?: string | {
deep?: boolean
}
}) => any;
<|end|><|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>final<|message|><think>
so
</think>

Hello <|channel>x<channel|>there<|end|><|start|>user<|message|> Rain? <|end|><|start|>assistant<|channel|>analysis<|message|>perhaps
<|end|><|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"place": "Zürich", "days": 2, "hours": [1, 2.5], "sure": true, "note": null, "unit": {"z": "<x>", "a": []}}<|call|><|start|>functions.weather to=assistant<|message|>"{\"mm\": 3}"<|end|><|start|>assistant)j");
  EXPECT_EQ(rendered(kChannelled, conversation("thinking", false, true), false, true),
            R"j(<|start|>system<|message|>Reasoning: medium<|end|><|start|>developer<|message|># Tools
// Of a place
type weather = (_: {
place: "Zürich" | "Bern", days?: number, hours?: number[], note?: string | null, unit?: string | {
deep?: boolean
}
}) => any;
<|end|><|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>final<|message|><think>
so
</think>

Hello <|channel>x<channel|>there<|end|><|start|>user<|message|> Rain? <|end|><|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"place": "Zürich", "days": 2, "hours": [1, 2.5], "sure": true, "note": null, "unit": {"z": "<x>", "a": []}}<|call|><|start|>functions.weather to=assistant<|message|>"{\"mm\": 3}"<|end|><|start|>assistant<|channel|>final<|message|>3 mm<|return|>)j");
  EXPECT_EQ(
      rendered(kChannelled, kGreeting, true, false),
      R"j(<|start|>system<|message|>Reasoning: medium<|end|><|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>final<|message|><think>
so
</think>

Hello <|channel>x<channel|>there<|end|><|start|>assistant)j");
}

}  // namespace
}  // namespace imago
