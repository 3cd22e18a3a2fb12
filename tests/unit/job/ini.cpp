#include "core/job/ini.h"

#include <string>

#include "core/base/text.h"
#include "tests/unit/job/support.h"

using namespace shardrun;

namespace {

std::string value_of(const std::string& line) {
  const auto sections = job::parse_ini("[s]\n" + line, "x.ini").sections;
  REQUIRE(sections.size() == 1);
  REQUIRE(sections[0].settings.size() == 1);
  return sections[0].settings[0].value;
}

}  // namespace

TEST_CASE("sections and keys keep their order and their lines", "[job]") {
  const auto sections = job::parse_ini("; first\n\n[b] ; comment\n  y = 1\n\tx=2\n# none\n[ a ]\n", "x.ini").sections;

  REQUIRE(sections.size() == 2);
  CHECK(sections[0].name == "b");
  CHECK(sections[0].where == "x.ini:3");
  REQUIRE(sections[0].settings.size() == 2);
  CHECK(sections[0].settings[0].key == "y");
  CHECK(sections[0].settings[0].where == "x.ini:4");
  CHECK(sections[0].settings[1].key == "x");
  CHECK(sections[1].name == "a");
  CHECK(sections[1].settings.empty());
}

TEST_CASE("comments end a value only after white space", "[job]") {
  CHECK(value_of("k = 2  ; product = ranks") == "2");
  CHECK(value_of("k = a;b#c") == "a;b#c");
  CHECK(value_of("k = a\t# b") == "a");
  CHECK(value_of("k = a = b") == "a = b");
}

TEST_CASE("a quoted value may have comment signs, quotes and outer blanks", "[job]") {
  CHECK(value_of("k = \"a ; b\" ; comment") == "a ; b");
  CHECK(value_of("k = \" x \"") == " x ");
  CHECK(value_of("k = \"say \"\"hi\"\"\"") == "say \"hi\"");
  CHECK(value_of("k = \"\"").empty());
  CHECK(value_of("k = a \"b\"") == "a \"b\"");
}

TEST_CASE("a written value is read back unchanged", "[job]") {
  for (const std::string value :
       {"plain", "", " x", "x ", "a ; b", "#", "a #b", "\"", "\"a\"", "a\"\"b", "a;b", "\t"}) {
    INFO(value);
    CHECK(value_of("k = " + job::write_value(value)) == value);
  }
  CHECK(job::write_value("a;b") == "a;b");
}

TEST_CASE("a byte order mark and CRLF line ends are accepted", "[job]") {
  const auto sections = job::parse_ini("\xEF\xBB\xBF[s]\r\nk = v ; c\r\n\r\n", "x.ini").sections;

  REQUIRE(sections.size() == 1);
  CHECK(sections[0].settings[0].value == "v");
  CHECK(sections[0].settings[0].where == "x.ini:2");
}

TEST_CASE("invalid UTF-8 is found", "[job]") {
  const auto good = std::string::npos;
  CHECK(invalid_utf8("") == good);
  CHECK(invalid_utf8("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF") == good);
  for (const std::string bad : {"\x80", "\xC0\xAF", "\xC1\xBF", "\xC3", "\xE0\x80\xAF", "\xE0\x9F\xBF", "\xE2\x82",
                                "\xED\xA0\x80", "\xED\xBF\xBF", "\xF0\x80\x80\xAF", "\xF0\x8F\xBF\xBF", "\xF0\x9F\x98",
                                "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFE", "\xFF"}) {
    INFO(shardrun::escaped(bad));
    CHECK(invalid_utf8(bad) == 0);
    CHECK(invalid_utf8("ab" + bad) == 2);
  }
}

TEST_CASE("text in messages is escaped and shortened", "[job]") {
  CHECK(shown("caf\xC3\xA9") == "caf\xC3\xA9");
  CHECK(shown(std::string("a\0\x1b\t\xFF", 5)) == "a\\x00\\x1b\\x09\\xff");
  CHECK(shown(std::string(80, 'x')) == std::string(80, 'x'));
  CHECK(shown(std::string(81, 'x')) == std::string(60, 'x') + "... (81 bytes)");
  const std::string accents = shown(std::string(1, 'x') + [] {
    std::string text;
    for (int i = 0; i < 100; ++i) {
      text += "\xC3\xA9";
    }
    return text;
  }());
  CHECK(invalid_utf8(accents) == std::string::npos);
}
