#pragma once

/// sr_queue as C++ values: a device's queue, in which a transport orders its ops, and gates at which the queue waits.

#include <shardrun/sdk/transport/op.hpp>
#include <shardrun/transport.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace shardrun::sdk {

/// A point at which a queue waits. Copyable. Valid as long as its queue.
class Gate {
 public:
  Gate(const sr_queue& queue, std::uint64_t number) : queue_(&queue), number_(number) {}
  /// Lets the queue continue. Any thread may call it, once.
  void open() const noexcept { queue_->open_gate(queue_->self, number_); }

 private:
  const sr_queue* queue_;
  std::uint64_t number_;
};

/// A device's queue. Copyable. Valid until the ops that were enqueued in it or joined into it are freed. A failure
/// throws TransportError.
class Queue {
 public:
  explicit Queue(const sr_queue& queue) : queue_(&queue) {}

  /// SR_QUEUE_...
  [[nodiscard]] std::uint32_t kind() const noexcept { return queue_->kind; }
  [[nodiscard]] std::uint32_t device() const noexcept { return queue_->device; }
  /// The CUstream of a SR_QUEUE_CUDA.
  [[nodiscard]] void* native() const noexcept { return queue_->native; }

  /// See sr_queue::call.
  void call(void (*run)(void* argument), void* argument) const {
    detail::call_transport([&](sr_error* error) { return queue_->call(queue_->self, run, argument, error); });
  }
  /// Makes work that the queue gets later wait until the gate is open.
  [[nodiscard]] Gate add_gate() const {
    std::uint64_t number = 0;
    detail::call_transport([&](sr_error* error) { return queue_->add_gate(queue_->self, &number, error); });
    return {*queue_, number};
  }

 private:
  const sr_queue* queue_;
};

/// A call in a queue that can be cancelled, because the queue can reach the call after the objects that `act` uses have
/// been freed. Giving the same call again allocates nothing.
class PendingCall {
 public:
  /// `act` must not throw, and must not give or cancel the call. Once `act` has begun, other threads may do both.
  explicit PendingCall(std::function<void()> act) : act_(std::move(act)) {}

  /// Gives the call to a queue, which holds it until `act` begins. REQUIRES: no queue holds it. Throws TransportError;
  /// then the call is not made.
  static void give(const std::shared_ptr<PendingCall>& call, const Queue& queue) {
    call->keep(call);
    try {
      queue.call(&PendingCall::make, call.get());
    } catch (...) {
      call->keep(nullptr);
      throw;
    }
  }

  /// Once this returns, the call is not running and will do nothing.
  void cancel() noexcept {
    const std::lock_guard lock(mutex_);
    act_ = nullptr;
  }

 private:
  void keep(std::shared_ptr<PendingCall> self) noexcept {
    const std::lock_guard lock(mutex_);
    self_.swap(self);
  }

  static void make(void* argument) {
    std::shared_ptr<PendingCall> self;  // destroyed after the lock is released
    PendingCall& call = *static_cast<PendingCall*>(argument);
    const std::lock_guard lock(call.mutex_);
    self.swap(call.self_);
    if (call.act_) {
      call.act_();
    }
  }

  std::mutex mutex_;
  std::function<void()> act_;
  std::shared_ptr<PendingCall> self_;  ///< while a queue has the call
};

}  // namespace shardrun::sdk
