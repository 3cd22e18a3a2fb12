#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "core/files/descriptor.h"

namespace shardrun::launch {

/// The same signal so soon after the first is the same request: timeout(1) signals its process and then the whole group
/// of that.
inline constexpr std::chrono::milliseconds same_request{200};

/// The line that answers a request to stop at once, since the step in progress may be long.
/// `how`: what the process does about it.
[[nodiscard]] std::string stop_notice(int signal, std::string_view how = "stopping after this step");

/// A thread that takes no signals: they are for the process's other threads. Throws Error{io}: `what` names it there.
[[nodiscard]] std::thread thread_without_signals(std::string_view what, const std::function<void()>& run);

/// Turns SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGTSTP and SIGCHLD into bytes that can be read, whatever thread they hit,
/// and gives the previous actions and the calling thread's mask back at its end. One that is ignored stays so, as
/// whoever started this process wants it (nohup, a shell's &); but not SIGCHLD. At most one exists at a time.
class SignalPipe {
 public:
  SignalPipe();  ///< Throws Error{io}; Error{internal} where another exists.
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;
  ~SignalPipe();

  /// Non-blocking. Each byte is a signal's number; several SIGCHLD may be one.
  [[nodiscard]] int descriptor() const { return read_end_.get(); }

  static constexpr std::array<int, 6> caught = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGTSTP, SIGCHLD};

 private:
  files::FileDescriptor read_end_;
  files::FileDescriptor write_end_;
  std::array<struct sigaction, caught.size()> before_ = {};
  sigset_t mask_before_ = {};
};

}  // namespace shardrun::launch
