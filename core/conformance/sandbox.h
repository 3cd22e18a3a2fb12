#pragma once

#include <functional>

namespace shardrun::conformance {

/// Calls `prepare` and `act` in a child process, and watches the system calls of `act`. Calls that reach outside of the
/// process are refused with EPERM and reported: opening a file, making or connecting a socket, starting a program,
/// reading random numbers. Memory, threads and open descriptors are not restricted. Reading the clock is not noticed.
///
/// Throws Failure with the first refused call, an exception's text or how the child ended, and Error{io} if no child
/// can be started. If the system cannot filter system calls (seccomp), they are not watched.
void watch_calls(const std::function<void()>& prepare, const std::function<void()>& act);

}  // namespace shardrun::conformance
