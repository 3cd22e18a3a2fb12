#include <fmt/format.h>

#include <boost/json.hpp>
#include <filesystem>

#include "core/base/error.h"
#include "core/cli/options.h"
#include "core/files/folder.h"
#include "core/files/gguf.h"
#include "core/files/json.h"
#include "core/files/mapped_file.h"
#include "core/template/chat.h"

namespace shardrun::cli {
namespace {

/// The list in a JSON file. `what`: names it in errors.
boost::json::array json_list_in(const std::filesystem::path& file, std::string_view what) {
  constexpr std::size_t most = std::size_t{256} << 20U;
  const std::string name = files::human_path(file);
  const boost::json::value json = files::parse_json_strictly(files::read_text_file(file, most), name);
  if (!json.is_array()) {
    throw Error(ErrorCode::data, fmt::format("{}: expected a list of {} as JSON", name, what));
  }
  return json.get_array();
}

/// The variables of --set NAME=VALUE. A VALUE that is not JSON is a text.
boost::json::object settings_of(const Parsed& parsed) {
  boost::json::object settings;
  for (const std::string& setting : parsed.all("set")) {
    const std::size_t mark = setting.find('=');
    if (mark == 0 || mark == std::string::npos) {
      throw Error(ErrorCode::usage,
                  fmt::format("--set {}: expected NAME=VALUE, such as enable_thinking=false", setting));
    }
    const std::string value = setting.substr(mark + 1);
    boost::system::error_code failed;
    boost::json::value json = boost::json::parse(value, failed);
    settings[setting.substr(0, mark)] = failed ? boost::json::value(value) : std::move(json);
  }
  return settings;
}

int chat_template(std::span<const std::string> words) {
  const Parsed parsed = parse(
      "chat-template", words,
      {{.name = "tools", .value = "FILE", .help = "a list of tools as JSON, in the form that transformers takes"},
       {.name = "documents", .value = "FILE", .help = "a list of documents as JSON, for templates that quote them"},
       {.name = "template",
        .value = "NAME",
        .help =
            "which template, of a folder with several (default: tool_use with --tools, if there is one, else default)"},
       {.name = "no-generation-prompt", .help = "do not begin the answer"},
       {.name = "set",
        .value = "NAME=VALUE",
        .help = "a variable of the template, as JSON or text, such as enable_thinking=false; may be repeated",
        .repeated = true}},
      2, 2);
  if (parsed.help_shown) {
    return 0;
  }
  const std::filesystem::path folder = parsed.positional[0];
  std::error_code none;
  if (!std::filesystem::is_directory(folder, none) && !files::is_gguf(folder)) {
    throw Error(ErrorCode::usage, fmt::format("{} is neither a folder nor a GGUF file: give those of a model",
                                              files::human_path(folder)));
  }
  templates::Conversation conversation;
  conversation.messages = templates::read_messages(parsed.positional[1]);
  if (const std::optional<std::string> tools = parsed.get("tools")) {
    conversation.tools = json_list_in(*tools, "tools");
  }
  if (const std::optional<std::string> documents = parsed.get("documents")) {
    conversation.documents = json_list_in(*documents, "documents");
  }
  conversation.adds_generation_prompt = !parsed.has("no-generation-prompt");
  conversation.settings = settings_of(parsed);
  fmt::print("{}", templates::render_chat(templates::read_chat_format(folder), conversation,
                                          parsed.get("template").value_or("")));
  return 0;
}

const RegisterCommand chat_template_command({.name = "chat-template",
                                             .arguments = "FOLDER|FILE.gguf MESSAGES.json",
                                             .help = "print a conversation as the chat template of a model writes it",
                                             .run = chat_template});

}  // namespace
}  // namespace shardrun::cli
