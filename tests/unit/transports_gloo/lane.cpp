#include "transports/gloo/lane.h"

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

constexpr std::int64_t never = INT64_MAX;

shardrun::sdk::AwaitedRanks nobody(std::thread::id) { return {}; }

class Act final : public Job {
 public:
  explicit Act(Lane& lane, bool waited_at_once = true) : Job(lane, "the op", waited_at_once) {}

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

/// Leaves the op complete, by the lane's own thread.
void complete_elsewhere(Lane& lane, Act& op) {
  std::thread::id where;
  op.act = [&] { where = std::this_thread::get_id(); };
  lane.start(op, never);
  while (!lane.test(op)) {
    std::this_thread::yield();
  }
  REQUIRE(where != std::this_thread::get_id());
  op.act = [] {};
}

}  // namespace

TEST_CASE("gloo: an op that fails on its caller's thread is not taken for its run before") {
  Lane lane([] {}, nobody);
  Act op(lane);
  complete_elsewhere(lane, op);
  std::thread::id where;
  op.act = [&] {
    where = std::this_thread::get_id();
    throw TransportError(SR_PEER_LOST, "gone");
  };

  lane.start(op, never);

  const std::string lost = told(SR_PEER_LOST, "the op: gone");
  CHECK(failure_of([&] { (void)lane.wait(op, never); }) == lost);
  CHECK(where == std::this_thread::get_id());
  CHECK(failure_of([&] { (void)lane.test(op); }) == lost);
  CHECK(failure_of([&] { (void)lane.wait(op, never); }) == lost);
}

TEST_CASE("gloo: an op that a failed lane does not take is not taken for its run before") {
  Lane lane([] {}, nobody);
  Act op(lane);
  complete_elsewhere(lane, op);

  lane.start(op, never);
  lane.fail({SR_ABORTED, "enough"});

  const std::string aborted = told(SR_ABORTED, "enough");
  CHECK(failure_of([&] { (void)lane.wait(op, never - 1); }) == aborted);  // of less patience than the op: on the lane
  CHECK(failure_of([&] { (void)lane.test(op); }) == aborted);
}

TEST_CASE("gloo: an op that cannot be started is not taken for its run before") {
  Lane lane([] {}, nobody);
  Act op(lane);
  complete_elsewhere(lane, op);
  lane.fail({SR_ABORTED, "enough"});

  const std::string aborted = told(SR_ABORTED, "enough");
  CHECK(failure_of([&] { lane.start(op, never); }) == aborted);
  CHECK(failure_of([&] { (void)lane.test(op); }) == aborted);
}

TEST_CASE("gloo: an op past its deadline says for whom its thread waits, whoever finds it late") {
  std::thread::id asked;
  std::atomic<bool> has_failed = false;
  Lane lane([&] { has_failed = true; },
            [&](std::thread::id thread) {
              asked = thread;
              return shardrun::sdk::AwaitedRanks{"member 1 (rank 3)", 3};
            });
  Act op(lane, false);
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
  lane.start(op, shardrun::sdk::steady_now() + 1'000'000);
  while (!is_running) {
    std::this_thread::yield();
  }

  const std::string late = told(SR_TIMEOUT, "the op is past its deadline, waiting for member 1 (rank 3)");
  SECTION("who waits") {
    CHECK(failure_of([&] { (void)lane.wait(op, never); }) == late);
  }
  SECTION("who polls") {
    CHECK(failure_of([&] {
            while (!lane.test(op)) {
            }
          }) == late);
  }
  SECTION("the watchdog") {
    while (!lane.failure()) {
      lane.check_deadlines();
    }
    CHECK(failure_of([&] { (void)lane.wait(op, never); }) == late);
  }
  CHECK(asked == running);
  CHECK(lane.failure()->awaited() == 3U);
  lane.drop(op);
}

TEST_CASE("gloo: whatever is thrown beside the ops fails them") {
  Lane lane([] {}, nobody);
  const std::string failure = told(SR_INTERNAL, "preparing: no memory");

  CHECK(failure_of([&] { lane.beside("preparing", never, [] { throw std::runtime_error("no memory"); }); }) == failure);

  REQUIRE(lane.failure());
  CHECK(lane.failure()->what() == std::string("preparing: no memory"));
}
