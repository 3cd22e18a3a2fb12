#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/files/descriptor.h"

namespace shardrun::launch {

struct ProcessStart {
  std::string program;                   ///< path of the program
  std::vector<std::string> arguments;    ///< argv, including argv[0]
  std::vector<std::string> environment;  ///< "NAME=value" each
  std::string_view handed_over = {};     ///< what the child can read on handed_over_descriptor; at most 4096 bytes
  int input = -1;                        ///< becomes its standard input; -1: an empty one
};

struct StartedProcess {
  pid_t pid = -1;
  files::FileDescriptor output;   ///< reads its standard output
  files::FileDescriptor errors;   ///< reads its standard error
  files::FileDescriptor trouble;  ///< readable once exec has succeeded or failed: see start_error
};

/// Starts a program as a child process; the caller reaps it.
///  - Standard output and standard error are pipes.
///  - It has its own process group, so a terminal's Ctrl-C does not reach it.
///  - The system kills it when the calling *thread* ends.
///  - It inherits no other close-on-exec descriptors and no signal mask. Signals that SignalPipe catches have default
///    actions, except SIGPIPE and `stop_signals`, which are ignored.
/// Returns before exec and does not wait for it, because the process may be stopped before exec. Throws Error{io} if
/// the system refuses; nothing is left over.
[[nodiscard]] StartedProcess start_process(const ProcessStart& start);

/// The error that kept a process from exec, read from StartedProcess::trouble. Nothing if exec has succeeded or has not
/// happened yet. Does not wait.
[[nodiscard]] std::optional<Error> start_error(int trouble, const std::string& program);

/// File descriptors that this process needs for each rank that it launches: two pipes and a connection.
inline constexpr std::uint64_t descriptors_per_rank = 3;

/// File descriptors that this process needs in addition: for starting a rank, for strangers' connections, and for files
/// that the program itself has open.
inline constexpr std::uint64_t other_descriptors = 128;

/// Raises this process's limit of open files to `needed` if it is lower. Returns 0 if the limit is now high enough,
/// otherwise the present limit.
[[nodiscard]] std::uint64_t raise_descriptor_limit(std::uint64_t needed);

}  // namespace shardrun::launch
