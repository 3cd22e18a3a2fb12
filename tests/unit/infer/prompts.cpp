#include "core/data/dataset.h"
#include "core/infer/prompts.h"

#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

const infer::Language& bytes() {
  static const infer::Language language(data::Tokenizer::of_bytes(), {});
  return language;
}

const infer::Language& numbers() {
  static const infer::Language language(std::nullopt, {});
  return language;
}

infer::Prompt read(std::string_view line, const infer::Language& language = bytes()) {
  return infer::read_prompt(line, language, {.tokens = 7, .ends = {0}});
}

std::vector<std::int32_t> tokens_of(std::string_view text) { return {text.begin(), text.end()}; }

/// Feeds the bytes of a text to an answer. Returns the text that it gives back after each byte.
std::vector<std::string> pieces(infer::Answer& answer, std::string_view text) {
  std::vector<std::string> shown;
  for (std::size_t i = 0; i < text.size() && !answer.is_stopped(); ++i) {
    shown.push_back(answer.take({.token = static_cast<unsigned char>(text[i]), .is_last = i + 1 == text.size()}));
  }
  return shown;
}

using Pieces = std::vector<std::string>;

}  // namespace

TEST_CASE("a prompt asks for the probabilities of its own tokens", "[infer]") {
  CHECK_FALSE(read(R"({"prompt": "ab", "prompt_logprobs": false})").request.scored_from);
  CHECK(read(R"({"prompt": "ab", "prompt_logprobs": true})").request.scored_from == 0);
  const infer::Prompt second = read(R"({"prompt": "ab", "prompt_logprobs": 1, "max_tokens": 0})");
  CHECK(second.request.scored_from == 1);
  CHECK(second.request.tokens == 0);
  infer::Answer answer(bytes(), second);
  answer.take_scored({.token = 0, .logits = {}});
  const std::vector<float> even = {1, 1, 1, 1};
  answer.take_scored({.token = 2, .logits = even});
  CHECK_THAT(answer.to_json(1), Catch::Contains(R"("prompt_logprobs":[null,-1.38629436)"));
}

TEST_CASE("an answer tells how long it took if it is asked", "[infer]") {
  infer::Prompt prompt = read(R"({"prompt": "ab"})");
  infer::Answer silent(bytes(), prompt);
  prompt.timings = true;
  infer::Answer answer(bytes(), prompt);
  pieces(silent, "cd");
  CHECK_THAT(answer.to_json(1), Catch::Contains(R"("first_token_s":null)"));
  pieces(answer, "cd");
  const boost::json::object told = boost::json::parse(answer.to_json(1)).as_object();
  CHECK(told.at("first_token_s").as_double() * told.at("prefill_tokens_per_s").as_double() == Catch::Detail::Approx(2));
  CHECK(told.at("decode_tokens_per_s").as_double() > 0);
  CHECK_THAT(silent.to_json(1), !Catch::Contains("_s\""));
}

TEST_CASE("a prompt has its own settings, or the usual ones", "[infer]") {
  const infer::Prompt usual = read(R"({"prompt": "ab"})");
  CHECK(usual.request.prompt == tokens_of("ab"));
  CHECK(usual.request.tokens == 7);
  CHECK(usual.request.ends == std::vector<std::int64_t>{0});
  CHECK_FALSE(usual.echo);
  const infer::Prompt own = read(R"({"prompt": [3, 4], "max_tokens": 2, "temperature": 0.5, "top_k": 4, "top_p": 0.9,
      "min_p": 0.1, "repetition_penalty": 1.5, "frequency_penalty": -1, "presence_penalty": 2, "seed": 5,
      "stop": ["x", "yz"], "echo": true, "logprobs": true, "ignore_eos": true})");
  CHECK(own.request.prompt == std::vector<std::int32_t>{3, 4});
  CHECK(own.request.tokens == 2);
  CHECK(own.request.ends.empty());
  const infer::Sampling& how = own.request.sampling;
  CHECK(how.temperature == 0.5);
  CHECK(how.top_k == 4);
  CHECK(how.top_p == 0.9);
  CHECK(how.min_p == 0.1);
  CHECK(how.repetition == 1.5);
  CHECK(how.frequency == -1);
  CHECK(how.presence == 2);
  CHECK(how.seed == 5);
  CHECK(own.stops == std::vector<std::string>{"x", "yz"});
  CHECK(own.echo);
  CHECK(own.logprobs);
}

TEST_CASE("an empty prompt begins a text, and one of numbers needs no tokenizer", "[infer]") {
  CHECK(read(R"({"prompt": ""})").request.prompt == tokens_of("\n"));
  CHECK(read(R"({"prompt": "17 4, 250"})", numbers()).request.prompt == std::vector<std::int32_t>{17, 4, 250});
  CHECK(read(R"({"prompt": ""})", numbers()).request.prompt == std::vector<std::int32_t>{0});
}

TEST_CASE("a line with tokens in place of its text reads the same", "[infer]") {
  infer::Prompt prompt = read(R"({"prompt": "ab", "stop": "x", "seed": 3, "ignore_eos": true, "max_tokens": 90})");
  prompt.request.tokens = 5;
  const infer::Prompt again = read(
      infer::with_tokens(R"({"prompt": "ab", "stop": "x", "seed": 3, "ignore_eos": true, "max_tokens": 90})", prompt));
  CHECK(again.request.prompt == tokens_of("ab"));
  CHECK(again.request.tokens == 5);
  CHECK(again.request.ends.empty());
  CHECK(again.request.sampling.seed == 3);
  CHECK(again.stops == prompt.stops);
}

TEST_CASE("a malformed prompt is refused by its key", "[infer]") {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"[1]", "2: expected an object such as {\"prompt\": \"Once\"}, found [1]"},
      {"{}", "2: expected either \"prompt\" or \"messages\", found neither"},
      {R"({"prompt": "a", "messages": []})", "2: expected either \"prompt\" or \"messages\", found both"},
      {R"({"prompt": 4})", "2: \"prompt\": expected a text, or a list of numbers of tokens, found 4"},
      {R"({"prompt": [1, -1]})", "2: \"prompt\": expected a list of numbers of tokens, found -1"},
      {R"({"prompt": []})", "2: \"prompt\": it has no token: give at least one"},
      {R"({"prompt": "a", "max_tokens": 0})", "2: \"max_tokens\": expected an integer from 1 to 1073741824, found 0"},
      {R"({"prompt": "ab", "prompt_logprobs": 2})",
       "2: \"prompt_logprobs\": expected true, false, or the number of a token, from 0 to 1, found 2"},
      {R"({"prompt": "a", "top_p": 2})", "2: \"top_p\": expected a number from 0 to 1, found 2"},
      {R"({"prompt": "a", "stop": ""})",
       "2: \"stop\": expected a text that is not empty, or a list of such texts, found \"\""},
      {R"({"prompt": "a", "echo": 1})", "2: \"echo\": expected true or false, found 1"},
      {R"({"prompt": "a", "messages": null, "max_token": 3})",
       "2: there is no \"max_token\" in a prompt: known are prompt, messages, prompt_logprobs, max_tokens, "
       "temperature, top_k, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty, seed, stop, echo, "
       "logprobs, top_logprobs, id, ignore_eos"},
      {R"({"messages": [{"role": "user", "content": "a"}]})",
       "2: \"messages\" needs a folder of Hugging Face's libraries, or a GGUF file, with a tokenizer and a chat "
       "template: give other models a \"prompt\""}};
  for (const auto& each : cases) {
    CHECK(error_of([&] { static_cast<void>(read(each.first)); }) == each.second);
  }
  CHECK(error_of([&] { static_cast<void>(read(R"({"prompt": "3 a"})", numbers())); }) ==
        "2: the model has no tokenizer, so a prompt is numbers of tokens, such as \"17 4 250\": found 'a' at byte 2");
  CHECK(error_of([&] { static_cast<void>(read(R"({"prompt": [1], "stop": "a"})", numbers())); }) ==
        "2: \"stop\": the model has no tokenizer, so its answers have no text");
}

TEST_CASE("an answer holds back what may become a stop, and ends without it", "[infer]") {
  infer::Answer answer(bytes(), read(R"({"prompt": "a", "stop": ["end.", "\n\n"]})"));
  CHECK(pieces(answer, "the en\nd end. more") == Pieces{"t", "h", "", "e ", "", "", "en", "\nd", " ", "", "", "", ""});
  CHECK(answer.is_stopped());
  CHECK(answer.to_json(4) ==
        R"({"line":4,"text":"the en\nd ","prompt_tokens":1,"tokens":[116,104,101,32,101,110,10,100,32,101,110,100,46],)"
        R"("finish_reason":"stop"})");
}

TEST_CASE("an answer without a stop gives back all its text", "[infer]") {
  infer::Answer answer(bytes(), read(R"({"prompt": "ab", "stop": "xyz", "echo": true})"));
  CHECK(pieces(answer, "1xy") == Pieces{"ab1", "", "xy"});
  CHECK(answer.to_json(4) ==
        R"({"line":4,"text":"ab1xy","prompt_tokens":2,"tokens":[49,120,121],"finish_reason":"length"})");
  infer::Answer of_numbers(numbers(), read(R"({"prompt": [4], "echo": true, "logprobs": true})", numbers()));
  const std::vector<float> logits = {0, 0};
  CHECK(of_numbers.take({.token = 1, .logits = logits, .is_last = true, .is_end = true}) == "4 ");
  CHECK(
      of_numbers.to_json(1) ==
      R"({"line":1,"text":"4 ","prompt_tokens":1,"tokens":[1],"finish_reason":"stop","logprobs":[-6.931471805599453E-1]})");
}

TEST_CASE("events tell each token of an answer once, and its end", "[infer]") {
  infer::Answer answer(bytes(), read(R"({"prompt": "a", "stop": "yz", "id": "q\"1"})"));
  const auto told = [&](std::int32_t token, std::optional<std::string_view> reason = {}) {
    return answer.event(answer.take({.token = token}), reason);
  };
  CHECK(told('x') == "{\"id\":\"q\\\"1\",\"text\":\"x\",\"tokens\":[120]}\n");
  CHECK(told('y') == "{\"id\":\"q\\\"1\",\"text\":\"\",\"tokens\":[121]}\n");
  CHECK(told('z', "stop") ==
        "{\"id\":\"q\\\"1\",\"text\":\"\",\"tokens\":[122],\"finish_reason\":\"stop\",\"prompt_tokens\":1,"
        "\"answer_tokens\":3}\n");
  infer::Answer invalid(bytes(), read(R"({"prompt": "a", "id": 5})"));
  CHECK(invalid.event(invalid.take({.token = 0xFF}), {}) == "{\"id\":5,\"text\":\"\xEF\xBF\xBD\",\"tokens\":[255]}\n");
}

TEST_CASE("events tell each score of a prompt once, at most 1024 in a line", "[infer]") {
  infer::Answer answer(numbers(), read(R"({"prompt": [4], "id": 5, "prompt_logprobs": true})", numbers()));
  const std::vector<float> logits = {0, 0};
  const auto scores_of = [&](int count) {
    for (int i = 0; i < count; ++i) {
      answer.take_scored({.token = 1, .logits = logits});
    }
    std::vector<std::size_t> lines;
    std::istringstream text(answer.event("", {}));
    for (std::string line; std::getline(text, line);) {
      const boost::json::object event = boost::json::parse(line).as_object();
      CHECK(event.at("id") == 5);
      lines.push_back(event.contains("prompt_logprobs") ? event.at("prompt_logprobs").as_array().size() : 0);
    }
    return lines;
  };
  using Sizes = std::vector<std::size_t>;
  CHECK(scores_of(1) == Sizes{1});
  CHECK(scores_of(0) == Sizes{0});
  CHECK(scores_of(2049) == Sizes{1024, 1024, 1});
}

TEST_CASE("a line cancels a prompt by its id", "[infer]") {
  CHECK(infer::read_cancel(R"({"prompt": "a", "id": 4})") == std::nullopt);
  CHECK(infer::read_cancel(R"({"cancel": 4})") == "4");
  CHECK(infer::read_cancel(R"({"cancel": "x"})") == "\"x\"");
  CHECK_THAT(error_of([&] { static_cast<void>(infer::read_cancel(R"({"cancel": [4]})")); }),
             Catch::Contains("\"cancel\": expected a text of at most 256 bytes, or an integer, found [4]"));
  CHECK_THAT(error_of([&] { static_cast<void>(infer::read_cancel(R"({"cancel": 4, "prompt": "a"})")); }),
             Catch::Contains("there is no \"prompt\" in a prompt: known are cancel"));
  CHECK(infer::id_of_line(R"({"id": "x", "promt": 3})") == "\"x\"");
  CHECK(infer::id_of_line(R"({"id": {}})") == "null");
  CHECK(infer::id_of_line("[") == "null");
  CHECK(infer::id_of_line(R"({"promt": 3})").empty());
}

TEST_CASE("the likeliest tokens come first, and have the logarithms of their probabilities", "[infer]") {
  const std::vector<float> logits = {1, 3, 3, 2};
  const infer::Likely found = infer::likeliest(logits, 3, 0);
  REQUIRE(found.size() == 3);
  CHECK(found[0].first == 1);
  CHECK(found[1].first == 2);
  CHECK(found[2].first == 3);
  for (const auto& [token, logarithm] : found) {
    CHECK(logarithm == infer::log_probability(logits, token));
  }
  CHECK(infer::likeliest(logits, 9, 0).size() == 4);
  CHECK(infer::likeliest(logits, 9, 3).size() == 3);
}

TEST_CASE("the lines of a file of prompts that are not blank are counted, and those of a pipe are not") {
  const TemporaryFolder folder;
  const auto prompts_in = [&](const char* name) {
    job::Job job;
    job.infer.from = folder / name;
    return data::prompts_of(job);
  };
  const auto counted = [&](const std::string& text) {
    std::ofstream(folder / "prompts.jsonl", std::ios::binary) << text;
    return prompts_in("prompts.jsonl");
  };
  CHECK(counted("") == 0);
  CHECK(counted("a\n\n \t\r\nb\r\n c") == 3);
  CHECK(counted(std::string(200'000, 'x') + "\ny\n") == 2);
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(prompts_in("pipe") == std::nullopt);
  CHECK(prompts_in("none") == std::nullopt);
}
