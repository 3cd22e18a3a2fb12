#pragma once

#include <shardrun/sdk/transport.hpp>
#include <shardrun/sdk/worker.hpp>

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace shardrun::gloo_transport {

class Lane;

/// Work that is done alone in its group.
class Job : public sdk::Worker::Task {
 public:
  /// `what`: for messages. `waited_at_once`: its caller waits right after starting it.
  Job(Lane& lane, std::string what, bool waited_at_once);

  /// Of its latest run; it is complete.
  [[nodiscard]] sdk::OpTimes times_of_run() const noexcept { return times_; }

 private:
  friend class Lane;
  /// Throws TransportError; ends soon after the lane has failed.
  virtual void execute() = 0;

  void run(std::int64_t deadline) final;
  [[nodiscard]] std::string what() const final { return what_; }

  Lane& lane_;
  std::string what_;
  bool waited_at_once_;
  bool was_done_here_ = false;  ///< by the thread that waited, in its latest run
  std::int64_t own_deadline_ = 0;
  sdk::OpTimes times_;
};

/// Carries out the jobs of a group in the order of their starts: on a thread of its own, or, where the caller waits at
/// once, on the caller's, which spares two changes of threads. Once it has failed it stays failed.
class Lane {
 public:
  /// For whom a thread waits. Any thread calls it.
  using Awaited = std::function<sdk::AwaitedRanks(std::thread::id)>;

  /// `on_failure`: see sdk::Worker.
  Lane(std::function<void()> on_failure, Awaited awaited);

  // What Worker says of these.
  void start(Job& job, std::int64_t deadline);
  [[nodiscard]] bool test(Job& job);
  [[nodiscard]] bool wait(Job& job, std::int64_t deadline);
  void drop(Job& job) noexcept;

  /// Runs `act` now, on this thread, beside the jobs. What it throws fails the lane.
  void beside(const std::string& what, std::int64_t deadline, const std::function<void()>& act);

  // Any thread.
  void fail(const sdk::TransportError& failure) noexcept { worker_.fail(failure); }
  [[nodiscard]] std::optional<sdk::TransportError> failure() { return worker_.failure(); }
  /// Fails the lane where something that runs is past its deadline.
  void check_deadlines() noexcept;

 private:
  friend class Job;

  /// Something that runs; null where nothing does.
  struct Running {
    const std::string* what = nullptr;
    std::int64_t deadline = INT64_MAX;
    std::thread::id thread;
  };
  class Watched;

  void throw_failure();
  /// Fails the lane where the job, which is not complete, is past its deadline. Not left to the worker, which would not
  /// say for whom it waits: to that, no job has a deadline.
  void end_late(const Job& job);
  void fail_late(const std::string& what, std::thread::id thread);
  [[nodiscard]] bool is_idle();
  /// On this thread. What it throws fails the lane.
  void run_here(Job& job);
  void hand_over_deferred();

  Awaited awaited_;
  Job* deferred_ = nullptr;  ///< started, and left for its wait
  Job* last_ = nullptr;      ///< that the worker was given; null once that is complete
  std::mutex mutex_;         ///< of the next two
  Running job_;
  Running beside_;
  sdk::Worker worker_;  // after what it uses
};

}  // namespace shardrun::gloo_transport
