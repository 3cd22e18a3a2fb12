#pragma once

#include <functional>

namespace shardrun::conformance {

/// Calls `prepare` and `act` in a child process, and watches the system calls of `act`. Calls that reach outside of its
/// memory are refused with EPERM and reported: opening a file, making or connecting a socket, starting a program,
/// reading random numbers. Memory, threads and open descriptors are not restricted. The clock cannot be watched.
///
/// Throws Failure with the first problem: a refused call, an exception, or how the child ended. If the system cannot
/// filter system calls (seccomp), nothing is watched.
void watch_calls(const std::function<void()>& prepare, const std::function<void()>& act);

}  // namespace shardrun::conformance
