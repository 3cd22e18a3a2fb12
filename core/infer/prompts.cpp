#include "core/infer/prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/files/json.h"

namespace shardrun::infer {
namespace {

/// The token whose text is the member `name` of `tokens`. Nothing if there is no such member or token.
std::optional<std::int32_t> token_of(const text::BpeTokenizer& tokenizer, const boost::json::object& tokens,
                                     std::string_view name) {
  const boost::json::value* const text = tokens.if_contains(name);
  return text == nullptr ? std::nullopt : tokenizer.find(text->get_string());
}

/// The beginning of a value's JSON, for messages.
std::string shown(const boost::json::value& value) { return printable(boost::json::serialize(value).substr(0, 60)); }

/// Reads the keys of a prompt. A key that is missing or null changes nothing. Throws Error{data} for a wrong value.
class Keys {
 public:
  explicit Keys(const boost::json::object& object) : object_(object) {}

  [[nodiscard]] const boost::json::value* find(std::string_view key) {
    known_.push_back(key);
    const boost::json::value* const found = object_.if_contains(key);
    return found == nullptr || found->is_null() ? nullptr : found;
  }

  void read(std::string_view key, std::int64_t low, std::int64_t high, std::int64_t& value) {
    if (const boost::json::value* const found = find(key)) {
      if (!found->is_int64() || found->as_int64() < low || found->as_int64() > high) {
        refuse(key, fmt::format("an integer from {} to {}", low, high), *found);
      }
      value = found->as_int64();
    }
  }
  void read(std::string_view key, double low, double high, double& value) {
    if (const boost::json::value* const found = find(key)) {
      const bool is_number = found->is_number();
      const double number = is_number ? found->to_number<double>() : 0;
      if (!is_number || !(number >= low && number <= high)) {
        refuse(key, fmt::format("a number from {} to {}", low, high), *found);
      }
      value = number;
    }
  }
  void read(std::string_view key, bool& value) {
    if (const boost::json::value* const found = find(key)) {
      if (!found->is_bool()) {
        refuse(key, "true or false", *found);
      }
      value = found->as_bool();
    }
  }

  [[noreturn]] static void refuse(std::string_view key, std::string_view expected, const boost::json::value& found) {
    throw Error(ErrorCode::data, fmt::format("\"{}\": expected {}, found {}", key, expected, shown(found)));
  }

  void require_no_others() const {
    for (const auto& [key, value] : object_) {
      if (std::ranges::find(known_, std::string_view(key)) == known_.end()) {
        std::string all;
        std::ranges::for_each(known_,
                              [&](std::string_view each) { all += (all.empty() ? "" : ", ") + std::string(each); });
        throw Error(ErrorCode::data, fmt::format("there is no \"{}\" in a prompt: known are {}",
                                                 printable(std::string(key).substr(0, 60)), all));
      }
    }
  }

 private:
  const boost::json::object& object_;
  std::vector<std::string_view> known_;
};

std::vector<std::int32_t> tokens_of(const boost::json::array& list) {
  std::vector<std::int32_t> tokens;
  for (const boost::json::value& each : list) {
    if (!each.is_int64() || each.as_int64() < 0 || each.as_int64() > std::numeric_limits<std::int32_t>::max()) {
      Keys::refuse("prompt", "a list of numbers of tokens", each);
    }
    tokens.push_back(static_cast<std::int32_t>(each.as_int64()));
  }
  return tokens;
}

/// The tokens of a text such as "17 4 250"; token 0 for an empty text.
std::vector<std::int32_t> numbers_of(const std::string& text) {
  std::vector<std::int32_t> tokens;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    if (std::string_view(" ,\n\t").find(*at) != std::string_view::npos) {
      ++at;
      continue;
    }
    std::int32_t token = 0;
    const auto [rest, fault] = std::from_chars(at, end, token);
    if (fault != std::errc() || token < 0 ||
        (rest != end && std::string_view(" ,\n\t").find(*rest) == std::string_view::npos)) {
      throw Error(
          ErrorCode::data,
          fmt::format("the model has no tokenizer, so a prompt is numbers of tokens, such as \"17 4 250\": found "
                      "'{}' at byte {}",
                      printable(std::string_view(at, std::min<std::size_t>(static_cast<std::size_t>(end - at), 20))),
                      at - text.data()));
    }
    tokens.push_back(token);
    at = rest;
  }
  return tokens.empty() ? std::vector<std::int32_t>{0} : tokens;
}

std::vector<std::int32_t> prompt_of(Keys& keys, const Language& language) {
  const boost::json::value* const prompt = keys.find("prompt");
  const boost::json::value* const messages = keys.find("messages");
  if ((prompt == nullptr) == (messages == nullptr)) {
    throw Error(ErrorCode::data, fmt::format("expected either \"prompt\" or \"messages\", found {}",
                                             prompt == nullptr ? "neither" : "both"));
  }
  if (messages != nullptr) {
    if (!language.has_chat()) {
      throw Error(
          ErrorCode::data,
          "\"messages\" needs a folder of Hugging Face's libraries, or a GGUF file, with a tokenizer and a chat "
          "template: give other models a \"prompt\"");
    }
    return language.encode(templates::Conversation{.messages = templates::checked_messages(*messages, "\"messages\"")});
  }
  if (prompt->is_array()) {
    return tokens_of(prompt->get_array());
  }
  if (!prompt->is_string()) {
    Keys::refuse("prompt", "a text, or a list of numbers of tokens", *prompt);
  }
  return language.encode(std::string(prompt->get_string()));
}

std::vector<std::string> stops_of(Keys& keys) {
  const boost::json::value* const stop = keys.find("stop");
  std::vector<std::string> stops;
  const auto add = [&](const boost::json::value& text) {
    if (!text.is_string() || text.get_string().empty()) {
      Keys::refuse("stop", "a text that is not empty, or a list of such texts", *stop);
    }
    stops.emplace_back(text.get_string());
  };
  if (stop != nullptr && stop->is_array()) {
    std::ranges::for_each(stop->get_array(), add);
  } else if (stop != nullptr) {
    add(*stop);
  }
  return stops;
}

/// The index of the first token that is scored, in a prompt of `count` tokens; nothing if none is.
std::optional<std::int64_t> scored_from(Keys& keys, std::int64_t count) {
  const boost::json::value* const from = keys.find("prompt_logprobs");
  if (from == nullptr || (from->is_bool() && !from->get_bool())) {
    return std::nullopt;
  }
  const std::int64_t first = from->is_int64() ? from->get_int64() : 0;
  if (!(from->is_bool() || from->is_int64()) || first < 0 || first >= count) {
    Keys::refuse("prompt_logprobs", fmt::format("true, false, or the number of a token, from 0 to {}", count - 1),
                 *from);
  }
  return first;
}

/// For each token, its likeliest ones with their logarithms.
boost::json::array pairs_of(std::span<const Likely> likely) {
  boost::json::array all;
  for (const Likely& each : likely) {
    boost::json::array& pairs = all.emplace_back(boost::json::array()).get_array();
    for (const auto& [token, logarithm] : each) {
      pairs.push_back(boost::json::array{token, logarithm});
    }
  }
  return all;
}

/// The JSON of an id; "" if there is none.
std::string id_of(Keys& keys, std::string_view key) {
  const boost::json::value* const id = keys.find(key);
  if (id == nullptr) {
    return "";
  }
  constexpr std::size_t most_bytes = 256;
  if (!id->is_int64() && !(id->is_string() && id->get_string().size() <= most_bytes)) {
    Keys::refuse(key, fmt::format("a text of at most {} bytes, or an integer", most_bytes), *id);
  }
  return boost::json::serialize(*id);
}

}  // namespace

Language::Language(std::optional<data::Tokenizer> tokenizer, const std::filesystem::path& model)
    : tokenizer_(std::move(tokenizer)) {
  if (!model.empty() && tokenizer_ && tokenizer_->file() != nullptr) {
    format_ = templates::read_chat_format(model);
  }
}

/// REQUIRES: format_ is set.
Language::Around Language::around() const {
  const text::BpeTokenizer& file = *tokenizer_->file();
  if (!format_->adds_bos && !format_->adds_eos) {
    return {file.before(), file.behind()};
  }
  // tokenizer_config.json takes precedence, as in transformers.
  const auto only = [&](const std::optional<bool>& adds, std::string_view name) {
    const std::optional<std::int32_t> token = token_of(file, format_->special_tokens, name);
    return adds.value_or(false) && token ? std::vector<std::int32_t>{*token} : std::vector<std::int32_t>();
  };
  return {only(format_->adds_bos, "bos_token"), only(format_->adds_eos, "eos_token")};
}

std::vector<std::int32_t> Language::encode(const std::string& text) const {
  if (!tokenizer_) {
    return numbers_of(text);
  }
  if (text.empty() && !format_) {
    return first_tokens(*tokenizer_);
  }
  std::vector<std::int32_t> tokens = tokenizer_->encode(text);
  if (!format_) {
    return tokens;
  }
  const Around around = this->around();
  tokens.insert(tokens.begin(), around.before.begin(), around.before.end());
  tokens.insert(tokens.end(), around.behind.begin(), around.behind.end());
  return tokens.empty() ? first_tokens(*tokenizer_) : tokens;
}

std::vector<std::int32_t> Language::encode_beginning(const std::string& text) const {
  if (!format_) {
    return encode(text);
  }
  std::vector<std::int32_t> tokens = tokenizer_->encode(text);
  const Around around = this->around();
  tokens.insert(tokens.begin(), around.before.begin(), around.before.end());
  for (const char* const name : {"bos_token", "eos_token"}) {
    const std::optional<std::int32_t> token = token_of(*tokenizer_->file(), format_->special_tokens, name);
    if (tokens.empty() && token) {
      return {*token};
    }
  }
  return tokens.empty() ? first_tokens(*tokenizer_) : tokens;
}

std::vector<std::int32_t> Language::encode(const templates::Conversation& conversation) const {
  return tokenizer_->encode(templates::render_chat(*format_, conversation));
}

std::string Language::decode(std::span<const std::int32_t> tokens) const {
  if (tokenizer_) {
    return tokenizer_->decode(tokens);
  }
  std::string text;
  for (const std::int32_t token : tokens) {
    text += fmt::format("{} ", token);
  }
  return text;
}

std::vector<std::int64_t> Language::ends() const {
  if (!format_) {
    return {};
  }
  std::vector<std::int64_t> ends = format_->end_tokens;
  if (const std::optional<std::int32_t> token = token_of(*tokenizer_->file(), format_->special_tokens, "eos_token")) {
    ends.push_back(*token);
  }
  return ends;
}

std::string lack_of_room(const Request& request, std::int64_t context) {
  const std::int64_t tokens = std::ssize(request.prompt);
  return tokens + std::min<std::int64_t>(request.tokens, 1) <= context
             ? ""
             : fmt::format(
                   "the prompt has {}, and at most {} leave room for an answer: shorten it, or raise the job's "
                   "context ([infer] context, [model] context, --context) up to the model's",
                   counted(tokens, "token"), context - 1);
}

std::string with_tokens(std::string_view line, const Prompt& prompt) {
  boost::json::object object = files::parse_json_strictly(line, "the prompt").as_object();
  object.erase("messages");
  object["prompt"] = boost::json::array(prompt.request.prompt.begin(), prompt.request.prompt.end());
  object["max_tokens"] = prompt.request.tokens;
  if (!prompt.id.empty()) {
    object["id"] = boost::json::parse(prompt.id);
  }
  return boost::json::serialize(object);
}

std::optional<std::string> read_cancel(std::string_view line) {
  const boost::json::value json = files::parse_json_strictly(line, "the prompt");
  if (!json.is_object() || !json.get_object().contains("cancel")) {
    return std::nullopt;
  }
  Keys keys(json.get_object());
  const std::string id = id_of(keys, "cancel");
  keys.require_no_others();
  return id;
}

std::string id_of_line(std::string_view line) noexcept {
  try {
    const boost::json::value json = files::parse_json_strictly(line, "the prompt");
    Keys keys(json.as_object());
    const std::string id = id_of(keys, "id");
    return id.empty() ? id_of(keys, "cancel") : id;
  } catch (const std::exception&) {
    return "null";
  }
}

std::string error_event(std::string_view id, std::string_view message, std::string_view code) {
  const boost::json::object error = {{"message", message}, {"code", code}};
  return fmt::format("{{\"id\":{},\"error\":{}}}\n", id, boost::json::serialize(error));
}

Prompt read_prompt(std::string_view line, const Language& language, const Request& usual) {
  const boost::json::value json = files::parse_json_strictly(line, "the prompt");
  if (!json.is_object()) {
    throw Error(ErrorCode::data,
                fmt::format("expected an object such as {{\"prompt\": \"Once\"}}, found {}", shown(json)));
  }
  Keys keys(json.get_object());
  Prompt made{.request = usual};
  Request& request = made.request;
  Sampling& how = request.sampling;
  request.prompt = prompt_of(keys, language);
  if (request.prompt.empty()) {
    throw Error(ErrorCode::data, "\"prompt\": it has no token: give at least one");
  }
  request.scored_from = scored_from(keys, std::ssize(request.prompt));
  keys.read("max_tokens", request.scored_from ? 0 : 1, std::int64_t{1} << 30, request.tokens);
  keys.read("temperature", 0, 1000, how.temperature);
  keys.read("top_k", 0, 1'000'000, how.top_k);
  keys.read("top_p", 0, 1, how.top_p);
  keys.read("min_p", 0, 1, how.min_p);
  keys.read("repetition_penalty", 0.01, 100, how.repetition);
  keys.read("frequency_penalty", -100, 100, how.frequency);
  keys.read("presence_penalty", -100, 100, how.presence);
  auto seed = static_cast<std::int64_t>(how.seed);
  keys.read("seed", 0, std::numeric_limits<std::int64_t>::max(), seed);
  how.seed = static_cast<std::uint64_t>(seed);
  made.stops = stops_of(keys);
  keys.read("echo", made.echo);
  keys.read("logprobs", made.logprobs);
  keys.read("top_logprobs", 0, most_top_logprobs, made.top_logprobs);
  made.id = id_of(keys, "id");
  bool ignores_end = false;
  keys.read("ignore_eos", ignores_end);
  if (ignores_end) {
    request.ends.clear();
  }
  keys.require_no_others();
  if (!made.stops.empty() && language.tokenizer() == nullptr) {
    throw Error(ErrorCode::data, "\"stop\": the model has no tokenizer, so its answers have no text");
  }
  return made;
}

Answer::Answer(const Language& language, Prompt prompt) : prompt_(std::move(prompt)) {
  if (language.tokenizer() != nullptr) {
    decoder_.emplace(*language.tokenizer());
  }
  if (prompt_.echo) {
    for (const std::int32_t token : prompt_.request.prompt) {
      held_ += text_of(token);
    }
    text_ = std::exchange(held_, "");  // stops are searched for in the answer alone
    echoed_ = text_;
  }
}

std::string Answer::text_of(std::int32_t token) {
  if (!decoder_) {
    return fmt::format("{} ", token);
  }
  std::string text;
  decoder_->decode(token, text);
  return text;
}

void Answer::take_scored(const Scored& scored) {
  of_prompt_.push_back(scored.logits.empty() ? std::nullopt
                                             : std::optional(log_probability(scored.logits, scored.token)));
  if (prompt_.top_logprobs > 0) {
    likely_of_prompt_.push_back(
        scored.logits.empty() ? Likely()
                              : likeliest(scored.logits, prompt_.top_logprobs, prompt_.request.sampling.vocabulary));
  }
}

std::string Answer::take(const Drawn& drawn) {
  std::string shown = std::exchange(echoed_, "");
  if (prompt_.logprobs) {
    log_probabilities_.push_back(log_probability(drawn.logits, drawn.token));
  }
  if (prompt_.top_logprobs > 0) {
    likely_.push_back(likeliest(drawn.logits, prompt_.top_logprobs, prompt_.request.sampling.vocabulary));
  }
  last_ = std::chrono::steady_clock::now();
  first_ = tokens_.empty() ? last_ : first_;
  tokens_.push_back(drawn.token);
  has_ended_ = drawn.is_end;
  if (!drawn.is_end) {
    held_ += text_of(drawn.token);
  }
  return shown + release(drawn.is_last);
}

std::string Answer::release(bool is_last) {
  std::size_t certain = held_.size();
  for (const std::string& stop : prompt_.stops) {
    if (const std::size_t at = held_.find(stop); at != std::string::npos) {
      certain = std::min(certain, at);
      is_stopped_ = true;
      continue;
    }
    for (std::size_t length = std::min(stop.size() - 1, held_.size()); length > 0 && !is_last; --length) {
      if (held_.ends_with(std::string_view(stop).substr(0, length))) {
        certain = std::min(certain, held_.size() - length);
        break;
      }
    }
  }
  const std::string shown = held_.substr(0, certain);
  held_ = is_stopped_ ? "" : held_.substr(certain);
  text_ += shown;
  return shown;
}

void Answer::add_tokens(boost::json::object& json, std::size_t first) const {
  const auto from = static_cast<std::ptrdiff_t>(first);
  json["tokens"] = boost::json::array(tokens_.begin() + from, tokens_.end());
  if (prompt_.logprobs) {
    json["logprobs"] = boost::json::array(log_probabilities_.begin() + from, log_probabilities_.end());
  }
  if (prompt_.top_logprobs > 0) {
    json["top_logprobs"] = pairs_of(std::span(likely_).subspan(first));
  }
}

void Answer::add_scores(boost::json::object& json, std::size_t first, std::size_t end) const {
  boost::json::array& of_prompt = json["prompt_logprobs"].emplace_array();
  for (const std::optional<double>& each : std::span(of_prompt_).subspan(first, end - first)) {
    of_prompt.push_back(each ? boost::json::value(*each) : nullptr);
  }
  if (prompt_.top_logprobs > 0) {
    json["prompt_top_logprobs"] = pairs_of(std::span(likely_of_prompt_).subspan(first, end - first));
  }
}

void Answer::add_timings(boost::json::object& json) const {
  if (!prompt_.timings) {
    return;
  }
  const auto seconds = [](Time from, Time to) { return std::chrono::duration<double>(to - from).count(); };
  const auto rate = [](std::size_t tokens, double in) {
    return in > 0 ? boost::json::value(double(tokens) / in) : nullptr;
  };
  const double first = tokens_.empty() ? 0 : seconds(begin_, first_);
  json["first_token_s"] = tokens_.empty() ? boost::json::value() : boost::json::value(first);
  json["prefill_tokens_per_s"] = rate(prompt_.request.prompt.size(), first);
  json["decode_tokens_per_s"] = rate(tokens_.size() - 1, tokens_.size() > 1 ? seconds(first_, last_) : 0);
}

std::string Answer::to_json(std::int64_t line) const {
  boost::json::object json = {{"line", line}};
  if (!prompt_.id.empty()) {
    json["id"] = boost::json::parse(prompt_.id);
  }
  json["text"] = with_replacements(text_);
  json["prompt_tokens"] = prompt_.request.prompt.size();
  json["tokens"] = nullptr;  // sets the member's place; add_tokens() sets its value
  json["finish_reason"] = finish_reason();
  add_tokens(json, 0);
  if (prompt_.request.scored_from) {
    add_scores(json, 0, of_prompt_.size());
  }
  add_timings(json);
  return boost::json::serialize(json);
}

std::string Answer::event(std::string_view text, std::optional<std::string_view> reason) {
  constexpr std::size_t most_scores = 1024;
  const boost::json::value id = boost::json::parse(prompt_.id);
  std::string before;
  for (; of_prompt_.size() - told_of_prompt_ > most_scores; told_of_prompt_ += most_scores) {
    boost::json::object json = {{"id", id}, {"text", ""}, {"tokens", boost::json::array()}};
    add_scores(json, told_of_prompt_, told_of_prompt_ + most_scores);
    before += boost::json::serialize(json) + "\n";
  }
  boost::json::object json = {{"id", id}, {"text", with_replacements(text)}};
  add_tokens(json, told_);
  told_ = tokens_.size();
  if (told_of_prompt_ < of_prompt_.size()) {
    add_scores(json, told_of_prompt_, of_prompt_.size());
    told_of_prompt_ = of_prompt_.size();
  }
  if (reason) {
    json["finish_reason"] = *reason;
    json["prompt_tokens"] = prompt_.request.prompt.size();
    json["answer_tokens"] = tokens_.size();
    add_timings(json);
  }
  return before + boost::json::serialize(json) + "\n";
}

}  // namespace shardrun::infer
