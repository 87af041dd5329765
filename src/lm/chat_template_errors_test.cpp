// Templates that are wrong, outside of the subset, or meant to do harm.

#include <gtest/gtest.h>

#include <chrono>

#include "imago/error.h"
#include "imago/lm.h"

namespace imago {
namespace {

const std::vector<ChatMessage> kTalk = {{"system", "Be brief."}, {"user", "Hi"}};

/// The error, or what was rendered.
std::string outcome(const std::string& source) {
  try {
    const ChatTemplate::Variables variables{"<s>", "</s>", true, "26 Jul 2024"};
    return "rendered: " + ChatTemplate::parse(source).render(kTalk, variables).substr(0, 100);
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
  expect_outcome("\n\n{% if %}", "format", "line 3: expected a value, got the end of the tag");
  expect_outcome("{{ nope + 'x' }}", "format", "'nope' is undefined");
  expect_outcome("{{ 'x' + 1 }}", "format", "'+' does not work with a str object and a int object");
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
                 "format", "nested more than 100");
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
  expect_outcome("{% for i in range(20) %}{{ 'x' * 10 ** 6 }}{% endfor %}", "format", "a string exceeds");
  expect_outcome("{% set ns = namespace(x='xy') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
                 "format", "a string exceeds");
  expect_outcome("{% set b = 'x' * 10 ** 5 %}{{ b|replace('x', b) }}", "format", "a string exceeds");
  expect_outcome("{% set b = 'x' * 10 ** 5 %}{{ b.replace('', b) }}", "format", "a string exceeds");
  expect_outcome("{% set b = 'x' * 10 ** 5 %}{{ b|list|join(b) }}", "format", "a string exceeds");
  expect_outcome("{{ ('\n' * 10 ** 6)|indent(9999, blank=true) }}", "format", "a string exceeds");
  expect_outcome("{{ 'x'|indent(10 ** 12) }}", "format", "the limit is 10000");
  expect_outcome("{{ [1]|tojson(indent=10 ** 12) }}", "format", "the limit is 100");
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
  expect_outcome("{% set messages.x = 1 %}", "format", "not a namespace");
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

}  // namespace
}  // namespace imago
