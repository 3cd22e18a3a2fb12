#include "core/cli/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <charconv>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/compile/plugins.h"
#include "core/files/folder.h"
#include "core/job/hints.h"
#include "core/job/output.h"
#include "core/launch/world.h"

namespace shardrun::cli {
namespace {

namespace po = boost::program_options;

po::options_description describe(const std::string& command, const std::vector<OptionSyntax>& syntax) {
  po::options_description description("options of shardrun " + command);
  description.add_options()("help,h", "show this");
  for (const OptionSyntax& option : syntax) {
    const std::string names = option.letter == 0 ? option.name : fmt::format("{},{}", option.name, option.letter);
    if (option.value.empty()) {
      description.add_options()(names.c_str(), option.help.c_str());
    } else {
      description.add_options()(names.c_str(), po::value<std::vector<std::string>>()->value_name(option.value),
                                option.help.c_str());
    }
  }
  return description;
}

const Command& command_named(const std::string& name) {
  for (const Command& command : commands()) {
    if (command.name == name) {
      return command;
    }
  }
  throw Error(ErrorCode::internal, fmt::format("no command is called '{}'", name));
}

[[noreturn]] void refuse(const std::string& command, const std::string& what) {
  throw Error(ErrorCode::usage, fmt::format("{}: {}; shardrun {} --help lists the options", command, what, command));
}

std::vector<po::option> split(const std::string& command, std::span<const std::string> words,
                              const po::options_description& description) {
  try {
    const std::vector<std::string> copy(words.begin(), words.end());
    const int style = po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
    return po::command_line_parser(copy).options(description).style(style).allow_unregistered().run().options;
  } catch (const po::error& error) {
    refuse(command, error.what());
  }
}

/// A hint for an unknown option, such as " (a setting of the job file: --set job.ranks=VALUE)"; "" if no setting has
/// this name, or if the command has no --set.
std::string as_setting(const std::string& name, const std::vector<OptionSyntax>& syntax) {
  if (std::ranges::find(syntax, "set", &OptionSyntax::name) == syntax.end()) {
    return "";
  }
  std::vector<std::string> found;
  for (const bool of_others : {false, true}) {
    for (const job::KnownKeys& known : job::known_keys()) {
      for (const OptionSpec& spec : known.specs) {
        const auto is_alike = [&](std::string_view other) { return folded(other) == folded(name); };
        if (of_others ? std::ranges::any_of(spec.aliases, is_alike, &Alias::name) : is_alike(spec.name)) {
          found.push_back(fmt::format("--set {}.{}=VALUE", known.section, spec.name));
        }
      }
    }
    if (!found.empty()) {
      return fmt::format(" (a setting of the job file: {})", fmt::join(found, ", or "));
    }
  }
  return "";
}

}  // namespace

bool Parsed::has(std::string_view name) const { return get(name).has_value(); }

std::optional<std::string> Parsed::get(std::string_view name) const {
  for (const auto& [key, value] : options) {
    if (key == name) {
      return value;
    }
  }
  return std::nullopt;
}

std::vector<std::string> Parsed::all(std::string_view name) const {
  std::vector<std::string> values;
  for (const auto& [key, value] : options) {
    if (key == name) {
      values.push_back(value);
    }
  }
  return values;
}

namespace {

template <typename T>
T number(const std::optional<std::string>& text, std::string_view name, T otherwise, T least, T most) {
  if (!text) {
    return otherwise;
  }
  T value{};
  const auto [end, fault] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (fault != std::errc() || end != text->data() + text->size() || !(value >= least && value <= most)) {
    throw Error(ErrorCode::usage,
                fmt::format("--{}: expected a number from {} to {}, found '{}'", name, least, most, *text));
  }
  return value;
}

}  // namespace

std::int64_t Parsed::integer(std::string_view name, std::int64_t otherwise, std::int64_t least,
                             std::int64_t most) const {
  return number(get(name), name, otherwise, least, most);
}

double Parsed::real(std::string_view name, double otherwise, double least, double most) const {
  return number(get(name), name, otherwise, least, most);
}

Parsed parse(const std::string& command, std::span<const std::string> words, const std::vector<OptionSyntax>& syntax,
             std::size_t least_positional, std::size_t most_positional) {
  const po::options_description description = describe(command, syntax);
  Parsed parsed;
  std::vector<std::string> names = {"help"};
  for (const OptionSyntax& option : syntax) {
    names.push_back(option.name);
  }
  for (const po::option& option : split(command, words, description)) {
    if (option.string_key.empty()) {
      parsed.positional.insert(parsed.positional.end(), option.value.begin(), option.value.end());
      continue;
    }
    if (option.unregistered) {
      const std::string setting = as_setting(option.string_key, syntax);
      const std::string_view near = nearest_name(option.string_key, names);
      refuse(command, fmt::format("unknown option '{}'{}",
                                  option.original_tokens.empty() ? option.string_key : option.original_tokens[0],
                                  !setting.empty() ? setting
                                  : near.empty()   ? ""
                                                   : fmt::format(" (did you mean '--{}'?)", near)));
    }
    if (option.string_key == "help") {
      parsed.help_shown = true;
    }
    parsed.options.emplace_back(option.string_key, option.value.empty() ? "" : option.value[0]);
  }
  if (parsed.help_shown) {
    const Command& known = command_named(command);
    std::ostringstream options;
    options << description;
    fmt::print("usage: shardrun {} {}\n\n{}\n\n{}", known.name, known.arguments, known.help, options.str());
    return parsed;
  }
  for (const OptionSyntax& option : syntax) {
    if (!option.repeated && parsed.all(option.name).size() > 1) {
      refuse(command, fmt::format("--{} is given more than once", option.name));
    }
    if (parsed.has(option.name) && !option.needs.empty() &&
        std::ranges::none_of(option.needs, [&](const std::string& other) { return parsed.has(other); })) {
      refuse(command, fmt::format("--{} has no effect without --{}: leave it out, or give both", option.name,
                                  fmt::join(option.needs, " or --")));
    }
  }
  if (parsed.positional.size() < least_positional) {
    refuse(command, fmt::format("expected {}", command_named(command).arguments));
  }
  if (parsed.positional.size() > most_positional) {
    refuse(command, fmt::format("did not expect '{}'", parsed.positional[most_positional]));
  }
  return parsed;
}

OptionSyntax set_option() {
  return {.name = "set",
          .value = "SECTION.KEY=VALUE",
          .help = "override a setting of the job file (may be repeated)",
          .repeated = true};
}

OptionSyntax replace_option() { return {.name = "replace", .help = "write the file even if it exists"}; }

OptionSyntax plugins_option() {
  return {.name = "plugins",
          .value = "PATH",
          .help = "a folder with plugins, searched first (may be repeated)",
          .repeated = true};
}

OptionSyntax needing(const std::string& other, OptionSyntax option) {
  option.needs = {other};
  return option;
}

std::vector<std::filesystem::path> given_plugins(const Parsed& parsed) {
  std::vector<std::filesystem::path> folders;
  for (const std::string& folder : parsed.all("plugins")) {
    std::error_code failed;
    if (!std::filesystem::is_directory(folder, failed)) {
      throw Error(ErrorCode::usage, fmt::format("--plugins {}: it is no folder: name the folder that has the plugins' "
                                                "files, shardrun_KIND_NAME.so",
                                                folder));
    }
    folders.push_back(std::filesystem::absolute(folder).lexically_normal());
  }
  return folders;
}

void require_new(const Parsed& parsed, const std::filesystem::path& file) {
  std::error_code none;
  if (file.empty()) {
    throw Error(ErrorCode::usage, "the file to write has an empty name: name a file");
  }
  if (!file.has_filename() || std::filesystem::is_directory(file, none)) {
    throw Error(ErrorCode::usage, fmt::format("'{}' is a folder: name a file", files::human_path(file)));
  }
  if (const std::filesystem::path folder = file.parent_path();
      !folder.empty() && !std::filesystem::is_directory(folder, none)) {
    throw Error(ErrorCode::usage, fmt::format("'{}': there is no folder '{}': make it, or choose another",
                                              files::human_path(file), files::human_path(folder)));
  }
  if (!parsed.has("replace") && std::filesystem::exists(std::filesystem::symlink_status(file, none))) {
    throw Error(ErrorCode::usage,
                fmt::format("'{}' exists: choose another name, or replace it with --replace", files::human_path(file)));
  }
}

std::vector<OptionSyntax> resume_options() {
  return {{.name = "resume",
           .help = "go on from the newest checkpoint of this job, if there is one; --resume=FOLDER: from that "
                   "checkpoint, or the newest one there"},
          {.name = "force-data", .help = "go on from a checkpoint with other data, or another seed, than before"}};
}

std::vector<std::string> with_resume_set(std::span<const std::string> words) {
  std::vector<std::string> spelled;
  for (const std::string& word : words) {
    constexpr std::string_view with_folder = "--resume=";
    if (word == "--resume") {
      spelled.insert(spelled.end(), {"--set", "checkpoint.resume=auto"});
    } else if (word.starts_with(with_folder)) {
      spelled.insert(spelled.end(), {"--set", "checkpoint.resume=" + word.substr(with_folder.size())});
    } else {
      spelled.push_back(word);
    }
  }
  return spelled;
}

std::string shell_word(const std::string& word) {
  constexpr std::string_view plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) {
    return word;
  }
  std::string text = "'";
  for (const char c : word) {
    text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return text + "'";
}

plugins::Directories directories_of(const Parsed& parsed, std::size_t job_file) {
  if (job_file < parsed.positional.size()) {
    return compile::directories_of(
        job::plugin_path(job::read_job_file(parsed.positional[job_file], parsed.all("set"))));
  }
  if (parsed.has("set")) {
    throw Error(ErrorCode::usage, "--set changes a job file: name one");
  }
  return compile::directories_of({});
}

job::Job read_job(const Parsed& parsed) {
  const std::vector<std::string> overrides = parsed.all("set");
  return checked_job(parsed, job::read_job_file(parsed.positional.at(0), overrides));
}

job::Job checked_job(const Parsed& parsed, const job::RawJob& raw) {
  job::SchemaProviders providers = compile::schema_providers();
  if (parsed.get("launch").value_or("") != "here") {
    providers.automatic_ranks = [here = providers.automatic_ranks](const job::Job& job) {
      const std::optional<launch::World> world = launch::world_of();
      return world ? world->size : here(job);
    };
  }
  job::Job job = job::parse_job(raw, providers);
  job::check_output(job);
  job.checkpoints.force_data = parsed.has("force-data");
  return job;
}

}  // namespace shardrun::cli
