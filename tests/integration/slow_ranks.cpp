// Ranks that hold up the others.

#include <algorithm>
#include <csignal>
#include <future>
#include <numeric>
#include <string>
#include <vector>

#include "tests/integration/processes.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"
#include "tests/support/cores.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
namespace json = boost::json;

namespace {

/// What a run says of a rank that is slow for this cause. On a busy machine others may be slow, too.
json::object slow_rank(const std::filesystem::path& run, int rank, std::string_view cause) {
  const json::object summary = read_json(run / "summary.json");
  REQUIRE(summary.contains("slow_ranks"));
  const json::array& all = summary.at("slow_ranks").as_array();
  const auto* const found = std::find_if(all.begin(), all.end(), [&](const json::value& each) {
    return each.at("rank").to_number<int>() == rank && each.at("cause").as_string() == cause;
  });
  INFO(json::serialize(all));
  REQUIRE(found != all.end());
  return found->as_object();
}

double sum_of(const json::value& numbers, std::size_t rank) { return numbers.as_array()[rank].to_number<double>(); }

/// Checks that ranks.jsonl covers each of the steps once, and returns the seconds of a column by rank.
std::vector<double> seconds_of(const std::filesystem::path& run, const char* column, std::int64_t steps,
                               std::size_t ranks) {
  std::int64_t done = 0;
  std::vector<double> seconds(ranks);
  for (const json::object& line : read_json_lines(run / "ranks.jsonl")) {
    done += line.at("steps").to_number<std::int64_t>();
    CHECK(line.at("step").to_number<std::int64_t>() == done);
    REQUIRE(line.at(column).as_array().size() == ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      seconds[rank] += sum_of(line.at(column), rank);
      CHECK(sum_of(line.at("computing_s"), rank) + sum_of(line.at("exposed_s"), rank) +
                sum_of(line.at("input_s"), rank) ==
            Approx(sum_of(line.at("seconds"), rank)));
    }
  }
  CHECK(done == steps);
  return seconds;
}

}  // namespace

TEST_CASE("a rank that computes longer is named within 21 steps", "[slow]") {
  const TemporaryFolder folder;
  write_file(folder / "job.ini", "[job]\nengine = slow\ntask = iterate\nranks = 3\noutput = run\n[plugins]\npath = " +
                                     std::string(SHARDRUN_SLOW_ENGINES) +
                                     "\n[engine]\nslow_rank = 2\nms = 50\n[iterate]\nsteps = 21\n");

  const Ended ended = run_program(folder.path(), {"job.ini"});

  REQUIRE(ended.code == 0);
  const json::object slow = slow_rank(folder / "run", 2, "compute");
  CHECK(slow.at("first_step").to_number<int>() == 1);
  CHECK(slow.at("last_step").to_number<int>() == 21);
  CHECK_THAT(ended.out + ended.err, Contains(") holds up the others since step 1: "));
  CHECK_THAT(ended.out, Contains(") held up the others in steps 1 to 21 ("));
  const std::vector<double> computing = seconds_of(folder / "run", "computing_s", 21, 3);
  CHECK(computing[2] >= 21 * 0.05);
  CHECK_THAT(read_file(folder / "run/log/rank-0.log"), Contains("holds up the others since step 1: "));
  CHECK(read_json_lines(folder / "run/ranks.jsonl").back().at("slow_ranks") ==
        read_json(folder / "run/summary.json").at("slow_ranks"));
}

TEST_CASE("a rank whose transfers begin late is named within 21 steps", "[slow]") {
  const JobFolder job;

  const Ended ended =
      job.run({"job.strategy=dp", "job.ranks=2", "job.threads=1", "job.transport=chaos", "transport.chaos.rank=1",
               "transport.chaos.delay_ms=40", "train.steps=21", "train.eval_every=0"});

  REQUIRE(ended.code == 0);
  static_cast<void>(slow_rank(job.path() / "run", 1, "transfer"));
  CHECK(seconds_of(job.path() / "run", "exposed_s", 21, 2)[0] > 0);
}

TEST_CASE("a rank with a slow disk is named within 21 steps", "[slow]") {
  const JobFolder job;

  const Ended ended =
      run_script(job.path(), preloading(SHARDRUN_SLOW_DISK) + "TEST_SLOW_RANK=1 TEST_SLOW_MS=10 \"$0\" job.ini" +
                                 " --set job.strategy=dp --set job.ranks=2 --set job.threads=1"
                                 " --set train.steps=21 --set train.eval_every=0");

  REQUIRE(ended.code == 0);
  static_cast<void>(slow_rank(job.path() / "run", 1, "input"));
  CHECK(seconds_of(job.path() / "run", "input_s", 21, 2)[1] >= 21 * 0.01);
}

TEST_CASE("the times for which a rank's process is stopped are those of this rank", "[slow]") {
  const TemporaryFolder folder;
  write_file(folder / "job.ini", "[job]\nengine = slow\ntask = iterate\nranks = 3\noutput = run\n[plugins]\npath = " +
                                     std::string(SHARDRUN_SLOW_ENGINES) +
                                     "\n[engine]\nslow_rank = 1\nms = 10\n[iterate]\nsteps = 80\n");
  std::future<void> stopping;

  const Ended ended = run_program(folder.path(), {"job.ini"}, [&](pid_t launcher, std::string_view) {
    if (!stopping.valid()) {
      stopping = beside(launcher, [launcher] {
        const std::vector<pid_t> ranks = await_children(launcher, 3);
        while (children_of(launcher).size() >= 3) {
          kill(ranks.at(1), SIGSTOP);
          const bool has_ended = ends_within(launcher, 150);
          kill(ranks.at(1), SIGCONT);
          if (has_ended || ends_within(launcher, 100)) {
            return;
          }
        }
      });
    }
  });
  stopping.get();

  REQUIRE(ended.code == 0);
  const std::vector<double> stopped = seconds_of(folder / "run", "stopped_s", 80, 3);
  CHECK(stopped[1] > 0.1);
  CHECK(stopped[1] > std::max(stopped[0], stopped[2]));
  const json::object summary = read_json(folder / "run/summary.json");
  if (summary.contains("slow_ranks")) {
    for (const json::value& slow : summary.at("slow_ranks").as_array()) {
      CHECK((slow.at("cause").as_string() != "stopped" || slow.at("rank").to_number<int>() == 1));
    }
  }
}

TEST_CASE("a rank that has too little of a core is named, although it loses its time within transfers", "[slow]") {
  const std::vector<int> cores = usable_cores();
  if (cores.size() < 2) {
    return;  // no rank would have more of a core than another
  }
  const JobFolder job;
  std::future<void> starving;

  const Ended ended =
      run_program(job.path(),
                  with_settings({"job.ini"}, {"job.strategy=tp", "job.ranks=2", "job.threads=1", "job.transport=tcp",
                                              "train.steps=300", "train.eval_every=0"}),
                  [&](pid_t launcher, std::string_view) {
                    if (!starving.valid()) {
                      starving = beside(launcher, [&cores, launcher] {
                        const std::vector<pid_t> ranks = await_children(launcher, 2);
                        starve_on(cores.front(), ranks.at(1));
                        const Rivals rivals(cores.front(), 1);
                        while (!ends_within(launcher, 1000)) {
                        }
                      });
                    }
                  });
  starving.get();

  REQUIRE(ended.code == 0);
  const std::vector<double> starved = seconds_of(job.path() / "run", "starved_s", 300, 2);
  CHECK(starved[1] > starved[0]);
  static_cast<void>(slow_rank(job.path() / "run", 1, "compute"));
}

TEST_CASE("long messages over tcp are counted with the time in which they came", "[slow]") {
  const JobFolder job;

  const Ended ended = job.run({"job.strategy=dp", "job.ranks=2", "job.threads=1", "job.transport=tcp",
                               "model.width=128", "train.steps=3", "train.eval_every=0"});

  REQUIRE(ended.code == 0);
  const std::vector<double> bytes = seconds_of(job.path() / "run", "arrived_bytes", 3, 2);
  const std::vector<double> seconds = seconds_of(job.path() / "run", "arrived_s", 3, 2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(bytes[rank] >= 3 * 65536);
    CHECK(seconds[rank] > 0);
  }
}
