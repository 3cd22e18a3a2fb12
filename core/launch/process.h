#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/files/descriptor.h"

namespace shardrun::launch {

struct ProcessStart {
  std::string program;                   ///< a path
  std::vector<std::string> arguments;    ///< from argv[0] on
  std::vector<std::string> environment;  ///< "NAME=value" each
  std::string_view handed_over;          ///< readable on handed_over_descriptor; at most 4096 bytes
};

struct StartedProcess {
  pid_t pid = -1;
  files::FileDescriptor output;   ///< where its standard output can be read
  files::FileDescriptor errors;   ///< and its standard error
  files::FileDescriptor trouble;  ///< readable once it has become the program, or could not: see start_error
};

/// Starts a program that reads nothing, whose output comes through pipes, that is in a process group of its own (so a
/// terminal's Ctrl-C does not reach it) and that the system kills when the calling *thread* ends. It inherits no other
/// descriptor that is close-on-exec, no signal mask, default actions for the signals that SignalPipe catches, and
/// SIGPIPE ignored. The caller reaps it. Returns before the process has become the program, for which nobody waits: it
/// may be stopped before. Throws Error{io} where the system refuses: then nothing is left.
[[nodiscard]] StartedProcess start_process(const ProcessStart& start);

/// What keeps a process from becoming the program, of which StartedProcess::trouble tells; nothing where nothing does,
/// or nothing is known yet. Does not wait.
[[nodiscard]] std::optional<Error> start_error(int trouble, const std::string& program);

}  // namespace shardrun::launch
