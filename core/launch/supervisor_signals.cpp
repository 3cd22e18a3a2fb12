// The supervisor's handling of signals from a user or a scheduler: stop, stop at once, pause.

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "core/launch/status.h"
#include "core/launch/supervisor.h"

namespace shardrun::launch {

void Supervisor::on_signal(int signal) {
  if (signal == SIGCHLD) {
    reap_children();
  } else if (signal == SIGTSTP) {
    ask_to_pause();
  } else if (signal != SIGPIPE || (stop_signal_ == 0 && !watch_.is_ending())) {  // each write to the pipe repeats it
    ask_to_stop(signal);
  }
}

/// The ranks pause between steps, because an operation in progress would miss its deadline.
void Supervisor::ask_to_pause() {
  if (watch_.is_ending() || stop_signal_ != 0 || std::exchange(pausing_, true)) {
    return;
  }
  notice("asked to stand still: waiting for the ranks to end this step");
  watch_.store().pause();
}

/// Suspends this process once all ranks wait. Ranks that wait need not be suspended: they only send heartbeats.
void Supervisor::pause_if_all_wait() {
  const bool any = std::any_of(children_.begin(), children_.end(), [](const Child& each) { return each.paused; });
  bool all = true;
  for (int rank = 0; rank < settings_.ranks; ++rank) {
    all = all && (child(rank).paused || status(rank).gone || status(rank).end.said_goodbye);
  }
  if (!any || !all || watch_.judge().cause()) {
    return;
  }
  if (stop_signal_ == 0) {
    stand_still();
  }
  pausing_ = false;
  for (Child& each : children_) {
    each.paused = false;
  }
  watch_.store().resume();
}

/// Suspends this process by the default action of SIGTSTP instead of SIGSTOP: the system ignores SIGTSTP if no shell
/// could continue this process.
void Supervisor::stand_still() {
  struct sigaction caught = {};
  struct sigaction stops = {};
  stops.sa_handler = SIG_DFL;
  sigemptyset(&stops.sa_mask);
  ::sigaction(SIGTSTP, &stops, &caught);
  ::raise(SIGTSTP);
  ::sigaction(SIGTSTP, &caught, nullptr);
  watch_.forget_silence();
}

void Supervisor::ask_to_stop(int signal) {
  if (signal == stop_signal_ && forced_signal_ == 0 && Clock::now() - asked_ < same_request) {
    return;
  }
  if (stop_signal_ == 0 && !watch_.is_ending()) {
    stop_signal_ = signal;
    asked_ = Clock::now();
    if (settings_.has_begun && !settings_.has_begun()) {
      return stop_at_once();
    }
    notice(stop_notice(signal));
    return watch_.store().stop(signal);
  }
  const bool is_first = !watch_.is_ending() && forced_signal_ == 0;
  forced_signal_ = signal;
  if (is_first) {
    notice(fmt::format("ending the ranks now, by {}", signal_text(signal)));
  }
  kill_all();
}

/// Stops before the first step. Ranks that still load, compile or connect do not check for a stop,
/// and have no work to lose.
void Supervisor::stop_at_once() {
  notice(stop_notice(stop_signal_, "stopping before the first step"));
  stopped_at_once_ = true;
  kill_all();
}

}  // namespace shardrun::launch
