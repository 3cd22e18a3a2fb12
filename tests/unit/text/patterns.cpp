#include "core/text/patterns.h"

#include "core/text/unicode.h"
#include "tests/support/catch.h"

using namespace shardrun::text;

namespace {

using Pieces = std::vector<std::string>;

Pieces cut(std::string_view family, std::string_view text) {
  const Scanner scanner = *scanner_of(*expression_of(family));
  Pieces pieces;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = scanner(text, at, character_classes());
    REQUIRE(end > at);
    pieces.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return pieces;
}

}  // namespace

// What is expected is what the pre-tokenizers of Python's tokenizers give.

TEST_CASE("GPT-2's expression", "[text]") {
  CHECK(cut("gpt2", "I'll don't 'S  x12 34\n\n y!? \t") ==
        Pieces{"I", "'ll", " don", "'t", " '", "S", " ", " x", "12", " 34", "\n\n", " y", "!?", " \t"});
  CHECK(cut("gpt2", "\u00A0a\n b") == Pieces{"\u00A0", "a", "\n", " b"});
  CHECK(cut("gpt2", "'") == Pieces{"'"});
}

TEST_CASE("Llama 3's and Qwen 2's expressions differ in numbers", "[text]") {
  CHECK(cut("llama3", "I'LL x12345 \n\n  y!?\n\n(a") ==
        Pieces{"I", "'LL", " x", "123", "45", " \n\n", " ", " y", "!?\n\n", "(a"});
  CHECK(cut("qwen2", "x123") == Pieces{"x", "1", "2", "3"});
  CHECK(cut("llama3", "it'\u017Fa") == Pieces{"it", "'\u017F", "a"});
  CHECK(cut("llama3", "'") == Pieces{"'"});
}

TEST_CASE("tekken's and o200k's expressions cut words by case", "[text]") {
  CHECK(cut("tekken", "HTMLElement's 12/\n/ÄÖ") == Pieces{"HTMLElement", "'s", " ", "1", "2", "/\n/", "ÄÖ"});
  CHECK(cut("o200k", "HTMLElement's 1234") == Pieces{"HTMLElement's", " ", "123", "4"});
  CHECK(cut("o200k", "camelCaseABC") == Pieces{"camel", "Case", "ABC"});
  // Where no small letter follows, the mark among the capitals ends the match.
  CHECK(cut("tekken", "A\u0301BC") == Pieces{"A\u0301", "BC"});
  CHECK(cut("tekken", "\u0301AB!") == Pieces{"\u0301", "AB", "!"});
}

TEST_CASE("other expressions are not known", "[text]") {
  CHECK_FALSE(scanner_of(R"(\p{L}+)").has_value());
  CHECK_FALSE(expression_of("bert").has_value());
}
