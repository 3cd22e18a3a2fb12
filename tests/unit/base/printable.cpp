#include "core/base/printable.h"

#include <string>

#include "tests/support/catch.h"

using namespace shardrun;

TEST_CASE("text of others can only be shown", "[base]") {
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

TEST_CASE("bytes that are no UTF-8 are shown one by one", "[base]") {
  CHECK(printable("\x9b\xff\xc3(") == "\\x9b\\xff\\xc3(");
  CHECK(printable("\xe2\x82") == "\\xe2\\x82");
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");
}

TEST_CASE("several lines keep their ends and nothing else", "[base]") {
  CHECK(printable_lines("one\ntwo\x1b[A\r\n") == "one\ntwo\\x1b[A\\x0d\n");
  CHECK(printable_lines("") == "");
}
