#include "core/cli/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/standard_error.h"
#include "core/base/stop.h"
#include "core/base/suggest.h"
#include "plugins/loader/guard.h"

namespace shardrun::cli {
namespace {

std::vector<Command>& registry() {
  static std::vector<Command> commands;
  return commands;
}

std::string usage() {
  std::string text =
      "shardrun: sharded training, inference and simulation\n\n"
      "usage: shardrun job.ini [options]       the same as: shardrun run job.ini [options]\n"
      "       shardrun COMMAND [options]       shardrun COMMAND --help says which\n\n"
      "commands:\n";
  for (const Command& command : commands()) {
    if (command.hidden) {
      continue;
    }
    text += fmt::format("  {:<28} {}\n", command.name + " " + command.arguments, command.help);
  }
  return text +
         "\nexit codes:\n"
         "  0       ok\n"
         "  1       the job failed\n"
         "  2       bad usage or job file\n"
         "  75      stopped, of a job with checkpoints: the last line says how to go on\n"
         "  128+n   stopped by signal n\n";
}

const Command* find(std::string_view name) {
  const auto found =
      std::find_if(commands().begin(), commands().end(), [&](const Command& c) { return c.name == name; });
  return found == commands().end() ? nullptr : &*found;
}

/// A word that is no command is a job file if it looks like one.
bool looks_like_job(const std::string& word) {
  std::error_code ignored;
  return word.ends_with(".ini") || word.find('/') != std::string::npos || std::filesystem::exists(word, ignored);
}

/// SHARDRUN_PLUGIN_TIMEOUT, in seconds: of the environment, since plugins are loaded before there is a job.
void set_call_limit_of_plugins() {
  constexpr const char* name = "SHARDRUN_PLUGIN_TIMEOUT";
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == '\0') {
    return;
  }
  const std::string_view given(text);
  int seconds = 0;
  const auto [end, failed] = std::from_chars(given.data(), given.data() + given.size(), seconds);
  if (failed != std::errc() || end != given.data() + given.size() || seconds < 1 || seconds > 86'400) {
    throw Error(ErrorCode::usage,
                fmt::format("{} is '{}', expected whole seconds from 1 to 86400, in which a plugin must load, open or "
                            "write a plan",
                            name, given));
  }
  plugins::set_call_limit(std::chrono::seconds(seconds));
}

int dispatch(std::span<const std::string> words) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h") {
    fmt::print("{}", usage());
    return words.empty() ? 2 : 0;
  }
  if (words[0] == "--version") {
    fmt::print("shardrun {}\n", SHARDRUN_VERSION);
    return 0;
  }
  if (const Command* command = find(words[0])) {
    return command->run(words.subspan(1));
  }
  if (words[0].starts_with("-") || looks_like_job(words[0])) {
    return find("run")->run(words);
  }
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    names.push_back(command.name);
  }
  throw Error(ErrorCode::usage,
              fmt::format("'{}' is neither a command nor a job file{}; shardrun --help lists the commands", words[0],
                          did_you_mean(words[0], names)));
}

}  // namespace

RegisterCommand::RegisterCommand(Command command) {
  std::vector<Command>& all = registry();
  all.push_back(std::move(command));
  std::sort(all.begin(), all.end(), [](const Command& a, const Command& b) { return a.name < b.name; });
}

const std::vector<Command>& commands() { return registry(); }

const Command* command_of_two(std::string_view first, std::span<const std::string> words) {
  return words.empty() ? nullptr : find(fmt::format("{} {}", first, words[0]));
}

int main(std::span<const std::string> words) {
  try {
    set_call_limit_of_plugins();
    const int code = dispatch(words);
    if (std::fflush(stdout) != 0 && code == 0) {
      throw Error(ErrorCode::io, "standard output cannot be written: what was printed is incomplete");
    }
    return code;
  } catch (const Stopped& stopped) {
    write_to_standard_error(fmt::format("shardrun: stopped by SIG{}\n", sigabbrev_np(stopped.signal())));
    return 128 + stopped.signal();
  } catch (const Error& error) {
    write_to_standard_error(fmt::format("shardrun: {}\n", error.message()));
    return exit_code(error.code());
  } catch (const std::bad_alloc&) {
    write_to_standard_error("shardrun: out of memory\n");
    return 1;
  } catch (const std::exception& error) {
    write_to_standard_error(fmt::format("shardrun: unexpected error: {}\n", error.what()));
    return 1;
  }
}

}  // namespace shardrun::cli
