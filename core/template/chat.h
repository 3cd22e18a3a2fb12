#pragma once

#include <boost/json.hpp>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardrun::templates {

/// The text of a chat template. `source` names its file in messages.
struct NamedText {
  std::string name;  ///< "default" if the model has only one template
  std::string text;
  std::string source;
};

/// The chat templates and special tokens of a model's folder (in the form of Hugging Face's libraries) or GGUF file.
struct ChatFormat {
  std::vector<NamedText> templates;
  boost::json::object special_tokens;    ///< by names such as bos_token
  std::optional<bool> adds_bos;          ///< whether BOS precedes plain text; nothing: the tokenizer decides
  std::optional<bool> adds_eos;          ///< whether EOS follows plain text; nothing: the tokenizer decides
  std::vector<std::int64_t> end_tokens;  ///< ids of tokens that end an answer
};

/// Reads a model's templates, special tokens and end tokens. A folder has the templates in chat_template.jinja and
/// additional_chat_templates/NAME.jinja, or else in tokenizer_config.json. It has special tokens in that file and in
/// special_tokens_map.json, and end tokens in generation_config.json. Every file can be missing. A GGUF file has all in
/// its metadata. Throws Error{data}.
[[nodiscard]] ChatFormat read_chat_format(const std::filesystem::path& model);

/// A conversation, and the other variables of a template.
struct Conversation {
  boost::json::array messages;
  boost::json::value tools;      ///< null: none
  boost::json::value documents;  ///< null: none
  bool adds_generation_prompt = true;
  boost::json::object settings;  ///< more variables, by name
};

/// Returns a list of messages. Throws Error{data} unless there is at least one, and each is an object with a text
/// `role` and a `content` that is a text or a list of parts. A message with `tool_calls` needs no content. `source`
/// names the place of the list in error messages.
[[nodiscard]] boost::json::array checked_messages(const boost::json::value& json, std::string_view source);
/// Reads a JSON file with such a list. Throws Error{data}.
[[nodiscard]] boost::json::array read_messages(const std::filesystem::path& file);

/// Renders a conversation as transformers' apply_chat_template() does. `name`: the template to use; if it is empty,
/// uses "tool_use" if the conversation has tools and that template exists, otherwise "default".
/// Throws Error{data, usage}.
[[nodiscard]] std::string render_chat(const ChatFormat& format, const Conversation& conversation,
                                      const std::string& name = {});

}  // namespace shardrun::templates
