#include <boost/json.hpp>

#include "core/text/bpe_tokenizer.h"
#include "core/text/gguf_tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::test;
using namespace shardrun::text;
using Catch::Matchers::Contains;

namespace {

constexpr std::string_view small =
    R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":3,"content":"<s>","single_word":false,)"
    R"("lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":null,"pre_tokenizer":null,)"
    R"("post_processor":null,"decoder":{"type":"Fuse"},"model":{"type":"BPE","dropout":null,"unk_token":null,)"
    R"("continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,)"
    R"("ignore_merges":false,"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}})";

/// The file with a part of its text replaced.
std::string changed(std::string_view from, std::string_view to) {
  std::string json(small);
  const std::size_t at = json.find(from);
  REQUIRE(at != std::string::npos);
  return json.replace(at, from.size(), to);
}

std::string refusal_of(const std::string& json) {
  return error_of([&] { (void)BpeTokenizer::from_json(json, "t.json"); });
}

std::string refusal(std::string_view from, std::string_view to) { return refusal_of(changed(from, to)); }

}  // namespace

TEST_CASE("a file that is not a tokenizer says where it differs", "[text]") {
  CHECK(refusal_of(std::string(small)) == "nothing");
  const auto refused = [](std::string_view from, std::string_view to, const std::string& why) {
    INFO(from << " -> " << to);
    CHECK_THAT(refusal(from, to), Contains("2: cannot read t.json: " + why));
  };
  refused(R"("merges":["a b"]}})", R"("merges":["a b")", "not valid JSON at byte");
  refused(R"("a":0,)", R"("a":0,"a":0,)", "the key \"a\" occurs twice");
  refused(R"({"version":"1.0",)", R"({"version":"1.0","more":1,)", "it: the key \"more\" is not known");
  refused(R"("type":"BPE")", R"("type":"WordPiece")", "model.type: \"WordPiece\" is not supported; BPE is");
  refused(R"("type":"BPE")", R"("type":7)", "model.type: expected a string, found 7");
  refused(R"("vocab":{"a":0,"b":1,"ab":2})", R"("vocab":[1,2])",
          "model.vocab: expected an object, found an array of 2 elements");
  refused(R"("b":1,)", R"("b":0,)", "model.vocab.b: its id 0 is also that of \"a\"");
  refused(R"("ab":2)", R"("ab":7)", "model.vocab.ab: its id is 7, and there are 3 tokens, whose ids must be 0 to 2");
  refused(R"("ab":2)", R"("ab":-1)", "model.vocab.ab: expected a whole number from 0 on, found -1");
  refused(R"("ab":2)", R"("ab":2.0)", "model.vocab.ab: expected a whole number from 0 on, found 2");
  refused(R"(["a b"])", R"(["a b","b c"])", "model.merges.[1]: \"c\" is not in model.vocab");
  refused(R"(["a b"])", R"(["b a"])", "model.merges.[0]: \"ba\" is not in model.vocab");
  refused(R"(["a b"])", R"(["a  b"])", "model.merges.[0]: expected two tokens with a blank between them");
  refused(R"(["a b"])", R"([["a","b","c"]])", "model.merges.[0]: expected \"a b\" or [\"a\", \"b\"]");
  refused(R"("dropout":null)", R"("dropout":0.1)", "model.dropout: expected null, found 1E-1");
  refused(R"("end_of_word_suffix":null)", R"("end_of_word_suffix":"</w>")", "model.end_of_word_suffix: expected null");
  refused(R"("unk_token":null)", R"("unk_token":"<unk>")", "model.unk_token: \"<unk>\" is not in model.vocab");
  refused(R"("ignore_merges":false)", R"("ignore_merges":1)", "model.ignore_merges: expected true or false, found 1");
  refused(R"("id":3,)", R"("id":5,)", "added_tokens[0].id: \"<s>\" has the id 5; the next free one is 3");
  refused(R"("content":"<s>")", R"("content":"a")", "added_tokens[0].id: \"a\" has the id 3; in model.vocab it is 0");
  refused(R"("content":"<s>")", R"("content":"")", "added_tokens[0].content: it is empty");
  refused(R"("lstrip":false,)", "", "added_tokens[0]: there is no \"lstrip\"");
  refused(R"("truncation":null)", R"("truncation":{"max_length":8})", "truncation: expected null");
}

TEST_CASE("parts of a tokenizer that are not known are refused by name", "[text]") {
  const auto refused = [](std::string_view from, std::string_view to, const std::string& why) {
    INFO(from << " -> " << to);
    CHECK_THAT(refusal(from, to), Contains("2: cannot read t.json: " + why));
  };
  refused(R"("normalizer":null)", R"("normalizer":{"type":"NFKC"})",
          "normalizer.type: \"NFKC\" is not supported; NFC,");
  refused(R"("normalizer":null)", R"("normalizer":{"type":"Replace","pattern":{"Regex":" +"},"content":""})",
          "normalizer.pattern: expected a \"String\"");
  refused(R"("normalizer":null)",
          R"("normalizer":{"type":"Sequence","normalizers":[{"type":"Sequence","normalizers":[{"type":"NFD"}]}]})",
          "normalizer.normalizers[0].normalizers[0].type: \"NFD\" is not supported");
  refused(R"("pre_tokenizer":null)", R"("pre_tokenizer":{"type":"BertPreTokenizer"})",
          "pre_tokenizer.type: \"BertPreTokenizer\" is not supported");
  refused(R"("pre_tokenizer":null)",
          R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"\\w+"},"behavior":"Isolated","invert":false})",
          R"(pre_tokenizer.pattern.Regex: the expression \w+ is not one of those that are known)");
  refused(R"("pre_tokenizer":null)",
          R"("pre_tokenizer":{"type":"Split","pattern":{"String":" "},"behavior":"Removed","invert":false})",
          "pre_tokenizer.behavior: expected \"MergedWithPrevious\" or \"Isolated\", found \"Removed\"");
  refused(R"("pre_tokenizer":null)",
          R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]})",
          "pre_tokenizer.pretokenizers[1]: expected nothing after ByteLevel");
  refused(R"({"type":"Fuse"})", R"({"type":"CTC"})", "decoder.type: \"CTC\" is not supported");
  refused(R"({"type":"Fuse"})", R"({"type":"Strip","content":" ","start":1,"stop":0})", "decoder.type: \"Strip\"");
  refused(R"("post_processor":null)", R"("post_processor":{"type":"BertProcessing"})",
          "post_processor.type: \"BertProcessing\" is not supported");
  refused(R"("post_processor":null)",
          R"("post_processor":{"type":"TemplateProcessing","single":[],"pair":[],"special_tokens":{}})",
          "post_processor.single: expected the sequence A in it");
  refused(
      R"("post_processor":null)",
      R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},)"
      R"({"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[9],"tokens":[]}}})",
      "post_processor.special_tokens.<s>.ids[0]: expected a token below 4, found 9");
}

TEST_CASE("hostile files are refused", "[text]") {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) {
    deep += "[";
  }
  CHECK_THAT(refusal_of(deep), Contains("cannot read t.json: not valid JSON"));
  CHECK_THAT(refusal_of("[]"), Contains("cannot read t.json: it: expected an object"));
  CHECK_THAT(refusal_of("{}"), Contains("cannot read t.json: it: there is no \"model\""));
  CHECK_THAT(refusal_of(""), Contains("cannot read t.json: not valid JSON"));
  for (std::size_t size = 0; size < small.size(); size += 7) {
    CHECK(refusal_of(std::string(small.substr(0, size))) != "nothing");
  }

  const TemporaryFolder folder;
  CHECK_THAT(error_of([&] { (void)BpeTokenizer::from_file(folder.path()); }), Contains("has no tokenizer.json"));
  CHECK_THAT(error_of([&] { (void)BpeTokenizer::from_file(folder / "none.json"); }), Contains("none.json"));
  write_file(folder / "tokenizer.json", small);
  CHECK(BpeTokenizer::from_file(folder.path()).vocabulary() == 4);
}

TEST_CASE("text without tokens is refused, never dropped", "[text]") {
  BpeEncoder encoder(BpeTokenizer::from_json(small, "t.json"));
  const auto refused = [&](std::string_view text) {
    std::vector<std::int32_t> tokens;
    return error_of([&] { encoder.encode(text, tokens); });
  };
  CHECK(refused("ab<s>ba") == "nothing");
  CHECK_THAT(refused("ab<s>é"), Contains("2: the tokenizer has no token for bytes 0xC3 0xA9 at byte 5, in \"é\""));
  CHECK_THAT(refused("ab\xC3"), Contains("2: byte 2 (0xC3) is not UTF-8"));

  BpeEncoder bytes(BpeTokenizer::from_file(std::filesystem::path(SHARDRUN_FIXTURES) / "smollm2.json"));
  std::vector<std::int32_t> tokens;
  CHECK_THAT(error_of([&] { bytes.encode("all but \x04", tokens); }),
             Contains("2: the tokenizer has no token for byte 0x04 at byte 8"));
}

TEST_CASE("tokens past the vocabulary cannot be decoded", "[text]") {
  const BpeTokenizer tokenizer = BpeTokenizer::from_json(small, "t.json");
  for (const std::int32_t token : {-1, 4}) {
    CHECK_THAT(error_of([&] { (void)tokenizer.decode(std::vector<std::int32_t>{token}); }),
               Contains("the tokenizer has tokens 0 to 3"));
  }
}

TEST_CASE("pieces of a GGUF file whose splits would take too much memory are refused", "[text]") {
  const auto refusal_of_pieces = [](std::vector<std::string> pieces) {
    shardrun::files::GgufContents gguf;
    gguf.metadata["tokenizer.ggml.model"] = std::string("llama");
    gguf.metadata["tokenizer.ggml.scores"] = std::vector<double>(pieces.size());
    gguf.metadata["tokenizer.ggml.tokens"] = std::move(pieces);
    return error_of([&] { (void)gguf_tokenizer_json(gguf, "m.gguf"); });
  };
  CHECK(refusal_of_pieces({"a", std::string(4096, 'a')}) == "nothing");
  CHECK_THAT(refusal_of_pieces({"a", std::string(4097, 'a')}),
             Contains("2: cannot read the tokenizer of 'm.gguf': the token 'aaa") &&
                 Contains("has 4097 bytes, expected at most 4096"));
  std::vector<std::string> pieces;
  for (std::size_t size = 1; size <= 600; ++size) {
    pieces.emplace_back(size, 'a');
  }
  CHECK_THAT(refusal_of_pieces(pieces), Contains("its tokens are too long") && Contains("more than 67108864"));
}
