#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <string>
#include <string_view>

#include "core/files/descriptor.h"

namespace shardrun::launch {

/// The signals that ask a process for an orderly stop.
inline constexpr std::array<int, 4> stop_signals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

/// Signals of the same number within this time count as one request: timeout(1) signals its child, and then the child's
/// whole process group.
inline constexpr std::chrono::milliseconds same_request{200};

/// The message that answers a request to stop. It is shown at once, because the current step may take long. `how`: how
/// the process stops.
[[nodiscard]] std::string stop_notice(int signal, std::string_view how = "stopping after this step or the next");

/// Turns the signals in `caught` into readable bytes, whatever thread receives them. A signal that is ignored stays
/// ignored, because whoever started this process wants that (nohup, a shell's &); SIGCHLD is an exception. The
/// destructor restores the signal actions and the thread's signal mask. At most one exists at a time.
class SignalPipe {
 public:
  SignalPipe();  ///< throws Error{io}; Error{internal} if another exists
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;
  ~SignalPipe();

  /// The read end, non-blocking. Each byte is a signal's number. Several SIGCHLD may be merged into one byte.
  [[nodiscard]] int descriptor() const { return read_end_.get(); }

  static constexpr std::array<int, 7> caught = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE, SIGTSTP, SIGCHLD};

 private:
  files::FileDescriptor read_end_;
  files::FileDescriptor write_end_;
  std::array<struct sigaction, caught.size()> before_ = {};
  sigset_t mask_before_ = {};
};

}  // namespace shardrun::launch
