#include "core/launch/status.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <string_view>

namespace shardrun::launch {
std::string signal_text(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("signal {} (SIG{})", signal, name);
}

bool ended_well(const RankEnd& end, int stop_signal) {
  return end.said_goodbye && end.exit_code &&
         (*end.exit_code == 0 || (stop_signal != 0 && *end.exit_code == 128 + stop_signal));
}

std::string end_text(const RankEnd& end, bool joined) {
  const std::string_view when = end.said_goodbye ? " after its goodbye" : joined ? "" : " before it joined the job";
  if (end.signal == SIGKILL) {
    return fmt::format("was killed by {}{}: by somebody, or by the system because memory ran out", signal_text(SIGKILL),
                       when);
  }
  if (end.signal != 0) {
    return fmt::format("was ended by {}{}", signal_text(end.signal), when);
  }
  return fmt::format("exited with code {}{}{}", end.exit_code.value_or(0), when,
                     end.exit_code == 0 ? " and without a goodbye" : "");
}

std::string describe(const RootCause& cause) {
  if (cause.pid <= 0) {  // another launcher was to start it, and it has not joined
    return fmt::format("rank {}: {}", cause.rank, cause.text);
  }
  return fmt::format("rank {} (pid {} on {}): {}", cause.rank, cause.pid, cause.host, cause.text);
}

std::string strangers_notice(std::size_t strangers) {
  return strangers == 1 ? "1 connection came from a stranger, and was dropped"
                        : fmt::format("{} connections came from strangers, and were dropped", strangers);
}

std::chrono::nanoseconds time_held_up(std::chrono::nanoseconds since_last_tick, std::chrono::nanoseconds interval) {
  return std::max(since_last_tick - 2 * interval, std::chrono::nanoseconds::zero());
}

}  // namespace shardrun::launch
