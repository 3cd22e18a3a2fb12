#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/compile/compile.h"
#include "core/job/job.h"
#include "core/launch/rank.h"
#include "core/metrics/run_folder.h"
#include "core/run/run.h"
#include "core/train/rank_link.h"

namespace shardrun::run {

/// How long a rank may be silent before it counts as lost.
[[nodiscard]] std::chrono::milliseconds silence_of(const job::Job& job);

/// Reports why a rank fails. `awaited`: the rank for which it waited until a timeout.
using TellFailure = std::function<void(launch::FailureKind kind, const std::string& text, std::optional<int> awaited)>;

/// Returns the result of `attempt`. If it throws, reports the error and returns the error's exit code. Throws nothing.
[[nodiscard]] int exit_code_of(const std::function<int()>& attempt, const TellFailure& tell);

/// The work of a rank once all ranks have the same plan; returns its exit code. The link is not connected yet.
using RankWork =
    std::function<int(compile::Compiled& compiled, train::RankLink& link, const metrics::RunFolder& folder)>;

/// The option of the command `rank` for the data's handles, separated by commas.
inline constexpr const char* data_option = "data";
[[nodiscard]] std::vector<std::string> data_handles(const std::string& option);

/// The option of the command `rank` for the model's declarations in the launcher: a hash of the names and shapes of its
/// parameters and fields. "" for an engine, whose ranks declare different parameters.
inline constexpr const char* declared_option = "declared";
[[nodiscard]] std::string declared_in(const compile::Compiled& compiled);
/// The option for the number of slots that the launcher has chosen, so that no rank searches for it again.
inline constexpr const char* slots_option = "slots";

/// The inputs that a rank gets from the process that started it. A rank that another launcher started finds some of
/// them by itself.
struct RankInputs {
  /// A path into [job] output that goes through the descriptor of the process that opened it. Empty: the folder is
  /// found by its path, and must be the one to which rank 0 writes.
  std::filesystem::path folder = {};
  std::string declared = {};                       ///< see declared_option; empty: not known
  std::vector<std::string> data = {};              ///< handles of the job's data, which the starting process holds open
  std::optional<compile::Compiled> compiled = {};  ///< the job, if this process has already compiled it
  std::function<void()> on_join = {};              ///< called when all ranks have joined
  std::function<int()> stop_signal = {};           ///< the signal that asked this process to stop, or 0
  std::optional<std::chrono::system_clock::time_point> ends_by = {};  ///< see StepSettings
  int standard_input = 0;                                             ///< the descriptors of "-" in [infer]
  int standard_output = 1;
  std::filesystem::path output = {};  ///< for the first rank: [job] output for all, if it has placeholders
  const Error* refusal = nullptr;     ///< why this rank cannot begin, which was told: it fails once it has joined
};

/// Runs this process as a rank of the job: joins, compiles unless this is done already, calls `work`, and leaves.
/// Returns the exit code of `work`, or of the error. Reports errors to the launcher before the link ends.
/// Throws nothing.
[[nodiscard]] int as_rank(const job::Job& job, const launch::RankContext& context, const RankWork& work,
                          RankInputs inputs = {});

/// Runs this process as a rank of a run, from its start to its exit code.
[[nodiscard]] int run_as_rank(const job::Job& job, const launch::RankContext& context, bool profile,
                              RankInputs inputs = {});

}  // namespace shardrun::run
