#pragma once

#include <functional>
#include <string>

namespace shardrun::conformance {

/// Calls `prepare` and `act` in a child process of their own. What `act` asks of the system outside of its own memory
/// (to open a file, make or connect a socket, start a program, draw a random number) is refused with EPERM, and
/// reported. Memory, threads and what is open already are left alone; the clock cannot be watched.
///
/// Returns what was wrong: the first thing that was asked for, what one of them threw, or how the child ended; empty
/// where nothing was. Where the system has no filters of system calls (seccomp), nothing is watched.
[[nodiscard]] std::string watch_calls(const std::function<void()>& prepare, const std::function<void()>& act);

}  // namespace shardrun::conformance
