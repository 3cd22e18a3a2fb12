#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::cli {

/// One subcommand. `run` gets the words after the command's name. It returns the exit code or throws Error.
struct Command {
  std::string name;
  std::string arguments;  ///< the arguments, as in the usage line
  std::string help;       ///< one line that says what the command does
  int (*run)(std::span<const std::string> words) = nullptr;
  bool hidden = false;  ///< whether only the program itself calls the command, which is then not listed
};

class RegisterCommand {
 public:
  explicit RegisterCommand(Command command);
};

/// All subcommands, sorted by name.
[[nodiscard]] const std::vector<Command>& commands();

/// The command whose name is two words, such as 'plugins check': `first` and the first of `words`.
/// Null if there is none.
[[nodiscard]] const Command* command_of_two(std::string_view first, std::span<const std::string> words);

/// Reports an error in a line on standard error and, if `json`, as an object on standard output. Returns `exit_code`.
int tell_error(const std::string& message, int exit_code, bool json);

/// Runs the subcommand that the words name. Turns errors into a message and an exit code.
[[nodiscard]] int main(std::span<const std::string> words);

}  // namespace shardrun::cli
