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
  std::string name;                     ///< of the case
  std::string problem;                  ///< of every rank that had one; empty: the case passed
  std::vector<std::string> notes = {};  ///< of a case that passed: what it left out, and why
  bool is_skipped = false;              ///< no case can run here; `problem` says why. There is no other finding then
};

/// For a person: "ok    ", "FAILED" or "skipped".
[[nodiscard]] std::string_view outcome_of(const Finding& finding) noexcept;

// How `problem` begins for what is skipped.

/// A transport that does not move host memory, which the cases need. Then follows whether it opens here, or why not.
inline constexpr const char* only_host_memory =
    "it does not move host memory, which is all that these cases have: nothing was checked";

/// A transport whose ranks a launcher of its own starts.
inline constexpr const char* only_own_launcher =
    "it opens only in ranks that a launcher of its own (mpirun, srun) has started: nothing was checked";

/// A model or engine that refuses all the small jobs that the cases try. Then follows its first refusal.
inline constexpr const char* only_with_options =
    "not checked, needs --set KEY=VALUE for its options, or --set data.features=N, data.outputs=N or data.vocab=N for "
    "the "
    "sizes of the data";

/// Selects the cases whose names contain one of these words; all cases where there are none.
using CaseWords = std::vector<std::string>;

struct CheckOptions {
  /// The command that calls run_member with the words appended to it.
  std::vector<std::string> member_command;
  CaseWords words = {};
  /// "key=value" for an option of the transport, model or engine, or a size of data; "NAME.key=value" for one of the
  /// transport NAME that a transport opens.
  std::vector<std::string> settings = {};
  std::int64_t silence_s = 0;  ///< without a sign of life for this long, processes hang; 0: a default for the kind
  std::function<void(const Finding&)> report = {};  ///< called with each finding as soon as it is known
};

/// Whether a setting of a model or engine is a size of data, "data.features=784". Throws Error{usage} for an impossible
/// size.
[[nodiscard]] bool is_data_setting(const std::string& setting);

/// The names of the cases for plugins of a kind.
[[nodiscard]] std::vector<std::string> case_names(plugins::PluginKind kind, const CaseWords& words = {});

/// Runs the cases with the plugin, in processes that have all ended on return. A crash or a hang is a problem of the
/// case in which it happened. The other cases still run, unless the plugin cannot even be opened. None of its code runs
/// in this process. `directories`: also have the default transport if it is an engine, and the strategies to try with a
/// model. Throws Error{io} where processes cannot be started.
std::vector<Finding> check_plugin(const plugins::Directories& directories, plugins::PluginKind kind,
                                  const std::string& name, const CheckOptions& options);

/// Runs one process of a check. Returns its exit code.
[[nodiscard]] int run_member(std::span<const std::string> words);

}  // namespace shardrun::conformance
