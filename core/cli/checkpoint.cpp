#include <fmt/format.h>

#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/cli/command.h"

namespace shardrun::cli {
namespace {

constexpr std::string_view family = "checkpoint ";

std::string checkpoint_usage() {
  std::string text = "usage: shardrun checkpoint COMMAND, of which --help says more\n\n";
  for (const Command& command : commands()) {
    if (command.name.starts_with(family)) {
      text += fmt::format("  {:<46} {}\n", command.name + " " + command.arguments, command.help);
    }
  }
  return text;
}

int checkpoint_command(std::span<const std::string> words) {
  if (const Command* const command = command_of_two("checkpoint", words)) {
    return command->run(words.subspan(1));
  }
  if (words.empty() || words[0] == "--help" || words[0] == "-h") {
    fmt::print("{}", checkpoint_usage());
    return words.empty() ? 2 : 0;
  }
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    if (command.name.starts_with(family)) {
      names.push_back(command.name.substr(family.size()));
    }
  }
  throw Error(ErrorCode::usage,
              fmt::format("checkpoint: there is no command '{}'{}; shardrun checkpoint --help lists them", words[0],
                          did_you_mean(words[0], names)));
}

const RegisterCommand checkpoint_family({.name = "checkpoint",
                                         .arguments = "COMMAND",
                                         .help = "what was saved",
                                         .run = checkpoint_command,
                                         .hidden = true});

}  // namespace
}  // namespace shardrun::cli
