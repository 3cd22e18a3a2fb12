#pragma once

#include <functional>

namespace shardrun::cli {

/// What holds for the whole process, before anything is opened: a standard stream that is closed is open to nothing,
/// since the next file would take its number and get what is meant for the screen; and a file that may not grow is an
/// error that names it, not the signal SIGXFSZ.
void secure_process();

/// From now on the first SIGINT, SIGTERM or SIGHUP asks for an orderly stop, and the second ends the process at once
/// and says so; but not the same one within launch::same_request. A thread takes them; the calling one, and those that
/// it starts from now on, do not. SIGPIPE asks for an orderly stop, however often it comes. One that whoever started
/// this process ignores stays ignored.
void catch_stop_signals();

/// From now on `listener` is called with the first signal that asks to stop, as soon as it comes, on the thread that
/// takes signals. A signal that came while nobody listened is told at once, on the calling thread. One listener is
/// told, once; what it throws is dropped. An empty one ends that; no call is under way any more when this returns.
void listen_for_stop(std::function<void(int signal)> listener);

/// The signal that asked to stop, or 0.
[[nodiscard]] int stop_signal() noexcept;

}  // namespace shardrun::cli
