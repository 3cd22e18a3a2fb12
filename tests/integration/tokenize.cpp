// The options of `shardrun tokenize`, and jobs on the files that it writes.

#include <cstring>
#include <vector>

#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Contains;

namespace {

/// A folder with a text, a tokenizer.json that was trained on it, and a copy that puts <|endoftext|> before a text.
class TokenizeFolder : public TemporaryFolder {
 public:
  TokenizeFolder() {
    write_file(*this / "text.txt", "the cat and the hat and the bat");
    REQUIRE(run({"text.txt", "--train", "262", "--to", "tokenizer.json"}).code == 0);
    std::string json = read_file(*this / "tokenizer.json");
    const std::string none = R"("post_processor":null)";
    const std::size_t at = json.find(none);
    REQUIRE(at != std::string::npos);
    json.replace(at, none.size(),
                 R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|endoftext|>",)"
                 R"("type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"<|endoftext|>":)"
                 R"({"id":"<|endoftext|>","ids":[0],"tokens":["<|endoftext|>"]}}})");
    std::filesystem::create_directory(*this / "folder");
    write_file(*this / "folder/tokenizer.json", json);
  }

  [[nodiscard]] Ended run(std::vector<std::string> words) const {
    words.insert(words.begin(), "tokenize");
    return run_program(path(), words);
  }

  /// The tokens that `shardrun tokenize` makes with these options.
  [[nodiscard]] std::vector<std::uint16_t> tokens_of(std::vector<std::string> words) const {
    words.insert(words.end(), {"--to", "t.bin", "--replace"});
    const Ended ended = run(words);
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    const std::string bytes = read_file(*this / "t.bin");
    std::vector<std::uint16_t> tokens(bytes.size() / 2);
    std::memcpy(tokens.data(), bytes.data(), bytes.size());
    return tokens;
  }

  [[nodiscard]] std::string refusal_of(const std::vector<std::string>& words) const {
    const Ended ended = run(words);
    CHECK(ended.code == 2);
    return ended.err;
  }
};

std::vector<std::uint16_t> joined(std::initializer_list<std::vector<std::uint16_t>> parts) {
  std::vector<std::uint16_t> all;
  for (const std::vector<std::uint16_t>& part : parts) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace

TEST_CASE("tokenize: every option changes the tokens as it says", "[tokenize]") {
  const TokenizeFolder folder;
  const std::string tokenizer = "--tokenizer=tokenizer.json";
  const std::vector<std::uint16_t> text = folder.tokens_of({"text.txt", tokenizer});
  REQUIRE(text.size() > 8);
  const std::vector<std::uint16_t> end = {0};
  CHECK(folder.tokens_of({"text.txt", "text.txt", tokenizer}) == joined({text, text}));
  CHECK(folder.tokens_of({"text.txt", "text.txt", tokenizer, "--eos", "<|endoftext|>"}) ==
        joined({text, end, text, end}));
  CHECK(folder.tokens_of({"text.txt", "--tokenizer", "folder"}) == text);
  CHECK(folder.tokens_of({"text.txt", "--tokenizer", "folder", "--template"}) == joined({end, text}));

  write_file(folder / "two.jsonl", R"({"t": "the cat", "u": "a"})"
                                   "\n\n"
                                   R"({"t": "the bat", "u": "b"})");
  write_file(folder / "cat.txt", "the cat");
  write_file(folder / "bat.txt", "the bat");
  const std::vector<std::uint16_t> cat = folder.tokens_of({"cat.txt", tokenizer});
  const std::vector<std::uint16_t> bat = folder.tokens_of({"bat.txt", tokenizer});
  REQUIRE(cat != bat);
  CHECK(folder.tokens_of({"two.jsonl", tokenizer, "--field", "t", "--eos", "<|endoftext|>"}) ==
        joined({cat, end, bat, end}));
  CHECK(folder.tokens_of({"two.jsonl", tokenizer, "--field", "u"}).size() == 2);

  write_file(folder / "bad.txt", "the \xFF cat");
  write_file(folder / "mended.txt", "the \xEF\xBF\xBD cat");
  CHECK_THAT(folder.refusal_of({"bad.txt", tokenizer, "--to", "t.npy"}), Contains("byte 4 (0xFF) is not UTF-8"));
  CHECK(folder.tokens_of({"bad.txt", tokenizer, "--replace-invalid"}) == folder.tokens_of({"mended.txt", tokenizer}));

  CHECK_THAT(folder.refusal_of({"two.jsonl", tokenizer, "--field", "v", "--to", "t.npy"}),
             Contains("two.jsonl, line 1: expected an object of JSON with the text \"v\""));
  CHECK_THAT(folder.refusal_of({"text.txt", tokenizer, "--eos", "<end>", "--to", "t.npy"}),
             Contains("--eos <end>: the tokenizer has no such token"));
  CHECK_THAT(folder.refusal_of({"text.txt", tokenizer, "--to", "t.bin"}),
             Contains("t.bin' exists: choose another name, or replace it with --replace"));
  CHECK_THAT(folder.refusal_of({"text.txt", tokenizer, "--to", "t.txt"}), Contains("a name that ends in .npy or .bin"));
  CHECK_THAT(folder.refusal_of({"text.txt", tokenizer, "--pattern", "gpt2", "--to", "t.npy"}), Contains("no effect"));
  CHECK_THAT(folder.refusal_of({"text.txt", "--to", "t.npy"}), Contains("--tokenizer PATH"));
}

TEST_CASE("tokenize --train: every option changes the tokenizer as it says", "[tokenize]") {
  const TokenizeFolder folder;
  const auto trained = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "text.txt");
    words.insert(words.end(), {"--to", "made.json", "--replace"});
    const Ended ended = folder.run(words);
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    return read_json(folder / "made.json");
  };
  const boost::json::object plain = trained({"--train", "262"});
  CHECK(plain == read_json(folder / "tokenizer.json"));
  CHECK(plain.at("model").at("vocab").as_object().size() == 262);
  CHECK(trained({"--train", "260"}).at("model").at("vocab").as_object().size() == 260);
  CHECK(trained({"--train", "262", "--pattern", "gpt2"}) == plain);
  const std::string pattern =
      boost::json::serialize(trained({"--train", "262", "--pattern", "qwen2"}).at("pre_tokenizer"));
  CHECK_THAT(pattern, Contains("\\\\p{L}+|\\\\p{N}|"));
  CHECK(boost::json::serialize(plain.at("pre_tokenizer")) != pattern);
  const boost::json::object special = trained({"--train", "262", "--special", "<a>", "--special", "<b>"});
  CHECK(special.at("added_tokens").as_array().size() == 2);
  CHECK(special.at("model").at("vocab").at("<b>") == 1);
  CHECK_FALSE(special.at("model").at("vocab").as_object().contains("<|endoftext|>"));

  CHECK_THAT(folder.refusal_of({"text.txt", "--train", "300", "--pattern", "gpt9", "--to", "x.json"}),
             Contains("--pattern gpt9: expected gpt2, llama3"));
  CHECK_THAT(folder.refusal_of({"text.txt", "--train", "300", "--eos", "a", "--to", "x.json"}), Contains("no effect"));
  CHECK_THAT(folder.refusal_of({"text.txt", "--train", "300", "--to", "x.npy"}), Contains("a name that ends in .json"));
}

TEST_CASE("tokenize: jobs read both forms of its files, and say what a .npy holds", "[tokenize]") {
  const TokenizeFolder folder;
  write_file(folder / "long.txt", [] {
    std::string text;
    for (int i = 0; i < 60; ++i) {
      text += "the cat and the hat ";
    }
    return text;
  }());
  REQUIRE(folder.run({"long.txt", "--tokenizer", "folder", "--to", "t.bin"}).code == 0);
  REQUIRE(folder.run({"long.txt", "--tokenizer", "folder", "--to", "t.npy"}).code == 0);
  write_file(folder / "job.ini",
             "[job]\noutput = out\n[model]\nname = gpt\nlayers = 1\nheads = 1\nwidth = 4\ncontext = 8\nvocab = 262\n"
             "[data]\ntokens = t.bin\nbatch = 2\n[train]\nsteps = 1\n");
  const auto run = [&](const std::vector<std::string>& settings) {
    std::vector<std::string> words = {"job.ini", "--replace"};
    for (const std::string& setting : settings) {
      words.insert(words.end(), {"--set", setting});
    }
    return run_program(folder.path(), words);
  };
  const auto loss = [&](const std::vector<std::string>& settings) {
    const Ended ended = run(settings);
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    return read_json_lines(folder / "out/metrics.jsonl").at(0).at("loss").to_number<double>();
  };
  const double expected = loss({});
  CHECK(loss({"data.tokens=t.npy"}) == expected);
  CHECK(loss({"data.tokens=t.npy", "data.token_type=uint16"}) == expected);
  const Ended other = run({"data.tokens=t.npy", "data.token_type=uint32"});
  CHECK(other.code == 2);
  CHECK_THAT(other.err, Contains("t.npy' holds uint16, and [data] token_type = uint32: leave token_type out"));
}

TEST_CASE("a text that a tokenizer would read as a whole is refused if it is larger than the memory", "[tokenize]") {
  const TokenizeFolder folder;
  write_file(folder / "huge", "");
  std::filesystem::resize_file(folder / "huge", std::uintmax_t{1} << 43U);
  write_file(folder / "job.ini",
             "[model]\nname = gpt\nlayers = 1\nheads = 1\nwidth = 4\ncontext = 8\n[data]\ntext = huge\n"
             "tokenizer = tokenizer.json\nbatch = 2\n[train]\nsteps = 1\n");
  const Ended ended = run_program(folder.path(), {"job.ini"});
  CHECK(ended.code == 2);
  CHECK_THAT(ended.err, Contains("huge' has 8796093022208 bytes: tokenising it takes at least 8796093022208 bytes"));
}
