#include <shardrun/sdk/queue.hpp>
#include <shardrun/sdk/worker.hpp>

#include <cstdint>
#include <future>
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

/// A queue whose calls the test makes.
class ManualQueue final : public shardrun::plugins::TransportQueue {
 public:
  ManualQueue() : TransportQueue(SR_QUEUE_HOST) {}

  void call(void (*run)(void* argument), void* argument) override {
    if (refuses) {
      throw std::runtime_error("the device is lost");
    }
    calls.emplace_back(run, argument);
  }
  std::uint64_t add_gate() override { return ++gates; }
  void open_gate(std::uint64_t gate) noexcept override {
    opened.push_back(gate);
    if (gate == awaited) {
      has_opened.set_value();
    }
  }

  /// Comes to the first call that it was given.
  void advance() {
    const auto [run, argument] = calls.front();
    calls.erase(calls.begin());
    run(argument);
  }

  bool refuses = false;
  std::vector<std::pair<void (*)(void*), void*>> calls;
  std::uint64_t gates = 0;
  std::uint64_t awaited = 0;
  std::vector<std::uint64_t> opened;
  std::promise<void> has_opened;
};

class CountingTask final : public Worker::Task {
 public:
  int runs = 0;

 private:
  void run(std::int64_t) override { ++runs; }
  [[nodiscard]] std::string what() const override { return "a queued job"; }
};

std::int64_t from_now(std::int64_t ns) { return steady_now() + ns; }

}  // namespace

TEST_CASE("a task that was started in a queue runs when the queue comes to it, and those behind it wait", "[sdk]") {
  Worker worker;
  ManualQueue queue;
  ManualQueue other;
  CountingTask first;
  CountingTask second;
  for (int round = 1; round <= 2; ++round) {
    worker.start_in(Queue(queue.raw()), first, INT64_MAX);
    worker.join(first, Queue(other.raw()));
    worker.start(second, INT64_MAX);

    CHECK_FALSE(worker.wait(second, from_now(1'000'000)));
    CHECK_FALSE(worker.test(first));
    CHECK(other.opened.size() == static_cast<std::size_t>(round - 1));
    queue.advance();
    CHECK(worker.wait(second, INT64_MAX));
    CHECK(worker.test(first));
    CHECK(first.runs == round);
    CHECK(other.opened.size() == static_cast<std::size_t>(round));
  }
  CHECK(other.opened == std::vector<std::uint64_t>{1, 2});
}

TEST_CASE("a queue does not wait for a task that has ended", "[sdk]") {
  Worker worker;
  ManualQueue queue;
  CountingTask task;
  worker.start(task, INT64_MAX);
  CHECK(worker.wait(task, INT64_MAX));

  worker.join(task, Queue(queue.raw()));

  CHECK(queue.gates == 0);
}

TEST_CASE("where the worker fails, queues go on, and a task is freed once its queue has come to it", "[sdk]") {
  ManualQueue queue;
  ManualQueue other;
  other.awaited = 1;
  Worker worker;
  CountingTask task;
  worker.start_in(Queue(queue.raw()), task, INT64_MAX);
  worker.join(task, Queue(other.raw()));

  worker.fail({SR_ABORTED, "given up"});

  other.has_opened.get_future().wait();
  CHECK_THROWS_AS(worker.test(task), TransportError);
  std::thread queue_thread([&] { queue.advance(); });
  worker.drop(task);
  queue_thread.join();
  CHECK(task.runs == 0);
}

TEST_CASE("the deadline of a task whose queue does not come to it fails the worker, whether anyone waits or not",
          "[sdk]") {
  ManualQueue queue;
  ManualQueue other;
  other.awaited = 1;
  Worker worker;
  CountingTask task;
  worker.start_in(Queue(queue.raw()), task, from_now(1'000'000));
  worker.join(task, Queue(other.raw()));

  other.has_opened.get_future().wait();

  CHECK_THAT(worker.failure()->what(), Contains("a queued job is past its deadline, and its queue has not come to it"));
  CHECK(worker.failure()->status() == SR_TIMEOUT);
  queue.advance();
  worker.drop(task);
}

TEST_CASE("a queue that refuses a call fails the worker", "[sdk]") {
  ManualQueue queue;
  queue.refuses = true;
  Worker worker;
  CountingTask task;

  CHECK_THROWS_AS(worker.start_in(Queue(queue.raw()), task, INT64_MAX), TransportError);

  CHECK_THAT(worker.failure()->what(), Contains("the device is lost"));
  worker.drop(task);
}
