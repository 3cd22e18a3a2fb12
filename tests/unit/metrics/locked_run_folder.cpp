#include "core/metrics/locked_run_folder.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::metrics;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

TEST_CASE("the run folder, the folders above it and the folder of its logs are created", "[metrics]") {
  const TemporaryFolder folder;

  const LockedRunFolder run(folder / "runs/first");

  CHECK(std::filesystem::is_directory(folder / "runs/first/log"));
  CHECK(metrics_path(run.path()) == folder / "runs/first/metrics.jsonl");
  CHECK(summary_path(run.path()) == folder / "runs/first/summary.json");
  CHECK(log_path(run.path(), 3) == folder / "runs/first/log/rank-3.log");
}

TEST_CASE("a second run of one folder is refused, naming the first", "[metrics]") {
  const TemporaryFolder folder;
  std::optional<LockedRunFolder> first(folder / "run");

  CHECK_THAT(error_of([&] { LockedRunFolder(folder / "run"); }),
             StartsWith("2: another run writes to '") &&
                 Contains("/run': process " + std::to_string(::getpid()) + " on ") && Contains("[job] output"));
  first.reset();

  CHECK_NOTHROW(LockedRunFolder(folder / "run"));
}

TEST_CASE("a look whether a run holds a folder refuses no run", "[metrics]") {
  const TemporaryFolder folder;
  std::atomic<bool> looks = true;
  std::thread looking([&] {
    while (looks) {
      static_cast<void>(is_held(folder / "run"));
    }
  });

  std::string error = "nothing";
  for (int run = 0; run < 100 && error == "nothing"; ++run) {
    error = error_of([&] { LockedRunFolder(folder / "run"); });
  }
  looks = false;
  looking.join();

  CHECK(error == "nothing");
  CHECK_FALSE(is_held(folder / "run"));
  const LockedRunFolder run(folder / "run");
  CHECK(is_held(folder / "run"));
}

TEST_CASE("the folder of a killed process can be locked again", "[metrics]") {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const LockedRunFolder run(folder / "run");
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  REQUIRE(std::filesystem::exists(folder / "run/.lock"));

  CHECK_NOTHROW(LockedRunFolder(folder / "run"));
}

namespace {

/// A folder that a run has held before.
std::filesystem::path held_before(const std::filesystem::path& output) {
  LockedRunFolder older(output);
  return output;
}

}  // namespace

TEST_CASE("nothing is removed from a folder that was never a run's", "[metrics]") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run/log");
  const std::vector<std::string> names = {"sample.txt",          "state-000100.safetensors",
                                          "weights.safetensors", "summary.json",
                                          "metrics.jsonl",       "log/rank-0.log"};
  for (const std::string& name : names) {
    write_file(folder / "run" / name, "the user's");
  }
  CHECK(foreign_result(folder / "run") == folder / "run/metrics.jsonl");

  const LockedRunFolder run(folder / "run");

  CHECK(run.remove_older_run().empty());
  for (const std::string& name : names) {
    CHECK(read_file(folder / "run" / name) == "the user's");
  }
  CHECK(foreign_result(folder / "run").empty());
}

TEST_CASE("the state that a run continues from is not a foreign result", "[metrics]") {
  const TemporaryFolder folder;
  write_file(folder / "state-000100.safetensors", "");
  CHECK(foreign_result(folder.path()) == folder / "state-000100.safetensors");
  CHECK(foreign_result(folder.path(), folder / "state-000100.safetensors").empty());
}

TEST_CASE("files that runs write are recognized by place and name, through links too", "[metrics]") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run/log");
  for (const char* name : {"run/sample.txt", "run/corpus.txt", "run/log/rank-1.log", "sample.txt"}) {
    write_file(folder / name, "");
  }
  std::filesystem::create_symlink(folder / "run/sample.txt", folder / "link");
  const auto is_written = [&](const char* name) { return is_written_by_runs(folder / name, folder / "run"); };
  CHECK(is_written("run/sample.txt"));
  CHECK(is_written("run/log/rank-1.log"));
  CHECK(is_written("link"));
  CHECK_FALSE(is_written("sample.txt"));
  CHECK_FALSE(is_written("run/corpus.txt"));
}

TEST_CASE("an older run's results are removed, and everything else stays", "[metrics]") {
  const TemporaryFolder folder;
  const LockedRunFolder run(held_before(folder / "run"));
  std::filesystem::create_directory(run.path() / "trace");
  for (const char* name :
       {"metrics.jsonl", "ranks.jsonl", "summary.json", "log/rank-0.log", "log/rank-17.log", "trace.json",
        "trace/rank-0.json", "trace/.rank-1.json.tmp", "sample.txt", "state-000100.safetensors"}) {
    write_file(run.path() / name, "old");
  }
  const std::vector<std::string> kept = {
      "notes.txt",           "log/mine.log",      "trace/mine.json",     "step-100.safetensors",
      "weights.safetensors", "state.safetensors", "state-1.safetensors", "state-last.safetensors"};
  for (const std::string& name : kept) {
    write_file(run.path() / name, "kept");
  }

  CHECK_THAT(run.remove_older_run(), StartsWith("replaces the run in ") && Contains("/run"));

  CHECK_FALSE(std::filesystem::exists(metrics_path(run.path())));
  CHECK_FALSE(std::filesystem::exists(ranks_path(run.path())));
  CHECK_FALSE(std::filesystem::exists(summary_path(run.path())));
  CHECK_FALSE(std::filesystem::exists(log_path(run.path(), 0)));
  CHECK_FALSE(std::filesystem::exists(log_path(run.path(), 17)));
  CHECK_FALSE(std::filesystem::exists(trace_path(run.path())));
  CHECK_FALSE(std::filesystem::exists(trace_path(run.path(), 0)));
  CHECK_FALSE(std::filesystem::exists(run.path() / "trace/.rank-1.json.tmp"));
  CHECK_FALSE(std::filesystem::exists(sample_path(run.path())));
  CHECK_FALSE(std::filesystem::exists(state_path(run.path(), 100)));
  for (const std::string& name : kept) {
    CHECK(read_file(run.path() / name) == "kept");
  }
  CHECK(run.remove_older_run().empty());
}

TEST_CASE("a run that continues in its own folder keeps states up to its first step, and the file it continues from",
          "[metrics]") {
  const TemporaryFolder folder;
  const LockedRunFolder run(held_before(folder / "run"));
  for (const std::int64_t step : {100, 200, 300, 1'234'567}) {
    write_file(state_path(run.path(), step), "");
  }
  write_file(run.path() / "state-000900.safetensors", "another name of step 200");

  run.remove_older_run({.file = run.path() / "state-000900.safetensors", .step = 200});

  CHECK(std::filesystem::exists(state_path(run.path(), 100)));
  CHECK(std::filesystem::exists(state_path(run.path(), 200)));
  CHECK(std::filesystem::exists(state_path(run.path(), 900)));
  CHECK_FALSE(std::filesystem::exists(state_path(run.path(), 300)));
  CHECK_FALSE(std::filesystem::exists(state_path(run.path(), 1'234'567)));
}

TEST_CASE("a run that goes on keeps the lines of the steps before it", "[metrics]") {
  const TemporaryFolder folder;
  const LockedRunFolder run(held_before(folder / "run"));
  const std::string lines = "{\"step\":100,\"steps\":100}\n";
  for (const std::filesystem::path& path : {metrics_path(run.path()), ranks_path(run.path())}) {
    write_file(path, lines + "{\"step\":250,\"steps\":150}\n");
  }

  run.remove_older_run({.step = 200, .metrics = true});

  CHECK(read_file(metrics_path(run.path())) == lines);
  CHECK(read_file(ranks_path(run.path())) == lines);
}

TEST_CASE("the notice of a replaced run says how it ended", "[metrics]") {
  const TemporaryFolder folder;
  const LockedRunFolder run(held_before(folder / "run"));
  CHECK(run.remove_older_run().empty());
  write_file(summary_path(run.path()),
             R"({"status": "finished", "steps": 20, "ended": "2026-11-22T14:15:03.000Z", "more": []})");
  CHECK_THAT(run.remove_older_run(), EndsWith("/run (finished after 20 steps, 2026-11-22T14:15:03.000Z)"));
  write_file(summary_path(run.path()), "{");
  CHECK_THAT(run.remove_older_run(), EndsWith("/run"));
  write_file(metrics_path(run.path()), "");
  CHECK_THAT(run.remove_older_run(), EndsWith("/run, which did not come to its end"));
}

TEST_CASE("a run that has saved results is kept beside the next one", "[metrics]") {
  const TemporaryFolder folder;
  const LockedRunFolder run(held_before(folder / "run"));
  const std::vector<std::string> names = {"job.ini",        "weights.safetensors", "metrics.jsonl",
                                          "log/rank-0.log", "outputs/wave.npy",    "attempts/1/summary.json"};
  for (const std::string& name : names) {
    std::filesystem::create_directories((run.path() / name).parent_path());
    write_file(run.path() / name, "of " + name);
  }
  write_file(run.path() / "notes.txt", "mine");
  write_file(summary_path(run.path()), R"({"status": "stopped", "saved": "earlier"})");
  CHECK_FALSE(keeps_earlier(run.path(), {.results = true}));
  const std::string summary = R"({"status": "stopped", "saved": "new"})";
  write_file(summary_path(run.path()), summary);
  CHECK_FALSE(keeps_earlier(run.path(), {}));
  CHECK(keeps_earlier(run.path(), {.step = 100, .results = true}));
  CHECK_FALSE(keeps_earlier(run.path(), {.step = 100, .metrics = true, .results = true}));
  CHECK(bytes_to_remove(run.path(), {}) > 0);
  CHECK(bytes_to_remove(run.path(), {.results = true}) == 0);
  std::filesystem::create_directories(run.path() / ".earlier-run.tmp");  // a process was killed while it began to keep
  write_file(run.path() / ".earlier-run.tmp/old.txt", "");

  CHECK_THAT(run.remove_older_run({.results = true}),
             EndsWith("; it is kept in " + (run.path() / "earlier-run").string() + " until this run has finished"));

  for (const std::string& name : names) {
    CHECK(read_file(earlier_path(run.path()) / name) == "of " + name);
    CHECK(is_written_by_runs(earlier_path(run.path()) / name, run.path()));
  }
  CHECK(read_file(earlier_path(run.path()) / "summary.json") == summary);
  CHECK_FALSE(std::filesystem::exists(earlier_path(run.path()) / "notes.txt"));
  CHECK_FALSE(std::filesystem::exists(earlier_path(run.path()) / "old.txt"));
  CHECK_FALSE(std::filesystem::exists(metrics_path(run.path())));
  CHECK(std::filesystem::exists(weights_path(run.path())));

  write_file(summary_path(run.path()), summary);
  CHECK_THAT(run.remove_older_run({.results = true}), Contains("; the one before is kept in "));
  CHECK(read_file(earlier_path(run.path()) / "metrics.jsonl") == "of metrics.jsonl");
  run.remove_earlier_run();
  CHECK_FALSE(std::filesystem::exists(earlier_path(run.path())));
  CHECK(read_file(run.path() / "notes.txt") == "mine");
}

TEST_CASE("what is kept of earlier runs is replaced by a later finished run, and removed by one that keeps nothing",
          "[metrics]") {
  const TemporaryFolder folder;
  const LockedRunFolder run(held_before(folder / "run"));
  const auto ended = [&](const std::string& status, const std::string& lines) {
    write_file(metrics_path(run.path()), lines);
    write_file(summary_path(run.path()), R"({"status": ")" + status + R"(", "saved": "new"})");
  };
  ended("stopped", "first");
  run.remove_older_run({.results = true});
  // A process was killed after it wrote the summary of a finished run, before it removed what it no longer needed.
  ended("finished", "second");

  CHECK_THAT(run.remove_older_run({.results = true}), Contains("; it is kept in "));

  CHECK(read_file(earlier_path(run.path()) / "metrics.jsonl") == "second");
  CHECK(bytes_to_remove(run.path(), {}) > 0);
  ended("stopped", "third");
  CHECK_THAT(run.remove_older_run({}), !Contains("kept"));
  CHECK_FALSE(std::filesystem::exists(earlier_path(run.path())));

  SECTION("a folder of that name that no run has written stays") {
    std::filesystem::create_directories(earlier_path(run.path()));
    write_file(earlier_path(run.path()) / "thesis.txt", "");
    ended("finished", "fourth");
    CHECK_FALSE(has_earlier_run(run.path()));
    run.remove_older_run({});
    run.remove_earlier_run();
    CHECK(std::filesystem::exists(earlier_path(run.path()) / "thesis.txt"));
  }
  SECTION("files and folders behind links are kept; those of other folders are not looked at") {
    std::filesystem::create_directories(folder / "big");
    write_file(folder / "big/weights", "of weights");
    write_file(folder / "big/rank-0.log", "of log");
    std::filesystem::remove(run.path() / "log");
    std::filesystem::create_symlink("../big/weights", weights_path(run.path()));
    std::filesystem::create_symlink("../big", run.path() / "log");
    std::filesystem::create_symlink("loop", run.path() / "loop");
    std::filesystem::create_directories(run.path() / "mine");
    write_file(run.path() / "mine/metrics.jsonl", "");
    ended("finished", "fourth");
    run.remove_older_run({.results = true});
    CHECK(read_file(weights_path(earlier_path(run.path()))) == "of weights");
    CHECK(read_file(earlier_path(run.path()) / "log/rank-0.log") == "of log");
    CHECK_FALSE(std::filesystem::exists(earlier_path(run.path()) / "mine"));
  }
}

TEST_CASE("unfinished files of killed processes are removed, and everything else stays", "[metrics]") {
  const bool by_next_run = GENERATE(false, true);
  const TemporaryFolder folder;
  const LockedRunFolder run(held_before(folder / "run"));
  for (const char* name : {".weights.safetensors.tmp", ".state.safetensors.tmp", ".summary.json.tmp", ".sample.txt.tmp",
                           ".job.ini.tmp", ".state-000100.safetensors.tmp"}) {
    write_file(run.path() / name, "unfinished");
  }
  const std::vector<std::string> kept = {"weights.safetensors", "state.safetensors",     "notes.txt",
                                         ".mine.tmp",           "weights.safetensors.1", "summary.json.tmp"};
  for (const std::string& name : kept) {
    write_file(run.path() / name, "kept");
  }

  if (by_next_run) {
    run.remove_older_run();
  } else {
    run.remove_unfinished();
  }

  for (const std::string& name : kept) {
    CHECK(read_file(run.path() / name) == "kept");
  }
  CHECK(files_in(run.path()) == kept.size() + 2);  // the lock and the logs' folder
}

TEST_CASE("a link of another user in the folder is not followed, for files or folders", "[metrics]") {
  if (::geteuid() != 0) {
    WARN("skipped: only root can give a link to another user");
    return;
  }
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "elsewhere");
  for (const char* const name : {"log", "metrics.jsonl", "log/rank-0.log"}) {
    const TemporaryFolder run;
    std::filesystem::create_directories((run / name).parent_path());
    std::filesystem::create_symlink(folder / "elsewhere", run / name);
    CHECK_NOTHROW(LockedRunFolder(run.path()));  // a link of our own
    REQUIRE(::lchown((run / name).c_str(), 12345, 12345) == 0);
    CHECK_THAT(
        error_of([&] { LockedRunFolder{run.path()}; }),
        StartsWith("2: ") && Contains(name) && Contains("is a link that another user (uid 12345) has put there"));
  }
  CHECK(std::filesystem::is_empty(folder / "elsewhere"));
}

TEST_CASE("folders that cannot be are refused with the system's reason", "[metrics]") {
  const TemporaryFolder folder;
  write_file(folder / "file", "");
  std::filesystem::create_directories(folder / "odd/metrics.jsonl/full");

  CHECK_THAT(error_of([&] { LockedRunFolder(folder / "file"); }), Contains("cannot create the output folder"));
  CHECK_THAT(error_of([&] { LockedRunFolder(folder / "file/run"); }), Contains("Not a directory"));
  const LockedRunFolder odd(held_before(folder / "odd"));
  CHECK_THAT(error_of([&] { odd.remove_older_run(); }), Contains("cannot remove") && Contains("metrics.jsonl"));
}
