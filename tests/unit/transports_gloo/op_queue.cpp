#include "transports/gloo/op_queue.h"

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "tests/support/catch.h"

using namespace shardrun::gloo_transport;
using shardrun::sdk::TransportError;

namespace {

constexpr shardrun::sdk::Deadline never;

shardrun::sdk::AwaitedRanks nobody(std::thread::id) { return {}; }

class Act final : public QueuedOp {
 public:
  explicit Act(OpQueue& queue, bool is_blocking = true) : QueuedOp(queue, "the op", is_blocking) {}

  std::function<void()> act = [] {};

 private:
  void execute() override { act(); }
};

template <class Call>
std::string failure_of(Call call) {
  try {
    call();
  } catch (const TransportError& error) {
    return std::to_string(error.status()) + ": " + error.what();
  }
  return "nothing";
}

std::string told(std::int32_t status, const std::string& text) { return std::to_string(status) + ": " + text; }

/// Leaves the op complete, by the queue's own thread.
void complete_elsewhere(OpQueue& queue, Act& op) {
  std::thread::id where;
  op.act = [&] { where = std::this_thread::get_id(); };
  queue.start(op, never);
  while (!queue.test(op)) {
    std::this_thread::yield();
  }
  REQUIRE(where != std::this_thread::get_id());
  op.act = [] {};
}

}  // namespace

TEST_CASE("gloo: an op that fails on its caller's thread does not count as its last run") {
  OpQueue queue([] {}, nobody);
  Act op(queue);
  complete_elsewhere(queue, op);
  std::thread::id where;
  op.act = [&] {
    where = std::this_thread::get_id();
    throw TransportError(SR_PEER_LOST, "gone");
  };

  queue.start(op, never);

  const std::string lost = told(SR_PEER_LOST, "the op: gone");
  CHECK(failure_of([&] { (void)queue.wait(op, never); }) == lost);
  CHECK(where == std::this_thread::get_id());
  CHECK(failure_of([&] { (void)queue.test(op); }) == lost);
  CHECK(failure_of([&] { (void)queue.wait(op, never); }) == lost);
}

TEST_CASE("gloo: an op dropped by a failed queue does not count as its last run") {
  OpQueue queue([] {}, nobody);
  Act op(queue);
  complete_elsewhere(queue, op);

  queue.start(op, never);
  queue.fail({SR_ABORTED, "enough"});

  const std::string aborted = told(SR_ABORTED, "enough");
  CHECK(failure_of([&] { (void)queue.wait(op, never + std::chrono::nanoseconds(-1)); }) ==
        aborted);  // of less patience than the op: on the queue
  CHECK(failure_of([&] { (void)queue.test(op); }) == aborted);
}

TEST_CASE("gloo: an op that cannot start does not count as its last run") {
  OpQueue queue([] {}, nobody);
  Act op(queue);
  complete_elsewhere(queue, op);
  queue.fail({SR_ABORTED, "enough"});

  const std::string aborted = told(SR_ABORTED, "enough");
  CHECK(failure_of([&] { queue.start(op, never); }) == aborted);
  CHECK(failure_of([&] { (void)queue.test(op); }) == aborted);
}

TEST_CASE("gloo: an op past its deadline names the rank its thread waits for, whoever notices") {
  std::thread::id asked;
  std::atomic<bool> has_failed = false;
  OpQueue queue([&] { has_failed = true; },
                [&](std::thread::id thread) {
                  asked = thread;
                  return shardrun::sdk::AwaitedRanks{"member 1 (rank 3)", 3};
                });
  Act op(queue, false);
  std::thread::id running;
  std::atomic<bool> is_running = false;
  op.act = [&] {
    running = std::this_thread::get_id();
    is_running = true;
    while (!has_failed) {
      std::this_thread::yield();
    }
    throw TransportError(SR_ABORTED, "given up");  // as a message does whose connection is closed
  };
  queue.start(op, shardrun::sdk::Deadline::now() + std::chrono::milliseconds(1));
  while (!is_running) {
    std::this_thread::yield();
  }

  const std::string late = told(SR_TIMEOUT, "the op is past its deadline, waiting for member 1 (rank 3)");
  SECTION("who waits") {
    CHECK(failure_of([&] { (void)queue.wait(op, never); }) == late);
  }
  SECTION("who polls") {
    CHECK(failure_of([&] {
            while (!queue.test(op)) {
            }
          }) == late);
  }
  SECTION("the watchdog") {
    while (!queue.failure()) {
      queue.check_deadlines();
    }
    CHECK(failure_of([&] { (void)queue.wait(op, never); }) == late);
  }
  CHECK(asked == running);
  CHECK(queue.failure()->awaited() == 3U);
  queue.drop(op);
}

TEST_CASE("gloo: an exception beside the ops fails the queue") {
  OpQueue queue([] {}, nobody);
  const std::string failure = told(SR_INTERNAL, "preparing: no memory");

  CHECK(failure_of([&] {
          queue.run_concurrently("preparing", never, [] { throw std::runtime_error("no memory"); });
        }) == failure);

  REQUIRE(queue.failure());
  CHECK(queue.failure()->what() == std::string("preparing: no memory"));
}
