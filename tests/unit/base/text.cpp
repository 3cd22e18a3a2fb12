#include <string>
#include <vector>

#include "core/base/suggest.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "tests/support/catch.h"

using namespace shardrun;

TEST_CASE("control characters in text from outside are escaped", "[base]") {
  CHECK(printable("plain, with a tab\tand é, €, 😀") == "plain, with a tab\tand é, €, 😀");
  CHECK(printable("\x1b[2J\x1b]0;title\a") == "\\x1b[2J\\x1b]0;title\\x07");
  CHECK(printable("two\nlines\r\n") == "two\\x0alines\\x0d\\x0a");
  CHECK(printable("\x7f") == "\\x7f");
  CHECK(printable(std::string_view("a\0b", 3)) == "a\\x00b");
  CHECK(printable("\xc2\x9b"
                  "31m") == "\\u{9b}31m");  // CSI in one character
  CHECK(printable("\xe2\x80\xae"
                  "txt.exe") == "\\u{202e}txt.exe");  // right to left
}

TEST_CASE("bytes that are not UTF-8 are escaped one by one", "[base]") {
  CHECK(printable("\x9b\xff\xc3(") == "\\x9b\\xff\\xc3(");
  CHECK(printable("\xe2\x82") == "\\xe2\\x82");
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");
}

TEST_CASE("text of several lines keeps its line ends, and other control characters are escaped", "[base]") {
  CHECK(printable_lines("one\ntwo\x1b[A\r\n") == "one\ntwo\\x1b[A\\x0d\n");
  CHECK(printable_lines("") == "");
}

TEST_CASE("the nearest name is suggested, a far one is not", "[base]") {
  const std::vector<std::string> names = {"learning_rate", "steps", "warmup", "clip"};

  CHECK(nearest_name("learning_rat", names) == "learning_rate");
  CHECK(nearest_name("setps", names) == "steps");
  CHECK(nearest_name("zzz", names).empty());
  CHECK(nearest_name(std::string(100000, 'x'), names).empty());
  CHECK(did_you_mean("warm_up", names) == " (did you mean 'warmup'?)");
  CHECK(did_you_mean("banana", names).empty());
}

TEST_CASE("characters of each length are read and written", "[files]") {
  for (const char32_t character : {U'\0', U'A', U'\x7F', U'\x80', U'é', U'\x7FF', U'\x800', U'€', U'\xD7FF', U'\xE000',
                                   U'\xFFFF', U'\x10000', U'😀', U'\x10FFFF'}) {
    std::string text;
    append_utf8(text, character);

    const Utf8Character read = utf8_at(text, 0);

    CHECK(read.character == character);
    CHECK(read.bytes == text.size());
  }
}

TEST_CASE("sequences that RFC 3629 forbids are not characters", "[files]") {
  CHECK(first_invalid_utf8("plain and é") == std::nullopt);
  CHECK(first_invalid_utf8("ab\x80") == 2);            // a continuation byte alone
  CHECK(first_invalid_utf8("\xC3") == 0);              // cut short
  CHECK(first_invalid_utf8("a\xC3(") == 1);            // no continuation
  CHECK(first_invalid_utf8("\xC0\xAF") == 0);          // overlong '/'
  CHECK(first_invalid_utf8("\xE0\x80\x80") == 0);      // overlong NUL
  CHECK(first_invalid_utf8("\xED\xA0\x80") == 0);      // a surrogate
  CHECK(first_invalid_utf8("\xF4\x90\x80\x80") == 0);  // past U+10FFFF
  CHECK(first_invalid_utf8("\xFF") == 0);
}
