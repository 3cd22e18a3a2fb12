#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "tests/integration/processes.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

std::vector<std::string> settings_of(const std::string& seed, int steps, const std::string& ranks = "2") {
  return {"job.seed=" + seed,
          "job.ranks=" + ranks,
          "job.strategy=" + std::string(ranks == "1" ? "single" : "dp"),
          "job.transport=shm",
          "train.log_every=1",
          "data.batch=8",
          "train.steps=" + std::to_string(steps),
          "train.eval_every=100"};
}

/// The contents of a folder that do not depend on when its run was.
struct Left {
  std::string weights;
  std::string job;
  std::vector<double> losses;
  std::vector<std::string> names;
  std::map<std::string, long> log_lines;

  bool operator==(const Left&) const = default;
};

Left left_in(const std::filesystem::path& run) {
  Left left;
  left.weights = read_file(run / "weights.safetensors");
  left.job = read_file(run / "job.ini");
  left.job.erase(0, left.job.find("seed ="));
  left.job.erase(std::min(left.job.find('\n'), left.job.size()));
  for (const boost::json::object& line : read_json_lines(run / "metrics.jsonl")) {
    left.losses.push_back(line.at("loss").to_number<double>());
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run)) {
    const std::string name = entry.path().lexically_relative(run).string();
    left.names.push_back(name);
    if (entry.path().extension() == ".log") {
      const std::string text = read_file(entry.path());
      left.log_lines[name] = std::count(text.begin(), text.end(), '\n');
    }
  }
  std::sort(left.names.begin(), left.names.end());
  return left;
}

/// Removes a folder again and again until nothing is there, because a run may be writing to it.
void remove_whole(const std::filesystem::path& folder) {
  for (std::error_code failed; std::filesystem::exists(folder); failed.clear()) {
    std::filesystem::remove_all(folder, failed);
  }
}

constexpr int steps_of_second = 60;
constexpr int endless = 1'000'000;  ///< steps of a job that runs until its folder is gone

/// Runs the job of seed 1. After a step, removes or moves its folder, and runs the job of seed 2 in its place. The
/// steps of the first job would fall into the second one's folder.
struct Attack {
  JobFolder job;
  Ended first;
  Ended second;

  Attack(int step, bool moves) {
    bool done = false;
    const std::string awaited = "step " + std::to_string(step) + "/";
    const auto take_away = [&](pid_t, std::string_view out) {
      if (done || out.find(awaited) == std::string_view::npos) {
        return;
      }
      done = true;
      if (moves) {
        std::filesystem::rename(job.path() / "run", job.path() / "moved");
      } else {
        remove_whole(job.path() / "run");
      }
      second = job.run(settings_of("2", steps_of_second));
    };
    first = run_program(job.path(), with_settings({"job.ini"}, settings_of("1", endless)), take_away);
  }
};

/// The number of attacks, of this many, that mixed two runs.
int mixed_of(int attacks) {
  const JobFolder alone;
  const Ended ended = alone.run(settings_of("2", steps_of_second));
  REQUIRE(ended.code == 0);
  const Left expected = left_in(alone.path() / "run");
  std::mt19937 random(1);
  int mixed = 0;
  for (int i = 0; i < attacks; ++i) {
    const int step = std::uniform_int_distribution<int>(1, 20)(random);
    const Attack attack(step, i % 2 == 0);
    INFO("attack " << i << " at step " << step << ": " << attack.first.code << " " << attack.first.err << "\n"
                   << attack.second.code << " " << attack.second.err);
    const Left found = left_in(attack.job.path() / "run");
    const bool is_same = attack.second.code == 0 && found == expected;
    mixed += is_same ? 0 : 1;
    CHECK(is_same);
    CHECK(attack.first.code == 1);
    CHECK_THAT(attack.first.err, Contains("output folder"));
  }
  return mixed;
}

/// The number of kills after which the folder had the earlier weights, and of those after which it had the new ones.
struct Weights {
  int earlier = 0;
  int fresh = 0;
};

/// Kills a rank, or the launcher, at a moment after the last step: while weights are written, or shortly before
/// or after.
Weights kill_late(int kills) {
  const std::vector<std::string> of_new = settings_of("2", 5);
  const JobFolder alone;
  REQUIRE(alone.run(of_new).code == 0);
  const std::string fresh = read_file(alone.path() / "run/weights.safetensors");
  std::mt19937 random(1);
  Weights found;
  for (int i = 0; i < kills; ++i) {
    const JobFolder job;
    REQUIRE(job.run(settings_of("1", 1)).code == 0);
    const std::string earlier = read_file(job.path() / "run/weights.safetensors");
    REQUIRE(earlier != fresh);
    const std::size_t victim = static_cast<std::size_t>(i) % 3;
    const std::chrono::microseconds after(std::uniform_int_distribution<int>(0, 12'000)(random));
    bool done = false;
    const Ended ended =
        run_program(job.path(), with_settings({"job.ini"}, of_new), [&](pid_t launcher, std::string_view out) {
          if (done || out.find("step 5/") == std::string_view::npos) {
            return;
          }
          done = true;
          const auto moment = std::chrono::steady_clock::now() + after;
          const std::vector<pid_t> ranks = children_of(launcher);
          std::this_thread::sleep_until(moment);
          kill(victim < ranks.size() ? ranks[victim] : launcher, SIGKILL);
        });
    INFO("kill " << i << " of " << victim << " after " << after.count() << " us: " << ended.code << " " << ended.err);
    const std::string weights = read_file(job.path() / "run/weights.safetensors");
    CHECK(done);
    CHECK((weights == earlier || weights == fresh));
    CHECK((ended.code != 0 || weights == fresh));
    if (ended.code >= 0) {  // otherwise the launcher was killed, which writes the summary
      CHECK(job.summary().at("exit_code") == ended.code);
      CHECK(job.summary().at("saved") == (weights == fresh ? "new" : "earlier"));
    }
    (weights == fresh ? found.fresh : found.earlier) += 1;
  }
  return found;
}

}  // namespace

TEST_CASE("a run whose folder is removed or moved never writes to the next run's folder in its place", "[folders]") {
  CHECK(mixed_of(4) == 0);
}

TEST_CASE("50 folders removed or moved under a run, and another run in their place", "[.attack]") {
  CHECK(mixed_of(50) == 0);
}

TEST_CASE("a run killed while it writes weights leaves the old weights or the new ones, and the summary says which",
          "[folders]") {
  kill_late(6);  // checks after each kill
}

TEST_CASE("100 kills late in writing", "[.attack]") {
  const Weights found = kill_late(100);
  WARN(found.earlier << " left the earlier weights, " << found.fresh << " the new ones");
}

TEST_CASE("a run ends when its lock is removed", "[folders]") {
  const JobFolder job;
  bool done = false;
  const Ended ended =
      run_program(job.path(), with_settings({"job.ini"}, settings_of("1", 100'000)), [&](pid_t, std::string_view out) {
        if (!done && out.find("step 3/") != std::string_view::npos) {
          done = true;
          std::filesystem::remove(job.path() / "run/.lock");
        }
      });
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("the output folder 'run' lost its lock (.lock) while this run wrote to it") &&
                            Contains("start the job again"));
  CHECK_FALSE(std::filesystem::exists(job.path() / "run/summary.json"));
  CHECK_FALSE(std::filesystem::exists(job.path() / "run/weights.safetensors"));
}

TEST_CASE("a run whose folder is moved names the new place, and leaves its summary there", "[folders]") {
  const std::string ranks = GENERATE("1", "2");
  const JobFolder job;
  bool done = false;
  const Ended ended = run_program(job.path(), with_settings({"job.ini"}, settings_of("1", 100'000, ranks)),
                                  [&](pid_t, std::string_view out) {
                                    if (!done && out.find("step 3/") != std::string_view::npos) {
                                      done = true;
                                      std::filesystem::rename(job.path() / "run", job.path() / "moved");
                                    }
                                  });
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("the output folder 'run' was moved to '" + (job.path() / "moved").string() + "'"));
  const boost::json::object summary = read_json(job.path() / "moved/summary.json");
  CHECK(summary.at("status") == "failed");
  CHECK(summary.at("saved") == "none");
  CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
}

TEST_CASE("weights that are larger than a file may be are refused before anything starts", "[folders]") {
  const std::string ranks = GENERATE("1", "2");
  const JobFolder job;
  const Ended ended = run_script(job.path(), "ulimit -f 1; \"$0\" job.ini --set job.ranks=" + ranks +
                                                 (ranks == "1" ? "" : " --set job.strategy=dp"));
  INFO(ended.err);
  CHECK(ended.code == 2);
  CHECK_THAT(ended.err, Contains("weights.safetensors takes") && Contains("(ulimit -f) is "));
  CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
}

TEST_CASE("address space that the arena does not fit into is named", "[folders]") {
  const JobFolder job;
  const Ended ended = run_script(job.path(),
                                 "ulimit -v 4000000; \"$0\" job.ini --set data.batch=8000 --set "
                                 "data.microbatches=1 --set model.width=256");
  INFO(ended.err);
  if (sanitized) {
    return;  // the sanitizer itself takes terabytes of addresses
  }
  CHECK(ended.code == 2);
  CHECK_THAT(ended.err, Contains("(ulimit -v) leaves") && Contains("raise that limit"));
}

TEST_CASE("under an address space limit ranks share memory, and a job that cannot fit is refused", "[folders]") {
  if (sanitized) {
    return;
  }
  const JobFolder job;
  const std::string two = " --set job.ranks=2 --set job.strategy=dp --set job.transport=shm --set train.steps=2";
  const Ended fits = run_script(job.path(), "ulimit -v 700000; \"$0\" job.ini" + two);
  INFO(fits.err);
  CHECK(fits.code == 0);
  const Ended refused =
      run_script(job.path(), "ulimit -v 700000; \"$0\" job.ini --set data.batch=1000 --set model.width=256" + two);
  INFO(refused.err);
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("(ulimit -v) leaves") && Contains("for what transports map"));
}

namespace {

/// Runs a script with a small file system mounted on `small`, in namespaces of its own. Nothing if this machine does
/// not allow such namespaces.
std::optional<Ended> run_on_small_disk(const JobFolder& job, const std::string& size, const std::string& script) {
  if (run_script(job.path(), "unshare -Urm true").code != 0) {
    WARN("skipped: no namespaces for a small file system here");
    return std::nullopt;
  }
  std::filesystem::create_directory(job.path() / "small");
  return run_script(
      job.path(), "unshare -Urm sh -c 'mount -t tmpfs -o size=" + size + " none small && { " + script + "; }' \"$0\"");
}

}  // namespace

TEST_CASE("weights that do not fit on the disk are refused before anything starts", "[folders]") {
  const JobFolder job;
  const std::optional<Ended> ended =
      run_on_small_disk(job, "16k",
                        "\"$0\" job.ini --set job.output=small/run --set job.ranks=2 --set job.strategy=dp; e=$?; "
                        "test ! -e small/run && exit $e");
  if (ended) {
    INFO(ended->err);
    CHECK(ended->code == 2);
    CHECK_THAT(ended->err, Contains("weights.safetensors would take") && Contains("small' has 16.0 KiB left"));
  }
}

TEST_CASE("under dp one copy of the weights is written, beside the older one", "[folders]") {
  const JobFolder job;
  const Ended plan = run_program(job.path(), {"plan", "job.ini", "--json", "--set", "model.width=128"});
  const auto bytes = boost::json::parse(plan.out).at("disk").at("result_bytes").to_number<std::uint64_t>();
  // What else is written takes less than half of the weights.
  const std::optional<Ended> ended = run_on_small_disk(
      job, std::to_string(2 * bytes + bytes / 2),
      "set -- --set job.output=small/run --set job.ranks=2 --set job.strategy=dp --set model.width=128 --set "
      "train.steps=2; \"$0\" job.ini \"$@\" && \"$0\" job.ini \"$@\"");
  if (ended) {
    INFO(ended->err);
    CHECK(ended->code == 0);
  }
}

TEST_CASE("a disk that fills up is reported as the root cause", "[folders]") {
  const std::string ranks = GENERATE("1", "2");
  const JobFolder job;
  // There is room for the weights, and for a part of metrics.jsonl.
  const std::optional<Ended> ended = run_on_small_disk(
      job, "350k",
      "\"$0\" job.ini --set job.output=small/run --set train.steps=20000 --set train.eval_every=100000 "
      "--set train.log_every=1000 --set job.ranks=" +
          ranks + (ranks == "1" ? "" : " --set job.strategy=dp"));
  if (ended) {
    INFO(ended->out << ended->err);
    CHECK(ended->code == 1);
    CHECK_THAT(ended->err, Contains("cannot write '") && Contains("metrics.jsonl': No space left on device"));
    CHECK_THAT(ended->out, Contains("the run may write"));
  }
}

TEST_CASE("the plan says how large the weights will be, to the byte", "[folders]") {
  const JobFolder job;
  REQUIRE(job.run({"train.steps=1"}).code == 0);
  const boost::json::value plan = boost::json::parse(run_program(job.path(), {"plan", "job.ini", "--json"}).out);
  CHECK(plan.at("disk").at("result") == "weights.safetensors");
  CHECK(plan.at("disk").at("result_bytes").to_number<std::uint64_t>() ==
        std::filesystem::file_size(job.path() / "run/weights.safetensors"));
  CHECK_THAT(run_program(job.path(), {"plan", "job.ini"}).out, Contains("\ndisk: weights.safetensors "));
}

TEST_CASE("a folder that cannot be made is the job's mistake", "[folders]") {
  const JobFolder job;
  for (const std::vector<std::string>& settings : {std::vector<std::string>{"job.output=/proc/none"},
                                                   {"job.output=/dev/null/none"},
                                                   {"job.output=job.ini/none"},
                                                   {"checkpoint.folder=/proc/none"}}) {
    const Ended ended = job.run(settings);
    INFO(settings[0] << ": " << ended.err);
    CHECK(ended.code == 2);
    CHECK_THAT(ended.err, Contains("none"));
  }
}

TEST_CASE("a read-only file system is named", "[folders]") {
  const JobFolder job;
  const std::optional<Ended> ended = run_on_small_disk(
      job, "350k", "mkdir small/run; mount -o remount,ro small; \"$0\" job.ini --set job.output=small/run");
  if (ended) {
    INFO(ended->err);
    CHECK(ended->code == 2);
    CHECK_THAT(ended->err, Contains("Read-only file system; the file system is read-only: choose another folder"));
  }
}
