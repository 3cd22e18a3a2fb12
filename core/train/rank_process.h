#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/compile/compile.h"
#include "core/job/job.h"
#include "core/launch/rank.h"
#include "core/metrics/run_folder.h"
#include "core/train/rank_link.h"
#include "core/train/run.h"

namespace shardrun::train {

/// How long a rank may be silent.
[[nodiscard]] std::chrono::milliseconds silence_of(const job::Job& job);

/// Tells why a rank fails; `awaited`: the rank that it waited for in vain.
using TellFailure = std::function<void(launch::FailureKind kind, const std::string& text, std::optional<int> awaited)>;

/// Returns the result of `attempt`, or reports what it throws and returns that's exit code. Throws nothing.
[[nodiscard]] int exit_code_of(const std::function<int()>& attempt, const TellFailure& tell);

/// The work of a rank once all have the same plan; returns its exit code. The link is not connected yet.
using RankWork = std::function<int(compile::Compiled& compiled, RankLink& link, const metrics::RunFolder& folder)>;

/// The option of the command `rank` with the handles of the data, separated by commas.
inline constexpr const char* data_option = "data";
[[nodiscard]] std::vector<std::string> data_handles(const std::string& option);

/// What a rank has been given by whoever started it, and, where that was another launcher, what it does besides.
struct RankInputs {
  /// A path into the open [job] output of the process that holds it. Empty: the folder is found by its path, and must
  /// be the one that rank 0 writes to.
  std::filesystem::path folder = {};
  std::vector<std::string> data = {};  ///< handles of the job's data, open in the process that started this one
  std::optional<compile::Compiled> compiled = {};  ///< the job, if this process has already compiled it
  std::function<void()> on_join = {};              ///< called when all ranks are there
  std::function<int()> stop_signal = {};           ///< the signal that asked this process to stop, or 0
  std::filesystem::path output = {};               ///< for the first rank: [job] output for all, if it has placeholders
};

/// Runs this process as a rank of the job: joins, compiles if not yet done, does `work`, leaves. Returns the exit code,
/// which is `work`'s if it does not throw. Tells the launcher of errors before the link ends. Throws nothing.
[[nodiscard]] int as_rank(const job::Job& job, const launch::RankContext& context, const RankWork& work,
                          RankInputs inputs = {});

/// The whole life of a process that is a rank of a run.
[[nodiscard]] int run_as_rank(const job::Job& job, const launch::RankContext& context, bool profile,
                              RankInputs inputs = {});

}  // namespace shardrun::train
