#pragma once

#include <shardrun/sdk/transport.hpp>
#include <shardrun/sdk/transport/worker.hpp>

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace shardrun::gloo_transport {

class OpQueue;

/// An op that runs while no other op of its group does.
class QueuedOp : public sdk::Worker::Task {
 public:
  /// `what`: for messages. `is_blocking`: its caller waits right after starting it.
  QueuedOp(OpQueue& queue, std::string what, bool is_blocking);

  /// Of the latest run. REQUIRES: it is complete.
  [[nodiscard]] sdk::OpTimes times_of_run() const noexcept { return times_; }

 private:
  friend class OpQueue;
  /// Runs the op. Throws TransportError. Ends soon after the queue has failed.
  virtual void execute() = 0;

  void run(sdk::Deadline deadline) final;
  [[nodiscard]] std::string what() const final { return what_; }

  OpQueue& queue_;
  std::string what_;
  bool is_blocking_;
  bool ran_on_caller_ = false;  ///< in its latest run
  sdk::Deadline own_deadline_;
  sdk::OpTimes times_;
};

/// Runs a group's ops in the order of their starts, on a thread of its own. A blocking op with nothing before it runs
/// on its caller's thread, which saves two thread switches. A failed queue stays failed.
class OpQueue {
 public:
  /// The members that a thread waits for. Any thread calls it.
  using Awaited = std::function<sdk::AwaitedRanks(std::thread::id)>;

  /// `on_failure`: see sdk::Worker.
  OpQueue(std::function<void()> on_failure, Awaited awaited);

  // As Worker's.
  void start(QueuedOp& op, sdk::Deadline deadline);
  [[nodiscard]] bool test(QueuedOp& op);
  [[nodiscard]] bool wait(QueuedOp& op, sdk::Deadline deadline);
  void drop(QueuedOp& op) noexcept;

  /// Runs `act` now, on this thread, concurrently with the queue. An exception of it fails the queue.
  void run_concurrently(const std::string& what, sdk::Deadline deadline, const std::function<void()>& act);

  // Any thread.
  void fail(const sdk::TransportError& failure) noexcept { worker_.fail(failure); }
  [[nodiscard]] std::optional<sdk::TransportError> failure() { return worker_.failure(); }
  /// Fails the queue where something that runs is past its deadline.
  void check_deadlines() noexcept;

 private:
  friend class QueuedOp;

  /// What runs now. `what` is null where nothing does.
  struct Running {
    const std::string* what = nullptr;
    sdk::Deadline deadline;
    std::thread::id thread;
  };
  class ScopedRunning;

  void throw_failure();
  /// Fails the queue where the op is incomplete and past its deadline. The worker gets no deadlines, since it could not
  /// name the members that are waited for.
  void end_late(const QueuedOp& op);
  void fail_late(const std::string& what, std::thread::id thread);
  [[nodiscard]] bool is_idle();
  /// Runs the op on this thread. An exception of it fails the queue.
  void run_on_caller(QueuedOp& op);
  void hand_over_deferred();

  Awaited awaited_;
  QueuedOp* deferred_ = nullptr;  ///< started, and left to its wait
  QueuedOp* last_ = nullptr;      ///< the last op given to the worker; null once it is complete
  std::mutex mutex_;              ///< guards the next two
  Running queued_;
  Running concurrent_;
  sdk::Worker worker_;  // destroyed first: it uses the members above
};

}  // namespace shardrun::gloo_transport
