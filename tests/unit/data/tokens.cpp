#include "core/data/tokens.h"

#include <utility>
#include <vector>

#include "core/data/split.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/npy.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::data;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using shardrun::files::SteadyFile;

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

TEST_CASE("a token file is read as it is, and moves", "[data]") {
  const TemporaryFolder folder;
  TokenStream first = tokens_in(folder, {1, 258, 65535}, 65536);
  const TokenStream stream = std::move(first);

  REQUIRE(stream.size() == 3);
  CHECK(read(stream, 0, 3) == std::vector<std::int32_t>{1, 258, 65535});
  CHECK(read(stream, 2, 1) == std::vector<std::int32_t>{65535});
}

TEST_CASE("files that hold no tokens are refused", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "empty", "");
  write_file(folder / "odd.bin", "abc");
  const auto refusal = [&](const char* name) {
    return error_of([&] { (void)TokenStream::of_file(SteadyFile(folder / name), 10); });
  };
  CHECK_THAT(refusal("empty"), Contains("empty' is empty"));
  CHECK_THAT(refusal("odd.bin"), Contains("has 3 bytes, an odd number"));
}

TEST_CASE("too few tokens for a window are refused with need and found", "[data]") {
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

TEST_CASE("a token past the vocabulary that was written later is a change of the file", "[data]") {
  const TemporaryFolder folder;
  const TokenStream stream = tokens_in(folder, {1, 2, 3, 4}, 9);
  tokens_in(folder, {1, 2, 9, 4}, 9);
  CHECK_THAT(error_of([&] { (void)read(stream, 0, 4); }), Contains("train.bin' changed while this job was using it"));
}
