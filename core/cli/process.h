#pragma once

#include <functional>

namespace shardrun::cli {

/// Prepares the whole process before anything is opened. Opens closed standard streams to /dev/null; otherwise the next
/// file would get their number, and the screen's output. Ignores SIGXFSZ, so that a file that must not grow causes an
/// error that names it.
void secure_process();

/// Handles signals from now on.
/// - The first SIGINT, SIGTERM, SIGHUP or SIGUSR1 asks for an orderly stop. The second ends the process at once, with a
///   message; the same signal within launch::same_request does not count as a second one.
/// - SIGPIPE asks for an orderly stop, however often it comes.
/// - A signal that is ignored when the process starts stays ignored.
/// A separate thread takes these signals; the calling thread, and those that it starts from now on, do not.
void catch_stop_signals();

/// Ignores these signals from now on. Called when the process has done everything: a launcher that ends it because of
/// another process's exit code should still see this process's own code.
void ignore_stop_signals() noexcept;

/// Sets the listener. It is called once, with the first signal that asks to stop, as soon as it comes, on the thread
/// that takes signals. If a signal came before, it is called at once on the calling thread. Its exceptions are dropped.
/// An empty listener removes the old one; when this returns, no call is running.
void listen_for_stop(std::function<void(int signal)> listener);

/// The signal that asked to stop, or 0.
[[nodiscard]] int stop_signal() noexcept;

}  // namespace shardrun::cli
