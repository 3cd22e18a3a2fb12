// Each family's tokenizer encodes and decodes texts as Python's tokenizers does. bench/fixtures/make_tokenizers.py
// wrote what is expected.

#include <map>
#include <sstream>

#include "core/base/utf8.h"
#include "core/text/bpe_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/escapes.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun;
using namespace shardrun::test;
using text::BpeDecoder;
using text::BpeEncoder;
using text::BpeTokenizer;

namespace {

const std::filesystem::path fixtures = SHARDRUN_FIXTURES;

struct Case {
  std::string family;
  std::string text;
  std::vector<std::int32_t> tokens;
  std::string decoded;  ///< "-": not UTF-8
};

std::vector<Case> read_cases() {
  std::vector<Case> cases;
  std::istringstream file(read_file(fixtures / "cases.txt"));
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    Case read;
    std::string text;
    std::string tokens;
    std::string decoded;
    std::getline(fields, read.family, '\t');
    std::getline(fields, text, '\t');
    std::getline(fields, tokens, '\t');
    std::getline(fields, decoded, '\t');
    std::istringstream numbers(tokens);
    for (std::int32_t token = 0; numbers >> token;) {
      read.tokens.push_back(token);
    }
    read.text = unescaped(text);
    read.decoded = unescaped(decoded);
    cases.push_back(std::move(read));
  }
  return cases;
}

}  // namespace

TEST_CASE("every family's tokens and decoded texts are those of Python's tokenizers", "[text]") {
  std::map<std::string, BpeTokenizer> tokenizers;
  std::map<std::string, BpeEncoder> encoders;
  int decoded_cases = 0;
  const std::vector<Case> cases = read_cases();
  for (const Case& each : cases) {
    if (!tokenizers.contains(each.family)) {
      const BpeTokenizer read = BpeTokenizer::from_file(fixtures / (each.family + ".json"));
      tokenizers.emplace(each.family, read);
      encoders.emplace(each.family, read);
    }
    const BpeTokenizer& tokenizer = tokenizers.at(each.family);
    INFO(each.family << ": " << escaped(each.text));
    for (int again = 0; again < 2; ++again) {  // the second time from the cache of words
      std::vector<std::int32_t> tokens;
      encoders.at(each.family).encode(each.text, tokens);
      REQUIRE(tokens == each.tokens);
    }
    std::string whole = tokenizer.decode(each.tokens);
    if (each.decoded != "-") {
      REQUIRE(escaped(whole) == escaped(each.decoded));
      ++decoded_cases;
    }
    std::string streamed;
    BpeDecoder decoder(tokenizer);
    for (const std::int32_t token : each.tokens) {
      const std::size_t before = streamed.size();
      decoder.decode(token, streamed);
      if (each.decoded != "-") {
        REQUIRE_FALSE(first_invalid_utf8(std::string_view(streamed).substr(before)).has_value());
      }
    }
    decoder.finish(streamed);
    REQUIRE(escaped(streamed) == escaped(whole));
  }
  CHECK(tokenizers.size() == 15);
  CHECK(cases.size() >= 15 * 24);
  CHECK(decoded_cases > 300);
}

TEST_CASE("a tokenizer tells its tokens, and those that it puts around a text", "[text]") {
  const BpeTokenizer llama = BpeTokenizer::from_file(fixtures / "llama2.json");
  CHECK(llama.vocabulary() == 400);
  CHECK(llama.before() == std::vector<std::int32_t>{1});
  CHECK(llama.behind().empty());
  CHECK(llama.find("</s>") == 2);
  CHECK(llama.find("no such token") == std::nullopt);
  CHECK(llama.is_special(2));
  CHECK_FALSE(llama.is_special(*llama.find("▁")));
  CHECK(llama.decode(std::vector<std::int32_t>{1, *llama.find("▁"), *llama.find("a"), 2}) == "a");

  CHECK(BpeTokenizer::from_json(llama.json(), "itself").json() == llama.json());
}

TEST_CASE("characters that several tokens make come out whole", "[text]") {
  const BpeTokenizer tokenizer = BpeTokenizer::from_file(fixtures / "gpt2.json");
  std::vector<std::int32_t> tokens;
  BpeEncoder(tokenizer).encode("a🤦", tokens);
  REQUIRE(tokens.size() == 5);
  BpeDecoder decoder(tokenizer);
  std::string text;
  decoder.decode(tokens[0], text);
  CHECK(text == "a");
  for (std::size_t i = 1; i < 4; ++i) {
    decoder.decode(tokens[i], text);
    CHECK(text == "a");
  }
  decoder.decode(tokens[4], text);
  CHECK(text == "a🤦");

  decoder.decode(tokens[1], text);
  decoder.finish(text);
  CHECK(text == "a🤦\xF0");
}
