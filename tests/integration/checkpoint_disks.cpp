// Disks that are full, slow, read-only or gone while a run saves checkpoints.

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "core/checkpoint/folder.h"
#include "tests/integration/disk.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

const std::vector<std::string> saving = {"train.steps=6", "train.eval_every=0", "train.log_every=1",
                                         "checkpoint.every=2"};

/// Runs a job that saves to a small disk, which is mounted for this job alone. `prepare`: a shell script that runs
/// first, beside the folder `disk`. Returns false if this process may not mount.
bool run_on_disk(const JobFolder& job, const std::string& prepare, const std::vector<std::string>& more, Ended& ended) {
  std::filesystem::create_directory(job.path() / "disk");
  const bool names_folder =
      std::ranges::any_of(more, [](const std::string& setting) { return setting.starts_with("checkpoint.folder="); });
  std::string command = fmt::format("exec \"$1\" job.ini{}", names_folder ? "" : " --set checkpoint.folder=disk");
  std::vector<std::string> settings = saving;
  settings.insert(settings.end(), more.begin(), more.end());
  for (const std::string& word : with_settings({}, settings)) {
    command += " " + word;
  }
  ended = run_script(job.path(), fmt::format("exec unshare --mount sh -c 'mount -t tmpfs -o size=160k none disk || "
                                             "exit 99\n{}\n{}' sh \"$0\"",
                                             prepare, command));
  const bool refused = ended.code == 99 || ended.err.find("unshare:") != std::string::npos;
  if (refused) {
    WARN("not tested, because no file system can be mounted here: " << ended.err);
  }
  return !refused;
}

}  // namespace

TEST_CASE("a disk that is full after one checkpoint keeps that checkpoint, and the run ends with its results") {
  const JobFolder job;
  Ended ended;
  if (!run_on_disk(job, "", {"checkpoint.keep=1"}, ended)) {
    return;
  }
  INFO(ended.out << ended.err);
  CHECK(ended.code == 0);
  const boost::json::object checkpoints = job.summary().at("checkpoints").as_object();
  CHECK(checkpoints.at("saved") == 1);
  CHECK(checkpoints.at("failed") == 2);
  CHECK(checkpoints.at("last_step") == 2);
  CHECK_THAT(ended.out, Contains("warning: the checkpoint of step 4 could not be written: ") &&
                            Contains("warning: the checkpoint of step 6 could not be written: ") &&
                            Contains("No space left on device; free some space there or choose another folder"));
  CHECK(std::filesystem::exists(job.path() / "run/weights.safetensors"));
}

TEST_CASE("a run on a read-only disk goes on without checkpoints") {
  const JobFolder job;
  Ended ended;
  if (!run_on_disk(job, "mount -o remount,ro disk", {}, ended)) {
    return;
  }
  INFO(ended.out << ended.err);
  CHECK(ended.code == 0);
  CHECK(job.summary().at("checkpoints").as_object().at("failed") == 3);
  CHECK_THAT(ended.out, Contains("Read-only file system; the file system is read-only: choose another folder"));
  const std::size_t told = ended.out.find("warning: as it is now, no checkpoint can be written to '");
  CHECK(told < ended.out.find("step 1/6"));

  const JobFolder stops;
  REQUIRE(run_on_disk(stops, "mount -o remount,ro disk", {"checkpoint.on_failure=stop"}, ended));
  CHECK(ended.code == 2);
  CHECK_THAT(ended.err, Contains("Read-only file system") && Contains("on_failure is stop"));
  CHECK_FALSE(std::filesystem::exists(stops.path() / "run"));

  const JobFolder below;
  REQUIRE(run_on_disk(below, "mount -o remount,ro disk", {"checkpoint.folder=disk/new"}, ended));
  CHECK(ended.code == 2);
  CHECK_THAT(ended.err, Contains("the folder of checkpoints cannot be made") && Contains("Read-only file system"));
  CHECK_FALSE(std::filesystem::exists(below.path() / "run"));
  CHECK(std::filesystem::exists(job.path() / "run/weights.safetensors"));
}

TEST_CASE("a file in the place of the checkpoint folder is refused before anything starts") {
  const JobFolder job;
  write_file(job.path() / "taken", "");
  std::vector<std::string> settings = saving;
  settings.emplace_back("checkpoint.folder=taken");
  const Ended ended = job.run(settings);
  CHECK(ended.code == 2);
  CHECK_THAT(ended.err, Contains("[checkpoint] folder: '") &&
                            Contains("taken' is to be the folder of checkpoints, and is a file"));
  CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
}

TEST_CASE("a run that is asked to stop and cannot save fails") {
  const DiskJob job({"train.steps=1000000", "train.eval_every=0", "train.log_every=1", "checkpoint.every=2",
                     "train.schedule=constant"});
  const Ended ended = job.run_and_hold("mkdir run/checkpoints/.step-000004.tmp 1", [&](pid_t process) {
    std::filesystem::remove_all(job.checkpoints());
    write_file(job.checkpoints(), "a file where the folder was");
    kill(process, SIGTERM);
  });
  INFO(ended.out << ended.err);
  REQUIRE(job.was_met());
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("the checkpoint of step ") && Contains(" could not be written: cannot ") &&
                            Contains("The newest is of step 2"));
  CHECK(job.folder().summary().at("status") == "failed");
}

TEST_CASE("a checkpoint folder that is removed during a run is made again by the next save") {
  const DiskJob job(saving);
  const Ended ended = job.run_and_hold("create run/checkpoints/.step-000004.tmp/rank-0.safetensors 1",
                                       [&](pid_t) { std::filesystem::remove_all(job.checkpoints()); });
  INFO(ended.out << ended.err);
  REQUIRE(job.was_met());
  CHECK(ended.code == 0);
  CHECK(job.folder().summary().at("checkpoints").as_object().at("failed") == 1);
  CHECK_THAT(ended.out, Contains("warning: the checkpoint of step 4 could not be written: cannot create '"));
  const std::vector<checkpoint::Listed> listed = checkpoint::list_checkpoints(job.checkpoints());
  REQUIRE(listed.size() == 1);
  CHECK(listed[0].step == 6);
}

TEST_CASE("steps go on while a slow disk writes, and the next save waits and says so") {
  for (const int ranks : {1, 2}) {
    std::vector<std::string> settings = saving;
    if (ranks > 1) {
      settings.insert(settings.end(), {"job.ranks=2", "job.strategy=dp"});
    }
    const DiskJob job(settings);
    bool went_on = false;
    const std::string last = fmt::format("rank-{}.safetensors", ranks - 1);
    const Ended ended = job.run(DiskFault{fmt::format("fsync run/checkpoints/.step-000002.tmp/{} 1", last), "hold"},
                                [&](pid_t, std::string_view out) {
                                  if (!went_on && out.find("step 4/6") != std::string_view::npos) {
                                    went_on = job.was_met();
                                    job.let_go();
                                  }
                                });
    INFO(ended.out << ended.err);
    CHECK(went_on);
    CHECK(ended.code == 0);
    CHECK_THAT(ended.out, Contains("for an earlier checkpoint to be written: save less often, or to a faster disk\n"
                                   "checkpoint of step 2: "));
    CHECK(job.folder().summary().at("checkpoints").as_object().at("saved") == 3);
  }
}
