#include "core/serve/questions.h"
#include "core/serve/replies.h"

#include <boost/json.hpp>

#include "tests/support/catch.h"

using namespace shardrun;
using Catch::Contains;

namespace {

const serve::ServedModel& model() {
  static const infer::Language language(data::Tokenizer::of_bytes(), {});
  static const serve::ServedModel served{
      .name = "m", .language = &language, .context = 10, .vocabulary = 257, .most_prompts = 4};
  return served;
}

/// The same, of a job that scores prompts.
const serve::ServedModel& scoring_model() {
  static const serve::ServedModel served = [] {
    serve::ServedModel scoring = model();
    scoring.scores_prompts = true;
    return scoring;
  }();
  return served;
}

serve::Question read(std::string_view body) { return serve::read_question(false, body, model()); }

/// "STATUS PARAM CODE: MESSAGE" of the refusal.
std::string refusal_of(std::string_view body, bool is_chat = false) {
  try {
    static_cast<void>(serve::read_question(is_chat, body, model()));
  } catch (const serve::Refusal& refusal) {
    return std::to_string(refusal.status) + " " + refusal.param + " " + refusal.code + ": " + refusal.message;
  }
  return "nothing";
}

boost::json::value parsed(const std::string& text) { return boost::json::parse(text); }

}  // namespace

TEST_CASE("prompts are a text, tokens, or a list of these", "[serve]") {
  using Prompts = std::vector<std::vector<std::int32_t>>;
  CHECK(read(R"({"prompt": "ab"})").prompts == Prompts{{97, 98}});
  CHECK(read(R"({"prompt": [1, 2]})").prompts == Prompts{{1, 2}});
  CHECK(read(R"({"prompt": ["a", "b"]})").prompts == Prompts{{97}, {98}});
  CHECK(read(R"({"prompt": [[1], [2, 3]]})").prompts == Prompts{{1}, {2, 3}});
}

TEST_CASE("a line has the settings of its request, and a seed of its own", "[serve]") {
  const serve::Question question = read(
      R"({"prompt": ["a", "b"], "n": 2, "seed": 5, "max_tokens": 3, "stop": "x", "top_p": 0.5, "logprobs": 2,
          "user": "me", "colour": 1})");
  CHECK(question.unknown == std::vector<std::string>{"colour"});
  const boost::json::object line = serve::line_of(question, 3, 77);
  CHECK(line == parsed(R"({"prompt": [98], "seed": 6, "max_tokens": 3, "stop": "x", "top_p": 0.5, "logprobs": true,
                           "top_logprobs": 2})"));
  CHECK(serve::line_of(read(R"({"prompt": "a"})"), 0, 77) == parsed(R"({"prompt": [97], "seed": 77})"));
  CHECK(serve::line_of(read(R"({"prompt": "a", "seed": -1})"), 0, 77).at("seed") == INT64_MAX);
}

TEST_CASE("fields that would change the answer and are not served are refused", "[serve]") {
  CHECK_THAT(refusal_of(R"({"prompt": "a", "suffix": "b"})"), Contains("400 suffix : \"suffix\" is not served"));
  CHECK(refusal_of(R"({"prompt": "a", "logit_bias": {}, "response_format": {"type": "text"}})") == "nothing");
  CHECK_THAT(refusal_of(R"({"prompt": "a", "best_of": 2})"), Contains("400 best_of "));
  CHECK_THAT(refusal_of(R"({"prompt": "a", "top_p": 2})"),
             Contains("400 top_p : \"top_p\": expected a number from 0 to 1, found 2"));
  CHECK_THAT(refusal_of(R"({"prompt": "a", "temperature": 1e400})"),
             Contains("400 temperature : \"temperature\": expected a finite number"));
  CHECK_THAT(refusal_of(R"({"prompt": "a", "model": 5})"), Contains("400 model : "));
  CHECK_THAT(refusal_of(R"({"prompt": "a", "echo": true, "logprobs": 0})"),
             Contains("400 echo : ") && Contains("--set infer.prompt_logprobs=true"));
  CHECK_THAT(refusal_of(R"({"prompt": "a", "max_tokens": 0})"), Contains("400 max_tokens : "));
  CHECK_THAT(refusal_of(R"({"prompt": [256], "echo": true})"), Contains("400 prompt : "));
  for (const char* const name : {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"}) {
    CHECK_THAT(refusal_of(R"({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {")" +
                              std::string(name) + R"(": 1}})",
                          true),
               Contains("400 chat_template_kwargs : "));
  }
  CHECK(read(R"({"prompt": ["a", "b"], "n": 2})").prompts.size() == 2);
  // The prompts have no tokens yet: the last has too many.
  CHECK_THAT(refusal_of(R"({"prompt": ["a", "b", "0123456789"], "n": 2})"),
             Contains("2 answers to each of 3 prompts, and the server holds at most 4"));
  CHECK_THAT(refusal_of(R"({"prompt": "a", "n": 5})"), Contains("at most 4 at once"));
  CHECK_THAT(refusal_of(R"({"prompt": "a", "stop": ")" + std::string(std::size_t{16} << 20U, 'x') + "\"}"),
             Contains("413 ") && Contains("have more than 16777216 bytes"));
  CHECK_THAT(refusal_of(R"({"prompt": "a", "n": 0})"), Contains("400 n : \"n\": expected an integer from 1 to 128"));
  CHECK_THAT(refusal_of(R"({"prompt": "0123456789"})"),
             Contains("400 prompt context_length_exceeded: the prompt has 10 tokens, and at most 9"));
  CHECK_THAT(refusal_of(R"({"prompt": "a", "model": "other"})"), Contains("404 model model_not_found"));
  CHECK_THAT(refusal_of(R"({"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"})", true),
             Contains("400 tool_choice "));
  CHECK_THAT(refusal_of(R"({"messages": [{"role": "user", "content": "a"}]})", true),
             Contains("400 messages : the model has no chat template"));
}

TEST_CASE("a reply counts tokens, and its events follow the client's expectations", "[serve]") {
  const serve::Question question =
      read(R"({"prompt": "ab", "stream": true, "stream_options": {"include_usage": true}, "logprobs": 1})");
  serve::Reply reply(question, model(), "cmpl-1", 5);
  const auto first = reply.add(0, {.text = "x", .tokens = {120}, .logprobs = {-0.5}, .top_logprobs = {{{120, -0.5}}}});
  REQUIRE(first.size() == 1);
  CHECK(parsed(first[0]) ==
        parsed(R"({"id": "cmpl-1", "object": "text_completion", "created": 5, "model": "m", "choices": [{"index": 0,
                   "text": "x", "logprobs": {"tokens": ["x"], "token_logprobs": [-0.5], "top_logprobs": [{"x": -0.5}],
                   "text_offset": [0]}, "finish_reason": null}], "usage": null})"));
  CHECK_FALSE(reply.is_complete());
  const auto last = reply.add(0, {.finish_reason = "length", .answer_tokens = 4});
  REQUIRE(last.size() == 1);
  CHECK(parsed(last[0]).at("choices").at(0).at("finish_reason") == "length");
  CHECK(reply.is_complete());
  const auto end = reply.end();
  REQUIRE(end.size() == 2);
  CHECK(parsed(end[0]).at("usage") == parsed(R"({"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6})"));
  CHECK(end[1] == "[DONE]");
}

TEST_CASE("a token that is part of a character has its bytes", "[serve]") {
  const serve::Question question = read(R"({"prompt": "ab", "logprobs": 0})");
  serve::Reply reply(question, model(), "cmpl-1", 5);
  static_cast<void>(reply.add(0, {.text = "\xC3\xA9", .tokens = {0xC3, 0xA9}, .logprobs = {-1, -2}}));
  static_cast<void>(reply.add(0, {.finish_reason = "length", .answer_tokens = 2}));
  const boost::json::value choice = parsed(reply.whole()).at("choices").at(0);
  CHECK(choice.at("text") == "\xC3\xA9");
  CHECK(choice.at("logprobs").at("tokens") == boost::json::array{"\xEF\xBF\xBD", "\xEF\xBF\xBD"});
}

TEST_CASE("an echoed prompt has logprobs, null for its first token, and offsets in characters", "[serve]") {
  const serve::Question question =
      serve::read_question(false, R"({"prompt": "\u00e9b56789012", "echo": true, "logprobs": 1, "max_tokens": 0})", [] {
        serve::ServedModel small = scoring_model();
        small.context = 11;
        return small;
      }());
  REQUIRE(question.prompts.front().size() == 11);  // the whole context, because nothing is added
  CHECK(serve::line_of(question, 0, 7).at("prompt_logprobs") == true);
  CHECK(serve::line_of(question, 0, 7).at("max_tokens") == 0);
  const serve::Question two =
      serve::read_question(false, R"({"prompt": [97, 98], "echo": true, "logprobs": 2})", scoring_model());
  serve::Reply reply(two, scoring_model(), "cmpl-1", 5);
  // Tokens 200 and 201 have the same text.
  static_cast<void>(reply.add(0, {.text = "\xC3\xA9x",
                                  .tokens = {0xC3, 0xA9, 120},
                                  .logprobs = {-1, -1, -2},
                                  .top_logprobs = {{{200, -0.5}, {201, -0.75}}, {{202, -1}}, {{120, -2}, {121, -3}}},
                                  .prompt_logprobs = {std::nullopt, -0.25},
                                  .prompt_top_logprobs = {{}, {{98, -0.25}, {99, -4}}}}));
  static_cast<void>(reply.add(0, {.finish_reason = "length", .answer_tokens = 2}));
  const boost::json::value choice = parsed(reply.whole()).at("choices").at(0);
  CHECK(choice.at("text") == "ab\xC3\xA9x");
  CHECK(choice.at("logprobs") == parsed(R"({"tokens": ["a", "b", "\ufffd", "\ufffd", "x"],
      "token_logprobs": [null, -0.25, -1.0, -1.0, -2.0],
      "top_logprobs": [null, {"b": -0.25, "c": -4.0}, {"\ufffd": -0.5}, {"\ufffd": -1.0}, {"x": -2.0, "y": -3.0}],
      "text_offset": [0, 1, 2, 3, 3]})"));
}

TEST_CASE("errors have OpenAI's form", "[serve]") {
  CHECK(parsed(serve::error_json({.status = 429, .message = "full"})) ==
        parsed(R"({"error": {"message": "full", "type": "rate_limit_error", "param": null, "code": null}})"));
}
