#include "core/launch/store_host.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <csignal>
#include <system_error>
#include <utility>

#include "core/base/end_process.h"
#include "core/base/error.h"
#include "core/base/standard_error.h"
#include "core/launch/status.h"

namespace shardrun::launch {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;

/// Often enough for a person who asks to stop.
constexpr milliseconds longest_tick{200};

milliseconds tick_of(const HostSettings& settings) {
  milliseconds tick = longest_tick;
  for (const milliseconds timeout : {settings.heartbeat_timeout, settings.join_timeout}) {
    tick = timeout.count() > 0 ? std::min(tick, timeout / 8) : tick;
  }
  return std::max(tick, milliseconds(5));
}

/// "0 0 1 1": of each rank the number of its machine.
std::string machines_of(const std::vector<std::string>& hosts) {
  std::vector<std::string> known;
  std::string text;
  for (const std::string& host : hosts) {
    const auto found = std::find(known.begin(), known.end(), host);
    text += fmt::format("{}{}", text.empty() ? "" : " ", found - known.begin());
    if (found == known.end()) {
      known.push_back(host);
    }
  }
  return text;
}

}  // namespace

StoreHost::StoreHost(HostSettings settings)
    : settings_(std::move(settings)),
      ticker_(io_),
      grace_(io_),
      inquest_(settings_.ranks),
      ending_(io_, settings_.hearing, [this] { end_all(); }),
      hosts_(static_cast<std::size_t>(settings_.ranks)),
      last_tick_(Clock::now()),
      store_(io_, store_settings(), store_events()) {
  for (int rank = 0; rank < settings_.ranks; ++rank) {
    inquest_.of(rank).heard = last_tick_;
  }
  store_.publish("run", settings_.run);
}

StoreHost::~StoreHost() {
  io_.stop();
  if (thread_.joinable()) {
    thread_.join();
  }
}

/// Signals are for the rank's own threads.
void StoreHost::start() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Error(ErrorCode::io, fmt::format("cannot start the thread that ranks meet on: {}", error.what()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

/// Until the end of this, whatever fails meanwhile.
void StoreHost::serve() {
  const auto work = boost::asio::make_work_guard(io_);
  boost::asio::post(io_, [this] { tick(); });
  while (!io_.stopped()) {
    try {
      io_.run();
    } catch (const std::exception& error) {
      inquest_.blame(0, FailureKind::own,
                     fmt::format("its part as the place where ranks meet failed: {}", error.what()));
      ending_.look(inquest_);
    }
  }
}

void StoreHost::expect_ranks() {
  boost::asio::post(io_, [this] {
    const Clock::time_point now = Clock::now();
    for (int rank = 0; rank < settings_.ranks; ++rank) {
      Inquest::Subject& subject = inquest_.of(rank);
      subject.heard = subject.joined ? subject.heard : now;
    }
    expecting_ = true;
    next_reminder_ = now + settings_.first_reminder;
  });
}

StoreServerSettings StoreHost::store_settings() const {
  return {.address = settings_.address,
          .port = settings_.port,
          .world_size = settings_.ranks,
          .token = settings_.token,
          .job = settings_.job,
          .hello_timeout = settings_.stranger_timeout,
          .answers_heartbeats = true,
          .about_other_job = "the job file, its --set words and its paths must be the same on all hosts"};
}

StoreServerEvents StoreHost::store_events() {
  return {
      .joined = [this](int rank, const Hello& hello) { joined(rank, hello); },
      .came_with_other_job = [this](const Hello& hello, const std::string& why) { came_with_other_job(hello, why); },
      .heard = [this](int rank) { inquest_.of(rank).heard = Clock::now(); },
      .message = [this](int rank, std::string_view kind, std::string_view bytes) { take(rank, kind, bytes); },
      .failed =
          [this](int rank, FailureKind kind, std::optional<int> awaited, std::string_view text) {
            inquest_.says_failed(rank, kind, awaited, text);
            inquest_.of(rank).gone = true;
            ending_.look(inquest_);
            finish_if_done();
          },
      .abort_heard = [this](int rank) { inquest_.of(rank).abort_heard = true; },
      .said_goodbye =
          [this](int rank) {
            inquest_.of(rank).end.said_goodbye = true;
            gone(rank);
          },
      .paused = [this](int) { store_.resume(); },
      .closed =
          [this](int rank, const std::string& why) {
            inquest_.of(rank).lost_line = why;
            gone(rank);
          },
      .log =
          [this](const std::string& line) {
            // Whoever waits for a rank should see that it came with another token.
            joined_ < settings_.ranks ? notice(line) : log(line);
          }};
}

void StoreHost::joined(int rank, const Hello& hello) {
  Inquest::Subject& subject = inquest_.of(rank);
  subject.joined = true;
  subject.heard = Clock::now();
  subject.host = hello.host;
  subject.end.pid = static_cast<pid_t>(hello.pid);
  hosts_[static_cast<std::size_t>(rank)] = hello.host;
  if (++joined_ == settings_.ranks) {
    store_.publish("machines", machines_of(hosts_));
  }
}

/// What it threw, or "".
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

/// Once all are there it is another start of the same world, by mistake.
void StoreHost::came_with_other_job(const Hello& hello, const std::string& why) {
  const auto rank = static_cast<int>(hello.rank);
  Inquest::Subject& subject = inquest_.of(rank);
  if (joined_ == settings_.ranks || subject.joined || ending_.has_begun()) {
    return;
  }
  subject.host = hello.host;
  subject.end.pid = static_cast<pid_t>(hello.pid);
  inquest_.blame(rank, FailureKind::own, why);
  ending_.look(inquest_);
}

void StoreHost::take(int rank, std::string_view kind, std::string_view bytes) {
  const std::string failed = call_back([&] {
    if (settings_.on_message) {
      settings_.on_message({rank, kind, bytes});
    }
  });
  if (!failed.empty()) {
    inquest_.blame(0, FailureKind::own, fmt::format("could not take what rank {} reported: {}", rank, failed));
    ending_.look(inquest_);
  }
}

void StoreHost::gone(int rank) {
  if (!std::exchange(inquest_.of(rank).gone, true)) {
    inquest_.ended(rank, 0);
    ending_.look(inquest_);
    finish_if_done();
  }
}

void StoreHost::tick() {
  const milliseconds interval = tick_of(settings_);
  const Clock::time_point now = Clock::now();
  const Clock::duration missed = time_held_up(now - last_tick_, interval);
  last_tick_ = now;
  const milliseconds join_timeout = expecting_ ? settings_.join_timeout : milliseconds(0);
  for (int rank = 0; rank < settings_.ranks && !ending_.has_begun(); ++rank) {
    inquest_.of(rank).heard += missed;
    if (std::optional<std::string> why = inquest_.silence(rank, now, settings_.heartbeat_timeout, join_timeout)) {
      inquest_.blame(rank, FailureKind::own, std::move(*why));
      ending_.look(inquest_);
    }
  }
  const int signal = settings_.stop_signal ? settings_.stop_signal() : 0;
  const bool has_begun = joined_ == settings_.ranks && (!settings_.has_begun || settings_.has_begun());
  if (signal != 0 && !has_begun && !ending_.has_begun()) {
    stop_early(signal);
  }
  remind(now);
  ticker_.expires_after(interval);
  ticker_.async_wait([this](const error_code& cancelled) {
    if (!cancelled) {
      tick();
    }
  });
}

/// "waiting for ranks 1, 2 … to join"
void StoreHost::remind(Clock::time_point now) {
  constexpr int most_named = 8;
  if (!expecting_ || ending_.has_begun() || joined_ == settings_.ranks || now < next_reminder_) {
    return;
  }
  next_reminder_ = now + settings_.reminder;
  const int missing = settings_.ranks - joined_;
  std::string names;
  int named = 0;
  for (int rank = 0; rank < settings_.ranks && named < most_named; ++rank) {
    if (!inquest_.of(rank).joined) {
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
  notice(joined_ == settings_.ranks ? fmt::format("asked to stop by {} before the first step", signal_text(signal))
                                    : fmt::format("asked to stop by {} before all ranks had joined: {} of {} were here",
                                                  signal_text(signal), joined_, settings_.ranks));
  ending_.begin();
}

void StoreHost::end_all() {
  const std::string reason = stopped_early_ != 0
                                 ? fmt::format("rank 0 was asked to stop by {}", signal_text(stopped_early_))
                                 : describe(*inquest_.cause());
  store_.abort(reason);
  for (int rank = 0; rank < settings_.ranks; ++rank) {
    inquest_.of(rank).gone = inquest_.of(rank).gone || !inquest_.of(rank).joined;
  }
  grace_.start(settings_.grace, [this] {
    finish();
    give_up_unless_waited_for();
  });
}

void StoreHost::finish_if_done() {
  const std::vector<Inquest::Subject>& all = inquest_.subjects();
  if (std::all_of(all.begin(), all.end(), [](const Inquest::Subject& each) { return each.gone; })) {
    finish();
  }
}

void StoreHost::finish() {
  if (!finished_) {  // which this thread alone writes
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

/// Either the rank's own thread has the result, or this one.
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
  LaunchResult result = inquest_.result();
  result.strangers = store_.strangers();
  if (stopped_early_ != 0) {
    result.cause.reset();
    result.stop_signal = stopped_early_;
    result.exit_code = 128 + stopped_early_;
  }
  if (ending_.has_begun()) {
    result.ending = ending_.lasting();
  }
  return result;
}

/// A line that cannot be told is not worth a run.
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
