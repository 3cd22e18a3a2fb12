// Hostile templates are stopped: none takes more than its limits.

#include "core/template/template.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::test;
using namespace shardrun::templates;
using Catch::Matchers::Contains;

namespace {

std::string stopped(const std::string& text) {
  const Limits limits{.steps = 100'000, .bytes = std::size_t{4} << 20U, .text_bytes = std::size_t{1} << 20U};
  return error_of([&] { (void)Template::parse(text, "t").render({}, limits); });
}

std::string times(std::string_view text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) {
    all += text;
  }
  return all;
}

}  // namespace

TEST_CASE("loops end at the limit of steps", "[template]") {
  CHECK_THAT(
      stopped("{% for a in range(99) %}{% for b in range(9999) %}{% if a == b %}{% endif %}{% endfor %}{% endfor %}"),
      Contains("more than 100000 steps"));
  CHECK_THAT(stopped("{% for i in range(10**9) %}x{% endfor %}"), Contains("range has more than 100000 numbers"));
}

TEST_CASE("texts and lists end at the limits of memory", "[template]") {
  CHECK_THAT(stopped("{{ 'x' * 10**12 }}"), Contains("a text has more than 1048576 bytes"));
  CHECK_THAT(stopped("{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}"),
             Contains("a text has more than 1048576 bytes"));
  CHECK_THAT(stopped("{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}"),
             Contains("needs more than 4194304 bytes"));
  CHECK_THAT(stopped("{{ '%9999999d' % 1 }}"), Contains("more than 10000 characters"));
  CHECK_THAT(stopped("{{ 'aaaa'.replace('', 'x' * 1000000) }}"), Contains("a text has more than 1048576 bytes"));
}

TEST_CASE("what lies too deep within itself is refused", "[template]") {
  CHECK_THAT(stopped("{{ " + times("(", 5000) + "1" + times(")", 5000) + " }}"),
             Contains("nested more than 100 times"));
  CHECK_THAT(stopped("{{ " + times("not ", 5000) + "1 }}"), Contains("nested more than 100 times"));
  CHECK_THAT(stopped("{{ 1" + times(" + 1", 5000) + " }}"), Contains("more than 250 operations within each other"));
  CHECK_THAT(stopped(times("{% if true %}", 5000)), Contains("nested more than 100 times"));
  CHECK_THAT(stopped("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), Contains("more than 500 deep"));
  CHECK_THAT(
      stopped("{% set n = namespace(s=[]) %}{% for i in range(999) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s }}"),
      Contains("more than 500 deep"));
  CHECK_THAT(stopped("{% set n = namespace() %}{% set n.s = [n] %}{{ n.s }}"), Contains("more than 500 deep"));
  CHECK_THAT(stopped("{% set n = namespace(s=[1]) %}{% for i in range(999) %}{% set n.s = n.s | map('string') %}"
                     "{% endfor %}{{ n.s | list }}"),
             Contains("more than 500 deep"));
}

TEST_CASE("keys of dicts end at the limits", "[template]") {
  const std::string nested = "{% set n = namespace(i=(1,)) %}{% for x in range(999) %}{% set n.i = ITEM %}{% endfor %}";
  const auto with = [&](const std::string& item) {
    std::string text = nested;
    return text.replace(text.find("ITEM"), 4, item);
  };
  CHECK_THAT(stopped(with("(n.i,)") + "{{ {}.get(n.i) }}"), Contains("more than 500 deep"));
  CHECK_THAT(stopped(with("(n.i,) if x else (n.i, n.i)") + "{{ n.i in {}.keys() }}"), Contains("more than 500 deep"));
  CHECK_THAT(stopped("{% set n = namespace(i=(1,)) %}{% for x in range(40) %}{% set n.i = (n.i, n.i) %}{% endfor %}"
                     "{{ {}.get(n.i) }}"),
             Contains("more than 100000 steps"));
  CHECK_THAT(stopped("{% set a = 'a' * 300000 %}{% set d = {a ~ 'x': 1} %}{% set b = a ~ 'y' %}"
                     "{% for x in range(99) %}{% if d.get(b) %}{% endif %}{% endfor %}"),
             Contains("more than 100000 steps"));
}

TEST_CASE("numbers of more than 64 bits are refused", "[template]") {
  CHECK_THAT(stopped("{{ range(9223372036854775806, 9223372036854775807, 2)[1:] }}"), Contains("more than 64 bits"));
  CHECK_THAT(stopped("{{ range(0, 10, 4)[::4611686018427387904] }}"), Contains("more than 64 bits"));
  CHECK_THAT(stopped("{{ 9223372036854775807 | round(-1) }}"), Contains("more than 64 bits"));
  CHECK(Template::parse("{{ (-9223372036854775807 - 1) % 3 }} {{ range(0, 10, 4)[1:] }}", "t").render({}) ==
        "1 range(4, 12, 4)");
}

TEST_CASE("messages quote no more than a line", "[template]") {
  const std::string message = stopped("{{ raise_exception('a\\nb\\x1b' ~ 'x' * 100000) }}");
  CHECK_THAT(message, Contains("refuses this: a\\x0ab\\x1bxxx") && Contains("x…"));
  CHECK(message.size() < 1100);
  CHECK(stopped("{{ 'a'.index('x' * 100000) }}").size() < 200);
  CHECK_THAT(stopped("{{ strftime_now('%99999d') }}"), Contains("strftime_now: the format makes more than"));
  CHECK(Template::parse("{{ strftime_now('') }}", "t").render({}).empty());
}

TEST_CASE("a template has a bounded size", "[template]") {
  CHECK_THAT(stopped(std::string((std::size_t{1} << 20U) + 1, 'x')),
             Contains("t has 1048577 bytes: a chat template has at most 1048576"));
}

TEST_CASE("a search for a long text is linear in time", "[template]") {
  const auto rendered = [](const std::string& text) { return Template::parse(text, "t").render({}); };
  // A search that compares at each place would take minutes.
  const std::string big =
      "{% set h = 'a' * 4000000 %}{% set w = 'a' * 2000000 ~ 'b' %}{% set v = 'b' ~ 'a' * 2000000 %}";
  CHECK(rendered(big + "{{ w in h }} {{ h.find(w) }} {{ h.rfind(v) }} {{ h.count(w) }} {{ h.split(w) | length }} "
                       "{{ h.rsplit(v) | length }} {{ h.replace(w, 'x') == h }} {{ h.partition(w)[1] }} "
                       "{{ h.rpartition(v)[1] }}") == "False -1 -1 0 1 1 True  ");
  CHECK(rendered("{% set s = 'xy' * 50 %}{% set t = 'é' ~ s ~ '1' ~ s ~ '2' ~ s ~ s %}"
                 "{{ t.find(s) }} {{ t.rfind(s) }} {{ t.count(s) }} {{ t.split(s) }} {{ t.rsplit(s, 2) | length }} "
                 "{{ t.rsplit(s, 2)[1:] }} {{ t.replace(s, '-') }} {{ t.rpartition(s)[2] == '' }} {{ s in t }}") ==
        "1 303 4 ['é', '1', '2', '', ''] 3 ['', ''] é-1-2-- True True");
  CHECK(rendered("{% set set = 'xyz' * 30000 ~ 'é' %}{{ ('a' ~ 'x' * 90000 ~ 'é').strip(set) }} "
                 "{{ ('é' * 90000 ~ 'ê') | trim(set) }} {{ 'xax'.lstrip('') }}") == "a ê xax");
}

TEST_CASE("what an operation needs for a while counts as memory", "[template]") {
  const std::string big = "{% set t = '\\x01' * 900000 %}";
  for (const std::string use : {"{{ t | upper }}", "{{ t | tojson }}", "{{ t | e }}", "{{ [t] }}", "{{ t[::2] }}",
                                "{{ {t: 1} | tojson }}", "{{ t.lower() }}", "{{ (t | safe) + t }}"}) {
    CHECK_THAT(stopped(big + use), Contains("needs more than 4194304 bytes"));
  }
  // That memory is given back afterwards.
  CHECK(Template::parse("{% set t = 'x' * 100000 %}{% for i in range(50) %}{% if t | upper == 'X' %}{% endif %}"
                        "{% endfor %}",
                        "t")
            .render({}, {.bytes = std::size_t{7} << 20U})
            .empty());
}

TEST_CASE("letters change by their place in words", "[template]") {
  CHECK(Template::parse(
            "{{ 'ΑΣ ΑΣΑ Σ ΑΣ.' .lower() }} {{ 'όδοΣ'.capitalize() }} {{ 'ßΣaΣ'.title() }} {{ 'aΣ'.swapcase() }}", "t")
            .render({}) == "ας ασα σ ας. Όδος Ssσaς Aς");
}
