#include "core/template/chat.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/files/folder.h"
#include "core/files/gguf.h"
#include "core/files/json.h"
#include "core/files/mapped_file.h"
#include "core/template/template.h"
#include "core/text/gguf_tokenizer.h"

namespace shardrun::templates {
namespace {

constexpr std::size_t most_file_bytes = std::size_t{16} << 20U;

/// Parses a JSON file that has an object. Returns an empty object if the file does not exist.
boost::json::object object_in(const std::filesystem::path& file) {
  std::error_code none;
  if (!std::filesystem::exists(file, none)) {
    return {};
  }
  const boost::json::value json =
      files::parse_json_strictly(files::read_text_file(file, most_file_bytes), files::human_path(file));
  if (!json.is_object()) {
    throw Error(ErrorCode::data, fmt::format("cannot read {}: it is not a JSON object", files::human_path(file)));
  }
  return json.get_object();
}

NamedText text_in(const std::filesystem::path& file, std::string name) {
  return {std::move(name), files::read_text_file(file, most_file_bytes), files::human_path(file)};
}

std::vector<NamedText> template_files(const std::filesystem::path& folder) {
  std::vector<NamedText> found;
  std::error_code none;
  if (const std::filesystem::path file = folder / "chat_template.jinja"; std::filesystem::exists(file, none)) {
    found.push_back(text_in(file, "default"));
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder / "additional_chat_templates", none)) {
    if (entry.path().extension() == ".jinja") {
      found.push_back(text_in(entry.path(), entry.path().stem().native()));
    }
  }
  std::ranges::sort(found, {}, &NamedText::name);
  return found;
}

/// The templates in `chat_template` of a tokenizer_config.json. It is a text, or a list of objects with name and text.
std::vector<NamedText> templates_in(const boost::json::object& config, const std::string& source) {
  const boost::json::value* const value = config.if_contains("chat_template");
  if (value == nullptr || value->is_null()) {
    return {};
  }
  if (value->is_string()) {
    return {{"default", std::string(value->get_string()), source + ", chat_template"}};
  }
  std::vector<NamedText> found;
  for (const boost::json::value& one : value->is_array() ? value->get_array() : boost::json::array{nullptr}) {
    const boost::json::object* const object = one.if_object();
    const boost::json::value* const name = object == nullptr ? nullptr : object->if_contains("name");
    const boost::json::value* const text = object == nullptr ? nullptr : object->if_contains("template");
    if (name == nullptr || text == nullptr || !name->is_string() || name->get_string().empty() || !text->is_string()) {
      throw Error(ErrorCode::data,
                  fmt::format("{}: chat_template: expected a text, or a list of objects with the texts "
                              "\"name\" and \"template\"",
                              source));
    }
    const std::string named(name->get_string());
    found.push_back({named, std::string(text->get_string()),
                     fmt::format("{}, chat_template \"{}\"", source, shardrun::shown(named))});
  }
  return found;
}

/// Adds a special token. `value`: its text, or an object with the text as `content`.
void add_token(boost::json::object& tokens, std::string_view name, const boost::json::value& value) {
  const boost::json::object* const object = value.if_object();
  const boost::json::value* const content = object == nullptr ? &value : object->if_contains("content");
  if (content != nullptr && content->is_string()) {
    tokens[name] = *content;
  }
}

boost::json::object special_tokens_of(const boost::json::object& config, const boost::json::object& map) {
  constexpr std::array<std::string_view, 7> names = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                     "pad_token", "cls_token", "mask_token"};
  boost::json::object tokens;
  for (const std::string_view name : names) {
    for (const boost::json::object* const from : {&map, &config}) {
      if (const boost::json::value* const value = from->if_contains(name)) {
        add_token(tokens, name, *value);
      }
    }
  }
  const boost::json::value* const extra = config.if_contains("extra_special_tokens");
  if (extra != nullptr && extra->is_object()) {
    for (const auto& [name, value] : extra->get_object()) {
      add_token(tokens, name, value);
    }
  }
  return tokens;
}

std::optional<bool> flag_in(const boost::json::object& config, std::string_view name) {
  const boost::json::value* const value = config.if_contains(name);
  return value != nullptr && value->is_bool() ? std::optional<bool>(value->get_bool()) : std::nullopt;
}

/// The text of a JSON value for error messages; "none" for null.
std::string shown(const boost::json::value* value) {
  constexpr std::size_t most = 40;
  if (value == nullptr) {
    return "none";
  }
  const std::string text = boost::json::serialize(*value);
  return text.size() <= most  ? printable(text)
         : value->is_array()  ? "a list"
         : value->is_object() ? "an object"
                              : "a long text";
}

std::vector<std::int64_t> end_tokens_in(const std::filesystem::path& file) {
  const boost::json::object config = object_in(file);
  const boost::json::value* const value = config.if_contains("eos_token_id");
  std::vector<std::int64_t> tokens;
  if (value == nullptr || value->is_null()) {
    return tokens;
  }
  for (const boost::json::value& one : value->is_array() ? value->get_array() : boost::json::array{*value}) {
    if (!one.is_int64() || one.get_int64() < 0) {
      throw Error(ErrorCode::data, fmt::format("{}: eos_token_id: expected a token, or a list of them, found {}",
                                               files::human_path(file), shown(&one)));
    }
    tokens.push_back(one.get_int64());
  }
  return tokens;
}

const NamedText& chosen_template(const ChatFormat& format, const Conversation& conversation, const std::string& name) {
  if (format.templates.empty()) {
    throw Error(ErrorCode::data,
                "the model has no chat template: neither chat_template.jinja nor chat_template in "
                "tokenizer_config.json of a folder, nor tokenizer.chat_template in a GGUF file; give the model's text "
                "with --prompt");
  }
  const auto find = [&](std::string_view wanted) {
    return std::ranges::find(format.templates, wanted, &NamedText::name);
  };
  auto found = find(name);
  if (name.empty()) {
    found = conversation.tools.is_null() ? format.templates.end() : find("tool_use");
    found = found != format.templates.end() ? found : find("default");
  }
  if (found == format.templates.end()) {
    std::vector<std::string> names;
    std::ranges::transform(format.templates, std::back_inserter(names),
                           [](const NamedText& each) { return shardrun::shown(each.name); });
    throw Error(ErrorCode::usage,
                fmt::format("the model has no chat template '{}'; it has {}: choose one with --template (the first is "
                            "in {})",
                            name.empty() ? "default" : name, fmt::join(names, ", "), format.templates.front().source));
  }
  return *found;
}

/// Prepares messages as transformers does: drops fields that are null, and gives a message's reasoning under the names
/// "thinking" and "reasoning_content", too.
boost::json::array normalized_messages(const boost::json::array& messages) {
  boost::json::array made;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const boost::json::object* const message = messages[i].if_object();
    if (message == nullptr) {
      throw Error(ErrorCode::data, fmt::format("message {}: expected an object with \"role\" and \"content\"", i));
    }
    boost::json::object kept;
    for (const auto& [name, value] : *message) {
      if (!value.is_null()) {
        kept[name] = value;
      }
    }
    for (const std::string_view name : {"reasoning_content", "thinking", "reasoning"}) {
      const boost::json::value* const reasoning = kept.if_contains(name);
      if (reasoning == nullptr) {
        continue;
      }
      const boost::json::value copy = *reasoning;
      boost::json::object with{{"thinking", copy}};
      for (const auto& [key, value] : kept) {
        with[key] = value;
      }
      with["reasoning_content"] = copy;
      kept = std::move(with);
      break;
    }
    made.push_back(std::move(kept));
  }
  return made;
}

ChatFormat chat_format_in_gguf(const std::filesystem::path& path) {
  const files::GgufContents gguf = files::parse_gguf(files::SteadyFile(path));
  const std::string source = files::human_path(path);
  const text::GgufChat chat = text::gguf_chat(gguf, source);
  ChatFormat format;
  if (!chat.chat_template.empty()) {
    format.templates.push_back({"default", chat.chat_template, source + ": tokenizer.chat_template"});
  }
  for (const auto& [name, token] : {std::pair("bos_token", &chat.bos), std::pair("eos_token", &chat.eos)}) {
    if (!token->empty()) {
      format.special_tokens[name] = *token;
    }
  }
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (const std::optional<std::int64_t> token = gguf.integer(key, source)) {
      format.end_tokens.push_back(*token);
    }
  }
  return format;
}

}  // namespace

ChatFormat read_chat_format(const std::filesystem::path& model) {
  if (files::is_gguf(model)) {
    return chat_format_in_gguf(model);
  }
  const std::filesystem::path file = model / "tokenizer_config.json";
  const boost::json::object config = object_in(file);
  ChatFormat format;
  format.templates = template_files(model);
  if (format.templates.empty()) {
    format.templates = templates_in(config, files::human_path(file));
  }
  format.special_tokens = special_tokens_of(config, object_in(model / "special_tokens_map.json"));
  format.adds_bos = flag_in(config, "add_bos_token");
  format.adds_eos = flag_in(config, "add_eos_token");
  format.end_tokens = end_tokens_in(model / "generation_config.json");
  return format;
}

boost::json::array checked_messages(const boost::json::value& json, std::string_view source) {
  const boost::json::array* const messages = json.if_array();
  if (messages == nullptr || messages->empty()) {
    throw Error(ErrorCode::data, fmt::format("{}: expected a list of at least one message as JSON, such as "
                                             "[{{\"role\": \"user\", \"content\": \"Hello\"}}], found {}",
                                             source, json.is_null() ? "nothing" : shown(&json)));
  }
  const auto fault = [&](std::size_t i, std::string_view expected, const boost::json::value* found) {
    return Error(ErrorCode::data, fmt::format("{}: message {} of {}: expected {}, found {}", source, i + 1,
                                              messages->size(), expected, shown(found)));
  };
  for (std::size_t i = 0; i < messages->size(); ++i) {
    const boost::json::object* const message = (*messages)[i].if_object();
    if (message == nullptr) {
      throw fault(i, "an object with \"role\" and \"content\"", &(*messages)[i]);
    }
    const boost::json::value* const role = message->if_contains("role");
    if (role == nullptr || !role->is_string()) {
      throw fault(i, "a text as its \"role\"", role);
    }
    const boost::json::value* const content = message->if_contains("content");
    const bool may_lack = message->contains("tool_calls") && (content == nullptr || content->is_null());
    if (!may_lack && (content == nullptr || !(content->is_string() || content->is_array()))) {
      throw fault(i, "a text, or a list of parts, as its \"content\"", content);
    }
  }
  return *messages;
}

boost::json::array read_messages(const std::filesystem::path& file) {
  constexpr std::size_t most = std::size_t{256} << 20U;
  const std::string source = files::human_path(file);
  const std::string text = files::read_text_file(file, most);
  const bool is_empty = text.find_first_not_of(" \t\r\n") == std::string::npos;
  return checked_messages(is_empty ? boost::json::value() : files::parse_json_strictly(text, source), source);
}

std::string render_chat(const ChatFormat& format, const Conversation& conversation, const std::string& name) {
  const NamedText& chosen = chosen_template(format, conversation, name);
  if (conversation.messages.empty()) {
    throw Error(ErrorCode::data, "the conversation is empty: give at least one message");
  }
  boost::json::object context{{"messages", normalized_messages(conversation.messages)},
                              {"tools", conversation.tools},
                              {"documents", conversation.documents},
                              {"add_generation_prompt", conversation.adds_generation_prompt}};
  for (const boost::json::object* const more : {&format.special_tokens, &conversation.settings}) {
    for (const auto& [key, value] : *more) {
      context[key] = value;
    }
  }
  return Template::parse(chosen.text, chosen.source).render(context);
}

}  // namespace shardrun::templates
