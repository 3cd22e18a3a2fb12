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
  std::string problem;                  ///< the problem on each rank that had one; empty if the case passed
  std::vector<std::string> notes = {};  ///< what a case that passed left out, and why
  bool is_skipped = false;              ///< true in the last finding if no case can run here; `problem` says why
};

/// The outcome as a word for people: "ok    ", "FAILED" or "skipped".
[[nodiscard]] std::string_view outcome_of(const Finding& finding) noexcept;

// The first words of `problem` in skipped findings.

/// For a transport that does not move host memory, which the cases need. After these words, the text says whether the
/// transport opens here.
inline constexpr const char* only_host_memory =
    "it does not move host memory, which is all that these cases have: nothing was checked";

/// For a transport that only works in ranks that its own launcher starts.
inline constexpr const char* only_own_launcher =
    "it opens only in ranks that a launcher of its own (mpirun, srun) has started: nothing was checked";

/// For a model or engine that refuses all small jobs that the cases try. Its first refusal follows these words.
inline constexpr const char* only_with_options =
    "not checked, needs --set KEY=VALUE for its options, or --set data.features=N, data.outputs=N or data.vocab=N for "
    "the "
    "sizes of the data";

/// Cases run if their names contain one of these words; without words, all cases run.
using CaseWords = std::vector<std::string>;

struct CheckOptions {
  /// The command that starts a process of a check. It must call run_member() with the words that are appended to it.
  std::vector<std::string> member_command;
  CaseWords words = {};
  /// "key=value" for an option of the transport, model or engine, or for a size of data. "NAME.key=value" for an option
  /// of the transport NAME that the transport under test opens.
  std::vector<std::string> settings = {};
  /// Processes that run cases together are killed after this many seconds without a report from any; 0: a default.
  std::int64_t silence_s = 0;
  std::function<void(const Finding&)> report = {};  ///< called with each finding, as soon as it exists
};

/// Whether a setting of a model or engine is a size of data, such as "data.features=784". Throws Error{usage} if it is
/// and the size is not a number from 1 to 2^24.
[[nodiscard]] bool is_data_setting(const std::string& setting);

/// The names of the cases for a kind of plugin. `words`: as in CheckOptions. Throws Error{usage} if the kind has none.
[[nodiscard]] std::vector<std::string> case_names(plugins::PluginKind kind, const CaseWords& words = {});

/// Runs the cases with the plugin in other processes, which have all ended when this returns. None of the plugin's code
/// runs in this process. A crash or hang is a problem of the case in which it happens. All other cases still run,
/// unless the plugin cannot be opened. `directories` must also have the default transport for an engine, and strategies
/// to try for a model. Throws Error{io} if processes cannot be started, and Error{usage} if the kind has no cases.
std::vector<Finding> check_plugin(const plugins::Directories& directories, plugins::PluginKind kind,
                                  const std::string& name, const CheckOptions& options);

/// The main function of a process of a check. Returns or exits with its exit code. Throws Error{usage} for bad words.
[[nodiscard]] int run_member(std::span<const std::string> words);

}  // namespace shardrun::conformance
