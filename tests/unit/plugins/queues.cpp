#include <shardrun/sdk/transport/queue.hpp>
#include <shardrun/sdk/transport/two_function_transport.hpp>
#include <shardrun/sdk/transport/worker.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "plugins/loader/transport_queue.h"
#include "tests/support/catch.h"

using namespace shardrun::sdk;
using Catch::Contains;

namespace {

/// A queue whose calls are made by the test. Those that are left are made at its end.
class ManualQueue final : public shardrun::plugins::TransportQueue {
 public:
  ManualQueue() : TransportQueue(SR_QUEUE_HOST) {}
  ManualQueue(const ManualQueue&) = delete;
  ManualQueue& operator=(const ManualQueue&) = delete;
  ~ManualQueue() override {
    while (!calls.empty()) {
      advance();
    }
  }

  void call(void (*run)(void* argument), void* argument) override {
    if (refuses) {
      throw std::runtime_error("the device is lost");
    }
    calls.emplace_back(run, argument);
  }
  std::uint64_t add_gate() override {
    on_gate();
    return ++gates;
  }
  void open_gate(std::uint64_t gate) noexcept override {
    on_gate();
    opened.push_back(gate);
    if (gate == awaited) {
      has_opened.set_value();
    }
  }

  /// Makes the first call that it was given.
  void advance() {
    const auto [run, argument] = calls.front();
    calls.erase(calls.begin());
    run(argument);
  }

  bool refuses = false;
  std::function<void()> on_gate = [] {};
  std::vector<std::pair<void (*)(void*), void*>> calls;
  std::uint64_t gates = 0;
  std::uint64_t awaited = 0;
  std::vector<std::uint64_t> opened;
  std::promise<void> has_opened;
};

/// A queue whose calls are made at once, by a thread.
class ThreadQueue final : public shardrun::plugins::TransportQueue {
 public:
  ThreadQueue() : TransportQueue(SR_QUEUE_HOST), thread_([this] { work(); }) {}
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;
  ~ThreadQueue() override {
    call(nullptr, nullptr);  // the last
    thread_.join();
  }

  void call(void (*run)(void* argument), void* argument) override {
    {
      const std::lock_guard lock(mutex_);
      calls_.emplace_back(run, argument);
    }
    changed_.notify_one();
  }
  std::uint64_t add_gate() override { return ++gates_; }
  void open_gate(std::uint64_t) noexcept override {}

 private:
  void work() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !calls_.empty(); });
      const auto [run, argument] = calls_.front();
      calls_.pop_front();
      lock.unlock();
      if (run == nullptr) {
        return;
      }
      run(argument);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<void (*)(void*), void*>> calls_;
  std::atomic<std::uint64_t> gates_ = 0;
  std::thread thread_;
};

class CountingTask final : public Worker::Task {
 public:
  int runs = 0;

 private:
  void run(Deadline) override { ++runs; }
  [[nodiscard]] std::string what() const override { return "a queued job"; }
};

class DeadlineTask final : public Worker::Task {
 public:
  Deadline deadline;

 private:
  void run(Deadline given) override { deadline = given; }
  [[nodiscard]] std::string what() const override { return "a job with a deadline"; }
};

constexpr std::chrono::nanoseconds no_timeout = std::chrono::nanoseconds::max();

}  // namespace

TEST_CASE("a task started in a queue runs when the queue reaches it, and later tasks wait", "[sdk]") {
  Worker worker;
  ManualQueue queue;
  ManualQueue other;
  CountingTask first;
  CountingTask second;
  for (int round = 1; round <= 2; ++round) {
    worker.start_in(Queue(queue.raw()), first, no_timeout);
    worker.join(first, Queue(other.raw()));
    worker.start(second, Deadline::never());

    CHECK_FALSE(worker.wait(second, Deadline::now() + std::chrono::milliseconds(1)));
    CHECK_FALSE(worker.test(first));
    CHECK(other.opened.size() == static_cast<std::size_t>(round - 1));
    queue.advance();
    CHECK(worker.wait(second, Deadline::never()));
    CHECK(worker.test(first));
    CHECK(first.runs == round);
    CHECK(other.opened.size() == static_cast<std::size_t>(round));
  }
  CHECK(other.opened == std::vector<std::uint64_t>{1, 2});
}

TEST_CASE("a task can be started again or freed while the queue's thread still makes its last call", "[sdk]") {
  constexpr int rounds = 200;
  ThreadQueue queue;
  Worker worker;
  for (int task_number = 0; task_number < rounds; ++task_number) {
    CountingTask task;
    for (int round = 1; round <= 3; ++round) {
      worker.start_in(Queue(queue.raw()), task, no_timeout);
      worker.join(task, Queue(queue.raw()));
      REQUIRE(worker.wait(task, Deadline::never()));
      REQUIRE(task.runs == round);
    }
    worker.drop(task);
  }
}

TEST_CASE("a queue does not wait for a task that has ended", "[sdk]") {
  Worker worker;
  ManualQueue queue;
  CountingTask task;
  worker.start(task, Deadline::never());
  CHECK(worker.wait(task, Deadline::never()));

  worker.join(task, Queue(queue.raw()));

  CHECK(queue.gates == 0);
}

TEST_CASE("after the worker fails queues go on, and a task can be freed before its queue reaches it", "[sdk]") {
  ManualQueue queue;
  ManualQueue other;
  other.awaited = 1;
  std::optional<Worker> worker(std::in_place);
  std::optional<CountingTask> task(std::in_place);
  worker->start_in(Queue(queue.raw()), *task, no_timeout);
  worker->join(*task, Queue(other.raw()));

  worker->fail({SR_ABORTED, "given up"});

  other.has_opened.get_future().wait();
  CHECK_THROWS_AS(worker->test(*task), TransportError);
  worker->drop(*task);
  CHECK(task->runs == 0);
  task.reset();
  worker.reset();
  queue.advance();
  CHECK(queue.calls.empty());
}

TEST_CASE("dropping a task before its queue reaches it fails the worker", "[sdk]") {
  ManualQueue queue;
  Worker worker;
  CountingTask task;
  worker.start_in(Queue(queue.raw()), task, no_timeout);

  worker.drop(task);

  CHECK_THAT(worker.failure()->what(), Contains("was freed before it was complete"));
  CHECK(task.runs == 0);
}

TEST_CASE("a worker answers other threads while it adds and opens gates", "[sdk]") {
  ManualQueue queue;
  ManualQueue other;
  Worker worker;
  int gates = 0;
  other.on_gate = [&] { gates += worker.is_busy() ? 1 : 0; };
  CountingTask task;
  CHECK_FALSE(worker.is_busy());
  worker.start_in(Queue(queue.raw()), task, no_timeout);

  worker.join(task, Queue(other.raw()));
  queue.advance();

  CHECK(worker.wait(task, Deadline::never()));
  CHECK(gates == 2);
  CHECK_FALSE(worker.is_busy());
}

TEST_CASE("a task that ends while a queue joins it leaves the queue's gate open", "[sdk]") {
  ManualQueue queue;
  ManualQueue other;
  Worker worker;
  CountingTask task;
  other.on_gate = [&] {
    if (other.gates == 0 && !queue.calls.empty()) {
      queue.advance();
      CHECK(worker.wait(task, Deadline::never()));
    }
  };
  worker.start_in(Queue(queue.raw()), task, no_timeout);

  worker.join(task, Queue(other.raw()));

  CHECK(other.gates == 1);
  CHECK(other.opened == std::vector<std::uint64_t>{1});
}

TEST_CASE("the timeout of a task in a queue begins when the queue reaches it", "[sdk]") {
  ManualQueue queue;
  Worker worker;
  DeadlineTask task;
  constexpr std::chrono::seconds timeout(1);
  worker.start_in(Queue(queue.raw()), task, timeout);
  CHECK_FALSE(worker.wait(task, Deadline::now() + std::chrono::milliseconds(2)));

  const Deadline before = Deadline::now();
  queue.advance();
  CHECK(worker.wait(task, Deadline::never()));
  CHECK(task.deadline >= before + timeout);
  CHECK(task.deadline <= Deadline::now() + timeout);

  worker.start_in(Queue(queue.raw()), task, no_timeout);
  queue.advance();
  CHECK(worker.wait(task, Deadline::never()));
  CHECK(task.deadline == Deadline::never());
}

TEST_CASE("a queue that refuses a call fails the worker", "[sdk]") {
  ManualQueue queue;
  queue.refuses = true;
  Worker worker;
  CountingTask task;

  CHECK_THROWS_AS(worker.start_in(Queue(queue.raw()), task, no_timeout), TransportError);

  CHECK_THAT(worker.failure()->what(), Contains("the device is lost"));
  worker.drop(task);
}

namespace {

/// A link that moves nothing.
struct StreamLink {
  StreamLink(const Config&, const GroupSpec&, const Cancel&) {}
  static Props props() { return {.queue_kinds = 1U << SR_QUEUE_CUDA}; }
  void send(std::uint32_t, const void*, std::size_t, Deadline) {}
  void receive(std::uint32_t, void*, std::size_t, Deadline) {}
};

}  // namespace

TEST_CASE("a two-function transport takes queues of the host and the kinds that its link names", "[sdk]") {
  CHECK(TwoFunctionTransport<StreamLink>().props().queue_kinds == (1U << SR_QUEUE_HOST | 1U << SR_QUEUE_CUDA));
}
