#include "core/serve/questions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/files/json.h"
#include "core/template/chat.h"

namespace shardrun::serve {
namespace {

namespace json = boost::json;

constexpr std::int64_t most_answers = 128;  ///< the most answers to one prompt
constexpr std::size_t most_stops = 16;

std::string beginning_of(const json::value& value) { return printable(json::serialize(value).substr(0, 60)); }

[[noreturn]] void refuse(std::string_view param, std::string message, std::string_view code = {}) {
  throw Refusal{.message = std::move(message), .param = std::string(param), .code = std::string(code)};
}

[[noreturn]] void refuse_value(std::string_view param, std::string_view expected, const json::value& found) {
  refuse(param, fmt::format("\"{}\": expected {}, found {}", param, expected, beginning_of(found)));
}

json::object object_of(std::string_view body) {
  try {
    json::value read = files::parse_json_strictly(body, "the request");
    if (!read.is_object()) {
      refuse("", fmt::format("expected a JSON object, found {}", beginning_of(read)));
    }
    return std::move(read.get_object());
  } catch (const Error& error) {
    throw Refusal{.message = error.message()};
  }
}

/// Calls `call`. If it throws an Error, throws a Refusal that names the field `param`.
template <typename Call>
auto about(std::string_view param, const Call& call) {
  try {
    return call();
  } catch (const Error& error) {
    refuse(param, error.message());
  }
}

/// The fields of a request. others() returns those for which no other function was called before.
class Fields {
 public:
  explicit Fields(const json::object& object) : object_(object) {}

  /// Returns null if the field is missing or null.
  [[nodiscard]] const json::value* find(std::string_view name) {
    known_.push_back(name);
    const json::value* const found = object_.if_contains(name);
    return found == nullptr || found->is_null() ? nullptr : found;
  }
  [[nodiscard]] bool flag(std::string_view name) {
    const json::value* const found = find(name);
    if (found != nullptr && !found->is_bool()) {
      refuse_value(name, "true or false", *found);
    }
    return found != nullptr && found->get_bool();
  }
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view name, std::int64_t least, std::int64_t most) {
    const json::value* const found = find(name);
    if (found == nullptr) {
      return std::nullopt;
    }
    if (!found->is_int64() || found->get_int64() < least || found->get_int64() > most) {
      refuse_value(name, fmt::format("an integer from {} to {}", least, most), *found);
    }
    return found->get_int64();
  }
  [[nodiscard]] std::vector<std::string> others() const {
    std::vector<std::string> names;
    for (const auto& member : object_) {
      if (std::ranges::find(known_, std::string_view(member.key())) == known_.end()) {
        names.emplace_back(member.key());
      }
    }
    return names;
  }

 private:
  const json::object& object_;
  std::vector<std::string_view> known_;
};

/// Throws Refusal for fields that would change the answer but are not served here.
void refuse_unserved(Fields& fields) {
  if (const json::value* const format = fields.find("response_format")) {
    const json::object* const object = format->if_object();
    const json::value* const type = object == nullptr ? nullptr : object->if_contains("type");
    if (type == nullptr || *type != "text") {
      refuse_value("response_format", "{\"type\": \"text\"}: answers are not held to a format", *format);
    }
  }
  if (const json::value* const bias = fields.find("logit_bias"); bias != nullptr && *bias != json::object()) {
    refuse("logit_bias", "\"logit_bias\" is not served: leave it out");
  }
  if (const json::value* const modalities = fields.find("modalities");
      modalities != nullptr && *modalities != json::array{"text"}) {
    refuse_value("modalities", "[\"text\"]: answers are texts", *modalities);
  }
  for (const char* const name : {"functions", "function_call", "audio", "prediction", "web_search_options", "suffix",
                                 "guided_json", "guided_regex", "guided_choice", "guided_grammar"}) {
    if (fields.find(name) != nullptr) {
      refuse(name, fmt::format("\"{}\" is not served: leave it out", name));
    }
  }
}

/// The text of a message's content, which is a text or a list of parts with texts. Throws Refusal.
std::string content_of(const json::value& content, const std::string& param) {
  if (content.is_string()) {
    return std::string(content.get_string());
  }
  if (!content.is_array()) {
    refuse_value(param, "a text, or a list of parts", content);
  }
  std::string text;
  for (const json::value& part : content.get_array()) {
    const json::object* const object = part.if_object();
    const json::value* const type = object == nullptr ? nullptr : object->if_contains("type");
    const json::value* const its = object == nullptr ? nullptr : object->if_contains("text");
    if (type == nullptr || *type != "text" || its == nullptr || !its->is_string()) {
      refuse_value(param, "parts such as {\"type\": \"text\", \"text\": \"…\"}: the model reads texts alone", part);
    }
    text += (text.empty() ? "" : "\n") + std::string(its->get_string());
  }
  return text;
}

/// A message as templates expect it. Its content is a text, the role developer becomes system, and the arguments of
/// tool calls are objects.
json::value message_of(const json::value& given, std::size_t index) {
  if (!given.is_object()) {
    return given;  // checked_messages() refuses it
  }
  json::object message = given.get_object();
  if (const json::value* const role = message.if_contains("role"); role != nullptr && *role == "developer") {
    message["role"] = "system";
  }
  const bool has_calls = message.contains("tool_calls");
  json::value& content = message["content"];
  if (!content.is_null()) {
    content = content_of(content, fmt::format("messages[{}].content", index));
  } else if (has_calls) {
    content = "";
  } else {
    message.erase("content");  // checked_messages() misses it
  }
  json::value* const calls = message.if_contains("tool_calls");
  if (calls != nullptr && calls->is_array()) {
    for (json::value& call : calls->get_array()) {
      json::object* const object = call.if_object();
      json::value* const function = object == nullptr ? nullptr : object->if_contains("function");
      json::value* const arguments =
          function == nullptr || !function->is_object() ? nullptr : function->get_object().if_contains("arguments");
      if (arguments != nullptr && arguments->is_string()) {
        boost::system::error_code failed;
        json::value read = json::parse(arguments->get_string(), failed);
        if (!failed && read.is_object()) {
          *arguments = std::move(read);
        }
      }
    }
  }
  return message;
}

templates::Conversation conversation_of(Fields& fields) {
  const json::value* const messages = fields.find("messages");
  if (messages == nullptr) {
    refuse("messages",
           "\"messages\" is missing: expected a list such as [{\"role\": \"user\", \"content\": \"Hello\"}]");
  }
  json::value prepared = *messages;
  if (prepared.is_array()) {
    json::array& list = prepared.get_array();
    for (std::size_t i = 0; i < list.size(); ++i) {
      list[i] = message_of(list[i], i);
    }
  }
  templates::Conversation conversation;
  conversation.messages = about("messages", [&] { return templates::checked_messages(prepared, "\"messages\""); });
  const json::value* const tools = fields.find("tools");
  const json::value* const choice = fields.find("tool_choice");
  if (choice != nullptr && *choice != "auto" && *choice != "none") {
    refuse_value("tool_choice", "auto or none: an answer cannot be made to call a tool", *choice);
  }
  if (tools != nullptr && (choice == nullptr || *choice != "none")) {
    if (!tools->is_array()) {
      refuse_value("tools", "a list", *tools);
    }
    conversation.tools = *tools;
  }
  if (const json::value* const variables = fields.find("chat_template_kwargs")) {
    if (!variables->is_object()) {
      refuse_value("chat_template_kwargs", "an object", *variables);
    }
    conversation.settings = variables->get_object();
    for (const char* const name : {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"}) {
      if (conversation.settings.contains(name)) {
        refuse("chat_template_kwargs",
               fmt::format("\"chat_template_kwargs\": \"{}\" cannot be replaced: leave it out", name));
      }
    }
  }
  return conversation;
}

std::vector<std::int32_t> tokens_of(const json::array& list, std::string_view param, const ServedModel& model) {
  std::vector<std::int32_t> tokens;
  for (const json::value& each : list) {
    if (!each.is_int64() || each.get_int64() < 0 || each.get_int64() >= model.vocabulary) {
      refuse_value(param, fmt::format("tokens from 0 to {}", model.vocabulary - 1), each);
    }
    tokens.push_back(static_cast<std::int32_t>(each.get_int64()));
  }
  return tokens;
}

std::vector<std::int32_t> tokens_of_text(const json::value& text, std::string_view param, const ServedModel& model) {
  if (!text.is_string()) {
    refuse_value(param, "a text, a list of tokens, or a list of these", text);
  }
  return about(param, [&] { return model.language->encode(std::string(text.get_string())); });
}

/// Reads the prompts of a request for completions: a text, tokens, or a list of these. REQUIRES: question.n is set.
void read_prompts(Fields& fields, const ServedModel& model, Question& question) {
  const json::value* const prompt = fields.find("prompt");
  if (prompt == nullptr) {
    refuse("prompt", "\"prompt\" is missing: expected a text, a list of tokens, or a list of these");
  }
  const bool is_list = prompt->is_array() && (prompt->get_array().empty() || !prompt->get_array().front().is_int64());
  const json::array one = {*prompt};
  const json::array& all = is_list ? prompt->get_array() : one;
  const std::size_t most = model.most_prompts / static_cast<std::size_t>(question.n);
  if (all.size() > most) {
    refuse("prompt",
           fmt::format("the request asks for {} to each of {}, and the server holds at most {} at once: ask for fewer",
                       counted(question.n, "answer"), counted(std::ssize(all), "prompt"), model.most_prompts));
  }
  for (const json::value& each : all) {
    question.prompts.push_back(each.is_array() ? tokens_of(each.get_array(), "prompt", model)
                                               : tokens_of_text(each, "prompt", model));
  }
  if (question.prompts.empty()) {
    refuse("prompt", "\"prompt\": expected at least one");
  }
}

/// Copies the field `name` to the question's settings if infer::read_prompt() accepts it. Throws Refusal if not.
void take_setting(Fields& fields, const ServedModel& model, const char* name, Question& question) {
  if (const json::value* const value = fields.find(name)) {
    if (value->is_double() && !std::isfinite(value->get_double())) {
      refuse_value(name, "a finite number", *value);
    }
    const json::object line = {{"prompt", {0}}, {name, *value}};
    about(name, [&] { return infer::read_prompt(json::serialize(line), *model.language, {}); });
    question.settings[name] = *value;
  }
}

void read_settings(Fields& fields, const ServedModel& model, Question& question) {
  for (const char* const name : {"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty",
                                 "presence_penalty", "ignore_eos", "stop"}) {
    take_setting(fields, model, name, question);
  }
  if (const json::value* const stop = question.settings.if_contains("stop");
      stop != nullptr && stop->is_array() && stop->get_array().size() > most_stops) {
    refuse("stop", fmt::format("\"stop\": expected at most {} texts, found {}", most_stops, stop->get_array().size()));
  }
  constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();
  if (const std::optional<std::int64_t> seed = fields.integer("seed", -any, any)) {
    question.settings["seed"] = *seed & any;
  }
  question.n = fields.integer("n", 1, most_answers).value_or(1);
  if (fields.integer("best_of", 1, most_answers).value_or(question.n) != question.n) {
    refuse("best_of", "\"best_of\" other than \"n\" is not served: leave it out");
  }
  if (question.is_chat) {
    question.logprobs = fields.flag("logprobs");
    if (const auto count = fields.integer("top_logprobs", 0, infer::most_top_logprobs); count.value_or(0) > 0) {
      if (!question.logprobs) {
        refuse("top_logprobs", "\"top_logprobs\" has no effect without \"logprobs\": true");
      }
      question.settings["top_logprobs"] = *count;
    }
  } else if (const auto count = fields.integer("logprobs", 0, infer::most_top_logprobs)) {
    question.logprobs = true;
    question.settings["top_logprobs"] = *count;
  }
  if (question.logprobs) {
    question.settings["logprobs"] = true;
  }
  question.echoes = !question.is_chat && fields.flag("echo");
  if (question.echoes && question.logprobs) {
    if (!model.scores_prompts) {
      refuse(
          "echo",
          "\"echo\" with \"logprobs\" needs the logprobs of prompts, which this server does not compute: start it with "
          "--set infer.prompt_logprobs=true, or leave out one of them");
    }
    question.settings["prompt_logprobs"] = true;
  }
  constexpr std::int64_t most_tokens = std::int64_t{1} << 30U;
  std::optional<std::int64_t> tokens =
      fields.integer("max_tokens", question.settings.contains("prompt_logprobs") ? 0 : 1, most_tokens);
  if (question.is_chat) {
    const std::optional<std::int64_t> newer = fields.integer("max_completion_tokens", 1, most_tokens);
    tokens = newer ? newer : tokens;
  }
  if (tokens) {
    question.settings["max_tokens"] = *tokens;
  }
}

void require_model(Fields& fields, const ServedModel& model) {
  const json::value* const name = fields.find("model");
  if (name != nullptr && !name->is_string()) {
    refuse_value("model", "the model's name", *name);
  }
  if (name != nullptr && *name != json::value(model.name)) {
    throw Refusal{
        .status = 404,
        .message = fmt::format("there is no model {}: this server has \"{}\"", beginning_of(*name), model.name),
        .param = "model",
        .code = "model_not_found"};
  }
}

}  // namespace

Question read_question(bool is_chat, std::string_view body, const ServedModel& model) {
  const json::object object = object_of(body);
  Fields fields(object);
  require_model(fields, model);
  Question question{.is_chat = is_chat};
  refuse_unserved(fields);
  read_settings(fields, model, question);
  question.streams = fields.flag("stream");
  if (const json::value* const options = fields.find("stream_options")) {
    if (!options->is_object()) {
      refuse_value("stream_options", "an object", *options);
    }
    question.includes_usage = Fields(options->get_object()).flag("include_usage");
  }
  if (is_chat) {
    const templates::Conversation conversation = conversation_of(fields);
    if (!model.language->has_chat()) {
      refuse("messages", "the model has no chat template: use /v1/completions");
    }
    question.prompts.push_back(about("messages", [&] { return model.language->encode(conversation); }));
  } else {
    read_prompts(fields, model, question);
    if (question.echoes) {
      for (const std::vector<std::int32_t>& prompt : question.prompts) {
        question.echoed.push_back(about("prompt", [&] { return with_replacements(model.language->decode(prompt)); }));
      }
    }
  }
  const char* const param = is_chat ? "messages" : "prompt";
  for (const std::vector<std::int32_t>& prompt : question.prompts) {
    if (prompt.empty()) {
      refuse(param, fmt::format("\"{}\": it has no token: give at least one", param));
    }
    if (const std::int64_t most =
            model.context -
            (question.settings.contains("max_tokens") && question.settings.at("max_tokens") == 0 ? 0 : 1);
        std::ssize(prompt) > most) {
      refuse(param,
             fmt::format("the prompt has {}, and at most {} leave room for an answer in the context of {}: shorten it",
                         counted(std::ssize(prompt), "token"), most, model.context),
             "context_length_exceeded");
    }
  }
  // Seed, id and names of keys have less than 200 bytes.
  const std::size_t token_bytes = fmt::formatted_size("{},", model.vocabulary);
  const std::size_t other_bytes = json::serialize(question.settings).size() + 200;
  for (const std::vector<std::int32_t>& prompt : question.prompts) {
    if (other_bytes + prompt.size() * token_bytes > infer::most_line_bytes) {
      throw Refusal{.status = 413,
                    .message = fmt::format("the prompt and its settings, such as \"stop\", have more than {} bytes",
                                           infer::most_line_bytes)};
    }
  }
  for (const char* const name : {"user", "metadata", "store", "service_tier", "parallel_tool_calls"}) {
    static_cast<void>(fields.find(name));  // these fields are accepted, and have no effect
  }
  question.unknown = fields.others();
  return question;
}

json::object line_of(const Question& question, std::size_t choice, std::uint64_t random) {
  const auto n = static_cast<std::size_t>(question.n);
  const std::vector<std::int32_t>& prompt = question.prompts[choice / n];
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  json::object line = question.settings;
  const json::value* const seed = line.if_contains("seed");
  const std::uint64_t first = seed == nullptr ? random : static_cast<std::uint64_t>(seed->get_int64());
  line["seed"] = static_cast<std::int64_t>((first + choice % n) & most);
  line["prompt"] = json::array(prompt.begin(), prompt.end());
  return line;
}

std::string tokenize(std::string_view body, const ServedModel& model) {
  const json::object object = object_of(body);
  Fields fields(object);
  std::vector<std::int32_t> tokens;
  const json::value* text = fields.find("prompt");
  text = text == nullptr ? fields.find("content") : text;  // as clients of other servers name it
  if (text != nullptr) {
    tokens = tokens_of_text(*text, "prompt", model);
  } else if (object.contains("messages") && model.language->has_chat()) {
    const templates::Conversation conversation = conversation_of(fields);
    tokens = about("messages", [&] { return model.language->encode(conversation); });
  } else {
    refuse("prompt", "\"prompt\" is missing: expected a text");
  }
  return json::serialize(json::object{{"tokens", json::array(tokens.begin(), tokens.end())},
                                      {"count", tokens.size()},
                                      {"max_model_len", model.context}});
}

std::string detokenize(std::string_view body, const ServedModel& model) {
  const json::object object = object_of(body);
  const json::value* const tokens = Fields(object).find("tokens");
  if (tokens == nullptr || !tokens->is_array()) {
    refuse("tokens", "\"tokens\": expected a list of tokens");
  }
  const std::vector<std::int32_t> list = tokens_of(tokens->get_array(), "tokens", model);
  const std::string text = about("tokens", [&] { return model.language->decode(list); });
  return json::serialize(json::object{{"prompt", with_replacements(text)}});
}

}  // namespace shardrun::serve
