#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/compile/compile.h"
#include "core/job/job.h"
#include "core/launch/rank.h"
#include "core/metrics/run_folder.h"
#include "core/train/rank_link.h"
#include "core/train/run.h"

namespace shardrun::train {

/// For how long a rank may be silent.
[[nodiscard]] std::chrono::milliseconds silence_of(const job::Job& job);

/// The rank that an operation's message says it waited for in vain: the first of "waiting for member 1 (rank 3, pid
/// 4711), …", or that of "member 1 (rank 3) is lost".
[[nodiscard]] std::optional<int> awaited_rank(std::string_view message);

/// Tells why a rank fails; `awaited`: the rank that it waited for in vain.
using TellFailure = std::function<void(launch::FailureKind kind, const std::string& text, std::optional<int> awaited)>;

/// What `attempt` returns, or the exit code of what it throws, which is told first. Throws nothing itself.
[[nodiscard]] int exit_code_of(const std::function<int()>& attempt, const TellFailure& tell);

/// What a rank does once all have the same plan; returns its exit code. The link is not connected yet.
using RankWork = std::function<int(compile::Compiled& compiled, RankLink& link, const metrics::RunFolder& folder)>;

/// The option of the command `rank` that has the handles of the data, with a comma between them.
inline constexpr const char* data_option = "data";
[[nodiscard]] std::vector<std::string> data_handles(const std::string& option);

/// What a rank has been given by whoever started it, and, where that was another launcher, what it does besides.
struct RankHooks {
  /// A way into [job] output that the process that holds it has open; empty: the folder is found by its path, and must
  /// be the one that rank 0 writes to.
  std::filesystem::path folder = {};
  std::vector<std::string> data = {};  ///< handles of the job's data, open in the process that started this one
  std::optional<compile::Compiled> compiled = {};  ///< or the job as this process has compiled it before
  std::function<void()> on_join = {};              ///< all ranks are there
  std::function<int()> stop_signal = {};           ///< the signal that asked this process to stop, or 0
  std::filesystem::path output = {};  ///< of the first rank: [job] output for all, where it has placeholders
};

/// This process as a rank of the job: joins, compiles where it has not before, does `work`, leaves. Returns the exit
/// code, which is `work`'s where it does not throw; the launcher is told of errors before the link ends, and nothing is
/// thrown.
[[nodiscard]] int as_rank(const job::Job& job, const launch::RankContext& context, const RankWork& work,
                          RankHooks hooks = {});

/// What a process that is a rank of a run does.
[[nodiscard]] int run_as_rank(const job::Job& job, const launch::RankContext& context, bool profile,
                              RankHooks hooks = {});

}  // namespace shardrun::train
