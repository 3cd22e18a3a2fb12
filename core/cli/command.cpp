#include "core/cli/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <system_error>

#include "core/base/error.h"
#include "core/base/standard_error.h"
#include "core/base/stop.h"
#include "core/base/suggest.h"
#include "core/base/text.h"
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

struct OtherName {
  std::vector<std::string_view> names;
  std::string_view meaning;
};

/// Our command for a word that is a command of another program; "" if none is known.
std::string_view meaning_of(std::string_view word) {
  static const std::vector<OtherName> all = {
      {{"train", "fit", "start", "launch", "exec", "execute", "submit"}, "'shardrun JOB.ini' runs a job"},
      {{"resume", "continue", "restart"}, "'shardrun JOB.ini --resume' goes on from a job's newest checkpoint"},
      {{"eval", "validate", "test", "perplexity", "lm_eval"},
       "'shardrun evaluate RUN --text FILE' measures a language model; 'shardrun JOB.ini --set train.steps=0' "
       "evaluates "
       "any job's model as it begins, and with 'checkpoint.resume' and as many steps as the checkpoint a trained one"},
      {{"sample", "complete", "chat"},
       "'shardrun generate RUN' samples from a trained model, 'shardrun generate FOLDER --message TEXT' answers, and "
       "'shardrun generate FOLDER --chat' talks"},
      {{"server", "api", "http"}, "'shardrun serve FOLDER' answers over HTTP"},
      {{"infer", "inference", "apply"},
       "'shardrun predict RUN --from x.npy' applies a trained model to arrays, and 'shardrun JOB.ini' runs a job with "
       "[job] task = infer"},
      {{"iterate", "simulate"}, "a job with [job] task = iterate simulates, and 'shardrun JOB.ini' runs it"},
      {{"export", "convert"}, "'shardrun checkpoint export' writes a checkpoint's weights"},
      {{"import"}, "'shardrun checkpoint import' makes a checkpoint of weights"},
      {{"list", "ls", "checkpoints"}, "'shardrun checkpoint list' shows checkpoints, 'shardrun plugins' plugins"},
      {{"show", "info", "inspect"}, "'shardrun checkpoint show' shows a checkpoint, 'shardrun plan' a job"},
      {{"check"},
       "'shardrun plan JOB.ini' checks a job, 'shardrun verify JOB.ini' its numbers, 'shardrun plugins check' a "
       "plugin"},
      {{"estimate", "dry-run", "dryrun"}, "'shardrun plan JOB.ini' says what a job needs"},
      {{"plot", "draw", "image", "animate", "render", "visualize"}, "'shardrun picture' draws a saved field"},
      {{"dashboard", "compare", "view", "html"}, "'shardrun report RUN' makes a page about one or several runs"},
      {{"dump", "cat"}, "'shardrun gather' prints a saved state"},
      {{"version"}, "'shardrun --version' prints the version"},
  };
  for (const OtherName& other : all) {
    if (std::ranges::find(other.names, word) != other.names.end()) {
      return other.meaning;
    }
  }
  return "";
}

/// Whether a word that is not a command can be the name of a job file.
bool looks_like_job(const std::string& word) {
  std::error_code ignored;
  return word.ends_with(".ini") || word.find('/') != std::string::npos || std::filesystem::exists(word, ignored);
}

/// Reads SHARDRUN_PLUGIN_TIMEOUT (seconds). This limit is an environment variable because plugins are loaded before the
/// job file is read. Throws Error{usage}.
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

/// Checks what every command needs of the system. Throws Error{usage}.
void require_surroundings() {
  std::error_code failed;
  static_cast<void>(std::filesystem::read_symlink("/proc/self/exe", failed));
  if (failed) {
    throw Error(ErrorCode::usage,
                fmt::format("/proc/self/exe cannot be read ({}): shardrun needs /proc, so mount it (mount -t proc proc "
                            "/proc)",
                            failed.message()));
  }
  static_cast<void>(std::filesystem::current_path(failed));
  if (failed) {
    throw Error(
        ErrorCode::usage,
        fmt::format("the working directory cannot be found ({}): it was removed, or a folder above it may not be "
                    "read; change to another one",
                    failed.message()));
  }
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
  require_surroundings();
  if (const Command* command = find(words[0])) {
    return command->run(words.subspan(1));
  }
  if (words[0].starts_with("-") || looks_like_job(words[0])) {
    return find("run")->run(words);
  }
  if (const std::string_view meaning = meaning_of(words[0]); !meaning.empty()) {
    throw Error(ErrorCode::usage, fmt::format("'{}' is no command: {}", words[0], meaning));
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

int tell_error(const std::string& message, int exit_code, bool json) {
  if (json) {
    const boost::json::object object{{"status", "failed"}, {"exit_code", exit_code}, {"error", message}};
    fmt::print("{}\n", boost::json::serialize(object));
    std::fflush(stdout);
  }
  write_to_standard_error(fmt::format("shardrun: {}\n", printable_lines(message)));
  return exit_code;
}

int main(std::span<const std::string> words) {
  const bool json = std::ranges::find(words, "--json") != words.end();
  try {
    set_call_limit_of_plugins();
    const int code = dispatch(words);
    if (std::fflush(stdout) != 0 && code == 0) {
      throw Error(ErrorCode::io, "standard output cannot be written: what was printed is incomplete");
    }
    return code;
  } catch (const Stopped& stopped) {
    return tell_error(fmt::format("stopped by SIG{}", sigabbrev_np(stopped.signal())), 128 + stopped.signal(), json);
  } catch (const Error& error) {
    return tell_error(error.message(), exit_code(error.code()), json);
  } catch (const std::bad_alloc&) {
    return tell_error("out of memory", 1, json);
  } catch (const std::exception& error) {
    return tell_error(fmt::format("unexpected error: {}", error.what()), 1, json);
  }
}

}  // namespace shardrun::cli
