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
