#pragma once

#include <boost/json.hpp>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace shardrun::templates {

/// A template's text. `source` names it in messages.
struct NamedText {
  std::string name;  ///< "default" for the only one
  std::string text;
  std::string source;
};

/// What a folder of Hugging Face's libraries, or a GGUF file, says of conversations.
struct ChatFormat {
  std::vector<NamedText> templates;
  boost::json::object special_tokens;    ///< by name, such as bos_token
  std::optional<bool> adds_bos;          ///< to a text that is no conversation; nothing: as the tokenizer does
  std::optional<bool> adds_eos;          ///< likewise
  std::vector<std::int64_t> end_tokens;  ///< tokens that end an answer, of generation_config.json or the GGUF file
};

/// Reads chat_template.jinja and additional_chat_templates/NAME.jinja, or else chat_template of tokenizer_config.json;
/// the special tokens of tokenizer_config.json; generation_config.json. All may be missing. Of a GGUF file: its
/// metadata. Throws Error{data}.
[[nodiscard]] ChatFormat read_chat_format(const std::filesystem::path& model);

/// A conversation, and what else a template may use.
struct Conversation {
  boost::json::array messages;
  boost::json::value tools;      ///< null: none
  boost::json::value documents;  ///< null: none
  bool adds_generation_prompt = true;
  boost::json::object settings;  ///< further variables
};

/// The text of a conversation, as transformers' apply_chat_template() makes it. `name`: of the template; empty:
/// tool_use for a conversation with tools, if there is one, else default. Throws Error{data, usage}.
[[nodiscard]] std::string render_chat(const ChatFormat& format, const Conversation& conversation,
                                      const std::string& name = {});

}  // namespace shardrun::templates
