#include "core/data/tokens.h"

#include <utility>

#include "core/data/split.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::data;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;

TEST_CASE("the split is nanoGPT's", "[data]") {
  CHECK(training_count(1115394, 0.9, "tinyshakespeare") == 1003854);
  CHECK(1115394 - training_count(1115394, 0.9, "tinyshakespeare") == 111540);
  CHECK(training_count(10, 1.0, "text") == 10);
  CHECK(training_count(7, 0.5, "text") == 3);

  CHECK_THAT(error_of([] { (void)training_count(10, 0.0, "text"); }), Contains("[data] split = 0"));
  CHECK_THAT(error_of([] { (void)training_count(10, 1.5, "text"); }), Contains("expected a fraction in (0, 1]"));
  CHECK_THAT(error_of([] { (void)training_count(10, 0.0 / 0.0, "text"); }), Contains("expected a fraction in (0, 1]"));
  CHECK_THAT(error_of([] { (void)training_count(10, 0.05, "text"); }), Contains("leaves none to train on"));
}

TEST_CASE("a text becomes tokens and the tokenizer that made them", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "corpus.txt", "abcabcabca");

  const TokenizedText text = read_text(folder / "corpus.txt", TokenizerKind::character);
  const TokenSplit split = split_tokens(text.stream, 0.75);

  CHECK(text.tokenizer.vocabulary() == 3);
  CHECK(text.stream.size() == 10);
  CHECK(std::vector<std::uint16_t>(split.training.begin(), split.training.end()) ==
        std::vector<std::uint16_t>{0, 1, 2, 0, 1, 2, 0});
  CHECK(std::vector<std::uint16_t>(split.validation.begin(), split.validation.end()) ==
        std::vector<std::uint16_t>{1, 2, 0});
}

TEST_CASE("a text is read with a tokenizer that exists", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "corpus.txt", "cab");
  write_file(folder / "other.txt", "cabx");
  const Tokenizer tokenizer = Tokenizer::of_characters("abc", "text");

  CHECK(read_text(folder / "corpus.txt", tokenizer).tokens()[0] == 2);
  CHECK_THAT(error_of([&] { (void)read_text(folder / "other.txt", tokenizer); }),
             Contains("other.txt': cannot encode 'x' U+0078 at byte 3"));
}

TEST_CASE("a token file is mapped as it is, and moves", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "train.bin", std::string_view("\x01\x00\x02\x01\xFF\xFF", 6));

  TokenStream first = TokenStream::map(folder / "train.bin");
  const TokenStream stream = std::move(first);

  REQUIRE(stream.size() == 3);
  CHECK(stream.tokens()[0] == 1);
  CHECK(stream.tokens()[1] == 258);
  CHECK(stream.tokens()[2] == 65535);
}

TEST_CASE("files that hold no tokens are refused", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "empty", "");
  write_file(folder / "odd.bin", "abc");
  write_file(folder / "latin.txt", "caf\xE9");

  CHECK_THAT(error_of([&] { (void)TokenStream::map(folder / "empty"); }), Contains("empty' is empty"));
  CHECK_THAT(error_of([&] { (void)read_text(folder / "empty", TokenizerKind::character); }),
             Contains("empty' is empty"));
  CHECK_THAT(error_of([&] { (void)read_text(folder / "empty", TokenizerKind::byte); }), Contains("empty' is empty"));
  CHECK_THAT(error_of([&] { (void)TokenStream::map(folder / "odd.bin"); }), Contains("has 3 bytes, an odd number"));
  CHECK_THAT(error_of([&] { (void)read_text(folder / "latin.txt", TokenizerKind::character); }),
             Contains("latin.txt' is not valid UTF-8: byte 3 (0xE9)") && EndsWith("use [data] tokenizer = byte"));
  CHECK(read_text(folder / "latin.txt", TokenizerKind::byte).stream.size() == 4);
}

TEST_CASE("too few tokens for a window are refused with need and found", "[data]") {
  const TokenStream stream({1, 2, 3, 4}, "corpus.txt");

  require_context(stream.tokens(), 3, "the training part of 'corpus.txt'");

  CHECK_THAT(error_of([&] { require_context(stream.tokens(), 4, "the training part of 'corpus.txt'"); }),
             Contains("the training part of 'corpus.txt' has 4 tokens, a context of 4 needs at least 5"));
}

TEST_CASE("a token past the vocabulary is named with its place", "[data]") {
  const TokenStream stream({1, 2, 9, 8}, "train.bin");

  require_vocabulary(stream, 10);

  CHECK_THAT(error_of([&] { require_vocabulary(stream, 9); }),
             Contains("'train.bin': token 9 at position 2 is not below the model's vocabulary of 9"));
  CHECK_THAT(error_of([] { TokenStream({}, "none"); }), Contains("'none' is empty"));
}
