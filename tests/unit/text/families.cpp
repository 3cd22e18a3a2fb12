// Each family's tokenizer encodes and decodes texts as Python's tokenizers does. bench/fixtures/make_tokenizers.py
// wrote what is expected.

#include <cstdlib>
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

/// The cases of the fixtures or, if SHARDRUN_TOKENIZER_CASES names a file that `make_tokenizers.py cases` wrote, those
/// of that file.
std::vector<Case> read_cases() {
  std::vector<Case> cases;
  const char* const given = std::getenv("SHARDRUN_TOKENIZER_CASES");
  std::istringstream file(read_file(given != nullptr ? std::filesystem::path(given) : fixtures / "cases.txt"));
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

TEST_CASE("an encoder that has seen many words encodes each as a new encoder does", "[text]") {
  for (const char* family : {"gpt2", "smollm2", "metaspace"}) {
    const BpeTokenizer tokenizer = BpeTokenizer::from_file(fixtures / (std::string(family) + ".json"));
    std::string text;
    std::vector<std::int32_t> expected;
    for (int i = 0; i < 3000; ++i) {
      // Words of 3 to 28 bytes: most of them are new, and others come again.
      const std::string word =
          " w" + std::string(static_cast<std::size_t>(i) % 26, 'e') + static_cast<char>('a' + i % 19);
      const std::string words = i % 3 == 0 ? " the" + word : word;
      text += words;
      BpeEncoder(tokenizer).encode(words, expected);
    }
    BpeEncoder encoder(tokenizer);
    for (int again = 0; again < 2; ++again) {
      std::vector<std::int32_t> tokens;
      encoder.encode(text, tokens);
      INFO(family);
      REQUIRE(tokens == expected);
    }
  }
}

TEST_CASE("an encoder goes on after a text that it refuses", "[text]") {
  const BpeTokenizer tokenizer = BpeTokenizer::from_file(fixtures / "smollm2.json");
  std::vector<std::int32_t> expected;
  BpeEncoder(tokenizer).encode("the end", expected);
  BpeEncoder encoder(tokenizer);
  for (const char* refused : {"a new\4", "so many words and then one \4 more"}) {
    std::vector<std::int32_t> tokens;
    CHECK_THROWS_WITH(encoder.encode(refused, tokens), Catch::Contains("no token for byte 0x04"));
    tokens.clear();
    encoder.encode("the end", tokens);
    CHECK(tokens == expected);
  }
}

TEST_CASE("with ignore_merges only a whole piece is looked up, however long it is", "[text]") {
  const BpeTokenizer tokenizer = BpeTokenizer::from_json(
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"pre_tokenizer":null,)"
      R"("post_processor":null,"decoder":{"type":"Fuse"},"model":{"type":"BPE","dropout":null,"unk_token":"<unk>",)"
      R"("continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,)"
      R"("ignore_merges":true,"vocab":{"<unk>":0,"a":1,"b":2,"c":3,"x":4,"bc":5,"ab":6,"abc":7},)"
      R"("merges":["b c","a b"]}})",
      "t.json");
  const auto tokens_of = [&](const std::string& text) {
    std::vector<std::int32_t> tokens;
    BpeEncoder(tokenizer).encode(text, tokens);
    return tokens;
  };
  CHECK(tokens_of("abc") == std::vector<std::int32_t>{7});
  for (const std::size_t times : {std::size_t{6}, std::size_t{7}, std::size_t{50}}) {  // pieces are cut above 24 bytes
    std::string text;
    std::vector<std::int32_t> expected;
    for (std::size_t i = 0; i < times; ++i) {
      text += "xabc";
      expected.insert(expected.end(), {4, 1, 5});
    }
    CHECK(tokens_of(text) == expected);
  }
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
