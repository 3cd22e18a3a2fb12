// Expressions and their values, as Python's jinja2 has them. Each expected text was printed by it.

#include <utility>

#include "core/template/template.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::test;
using namespace shardrun::templates;
using Catch::Matchers::Contains;

namespace {

std::string render_text(std::string_view text) {
  const boost::json::object context{{"l", {3, 1, 2}}, {"d", {{"b", 1}, {"A", "x"}, {"items", 0}}}, {"u", "Grüße ΣΑΣ"}};
  return Template::parse(text, "t").render(context);
}

}  // namespace

TEST_CASE("values print as in Python", "[template]") {
  const auto [text, expected] = GENERATE(table<std::string, std::string>({
      {"{{ [1.0, 1e16, 1e-5, 0.1, none, true, 'it\\'s', \"\\n\\u200b\"] }}",
       R"([1.0, 1e+16, 1e-05, 0.1, None, True, "it's", '\n\u200b'])"},
      {"{{ {'a': (1,), 2: ()} }} {{ d.items() }} {{ range(2, 9, 3) }}",
       "{'a': (1,), 2: ()} dict_items([('b', 1), ('A', 'x'), ('items', 0)]) range(2, 9, 3)"},
      {"{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** -1 }} {{ -2 ** 2 }} {{ 2.675 | round(2) }} {{ 2.5 | round }}",
       "-4 2 3.5 0.5 4 2.67 2.0"},
      {"{{ 1 < 2 < 3 }} {{ 'a' in u }} {{ 1 == 1.0 == true }} {{ undefined_name is defined }}{{ undefined_name }}",
       "True False True False"},
      {"{{ u[::-1] }} {{ u[2:-1] }} {{ l[::-2] }} {{ u.lower() }} {{ u | upper }} {{ u | title }}",
       "ΣΑΣ eßürG üße ΣΑ [2, 3] grüße σας GRÜSSE ΣΑΣ Grüße Σας"},
      {"{{ d['items'] }} {{ d.get('z', '-') }} {{ d | dictsort }} {{ l | sort | join(':') }} {{ l | map('string') | "
       "list }}",
       "0 - [('A', 'x'), ('b', 1), ('items', 0)] 1:2:3 ['3', '1', '2']"},
      {"{{ '<a>' | tojson }} {{ 'é\\t' | tojson(ensure_ascii=true) }} {{ {'a': [1, {}]} | tojson(indent=1) }}",
       "\"<a>\" \"\\u00e9\\t\" {\n \"a\": [\n  1,\n  {}\n ]\n}"},
      {"{{ '%05.1f|%-4s|%r' % (2.25, 'a', 'b') }} {{ '{:>4}{0.b}'.format(1) if false else '{:*^5}'.format('x') }}",
       "002.2|a   |'b' **x**"},
      {"{{ ' a  b c '.split() }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'ab' | indent }} {{ '<' | e + '<' }}",
       "['a', 'b', 'c'] ['a,b', 'c'] ab &lt;&lt;"},
  }));
  CHECK(render_text(text) == expected);
}

TEST_CASE("filters, methods and tests give what Jinja 3.1 gives", "[template]") {
  const auto [text, expected] = GENERATE(table<std::string, std::string>({
      {"{{ '0x1f' | int(base=16) }} {{ ' 42 ' | int }} {{ '4.9' | int }} {{ 'x' | int(7) }} {{ 3.9 | int }} {{ -3.9 | "
       "int }} {{ true | int }} {{ '1_000' | int }} {{ '0b101' | int(0, 0) }}",
       "31 42 4 7 3 -3 1 1000 5"},
      {"{{ '1.5e2' | float }} {{ 'x' | float(0.5) }} {{ 3 | float }} {{ ' inf ' | float }} {{ '1_0.5' | float }} {{ -3 "
       "| abs }} {{ -2.5 | abs }} {{ true | abs }}",
       "150.0 0.5 3.0 inf 10.5 3 2.5 1"},
      {"{{ l | sum }} {{ l | sum(start=10) }} {{ [{'a': 1.5}, {'a': 2}] | sum('a') }} {{ l | min }} {{ l | max }} {{ "
       "['b', 'A'] | min }} {{ ['b', 'A'] | min(case_sensitive=true) }} {{ [{'a': 2}, {'a': 1}] | max(attribute='a') "
       "}} {{ [] | max }}|",
       "6 16 3.5 1 3 A A {'a': 2} |"},
      {"{{ l | first }} {{ l | last }} {{ 'abc' | first }} {{ 'abc' | last }} {{ d | first }} {{ [] | first }}| {{ [] "
       "| last }}|",
       "3 2 a c b | |"},
      {"{{ l | batch(2) | list }} {{ l | batch(2, 0) | list }} {{ range(7) | slice(3) | list }} {{ range(7) | slice(3, "
       "'-') | list }}",
       "[[3, 1], [2]] [[3, 1], [2, 0]] [[0, 1, 2], [3, 4], [5, 6]] [[0, 1, 2], [3, 4, '-'], [5, 6, '-']]"},
      {"{{ [{'a': 2, 'b': 'x'}, {'a': 1, 'b': 'Y'}, {'a': 1, 'b': 'W'}] | sort(attribute='a,b') }} {{ ['b', 'C', 'a'] "
       "| sort }} {{ ['b', 'C', 'a'] | sort(true, true) }} {{ [[2, 'x'], [1, 'y']] | sort(attribute=0) }}",
       "[{'a': 1, 'b': 'W'}, {'a': 1, 'b': 'Y'}, {'a': 2, 'b': 'x'}] ['a', 'b', 'C'] ['b', 'a', 'C'] [[1, 'y'], [2, "
       "'x']]"},
      {"{{ range(5) | select('odd') | list }} {{ range(5) | reject('odd') | list }} {{ [0, '', 'a'] | select | list }} "
       "{{ [0, '', 'a'] | reject | list }} {{ [{'a': 1}, {'a': 0}] | rejectattr('a') | list }} {{ [{'a': 1}, {'a': 3}] "
       "| selectattr('a', 'gt', 2) | list }}",
       "[1, 3] [0, 2, 4] ['a'] [0, ''] [{'a': 0}] [{'a': 3}]"},
      {"{{ l | reverse | list }} {{ 'abc' | reverse }} {{ l | unique | list }} {{ ['a', 'A', 'b'] | unique | list }} "
       "{{ l | attr('count') is defined }} {{ d | attr('b') is defined }}",
       "[2, 1, 3] cba [3, 1, 2] ['a', 'b'] True False"},
      {"{{ 'ab' | center(7) }}|{{ 'abc' | center(6) }}|{{ '%s-%d' | format('a', 3) }} {{ '%(x)s' | format(x=1) }} {{ "
       "'a<b' | e | upper }}",
       "   ab  | abc  |a-3 1 A&LT;B"},
      {"{{ 'ab'.center(7, '*') }} {{ 'abc'.center(6, '*') }} {{ 'ab'.ljust(4, '.') }} {{ 'ab'.rjust(4, '.') }} {{ "
       "'-7'.zfill(5) }} {{ '7'.zfill(1) }}",
       "***ab** *abc** ab.. ..ab -0007 7"},
      {"{{ 'aXbX'.endswith('X') }} {{ 'ab'.endswith(('c', 'b')) }} {{ 'ab'.endswith('a', 0, 1) }} {{ "
       "'aXa'.removeprefix('a') }} {{ 'aXa'.removesuffix('a') }} {{ 'ab'.removeprefix('x') }}",
       "True True True Xa aX ab"},
      {"{{ 'a\\nb\\r\\nc\\x0bd\\n'.splitlines() }} {{ 'a\\nb\\n'.splitlines(true) }} {{ 'aXbXc'.partition('X') }} {{ "
       "'aXbXc'.rpartition('X') }} {{ 'a'.partition('X') }}",
       "['a', 'b', 'c', 'd'] ['a\\n', 'b\\n'] ('a', 'X', 'bXc') ('aXb', 'X', 'c') ('a', '', '')"},
      {"{{ 'a1'.isalnum() }} {{ 'aß'.isalpha() }} {{ 'aß'.isascii() }} {{ '12'.isdecimal() }} {{ '²'.isdecimal() }} {{ "
       "'²'.isdigit() }} {{ '½'.isnumeric() }} {{ '½'.isdigit() }} {{ ' \\t'.isspace() }} {{ ''.isspace() }}",
       "True True False True False True True False True False"},
      {"{{ 'ab1'.islower() }} {{ 'aB'.islower() }} {{ 'AB1'.isupper() }} {{ '1'.isupper() }} {{ 'Ab Cd'.istitle() }} "
       "{{ 'Ab cd'.istitle() }} {{ 'a\\n'.isprintable() }} {{ 'aß'.isprintable() }} {{ ''.isprintable() }} {{ "
       "''.isascii() }}",
       "True False True False True False False True True True"},
      {"{{ l.index(2) }} {{ [1, 2, 1].count(1) }} {{ (1, 2, 1).count(1) }} {{ l.copy() }} {{ d.copy() }} {{ [1, 2, "
       "1].index(1, 1) }}",
       "2 2 2 [3, 1, 2] {'b': 1, 'A': 'x', 'items': 0} 2"},
      {"{{ 6 is divisibleby(3) }} {{ 7 is even }} {{ 7 is odd }} {{ 'ab' is lower }} {{ 'aB' is lower }} {{ 'AB' is "
       "upper }} {{ 1 is sameas(true) }} {{ none is sameas(none) }} {{ 1 is eq(1.0) }} {{ 1 is ne(2) }} {{ 1 is lt(2) "
       "}} {{ 2 is le(2) }} {{ 2 is gt(2) }} {{ 2 is ge(2) }}",
       "True False True True False True False True True True True True False True"},
      {"{{ l is iterable }} {{ 1 is iterable }} {{ l is sequence }} {{ d is mapping }} {{ 'a' is string }} {{ 1.5 is "
       "float }} {{ 1 is integer }} {{ true is integer }} {{ 1 is number }} {{ true is boolean }} {{ none is none }} "
       "{{ range is callable }} {{ 1 is callable }} {{ ('<' | e) is escaped }} {{ '<' is escaped }} {{ 1 is in l }} {{ "
       "true is true }} {{ 1 is true }} {{ false is false }}",
       "True False True True True True True False True True True True False True False True True False True"},
      {"{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 7.5 % -2 }} {{ 2.0 ** 3 }} {{ 1e3 * 2 }} {{ 7 // -2.0 }} {{ "
       "'{:,}|{:+.2f}|{:>6}|{:06.1f}|{:x}'.format(1234567, 1.005, 'a', -2.25, 255) }}",
       "3.0 0.5 -0.5 8.0 2000.0 -4.0 1,234,567|+1.00|     a|-002.2|ff"},
  }));
  CHECK(render_text(text) == expected);
}

TEST_CASE("blocks, scopes and white space are those of transformers' environment", "[template]") {
  const auto [text, expected] = GENERATE(table<std::string, std::string>({
      {"  {% if true %}\n  x\n  {% endif %}\ny\n", "  x\ny"},
      {"a {%- if true -%} \n b {%+ endif +%}\n {{- 'c' -}}  d", "ab cd"},
      {"{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}", "1"},
      {"{% set n = namespace(x=1) %}{% for i in l %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}", "7"},
      {"{% for i in l if i > 1 %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% else %}none{% endfor %}",
       "1/2False 2/2True "},
      {"{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% endfor "
       "%}",
       "32"},
      {"{% macro m(a, b=a ~ '!') %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(1, 2, 3, k=4) "
       "}}",
       "11!(){}12(3,){'k': 4}"},
      {"{% macro m() %}<{{ caller('x') }}>{% endmacro %}{% call(v) m() %}{{ v }}{{ v }}{% endcall %}", "<xx>"},
      {"{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x ~ '@' ~ loop.depth }} {% endfor %}",
       "1@1 2@2 3@3   "},
      {"{% set x %}{% generation %} a {% endgeneration %}{% endset %}{{ x | trim }}{% raw %}{{ x }}{% endraw %}",
       "a{{ x }}"},
      {"{% for a, b in d.items() %}{{ a }}={{ b }}{{ ',' if not loop.last }}{% endfor %}", "b=1,A=x,items=0"},
  }));
  CHECK(render_text(text) == expected);
}

TEST_CASE("what is wrong or unknown is named with its place", "[template]") {
  const auto [text, expected] = GENERATE(table<std::string, std::string>({
      {"a\n {{ 'x' | wordwrap }}", "t, line 2, column 11: the filter 'wordwrap' is not known"},
      {"{% include 'x' %}", "t, line 1, column 4: the tag 'include' is not supported"},
      {"{% if true %}", "{% endif %} is missing"},
      {"{{ l.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"},
      {"{{ d.update({}) }}", "access to attribute 'update' of 'dict' object is unsafe"},
      {"{{ u.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"},
      {"{{ d.nothing.more }}", "'dict object' has no attribute 'nothing'"},
      {"{{ nothing() }}", "'nothing' is undefined"},
      {"{{ 'a' + 1 }}", "t, line 1, column 8: '+' has no meaning between str and int"},
      {"{{ u.encode() }}", "the method 'encode' of str is not supported"},
      {"{{ lipsum() }}", "the function 'lipsum' is not supported"},
      {"{{ raise_exception('roles alternate') }}", "the template refuses this: roles alternate"},
      {"{{ 9223372036854775807 + 1 }}", "more than 64 bits"},
      {"{{ l | map('upper') }}", "cannot be printed"},
      {"{% break %}", "'break' is not within a for"},
      {"{{ 'x }}", "this text has no end"},
      {"{{ (1] }}", "expected ')', found ']'"},
      {"{% set d.x = 1 %}", "'d' is no namespace"},
  }));
  CHECK_THAT(error_of([&, given = text] { (void)render_text(given); }), Contains(expected));
}
