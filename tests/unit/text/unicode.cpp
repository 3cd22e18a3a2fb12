#include "core/text/unicode.h"

#include "tests/support/catch.h"

using namespace shardrun::text;

namespace {

std::string nfc(std::string_view text) {
  std::string result;
  append_nfc(text, result);
  return result;
}

unsigned classes_of(char32_t character) { return character_classes()[character]; }

}  // namespace

TEST_CASE("classes of characters", "[text]") {
  CHECK(classes_of('a') == (letter | lower | word));
  CHECK(classes_of('Q') == (letter | upper | word));
  CHECK(classes_of('7') == (number | numeric | word));
  CHECK(classes_of('_') == word);
  CHECK(classes_of('\'') == 0);
  CHECK(classes_of('\n') == space);
  CHECK(classes_of(0x85) == space);
  CHECK(classes_of(0x180E) == 0);
  CHECK(classes_of(0x301) == (upper | lower | word));
  CHECK(classes_of(0x4E00) == (letter | upper | lower | word));
  CHECK(classes_of(0x1C89) == (letter | upper | word));  // new in Unicode 16
  CHECK(classes_of(0x11DE1) == numeric);                 // new in Unicode 17
  CHECK(classes_of(0x10FFFF) == 0);
}

TEST_CASE("Normalization Form C", "[text]") {
  CHECK(nfc("") == "");
  CHECK(nfc("plain, and ünïcode") == "plain, and ünïcode");
  CHECK(nfc("e\u0301") == "é");
  CHECK(nfc("xe\u0301e\u0301x") == "xééx");
  CHECK(nfc("\u0301") == "\u0301");
  CHECK(nfc("\u212B") == "Å");                     // a singleton
  CHECK(nfc("q\u0307\u0323") == "q\u0323\u0307");  // marks by class
  CHECK(nfc("s\u0323\u0307") == "\u1E69");         // two steps
  CHECK(nfc("a\u0334\u0301") == "á\u0334");        // another mark between
  CHECK(nfc("\u1112\u1161\u11AB") == "\uD55C");    // Hangul
  CHECK(nfc("\uD558\u11AB") == "\uD55C");
  CHECK(nfc("\u0958") == "\u0915\u093C");                // is not composed again
  CHECK(nfc("\uFB01") == "\uFB01");                      // a compatibility character stays
  CHECK(nfc("\U000105D2\u0307") == "\U000105D2\u0307");  // composed since Unicode 16, not in this one
}
