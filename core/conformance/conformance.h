#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/loader/plugin.h"

namespace shardrun::conformance {

/// The result of one case for a plugin.
struct Finding {
  std::string name;                     ///< name of the case
  std::string problem;                  ///< the problem of every rank that had one; empty: the case passed
  std::vector<std::string> notes = {};  ///< for a case that passed: what it left out, and why
  bool is_skipped = false;              ///< no case can run here; `problem` says why. It is then the only finding
};

/// The outcome as a word for people: "ok    ", "FAILED" or "skipped".
[[nodiscard]] std::string_view outcome_of(const Finding& finding) noexcept;

// The beginnings of `problem` in findings that are skipped.

/// The transport does not move host memory, which the cases need. The text goes on with whether it opens here.
inline constexpr const char* only_host_memory =
    "it does not move host memory, which is all that these cases have: nothing was checked";

/// The transport works only in ranks that a launcher of its own starts.
inline constexpr const char* only_own_launcher =
    "it opens only in ranks that a launcher of its own (mpirun, srun) has started: nothing was checked";

/// The model or engine refuses all the small jobs that the cases try. The text goes on with its first refusal.
inline constexpr const char* only_with_options =
    "not checked, needs --set KEY=VALUE for its options, or --set data.features=N, data.outputs=N or data.vocab=N for "
    "the "
    "sizes of the data";

/// Selects the cases whose names contain one of these words; without words, all cases.
using CaseWords = std::vector<std::string>;

struct CheckOptions {
  /// The command that starts a member: it calls run_member with the words appended to the command.
  std::vector<std::string> member_command;
  CaseWords words = {};
  /// "key=value" for an option of the transport, model or engine, or for a size of data. "NAME.key=value" for an option
  /// of the transport NAME that a transport opens.
  std::vector<std::string> settings = {};
  std::int64_t silence_s = 0;  ///< seconds without a sign of life after which a process counts as hanging; 0: a default
                               ///< for the kind
  std::function<void(const Finding&)> report = {};  ///< called with each finding as soon as it is known
};

/// Whether a setting of a model or engine is a size of data, such as "data.features=784". Throws Error{usage} if the
/// size is impossible.
[[nodiscard]] bool is_data_setting(const std::string& setting);

/// The names of the cases for plugins of a kind.
[[nodiscard]] std::vector<std::string> case_names(plugins::PluginKind kind, const CaseWords& words = {});

/// Runs the cases with the plugin, in processes that have all ended when this returns. A crash or a hang is a problem
/// of the case in which it happened. The other cases still run, unless the plugin cannot be opened at all. None of the
/// plugin's code runs in this process. `directories` must also contain the default transport if the plugin is an
/// engine, and the strategies to try if it is a model. Throws Error{io} if processes cannot be started.
std::vector<Finding> check_plugin(const plugins::Directories& directories, plugins::PluginKind kind,
                                  const std::string& name, const CheckOptions& options);

/// Runs one process of a check. Returns its exit code.
[[nodiscard]] int run_member(std::span<const std::string> words);

}  // namespace shardrun::conformance
