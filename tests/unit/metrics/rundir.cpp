#include "core/metrics/rundir.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::metrics;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

TEST_CASE("the folder, those above it and the one of the logs are created", "[metrics]") {
  const TemporaryFolder folder;

  const RunDirectory run(folder / "runs/first");

  CHECK(std::filesystem::is_directory(folder / "runs/first/log"));
  CHECK(metrics_path(run.path()) == folder / "runs/first/metrics.jsonl");
  CHECK(summary_path(run.path()) == folder / "runs/first/summary.json");
  CHECK(log_path(run.path(), 3) == folder / "runs/first/log/rank-3.log");
}

TEST_CASE("a second run of one folder is refused, naming the first", "[metrics]") {
  const TemporaryFolder folder;
  std::optional<RunDirectory> first(folder / "run");

  CHECK_THAT(error_of([&] { RunDirectory(folder / "run"); }),
             StartsWith("2: another run writes to '") &&
                 Contains("/run': process " + std::to_string(::getpid()) + " on ") && Contains("[job] output"));
  first.reset();

  CHECK_NOTHROW(RunDirectory(folder / "run"));
}

TEST_CASE("a process that is killed lets go of its folder", "[metrics]") {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const RunDirectory run(folder / "run");
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  REQUIRE(std::filesystem::exists(folder / "run/.lock"));

  CHECK_NOTHROW(RunDirectory(folder / "run"));
}

TEST_CASE("an older run's results go, everything else stays", "[metrics]") {
  const TemporaryFolder folder;
  const RunDirectory run(folder / "run");
  std::filesystem::create_directory(run.path() / "trace");
  for (const char* name : {"metrics.jsonl", "summary.json", "log/rank-0.log", "log/rank-17.log", "trace.json",
                           "trace/rank-0.json", "trace/.rank-1.json.tmp"}) {
    write_file(run.path() / name, "old");
  }
  for (const char* name : {"notes.txt", "log/mine.log", "trace/mine.json", "step-100.safetensors"}) {
    write_file(run.path() / name, "kept");
  }

  run.remove_older_run();

  CHECK_FALSE(std::filesystem::exists(metrics_path(run.path())));
  CHECK_FALSE(std::filesystem::exists(summary_path(run.path())));
  CHECK_FALSE(std::filesystem::exists(log_path(run.path(), 0)));
  CHECK_FALSE(std::filesystem::exists(log_path(run.path(), 17)));
  CHECK_FALSE(std::filesystem::exists(trace_path(run.path())));
  CHECK_FALSE(std::filesystem::exists(trace_path(run.path(), 0)));
  CHECK_FALSE(std::filesystem::exists(run.path() / "trace/.rank-1.json.tmp"));
  CHECK(read_file(folder / "run/trace/mine.json") == "kept");
  CHECK(read_file(folder / "run/notes.txt") == "kept");
  CHECK(read_file(folder / "run/log/mine.log") == "kept");
  CHECK(read_file(folder / "run/step-100.safetensors") == "kept");
  CHECK_NOTHROW(run.remove_older_run());
}

TEST_CASE("what killed processes were about to write goes, everything else stays", "[metrics]") {
  const bool by_next_run = GENERATE(false, true);
  const TemporaryFolder folder;
  const RunDirectory run(folder / "run");
  for (const char* name :
       {".weights.safetensors.tmp", "weights.safetensors.rank-0", "weights.safetensors.rank-12",
        ".weights.safetensors.rank-1.tmp", ".state.safetensors.tmp", "state.safetensors.rank-3", ".summary.json.tmp",
        ".sample.txt.tmp", ".job.ini.tmp"}) {
    write_file(run.path() / name, "unfinished");
  }
  const std::vector<std::string> kept = {"weights.safetensors",        "state.safetensors",     "sample.txt",
                                         "weights.safetensors.rank-",  "mine.rank-0",           ".mine.tmp",
                                         "weights.safetensors.rank-x", "weights.safetensors.1", "summary.json.tmp"};
  for (const std::string& name : kept) {
    write_file(run.path() / name, "kept");
  }

  by_next_run ? run.remove_older_run() : run.remove_unfinished();

  for (const std::string& name : kept) {
    CHECK(read_file(run.path() / name) == "kept");
  }
  CHECK(files_in(run.path()) == kept.size() + 2);  // the lock and the logs' folder
}

TEST_CASE("folders that cannot be are refused with the system's reason", "[metrics]") {
  const TemporaryFolder folder;
  write_file(folder / "file", "");
  std::filesystem::create_directories(folder / "odd/metrics.jsonl/full");

  CHECK_THAT(error_of([&] { RunDirectory(folder / "file"); }), Contains("cannot create the output folder"));
  CHECK_THAT(error_of([&] { RunDirectory(folder / "file/run"); }), Contains("Not a directory"));
  const RunDirectory odd(folder / "odd");
  CHECK_THAT(error_of([&] { odd.remove_older_run(); }), Contains("cannot remove") && Contains("metrics.jsonl"));
}
