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

#include "core/launch/protocol.h"

namespace shardrun::launch {

enum class Stream { output, errors };

/// A whole line that a rank wrote, without its newline; lines above 64 KiB come in pieces of that size.
struct OutputLine {
  int rank;
  Stream stream;
  std::string_view text;
};

/// A message sent by Rank::message.
struct RankMessage {
  int rank;
  std::string_view kind;
  std::string_view bytes;
};

/// The failure that caused all others.
struct RootCause {
  int rank = 0;
  std::string host;
  pid_t pid = -1;
  std::optional<int> exit_code;  ///< if the rank ended by itself
  int signal = 0;                ///< the signal that ended the rank, if the launcher had not sent it; else 0
  std::string text;
  bool is_permanent = false;  ///< the rank said so: FailureKind::permanent
};

/// The program to start, and callbacks. Callbacks may be empty. They are called on the thread that called launch(), one
/// at a time. If one throws, the ranks are ended and launch() throws the same exception.
struct LaunchSettings {
  std::string program = "/proc/self/exe";
  std::vector<std::string> arguments;  ///< argv of every rank, argv[0] included
  int ranks = 1;
  int threads_per_rank = 1;  ///< OMP_NUM_THREADS
  std::string job;           ///< ranks must be given the same text: see Rank

  std::string address = "127.0.0.1";                   ///< where the store listens, at any free port
  std::chrono::milliseconds heartbeat_interval{1000};  ///< capped at a quarter of heartbeat_timeout
  std::chrono::milliseconds heartbeat_timeout{10000};  ///< a rank that is silent for longer ends the job; 0: no limit
  std::chrono::milliseconds join_timeout{60000};       ///< from the start of a rank to its hello; 0: no limit
  std::chrono::milliseconds report_time{500};          ///< from a failure that is a consequence to the abort
  std::chrono::milliseconds grace{2000};               ///< from abort to SIGKILL
  std::chrono::milliseconds stranger_timeout{5000};    ///< from connecting to a correct hello

  /// Whether the ranks have begun work that a stop must not cut off. Until then a stop kills them. Empty: always true.
  std::function<bool()> has_begun;
  /// Called when all ranks have been started; `pids` is indexed by rank.
  std::function<void(const std::vector<pid_t>& pids)> on_start;
  /// Called once if a failure ends the job, as soon as its ranks are told to abort. They can live on for `grace`.
  std::function<void(const RootCause& cause)> on_failure;
  std::function<void(const OutputLine& line)> on_output;
  std::function<void(const RankMessage& message)> on_message;
  std::function<void(std::string_view line)> on_log;     ///< the launcher's own messages
  std::function<void(std::string_view line)> on_notice;  ///< those of the log messages that a person should see
};

/// How one rank ended.
struct RankEnd {
  pid_t pid = -1;
  std::optional<int> exit_code;  ///< none if it was ended by `signal`
  int signal = 0;
  bool said_goodbye = false;
  bool killed = false;  ///< the launcher killed it
  std::optional<FailureKind> failure;
  std::string text;  ///< the rank's own report of its failure
};

/// "rank 2 (pid 4711 on host): was killed by signal 9 (SIGKILL)…"
[[nodiscard]] std::string describe(const RootCause& cause);

struct LaunchResult {
  /// 0 after success. 128 + n after a stop by signal n, or if a second signal n ended the ranks. 1 if there is a root
  /// cause, whatever that rank's exit code: 2 would mean that nothing was started.
  int exit_code = 0;
  std::optional<RootCause> cause;
  int stop_signal = 0;                ///< the first signal that asked for a stop, or 0
  int forced_signal = 0;              ///< the second signal, which ended the ranks, or 0
  std::vector<RankEnd> ranks;         ///< by rank
  std::chrono::nanoseconds ending{};  ///< from the first failure seen to the last rank gone
  std::size_t strangers = 0;          ///< dropped connections of processes that are no ranks
};

/// Starts the ranks of a job on this machine, serves their store and passes their output on. Returns when all ranks
/// have ended and been reaped and all their output was passed on.
///
/// The first failure ends the job. A rank fails by calling fail(), by ending without goodbye, by an unexpected exit
/// code, or by silence. The other ranks are told to abort, and are killed after `grace`. FailureJudge decides which
/// failure is the root cause:
///  - A failure that a rank calls a consequence is replaced by one that is not, even if the latter is seen later.
///  - A rank that timed out names the rank that it waited for. That rank is the cause, unless it names another in turn.
/// Therefore ranks that have not reported yet get `report_time` to do so before the abort.
///
/// Signals to this process:
///  - SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGPIPE ask the ranks for an orderly stop. Before `has_begun` the ranks
///    are killed.
///  - A second signal, except SIGPIPE, ends the ranks by SIGKILL.
///  - SIGTSTP (Ctrl-Z) asks the ranks to pause between steps. When all have paused, this process stops until it is
///    continued; then the ranks continue too. If no shell could continue it, the ranks continue at once.
/// Signals that are already ignored stay ignored.
///
/// The ranks ignore all of `stop_signals`: batch systems and the ends of sessions send them to all processes, and the
/// ranks are to stop together, after the same step. Processes that a rank starts ignore them too, unless they restore
/// the default.
///
/// No other thread of this process may handle these signals or start processes. The calling thread must live until
/// launch() returns, because the ranks die with it. Signal actions are restored. Throws Error{io} if a rank cannot be
/// started; the ranks already started are ended and reaped first.
[[nodiscard]] LaunchResult launch(const LaunchSettings& settings);

}  // namespace shardrun::launch
