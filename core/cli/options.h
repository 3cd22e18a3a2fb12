#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/cli/command.h"
#include "core/job/job.h"
#include "plugins/loader/plugin.h"

namespace shardrun::cli {

/// An option of a subcommand: `--name VALUE`, or a switch without a value.
struct OptionSyntax {
  std::string name;
  std::string value;  ///< the value's name in help texts; empty: the option is a switch
  std::string help;
  bool repeated = false;
  char letter = 0;  ///< a short name, such as o for -o; 0: none
  /// The option has no effect without one of these; empty: always has one.
  std::vector<std::string> needs{};
};

/// The parsed words of a command line.
struct Parsed {
  bool help_shown = false;
  std::vector<std::string> positional;
  std::vector<std::pair<std::string, std::string>> options;

  [[nodiscard]] bool has(std::string_view name) const;
  [[nodiscard]] std::optional<std::string> get(std::string_view name) const;
  [[nodiscard]] std::vector<std::string> all(std::string_view name) const;
  /// The value of an option; `otherwise` if it is not given. Both getters throw Error{usage} if the value is not a
  /// number of this type, or is outside [least, most].
  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t otherwise, std::int64_t least,
                                     std::int64_t most) const;
  [[nodiscard]] double real(std::string_view name, double otherwise, double least, double most) const;
};

/// Parses words by Boost.Program_options; `--help` prints usage and options. Throws Error{usage} for an unknown option
/// (naming the nearest one), a missing value, a repeated option, an option without another that it needs, or too few or
/// too many positional words.
[[nodiscard]] Parsed parse(const std::string& command, std::span<const std::string> words,
                           const std::vector<OptionSyntax>& syntax, std::size_t least_positional,
                           std::size_t most_positional);

/// The option --set, for every command that reads a job file.
[[nodiscard]] OptionSyntax set_option();
/// The option --replace, for commands that write a file.
[[nodiscard]] OptionSyntax replace_option();
/// The option --plugins, for commands without a job file.
[[nodiscard]] OptionSyntax plugins_option();
/// `option`, which has no effect without `other`.
[[nodiscard]] OptionSyntax needing(const std::string& other, OptionSyntax option);
/// The folders of --plugins, absolute. Throws Error{usage} if one is no folder.
[[nodiscard]] std::vector<std::filesystem::path> given_plugins(const Parsed& parsed);
/// Throws Error{usage} if `file` is empty, is a folder, or lies in a folder that does not exist. Also throws it if the
/// file exists and --replace is not given.
void require_new(const Parsed& parsed, const std::filesystem::path& file);
/// The options of a command whose job can continue from a checkpoint: `--resume[=FOLDER]`, which stands for a setting
/// of the job file, and `--force-data`.
[[nodiscard]] std::vector<OptionSyntax> resume_options();
/// The words, with `--resume` replaced by `--set checkpoint.resume=…`.
[[nodiscard]] std::vector<std::string> with_resume_set(std::span<const std::string> words);
/// Quotes a word for a shell, if necessary.
[[nodiscard]] std::string shell_word(const std::string& word);
/// The folders of plugins. `job_file`: the index of the positional word that names a job file, if there is one. Of that
/// file, only [plugins] must be valid. Throws Error{usage} if --set is given without a job file.
[[nodiscard]] plugins::Directories directories_of(const Parsed& parsed, std::size_t job_file);
/// Reads and checks the job file of a command line, with --set and, if the command has the option, `--force-data`.
/// Throws as read_job_file() and parse_job() do.
[[nodiscard]] job::Job read_job(const Parsed& parsed);
/// Checks a job that has been read.
[[nodiscard]] job::Job checked_job(const Parsed& parsed, const job::RawJob& raw);

}  // namespace shardrun::cli
