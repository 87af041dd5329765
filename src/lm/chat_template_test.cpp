// The language, piece by piece. What each piece gives was computed by Python's jinja2 3.1.6 with trim_blocks and
// lstrip_blocks, in the sandbox that transformers uses.

#include <gtest/gtest.h>

#include <chrono>

#include "imago/error.h"
#include "imago/lm.h"

namespace imago {
namespace {

const std::vector<ChatMessage> kMessages = {
    {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello!"}, {"user", "Bye"}};

std::string render(const std::string& source) {
  return ChatTemplate::parse(source).render(kMessages, {"<s>", "</s>", true, "26 Jul 2024"});
}

struct Piece {
  std::string source, wanted;
};

// clang-format off
const Piece kPieces[] = {
    // Literals and operators
    {R"j({{ 1 + 2 * 3 }})j", "7"},
    {R"j({{ 7 // 2 }})j", "3"},
    {R"j({{ -7 // 2 }})j", "-4"},
    {R"j({{ -7 % 3 }})j", "2"},
    {R"j({{ 7 / 2 }})j", "3.5"},
    {R"j({{ 2 ** 10 }})j", "1024"},
    {R"j({{ 2 ** -1 }})j", "0.5"},
    {R"j({{ 1.5 + 1 }})j", "2.5"},
    {R"j({{ 1e3 }})j", "1000.0"},
    {R"j({{ 1e16 }})j", "1e+16"},
    {R"j({{ 0.1 + 0.2 }})j", "0.30000000000000004"},
    {R"j({{ 1e-5 }})j", "1e-05"},
    {R"j({{ 0x1F }})j", "31"},
    {R"j({{ 1_000 }})j", "1000"},
    {R"j({{ 5 % 3.5 }})j", "1.5"},
    {R"j({{ -1|abs }})j", "1"},
    {R"j({{ - 3 + 5 }})j", "2"},
    {R"j({{ +4 }})j", "4"},
    {R"j({{ 'a' ~ 1 ~ none ~ true ~ 2.0 }})j", "a1NoneTrue2.0"},
    {R"j({{ 'a' 'b' }})j", "ab"},
    {R"j({{ 'ab' * 3 }})j", "ababab"},
    {R"j({{ 2 * [1] }})j", "[1, 1]"},
    {R"j({{ 'tab\there' }})j", "tab\there"},
    {R"j({{ "q\"q" }})j", "q\"q"},
    {R"j({{ '\x41\u00e9\U0001F600' }})j", "A\xc3\xa9\xf0\x9f\x98\x80"},
    {R"j({{ 'keep\d' }})j", "keep\\d"},
    {R"j({{ 'line\nbreak' }})j", "line\nbreak"},
    {R"j({{ '%}' }})j", "%}"},
    {R"j({{ '}}' }})j", "}}"},
    {R"j({{ [1, 'a', none, true, 2.5, [3]] }})j", "[1, 'a', None, True, 2.5, [3]]"},
    {R"j({{ (1,) }})j", "(1,)"},
    {R"j({{ () }})j", "()"},
    {R"j({{ (1, 2) }})j", "(1, 2)"},
    {R"j({{ {'a': 1, "b": [2, 3]} }})j", "{'a': 1, 'b': [2, 3]}"},
    {R"j({{ {} }})j", "{}"},
    {R"j({{ ["it's", 'say "x"', 'b\\n\n'] }})j", "[\"it's\", 'say \"x\"', 'b\\\\n\\n']"},
    {R"j({{ None }})j", "None"},
    {R"j({{ True }})j", "True"},
    {R"j({{ False }})j", "False"},
    {R"j({{ true and 'x' or 'y' }})j", "x"},
    {R"j({{ 0 or '' or 'z' }})j", "z"},
    {R"j({{ 1 == 1.0 }})j", "True"},
    {R"j({{ 1 == true }})j", "True"},
    {R"j({{ 'a' != 'b' }})j", "True"},
    {R"j({{ [1, 2] == [1, 2] }})j", "True"},
    {R"j({{ {'a': 1} == {'a': 1.0} }})j", "True"},
    {R"j({{ (1,) == [1] }})j", "False"},
    {R"j({{ 1 < 2 }})j", "True"},
    {R"j({{ 2 <= 2 }})j", "True"},
    {R"j({{ 'a' < 'b' }})j", "True"},
    {R"j({{ 3 > 4 }})j", "False"},
    {R"j({{ 1 < 2 < 3 }})j", "True"},
    {R"j({{ 1 < 3 < 2 }})j", "False"},
    {R"j({{ [1, 2] < [1, 3] }})j", "True"},
    {R"j({{ 'el' in 'hello' }})j", "True"},
    {R"j({{ 'x' not in 'hello' }})j", "True"},
    {R"j({{ 2 in [1, 2] }})j", "True"},
    {R"j({{ 'a' in {'a': 0} }})j", "True"},
    {R"j({{ not 1 in [2] }})j", "True"},
    {R"j({{ not true }})j", "False"},
    {R"j({{ 'yes' if 1 else 'no' }})j", "yes"},
    {R"j({{ 'yes' if 0 }})j", ""},
    {R"j({{ 1 if 0 else 2 if 0 else 3 }})j", "3"},
    {R"j({{ (1 if 0 else 2) + 1 }})j", "3"},
    {R"j({{ 10 - 2 - 3 }})j", "5"},
    {R"j({{ 2 * 3 ~ 4 }})j", "64"},
    {R"j({{ not (1 and 0) }})j", "True"},
    {R"j({{ 100 // 7 % 4 }})j", "2"},
    // Items, attributes and slices
    {R"j({{ messages[0].role }})j", "system"},
    {R"j({{ messages[-1]['content'] }})j", "Bye"},
    {R"j({{ messages[0]['nope'] }})j", ""},
    {R"j({{ messages[9] is defined }})j", "False"},
    {R"j({{ 'abc'[1] }})j", "b"},
    {R"j({{ 'abc'[-1] }})j", "c"},
    {R"j({{ 'hello'[1:3] }})j", "el"},
    {R"j({{ 'hello'[:-1] }})j", "hell"},
    {R"j({{ 'hello'[::-1] }})j", "olleh"},
    {R"j({{ 'hello'[::2] }})j", "hlo"},
    {R"j({{ 'hello'[10:] }})j", ""},
    {R"j({{ 'hello'[-3:] }})j", "llo"},
    {R"j({{ [1, 2, 3, 4][1:] }})j", "[2, 3, 4]"},
    {R"j({{ [1, 2, 3][::-1] }})j", "[3, 2, 1]"},
    {R"j({{ [1, 2, 3, 4, 5][4:0:-2] }})j", "[5, 3]"},
    {R"j({{ [1, 2, 3][-100:100] }})j", "[1, 2, 3]"},
    {R"j({{ 'größe'[2] }})j", "\xc3\xb6"},
    {R"j({{ 'größe'[2:4] }})j", "\xc3\xb6\xc3\x9f"},
    {R"j({{ 'größe'|length }})j", "5"},
    {R"j({{ {'a': {'b': [10, 20]}}.a.b[1] }})j", "20"},
    {R"j({{ {'a': 1}['a'] }})j", "1"},
    {R"j({{ {1: 'x'}[1] }})j", "x"},
    {R"j({{ [[1, 2]][0].0 }})j", "1"},
    {R"j({{ {'items': 5}['items'] }})j", "5"},
    {R"j({{ (messages|first).role }})j", "system"},
    {R"j({{ messages[1:]|length }})j", "3"},
    {R"j({{ messages|map(attribute='role')|join('-') }})j", "system-user-assistant-user"},
    // Undefined
    {R"j([{{ nope }}])j", "[]"},
    {R"j({{ nope is defined }})j", "False"},
    {R"j({{ nope is undefined }})j", "True"},
    {R"j({{ 'yes' if nope else 'no' }})j", "no"},
    {R"j({{ nope|default('d') }})j", "d"},
    {R"j({{ ''|default('d') }})j", ""},
    {R"j({{ ''|default('d', true) }})j", "d"},
    {R"j({{ none|d('x', boolean=true) }})j", "x"},
    {R"j({{ nope|length }})j", "0"},
    {R"j({{ nope ~ 'x' }})j", "x"},
    {R"j({{ nope == other }})j", "True"},
    {R"j({{ nope == none }})j", "False"},
    {R"j({% for x in nope %}x{% else %}none{% endfor %})j", "none"},
    {R"j({{ nope is none }})j", "False"},
    {R"j({{ 'a' in nope }})j", "False"},
    {R"j({{ nope is iterable }})j", "True"},
    {R"j({{ messages[0].nope is defined }})j", "False"},
    {R"j({{ nope|trim }})j", ""},
    {R"j({{ nope|string }})j", ""},
    {R"j({{ nope|list }})j", "[]"},
    {R"j({{ nope is string }})j", "False"},
    {R"j({{ nope is mapping }})j", "False"},
    {R"j({{ nope or 'else' }})j", "else"},
    // Filters
    {R"j({{ '  x '|trim }})j", "x"},
    {R"j({{ 'xxaxx'|trim('x') }})j", "a"},
    {R"j({{ 'Hello World'|upper }})j", "HELLO WORLD"},
    {R"j({{ 'ÄÖ'|lower }})j", "\xc3\xa4\xc3\xb6"},
    {R"j({{ 'hello wORLD-foo'|title }})j", "Hello World-Foo"},
    {R"j({{ 'hELLO you'|capitalize }})j", "Hello you"},
    {R"j({{ 'a-b-c'|replace('-', '+') }})j", "a+b+c"},
    {R"j({{ 'aaa'|replace('a', 'b', 2) }})j", "bba"},
    {R"j({{ 'abc'|replace('', '.') }})j", ".a.b.c."},
    {R"j({{ 'abc'|length }})j", "3"},
    {R"j({{ [1, 2]|count }})j", "2"},
    {R"j({{ {'a': 1}|length }})j", "1"},
    {R"j({{ [1, 2, 3]|join(', ') }})j", "1, 2, 3"},
    {R"j({{ ['a', 1, none]|join }})j", "a1None"},
    {R"j({{ 'abc'|join('.') }})j", "a.b.c"},
    {R"j({{ [1, 2]|first }})j", "1"},
    {R"j({{ 'xyz'|last }})j", "z"},
    {R"j({{ 'ab'|list }})j", "['a', 'b']"},
    {R"j({{ {'a': 1, 'b': 2}|list }})j", "['a', 'b']"},
    {R"j({{ 5|string + '5' }})j", "55"},
    {R"j({{ '42'|int + 1 }})j", "43"},
    {R"j({{ 'x'|int }})j", "0"},
    {R"j({{ 'x'|int(7) }})j", "7"},
    {R"j({{ '3.9'|int }})j", "3"},
    {R"j({{ 3.9|int }})j", "3"},
    {R"j({{ '2.5'|float }})j", "2.5"},
    {R"j({{ 'x'|float(1.5) }})j", "1.5"},
    {R"j({{ true|int }})j", "1"},
    {R"j({{ {'b': 1, 'A': 2}|dictsort }})j", "[('A', 2), ('b', 1)]"},
    {R"j({{ {'b': 1, 'a': 2}|dictsort(by='value') }})j", "[('b', 1), ('a', 2)]"},
    {R"j({{ {'b': 1, 'a': 2}|items|list }})j", "[('b', 1), ('a', 2)]"},
    {R"j({{ {'a': 1, 'c': 3}|dictsort(reverse=true) }})j", "[('c', 3), ('a', 1)]"},
    {R"j({{ [3, 1, 2]|sort }})j", "[1, 2, 3]"},
    {R"j({{ ['b', 'A', 'c']|sort }})j", "['A', 'b', 'c']"},
    {R"j({{ ['b', 'A', 'c']|sort(case_sensitive=true) }})j", "['A', 'b', 'c']"},
    {R"j({{ [1, 2, 3]|sort(reverse=true) }})j", "[3, 2, 1]"},
    {R"j({{ messages|sort(attribute='content')|map(attribute='content')|join(',') }})j", "Be brief.,Bye,Hello!,Hi"},
    {R"j({{ [1, 1, 2, 'a', 'A']|unique|list }})j", "[1, 2, 'a']"},
    {R"j({{ [1, 2, 3]|reverse|list }})j", "[3, 2, 1]"},
    {R"j({{ 'abc'|reverse }})j", "cba"},
    {R"j({{ [3, 1, 2]|min }})j", "1"},
    {R"j({{ [3, 1, 2]|max }})j", "3"},
    {R"j({{ [1, 2, 3]|sum }})j", "6"},
    {R"j({{ [{'n': 2}, {'n': 3}]|sum(attribute='n') }})j", "5"},
    {R"j({{ ['a', 'b']|map('upper')|list }})j", "['A', 'B']"},
    {R"j({{ [0, 1, '', 'x']|select|list }})j", "[1, 'x']"},
    {R"j({{ [1, 2, 3]|select('odd')|list }})j", "[1, 3]"},
    {R"j({{ [1, 2, 3]|reject('equalto', 2)|list }})j", "[1, 3]"},
    {R"j({{ [1, 'a']|select('string')|list }})j", "['a']"},
    {R"j({{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list }})j", "['Hi', 'Bye']"},
    {R"j({{ messages|rejectattr('role', 'in', ['user', 'system'])|list|length }})j", "1"},
    {R"j({{ [{'a': 1}, {}]|selectattr('a')|list }})j", "[{'a': 1}]"},
    {R"j({{ none|selectattr('a')|list }})j", "[]"},
    {R"j({{ '<a href="x">&'|escape }})j", "&lt;a href=&#34;x&#34;&gt;&amp;"},
    {R"j({{ "it's"|e }})j", "it&#39;s"},
    {R"j({{ '<b>'|safe }})j", "<b>"},
    {R"j({{ 'a\nb\n\nc'|indent }})j", "a\n    b\n\n    c"},
    {R"j({{ 'a\nb'|indent(2, true) }})j", "  a\n  b"},
    {R"j({{ 'a\n\nb'|indent(2, blank=true) }})j", "a\n  \n  b"},
    {R"j({{ 'a\nb'|indent('> ') }})j", "a\n> b"},
    {R"j({{ -3|abs }})j", "3"},
    {R"j({{ -2.5|abs }})j", "2.5"},
    {R"j({{ 2.5|round }})j", "2.0"},
    {R"j({{ 2.567|round(2) }})j", "2.57"},
    {R"j({{ 2.1|round(method='ceil') }})j", "3.0"},
    {R"j({{ 2.9|round(0, 'floor') }})j", "2.0"},
    {R"j({{ 1234|round(-2) }})j", "1200"},
    {R"j({{ ['x']|map('default', 'y')|list }})j", "['x']"},
    {R"j({{ [{'a': 1}, {}]|map(attribute='a', default=0)|list }})j", "[1, 0]"},
    {R"j({{ [{'a': {'b': 1}}]|map(attribute='a.b')|list }})j", "[1]"},
    {R"j({{ [[5, 6]]|map(attribute=1)|list }})j", "[6]"},
    // tojson
    {R"j({{ messages[0]|tojson }})j", "{\"role\": \"system\", \"content\": \"Be brief.\"}"},
    {R"j({{ [1, 2.0, true, none, "ü\"\n\t/"]|tojson }})j", "[1, 2.0, true, null, \"\xc3\xbc\\\"\\n\\t/\"]"},
    {R"j({{ {'b': 1, 'a': {}}|tojson }})j", "{\"b\": 1, \"a\": {}}"},
    {R"j({{ []|tojson(indent=2) }})j", "[]"},
    {R"j({{ {1: 2, none: 3, true: 4}|tojson }})j", "{\"1\": 4, \"null\": 3}"},
    {R"j({{ {'a': [1, {'b': 2}], 'c': []}|tojson(indent=4) }})j", "{\n    \"a\": [\n        1,\n        {\n            \"b\": 2\n        }\n    ],\n    \"c\": []\n}"},
    {R"j({{ 'é😀'|tojson(ensure_ascii=true) }})j", "\"\\u00e9\\ud83d\\ude00\""},
    {R"j({{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }})j", "{\"a\": 2, \"b\": 1}"},
    {R"j({{ [1, {'a': 2}]|tojson(separators=(',', ':')) }})j", "[1,{\"a\":2}]"},
    {R"j({{ '<&>\'\x01'|tojson }})j", "\"<&>'\\u0001\""},
    // Tests
    {R"j({{ 'a' is string }})j", "True"},
    {R"j({{ 1 is number }})j", "True"},
    {R"j({{ 1.5 is float }})j", "True"},
    {R"j({{ 1 is integer }})j", "True"},
    {R"j({{ true is integer }})j", "False"},
    {R"j({{ true is boolean }})j", "True"},
    {R"j({{ true is number }})j", "True"},
    {R"j({{ none is none }})j", "True"},
    {R"j({{ {} is mapping }})j", "True"},
    {R"j({{ [] is sequence }})j", "True"},
    {R"j({{ 'a' is sequence }})j", "True"},
    {R"j({{ 1 is iterable }})j", "False"},
    {R"j({{ 1 is sequence }})j", "False"},
    {R"j({{ {} is iterable }})j", "True"},
    {R"j({{ 1 is true }})j", "False"},
    {R"j({{ true is true }})j", "True"},
    {R"j({{ false is false }})j", "True"},
    {R"j({{ 1 is not none }})j", "True"},
    {R"j({{ 3 is odd }})j", "True"},
    {R"j({{ 3 is even }})j", "False"},
    {R"j({{ 4 is divisibleby 2 }})j", "True"},
    {R"j({{ 4 is divisibleby(3) }})j", "False"},
    {R"j({{ 1 is eq 1 }})j", "True"},
    {R"j({{ 1 is equalto(2) }})j", "False"},
    {R"j({{ 1 is ne 2 }})j", "True"},
    {R"j({{ 1 is lt 2 }})j", "True"},
    {R"j({{ 3 is gt(2) }})j", "True"},
    {R"j({{ 2 is ge 2 }})j", "True"},
    {R"j({{ 2 is le 1 }})j", "False"},
    {R"j({{ 1 is in [1, 2] }})j", "True"},
    {R"j({{ 'x' is not in 'abc' }})j", "True"},
    {R"j({{ 'abc' is lower }})j", "True"},
    {R"j({{ 'ABC' is upper }})j", "True"},
    {R"j({{ range is callable }})j", "True"},
    {R"j({{ messages[0].role is defined and messages[0].role == 'system' }})j", "True"},
    // Methods
    {R"j({{ ' x '.strip() }})j", "x"},
    {R"j({{ 'xxay'.lstrip('x') }})j", "ay"},
    {R"j({{ 'yaxx'.rstrip('xa') }})j", "y"},
    {R"j({{ 'a,b,c'.split(',') }})j", "['a', 'b', 'c']"},
    {R"j({{ ' a  b '.split() }})j", "['a', 'b']"},
    {R"j({{ 'a,b,c'.split(',', 1) }})j", "['a', 'b,c']"},
    {R"j({{ 'a b c'.split(maxsplit=1) }})j", "['a', 'b c']"},
    {R"j({{ 'a,b,c'.rsplit(',', 1) }})j", "['a,b', 'c']"},
    {R"j({{ 'hello'.startswith('he') }})j", "True"},
    {R"j({{ 'hello'.endswith(('x', 'lo')) }})j", "True"},
    {R"j({{ 'Ab'.upper() }})j", "AB"},
    {R"j({{ 'Ab'.lower() }})j", "ab"},
    {R"j({{ "they're bill's".title() }})j", "They'Re Bill'S"},
    {R"j({{ 'aXbX'.replace('X', '-') }})j", "a-b-"},
    {R"j({{ 'hello'.find('l') }})j", "2"},
    {R"j({{ 'größe'.find('e') }})j", "4"},
    {R"j({{ 'x'.find('y') }})j", "-1"},
    {R"j({{ 'hello'.count('l') }})j", "2"},
    {R"j({{ ', '.join(['a', 'b']) }})j", "a, b"},
    {R"j({{ 'x{}y{}'.format(1, 'z') }})j", "x1yz"},
    {R"j({{ '{0}{1}{0}'.format('a', 'b') }})j", "aba"},
    {R"j({{ '{n}{{}}'.format(n=3) }})j", "3{}"},
    {R"j({{ 'a\nb\r\nc'.splitlines() }})j", "['a', 'b', 'c']"},
    {R"j({{ '12'.isdigit() }})j", "True"},
    {R"j({{ 'abc'.capitalize() }})j", "Abc"},
    {R"j({{ 'ab ab'.rfind('ab') }})j", "3"},
    {R"j({{ {'a': 1}.get('a') }})j", "1"},
    {R"j({{ {'a': 1}.get('b') }})j", "None"},
    {R"j({{ {'a': 1}.get('b', 5) }})j", "5"},
    {R"j({{ {'a': 1, 'b': 2}.items()|list }})j", "[('a', 1), ('b', 2)]"},
    {R"j({{ {'a': 1}.keys()|list }})j", "['a']"},
    {R"j({{ {'a': 1}.values()|list }})j", "[1]"},
    {R"j({{ [1, 2, 1].count(1) }})j", "2"},
    {R"j({{ [1, 2].index(2) }})j", "1"},
    {R"j({% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %})j", "a=1;b=2;"},
    {R"j({{ '<think>x</think>y'.split('</think>')[-1].lstrip('\n') }})j", "y"},
    {R"j({{ 'a<t>b'.split('<t>')[0] }})j", "a"},
    // Functions
    {R"j({{ range(3)|list }})j", "[0, 1, 2]"},
    {R"j({{ range(1, 4)|list }})j", "[1, 2, 3]"},
    {R"j({{ range(5, 0, -2)|list }})j", "[5, 3, 1]"},
    {R"j({{ range(0)|list }})j", "[]"},
    {R"j({{ dict(a=1, b='x') }})j", "{'a': 1, 'b': 'x'}"},
    {R"j({{ dict({'a': 1}, b=2) }})j", "{'a': 1, 'b': 2}"},
    {R"j({{ strftime_now('%d %b %Y') }})j", "26 Jul 2024"},
    {R"j({{ strftime_now('%Y-%m-%d %A') }})j", "2024-07-26 Friday"},
    // Blocks
    {R"j({% if 0 %}a{% elif 1 %}b{% else %}c{% endif %})j", "b"},
    {R"j({% if 0 %}a{% elif 0 %}b{% else %}c{% endif %})j", "c"},
    {R"j({% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }};{% endfor %})j", "10TrueFalse443;21FalseFalse432;32FalseFalse421;43FalseTrue410;"},
    {R"j({% for x in [1, 2, 3] %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %})j", "<1>2 1<2>3 2<3> "},
    {R"j({% for x in [1, 2, 3, 4] if x is even %}{{ x }}/{{ loop.length }} {% else %}none{% endfor %})j", "2/2 4/2 "},
    {R"j({% for x in [] %}x{% else %}empty{% endfor %})j", "empty"},
    {R"j({% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %})j", "13"},
    {R"j({% for a, b in [(1, 2), [3, 4]] %}{{ a }}-{{ b }} {% endfor %})j", "1-2 3-4 "},
    {R"j({% for (a, b) in [(1, 2)] %}{{ a + b }}{% endfor %})j", "3"},
    {R"j({% for x in 'abc' %}{{ x }}.{% endfor %})j", "a.b.c."},
    {R"j({% for k in {'a': 1, 'b': 2} %}{{ k }}{% endfor %})j", "ab"},
    {R"j({% for x in [1, 2] %}{{ loop.cycle('odd', 'even') }} {% endfor %})j", "odd even "},
    {R"j({% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}{{ x }})j", "12 13 1"},
    {R"j({% set ns = namespace(n=0, found=false) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% if i == 2 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.n }}{{ ns.found }}{{ ns.nope is defined }})j", "6TrueFalse"},
    {R"j({% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t = 1, 2 %}{{ t }})j", "12(1, 2)"},
    {R"j({% set x %}  text {{ 1 + 1 }} {% endset %}[{{ x }}])j", "[  text 2 ]"},
    {R"j({% set x | trim | upper %}  text {% endset %}[{{ x }}])j", "[TEXT]"},
    {R"j({% if true %}{% set y = 5 %}{% endif %}{{ y }})j", "5"},
    {R"j({% filter upper %}abc{{ 'def' }}{% endfilter %})j", "ABCDEF"},
    {R"j({% generation %}spoken{% endgeneration %} done)j", "spoken done"},
    {R"j({% macro hello(name, greeting='Hi', mark='!') %}{{ greeting }} {{ name }}{{ mark }}{% endmacro %}{{ hello('Ann') }} {{ hello('Bob', mark='?') }} {{ hello(greeting='Yo', name='Cy') }} [{{ hello() }}])j", "Hi Ann! Hi Bob? Yo Cy! [Hi !]"},
    {R"j({% macro tree(n) %}{{ n }}{% if n > 0 %}({{ tree(n - 1) }}){% endif %}{% endmacro %}{{ tree(3) }})j", "3(2(1(0)))"},
    {R"j({% macro outer() %}{{ later }}{% endmacro %}{% set later = 'seen' %}{{ outer() }})j", "seen"},
    {R"j({% macro scope() %}{% set inner = 1 %}{{ inner }}{% endmacro %}{{ scope() }}{{ inner is defined }})j", "1False"},
    {R"j({% raw %}{{ not run }} {% if %}{% endraw %}!)j", "{{ not run }} {% if %}!"},
    {R"j(a {# a comment {{ x }} #} b)j", "a  b"},
    {R"j({{- '  a' -}}   b)j", "  ab"},
    {"{% if 1 %}\nkept\n{% endif %}\nend\n", "kept\nend"},
    {"  {% if 1 %}\n  kept\n  {% endif %}\nend", "  kept\nend"},
    {"a\n  {{ 1 }}\n  b", "a\n  1\n  b"},
    {R"j(a  {%- if 1 -%}  b  {%- endif -%}  c)j", "abc"},
    {R"j(x {%+ if 1 %}y{% endif %})j", "x y"},
    {"{% if 1 +%}\ny{% endif %}", "\ny"},
    {"a\n   {#- gone -#}   \nb", "ab"},
    {"a\n {# gone #}\nb", "a\nb"},
    {"line1\r\nline2\r\n", "line1\nline2"},
    {"{% for x in [1,2] %}\n  {{ x }}\n{% endfor %}", "  1\n  2\n"},
    {"{% set x = 1 %}\n\n{{ x }}", "\n1"},
    {"text\n\n", "text\n"},
    {"{% raw %}\n a\n{% endraw %}\nb", "\n a\nb"},
    {R"j({{ {'a': {'b': 1}} }})j", "{'a': {'b': 1}}"},
    {R"j({{ {'a': {'b': 1}}['a']['b'] }})j", "1"},
    {"\t {%- if 1 %} a {% endif -%} \n b", " a b"},
    {"{{ 'a' }}\n{{ 'b' }}", "a\nb"},
    {R"j({ % no tag { { # })j", "{ % no tag { { # }"},
    {R"j({% set items = [] %}{% for i in [3, 4] %}{% set items = items + [i] %}{% endfor %}{{ items }})j", "[]"},
    {R"j({% for m in messages %}{% for c in m.content %}{% if loop.last %}{{ c }}{% endif %}{% endfor %}{{ loop.index }}{% endfor %})j", ".1i2!3e4"},
    {R"j({%- for message in messages[::-1] -%}{{ message.role }} {% endfor -%})j", "user assistant user system "},
    {R"j({% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% endif %}{{ loop_messages|length }}{{ system_message }})j", "3Be brief."},
};
// clang-format on

TEST(ChatTemplate, GivesWhatJinjaGives) {
  for (const Piece& piece : kPieces) {
    try {
      EXPECT_EQ(render(piece.source), piece.wanted) << piece.source;
    } catch (const Error& error) {
      ADD_FAILURE() << piece.source << ": " << error.what();
    }
  }
}

TEST(ChatTemplate, VariablesComeAsJson) {
  const ChatTemplate chat = ChatTemplate::parse(
      "{{ tools is none }}{{ enable_thinking is false }}{{ n + 1 }}{{ x }}{{ deep.list[1].a }}{{ messages|length }}");
  ChatTemplate::Variables variables;
  variables.more = {
      {"enable_thinking", "false"}, {"n", "41"}, {"x", "1.5"}, {"deep", R"({"list": [0, {"a": "\u00e9"}]})"}};
  EXPECT_EQ(chat.render(kMessages, variables),
            "TrueTrue421.5\xc3\xa9"
            "4");
  variables.more = {{"x", "{"}};
  EXPECT_THROW(chat.render(kMessages, variables), FormatError);
}

TEST(ChatTemplate, TodayIsTheDateUnlessOneIsGiven) {
  const ChatTemplate chat = ChatTemplate::parse("{{ strftime_now('%Y') }}");
  const std::time_t now = std::time(nullptr);
  const int year = std::localtime(&now)->tm_year + 1900;
  EXPECT_NEAR(std::stoi(chat.render({}, {})), year, 1);
  ChatTemplate::Variables given;
  given.date = "some day";
  EXPECT_EQ(chat.render({}, given), "some day");
}

/// The error, or what was rendered.
std::string outcome(const std::string& source) {
  try {
    return "rendered: " + render(source).substr(0, 100);
  } catch (const FormatError& error) {
    return std::string("format: ") + error.what();
  } catch (const UnsupportedError& error) {
    return std::string("unsupported: ") + error.what();
  } catch (const UsageError& error) {
    return std::string("usage: ") + error.what();
  }
}

void expect_outcome(const std::string& source, const std::string& kind, const std::string& words) {
  const std::string got = outcome(source);
  EXPECT_TRUE(got.starts_with(kind + ": ")) << source.substr(0, 200) << "\n" << got;
  EXPECT_NE(got.find(words), std::string::npos) << source.substr(0, 200) << "\n" << got;
}

std::string repeated(const std::string& text, int times) {
  std::string made;
  for (int i = 0; i < times; ++i) made += text;
  return made;
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  expect_outcome("a\nb\n{{ nope.name }}", "format", "line 3: 'nope' is undefined");
  expect_outcome("\n{{ messages[0].nope.name }}", "format", "line 2: 'dict object' has no attribute 'nope'");
  expect_outcome("\n\n{% if %}", "format", "line 3: the end of the tag where a value is due");
  expect_outcome("{{ nope + 'x' }}", "format", "'nope' is undefined");
  expect_outcome("{{ 'x' + 1 }}", "format", "'+' does not take a str object and a int object");
  expect_outcome("{{ nope() }}", "format", "'nope' is undefined");
  expect_outcome("{{ 1 / 0 }}", "format", "division by zero");
  expect_outcome("{{ raise_exception('not so') }}", "usage", "line 1: not so");
}

TEST(ChatTemplate, WhatIsNoJinjaIsAnError) {
  for (const char* source : {"{{",
                             "{{ 1",
                             "{{ }}",
                             "{% if 1 %}",
                             "{% endif %}",
                             "{% for x %}{% endfor %}",
                             "{% else %}",
                             "{{ 'open }}",
                             "{{ (1 }}",
                             "{{ 1) }}",
                             "{{ [1, }}",
                             "{# open",
                             "{% raw %}",
                             "{% set %}",
                             "{% set 1 = 2 %}",
                             "{{ 1 2 }}",
                             "{{ a. }}",
                             "{{ a| }}",
                             "{{ a is }}",
                             "{% break %}",
                             "{% if 1 %}{% endfor %}",
                             "{{ ? }}",
                             "{% macro %}",
                             "{% macro m(a, a) %}{% endmacro %}",
                             "{{ f(a=1, 2) }}",
                             "{{ f(a=1, a=2) }}",
                             "{{ '\\x4' }}",
                             "{% set none = 1 %}",
                             "{{ 99999999999999999999 }}",
                             "{%",
                             "{% if 1 %}{% else %}{% else %}{% endif %}",
                             "{{ {1} }}",
                             "{{ a[ }}"}) {
    expect_outcome(source, "format", "line 1");
  }
}

TEST(ChatTemplate, WhatIsOutsideTheSubsetIsSaid) {
  expect_outcome("{% include 'x' %}", "unsupported", "the tag 'include'");
  expect_outcome("{% import 'x' as y %}", "unsupported", "the tag 'import'");
  expect_outcome("{% extends 'x' %}", "unsupported", "the tag 'extends'");
  expect_outcome("{{ 1|wordwrap }}", "unsupported", "the filter 'wordwrap'");
  expect_outcome("{{ 1 is strange }}", "unsupported", "the test 'strange'");
  expect_outcome("{{ range(*[1]) }}", "unsupported", "'*'");
  expect_outcome("{% for x in [1] recursive %}{% endfor %}", "unsupported", "recursive");
  expect_outcome("{{ [1].append(2) }}", "unsupported", "append()");
  expect_outcome("{% if 0 %}{{ 1|wordwrap }}{% endif %}ok", "rendered", "ok");  // as Jinja: where it is not reached
}

TEST(ChatTemplateThreats, LoopsEnd) {
  expect_outcome("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "format", "steps");
  expect_outcome("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "format", "deep");
  expect_outcome("{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}", "format", "deep");
  expect_outcome("{% macro a(n) %}{% if n %}{{ a(n - 1) }}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(40) }}", "format",
                 "steps");
}

TEST(ChatTemplateThreats, RangesAreBounded) {
  for (const char* source :
       {"{{ range(10 ** 12)|length }}", "{{ range(0, 10 ** 12, 2) }}", "{{ range(-(10 ** 18), 10 ** 18) }}",
        "{{ range(10 ** 18, -(10 ** 18), -1) }}", "{{ range(-9223372036854775807, 9223372036854775807) }}"}) {
    expect_outcome(source, "format", "range() of ");
  }
  expect_outcome("{{ range(0, 10 ** 18, 10 ** 17)|list|length }}", "rendered", "10");
  expect_outcome("{{ range(1, 2, 0) }}", "format", "step of range() is 0");
}

TEST(ChatTemplateThreats, NestingIsBounded) {
  constexpr int kMany = 50000;
  expect_outcome("{{ " + repeated("(", kMany) + "1" + repeated(")", kMany) + " }}", "format", "nested more than 64");
  expect_outcome("{{ " + repeated("[", kMany) + repeated("]", kMany) + " }}", "format", "nested more than 64");
  expect_outcome("{{ " + repeated("not ", kMany) + "1 }}", "format", "nested more than 64");
  expect_outcome("{{ " + repeated("-", kMany) + "1 }}", "format", "nested more than 64");
  expect_outcome("{{ " + repeated("1 if 1 else ", kMany) + "1 }}", "format", "nested more than 64");
  expect_outcome(repeated("{% if 1 %}", kMany), "format", "nested more than 64");
  expect_outcome("{{ 1" + repeated("|abs", kMany) + " }}", "format", "suffixes");
  expect_outcome("{{ a" + repeated(".a", kMany) + " }}", "format", "suffixes");
  expect_outcome("{{ a" + repeated("[0]", kMany) + " }}", "format", "suffixes");
  expect_outcome("{{ 1" + repeated(" + 1", kMany) + " }}", "rendered", "50001");  // long is not deep
  expect_outcome("{% if 0 %}" + repeated("{% elif 0 %}", kMany) + "{% else %}x{% endif %}", "rendered", "x");
  expect_outcome("{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}",
                 "format", "nest more than 100");
}

TEST(ChatTemplateThreats, ValuesThatShareTheirPartsCostWhatTheyShow) {
  const std::string doubled =
      "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% set ns.y = [ns.y, ns.y] %}{% endfor %}";
  expect_outcome(doubled + "{{ ns.x == ns.y }}", "format", "steps");
  expect_outcome(doubled + "{{ ns.x }}", "format", "steps");
  expect_outcome(doubled + "{{ ns.x|tojson }}", "format", "steps");
  expect_outcome("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me.me.me is defined }}", "rendered", "True");
}

TEST(ChatTemplateThreats, TextIsBounded) {
  expect_outcome("{{ 'x' * 10 ** 9 }}", "format", "limit");
  expect_outcome("{{ [0] * 10 ** 9 }}", "format", "limit");
  expect_outcome("{{ ('x' * 10 ** 6) * 10 ** 6 }}", "format", "limit");
  expect_outcome("{% for i in range(20) %}{{ 'x' * 10 ** 6 }}{% endfor %}", "format", "a text of more than");
  expect_outcome("{% set ns = namespace(x='xy') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
                 "format", "a text of more than");
  expect_outcome("{% set b = 'x' * 10 ** 5 %}{{ b|replace('x', b) }}", "format", "a text of more than");
  expect_outcome("{% set b = 'x' * 10 ** 5 %}{{ b.replace('', b) }}", "format", "a text of more than");
  expect_outcome("{% set b = 'x' * 10 ** 5 %}{{ b|list|join(b) }}", "format", "a text of more than");
  expect_outcome("{{ ('\n' * 10 ** 6)|indent(9999, blank=true) }}", "format", "a text of more than");
  expect_outcome("{{ 'x'|indent(10 ** 12) }}", "format", "10000 are allowed");
  expect_outcome("{{ [1]|tojson(indent=10 ** 12) }}", "format", "100 are allowed");
  expect_outcome("{% set b = 'x' * 10 ** 6 %}{% for i in range(999) %}{% set c = b ~ i %}{% endfor %}", "format",
                 "take more than");
  expect_outcome("{% set b = 'x' * 10 ** 7 %}{% for i in range(9999) %}{{ 'y' in b }}{% endfor %}", "format", "steps");
  expect_outcome(std::string((1 << 20) + 1, 'x'), "format", "1048577 bytes");
}

TEST(ChatTemplateThreats, AttributesLeadNowhere) {
  for (const char* source : {"{{ ''.__class__ }}", "{{ messages.__class__ }}", "{{ messages[0].__init__ }}",
                             "{{ range.__globals__ }}", "{{ ''['__class__'] }}", "{{ raise_exception.__code__ }}",
                             "{{ loop }}", "{{ self }}", "{{ namespace().__dict__ }}"}) {
    EXPECT_EQ(outcome(source), "rendered: ") << source;  // undefined
  }
  expect_outcome("{{ ''.__class__.__mro__ }}", "format", "has no attribute '__class__'");
  expect_outcome("{{ messages[0].__init__.__globals__ }}", "format", "has no attribute '__init__'");
  expect_outcome("{{ ''|attr('__class__') }}", "unsupported", "the filter 'attr'");
  expect_outcome("{{ [''|upper]|map(attribute='__class__.__mro__')|list }}", "format", "has no attribute '__class__'");
  expect_outcome("{{ '{0.__class__}'.format('') }}", "unsupported", "format()");
  expect_outcome("{{ open('/etc/passwd') }}", "format", "'open' is undefined");
  expect_outcome("{% set messages.x = 1 %}", "format", "no namespace");
  expect_outcome("{{ strftime_now('%1000000000d') }}", "format", "strftime_now()");
}

TEST(ChatTemplateThreats, NumbersDoNotOverflow) {
  expect_outcome("{{ 9223372036854775807 + 1 }}", "format", "64 bits");
  expect_outcome("{{ 10 ** 19 }}", "format", "64 bits");
  expect_outcome("{{ (-9223372036854775807 - 1) // -1 }}", "format", "64 bits");
  expect_outcome("{{ (-9223372036854775807 - 1) % -1 }}", "rendered", "0");
  expect_outcome("{{ (-9223372036854775807 - 1)|abs }}", "format", "64 bits");
  expect_outcome("{{ 1e300 * 1e300 }}", "rendered", "inf");
  expect_outcome("{{ (1e300 * 1e300)|int }}", "rendered", "0");
  expect_outcome("{{ 'abc'[-9223372036854775807:9223372036854775807] }}", "rendered", "abc");
  expect_outcome("{{ 'abc'[::-9223372036854775807] }}", "rendered", "c");
  expect_outcome("{{ 'abc'[9223372036854775807] is defined }}", "rendered", "False");
}

TEST(ChatTemplateThreats, MissingVariablesAndUnknownRolesAreTheTemplatesToJudge) {
  const std::string source =
      "{% for m in messages %}{% if m.role not in ['user'] %}{{ raise_exception('no ' ~ m.role) }}{% endif %}{% endfor "
      "%}";
  expect_outcome(source, "usage", "no system");
  EXPECT_EQ(ChatTemplate::parse("{{ messages[0].role }}{{ absent }}")
                .render(std::vector<ChatMessage>{{"wizard\x01", ""}}, {}),
            "wizard\x01");
  EXPECT_THROW(ChatTemplate::parse("{{ messages[0].role }}").render({}, {}), FormatError);  // no message at all
}

TEST(ChatTemplateThreats, NoneTakesLong) {
  const auto start = std::chrono::steady_clock::now();
  outcome("{% set b = 'x' * 10 ** 7 %}{% for i in range(9999) %}{{ b|length }}{% endfor %}");
  outcome("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
  outcome("{% set l = range(99999)|list %}{% for a in l %}{{ a in l }}{{ l == l }}{% endfor %}");
  outcome("{% set l = range(99999)|list %}{{ l|map('string')|unique|list }}");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));  // sanitizers and emulators included
}

TEST(ChatTemplate, BytesThatAreNoUtf8Pass) {
  const std::vector<ChatMessage> odd = {{"user", "a\xff\xc3\x28\xe2\x82"}};
  const ChatTemplate chat = ChatTemplate::parse(
      "{{ messages[0].content }}|{{ messages[0].content|length }}|{{ messages[0].content|upper|trim }}|"
      "{{ messages[0].content[1:3] }}|{{ messages[0].content|tojson }}");
  EXPECT_EQ(chat.render(odd, {}), "a\xff\xc3(\xe2\x82|6|A\xff\xc3(\xe2\x82|\xff\xc3|\"a\xff\xc3(\xe2\x82\"");
}

}  // namespace
}  // namespace imago
