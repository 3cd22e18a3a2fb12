#include "core/infer/evaluation.h"

#include <numeric>

#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

infer::Question question_of(std::string_view line, std::int64_t context = 100) {
  static const infer::Language bytes(data::Tokenizer::of_bytes(), {});
  return infer::read_question(line, bytes, " ", context);
}

std::string text_between(const infer::Passage& passage, std::int64_t from, std::int64_t to) {
  return {passage.tokens.begin() + from, passage.tokens.begin() + to};
}

}  // namespace

TEST_CASE("each token of a text but the first is asked for once, with the longest context at hand", "[infer]") {
  std::vector<std::int32_t> tokens(23);
  std::iota(tokens.begin(), tokens.end(), 0);
  for (const std::int64_t stride : {1, 3, 7}) {
    std::vector<std::int32_t> asked;
    for (const infer::Passage& window : infer::windows(tokens, 8, stride)) {
      CHECK(window.tokens.size() <= 8);
      CHECK(std::ssize(asked) - window.from == window.tokens.front());
      asked.insert(asked.end(), window.tokens.begin() + window.from, window.tokens.end());
    }
    CHECK(asked == tokens);
  }
  std::int64_t scored = 0;
  for (const infer::Passage& window : infer::windows(tokens, 8, 7)) {
    scored += window.scored();
  }
  CHECK(scored == 22);
  CHECK(infer::windows(tokens, 8, 3)[1].scored() == 3);
}

TEST_CASE("a question's choices follow its context", "[infer]") {
  const infer::Question question =
      question_of(R"({"context": "one two ", "choices": ["three", "fünf"], "answer": "fünf"})");
  CHECK(question.answer == 1);
  CHECK(question.characters == std::vector<std::int64_t>{5, 4});
  REQUIRE(question.choices.size() == 2);
  const infer::Passage& first = question.choices[0];
  CHECK(text_between(first, 0, first.from) == "one two");
  CHECK(text_between(first, first.from, std::ssize(first.tokens)) == "  three");
  CHECK(first.scored() == 7);
}

TEST_CASE("a question that is too long loses its beginning", "[infer]") {
  const infer::Question question = question_of(R"({"context": "abcdefgh", "choices": ["x", "yz"], "answer": 0})", 6);
  CHECK(text_between(question.choices[0], 0, 6) == "efgh x");
  CHECK(question.choices[0].from == 4);
  CHECK(text_between(question.choices[1], 0, 6) == "fgh yz");
  CHECK(question.choices[1].from == 3);
}

TEST_CASE("a malformed question is refused by its key", "[infer]") {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"3",
       "2: expected an object such as {\"context\": \"1 + 1 =\", \"choices\": [\"2\", \"3\"], \"answer\": 0}, found 3"},
      {R"({"choices": ["a", "b"], "answer": 0})", "2: \"context\": expected a text, found nothing"},
      {R"({"context": "a", "choices": ["a"], "answer": 0})",
       "2: \"choices\": expected a list of two texts or more, none of them empty, found [\"a\"]"},
      {R"({"context": "a", "choices": "ab", "answer": 0})",
       "2: \"choices\": expected a list of two texts or more, none of them empty, found \"ab\""},
      {R"({"context": "a", "choices": ["b", "c"], "answer": 2})",
       "2: \"answer\": expected the number of a choice, from 0 to 1, or its text, found 2"},
      {R"({"context": "a", "choices": ["b", "c"], "answer": 0, "gold": 1})",
       "2: there is no \"gold\" in a question: known are context, choices, answer"}};
  for (const auto& each : cases) {
    CHECK(error_of([&] { static_cast<void>(question_of(each.first)); }) == each.second);
  }
  CHECK(error_of([] {
          static_cast<void>(question_of(R"({"context": "a", "choices": ["long answer", "c"], "answer": 0})", 6));
        }) == "2: \"choices\": ' long answer' alone has 12 tokens, and the context is 6");
}

TEST_CASE("the log-likelihood of an answer is the sum of its tokens'", "[infer]") {
  CHECK(infer::log_likelihood(R"({"prompt_logprobs": [null, -1.5, -2]})") == -3.5);
  CHECK(infer::log_likelihood(R"({"prompt_logprobs": []})") == 0);
  CHECK(infer::best(std::vector<double>{-3, -1, -1}) == 1);
}
