#pragma once

#include <functional>

namespace shardrun::cli {

/// Prepares the process before any file is opened. Opens closed standard streams to /dev/null: otherwise the next file
/// would get their number, and the output meant for the screen. Ignores SIGXFSZ, so that writing beyond a size limit
/// fails with an error that names the file.
void secure_process();

/// Handles signals from now on.
/// - The first SIGINT, SIGTERM, SIGHUP or SIGUSR1 asks for an orderly stop. The second ends the process at once, with a
///   message; the same signal within launch::same_request does not count as a second one.
/// - SIGPIPE asks for an orderly stop, however often it comes.
/// - A signal that is ignored when the process starts stays ignored.
/// A separate thread takes these signals; the calling thread, and those that it starts from now on, do not.
void catch_stop_signals();

/// Ignores the stop signals from now on. Called when the process has done everything. If a launcher then ends all
/// processes because another one failed, it still sees this process's own exit code.
void ignore_stop_signals() noexcept;

/// Sets the listener. It is called once, on the thread that takes signals, as soon as the first stop signal comes. If a
/// stop signal has come already, it is called at once on the calling thread. Its exceptions are dropped. An empty
/// listener removes the old one; when this function returns, no call of the old one is running.
void listen_for_stop(std::function<void(int signal)> listener);

/// The signal that asked to stop, or 0.
[[nodiscard]] int stop_signal() noexcept;

}  // namespace shardrun::cli
