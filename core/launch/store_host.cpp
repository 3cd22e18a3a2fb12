#include "core/launch/store_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/standard_error.h"
#include "core/launch/signals.h"
#include "core/launch/status.h"

namespace shardrun::launch {
namespace {

using std::chrono::milliseconds;

/// Ticks are so short that a person's request to stop is answered soon.
constexpr milliseconds longest_tick{200};

/// The number of each rank's machine, by rank: "0 0 1 1".
std::string machines_of(const std::vector<RankStatus>& ranks) {
  std::vector<std::string> known;
  std::string text;
  for (const RankStatus& rank : ranks) {
    const auto found = std::find(known.begin(), known.end(), rank.host);
    text += fmt::format("{}{}", text.empty() ? "" : " ", found - known.begin());
    if (found == known.end()) {
      known.push_back(rank.host);
    }
  }
  return text;
}

}  // namespace

StoreHost::StoreHost(HostSettings settings)
    : settings_(std::move(settings)), watch_(io_, watch_settings(), watch_events()) {
  watch_.store().publish("run", settings_.run);
}

StoreHost::~StoreHost() {
  io_.stop();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void StoreHost::start() {
  thread_ = thread_without_signals("the thread that ranks meet on", [this] { serve(); });
}

/// Serves until io_ is stopped. An error fails the job, but serving continues.
void StoreHost::serve() {
  const auto work = boost::asio::make_work_guard(io_);
  boost::asio::post(io_, [this] { watch_.start(); });
  while (!io_.stopped()) {
    try {
      io_.run();
    } catch (const std::exception& error) {
      watch_.blame(0, FailureKind::own, fmt::format("its part as the place where ranks meet failed: {}", error.what()));
    }
  }
}

void StoreHost::expect_ranks() {
  boost::asio::post(io_, [this] {
    for (int rank = 0; rank < settings_.ranks; ++rank) {
      watch_.expect(rank);
    }
    next_reminder_ = Clock::now() + settings_.first_reminder;
  });
}

JobWatchSettings StoreHost::watch_settings() const {
  return {.store = {.address = settings_.address,
                    .port = settings_.port,
                    .world_size = settings_.ranks,
                    .token = settings_.token,
                    .job = settings_.job,
                    .hello_timeout = settings_.stranger_timeout,
                    .answers_heartbeats = true,
                    .about_other_job = "the job file, its --set words and its paths must be the same on all hosts"},
          .heartbeat_timeout = settings_.heartbeat_timeout,
          .join_timeout = settings_.join_timeout,
          .report_time = settings_.report_time,
          .grace = settings_.grace,
          .longest_tick = longest_tick};
}

JobWatchEvents StoreHost::watch_events() {
  return {
      .joined = [this](int rank, const Hello& hello) { joined(rank, hello); },
      .came_with_other_job = [this](const Hello& hello, const std::string& why) { came_with_other_job(hello, why); },
      .message = [this](int rank, std::string_view kind, std::string_view bytes) { take(rank, kind, bytes); },
      .failed =
          [this](int rank) {
            watch_.status(rank).gone = true;
            finish_if_done();
          },
      .said_goodbye = [this](int rank) { gone(rank); },
      .paused = [this](int) { watch_.store().resume(); },
      .closed = [this](int rank) { gone(rank); },
      .silent = [](int) {},
      .tick =
          [this](Clock::time_point now) {
            stop_if_asked();
            remind(now);
          },
      .ending = [] {},  // ranks that have not joined may come within `grace`, and are told
      .grace_over =
          [this] {
            finish();
            give_up_unless_waited_for();
          },
      .log =
          [this](const std::string& line) {
            // A person who waits for a rank should see that it came with another token.
            watch_.have_all_joined() ? log(line) : notice(line);
          }};
}

void StoreHost::joined(int rank, const Hello& hello) {
  watch_.status(rank).end.pid = static_cast<pid_t>(hello.pid);
  if (watch_.have_all_joined()) {
    watch_.store().publish("machines", machines_of(watch_.judge().statuses()));
  }
}

/// Calls a callback. Returns the message of its exception, or "".
template <class Call>
std::string StoreHost::call_back(const Call& call) {
  const std::lock_guard lock(callback_mutex_);
  if (result_taken_) {
    return "";
  }
  try {
    call();
    return "";
  } catch (const std::exception& error) {
    const std::string_view what = error.what();
    return what.empty() ? "no reason given" : std::string(what);
  }
}

/// Called for a process with another job. Until all ranks have joined this is a failure. After that, the process is a
/// mistaken second start of the same world, and is ignored.
void StoreHost::came_with_other_job(const Hello& hello, const std::string& why) {
  const auto rank = static_cast<int>(hello.rank);
  RankStatus& status = watch_.status(rank);
  if (watch_.have_all_joined() || status.joined || watch_.is_ending()) {
    return;
  }
  status.host = hello.host;
  status.end.pid = static_cast<pid_t>(hello.pid);
  watch_.blame(rank, FailureKind::own, why);
}

void StoreHost::take(int rank, std::string_view kind, std::string_view bytes) {
  const std::string failed = call_back([&] {
    if (settings_.on_message) {
      settings_.on_message({rank, kind, bytes});
    }
  });
  if (!failed.empty()) {
    watch_.blame(0, FailureKind::own, fmt::format("could not take what rank {} reported: {}", rank, failed));
  }
}

void StoreHost::gone(int rank) {
  if (!std::exchange(watch_.status(rank).gone, true)) {
    watch_.ended(rank, 0);
    finish_if_done();
  }
}

void StoreHost::stop_if_asked() {
  const int signal = settings_.stop_signal ? settings_.stop_signal() : 0;
  const bool has_begun = watch_.have_all_joined() && (!settings_.has_begun || settings_.has_begun());
  if (signal != 0 && !has_begun && !watch_.is_ending()) {
    stop_early(signal);
  }
}

/// Reports missing ranks: "waiting for ranks 1, 2 … to join".
void StoreHost::remind(Clock::time_point now) {
  constexpr int most_named = 8;
  if (watch_.is_ending() || watch_.have_all_joined() || now < next_reminder_) {
    return;
  }
  next_reminder_ = now + settings_.reminder;
  const int missing = settings_.ranks - watch_.joined();
  std::string names;
  int named = 0;
  for (int rank = 0; rank < settings_.ranks && named < most_named; ++rank) {
    if (!watch_.status(rank).joined) {
      names += fmt::format("{}{}", named == 0 ? "" : ", ", rank);
      ++named;
    }
  }
  if (missing > named) {
    names += fmt::format(" and {} more", missing - named);
  }
  notice(fmt::format("waiting for rank{} {} to join at {} port {}", missing == 1 ? "" : "s", names, settings_.address,
                     port()));
}

void StoreHost::stop_early(int signal) {
  stopped_early_ = signal;
  notice(watch_.have_all_joined() ? fmt::format("asked to stop by {} before the first step", signal_text(signal))
                                  : fmt::format("asked to stop by {} before all ranks had joined: {} of {} were here",
                                                signal_text(signal), watch_.joined(), settings_.ranks));
  watch_.end(fmt::format("rank 0 was asked to stop by {}", signal_text(signal)));
}

void StoreHost::finish_if_done() {
  const std::vector<RankStatus>& all = watch_.judge().statuses();
  if (std::all_of(all.begin(), all.end(), [](const RankStatus& each) { return each.gone; })) {
    finish();
  }
}

void StoreHost::finish() {
  if (!finished_) {  // only this thread writes it
    LaunchResult ended = result();
    if (ended.strangers > 0) {
      notice(strangers_notice(ended.strangers));
    }
    const std::lock_guard lock(mutex_);
    result_ = std::move(ended);
    finished_ = true;
  }
  changed_.notify_all();
}

/// Decides who handles the result: the rank's own thread, if it has called wait(), or this thread,
/// which then ends the process.
void StoreHost::give_up_unless_waited_for() {
  {
    const std::lock_guard lock(mutex_);
    given_up_ = !waited_for_ && settings_.last_resort;
  }
  if (!given_up_) {
    return;
  }
  try {
    settings_.last_resort(result_);
  } catch (const std::exception& error) {
    write_to_standard_error(fmt::format("shardrun: {}\n", error.what()), Patience::brief);
  }
  end_process(1);
}

LaunchResult StoreHost::wait() {
  std::unique_lock lock(mutex_);
  waited_for_ = true;
  changed_.wait(lock, [this] { return finished_ && !given_up_; });
  LaunchResult result = result_;
  lock.unlock();
  const std::lock_guard no_callback(callback_mutex_);
  result_taken_ = true;
  return result;
}

LaunchResult StoreHost::result() const {
  LaunchResult result = watch_.result();
  if (stopped_early_ != 0) {
    result.cause.reset();
    result.stop_signal = stopped_early_;
    result.exit_code = 128 + stopped_early_;
  }
  return result;
}

/// A line that cannot be logged does not fail the job.
void StoreHost::log(const std::string& line) {
  static_cast<void>(call_back([&] {
    if (settings_.on_log) {
      settings_.on_log(line);
    }
  }));
}

void StoreHost::notice(const std::string& line) {
  log(line);
  static_cast<void>(call_back([&] {
    if (settings_.on_notice) {
      settings_.on_notice(line);
    }
  }));
}

}  // namespace shardrun::launch
