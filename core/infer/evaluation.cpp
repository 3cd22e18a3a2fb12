#include "core/infer/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/files/json.h"

namespace shardrun::infer {
namespace {

std::int64_t characters_of(std::string_view text) {
  return std::ranges::count_if(text, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; });
}

/// The beginning of a value's JSON, for messages.
std::string shown_or_nothing(const boost::json::value* value) {
  return value == nullptr ? "nothing" : printable(boost::json::serialize(*value).substr(0, 60));
}

/// The text that a question has under a key. Throws Error{data} if there is none.
std::string text_of(const boost::json::object& question, std::string_view key) {
  const boost::json::value* const value = question.if_contains(key);
  if (value == nullptr || !value->is_string()) {
    throw Error(ErrorCode::data, fmt::format("\"{}\": expected a text, found {}", key, shown_or_nothing(value)));
  }
  return std::string(value->get_string());
}

std::vector<std::string> choices_of(const boost::json::object& object) {
  const boost::json::value* const value = object.if_contains("choices");
  const boost::json::array* const list = value != nullptr ? value->if_array() : nullptr;
  const bool is_good = list != nullptr && list->size() >= 2 && std::ranges::all_of(*list, [](const auto& each) {
                         return each.is_string() && !each.get_string().empty();
                       });
  if (!is_good) {
    throw Error(ErrorCode::data,
                fmt::format("\"choices\": expected a list of two texts or more, none of them empty, found {}",
                            shown_or_nothing(value)));
  }
  std::vector<std::string> choices;
  for (const boost::json::value& each : *list) {
    choices.emplace_back(each.get_string());
  }
  return choices;
}

std::size_t answer_of(const boost::json::object& object, const std::vector<std::string>& choices) {
  const boost::json::value* const value = object.if_contains("answer");
  if (value != nullptr && value->is_int64() && value->get_int64() >= 0 && value->get_int64() < std::ssize(choices)) {
    return static_cast<std::size_t>(value->get_int64());
  }
  if (value != nullptr && value->is_string()) {
    const auto found = std::ranges::find(choices, std::string_view(value->get_string()));
    if (found != choices.end()) {
      return static_cast<std::size_t>(found - choices.begin());
    }
  }
  throw Error(ErrorCode::data,
              fmt::format("\"answer\": expected the number of a choice, from 0 to {}, or its text, found {}",
                          choices.size() - 1, shown_or_nothing(value)));
}

/// The tokens of a context followed by a choice. Only the choice's tokens are scored. `behind`: the delimiter and the
/// choice. If there are more than `most` tokens, the context's first ones are dropped. Throws Error{data} if the choice
/// adds no token or does not fit.
Passage passage_of(const std::string& context, const std::string& behind, const Language& language, std::int64_t most) {
  const std::size_t spaces = context.size() - (context.find_last_not_of(" \t\n\r\f\v") + 1);
  Passage passage{.tokens = language.encode_beginning(context + behind)};
  const std::vector<std::int32_t> before = language.encode_beginning(context.substr(0, context.size() - spaces));
  passage.from = std::ssize(before);
  if (context.size() == spaces) {  // only the tokens that begin every text precede the choice
    const std::vector<std::int32_t> whole = language.tokenizer() != nullptr
                                                ? language.tokenizer()->encode(context + behind)
                                                : language.encode(context + behind);
    passage.tokens = before;
    passage.tokens.insert(passage.tokens.end(), whole.begin(), whole.end());
  }
  if (passage.from >= std::ssize(passage.tokens)) {
    throw Error(ErrorCode::data, fmt::format("\"choices\": '{}' adds no token to its context", printable(behind)));
  }
  if (const std::int64_t surplus = std::ssize(passage.tokens) - most; surplus > 0) {
    if (passage.from - surplus < 1) {
      throw Error(ErrorCode::data,
                  fmt::format("\"choices\": '{}' alone has {} tokens, and the context is {}",
                              printable(behind.substr(0, 60)), std::ssize(passage.tokens) - passage.from, most));
    }
    passage.tokens.erase(passage.tokens.begin(), passage.tokens.begin() + surplus);
    passage.from -= surplus;
  }
  return passage;
}

}  // namespace

std::int64_t Passage::scored() const noexcept { return std::ssize(tokens) - std::max<std::int64_t>(from, 1); }

std::vector<Passage> windows(std::span<const std::int32_t> tokens, std::int64_t context, std::int64_t stride) {
  const std::int64_t count = std::ssize(tokens);
  std::vector<Passage> windows;
  std::int64_t asked = 0;
  for (std::int64_t begin = 0; asked < count; begin += stride) {
    const std::int64_t end = std::min(begin + context, count);
    const std::span<const std::int32_t> window =
        tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    windows.push_back({.tokens = {window.begin(), window.end()}, .from = asked - begin});
    asked = end;
  }
  return windows;
}

Question read_question(std::string_view line, const Language& language, std::string_view delimiter,
                       std::int64_t context) {
  const boost::json::value json = files::parse_json_strictly(line, "the question");
  if (!json.is_object()) {
    throw Error(ErrorCode::data,
                fmt::format("expected an object such as {{\"context\": \"1 + 1 =\", \"choices\": [\"2\", \"3\"], "
                            "\"answer\": 0}}, found {}",
                            printable(boost::json::serialize(json).substr(0, 60))));
  }
  const boost::json::object& object = json.get_object();
  for (const auto& [key, value] : object) {
    if (key != "context" && key != "choices" && key != "answer") {
      throw Error(ErrorCode::data, fmt::format("there is no \"{}\" in a question: known are context, choices, answer",
                                               printable(std::string(key).substr(0, 60))));
    }
  }
  const std::string before = text_of(object, "context");
  const std::vector<std::string> choices = choices_of(object);
  Question question{.answer = answer_of(object, choices)};
  for (const std::string& choice : choices) {
    question.choices.push_back(passage_of(before, std::string(delimiter) + choice, language, context));
    question.characters.push_back(characters_of(choice));
  }
  return question;
}

std::string prompt_line(const Passage& passage) {
  return boost::json::serialize(
      boost::json::object{{"prompt", boost::json::array(passage.tokens.begin(), passage.tokens.end())},
                          {"prompt_logprobs", passage.from},
                          {"max_tokens", 0}});
}

double log_likelihood(std::string_view answer) {
  const boost::json::value json = files::parse_json_strictly(answer, "the answer");
  double sum = 0;
  for (const boost::json::value& each : json.at("prompt_logprobs").as_array()) {
    sum += each.is_null() ? 0 : each.to_number<double>();
  }
  return sum;
}

std::size_t best(std::span<const double> scores) {
  return static_cast<std::size_t>(std::ranges::max_element(scores) - scores.begin());
}

}  // namespace shardrun::infer
