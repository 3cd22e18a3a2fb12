#include "core/data/text.h"

#include <fcntl.h>
#include <unistd.h>

#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::data;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using shardrun::files::SteadyFile;

namespace {

TokenizedText tokenised(const std::filesystem::path& path, TokenizerKind kind) {
  return read_tokenised(TextFile(SteadyFile(path), kind).tokenise());
}

std::vector<std::int32_t> all_of(const TokenStream& stream) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(stream.size()));
  stream.read(0, tokens);
  return tokens;
}

}  // namespace

TEST_CASE("a text becomes tokens and the tokenizer that made them", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "corpus.txt", "abcabcabca");
  const TextFile file(SteadyFile(folder / "corpus.txt"), TokenizerKind::character);

  const TokenizedText text = read_tokenised(file.tokenise());
  const TokenSplit split = split_tokens(text.stream.size(), 0.75, "corpus.txt");

  CHECK(text.tokenizer == Tokenizer::of_characters("abc", "text"));
  CHECK(all_of(text.stream) == std::vector<std::int32_t>{0, 1, 2, 0, 1, 2, 0, 1, 2, 0});
  CHECK(split.training.size == 7);
  CHECK(split.validation.first == 7);
  CHECK(split.validation.size == 3);
  CHECK(text.fingerprint == file.fingerprint());
  CHECK(file.fingerprint().starts_with("10 bytes, hash "));
  CHECK(file.tokenised_bytes() == text.stream.file().size());
}

TEST_CASE("a text is read with a tokenizer that exists", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "corpus.txt", "cab");
  write_file(folder / "other.txt", "ca\nbx");
  const Tokenizer tokenizer = Tokenizer::of_characters("abc\n", "text");

  const TextFile file(SteadyFile(folder / "corpus.txt"), tokenizer);
  CHECK(all_of(read_tokenised(file.tokenise()).stream) == std::vector<std::int32_t>{3, 1, 2});
  CHECK_THAT(error_of([&] { (void)TextFile(SteadyFile(folder / "other.txt"), tokenizer); }),
             Contains("other.txt': cannot encode 'x' U+0078 at byte 4 (line 2)"));
}

TEST_CASE("characters that lie across the pieces in which a text is read are whole", "[data]") {
  const TemporaryFolder folder;
  std::string text;
  std::vector<std::int32_t> expected;
  for (std::size_t i = 0; text.size() < (std::size_t{2} << 20U) + 5; ++i) {
    constexpr const char* characters[] = {"a", "é", "€", "😀"};
    text += characters[(i + i / 7) % 4];
    expected.push_back(static_cast<std::int32_t>((i + i / 7) % 4));
  }
  write_file(folder / "corpus.txt", text);

  const TokenizedText read = tokenised(folder / "corpus.txt", TokenizerKind::character);

  CHECK(read.tokenizer == Tokenizer::of_characters(text, "text"));
  CHECK(all_of(read.stream) == expected);
  write_file(folder / "cut.txt", text.substr(0, text.rfind("😀") + 2));
  CHECK_THAT(error_of([&] { (void)tokenised(folder / "cut.txt", TokenizerKind::character); }),
             Contains("is not valid UTF-8: byte " + std::to_string(text.rfind("😀")) + " (0xF0)"));
}

TEST_CASE("a vocabulary of more than 256 takes two bytes a token", "[data]") {
  const TemporaryFolder folder;
  std::string text;
  for (char32_t character = 0x100; character < 0x201; ++character) {
    text += static_cast<char>(0xC0U | (character >> 6U));
    text += static_cast<char>(0x80U | (character & 0x3FU));
  }
  write_file(folder / "corpus.txt", text);

  const TokenizedText read = tokenised(folder / "corpus.txt", TokenizerKind::character);

  REQUIRE(read.stream.size() == 257);
  CHECK(all_of(read.stream)[256] == 256);
}

TEST_CASE("files that hold no text are refused", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "empty", "");
  write_file(folder / "latin.txt", "caf\xE9");
  const auto refusal = [&](const char* name, TokenizerKind kind) {
    return error_of([&] { (void)TextFile(SteadyFile(folder / name), kind); });
  };
  CHECK_THAT(refusal("empty", TokenizerKind::character), Contains("empty' is empty"));
  CHECK_THAT(refusal("empty", TokenizerKind::byte), Contains("empty' is empty"));
  CHECK_THAT(refusal("latin.txt", TokenizerKind::character),
             Contains("latin.txt' is not valid UTF-8: byte 3 (0xE9)") && EndsWith("use [data] tokenizer = byte"));
  CHECK(tokenised(folder / "latin.txt", TokenizerKind::byte).stream.size() == 4);
}

TEST_CASE("tokens are of the text as it was opened, or there are none", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "corpus.txt", "abcabc");
  const TextFile text(SteadyFile(folder / "corpus.txt"), TokenizerKind::character);

  write_file(folder / "corpus.txt", "abcabcXYZ");  // appended to
  CHECK(all_of(read_tokenised(text.tokenise()).stream) == std::vector<std::int32_t>{0, 1, 2, 0, 1, 2});
  write_file(folder / "corpus.txt", "abcabb");
  CHECK_THAT(error_of([&] { (void)text.tokenise(); }), Contains("corpus.txt' changed while this job was using it"));
  write_file(folder / "corpus.txt", "abcabX");
  CHECK_THAT(error_of([&] { (void)text.tokenise(); }), Contains("corpus.txt' changed while this job was using it"));
  write_file(folder / "corpus.txt", "abc");
  CHECK_THAT(error_of([&] { (void)text.tokenise(); }), Contains("it had 6 bytes and has 3 now"));
}

TEST_CASE("nobody can change tokens that were made", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "corpus.txt", "abcabc");
  const SteadyFile tokens = TextFile(SteadyFile(folder / "corpus.txt"), TokenizerKind::byte).tokenise();
  const int descriptor = tokens.descriptor().get();
  CHECK(pwrite(descriptor, "x", 1, 4096) == -1);
  CHECK(ftruncate(descriptor, 0) == -1);
  CHECK(fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK) == -1);
}

TEST_CASE("what is no memory of tokens is not taken for it", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "file", std::string(8192, 't'));
  CHECK_THAT(error_of([&] { (void)read_tokenised(SteadyFile(folder / "file")); }), Contains("is something else"));
}
