// Templates in the manner of the well-known families, written for this test. What they give was computed by Python's
// jinja2 3.1.6 with trim_blocks and lstrip_blocks, as transformers sets it up.

#include <gtest/gtest.h>

#include "imago/error.h"
#include "imago/lm.h"

namespace imago {
namespace {

constexpr const char* kChatML = R"j({% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}

{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %}
)j";

constexpr const char* kLlama2 = R"j({%- if messages[0]['role'] == 'system' -%}
  {%- set turns = messages[1:] -%}
  {%- set preamble = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' -%}
{%- else -%}
  {%- set turns = messages -%}
  {%- set preamble = '' -%}
{%- endif -%}
{%- for turn in turns -%}
  {%- if (turn['role'] == 'user') != (loop.index0 % 2 == 0) -%}
    {{- raise_exception('user and assistant must take turns') -}}
  {%- endif -%}
  {%- set text = preamble + turn['content'] if loop.index0 == 0 else turn['content'] -%}
  {%- if turn['role'] == 'user' -%}
    {{- bos_token ~ '[INST] ' ~ text | trim ~ ' [/INST]' -}}
  {%- elif turn['role'] == 'assistant' -%}
    {{- ' ' ~ text | trim ~ ' ' ~ eos_token -}}
  {%- endif -%}
{%- endfor -%}
)j";

constexpr const char* kLlama3 = R"j({{- bos_token }}
{%- if date_string is not defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0].role == 'system' %}
    {%- set system_message = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
)j";

constexpr const char* kMistral = R"j({%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("turns must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- message["content"] + eos_token }}
    {%- else %}
        {{- raise_exception("only user and assistant are known, not " ~ message["role"]) }}
    {%- endif %}
{%- endfor %}
)j";

constexpr const char* kGemma = R"j({{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- else -%}
        {{ raise_exception("content of an unknown type") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
)j";

constexpr const char* kPhi3 =
    R"j({% for message in messages %}{% if message['role'] in ['system', 'user'] and message['content'] %}{{'<|' + message['role'] + '|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>
' + message['content'] + '<|end|>
'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %})j";

constexpr const char* kZephyr = R"j({% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
)j";

constexpr const char* kCommand = R"j({{ bos_token }}{%- macro turn(role, text) -%}
<|START_OF_TURN_TOKEN|><|{{ role | upper }}_TOKEN|>{{ text }}<|END_OF_TURN_TOKEN|>
{%- endmacro -%}
{% if messages[0]['role'] == 'system' %}{% set system_message, loop_messages = messages[0]['content'], messages[1:] %}{% else %}{% set system_message, loop_messages = false, messages %}{% endif %}
{% if system_message != false %}{{ turn('system', system_message) }}{% endif %}
{% for message in loop_messages %}{{ turn({'user': 'user', 'assistant': 'chatbot'}[message['role']], text=message['content'].strip()) }}{% endfor %}
{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %})j";

constexpr const char* kDeepSeek =
    R"j({% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_last_user=false, system_prompt='', is_first_sp=true) %}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\n\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_last_user = true -%}{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{%- set ns.is_last_user = false -%}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endfor -%}{% if add_generation_prompt and ns.is_last_user %}{{'<｜Assistant｜><think>\n'}}{% endif %})j";

constexpr const char* kQwen = R"j({%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '\n<tool_call>\n{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
                {{- (tool_call.arguments if tool_call.arguments is string else tool_call.arguments | tojson) ~ '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' ~ message.content ~ '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
)j";

const std::vector<ChatMessage> kChat = {
    {"system", "You are brief."}, {"user", "What is 2+2?"}, {"assistant", "4"}, {"user", " And 3+3? "}};
const std::vector<ChatMessage> kTurns = {{"user", "What is 2+2?"}, {"assistant", "4"}, {"user", " And 3+3? "}};
const std::vector<ChatMessage> kThinking = {{"user", "Hi"},
                                            {"assistant", "<think>\nhm\n</think>\n\nHello"},
                                            {"user", "Why?"},
                                            {"assistant", "<think>\nso\n</think>\n\nBecause"}};
const std::vector<ChatMessage> kToolTurns = {{"user", "Weather?"}, {"assistant", ""},      {"tool", "21 degrees"},
                                             {"tool", "sunny"},    {"assistant", "Warm."}, {"user", "Thanks"}};
constexpr const char* kTools =
    R"j([{"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}, "n": 1.5, "ok": true, "none": null}}}])j";

TEST(ChatFamilies, GiveWhatJinjaGives) {
  struct Case {
    std::string family;
    std::string source;
    const std::vector<ChatMessage>& messages;
    bool generation;
    std::vector<std::pair<std::string, std::string>> more;
    std::string wanted;
  };
  const Case cases[] = {
      {"ChatML",
       kChatML,
       kChat,
       true,
       {},
       "<|im_start|>system\n"
       "You are brief.<|im_end|>\n"
       "<|im_start|>user\n"
       "What is 2+2?<|im_end|>\n"
       "<|im_start|>assistant\n"
       "4<|im_end|>\n"
       "<|im_start|>user\n"
       " And 3+3? <|im_end|>\n"
       "<|im_start|>assistant\n"},
      {"ChatML",
       kChatML,
       kTurns,
       false,
       {},
       "<|im_start|>user\n"
       "What is 2+2?<|im_end|>\n"
       "<|im_start|>assistant\n"
       "4<|im_end|>\n"
       "<|im_start|>user\n"
       " And 3+3? <|im_end|>\n"},
      {"Llama2",
       kLlama2,
       kChat,
       true,
       {},
       "<s>[INST] <<SYS>>\n"
       "You are brief.\n"
       "<</SYS>>\n"
       "\n"
       "What is 2+2? [/INST] 4 </s><s>[INST] And 3+3? [/INST]"},
      {"Llama2", kLlama2, kTurns, false, {}, "<s>[INST] What is 2+2? [/INST] 4 </s><s>[INST] And 3+3? [/INST]"},
      {"Llama3",
       kLlama3,
       kChat,
       true,
       {},
       "<s><|start_header_id|>system<|end_header_id|>\n"
       "\n"
       "Today: 26 Jul 2024\n"
       "\n"
       "You are brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
       "\n"
       "What is 2+2?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
       "\n"
       "4<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
       "\n"
       "And 3+3?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
       "\n"},
      {"Llama3",
       kLlama3,
       kTurns,
       false,
       {},
       "<s><|start_header_id|>system<|end_header_id|>\n"
       "\n"
       "Today: 26 Jul 2024\n"
       "\n"
       "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
       "\n"
       "What is 2+2?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
       "\n"
       "4<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
       "\n"
       "And 3+3?<|eot_id|>"},
      {"Mistral",
       kMistral,
       kChat,
       true,
       {},
       "<s>[INST]What is 2+2?[/INST]4</s>[INST]You are brief.\n"
       "\n"
       " And 3+3? [/INST]"},
      {"Mistral", kMistral, kTurns, false, {}, "<s>[INST]What is 2+2?[/INST]4</s>[INST] And 3+3? [/INST]"},
      {"Gemma",
       kGemma,
       kChat,
       true,
       {},
       "<s><start_of_turn>user\n"
       "You are brief.\n"
       "\n"
       "What is 2+2?<end_of_turn>\n"
       "<start_of_turn>model\n"
       "4<end_of_turn>\n"
       "<start_of_turn>user\n"
       "And 3+3?<end_of_turn>\n"
       "<start_of_turn>model\n"},
      {"Gemma",
       kGemma,
       kTurns,
       false,
       {},
       "<s><start_of_turn>user\n"
       "What is 2+2?<end_of_turn>\n"
       "<start_of_turn>model\n"
       "4<end_of_turn>\n"
       "<start_of_turn>user\n"
       "And 3+3?<end_of_turn>\n"},
      {"Phi3",
       kPhi3,
       kChat,
       true,
       {},
       "<|system|>\n"
       "You are brief.<|end|>\n"
       "<|user|>\n"
       "What is 2+2?<|end|>\n"
       "<|assistant|>\n"
       "4<|end|>\n"
       "<|user|>\n"
       " And 3+3? <|end|>\n"
       "<|assistant|>\n"},
      {"Phi3",
       kPhi3,
       kTurns,
       false,
       {},
       "<|user|>\n"
       "What is 2+2?<|end|>\n"
       "<|assistant|>\n"
       "4<|end|>\n"
       "<|user|>\n"
       " And 3+3? <|end|>\n"
       "</s>"},
      {"Zephyr",
       kZephyr,
       kChat,
       true,
       {},
       "<|system|>\n"
       "You are brief.</s>\n"
       "<|user|>\n"
       "What is 2+2?</s>\n"
       "<|assistant|>\n"
       "4</s>\n"
       "<|user|>\n"
       " And 3+3? </s>\n"
       "<|assistant|>\n"},
      {"Zephyr",
       kZephyr,
       kTurns,
       false,
       {},
       "<|user|>\n"
       "What is 2+2?</s>\n"
       "<|assistant|>\n"
       "4</s>\n"
       "<|user|>\n"
       " And 3+3? </s>\n"},
      {"Command",
       kCommand,
       kChat,
       true,
       {},
       "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>You are "
       "brief.<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>What is "
       "2+2?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>4<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><"
       "|USER_TOKEN|>And 3+3?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
      {"Command",
       kCommand,
       kTurns,
       false,
       {},
       "<s><|START_OF_TURN_TOKEN|><|USER_TOKEN|>What is "
       "2+2?<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>4<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><"
       "|USER_TOKEN|>And 3+3?<|END_OF_TURN_TOKEN|>"},
      {"DeepSeek",
       kDeepSeek,
       kChat,
       true,
       {},
       "<s>You are brief.<\xef\xbd\x9cUser\xef\xbd\x9c>What is 2+2?<\xef\xbd\x9c"
       "Assistant\xef\xbd\x9c>4<\xef\xbd\x9c"
       "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c><\xef\xbd\x9cUser\xef\xbd\x9c> And 3+3? <\xef\xbd\x9c"
       "Assistant\xef\xbd\x9c><think>\n"},
      {"DeepSeek",
       kDeepSeek,
       kTurns,
       false,
       {},
       "<s><\xef\xbd\x9cUser\xef\xbd\x9c>What is 2+2?<\xef\xbd\x9c"
       "Assistant\xef\xbd\x9c>4<\xef\xbd\x9c"
       "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c><\xef\xbd\x9cUser\xef\xbd\x9c> And 3+3? "},
      {"Qwen",
       kQwen,
       kChat,
       true,
       {},
       "<|im_start|>system\n"
       "You are brief.<|im_end|>\n"
       "<|im_start|>user\n"
       "What is 2+2?<|im_end|>\n"
       "<|im_start|>assistant\n"
       "4<|im_end|>\n"
       "<|im_start|>user\n"
       " And 3+3? <|im_end|>\n"
       "<|im_start|>assistant\n"},
      {"Qwen",
       kQwen,
       kTurns,
       false,
       {},
       "<|im_start|>user\n"
       "What is 2+2?<|im_end|>\n"
       "<|im_start|>assistant\n"
       "4<|im_end|>\n"
       "<|im_start|>user\n"
       " And 3+3? <|im_end|>\n"},
      {"Qwen",
       kQwen,
       kThinking,
       false,
       {},
       "<|im_start|>user\n"
       "Hi<|im_end|>\n"
       "<|im_start|>assistant\n"
       "Hello<|im_end|>\n"
       "<|im_start|>user\n"
       "Why?<|im_end|>\n"
       "<|im_start|>assistant\n"
       "<think>\n"
       "so\n"
       "</think>\n"
       "\n"
       "Because<|im_end|>\n"},
      {"Qwen",
       kQwen,
       kTurns,
       true,
       {{"enable_thinking", "false"}},
       "<|im_start|>user\n"
       "What is 2+2?<|im_end|>\n"
       "<|im_start|>assistant\n"
       "4<|im_end|>\n"
       "<|im_start|>user\n"
       " And 3+3? <|im_end|>\n"
       "<|im_start|>assistant\n"
       "<think>\n"
       "\n"
       "</think>\n"
       "\n"},
      {"Qwen",
       kQwen,
       kToolTurns,
       true,
       {{"tools", kTools}},
       "<|im_start|>system\n"
       "# Tools\n"
       "<tools>\n"
       "{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": {\"properties\": {\"city\": "
       "{\"type\": \"string\"}}, \"n\": 1.5, \"ok\": true, \"none\": null}}}\n"
       "</tools><|im_end|>\n"
       "<|im_start|>user\n"
       "Weather?<|im_end|>\n"
       "<|im_start|>assistant\n"
       "<|im_end|>\n"
       "<|im_start|>user\n"
       "<tool_response>\n"
       "21 degrees\n"
       "</tool_response>\n"
       "<tool_response>\n"
       "sunny\n"
       "</tool_response><|im_end|>\n"
       "<|im_start|>assistant\n"
       "Warm.<|im_end|>\n"
       "<|im_start|>user\n"
       "Thanks<|im_end|>\n"
       "<|im_start|>assistant\n"},
  };
  for (const Case& c : cases) {
    ChatTemplate::Variables variables{"<s>", "</s>", c.generation, "26 Jul 2024", c.more};
    EXPECT_EQ(ChatTemplate::parse(c.source).render(c.messages, variables), c.wanted) << c.family;
  }
}

TEST(ChatFamilies, RefuseWhatTheirTemplatesRefuse) {
  const std::vector<ChatMessage> twice = {{"user", "a"}, {"user", "b"}};
  for (const char* source : {kLlama2, kMistral}) {
    EXPECT_THROW(ChatTemplate::parse(source).render(twice, {}), UsageError);
  }
  try {
    ChatTemplate::parse(kMistral).render(std::vector<ChatMessage>{{"user", "a"}, {"wizard", "b"}}, {});
    ADD_FAILURE() << "an unknown role passed";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "the chat template rejects this, line 28: only user and assistant are known, not wizard");
  }
}

}  // namespace
}  // namespace imago
