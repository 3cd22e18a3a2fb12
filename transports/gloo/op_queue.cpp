#include "transports/gloo/op_queue.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "transports/gloo/signals.h"

namespace shardrun::gloo_transport {

using sdk::TransportError;

QueuedOp::QueuedOp(OpQueue& queue, std::string what, bool is_blocking)
    : queue_(queue), what_(std::move(what)), is_blocking_(is_blocking) {}

/// Records what runs, for check_deadlines.
class OpQueue::ScopedRunning {
 public:
  ScopedRunning(OpQueue& queue, Running OpQueue::*entry, const Running& running) : queue_(queue), entry_(entry) {
    set(running);
  }
  ~ScopedRunning() { set({}); }
  ScopedRunning(const ScopedRunning&) = delete;
  ScopedRunning& operator=(const ScopedRunning&) = delete;

 private:
  void set(const Running& running) {
    const std::lock_guard lock(queue_.mutex_);
    queue_.*entry_ = running;
  }

  OpQueue& queue_;
  Running OpQueue::*entry_;
};

void QueuedOp::run(sdk::Deadline) {
  const OpQueue::ScopedRunning running(queue_, &OpQueue::queued_, {&what_, own_deadline_, std::this_thread::get_id()});
  const NoSigpipe no_sigpipe;
  times_.begun = sdk::monotonic_now();
  try {
    execute();
  } catch (const TransportError& error) {
    throw error.within(what_);
  }
  times_.ended = sdk::monotonic_now();
}

OpQueue::OpQueue(std::function<void()> on_failure, Awaited awaited)
    : awaited_(std::move(awaited)), worker_(std::move(on_failure)) {}

void OpQueue::start(QueuedOp& op, sdk::Deadline deadline) {
  op.ran_on_caller_ = false;
  worker_.reset(op);
  if (last_ == &op) {
    last_ = nullptr;
  }
  throw_failure();
  op.own_deadline_ = deadline;
  if (op.is_blocking_ && is_idle()) {
    deferred_ = &op;
    return;
  }
  hand_over_deferred();
  worker_.start(op, sdk::Deadline::never());
  last_ = &op;
}

bool OpQueue::test(QueuedOp& op) {
  if (deferred_ == &op) {
    hand_over_deferred();
  }
  if (op.ran_on_caller_ || worker_.test(op)) {
    return true;
  }
  end_late(op);
  return false;
}

bool OpQueue::wait(QueuedOp& op, sdk::Deadline deadline) {
  if (deferred_ == &op && deadline >= op.own_deadline_) {
    deferred_ = nullptr;
    run_on_caller(op);
  } else if (deferred_ == &op) {
    hand_over_deferred();
  }
  if (op.ran_on_caller_ || worker_.wait(op, std::min(deadline, op.own_deadline_))) {
    return true;
  }
  end_late(op);
  return false;
}

void OpQueue::run_on_caller(QueuedOp& op) {
  try {
    op.run(sdk::Deadline::never());
  } catch (const TransportError& error) {
    fail(error);
    throw_failure();
  } catch (const std::exception& error) {
    fail({SR_INTERNAL, error.what()});
    throw_failure();
  }
  op.ran_on_caller_ = true;
}

void OpQueue::drop(QueuedOp& op) noexcept {
  if (deferred_ == &op) {
    deferred_ = nullptr;
    fail({SR_ABORTED, op.what_ + " was freed before it was complete"});
  }
  worker_.drop(op);
  if (last_ == &op) {
    last_ = nullptr;
  }
}

void OpQueue::run_concurrently(const std::string& what, sdk::Deadline deadline, const std::function<void()>& act) {
  throw_failure();
  const ScopedRunning running(*this, &OpQueue::concurrent_, {&what, deadline, std::this_thread::get_id()});
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

void OpQueue::check_deadlines() noexcept {
  const sdk::Deadline now = sdk::Deadline::now();
  std::string late;
  std::thread::id thread;
  {
    const std::lock_guard lock(mutex_);
    for (const Running* running : {&queued_, &concurrent_}) {
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

void OpQueue::end_late(const QueuedOp& op) {
  if (!op.own_deadline_.passed()) {
    return;
  }
  std::thread::id thread;
  {
    const std::lock_guard lock(mutex_);
    thread = queued_.thread;  // of the op that runs, where this one is queued behind it
  }
  fail_late(op.what_, thread);
  throw_failure();
}

void OpQueue::fail_late(const std::string& what, std::thread::id thread) {
  const sdk::AwaitedRanks awaited = awaited_(thread);
  fail({SR_TIMEOUT, what + " is past its deadline" + (awaited.first ? ", waiting for " + awaited.names : ""),
        awaited.first});
}

void OpQueue::throw_failure() {
  if (worker_.failed()) {
    throw TransportError(*worker_.failure());
  }
}

bool OpQueue::is_idle() {
  if (last_ != nullptr && worker_.test(*last_)) {
    last_ = nullptr;
  }
  return last_ == nullptr && deferred_ == nullptr;
}

void OpQueue::hand_over_deferred() {
  if (QueuedOp* const op = std::exchange(deferred_, nullptr)) {
    worker_.start(*op, sdk::Deadline::never());
    last_ = op;
  }
}

}  // namespace shardrun::gloo_transport
