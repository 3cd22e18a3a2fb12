#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "core/launch/launch.h"

namespace shardrun::launch {

/// A signal as text: "signal 9 (SIGKILL)".
[[nodiscard]] std::string signal_text(int signal);

/// Whether a rank ended as it should: with goodbye, and with exit code 0 or, if `stop_signal` is not 0,
/// 128 + stop_signal.
[[nodiscard]] bool ended_well(const RankEnd& end, int stop_signal);

/// How a failed rank ended, as text: "exited with code 3 before it joined the job".
[[nodiscard]] std::string end_text(const RankEnd& end, bool joined);

/// A message: "12 connections came from strangers, and were dropped".
[[nodiscard]] std::string strangers_notice(std::size_t strangers);

/// How long this process was suspended (by Ctrl-Z, or by a callback that took long). This time does not count as
/// silence of others. `since_last_tick`: the time since the last tick. `interval`: the planned time between ticks.
[[nodiscard]] std::chrono::nanoseconds time_held_up(std::chrono::nanoseconds since_last_tick,
                                                    std::chrono::nanoseconds interval);

}  // namespace shardrun::launch
