#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/utf8.h"
#include "core/data/dataset.h"
#include "core/data/split.h"
#include "core/data/text.h"
#include "core/data/tokenizer.h"
#include "core/data/tokens.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/npy.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun;
using namespace shardrun::data;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using shardrun::files::SteadyFile;

namespace {

Tokenizer tokenizer_of(std::string_view text, std::string source = "text") {
  CharacterSet characters(std::move(source));
  characters.add(text, 0);
  return characters.tokenizer();
}

}  // namespace

TEST_CASE("characters are numbered by rising code point", "[data]") {
  const Tokenizer tokenizer = tokenizer_of("hello wörld\n");

  CHECK(tokenizer.vocabulary() == 10);  // \n, space, d e h l o r w, ö
  CHECK(tokenizer.encode("\n höd") == std::vector<std::int32_t>{0, 1, 4, 9, 2});
  CHECK(tokenizer.decode(std::vector<std::int32_t>{0, 1, 4, 9, 2}) == "\n höd");
}

TEST_CASE("bytes stand for themselves", "[data]") {
  const Tokenizer tokenizer = Tokenizer::of_bytes();
  std::string text(256, '\0');
  std::iota(text.begin(), text.end(), '\0');

  const std::vector<std::int32_t> tokens = tokenizer.encode(text);

  CHECK(tokenizer.vocabulary() == 256);
  CHECK(tokens[0] == 0);
  CHECK(tokens[255] == 255);
  CHECK(tokenizer.decode(tokens) == text);
}

TEST_CASE("a tokenizer survives its JSON", "[data]") {
  const Tokenizer characters = tokenizer_of(std::string_view("a\"\\\n\0é€😀/\x7F", 16));

  CHECK(Tokenizer::from_json(characters.to_json()) == characters);
  CHECK(Tokenizer::from_json(Tokenizer::of_bytes().to_json()) == Tokenizer::of_bytes());
  CHECK(Tokenizer::of_bytes().to_json() == R"({"kind":"byte"})");
  CHECK(tokenizer_of("ba").to_json() == R"({"kind":"char","characters":"ab"})");
}

TEST_CASE("JSON that is not a tokenizer is refused", "[data]") {
  CHECK_THAT(error_of([] { (void)Tokenizer::from_json("["); }), Contains("no JSON object"));
  CHECK_THAT(error_of([] { (void)Tokenizer::from_json("{}"); }), Contains("no \"kind\""));
  CHECK_THAT(error_of([] { (void)Tokenizer::from_json(R"({"kind":"bpe"})"); }), Contains("kind \"bpe\""));
  CHECK_THAT(error_of([] { (void)Tokenizer::from_json(R"({"kind":"char"})"); }), Contains("no \"characters\""));
  CHECK_THAT(error_of([] { (void)Tokenizer::from_json(R"({"kind":"char","characters":"ba"})"); }),
             Contains("do not rise"));
  CHECK_THAT(error_of([] { (void)Tokenizer::from_json(R"({"kind":"char","characters":"aa"})"); }),
             Contains("do not rise"));
}

TEST_CASE("bytes wait for the rest of their character", "[data]") {
  const Tokenizer tokenizer = Tokenizer::of_bytes();
  Decoder decoder(tokenizer);
  std::string text;
  decoder.decode(0xC3, text);
  CHECK(text.empty());
  decoder.decode(0xA9, text);
  CHECK(text == "é");
  decoder.decode(0xC3, text);
  CHECK(text == "é");
  decoder.finish(text);
  CHECK(text == "é\xC3");
}

TEST_CASE("a character without a token is named with its place", "[data]") {
  const Tokenizer tokenizer = tokenizer_of("aé");

  CHECK_THAT(error_of([&] { (void)tokenizer.encode("éx"); }),
             Contains("cannot encode 'x' U+0078 at byte 2: it is none of the 2 characters"));
  CHECK_THAT(error_of([&] { (void)tokenizer.encode("a\n"); }), Contains("cannot encode U+000A at byte 1"));
  CHECK_THAT(error_of([&] { (void)tokenizer.decode(std::vector<std::int32_t>{2}); }),
             Contains("cannot decode token 2: the tokenizer has tokens 0 to 1"));
  std::string text;
  CHECK_THAT(error_of([&] { Decoder(tokenizer).decode(-1, text); }), Contains("cannot decode token -1"));
}

TEST_CASE("text that cannot be split into characters is refused", "[data]") {
  CHECK(error_of([] { (void)tokenizer_of("ab\xFFz", "'corpus.txt'"); }) ==
        "2: 'corpus.txt' is not valid UTF-8: byte 2 (0xFF) starts no character; use [data] tokenizer = byte");
  CHECK_THAT(error_of([] { (void)tokenizer_of("", "'corpus.txt'"); }), Contains("'corpus.txt' is empty"));
}

TEST_CASE("a vocabulary of 65,536 fits 16 bits, one more does not", "[data]") {
  std::string text;
  for (char32_t character = 0x10000; character < 0x20000; ++character) {
    append_utf8(text, character);
  }

  const Tokenizer tokenizer = tokenizer_of(text);

  CHECK(tokenizer.vocabulary() == 65536);
  CHECK(tokenizer.encode(text).back() == 65535);
  CHECK_THAT(error_of([&] { (void)tokenizer_of(text + "a"); }),
             Contains("65537 distinct characters, tokens are 16 bits and number at most 65536"));
}

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

  CHECK(text.tokenizer == tokenizer_of("abc"));
  CHECK(all_of(text.stream) == std::vector<std::int32_t>{0, 1, 2, 0, 1, 2, 0, 1, 2, 0});
  CHECK(split.training.size == 7);
  CHECK(split.validation.first == 7);
  CHECK(split.validation.size == 3);
  CHECK(text.fingerprint == file.fingerprint());
  CHECK(file.fingerprint().starts_with("10 bytes, hash "));
  CHECK(file.tokenised_bytes() == text.stream.file().size());
}

TEST_CASE("a text can be read with an existing tokenizer", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "corpus.txt", "cab");
  write_file(folder / "other.txt", "ca\nbx");
  const Tokenizer tokenizer = tokenizer_of("abc\n");

  const TextFile file(SteadyFile(folder / "corpus.txt"), tokenizer);
  CHECK(all_of(read_tokenised(file.tokenise()).stream) == std::vector<std::int32_t>{3, 1, 2});
  CHECK_THAT(error_of([&] { (void)TextFile(SteadyFile(folder / "other.txt"), tokenizer); }),
             Contains("other.txt': cannot encode 'x' U+0078 at byte 4 (line 2)"));
}

TEST_CASE("characters across the boundaries of read pieces are whole", "[data]") {
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

  CHECK(read.tokenizer == tokenizer_of(text));
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

TEST_CASE("tokens are made of the text as it was opened, or refused", "[data]") {
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

TEST_CASE("tokens in memory cannot be changed", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "corpus.txt", "abcabc");
  const SteadyFile tokens = TextFile(SteadyFile(folder / "corpus.txt"), TokenizerKind::byte).tokenise();
  const int descriptor = tokens.descriptor().get();
  CHECK(pwrite(descriptor, "x", 1, 4096) == -1);
  CHECK(ftruncate(descriptor, 0) == -1);
  CHECK(fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK) == -1);
}

TEST_CASE("a file that is not a memory of tokens is refused", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "file", std::string(8192, 't'));
  CHECK_THAT(error_of([&] { (void)read_tokenised(SteadyFile(folder / "file")); }), Contains("is something else"));
}

TEST_CASE("the split uses the decimal fraction as written", "[data]") {
  CHECK(training_count(100, 0.29, "text") == 29);  // 0.29 * 100 is 28.999999999999996 in float64
  CHECK(training_count(1000, 0.579, "text") == 579);
  CHECK(training_count(99, 0.29, "text") == 28);
  CHECK(training_count(1'000'000, 1e-5, "text") == 10);
  CHECK(training_count(INT64_MAX, 1.0, "text") == INT64_MAX);
  CHECK(training_count(INT64_MAX, 0.5, "text") == INT64_MAX / 2);
  CHECK(training_count(1'000'000'000'000'000'000, 0.1234567890123456, "text") == 123'456'789'012'345'600);
  CHECK_THAT(error_of([] { (void)training_count(INT64_MAX, 5e-324, "text"); }), Contains("leaves none to train on"));
  for (std::int64_t percent = 1; percent <= 100; ++percent) {
    CHECK(training_count(100, static_cast<double>(percent) / 100, "text") == percent);
  }

  CHECK(training_count(1115394, 0.9, "tinyshakespeare") == 1003854);
  CHECK(1115394 - training_count(1115394, 0.9, "tinyshakespeare") == 111540);
  CHECK(training_count(10, 1.0, "text") == 10);
  CHECK(training_count(7, 0.5, "text") == 3);

  CHECK_THAT(error_of([] { (void)training_count(10, 0.0, "text"); }), Contains("[data] split = 0"));
  CHECK_THAT(error_of([] { (void)training_count(10, 1.5, "text"); }), Contains("expected a fraction in (0, 1]"));
  CHECK_THAT(error_of([] { (void)training_count(10, 0.0 / 0.0, "text"); }), Contains("expected a fraction in (0, 1]"));
  CHECK_THAT(error_of([] { (void)training_count(10, 0.05, "text"); }), Contains("leaves none to train on"));
}

namespace {

TokenStream tokens_in(const TemporaryFolder& folder, std::initializer_list<std::uint16_t> tokens,
                      std::int64_t vocabulary) {
  write_file(folder / "train.bin", bytes_of(tokens));
  return TokenStream::of_file(SteadyFile(folder / "train.bin"), vocabulary);
}

std::vector<std::int32_t> read(const TokenStream& stream, std::int64_t first, std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  stream.read(first, tokens);
  return tokens;
}

}  // namespace

TEST_CASE("a token file is read unchanged, and its stream can be moved", "[data]") {
  const TemporaryFolder folder;
  TokenStream first = tokens_in(folder, {1, 258, 65535}, 65536);
  const TokenStream stream = std::move(first);

  REQUIRE(stream.size() == 3);
  CHECK(read(stream, 0, 3) == std::vector<std::int32_t>{1, 258, 65535});
  CHECK(read(stream, 2, 1) == std::vector<std::int32_t>{65535});
}

TEST_CASE("tokens of 32 bits are read whole and compared with the vocabulary", "[data]") {
  const TemporaryFolder folder;
  const std::vector<std::uint32_t> tokens = {1, 65536, 128'255, 4'000'000'000};
  write_file(folder / "train.bin", {reinterpret_cast<const char*>(tokens.data()), tokens.size() * 4});
  const TokenStream stream = TokenStream::of_file(SteadyFile(folder / "train.bin"), 128'256, 4);

  REQUIRE(stream.size() == 4);
  CHECK(read(stream, 0, 3) == std::vector<std::int32_t>{1, 65536, 128'255});
  CHECK_THAT(error_of([&] { (void)read(stream, 0, 4); }), Contains("token 4000000000 at position 3 is not below"));
}

TEST_CASE("files that hold no tokens are refused", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "empty", "");
  write_file(folder / "odd.bin", "abc");
  write_file(folder / "six.bin", "abcdef");
  const auto refusal = [&](const char* name) {
    return error_of([&] { (void)TokenStream::of_file(SteadyFile(folder / name), 10); });
  };
  CHECK_THAT(refusal("empty"), Contains("empty' is empty"));
  CHECK_THAT(refusal("odd.bin"), Contains("has 3 bytes, not a multiple of 2"));
  CHECK_THAT(error_of([&] { (void)TokenStream::of_file(SteadyFile(folder / "six.bin"), 10, 4); }),
             Contains("has 6 bytes, not a multiple of 4"));
}

TEST_CASE("a .npy file of integers is read as tokens, whatever their type", "[data]") {
  const TemporaryFolder folder;
  const auto stream_of = [&](const std::string& bytes) {
    write_file(folder / "train.npy", bytes);
    return TokenStream::of_file(SteadyFile(folder / "train.npy"), 40'000);
  };
  const std::vector<std::int32_t> expected = {1, 0, 127, 3};
  for (const auto& [file, type] : std::initializer_list<std::pair<std::string, std::string>>{
           {npy_file<std::int8_t>("|i1", "(4,)", {1, 0, 127, 3}), "int8"},
           {npy_file<std::uint8_t>("|u1", "(4,)", {1, 0, 127, 3}), "uint8"},
           {npy_file<std::int16_t>("<i2", "(4,)", {1, 0, 127, 3}), "int16"},
           {npy_file<std::uint16_t>("<u2", "(4,)", {1, 0, 127, 3}), "uint16"},
           {npy_file<std::int32_t>("<i4", "(4,)", {1, 0, 127, 3}), "int32"},
           {npy_file<std::uint32_t>("<u4", "(4,)", {1, 0, 127, 3}), "uint32"},
           {npy_file<std::int64_t>("<i8", "(4,)", {1, 0, 127, 3}), "int64"},
           {npy_file<std::uint64_t>("<u8", "(4,)", {1, 0, 127, 3}), "uint64"},
       }) {
    INFO(type);
    const TokenStream stream = stream_of(file);
    CHECK(stream.type() == type);
    CHECK(stream.is_typed());
    CHECK(read(stream, 0, 4) == expected);
    CHECK(read(stream, 2, 2) == std::vector<std::int32_t>{127, 3});
  }
  const auto refusal = [&](const std::string& bytes, std::size_t tokens) {
    return error_of([&] { (void)read(stream_of(bytes), 0, tokens); });
  };
  // -1 has the bits of 65,535, which other vocabularies have.
  CHECK_THAT(refusal(npy_file<std::int16_t>("<i2", "(2,)", {5, -1}), 2),
             Contains("token -1 at position 1 is negative"));
  CHECK_THAT(
      refusal(npy_file<std::int64_t>("<i8", "(2,)", {5, std::int64_t{1} << 32}), 2),
      Contains("token 4294967296 at position 1 is not below the model's vocabulary of 40000; set [model] vocab"));
  CHECK_THAT(refusal(npy_file<float>("<f4", "(1,)", {5}), 1),
             Contains("holds float32 [1]: expected integers [tokens]"));
  CHECK_THAT(refusal(npy_file<std::int32_t>("<i4", "(1, 2)", {5, 6}), 1),
             Contains("holds int32 [1, 2]: expected integers [tokens]"));
  CHECK_THAT(refusal(npy_file<std::int32_t>("<i4", "(0,)", {}), 0), Contains("holds int32 [0]: it has no tokens"));
  CHECK_THAT(refusal(npy_file<std::uint8_t>("|b1", "(2,)", {1, 0}), 2),
             Contains("holds bool [2]: expected integers [tokens]"));
}

TEST_CASE("only a name that is not of tokens is asked about", "[data]") {
  for (const char* name : {"ids.npy", "train.bin", "train"}) {
    CHECK(name_notices({.tokens = name}).empty());
  }
  CHECK(name_notices({.tokens = "ids.npz"}).size() == 1);
  CHECK(name_notices({.text = "ids.npy"}).size() == 1);
}

TEST_CASE("a file of another format is not read as tokens", "[data]") {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::string& bytes) {
    write_file(folder / "train.bin", bytes);
    return error_of([&] { (void)TokenStream::of_file(SteadyFile(folder / "train.bin"), 65536); });
  };
  const std::string header = R"({"tokens":{"dtype":"U16"}})";
  CHECK_THAT(refusal("PK\x03\x04 data.pkl"),
             EndsWith("train.bin' is a zip archive: expected a .npy file, or a file of nothing but tokens, as numpy's "
                      "array.astype('uint16').tofile('train.bin') writes"));
  CHECK_THAT(refusal("\x1f\x8b\x08 packed"), Contains("train.bin' is a gzip file: expected"));
  CHECK_THAT(refusal(bytes_of<std::uint64_t>({header.size()}) + header),
             Contains("train.bin' is a safetensors file: expected"));
  // These tokens begin as a safetensors file does, without being one.
  CHECK(refusal(bytes_of<std::uint16_t>({26, 0, 0, 0, 0x227B, 1, 2, 3})) == "nothing");
}

namespace {

/// Files of numbers of one type, and the errors if they are read with another width.
class Widths {
 public:
  template <typename Number>
  std::string refusal(const std::vector<Number>& numbers, std::size_t read_bytes, std::int64_t vocabulary) const {
    const std::string bytes(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number));
    write_file(folder_ / "train.bin", bytes);
    const TokenStream stream = TokenStream::of_file(SteadyFile(folder_ / "train.bin"), vocabulary, read_bytes);
    return error_of([&] { require_plausible_width(stream); });
  }

 private:
  TemporaryFolder folder_;
};

/// `count` tokens: 0, step, 2 * step, …, each modulo `vocabulary`.
template <typename Number>
std::vector<Number> stepping(std::size_t count, std::size_t step, std::size_t vocabulary) {
  std::vector<Number> tokens(count);
  for (std::size_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<Number>(i * step % vocabulary);
  }
  return tokens;
}

}  // namespace

TEST_CASE("tokens read with too small a width are recognised by their zeros", "[data]") {
  const Widths widths;
  CHECK_THAT(widths.refusal(stepping<std::uint32_t>(1000, 7, 50), 2, 50),
             EndsWith("train.bin' looks as if its tokens had 4 bytes each: of its first 512 as uint16, every second is "
                      "0; set [data] token_type = uint32; if they really have 2 bytes each, set token_type = uint16"));
  CHECK_THAT(widths.refusal(stepping<std::uint64_t>(16, 7, 50), 2, 50),
             Contains("had 8 bytes each: of its first 64 as uint16, every second is 0; tokens of 8 bytes are not read: "
                      "write them as uint32, and set [data] token_type = uint32; if they really have 2 bytes each"));
  CHECK_THAT(widths.refusal(stepping<std::uint64_t>(1000, 7, 50), 4, 50),
             EndsWith("had 8 bytes each: of its first 512 as uint32, every second is 0; tokens of 8 bytes are not "
                      "read: write them as uint32"));
  // Above 65,535 the upper half of a token is not always 0.
  CHECK_THAT(widths.refusal(stepping<std::uint32_t>(1000, 77'777, 128'256), 2, 128'256),
             Contains("had 4 bytes each: of its first 512 as uint16, every second is at most 1; set"));
}

TEST_CASE("tokens read with their own width are accepted, with any pattern of zeros", "[data]") {
  const Widths widths;
  CHECK(widths.refusal(stepping<std::uint16_t>(1000, 7, 50), 2, 50) == "nothing");
  CHECK(widths.refusal(stepping<std::uint32_t>(1000, 7, 50), 4, 50) == "nothing");
  CHECK(widths.refusal(stepping<std::uint32_t>(1000, 77'777, 128'256), 4, 128'256) == "nothing");
  CHECK(widths.refusal(std::vector<std::uint16_t>(1000, 0), 2, 50) == "nothing");
  std::vector<std::uint16_t> padded(1000, 0);  // a few tokens after many of padding
  padded[510] = 9;
  CHECK(widths.refusal(padded, 2, 50) == "nothing");
  std::vector<std::uint16_t> one_other = stepping<std::uint16_t>(512, 1, 2);  // 0 1 0 1 …
  CHECK(widths.refusal(one_other, 2, 50) == "nothing");
  std::rotate(one_other.begin(), one_other.begin() + 1, one_other.end());  // 1 0 1 0 …
  CHECK(widths.refusal(one_other, 2, 50) != "nothing");
  one_other[301] = 1;
  CHECK(widths.refusal(one_other, 2, 50) == "nothing");
  CHECK(widths.refusal(stepping<std::uint32_t>(31, 7, 50), 2, 50) == "nothing");  // 62 tokens are too few to tell
}

TEST_CASE("a bad token that could be two narrower ones suggests their type", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "train.bin", bytes_of<std::uint16_t>({5, 38, 7, 1, 60, 0, 1, 60}));
  const auto refusal = [&](std::int64_t first) {
    const TokenStream stream = TokenStream::of_file(SteadyFile(folder / "train.bin"), 50, 4);
    return error_of([&] { (void)read(stream, first, 1); });
  };
  CHECK_THAT(refusal(0),
             EndsWith("token 2490373 at position 0 is not below the model's vocabulary of 50; if the tokens "
                      "have 2 bytes each, set [data] token_type = uint16, else set [model] vocab to the "
                      "vocabulary that the tokens were made with"));
  CHECK_THAT(refusal(2),
             Contains("token 60 at position 2 is not below the model's vocabulary of 50; set [model] vocab"));
  CHECK_THAT(refusal(3), Contains("at position 3 is not below the model's vocabulary of 50; set [model] vocab"));
}

TEST_CASE("too few tokens for a window are refused with the number needed and found", "[data]") {
  require_context(4, 3, "the training part of 'corpus.txt'");

  CHECK_THAT(error_of([&] { require_context(4, 4, "the training part of 'corpus.txt'"); }),
             Contains("the training part of 'corpus.txt' has 4 tokens, a context of 4 needs at least 5"));
}

TEST_CASE("a token past the vocabulary is named with its place, in whichever part it is read", "[data]") {
  const TemporaryFolder folder;
  require_tokens(tokens_in(folder, {1, 2, 9, 8}, 10));

  const TokenStream stream = tokens_in(folder, {1, 2, 9, 8}, 9);
  const char* const expected = "train.bin': token 9 at position 2 is not below the model's vocabulary of 9";
  CHECK_THAT(error_of([&] { require_tokens(stream); }), Contains(expected));
  CHECK_THAT(error_of([&] { (void)read(stream, 1, 2); }), Contains(expected));
  CHECK(read(stream, 0, 2) == std::vector<std::int32_t>{1, 2});
  CHECK(read(stream, 3, 1) == std::vector<std::int32_t>{8});
}

TEST_CASE("a token past the vocabulary that was written later is reported as a change of the file", "[data]") {
  const TemporaryFolder folder;
  const TokenStream stream = tokens_in(folder, {1, 2, 3, 4}, 9);
  tokens_in(folder, {1, 2, 9, 4}, 9);
  CHECK_THAT(error_of([&] { (void)read(stream, 0, 4); }), Contains("train.bin' changed while this job was using it"));
}
