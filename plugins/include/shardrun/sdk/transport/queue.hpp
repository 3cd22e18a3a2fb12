#pragma once

/// sr_queue as C++ values: a device's queue, in which a transport puts ops in order, and gates that hold it.

#include <shardrun/sdk/transport/op.hpp>
#include <shardrun/transport.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace shardrun::sdk {

/// Where a queue waits. Copyable. Valid as long as its queue.
class Gate {
 public:
  Gate(const sr_queue& queue, std::uint64_t number) : queue_(&queue), number_(number) {}
  /// The queue goes on. Any thread, once.
  void open() const noexcept { queue_->open_gate(queue_->self, number_); }

 private:
  const sr_queue* queue_;
  std::uint64_t number_;
};

/// Copyable. Valid until the ops that were enqueued in it or joined into it are freed. Failures throw TransportError.
class Queue {
 public:
  explicit Queue(const sr_queue& queue) : queue_(&queue) {}

  /// SR_QUEUE_...
  [[nodiscard]] std::uint32_t kind() const noexcept { return queue_->kind; }
  [[nodiscard]] std::uint32_t device() const noexcept { return queue_->device; }
  /// For SR_QUEUE_CUDA: its CUstream.
  [[nodiscard]] void* native() const noexcept { return queue_->native; }

  /// See sr_queue::call.
  void call(void (*run)(void* argument), void* argument) const {
    detail::call_transport([&](sr_error* error) { return queue_->call(queue_->self, run, argument, error); });
  }
  /// Work that the queue is given later waits until the gate is open.
  [[nodiscard]] Gate add_gate() const {
    std::uint64_t number = 0;
    detail::call_transport([&](sr_error* error) { return queue_->add_gate(queue_->self, &number, error); });
    return {*queue_, number};
  }

 private:
  const sr_queue* queue_;
};

/// A call that can be cancelled: a queue may come to it after what it is about has been freed. It can be given again
/// without allocating anything.
class PendingCall {
 public:
  /// `act` throws nothing, and neither gives nor cancels the call. Once it has begun, other threads can.
  explicit PendingCall(std::function<void()> act) : act_(std::move(act)) {}

  /// REQUIRES: no queue has it; one has it until `act` begins. Throws TransportError, and then the call is not made.
  static void give(const std::shared_ptr<PendingCall>& call, const Queue& queue) {
    call->keep(call);
    try {
      queue.call(&PendingCall::make, call.get());
    } catch (...) {
      call->keep(nullptr);
      throw;
    }
  }

  /// Once this returns, the call is not under way and will do nothing.
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
    std::shared_ptr<PendingCall> self;  // destroyed after the lock
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
