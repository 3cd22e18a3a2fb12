#pragma once

/// A thread that carries out the ops of one group, for transports whose calls block.

#include <shardrun/sdk/clock.hpp>
#include <shardrun/sdk/op.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace shardrun::sdk {

/// Runs what is started in that order, one after the other. Once it has failed it stays failed: what is under way or
/// comes later ends with that failure. A task is started, waited for and dropped by one thread at a time; fail and
/// failure are for any thread. Starting and waiting allocate nothing.
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
    /// On the worker's thread. What it throws fails the worker. It looks at Worker::failed wherever it waits. Past the
    /// deadline it throws SR_TIMEOUT by itself, and says whom it waited for.
    virtual void run(std::int64_t deadline) = 0;
    /// For messages.
    [[nodiscard]] virtual std::string what() const = 0;

    enum class State { idle, queued, running, done, failed };
    State state_ = State::idle;
    std::int64_t deadline_ = 0;
    std::int64_t begun_ = 0;
    std::int64_t ended_ = 0;
    Task* next_ = nullptr;
  };

  /// When a task's latest run was under way.
  struct Times {
    std::int64_t begun = 0;
    std::int64_t ended = 0;
  };

  /// `on_failure`, which does not throw, is called once, by the thread on which the worker fails.
  explicit Worker(std::function<void()> on_failure = {})
      : on_failure_(std::move(on_failure)), thread_([this] { work(); }) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// All tasks are dropped before.
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  /// How long the worker waits past a task's deadline for what runs to end by itself: that knows whom it waits for.
  static constexpr std::int64_t report_time = 500'000'000;

  void start(Task& task, std::int64_t deadline) {
    {
      const std::lock_guard lock(mutex_);
      throw_failure();
      enqueue(task, deadline, tasks_);
    }
    changed_.notify_all();
  }

  /// Runs the task even if the worker has failed, and waits for it: before what was started, behind what runs, or
  /// within that where it calls `clean_up_meanwhile`.
  void clean_up(Task& task) noexcept {
    std::unique_lock lock(mutex_);
    enqueue(task, INT64_MAX, clean_ups_);
    changed_.notify_all();
    changed_.wait(lock, [&] { return !is_under_way(task); });
  }

  /// For a task that waits, now and then: who cleans up need not wait for what it waits for.
  void clean_up_meanwhile() noexcept {
    std::unique_lock lock(mutex_);
    while (Task* const task = clean_ups_.pop()) {
      carry_out(*task, lock);
    }
  }

  /// Forgets how the task's latest run ended, for an owner who also runs it without the worker: until it is started
  /// again it is not complete. One that is still under way, as it may be where the worker has failed, stays so.
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

  /// False where `deadline` passed before. One that is not before the task's own is that one.
  [[nodiscard]] bool wait(Task& task, std::int64_t deadline) {
    std::unique_lock lock(mutex_);
    const auto over = [&] { return !is_under_way(task) || failure_.has_value(); };
    const std::int64_t until = deadline < task.deadline_ ? deadline : latest_end(task);
    if (until == INT64_MAX) {
      changed_.wait(lock, over);
    } else {
      while (!over() && steady_now() < until) {
        changed_.wait_for(lock, slice_until(until), over);
      }
    }
    return is_done(task, lock);
  }

  /// Of one that is complete.
  [[nodiscard]] Times times(const Task& task) {
    const std::lock_guard lock(mutex_);
    return {task.begun_, task.ended_};
  }

  /// Returns once the task is neither queued nor running. One that still was makes the worker fail.
  void drop(Task& task) noexcept {
    std::unique_lock lock(mutex_);
    if (is_under_way(task)) {
      lock.unlock();
      fail({SR_ABORTED, task.what() + " was freed before it was complete"});
      lock.lock();
    }
    changed_.wait(lock, [&] { return !is_under_way(task); });
  }

  /// The first failure counts.
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
  struct Queue {
    Task* first = nullptr;
    Task* last = nullptr;

    void push(Task& task) noexcept {
      task.next_ = nullptr;
      (last != nullptr ? last->next_ : first) = &task;
      last = &task;
    }
    /// Null where there is none.
    Task* pop() noexcept {
      Task* const task = first;
      first = task != nullptr ? task->next_ : nullptr;
      last = first != nullptr ? last : nullptr;
      return task;
    }
  };

  static void enqueue(Task& task, std::int64_t deadline, Queue& queue) noexcept {
    task.state_ = Task::State::queued;
    task.deadline_ = deadline;
    queue.push(task);
  }

  void throw_failure() const {
    if (failure_) {
      throw TransportError(*failure_);
    }
  }

  [[nodiscard]] static bool is_under_way(const Task& task) noexcept {
    return task.state_ == Task::State::queued || task.state_ == Task::State::running;
  }

  /// When the worker fails because this task has not ended.
  [[nodiscard]] static std::int64_t latest_end(const Task& task) noexcept {
    return task.deadline_ > INT64_MAX - report_time ? INT64_MAX : task.deadline_ + report_time;
  }

  /// An op that is past its own deadline fails its group, also while it waits behind others.
  [[nodiscard]] bool is_done(const Task& task, std::unique_lock<std::mutex>& lock) {
    if (is_under_way(task) && !failure_ && steady_now() >= latest_end(task)) {
      lock.unlock();
      fail({SR_TIMEOUT, task.what() + " is past its deadline"});
      lock.lock();
    }
    if (task.state_ != Task::State::done) {
      throw_failure();
    }
    return task.state_ == Task::State::done;
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopping_ || clean_ups_.first != nullptr || tasks_.first != nullptr; });
      if (Task* const clean_up = clean_ups_.pop()) {
        carry_out(*clean_up, lock);
      } else if (Task* const task = tasks_.pop(); task == nullptr) {
        return;
      } else if (!failure_) {
        carry_out(*task, lock);
      } else {
        task->state_ = Task::State::failed;
        changed_.notify_all();
      }
    }
  }

  void carry_out(Task& task, std::unique_lock<std::mutex>& lock) noexcept {
    task.state_ = Task::State::running;
    const std::int64_t deadline = task.deadline_;
    lock.unlock();
    const std::int64_t begun = monotonic_now();
    const bool succeeded = run(task, deadline);
    const std::int64_t ended = monotonic_now();
    lock.lock();
    task.begun_ = begun;
    task.ended_ = ended;
    task.state_ = succeeded ? Task::State::done : Task::State::failed;
    changed_.notify_all();
  }

  [[nodiscard]] bool run(Task& task, std::int64_t deadline) noexcept {
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
  Queue tasks_;
  Queue clean_ups_;
  bool stopping_ = false;
  std::optional<TransportError> failure_;
  std::atomic<bool> failed_ = false;
  std::thread thread_;  // after what it uses
};

}  // namespace shardrun::sdk
