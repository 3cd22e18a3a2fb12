#pragma once

/// A thread that runs the ops of one group, for transports whose calls block.

#include <shardrun/sdk/transport/clock.hpp>
#include <shardrun/sdk/transport/core_wait.hpp>
#include <shardrun/sdk/transport/op.hpp>
#include <shardrun/sdk/transport/queue.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace shardrun::sdk {

/// Runs tasks one after the other, in the order of their starts. A failed worker stays failed: its tasks, running or
/// new, end with that failure. Only one thread at a time may start, join, wait for and drop a task; any thread may call
/// fail and failure. A task that was started in a queue begins when a thread of that queue lets it. Functions of queues
/// are called without holding a lock. `start` and `wait` allocate nothing; `start_in` and `join` allocate only in a
/// task's first runs.
class Worker {
 public:
  class Task {
   public:
    Task() = default;
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;
    virtual ~Task() = default;

   private:
    friend class Worker;
    /// Runs on the worker's thread. An exception fails the worker. Wherever `run` waits, it checks Worker::failed and
    /// ends if that is true. Past the deadline it throws SR_TIMEOUT with the rank for which it waited.
    virtual void run(Deadline deadline) = 0;
    /// A description for messages.
    [[nodiscard]] virtual std::string what() const = 0;

    enum class State { idle, queued, running, done, failed };
    State state_ = State::idle;
    Deadline deadline_;
    OpTimes times_;
    Task* next_ = nullptr;
    std::shared_ptr<PendingCall> turn_ = {};  ///< lets the task begin; made when it is first started in a queue
    bool is_held_ = false;                    ///< true until the queue reaches the task
    std::chrono::nanoseconds timeout_{};      ///< the timeout of a held task
    std::vector<Gate> gates_ = {};            ///< opened when the task has ended
  };

  /// When a task's latest run was in progress.
  using TaskTimes = OpTimes;

  /// `on_failure` must not throw. It is called once, by the thread on which the worker fails.
  explicit Worker(std::function<void()> on_failure = {})
      : on_failure_(std::move(on_failure)), thread_([this] { work(); }) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// REQUIRES: all tasks have been dropped.
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  /// How long past its deadline a task may take to end by itself. The task's own error is better than the worker's,
  /// because it names the ranks that the task waits for. The launcher aborts a job half a second after a failure, so
  /// this is shorter.
  static constexpr std::chrono::nanoseconds report_time = std::chrono::milliseconds(250);

  void start(Task& task, Deadline deadline) {
    {
      const std::lock_guard lock(mutex_);
      throw_failure();
      enqueue(task, deadline, tasks_);
    }
    changed_.notify_all();
  }

  /// Starts the task in a queue. The task, and those started after it, run once the queue has reached it. The task's
  /// deadline is `timeout` after that; nanoseconds::max() means none.
  void start_in(const Queue& queue, Task& task, std::chrono::nanoseconds timeout) {
    if (task.turn_ == nullptr) {
      task.turn_ = std::make_shared<PendingCall>([this, &task] { release(task); });
    }
    {
      const std::lock_guard lock(mutex_);
      throw_failure();
      task.is_held_ = true;
      task.timeout_ = timeout;
      enqueue(task, Deadline::never(), tasks_);
    }
    changed_.notify_all();
    try {
      PendingCall::give(task.turn_, queue);
    } catch (const TransportError& error) {
      fail(error);
      throw;
    }
  }

  /// Makes work that the queue gets later wait until the task has ended, with or without an error.
  void join(Task& task, const Queue& queue) {
    std::unique_lock lock(mutex_);
    if (!is_under_way(task)) {
      return;
    }
    lock.unlock();
    const Gate gate = queue.add_gate();
    lock.lock();
    if (is_under_way(task)) {
      task.gates_.push_back(gate);
      return;
    }
    lock.unlock();
    gate.open();
  }

  /// Whether a task, other than a clean-up, is queued or running, so that a task started now would have to wait.
  [[nodiscard]] bool is_busy() {
    const std::lock_guard lock(mutex_);
    return tasks_.first != nullptr || is_at_task_;
  }

  /// Runs the task even if the worker has failed, and waits for it. It runs after the running task, before all others
  /// that were started; or within the running task when that calls `clean_up_meanwhile`.
  void clean_up(Task& task) noexcept {
    std::unique_lock lock(mutex_);
    enqueue(task, Deadline::never(), clean_ups_);
    changed_.notify_all();
    changed_.wait(lock, [&] { return !is_under_way(task); });
  }

  /// Runs pending clean-ups. A task that waits calls this now and then, so that clean-ups need not wait for the task.
  void clean_up_meanwhile() noexcept {
    std::unique_lock lock(mutex_);
    while (Task* const task = clean_ups_.pop()) {
      carry_out(*task, lock);
    }
  }

  /// Makes the task count as incomplete until it is started again, for an owner who also runs it without the worker. A
  /// task that is still running, which is possible if the worker has failed, is not affected.
  void reset(Task& task) noexcept {
    const std::lock_guard lock(mutex_);
    if (!is_under_way(task)) {
      task.state_ = Task::State::idle;
    }
  }

  [[nodiscard]] bool test(Task& task) {
    std::unique_lock lock(mutex_);
    return is_done(task, lock);
  }

  /// Returns false if `deadline` passed before the task ended. A deadline at or after the task's own counts as
  /// `report_time` after the task's own.
  [[nodiscard]] bool wait(Task& task, Deadline deadline) {
    std::unique_lock lock(mutex_);
    const auto over = [&] { return !is_under_way(task) || failure_.has_value(); };
    while (!over()) {
      // Read again in each round, because a task gets its deadline only when its queue reaches it.
      const Deadline until = deadline < task.deadline_ ? deadline : latest_end(task);
      if (until == Deadline::never()) {
        changed_.wait(lock);
      } else if (!until.passed()) {
        changed_.wait_for(lock, until.slice());
      } else {
        break;
      }
    }
    return is_done(task, lock);
  }

  /// REQUIRES: the task is complete.
  [[nodiscard]] TaskTimes times(const Task& task) {
    const std::lock_guard lock(mutex_);
    return task.times_;
  }

  /// Returns once the task is neither queued nor running. If it was still in progress, the worker fails. If a queue
  /// reaches the task's turn after this, nothing happens.
  void drop(Task& task) noexcept {
    std::unique_lock lock(mutex_);
    if (is_under_way(task)) {
      lock.unlock();
      fail({SR_ABORTED, task.what() + " was freed before it was complete"});
      lock.lock();
    }
    changed_.wait(lock, [&] { return !is_under_way(task); });
    const std::shared_ptr<PendingCall> turn = std::move(task.turn_);
    lock.unlock();
    if (turn != nullptr) {
      turn->cancel();
    }
  }

  /// Fails the worker. Only the first failure is kept.
  void fail(const TransportError& failure) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) {
        return;
      }
      failure_ = failure;
      failed_.store(true, std::memory_order_release);
    }
    changed_.notify_all();
    if (on_failure_) {
      on_failure_();
    }
  }

  [[nodiscard]] bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }

  [[nodiscard]] std::optional<TransportError> failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  struct TaskList {
    Task* first = nullptr;
    Task* last = nullptr;

    void push(Task& task) noexcept {
      task.next_ = nullptr;
      (last != nullptr ? last->next_ : first) = &task;
      last = &task;
    }
    /// Returns null if it is empty.
    Task* pop() noexcept {
      Task* const task = first;
      first = task != nullptr ? task->next_ : nullptr;
      last = first != nullptr ? last : nullptr;
      return task;
    }
  };

  static void enqueue(Task& task, Deadline deadline, TaskList& list) noexcept {
    task.state_ = Task::State::queued;
    task.deadline_ = deadline;
    list.push(task);
  }

  void throw_failure() const {
    if (failure_) {
      throw TransportError(*failure_);
    }
  }

  [[nodiscard]] static bool is_under_way(const Task& task) noexcept {
    return task.state_ == Task::State::queued || task.state_ == Task::State::running;
  }

  /// The time at which the worker fails because this task has not ended.
  [[nodiscard]] static Deadline latest_end(const Task& task) noexcept { return task.deadline_ + report_time; }

  /// Whether the task is done. If the task is past its deadline, even while queued behind others, the worker fails.
  [[nodiscard]] bool is_done(const Task& task, std::unique_lock<std::mutex>& lock) {
    if (is_under_way(task) && !failure_ && latest_end(task).passed()) {
      lock.unlock();
      fail({SR_TIMEOUT, task.what() + " is past its deadline"});
      lock.lock();
    }
    if (task.state_ != Task::State::done) {
      throw_failure();
    }
    return task.state_ == Task::State::done;
  }

  /// Called when the queue has reached the task. Once this function has unlocked, the task may be dropped.
  void release(Task& task) {
    const std::lock_guard lock(mutex_);
    task.is_held_ = false;
    task.deadline_ = Deadline::now() + task.timeout_;
    changed_.notify_all();
  }

  /// Whether the thread has something to do. A first task that its queue has not reached does not count.
  [[nodiscard]] bool has_work() const noexcept {
    const bool is_held = tasks_.first != nullptr && tasks_.first->is_held_ && !failure_;
    return stopping_ || clean_ups_.first != nullptr || (tasks_.first != nullptr && !is_held);
  }

  void work() {
    static_cast<void>(starved_since_last());  // opens its file
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return has_work(); });
      if (Task* const clean_up = clean_ups_.pop()) {
        carry_out(*clean_up, lock);
      } else if (Task* const task = tasks_.pop(); task == nullptr) {
        return;
      } else {
        is_at_task_ = true;
        if (failure_) {
          end(*task, Task::State::failed, lock);
        } else {
          carry_out(*task, lock);
        }
        is_at_task_ = false;
      }
    }
  }

  /// Ends a task. Opens its gates first, because their queues need not exist once the task has ended.
  void end(Task& task, Task::State state, std::unique_lock<std::mutex>& lock) noexcept {
    while (!task.gates_.empty()) {
      const Gate gate = task.gates_.back();
      task.gates_.pop_back();
      lock.unlock();
      gate.open();
      lock.lock();
    }
    task.state_ = state;
    changed_.notify_all();
  }

  void carry_out(Task& task, std::unique_lock<std::mutex>& lock) noexcept {
    task.state_ = Task::State::running;
    const Deadline deadline = task.deadline_;
    lock.unlock();
    const std::int64_t begun = monotonic_now();
    const bool succeeded = run(task, deadline);
    const OpTimes times = {.begun = begun, .ended = monotonic_now(), .starved = starved_since_last()};
    lock.lock();
    task.times_ = times;
    end(task, succeeded ? Task::State::done : Task::State::failed, lock);
  }

  /// Nanoseconds for which this thread had no core since the last call, without those that it yielded. All of them
  /// count for the latest task, because the thread sleeps between tasks.
  [[nodiscard]] std::int64_t starved_since_last() noexcept {
    const std::int64_t now = core_wait_.nanoseconds().value_or(0) - yielded();
    return std::max<std::int64_t>(0, now - std::exchange(starved_, now));
  }

  [[nodiscard]] bool run(Task& task, Deadline deadline) noexcept {
    try {
      task.run(deadline);
      return true;
    } catch (const TransportError& error) {
      fail(error);
    } catch (const std::exception& error) {
      fail({SR_INTERNAL, error.what()});
    } catch (...) {
      fail({SR_INTERNAL, "an exception of an unknown type was thrown"});
    }
    return false;
  }

  std::function<void()> on_failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
  TaskList tasks_;
  TaskList clean_ups_;
  bool is_at_task_ = false;  ///< it runs a task that it took from `tasks_`
  bool stopping_ = false;
  std::optional<TransportError> failure_;
  std::atomic<bool> failed_ = false;
  // Used only by the worker's thread.
  CoreWait core_wait_;
  std::int64_t starved_ = 0;  ///< until the end of the latest task
  std::thread thread_;        // last, because it uses the members above
};

}  // namespace shardrun::sdk
