#include "core/base/utf8.h"

#include <string>

#include "tests/support/catch.h"

using namespace shardrun;

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

TEST_CASE("what RFC 3629 forbids is no character", "[files]") {
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
