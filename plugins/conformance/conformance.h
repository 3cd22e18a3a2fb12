#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "plugins/loader/plugin.h"

namespace shardrun::conformance {

/// What one case says of a plugin.
struct Finding {
  std::string name;     ///< of the case
  std::string problem;  ///< of every rank that had one; empty: the plugin behaves
};

/// What the first case says of a transport that moves no host memory: the cases have none of another kind.
inline constexpr const char* only_host_memory =
    "it does not move host memory, which is all that these cases have: nothing was checked";

/// What the first case says of a transport whose ranks a launcher of its own starts.
inline constexpr const char* only_own_launcher =
    "it opens only in ranks that a launcher of its own (mpirun, srun) has started: nothing was checked";

/// Which cases to run: those whose name has one of these words in it; all where there are none.
using CaseWords = std::vector<std::string>;

struct CheckOptions {
  /// Starts this program so that it calls run_member with the words that are added to it.
  std::vector<std::string> member_command;
  CaseWords words = {};
  /// "key=value" for an option of the transport, "NAME.key=value" for one of the transport NAME that it opens.
  std::vector<std::string> settings = {};
  std::int64_t silence_s = 0;  ///< processes that say nothing for so long hang; 0: as suits the kind
  std::function<void(const Finding&)> report = {};  ///< called with each as soon as it is known
};

/// The names of the cases for plugins of a kind.
[[nodiscard]] std::vector<std::string> case_names(plugins::PluginKind kind, const CaseWords& words = {});

/// Runs the cases over the plugin, in processes of their own that are all gone when it returns. A crash or a hang is a
/// problem of the case that it happened in; the others are run all the same, but where the plugin cannot even be
/// opened. None of its code runs in this process. Throws Error{io} where processes cannot be started.
std::vector<Finding> check_plugin(const plugins::Directories& directories, plugins::PluginKind kind,
                                  const std::string& name, const CheckOptions& options);

/// One process of the above. Returns its exit code.
[[nodiscard]] int run_member(std::span<const std::string> words);

}  // namespace shardrun::conformance
