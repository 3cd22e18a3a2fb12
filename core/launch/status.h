#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "core/launch/launch.h"

namespace shardrun::launch {

/// "signal 9 (SIGKILL)"
[[nodiscard]] std::string signal_text(int signal);

/// Whether a rank ended as it should: with goodbye, and 0 or, where `stop_signal` is not 0, 128 + stop_signal.
[[nodiscard]] bool ended_well(const RankEnd& end, int stop_signal);

/// How a rank ended that did not end well: "exited with code 3 before it joined the job".
[[nodiscard]] std::string end_text(const RankEnd& end, bool joined);

/// "12 connections came from strangers, and were dropped"
[[nodiscard]] std::string strangers_notice(std::size_t strangers);

/// For how long the launcher itself did not run (after Ctrl-Z, or while a callback waited), where `since_last_tick`
/// passed since it last looked, which it does every `interval`: nobody was silent meanwhile.
[[nodiscard]] std::chrono::nanoseconds time_held_up(std::chrono::nanoseconds since_last_tick,
                                                    std::chrono::nanoseconds interval);

}  // namespace shardrun::launch
