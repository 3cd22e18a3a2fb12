#include <sched.h>

#include <shardrun/sdk/transport/core_wait.hpp>
#include <shardrun/sdk/transport/group.hpp>
#include <shardrun/sdk/transport/worker.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/cores.h"

using namespace shardrun::sdk;
using Catch::Contains;

namespace {

constexpr Deadline never;

class ActTask final : public Worker::Task {
 public:
  explicit ActTask(std::function<void()> act = [] {}) : act_(std::move(act)) {}

 private:
  void run(Deadline) override { act_(); }
  [[nodiscard]] std::string what() const override { return "a job"; }

  std::function<void()> act_;
};

/// Keeps a worker busy until it is opened.
class Blocker {
 public:
  void open() { opened_.set_value(); }
  void pass() { reached_.set_value(), opened_.get_future().wait(); }
  void wait_until_reached() { reached_.get_future().wait(); }

 private:
  std::promise<void> opened_;
  std::promise<void> reached_;
};

template <class Act>
TransportError failure_of(Act act) {
  try {
    act();
  } catch (const TransportError& error) {
    return error;
  }
  return {SR_OK, "nothing"};
}

}  // namespace

TEST_CASE("a worker does its tasks in their order, again and again", "[sdk]") {
  Worker worker;
  std::vector<int> done;
  ActTask first([&] { done.push_back(1); });
  ActTask second([&] { done.push_back(2); });

  for (int i = 0; i < 3; ++i) {
    worker.start(first, never);
    worker.start(second, never);
    CHECK(worker.wait(second, never));
    CHECK(worker.test(first));
  }

  CHECK(done == std::vector<int>{1, 2, 1, 2, 1, 2});
}

TEST_CASE("a wait that times out leaves the task running", "[sdk]") {
  Worker worker;
  Blocker gate;
  ActTask job([&] { gate.pass(); });
  worker.start(job, never);

  CHECK_FALSE(worker.wait(job, Deadline::past()));
  CHECK_FALSE(worker.test(job));
  gate.open();
  CHECK(worker.wait(job, never));
}

TEST_CASE("a task that throws fails the worker for good", "[sdk]") {
  Worker worker;
  int ran = 0;
  ActTask bad([] { throw TransportError(SR_PEER_LOST, "rank 3 is gone"); });
  ActTask good([&] { ++ran; });
  worker.start(good, never);
  CHECK(worker.wait(good, never));
  worker.start(bad, never);

  const TransportError error = failure_of([&] { (void)worker.wait(bad, never); });

  CHECK(error.status() == SR_PEER_LOST);
  CHECK(std::string(error.what()) == "rank 3 is gone");
  CHECK(worker.failed());
  CHECK(worker.test(good));  // it was done before
  CHECK(failure_of([&] { worker.start(good, never); }).status() == SR_PEER_LOST);
  CHECK(ran == 1);
  worker.drop(bad);
}

TEST_CASE("a failure from outside ends queued tasks", "[sdk]") {
  int calls = 0;
  Worker worker([&] { ++calls; });
  Blocker gate;
  bool ran = false;
  ActTask running([&] { gate.pass(); });
  ActTask queued([&] { ran = true; });
  worker.start(running, never);
  worker.start(queued, never);
  gate.wait_until_reached();

  worker.fail({SR_ABORTED, "enough"});
  worker.fail({SR_TIMEOUT, "too late to matter"});

  CHECK(failure_of([&] { (void)worker.wait(running, never); }).status() == SR_ABORTED);
  CHECK(failure_of([&] { (void)worker.wait(queued, never); }).status() == SR_ABORTED);
  gate.open();
  worker.drop(running);
  worker.drop(queued);
  CHECK_FALSE(ran);
  CHECK(calls == 1);
  CHECK(std::string(worker.failure()->what()) == "enough");
}

TEST_CASE("a task past its deadline fails the worker, even if it is still queued", "[sdk]") {
  Worker worker;
  Blocker gate;
  ActTask running([&] { gate.pass(); });
  ActTask queued;
  worker.start(running, never);
  worker.start(queued, Deadline::now());

  const TransportError error = failure_of([&] { (void)worker.wait(queued, never); });

  CHECK(error.status() == SR_TIMEOUT);
  CHECK_THAT(error.what(), Contains("a job is past its deadline"));
  gate.open();
  worker.drop(running);
  worker.drop(queued);
}

TEST_CASE("a task past its deadline gets time to say which rank it waits for", "[sdk]") {
  Worker worker;
  const Deadline deadline = Deadline::now() + std::chrono::milliseconds(1);
  ActTask running([&] {
    while (!(deadline + std::chrono::milliseconds(20)).passed()) {
      std::this_thread::yield();
    }
    throw TransportError(SR_TIMEOUT, "waiting for rank 3", 3);
  });
  worker.start(running, deadline);

  const TransportError error = failure_of([&] { (void)worker.wait(running, deadline); });

  CHECK(error.status() == SR_TIMEOUT);
  CHECK(std::string(error.what()) == "waiting for rank 3");
  CHECK(error.awaited() == 3U);
  worker.drop(running);
}

TEST_CASE("dropping a running task fails the worker and lets the task finish", "[sdk]") {
  Blocker gate;
  Worker worker([&] { gate.open(); });
  bool finished = false;
  ActTask job([&] {
    gate.pass();
    finished = true;
  });
  worker.start(job, never);
  gate.wait_until_reached();

  worker.drop(job);

  CHECK(finished);
  CHECK(worker.failure()->status() == SR_ABORTED);
}

TEST_CASE("dropping a task that still runs after reset() waits for its end", "[sdk]") {
  Worker worker;
  Blocker gate;
  ActTask job([&] { gate.pass(); });
  worker.start(job, never);
  gate.wait_until_reached();
  worker.fail({SR_ABORTED, "enough"});
  CHECK(failure_of([&] { (void)worker.wait(job, never); }).status() == SR_ABORTED);

  worker.reset(job);
  const std::future<void> dropped = std::async(std::launch::async, [&] { worker.drop(job); });

  CHECK(dropped.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  gate.open();
}

TEST_CASE("clean_up() runs after a failure too", "[sdk]") {
  Worker worker;
  worker.fail({SR_ABORTED, "enough"});
  bool cleaned = false;
  ActTask job([&] { cleaned = true; });

  worker.clean_up(job);

  CHECK(cleaned);
}

TEST_CASE("a waiting task lets others clean up before the tasks queued behind it", "[sdk]") {
  Worker worker;
  std::atomic<bool> cleaned = false;
  bool was_cleaned = false;
  ActTask waiting([&] {
    while (!cleaned) {
      worker.clean_up_meanwhile();
      std::this_thread::yield();
    }
  });
  ActTask behind([&] { was_cleaned = cleaned; });
  ActTask clean_up([&] { cleaned = true; });
  worker.start(waiting, never);
  worker.start(behind, never);

  worker.clean_up(clean_up);

  CHECK(worker.wait(behind, never));
  CHECK(was_cleaned);
}

namespace {

/// A host whose clock is moved by waiting, and whose store waits until the deadline whatever happens.
struct SlowHost {
  std::int64_t clock = monotonic_now();  ///< later than all that the clock of deadlines has left out
  std::int64_t aborted_at = INT64_MAX;
  std::int64_t set_at = INT64_MAX;
  std::int32_t early_status = SR_OK;  ///< what a wait ends with at once; SR_OK: it waits

  sr_transport_host raw = {sizeof(sr_transport_host), 0, this, now, aborted, nullptr, store_get, nullptr};

  static SlowHost& of(void* self) { return *static_cast<SlowHost*>(self); }
  static std::int64_t now(void* self) { return of(self).clock; }
  static std::uint32_t aborted(void* self) { return of(self).clock >= of(self).aborted_at ? 1 : 0; }
  static std::int32_t store_get(void* self, const char*, void* value, std::uint64_t* bytes, std::int64_t deadline,
                                sr_error* error) {
    SlowHost& host = of(self);
    if (host.early_status != SR_OK) {
      return host.early_status;
    }
    if (deadline < host.set_at) {
      host.clock = deadline;
      detail::write_error(error, "nobody has set it");
      return SR_TIMEOUT;
    }
    *static_cast<char*>(value) = 'v';
    *bytes = 1;
    return SR_OK;
  }
};

TransportError failure_of(const SlowHost& host, Deadline deadline) {
  try {
    (void)TransportHost(&host.raw).store_get("the key", deadline);
  } catch (const TransportError& error) {
    return error;
  }
  return {SR_OK, "nothing"};
}

}  // namespace

TEST_CASE("a wait for the store ends when the job is aborted, even if the host's own wait does not", "[sdk]") {
  SlowHost host;
  host.aborted_at = host.clock + 5'000'000'000;

  const TransportError error = failure_of(host, never);

  CHECK(error.status() == SR_ABORTED);
  CHECK_THAT(error.what(), Contains("'the key'"));
  CHECK(host.clock < host.aborted_at + 1'000'000'000);
}

TEST_CASE("a wait for the store ends at its deadline", "[sdk]") {
  SlowHost host;
  const std::int64_t deadline = host.clock + 3'456'789'012;

  const TransportError error = failure_of(host, Deadline::from_border(deadline));

  CHECK(error.status() == SR_TIMEOUT);
  CHECK_THAT(error.what(), Contains("waited 345") && Contains("'the key'"));  // and not only the last slice
  CHECK(host.clock >= deadline);
}

TEST_CASE("a value that is set late is found", "[sdk]") {
  SlowHost host;
  host.set_at = host.clock + 7'000'000'000;

  CHECK(TransportHost(&host.raw).store_get("the key", never) == "v");
}

TEST_CASE("an early status of the host's store ends the wait", "[sdk]") {
  SlowHost host;
  host.early_status = GENERATE(SR_TIMEOUT, SR_ABORTED, SR_INVALID);

  CHECK(failure_of(host, never).status() == host.early_status);
}

TEST_CASE("a task's times say for how long its thread had no core, apart from what it yielded", "[sdk]") {
  if (!CoreWait().nanoseconds()) {
    return;  // this system does not tell
  }
  constexpr std::int64_t enough = 5'000'000;
  const int core = sched_getcpu();
  const shardrun::test::Rivals rivals(core, 1);
  Worker worker;
  ActTask place([&] { shardrun::test::stay_on(core); });
  std::int64_t computed_until = 0;
  ActTask computing([&] {
    CoreWait wait;
    const std::int64_t before = *wait.nanoseconds();
    do {
      computed_until = *wait.nanoseconds();
    } while (computed_until - before < enough);
  });
  std::int64_t waited = 0;
  ActTask yielding([&] {
    const std::int64_t yielded_before = yielded();
    while (yielded() - yielded_before < enough) {
      const std::int64_t begin = monotonic_now();
      sched_yield();
      yielded() += monotonic_now() - begin;
    }
    waited = *CoreWait().nanoseconds() - computed_until;
  });

  for (ActTask* const task : {&place, &computing, &yielding}) {
    worker.start(*task, never);
    REQUIRE(worker.wait(*task, never));
  }

  CHECK(worker.times(computing).starved >= enough);
  CHECK(worker.times(yielding).starved < waited);
}
