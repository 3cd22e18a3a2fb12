#include "transports/gloo/lane.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "transports/gloo/signals.h"

namespace shardrun::gloo_transport {

using sdk::TransportError;

Job::Job(Lane& lane, std::string what, bool waited_at_once)
    : lane_(lane), what_(std::move(what)), waited_at_once_(waited_at_once) {}

/// Shows check_deadlines what runs.
class Lane::Watched {
 public:
  Watched(Lane& lane, Running Lane::*place, const Running& running) : lane_(lane), place_(place) { set(running); }
  ~Watched() { set({}); }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

 private:
  void set(const Running& running) {
    const std::lock_guard lock(lane_.mutex_);
    lane_.*place_ = running;
  }

  Lane& lane_;
  Running Lane::*place_;
};

void Job::run(std::int64_t) {
  const Lane::Watched watched(lane_, &Lane::job_, {&what_, own_deadline_, std::this_thread::get_id()});
  const NoSigpipe no_sigpipe;
  times_.begun = sdk::monotonic_now();
  try {
    execute();
  } catch (const TransportError& error) {
    throw error.within(what_);
  }
  times_.ended = sdk::monotonic_now();
}

Lane::Lane(std::function<void()> on_failure, Awaited awaited)
    : awaited_(std::move(awaited)), worker_(std::move(on_failure)) {}

void Lane::start(Job& job, std::int64_t deadline) {
  job.was_done_here_ = false;
  worker_.reset(job);
  if (last_ == &job) {
    last_ = nullptr;
  }
  throw_failure();
  job.own_deadline_ = deadline;
  if (job.waited_at_once_ && is_idle()) {
    deferred_ = &job;
    return;
  }
  hand_over_deferred();
  worker_.start(job, INT64_MAX);
  last_ = &job;
}

bool Lane::test(Job& job) {
  if (deferred_ == &job) {
    hand_over_deferred();
  }
  if (job.was_done_here_ || worker_.test(job)) {
    return true;
  }
  end_late(job);
  return false;
}

bool Lane::wait(Job& job, std::int64_t deadline) {
  if (deferred_ == &job && deadline >= job.own_deadline_) {
    deferred_ = nullptr;
    run_here(job);
  } else if (deferred_ == &job) {
    hand_over_deferred();
  }
  if (job.was_done_here_ || worker_.wait(job, std::min(deadline, job.own_deadline_))) {
    return true;
  }
  end_late(job);
  return false;
}

void Lane::run_here(Job& job) {
  try {
    job.run(INT64_MAX);
  } catch (const TransportError& error) {
    fail(error);
    throw_failure();
  } catch (const std::exception& error) {
    fail({SR_INTERNAL, error.what()});
    throw_failure();
  }
  job.was_done_here_ = true;
}

void Lane::drop(Job& job) noexcept {
  if (deferred_ == &job) {
    deferred_ = nullptr;
    fail({SR_ABORTED, job.what_ + " was freed before it was complete"});
  }
  worker_.drop(job);
  if (last_ == &job) {
    last_ = nullptr;
  }
}

void Lane::beside(const std::string& what, std::int64_t deadline, const std::function<void()>& act) {
  throw_failure();
  const Watched watched(*this, &Lane::beside_, {&what, deadline, std::this_thread::get_id()});
  const NoSigpipe no_sigpipe;
  try {
    act();
  } catch (const TransportError& error) {
    fail(error.within(what));
    throw_failure();
  } catch (const std::exception& error) {
    fail({SR_INTERNAL, what + ": " + error.what()});
    throw_failure();
  }
}

void Lane::check_deadlines() noexcept {
  const std::int64_t now = sdk::steady_now();
  std::string late;
  std::thread::id thread;
  {
    const std::lock_guard lock(mutex_);
    for (const Running* running : {&job_, &beside_}) {
      if (running->what != nullptr && now >= running->deadline) {
        late = *running->what;
        thread = running->thread;
      }
    }
  }
  if (!late.empty()) {
    fail_late(late, thread);
  }
}

void Lane::end_late(const Job& job) {
  if (sdk::steady_now() < job.own_deadline_) {
    return;
  }
  std::thread::id thread;
  {
    const std::lock_guard lock(mutex_);
    thread = job_.thread;  // of the job before it, where it waits its turn
  }
  fail_late(job.what_, thread);
  throw_failure();
}

void Lane::fail_late(const std::string& what, std::thread::id thread) {
  const sdk::AwaitedRanks awaited = awaited_(thread);
  fail({SR_TIMEOUT, what + " is past its deadline" + (awaited.first ? ", waiting for " + awaited.names : ""),
        awaited.first});
}

void Lane::throw_failure() {
  if (worker_.failed()) {
    throw TransportError(*worker_.failure());
  }
}

bool Lane::is_idle() {
  if (last_ != nullptr && worker_.test(*last_)) {
    last_ = nullptr;
  }
  return last_ == nullptr && deferred_ == nullptr;
}

void Lane::hand_over_deferred() {
  if (Job* const job = std::exchange(deferred_, nullptr)) {
    worker_.start(*job, INT64_MAX);
    last_ = job;
  }
}

}  // namespace shardrun::gloo_transport
