#pragma once

#include <functional>
#include <string>

namespace shardrun::conformance {

/// Calls `prepare` and `act` in a child process, and watches the system calls of `act`. Calls that reach outside of its
/// memory are refused with EPERM and reported: opening a file, making or connecting a socket, starting a program,
/// reading random numbers. Memory, threads and open descriptors are not restricted. The clock cannot be watched.
///
/// Returns the first problem: a refused call, an exception, or how the child ended; empty where there was none. Watches
/// nothing where the system has no filters of system calls (seccomp).
[[nodiscard]] std::string watch_calls(const std::function<void()>& prepare, const std::function<void()>& act);

}  // namespace shardrun::conformance
