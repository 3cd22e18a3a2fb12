#include "core/serve/replies.h"

#include <algorithm>
#include <utility>

#include "core/base/utf8.h"

namespace shardrun::serve {

namespace json = boost::json;

namespace {

/// The number of characters that begin in a token of logprobs.
std::size_t characters_of(const json::object& token) {
  return static_cast<std::size_t>(std::ranges::count_if(token.at("bytes").get_array(), [](const json::value& each) {
    return (each.to_number<std::int64_t>() & 0xC0) != 0x80;
  }));
}

}  // namespace

std::string error_json(const Refusal& refusal) {
  const auto text = [](const std::string& value) { return value.empty() ? json::value(nullptr) : json::value(value); };
  const char* const type = refusal.status == 401   ? "authentication_error"
                           : refusal.status == 429 ? "rate_limit_error"
                           : refusal.status >= 500 ? "server_error"
                                                   : "invalid_request_error";
  const json::object error = {{"error",
                               {{"message", with_replacements(refusal.message)},
                                {"type", type},
                                {"param", text(refusal.param)},
                                {"code", text(refusal.code)}}}};
  return json::serialize(error);
}

Reply::Reply(const Question& question, const ServedModel& model, std::string id, std::int64_t created)
    : question_(question),
      model_(model),
      id_(std::move(id)),
      created_(created),
      ends_(model.language->ends()),
      choices_(question.prompts.size() * static_cast<std::size_t>(question.n)) {
  for (std::size_t i = 0; i < choices_.size() && !question.echoed.empty(); ++i) {
    choices_[i].text = question.echoed[i / static_cast<std::size_t>(question.n)];
  }
  for (const std::vector<std::int32_t>& prompt : question.prompts) {
    prompt_tokens_ += std::ssize(prompt);
  }
}

json::object Reply::head(std::string_view object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_.name}};
}

json::object Reply::usage() const {
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", answer_tokens_},
          {"total_tokens", prompt_tokens_ + answer_tokens_}};
}

/// The text of a token that follows another one. With some tokenizers, the first token of a text loses its space.
std::string Reply::text_of(std::int32_t token) const {
  const std::int32_t once[] = {token};
  const std::int32_t twice[] = {token, token};
  return model_.language->decode(twice).substr(model_.language->decode(once).size());
}

/// A token's logprobs in the form of chat completions. `likely`: the likeliest tokens in its place, or null.
json::object Reply::entry_of(std::int32_t token, std::optional<double> logprob, const infer::Likely* likely) const {
  const auto entry = [&](std::int32_t its, std::optional<double> logarithm) {
    const std::string bytes = text_of(its);
    json::array numbers;
    for (const char each : bytes) {
      numbers.push_back(static_cast<unsigned char>(each));
    }
    return json::object{{"token", with_replacements(bytes)},
                        {"logprob", logarithm ? json::value(std::max(*logarithm, -9999.0)) : nullptr},
                        {"bytes", std::move(numbers)}};
  };
  json::object one = entry(token, logprob);
  json::array top;
  for (std::size_t i = 0; likely != nullptr && i < likely->size(); ++i) {
    top.push_back(entry((*likely)[i].first, (*likely)[i].second));
  }
  one["top_logprobs"] = logprob ? json::value(std::move(top)) : nullptr;
  return one;
}

json::array Reply::logprobs_of(std::size_t choice, const Piece& piece) const {
  json::array content;
  const auto add = [&](std::int32_t token, std::optional<double> logprob, const std::vector<infer::Likely>& likely,
                       std::size_t at) {
    content.push_back(entry_of(token, logprob, at < likely.size() ? &likely[at] : nullptr));
  };
  const std::vector<std::int32_t>& prompt = question_.prompts[choice / static_cast<std::size_t>(question_.n)];
  for (std::size_t i = 0; i < piece.prompt_logprobs.size(); ++i) {
    add(prompt[choices_[choice].scored + i], piece.prompt_logprobs[i], piece.prompt_top_logprobs, i);
  }
  for (std::size_t i = 0; i < piece.logprobs.size(); ++i) {
    const bool is_end = piece.finish_reason == "stop" && i + 1 == piece.logprobs.size() &&
                        std::ranges::find(ends_, piece.tokens[i]) != ends_.end();
    if (is_end && question_.is_chat) {
      break;  // the end token is no part of the text
    }
    add(piece.tokens[i], piece.logprobs[i], piece.top_logprobs, i);
  }
  return content;
}

/// The logprobs `content` in the form for the question's kind. `offset`: the number of characters before their text.
json::value Reply::shown(const json::array& content, std::size_t offset) const {
  if (!question_.logprobs) {
    return nullptr;
  }
  if (question_.is_chat) {
    return json::object{{"content", content}};
  }
  json::array tokens;
  json::array logprobs;
  json::array top;
  json::array offsets;
  for (const json::value& each : content) {
    const json::object& one = each.get_object();
    tokens.push_back(one.at("token"));
    logprobs.push_back(one.at("logprob"));
    json::value& likely = top.emplace_back(nullptr);
    if (const json::array* const others = one.at("top_logprobs").if_array()) {
      likely.emplace_object();
      for (const json::value& other : *others) {  // keeps the likeliest of the tokens that have the same text
        likely.get_object().emplace(other.at("token").get_string(), other.at("logprob"));
      }
    }
    offsets.push_back(offset);
    offset += characters_of(one);
  }
  return json::object{{"tokens", std::move(tokens)},
                      {"token_logprobs", std::move(logprobs)},
                      {"top_logprobs", std::move(top)},
                      {"text_offset", std::move(offsets)}};
}

std::string Reply::chunk(std::size_t choice, json::object change, json::value logprobs,
                         json::value finish_reason) const {
  json::object event = head(question_.is_chat ? "chat.completion.chunk" : "text_completion");
  json::object one = {{"index", choice}};
  if (question_.is_chat) {
    one["delta"] = std::move(change);
  } else {
    one["text"] = change.contains("content") ? change.at("content") : json::value("");
  }
  one["logprobs"] = std::move(logprobs);
  one["finish_reason"] = std::move(finish_reason);
  event["choices"] = json::array{std::move(one)};
  if (question_.includes_usage) {
    event["usage"] = nullptr;
  }
  return json::serialize(event);
}

std::vector<std::string> Reply::add(std::size_t choice, const Piece& piece) {
  Choice& one = choices_[choice];
  std::vector<std::string> events;
  const bool begins = !std::exchange(one.has_begun, true);
  json::array content = question_.logprobs ? logprobs_of(choice, piece) : json::array();
  one.scored += piece.prompt_logprobs.size();
  if (!piece.finish_reason.empty()) {
    one.finish_reason = piece.finish_reason;
    answer_tokens_ += piece.answer_tokens;
    ++complete_;
  }
  if (!question_.streams) {
    one.text += piece.text;
    std::ranges::move(content, std::back_inserter(one.content));
    return events;
  }
  std::string text = piece.text;
  if (begins && question_.is_chat) {
    events.push_back(chunk(choice, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr));
  } else if (begins) {
    text = std::exchange(one.text, "") + text;
  }
  if (!text.empty() || !content.empty()) {
    events.push_back(chunk(choice, {{"content", text}}, shown(content, one.told), nullptr));
    for (const json::value& each : content) {
      one.told += characters_of(each.get_object());
    }
  }
  if (!piece.finish_reason.empty()) {
    events.push_back(chunk(choice, {}, nullptr, json::value(one.finish_reason)));
  }
  return events;
}

std::vector<std::string> Reply::end() const {
  std::vector<std::string> events;
  if (question_.includes_usage) {
    json::object event = head(question_.is_chat ? "chat.completion.chunk" : "text_completion");
    event["choices"] = json::array();
    event["usage"] = usage();
    events.push_back(json::serialize(event));
  }
  events.emplace_back("[DONE]");
  return events;
}

std::string Reply::whole() const {
  json::object response = head(question_.is_chat ? "chat.completion" : "text_completion");
  json::array choices;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const Choice& one = choices_[i];
    json::object choice = {{"index", i}};
    if (question_.is_chat) {
      choice["message"] = {{"role", "assistant"}, {"content", one.text}};
    } else {
      choice["text"] = one.text;
    }
    choice["logprobs"] = shown(one.content, one.told);
    choice["finish_reason"] = one.finish_reason;
    choices.push_back(std::move(choice));
  }
  response["choices"] = std::move(choices);
  response["usage"] = usage();
  return json::serialize(response);
}

}  // namespace shardrun::serve
