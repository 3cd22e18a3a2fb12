#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "core/base/error.h"
#include "core/runtime/flight_record.h"
#include "core/runtime/flight_recorder.h"
#include "tests/support/allocations.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun;
using runtime::FlightEntry;
using runtime::FlightRecord;
using runtime::FlightRecorder;
using runtime::FlightState;

namespace {

/// The record of a rank in a group of three that has started this many of the group's operations and waits for the
/// last one.
FlightRecord waiting(int rank, std::uint64_t started) {
  FlightRecord record{.rank = rank, .step = 4, .phase = "training"};
  record.groups.push_back({.name = "data", .members = {0, 1, 2}, .starts = started});
  record.ops = {{.group = 0, .bytes = 64, .what = "all_gather of W"}};
  record.entries.push_back({.number = started,
                            .number_in_group = started,
                            .state = FlightState::waited_for,
                            .step = 4,
                            .started = 10,
                            .waited_for = 11});
  return record;
}

FlightRecord computing(int rank, std::uint64_t done) {
  FlightRecord record = waiting(rank, done);
  record.entries[0].state = FlightState::done;
  record.entries[0].ended = 12;
  return record;
}

}  // namespace

TEST_CASE("a flight record is read back as it was written", "[flight]") {
  const test::TemporaryFolder folder;
  FlightRecorder recorder(folder.path() / "record", 2);
  const std::uint32_t data = recorder.add_group("data", {0, 2});
  const std::uint32_t model = recorder.add_group("model", {2, 3, 5});
  const std::uint32_t gather = recorder.add_op(data, 4096, "all_gather of layer.0/weights");
  const std::uint32_t reduce = recorder.add_op(model, 12, "all_reduce of loss");
  recorder.set_phase("training", 7);

  recorder.started(gather);
  recorder.started(reduce);
  recorder.waited_for(reduce);
  recorder.ended(reduce, false);
  recorder.started(reduce);
  recorder.waited_for(reduce);
  const FlightRecord record = runtime::read_flight_record(folder.path() / "record");

  CHECK(record.rank == 2);
  CHECK(record.pid == ::getpid());
  CHECK(record.phase == "training");
  REQUIRE(record.groups.size() == 2);
  CHECK(record.groups[1].name == "model");
  CHECK(record.groups[1].members == std::vector<int>{2, 3, 5});
  CHECK(record.groups[1].starts == 2);
  REQUIRE(record.ops.size() == 2);
  CHECK(record.ops[0].what == "all_gather of layer.0/weights");
  CHECK(record.ops[0].bytes == 4096);
  REQUIRE(record.entries.size() == 3);
  CHECK(record.entries[0].state == FlightState::started);
  CHECK(record.entries[1].state == FlightState::done);
  CHECK(record.entries[1].ended >= record.entries[1].waited_for);
  CHECK(record.entries[1].waited_for >= record.entries[1].started);
  CHECK(record.entries[2].state == FlightState::waited_for);
  CHECK(record.entries[2].number_in_group == 2);
  CHECK(record.entries[2].step == 7);
  CHECK(runtime::place_of(record) == "step 7 (training), in all_reduce of loss (operation 2 over model)");
}

TEST_CASE("the last thousand operations are kept, and recording allocates nothing", "[flight]") {
  const test::TemporaryFolder folder;
  FlightRecorder recorder(folder.path() / "record", 0);
  const std::uint32_t op = recorder.add_op(recorder.add_group("data", {0, 1}), 4, "all_reduce of x");

  const std::uint64_t before = test::allocations();
  for (int i = 0; i < 2500; ++i) {
    recorder.set_phase("training", i + 1);
    recorder.started(op);
    recorder.waited_for(op);
    recorder.ended(op, i == 2499);
  }
  CHECK(test::allocations() == before);
  const FlightRecord record = runtime::read_flight_record(folder.path() / "record");

  REQUIRE(record.entries.size() == runtime::flight_runs);
  CHECK(record.entries.front().number == 1501);
  CHECK(record.entries.back().number == 2500);
  CHECK(record.entries.back().state == FlightState::failed);
  CHECK(record.entries.back().step == 2500);
  const std::string text = runtime::to_jsonl(record);
  CHECK(std::count(text.begin(), text.end(), '\n') == 1001);
}

TEST_CASE("the flight record of a killed process is whole", "[flight]") {
  const test::TemporaryFolder folder;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    FlightRecorder recorder(folder.path() / "record", 1);
    const std::uint32_t op = recorder.add_op(recorder.add_group("pipe", {1, 3}), 4, "send of x");
    recorder.set_phase("training", 3);
    recorder.started(op);
    recorder.waited_for(op);
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));

  const FlightRecord record = runtime::read_flight_record(folder.path() / "record");

  CHECK(runtime::place_of(record) == "step 3 (training), in send of x (operation 1 over pipe)");
}

TEST_CASE("a process killed while it records leaves no half-written entry", "[flight]") {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "record";
  for (std::uint64_t round = 0; round < test::depth<std::uint64_t>(50, 50, 5); ++round) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      FlightRecorder recorder(path, 1);
      const std::uint32_t op = recorder.add_op(recorder.add_group("data", {0, 1}), 4, "all_reduce of x");
      for (std::int64_t step = 1;; ++step) {
        recorder.set_phase("training", step);
        recorder.started(op);
        recorder.waited_for(op);
        recorder.ended(op, false);
      }
    }
    // Once the ring is full, each run takes the place of another.
    const auto has_gone_round = [&] {
      try {
        const FlightRecord record = runtime::read_flight_record(path);
        return !record.entries.empty() && record.entries.back().number > runtime::flight_runs + 37 * round;
      } catch (const Error&) {
        return false;
      }
    };
    while (!has_gone_round()) {
    }
    ::kill(child, SIGKILL);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    const FlightRecord record = runtime::read_flight_record(path);
    CHECK(record.entries.size() >= runtime::flight_runs - 1);
    for (const FlightEntry& entry : record.entries) {
      REQUIRE(entry.number == entry.number_in_group);
      REQUIRE(entry.step == static_cast<std::int64_t>(entry.number));
    }
    std::filesystem::remove(path);
  }
}

TEST_CASE("reading a phase while it changes gives the old one or the new one", "[flight]") {
  const test::TemporaryFolder folder;
  FlightRecorder recorder(folder.path() / "record", 0);
  recorder.set_phase("comparing replicas", 0);
  std::atomic<bool> is_over = false;
  std::thread changing([&] {
    for (std::int64_t step = 1; !is_over; ++step) {
      recorder.set_phase(step % 2 == 0 ? "comparing replicas" : "validating", step);
    }
  });
  std::set<std::string> others;
  std::set<std::string> seen;
  for (int i = 0; i < test::depth(20'000, 20'000, 5'000) || seen.size() < 2; ++i) {
    const FlightRecord record = runtime::read_flight_record(folder.path() / "record");
    const std::string expected = record.step % 2 == 0 ? "comparing replicas" : "validating";
    (record.phase == expected ? seen : others).insert(record.phase);
  }
  is_over = true;
  changing.join();
  CHECK(others == std::set<std::string>{});
}

TEST_CASE("ranks that have started an operation wait for those that have not", "[flight]") {
  CHECK(runtime::waits_among({waiting(0, 9), waiting(1, 9), computing(2, 8)}) ==
        std::vector<std::string>{"ranks 0 and 1 wait for rank 2 in all_gather of W (operation 9 over data)"});
  CHECK(runtime::waits_among({waiting(0, 9), computing(1, 8), computing(2, 8)}) ==
        std::vector<std::string>{"rank 0 waits for ranks 1 and 2 in all_gather of W (operation 9 over data)"});
  CHECK(runtime::waits_among({computing(0, 8), computing(1, 8), computing(2, 8)}).empty());
}

TEST_CASE("a rank that has started an operation but is still in one before is waited for", "[flight]") {
  FlightRecord slow = waiting(2, 9);
  slow.entries[0].number_in_group = 8;
  CHECK(runtime::waits_among({waiting(0, 9), waiting(1, 9), slow}, 2) ==
        std::vector<std::string>{"ranks 0 and 1 wait for rank 2 in all_gather of W (operation 9 over data)"});
}

TEST_CASE("an operation that all ranks have started and none has ended is reported once", "[flight]") {
  CHECK(runtime::waits_among({waiting(0, 9), waiting(1, 9), waiting(2, 9)}) ==
        std::vector<std::string>{"ranks 0, 1 and 2 wait in all_gather of W (operation 9 over data), which all its "
                                 "members have called"});
}

TEST_CASE("a rank of another group with the same name is not waited for", "[flight]") {
  FlightRecord other = computing(2, 1);
  other.groups[0].members = {2, 4};
  FlightRecord pair = waiting(0, 5);
  pair.groups[0].members = {0, 1};
  const std::vector<std::string> waits = runtime::waits_among({pair, other});
  REQUIRE(waits.size() == 1);
  CHECK(waits[0].find("rank 2") == std::string::npos);
}

TEST_CASE("a file that is not a flight record is refused", "[flight]") {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() / "short") << "shrdfly1";
  std::ofstream(folder.path() / "zeros") << std::string(sizeof(runtime::FlightFile), '\0');
  CHECK_THROWS_AS(runtime::read_flight_record(folder.path() / "short"), Error);
  CHECK_THROWS_AS(runtime::read_flight_record(folder.path() / "zeros"), Error);
  CHECK_THROWS_AS(FlightRecorder(folder.path() / "no" / "record", 0), Error);
}
