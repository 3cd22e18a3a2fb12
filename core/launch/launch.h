#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/launch/failure.h"

namespace shardrun::launch {

enum class Stream { output, errors };

/// A whole line that a rank wrote, without its newline; lines above 64 KiB come in pieces of that size.
struct OutputLine {
  int rank;
  Stream stream;
  std::string_view text;
};

/// What a rank sent by Rank::message.
struct RankMessage {
  int rank;
  std::string_view kind;
  std::string_view bytes;
};

/// What to start, and whom to tell. Callbacks are called on the thread that called launch(), one at a time, and may be
/// empty; what one throws ends the ranks and comes out of launch().
struct LaunchSettings {
  std::string program = "/proc/self/exe";
  std::vector<std::string> arguments;  ///< argv of every rank, argv[0] included
  int ranks = 1;
  int threads_per_rank = 1;  ///< OMP_NUM_THREADS
  std::string job;           ///< what ranks must come with: Rank's argument

  std::string address = "127.0.0.1";                   ///< where the store listens, at any free port
  std::chrono::milliseconds heartbeat_interval{1000};  ///< or a quarter of the next, where that is less
  std::chrono::milliseconds heartbeat_timeout{10000};  ///< a rank silent for so long ends the job; 0: none does
  std::chrono::milliseconds join_timeout{60000};       ///< from the start of a rank to its hello; 0: for ever
  std::chrono::milliseconds report_time{500};          ///< from a failure that is a consequence to the abort
  std::chrono::milliseconds grace{2000};               ///< from abort, and from SIGTERM, to SIGKILL
  std::chrono::milliseconds stranger_timeout{5000};    ///< for a connection to say hello

  /// Whether the ranks are at work that a stop has to end in order. Before, it ends them at once. Empty: always.
  std::function<bool()> has_begun;
  std::function<void(const std::vector<pid_t>& pids)> on_start;  ///< all ranks are started; by rank
  std::function<void(const OutputLine& line)> on_output;
  std::function<void(const RankMessage& message)> on_message;
  std::function<void(std::string_view line)> on_log;     ///< the launcher's own remarks
  std::function<void(std::string_view line)> on_notice;  ///< those among them that a person should see
};

/// How one rank ended.
struct RankEnd {
  pid_t pid = -1;
  std::optional<int> exit_code;  ///< or else `signal`
  int signal = 0;
  bool said_goodbye = false;
  bool killed = false;  ///< by the launcher
  std::optional<FailureKind> failure;
  std::string text;  ///< what it said of its failure
};

/// The failure that the others follow from.
struct RootCause {
  int rank = 0;
  std::string host;
  pid_t pid = -1;
  std::optional<int> exit_code;  ///< where the rank ended by itself,
  int signal = 0;                ///< or by this signal, which was not the launcher's; else it did not answer
  std::string text;
};

/// "rank 2 (pid 4711 on host): was killed by signal 9 (SIGKILL)…"
[[nodiscard]] std::string describe(const RootCause& cause);

struct LaunchResult {
  /// 0; 128 + n after a stop by signal n, or after a second signal n; 1 where there is a root cause, whatever the exit
  /// code of that rank says: 2 means that nothing was started.
  int exit_code = 0;
  std::optional<RootCause> cause;
  int stop_signal = 0;                ///< the first signal that asked for a stop, or 0
  int forced_signal = 0;              ///< the second, which ended the ranks, or 0
  std::vector<RankEnd> ranks;         ///< by rank
  std::chrono::nanoseconds ending{};  ///< from the first failure seen to the last rank gone
  std::size_t strangers = 0;          ///< connections that were no rank's, and were dropped
};

/// Starts the ranks of a job on this machine, serves their store, passes their output on, and returns when all have
/// ended and been reaped and everything they wrote was passed on.
///
/// The first failure ends the job: a rank calls fail(), ends without goodbye, ends with a bad exit code or falls
/// silent. The others are told to abort, and killed after `grace`. FailureJudge decides which failure is the root
/// cause:
///  - A failure that a rank calls a consequence of another's gives way to one that is not, even if that is seen later.
///  - A rank that waited for another in vain names it. That rank is the cause, unless it names another in turn.
/// So before the abort, ranks that have not reported yet have `report_time` to do so.
///
/// Signals to this process:
///  - SIGINT, SIGTERM, SIGHUP and SIGPIPE ask the ranks for an orderly stop. Before `has_begun` they kill them.
///  - A second one, except SIGPIPE, sends the ranks SIGTERM, and SIGKILL after `grace`.
///  - SIGTSTP (Ctrl-Z) asks the ranks to pause between steps. When all have, this process stops until it is continued,
///    and they go on with it. Where no shell could continue it, they go on at once.
/// Signals that are ignored already stay so.
///
/// The calling thread must stay the process's only one that handles these signals or starts processes, and must live
/// until the end: ranks die with it. Signal actions are restored. Throws Error{io} where a rank cannot be started:
/// those already started are ended and reaped before.
[[nodiscard]] LaunchResult launch(const LaunchSettings& settings);

}  // namespace shardrun::launch
