#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::cli {

/// One subcommand. `run` is given the words after its name and returns the exit code; it throws Error.
struct Command {
  std::string name;
  std::string arguments;  ///< as the usage line shows them
  std::string help;       ///< one line
  int (*run)(std::span<const std::string> words) = nullptr;
  bool hidden = false;  ///< for the program itself: not listed
};

class RegisterCommand {
 public:
  explicit RegisterCommand(Command command);
};

/// By name.
[[nodiscard]] const std::vector<Command>& commands();

/// Chooses the subcommand and turns errors into a message and an exit code.
[[nodiscard]] int main(std::span<const std::string> words);

}  // namespace shardrun::cli
