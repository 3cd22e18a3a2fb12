#include "core/data/tokenizer.h"

#include <numeric>

#include "core/base/utf8.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::data;
using namespace shardrun::test;
using Catch::Matchers::Contains;

TEST_CASE("characters are numbered by rising code point", "[data]") {
  const Tokenizer tokenizer = Tokenizer::of_characters("hello wörld\n", "text");

  CHECK(tokenizer.vocabulary() == 10);  // \n, space, d e h l o r w, ö
  CHECK(tokenizer.encode("\n höd") == std::vector<std::uint16_t>{0, 1, 4, 9, 2});
  CHECK(tokenizer.decode(std::vector<std::uint16_t>{0, 1, 4, 9, 2}) == "\n höd");
}

TEST_CASE("bytes stand for themselves", "[data]") {
  const Tokenizer tokenizer = Tokenizer::of_bytes();
  std::string text(256, '\0');
  std::iota(text.begin(), text.end(), '\0');

  const std::vector<std::uint16_t> tokens = tokenizer.encode(text);

  CHECK(tokenizer.vocabulary() == 256);
  CHECK(tokens[0] == 0);
  CHECK(tokens[255] == 255);
  CHECK(tokenizer.decode(tokens) == text);
}

TEST_CASE("a tokenizer survives its JSON", "[data]") {
  const Tokenizer characters = Tokenizer::of_characters(std::string_view("a\"\\\n\0é€😀/\x7F", 16), "text");

  CHECK(Tokenizer::from_json(characters.to_json()) == characters);
  CHECK(Tokenizer::from_json(Tokenizer::of_bytes().to_json()) == Tokenizer::of_bytes());
  CHECK(Tokenizer::of_bytes().to_json() == R"({"kind":"byte"})");
  CHECK(Tokenizer::of_characters("ba", "text").to_json() == R"({"kind":"char","characters":"ab"})");
}

TEST_CASE("JSON that is no tokenizer is refused", "[data]") {
  CHECK_THAT(error_of([] { (void)Tokenizer::from_json("["); }), Contains("no JSON object"));
  CHECK_THAT(error_of([] { (void)Tokenizer::from_json("{}"); }), Contains("no \"kind\""));
  CHECK_THAT(error_of([] { (void)Tokenizer::from_json(R"({"kind":"bpe"})"); }), Contains("kind \"bpe\""));
  CHECK_THAT(error_of([] { (void)Tokenizer::from_json(R"({"kind":"char"})"); }), Contains("no \"characters\""));
  CHECK_THAT(error_of([] { (void)Tokenizer::from_json(R"({"kind":"char","characters":"ba"})"); }),
             Contains("do not rise"));
  CHECK_THAT(error_of([] { (void)Tokenizer::from_json(R"({"kind":"char","characters":"aa"})"); }),
             Contains("do not rise"));
}

TEST_CASE("what has no token is named with its place", "[data]") {
  const Tokenizer tokenizer = Tokenizer::of_characters("aé", "text");

  CHECK_THAT(error_of([&] { (void)tokenizer.encode("éx"); }),
             Contains("cannot encode 'x' U+0078 at byte 2: it is none of the 2 characters"));
  CHECK_THAT(error_of([&] { (void)tokenizer.encode("a\n"); }), Contains("cannot encode U+000A at byte 1"));
  CHECK_THAT(error_of([&] { (void)tokenizer.decode(std::vector<std::uint16_t>{2}); }),
             Contains("cannot decode token 2: the tokenizer has tokens 0 to 1"));
  std::string text;
  CHECK_THAT(error_of([&] { tokenizer.decode(-1, text); }), Contains("cannot decode token -1"));
}

TEST_CASE("text that characters cannot be made of is refused", "[data]") {
  CHECK(error_of([] { (void)Tokenizer::of_characters("ab\xFFz", "'corpus.txt'"); }) ==
        "2: 'corpus.txt' is not valid UTF-8: byte 2 (0xFF) starts no character; use [data] tokenizer = byte");
  CHECK_THAT(error_of([] { (void)Tokenizer::of_characters("", "'corpus.txt'"); }), Contains("'corpus.txt' is empty"));
}

TEST_CASE("a vocabulary of 65,536 fits 16 bits, one more does not", "[data]") {
  std::string text;
  for (char32_t character = 0x10000; character < 0x20000; ++character) {
    append_utf8(text, character);
  }

  const Tokenizer tokenizer = Tokenizer::of_characters(text, "text");

  CHECK(tokenizer.vocabulary() == 65536);
  CHECK(tokenizer.encode(text).back() == 65535);
  CHECK_THAT(error_of([&] { (void)Tokenizer::of_characters(text + "a", "text"); }),
             Contains("65537 distinct characters, tokens are 16 bits and number at most 65536"));
}
