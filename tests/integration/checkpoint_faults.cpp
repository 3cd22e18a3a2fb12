// What becomes of checkpoints if the disk fails or loses power, or if a process is killed while it writes.

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/integration/disk.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

/// The settings of a job that saves after steps 2, 4 and 6, and keeps the newest checkpoint.
std::vector<std::string> saving_job(int ranks, const std::vector<std::string>& more = {}) {
  std::vector<std::string> settings = {"train.steps=6",      "train.eval_every=0", "train.log_every=1",
                                       "checkpoint.every=2", "checkpoint.keep=1",  fmt::format("job.ranks={}", ranks)};
  if (ranks > 1) {
    settings.insert(settings.end(), {"job.strategy=zero1", "job.transport=shm"});
  }
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

/// The operations that save step 4 if nothing fails.
std::vector<SaveOperation> operations_of(int ranks) {
  const DiskJob job(saving_job(ranks));
  const Ended ended = job.run();
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const std::vector<SaveOperation> operations = operations_of_save(job.log(), 4);
  REQUIRE(operations.size() >= 10U + 4U * static_cast<unsigned>(ranks));
  return operations;
}

const char* name_of(int error_number) { return strerrorname_np(error_number); }

/// Makes the operation fail in a job that must go on.
void check_that_it_goes_on(int ranks, const SaveOperation& operation, int error_number) {
  INFO(operation.name << ": " << name_of(error_number));
  const DiskJob job(saving_job(ranks));

  const Ended ended = job.run(DiskFault{operation.name, std::to_string(error_number)});

  INFO(ended.out << ended.err);
  REQUIRE(job.was_met());
  CHECK(ended.code == 0);
  CHECK(newest_whole(job.checkpoints()) == 6);
  CHECK(rubbish_in(job.checkpoints()).empty());
  const boost::json::object checkpoints = job.folder().summary().at("checkpoints").as_object();
  CHECK(checkpoints.at("last_step") == 6);
  CHECK(checkpoints.at("failed") == (operation.removes_older ? 0 : 1));
  CHECK(checkpoints.at("saved") == (operation.removes_older ? 3 : 2));
  CHECK_THAT(ended.out, Contains(operation.removes_older ? "warning: an older checkpoint could not be removed: "
                                                         : "warning: the checkpoint of step 4 could not be written: "));
}

/// Makes the operation fail in a job that must not go on without a checkpoint.
void check_that_it_stops(int ranks, const SaveOperation& operation, int error_number) {
  INFO(operation.name << ": " << name_of(error_number) << ", on_failure = stop");
  const DiskJob job(saving_job(ranks, {"checkpoint.on_failure=stop"}));

  const Ended ended = job.run(DiskFault{operation.name, std::to_string(error_number)});

  INFO(ended.out << ended.err);
  REQUIRE(job.was_met());
  if (operation.removes_older) {  // the new checkpoint is complete
    CHECK(ended.code == 0);
    CHECK(newest_whole(job.checkpoints()) == 6);
    return;
  }
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err,
             Contains("the checkpoint of step 4 could not be written, and [checkpoint] on_failure is stop: ") &&
                 Contains(std::generic_category().message(error_number)));
  const std::int64_t newest = newest_whole(job.checkpoints());
  CHECK((newest == 2 || newest == 4));
  CHECK(rubbish_in(job.checkpoints()).empty());
}

/// Kills the process before the operation. Returns the step of the newest checkpoint.
std::int64_t check_that_a_kill_is_survived(int ranks, const SaveOperation& operation, const std::string& weights) {
  INFO(operation.name << ": SIGKILL");
  const DiskJob job(saving_job(ranks));

  const Ended ended = job.run(DiskFault{operation.name, "kill"});

  REQUIRE(job.was_met());
  CHECK(ended.code != 0);
  const std::int64_t newest = newest_whole(job.checkpoints());
  CHECK((newest == 2 || newest == 4));
  const Ended resumed = job.resume();
  INFO(resumed.out << resumed.err);
  CHECK(resumed.code == 0);
  CHECK_THAT(resumed.out, Contains(fmt::format("goes on after step {} from ", newest)));
  CHECK(read_file(job.path() / "run/weights.safetensors") == weights);
  CHECK(newest_whole(job.checkpoints()) == 6);
  CHECK(rubbish_in(job.checkpoints()).empty());
  return newest;
}

std::string uninterrupted_weights(int ranks) {
  const JobFolder job;
  REQUIRE(job.run(saving_job(ranks)).code == 0);
  return read_file(job.path() / "run/weights.safetensors");
}

/// Every `step`-th operation of a list, from `first` on.
std::vector<SaveOperation> some_of(const std::vector<SaveOperation>& all, std::size_t step, std::size_t first = 0) {
  std::vector<SaveOperation> some;
  for (std::size_t i = first; i < all.size(); i += step) {
    some.push_back(all[i]);
  }
  return some;
}

}  // namespace

TEST_CASE("if any operation of a save fails, the run goes on and makes the next save") {
  constexpr std::array<int, 4> errors = {ENOSPC, EIO, EROFS, EDQUOT};
  for (const int ranks : {1, 2}) {
    const std::vector<SaveOperation> operations = operations_of(ranks);
    for (std::size_t i = 0; i < operations.size(); ++i) {
      if (ranks == 1 || operations[i].name.find("rank-1") != std::string::npos) {
        check_that_it_goes_on(ranks, operations[i], errors[i % errors.size()]);
      }
    }
  }
}

TEST_CASE("if any operation of a save fails, on_failure = stop leaves the old checkpoint or the new one") {
  const std::vector<SaveOperation> operations = operations_of(1);
  for (const SaveOperation& operation : some_of(operations, 2)) {
    check_that_it_stops(1, operation, EIO);
  }
}

TEST_CASE("a short write is continued") {
  for (const SaveOperation& operation : operations_of(2)) {
    if (operation.name.starts_with("write ")) {
      INFO(operation.name);
      const DiskJob job(saving_job(2));
      const Ended ended = job.run(DiskFault{operation.name, "short"});
      INFO(ended.out << ended.err);
      REQUIRE(job.was_met());
      CHECK(ended.code == 0);
      CHECK(job.folder().summary().at("checkpoints").as_object().at("failed") == 0);
      CHECK(newest_whole(job.checkpoints()) == 6);
    }
  }
}

TEST_CASE("a run killed at any operation of a save resumes from a complete checkpoint") {
  std::set<std::int64_t> newest;
  for (const int ranks : {1, 2}) {
    const std::string weights = uninterrupted_weights(ranks);
    for (const SaveOperation& operation : some_of(operations_of(ranks), ranks == 1 ? 2 : 5, 1)) {
      newest.insert(check_that_a_kill_is_survived(ranks, operation, weights));
    }
  }
  CHECK(newest == std::set<std::int64_t>{2, 4});
}

// Takes minutes: run it by its tag.
TEST_CASE("every operation of a save fails in every way, with one rank and with two", "[.every]") {
  int faults = 0;
  for (const int ranks : {1, 2}) {
    const std::string weights = uninterrupted_weights(ranks);
    for (const SaveOperation& operation : operations_of(ranks)) {
      for (const int error_number : {ENOSPC, EIO, EROFS, EDQUOT}) {
        check_that_it_goes_on(ranks, operation, error_number);
        check_that_it_stops(ranks, operation, error_number);
        faults += 2;
      }
      check_that_a_kill_is_survived(ranks, operation, weights);
      ++faults;
    }
  }
  fmt::print("{} faults\n", faults);
}

TEST_CASE("a power cut at any time leaves the newest complete checkpoint whole") {
  for (const int ranks : {1, 2}) {
    const DiskJob job(saving_job(ranks));
    REQUIRE(job.run().code == 0);
    SimulatedDisk disk;
    std::int64_t promised = -1;  // the newest checkpoint whose save has ended
    std::int64_t renamed = -1;
    int cuts = 0;
    for (const DiskOperation& operation : job.log()) {
      disk.apply(operation);
      if (operation.name == "rename" && operation.second.starts_with("run/checkpoints/step-")) {
        renamed = std::stoll(operation.second.substr(operation.second.rfind('-') + 1));
      } else if (operation.name == "fsync" && operation.path == "run/checkpoints") {
        promised = renamed;
      }
      if (!operation.path.starts_with("run/checkpoints")) {
        continue;
      }
      for (const PowerCut cut :
           {PowerCut::none_kept, PowerCut::names_kept, PowerCut::removals_kept, PowerCut::all_kept}) {
        INFO(fmt::format("{} ranks, after {} {}, {}", ranks, operation.name, operation.path, static_cast<int>(cut)));
        const TemporaryFolder after;
        disk.write("run/checkpoints", cut, after / "checkpoints");
        CHECK(newest_whole(after / "checkpoints") >= promised);
        ++cuts;
      }
    }
    CHECK(promised == 6);
    CHECK(cuts > 4 * 3 * 15);
  }
}
