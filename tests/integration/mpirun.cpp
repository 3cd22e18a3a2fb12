// Ranks that mpirun started.

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "tests/integration/worlds.h"
#include "tests/support/mpirun.h"
#include "tests/support/processes.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
namespace json = boost::json;

namespace {

/// The processes that MPI's launcher has started, itself or through a helper on each machine.
std::vector<pid_t> ranks_of(pid_t launcher) {
  std::vector<pid_t> ranks;
  for (const pid_t child : children_of(launcher)) {
    const std::vector<pid_t> of_helper = children_of(child);
    if (of_helper.empty()) {
      ranks.push_back(child);
    }
    ranks.insert(ranks.end(), of_helper.begin(), of_helper.end());
  }
  return ranks;
}

/// Whether the first rank lives on when another dies. Under MPICH's launcher, Hydra, it may not: that ends all ranks at
/// once, and UCX, over which MPICH sends, aborts a process that was sending to the dead one.
bool outlives_others() { return std::system("'" SHARDRUN_MPIEXEC "' --help 2>&1 | grep -q disable-auto-cleanup") != 0; }

/// Runs a job that does not end by itself. Once it has done a step, `ranks` gets its two ranks, and `meddle` is called.
Ended run_two_under_mpirun(const JobFolder& job, std::vector<pid_t>& ranks,
                           const std::function<void(pid_t launcher)>& meddle) {
  const std::string script = "exec env " + with_sets(mpirun + " -n 2 \"$0\" job.ini", dp("mpi", 2, endless));
  return run_script(job.path(), script, [&](pid_t launcher, std::string_view out) {
    if (ranks.empty() && out.find("step 1/") != std::string_view::npos) {
      ranks = ranks_of(launcher);
      REQUIRE(ranks.size() == 2);
      meddle(launcher);
    }
  });
}

}  // namespace

TEST_CASE("ranks that mpirun started learn over mpi what ranks over shm learn", "[worlds]") {
  if (!has_mpirun()) {
    return;
  }
  const int ranks = GENERATE(2, 3);
  const JobFolder job;

  const Ended ended =
      run_script(job.path(), with_sets(mpirun + " -n " + std::to_string(ranks) + " \"$0\" job.ini", dp("mpi", ranks)));

  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.out, Contains("finished after 30 steps"));
  check_losses(job, losses_over_shm(ranks));
  const json::object summary = job.summary();
  CHECK(summary.at("ranks").as_array().size() == static_cast<std::size_t>(ranks));
  for (const json::value& rank : summary.at("ranks").as_array()) {
    CHECK(rank.at("wire_bytes").to_number<std::uint64_t>() > 0);
    CHECK(rank.at("peak_bytes") == rank.at("planned_bytes"));
  }
  CHECK(std::filesystem::exists(job.path() / "run/log/rank-1.log"));
  CHECK(std::filesystem::exists(job.path() / "run/weights.safetensors"));
}

TEST_CASE("every strategy has the same losses over mpi, and the same bits if the job is deterministic", "[worlds]") {
  if (!has_mpirun()) {
    return;
  }
  const std::vector<std::pair<int, std::vector<std::string>>> splits = {
      {3, {"job.strategy=dp"}},    {3, {"job.strategy=zero1"}},
      {3, {"job.strategy=zero2"}}, {3, {"job.strategy=zero3"}},
      {2, {"job.strategy=tp"}},    {4, {"job.strategy=3d", "mesh.data=2", "mesh.model=2", "strategy.zero=2"}}};
  for (const auto& [ranks, split] : splits) {
    for (const bool deterministic : {false, true}) {
      DYNAMIC_SECTION(split.front() << (deterministic ? ", deterministic" : "")) {
        std::vector<std::string> how = split;
        how.insert(how.end(), {"job.ranks=" + std::to_string(ranks), "train.steps=8",
                               std::string("job.deterministic=") + (deterministic ? "true" : "false")});
        const auto over = [&](const std::string& transport) {
          std::vector<std::string> settings = how;
          settings.push_back("job.transport=" + transport);
          return settings;
        };
        const JobFolder here;
        REQUIRE(here.run(over("shm")).code == 0);
        const JobFolder job;
        const Ended ended =
            run_script(job.path(), with_sets(mpirun + " -n " + std::to_string(ranks) + " \"$0\" job.ini", over("mpi")));

        INFO(ended.err);
        REQUIRE(ended.code == 0);
        check_losses(job, here.losses());
        if (deterministic) {
          const std::string weights = "run/weights.safetensors";
          CHECK((read_file(job.path() / weights) == read_file(here.path() / weights)));
        }
      }
    }
  }
}

TEST_CASE("under mpirun, which gives the first rank a terminal, progress is written in whole lines", "[worlds]") {
  if (!has_mpirun()) {
    return;
  }
  const JobFolder job;
  const Ended ended = run_script(
      job.path(), with_sets("TERM=xterm " + mpirun + " -n 2 \"$0\" job.ini", dp("mpi", 2, {"train.steps=5"})));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.out, Contains("step 1/5") && Contains("\nstep 5/5"));
  CHECK_THAT(ended.out, !Contains("\r"));
}

TEST_CASE("collectives that share a communicator of MPI give the same bits", "[worlds]") {
  if (!has_mpirun()) {
    return;
  }
  std::vector<std::string> how = {"job.strategy=zero3", "job.ranks=3", "train.steps=8", "job.deterministic=true"};
  const JobFolder here;
  REQUIRE(here.run(how).code == 0);
  const JobFolder job;
  how.insert(how.end(), {"job.transport=mpi", "transport.mpi.communicators=2"});

  const Ended ended = run_script(job.path(), with_sets(mpirun + " -n 3 \"$0\" job.ini", how));

  INFO(ended.err);
  REQUIRE(ended.code == 0);
  check_losses(job, here.losses());
  CHECK((read_file(job.path() / "run/weights.safetensors") == read_file(here.path() / "run/weights.safetensors")));
}

TEST_CASE("under mpirun one mesh axis goes over shm and another over mpi", "[worlds]") {
  if (!has_mpirun()) {
    return;
  }
  const std::vector<std::string> how = {"job.strategy=3d", "job.ranks=4", "mesh.data=2",
                                        "mesh.model=2",    "mesh.pipe=1", "train.steps=5"};
  const JobFolder single;
  REQUIRE(single.run({"train.steps=5"}).code == 0);
  const JobFolder job;

  const Ended ended = run_script(job.path(), with_sets(with_sets(mpirun + " -n 4 \"$0\" job.ini", how),
                                                       {"job.transport=mpi", "transport.model=shm"}));

  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const std::vector<double> losses = job.losses();
  const std::vector<double> expected = single.losses();
  REQUIRE(losses.size() == expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    CHECK(losses[i] == Approx(expected[i]).epsilon(1e-4));
  }
}

TEST_CASE("mpi without mpirun is refused with the command to start the job", "[worlds]") {
  if (!has_mpirun()) {
    return;
  }
  const JobFolder job;
  const Ended ended = job.run(dp("mpi", 2));
  CHECK(ended.code == 2);
  CHECK_THAT(ended.err, Catch::StartsWith("shardrun: --set job.transport: ") && Contains("put 'mpirun -n 2' or"));
  CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
}

TEST_CASE("bench and plugins check say how mpi is started", "[worlds]") {
  if (!has_mpirun()) {
    return;
  }
  const JobFolder job;
  const Ended bench = run_program(job.path(), {"bench", "--transport", "mpi", "--ranks", "3"});
  CHECK(bench.code == 2);
  CHECK(bench.out.empty());
  CHECK_THAT(bench.err, Contains("put 'mpirun -n 3' or 'srun -n 3' before this command"));
  const Ended check = run_script(job.path(), "\"$0\" plugins check '" SHARDRUN_PLUGINS "/shardrun_transport_mpi.so'");
  CHECK(check.code == 2);
  CHECK_THAT(check.out, !Contains("FAILED"));
  CHECK_THAT(check.err, Contains("mpirun -n 2 shardrun JOB.ini --set job.transport=mpi"));
}

TEST_CASE("bench measures mpi between the ranks that mpirun started", "[worlds]") {
  if (!has_mpirun()) {
    return;
  }
  const TemporaryFolder folder;
  const auto bench = [&](int ranks, const std::string& words) {
    return run_script(folder.path(), "exec env " + mpirun + " -n " + std::to_string(ranks) + " \"$0\" bench " + words);
  };
  const Ended ended = bench(3, "--transport mpi --op all --sizes 4,20K --iters 3 --json");
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const json::object result = json::parse(ended.out).as_object();
  CHECK(result.at("ranks") == 3);
  CHECK(result.at("rows").as_array().size() > 2 * 12);
  for (const json::value& row : result.at("rows").as_array()) {
    CHECK(row.at("wrong") == 0);
    CHECK(row.at("ranks") == 3);
    CHECK(row.at("time_us").as_double() > 0);
  }
  CHECK(result.at("ceilings").at("socket").as_array().at(0).at("bandwidth").as_double() > 0);

  const Ended table = bench(2, "--transport mpi --sizes 1K --iters 3");
  CHECK(table.code == 0);
  CHECK_THAT(table.out, Contains("2 ranks\n") && Contains("TCP, rank 0 to 1") && Contains("#wrong\nall_reduce "));
  const Ended other = bench(2, "--transport mpi --ranks 3");
  CHECK(other.code == 2);
  CHECK_THAT(other.err, Contains("--ranks 3: mpirun started 2 processes"));
  const Ended lost = bench(2, "--transport shm --sizes 1K");
  CHECK(lost.code == 2);
  CHECK_THAT(lost.err, Contains("bench: mpirun started this process as rank 0 of 2, but no transport"));
}

TEST_CASE("a rank killed under mpirun is named, and no process is left", "[worlds]") {
  if (!has_mpirun()) {
    return;
  }
  const JobFolder job;
  std::vector<pid_t> ranks;

  const Ended ended =
      run_two_under_mpirun(job, ranks, [&](pid_t) { kill(*std::max_element(ranks.begin(), ranks.end()), SIGKILL); });

  CHECK(ended.code != 0);
  for (const pid_t rank : ranks) {
    CHECK(ends_soon(rank));
  }
  if (outlives_others()) {
    CHECK_THAT(ended.err, Contains("rank 1 (pid " + std::to_string(*std::max_element(ranks.begin(), ranks.end()))));
    CHECK(job.summary().at("status") == "failed");
  }
}

TEST_CASE("ranks that mpirun started go on from a checkpoint with the bits of a run without a stop", "[worlds]") {
  if (!has_mpirun()) {
    return;
  }
  const JobFolder job;
  // Dropout, microbatches of different sizes, a moment of the optimizer, clipping, evaluations.
  const std::vector<std::string> settings = dp(
      "mpi", 2,
      {"data.microbatches=3", "model.dropout=0.1", "train.optimizer=sgd", "train.momentum=0.9", "train.weight_decay=0",
       "train.clip=0.5", "train.schedule=constant", "train.eval_every=5", "checkpoint.every=10", "checkpoint.keep=0"});
  const auto run = [&](const std::string& output, int steps, const std::string& words) {
    const Ended ended =
        run_script(job.path(), with_sets(mpirun + " -n 2 \"$0\" job.ini" + words, settings) +
                                   " --set job.output=" + output + " --set train.steps=" + std::to_string(steps));
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    return ended;
  };

  run("whole", 20, "");
  run("parts", 10, "");
  const std::vector<std::string> first = computed_from(job.path() / "parts", 0);
  const Ended second = run("parts", 20, " --resume");

  CHECK_THAT(second.out, Contains("goes on after step 10 from "));
  CHECK(read_json(job.path() / "parts/summary.json").at("steps") == 10);
  const std::vector<std::string> whole = computed_from(job.path() / "whole", 0);
  REQUIRE(whole.size() == 20);
  CHECK(first == std::vector<std::string>(whole.begin(), whole.begin() + 10));
  CHECK(computed_from(job.path() / "parts", 0) == whole);
  CHECK((read_file(job.path() / "parts/weights.safetensors") == read_file(job.path() / "whole/weights.safetensors")));
}

TEST_CASE("SIGTERM to mpirun stops its ranks", "[worlds]") {
  if (!has_mpirun()) {
    return;
  }
  const JobFolder job;
  std::vector<pid_t> ranks;

  const Ended ended = run_two_under_mpirun(job, ranks, [](pid_t launcher) { kill(launcher, SIGTERM); });

  CHECK_THAT(ended.out, !Contains("finished after"));  // the exit code is the launcher's own
  for (const pid_t rank : ranks) {
    CHECK(ends_soon(rank));
  }
}
