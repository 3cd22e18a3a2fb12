#pragma once

#include <shardrun/sdk/transport.hpp>
#include <shardrun/sdk/worker.hpp>

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace shardrun::gloo_transport {

/// Work that is done alone in its group.
class Job : public sdk::Worker::Task {
 public:
  explicit Job(bool waited_at_once) : waited_at_once_(waited_at_once) {}

 private:
  friend class Lane;
  /// Throws TransportError; ends soon after the lane failed.
  virtual void execute() = 0;
  void run(std::int64_t deadline) final;

  Lane* lane_ = nullptr;
  bool waited_at_once_;
  enum class Inline { no, deferred, done } inline_ = Inline::no;
  std::int64_t inline_deadline_ = 0;
};

/// Carries out the jobs of a group in the order of their starts: on a thread of its own, or, where the caller waits at
/// once, on the caller's, which spares two changes of threads. It fails once and for all.
class Lane {
 public:
  /// `on_failure`: see Worker.
  explicit Lane(std::function<void()> on_failure);

  void start(Job& job, std::int64_t deadline);
  [[nodiscard]] bool test(Job& job);
  [[nodiscard]] bool wait(Job& job, std::int64_t deadline);
  void drop(Job& job) noexcept;

  /// Runs `act` now, on this thread, beside what the lane does; what it throws fails the lane and is thrown on.
  template <class Act>
  void beside(const std::string& what, std::int64_t deadline, Act act);

  // Any thread.
  void fail(std::int32_t status, const std::string& text) noexcept { worker_.fail(status, text); }
  [[nodiscard]] std::optional<sdk::TransportError> failure() { return worker_.failure(); }
  /// Fails the lane if what runs is past its deadline.
  void check_deadlines(std::int64_t now);

 private:
  friend class Job;

  /// Something that runs, for check_deadlines.
  struct Running {
    std::int64_t deadline = INT64_MAX;
    std::string what;
  };
  class Watched;

  void hand_over();
  void run_here(Job& job);
  void throw_failure();

  sdk::Worker worker_;
  Job* deferred_ = nullptr;  ///< started, and left for its wait
  Job* last_ = nullptr;      ///< that the worker was given; null once that is complete
  std::mutex mutex_;         ///< of what follows
  Running running_;
  Running beside_;
};

}  // namespace shardrun::gloo_transport
