#include "core/text/bpe_trainer.h"

#include <boost/json.hpp>

#include "core/text/bpe_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::test;
using namespace shardrun::text;
using Catch::Matchers::Contains;

namespace {

const std::filesystem::path trained_in = SHARDRUN_FIXTURES;

boost::json::value model_of(const std::string& json) { return boost::json::parse(json).at("model"); }

}  // namespace

TEST_CASE("training makes the tokens and merges that Python's tokenizers makes", "[text]") {
  BpeTrainer trainer("llama3", {"<|endoftext|>", "ROMEO"});
  trainer.add(read_file(trained_in / "text.txt"));
  const std::string json = trainer.train(600);
  const boost::json::value made = model_of(json);
  const boost::json::value expected = model_of(read_file(trained_in / "trained.json"));
  CHECK(made.at("vocab") == expected.at("vocab"));
  CHECK(made.at("merges") == expected.at("merges"));
  CHECK(made.at("merges").as_array().size() == 600 - 258);

  const BpeTokenizer tokenizer = BpeTokenizer::from_json(json, "trained");
  std::vector<std::int32_t> tokens;
  BpeEncoder(tokenizer).encode("ROMEO:\n the<|endoftext|>", tokens);
  CHECK(tokens.front() == 1);
  CHECK(tokens.back() == 0);
  CHECK(tokenizer.decode(tokens) == ":\n the");
}

TEST_CASE("texts may come in parts, in any order", "[text]") {
  BpeTrainer one("gpt2", {});
  one.add("a banana and an ananas ");
  one.add(" bananas");
  BpeTrainer other("gpt2", {});
  other.add(" bananas");
  other.add("a banana and an ananas ");
  CHECK(one.train(270) == other.train(270));
}

TEST_CASE("training ends when no pair is left", "[text]") {
  BpeTrainer trainer("gpt2", {});
  trainer.add("aaaa");
  CHECK(BpeTokenizer::from_json(trainer.train(1000), "small").vocabulary() == 258);  // 256 bytes, aa and aaaa
}

TEST_CASE("what cannot be trained", "[text]") {
  BpeTrainer trainer("gpt2", {"<|endoftext|>"});
  CHECK_THAT(error_of([&] { (void)trainer.train(256); }),
             Contains("a vocabulary of 256 is too small: the 256 bytes and 1 special tokens need 257"));
  CHECK_THAT(error_of([&] { trainer.add("ab\xFF"); }), Contains("byte 2 (0xFF) is not UTF-8"));
  CHECK_THAT(error_of([&] { (void)BpeTrainer("gpt2", {"a"}).train(300); }), Contains("'a' cannot be a special token"));
}
