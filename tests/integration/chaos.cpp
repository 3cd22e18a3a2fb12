#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/processes.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
namespace json = boost::json;

namespace {

/// The settings of a job of dp over the transport chaos, which disturbs the transport `over`.
std::vector<std::string> disturbed(const std::string& over, int ranks, const std::vector<std::string>& faults) {
  std::vector<std::string> settings = {"job.strategy=dp",
                                       "job.transport=chaos",
                                       "job.ranks=" + std::to_string(ranks),
                                       "job.threads=1",
                                       "job.timeout=2",
                                       "train.log_every=1",
                                       "train.eval_every=0",
                                       "transport.chaos.over=" + over};
  for (const std::string& fault : faults) {
    settings.push_back(
        fault.find('.') == std::string::npos || fault.find('.') > fault.find('=') ? "transport.chaos." + fault : fault);
  }
  return settings;
}

/// Runs the job. Checks that its ranks are gone when it has ended, and that nothing of theirs is left.
Ended run_to_its_end(const JobFolder& job, const std::vector<std::string>& settings) {
  Ended ended = run_program(job.path(), with_settings({"job.ini"}, settings));
  CHECK(ranks_below(job.path()).empty());
  if (ended.code == 1) {
    REQUIRE(std::filesystem::exists(job.path() / "run/flight"));
    for (const auto& record : std::filesystem::directory_iterator(job.path() / "run/flight")) {
      const std::vector<json::object> lines = read_json_lines(record.path());
      REQUIRE_FALSE(lines.empty());
      CHECK(is_gone(lines.front().at("pid").to_number<pid_t>()));
    }
  }
  CHECK(left_of({}).empty());
  for (const auto& entry : std::filesystem::directory_iterator(job.path() / "run")) {
    CHECK_THAT(entry.path().filename().string(), !Contains("tmp"));
  }
  return ended;
}

std::string error_in_summary(const JobFolder& job) { return std::string(job.summary().at("error").as_string()); }

/// An op some steps into the run. Every step has two ops: the sum of gradients, and the agreement on going on.
constexpr const char* at_op = "at_op=9";

const std::string over[] = {"shm", "tcp"};

}  // namespace

TEST_CASE("chaos without a fault changes no loss and no sent byte", "[chaos]") {
  for (const std::string& transport : over) {
    INFO(transport);
    const JobFolder plain;
    const JobFolder job;
    std::vector<std::string> settings = disturbed(transport, 2, {});
    REQUIRE(plain
                .run({"job.strategy=dp", "job.transport=" + transport, "job.ranks=2", "job.threads=1",
                      "train.eval_every=0"})
                .code == 0);

    const Ended ended = run_to_its_end(job, settings);

    CHECK(ended.code == 0);
    CHECK(ended.err.empty());
    CHECK(job.losses() == plain.losses());
    CHECK(job.summary().at("ranks").as_array()[0].as_object().at("sent_bytes") ==
          plain.summary().at("ranks").as_array()[0].as_object().at("sent_bytes"));
  }
}

TEST_CASE("ranks that start ops late have the same losses", "[chaos]") {
  for (const std::string& transport : over) {
    INFO(transport);
    const JobFolder plain;
    const JobFolder job;
    REQUIRE(plain
                .run({"job.strategy=dp", "job.transport=" + transport, "job.ranks=2", "job.threads=1",
                      "train.eval_every=0", "train.steps=5"})
                .code == 0);

    const Ended ended = run_to_its_end(job, disturbed(transport, 2, {"delay_ms=3", "rank=1", "train.steps=5"}));

    INFO(ended.err);
    CHECK(ended.code == 0);
    CHECK(job.losses() == plain.losses());
    CHECK_THAT(ended.out, Contains("rank 1 starts every op 3 ms late") && !Contains("rank 0 starts every op"));
  }
}

TEST_CASE("a fault that never happened is reported", "[chaos]") {
  for (const char* fault : {"kill_rank=1", "stall=true"}) {
    INFO(fault);
    const JobFolder job;
    std::vector<std::string> settings = {fault, "at_op=1000000", "train.steps=3"};
    if (std::string(fault) == "stall=true") {
      settings.emplace_back("rank=1");
    }

    const Ended ended = job.run(disturbed("shm", 2, settings));

    CHECK(ended.code == 0);
    CHECK_THAT(ended.out,
               Contains("nothing has happened: rank 1 has started ") && Contains("ops, fewer than at_op = 1000000"));
  }
  const JobFolder job;
  std::vector<std::string> apart =
      disturbed("shm", 4, {"drop_peer=3", "rank=0", "at_op=2", "train.steps=3", "mesh.data=2", "mesh.model=2"});
  std::replace(apart.begin(), apart.end(), std::string("job.strategy=dp"), std::string("job.strategy=3d"));
  const Ended ended = job.run(apart);
  INFO(ended.err);
  CHECK(ended.code == 0);
  CHECK_THAT(ended.out, Contains(" ops, none of which was with rank 3 from at_op = 2 on"));
}

TEST_CASE("a rank that dies at an op is the root cause, with that op", "[chaos]") {
  for (const std::string& transport : over) {
    for (const char* victim : {"0", "1"}) {
      INFO(transport << ", rank " << victim);
      const JobFolder job;

      const Ended ended = run_to_its_end(job, disturbed(transport, 3, {std::string("kill_rank=") + victim, at_op}));

      CHECK(ended.code == 1);
      CHECK_THAT(error_in_summary(job), StartsWith(std::string("rank ") + victim + " (pid ") && Contains("SIGKILL") &&
                                            Contains("at its op 9, all_reduce"));
      CHECK_THAT(ended.err, Contains("shardrun: " + error_in_summary(job)));
      CHECK(job.summary().at("steps").to_number<int>() < 9);
    }
  }
}

TEST_CASE("the flight records of a failed pipeline identify each operation by group and number", "[chaos]") {
  const JobFolder job;
  std::vector<std::string> settings =
      disturbed("tcp", 2, {"mesh.pipe=2", "data.microbatches=3", "kill_rank=1", "at_op=40"});
  std::replace(settings.begin(), settings.end(), std::string("job.strategy=dp"), std::string("job.strategy=3d"));

  const Ended ended = run_to_its_end(job, settings);

  REQUIRE(ended.code == 1);
  for (const char* rank : {"0", "1"}) {
    INFO("rank " << rank);
    const std::vector<json::object> lines =
        read_json_lines(job.path() / "run/flight" / (std::string("rank-") + rank + ".jsonl"));
    REQUIRE(lines.size() > 20);
    std::set<std::string> groups;
    std::set<std::pair<std::string, int>> operations;
    for (auto line = lines.begin() + 1; line != lines.end(); ++line) {
      const std::string group(line->at("group").as_string());
      groups.insert(group);
      INFO(group << ", " << line->at("number_in_group"));
      CHECK(operations.emplace(group, line->at("number_in_group").to_number<int>()).second);
    }
    CHECK(groups == std::set<std::string>{"pipe", "pipe/0-1/forward", "pipe/1-0/backward"});
  }
}

TEST_CASE("a step whose validation fails is not counted in the summary", "[chaos]") {
  std::string places;
  for (int op = 1; op < 9; ++op) {
    INFO("op " << op);
    const JobFolder job;
    std::vector<std::string> settings = disturbed("tcp", 2, {"kill_rank=1", "at_op=" + std::to_string(op)});
    std::replace(settings.begin(), settings.end(), std::string("train.eval_every=0"),
                 std::string("train.eval_every=1"));

    const Ended ended = run_to_its_end(job, settings);

    CHECK(ended.code == 1);
    CHECK(job.summary().at("steps").to_number<std::size_t>() == job.metrics().size());
    places += ended.err;
  }
  CHECK_THAT(places, Contains("(training)") && Contains("(validating)"));
}

TEST_CASE("a rank that stalls is named as the cause by the ranks that wait for it", "[chaos]") {
  for (const std::string& transport : over) {
    INFO(transport);
    const JobFolder job;

    const Ended ended = run_to_its_end(job, disturbed(transport, 3, {"stall=true", "rank=1", at_op}));

    CHECK(ended.code == 1);
    CHECK_THAT(error_in_summary(job), StartsWith("rank 1 (pid ") && Contains("does not answer other ranks") &&
                                          Contains("all_reduce") && Contains(" member 1 (rank 1"));
    CHECK_THAT(ended.out, Contains("rank 1, from its op 9 on, all_reduce") && Contains("starts nothing any more"));
  }
}

TEST_CASE("two ranks that lose each other are both named", "[chaos]") {
  for (const std::string& transport : over) {
    INFO(transport);
    const JobFolder job;

    const Ended ended = run_to_its_end(job, disturbed(transport, 2, {"drop_peer=0", "rank=1", at_op}));

    CHECK(ended.code == 1);
    CHECK_THAT(error_in_summary(job), Contains("rank 0 (") && Contains("rank 1 (") && Contains("all_reduce") &&
                                          Contains("past its deadline, waiting for member"));
    CHECK_THAT(ended.out, Contains("rank 1, from its op 9 on") && Contains("goes to and comes from rank 0"));
  }
}

TEST_CASE("a flipped bit on one rank changes the losses, and verify finds it", "[chaos]") {
  for (const std::string& transport : over) {
    INFO(transport);
    const JobFolder plain;
    const JobFolder job;
    const std::vector<std::string> corrupt = {"corrupt=true", "rank=0", "at_op=1", "train.steps=5",
                                              "job.check_every=-1"};
    REQUIRE(plain
                .run({"job.strategy=dp", "job.transport=" + transport, "job.ranks=2", "job.threads=1",
                      "train.eval_every=0", "train.steps=5"})
                .code == 0);

    const Ended ended = run_to_its_end(job, disturbed(transport, 2, corrupt));

    CHECK(ended.code == 0);
    CHECK_THAT(ended.out, Contains("rank 0 flips a bit of element "));
    CHECK(job.losses() != plain.losses());
    CHECK(job.summary().at("checks") == 0);
    const std::vector<std::string> words = {"verify", "job.ini", "--steps", "2", "--json"};
    const Ended verified = run_program(job.path(), with_settings(words, disturbed(transport, 2, corrupt)));
    CHECK(verified.code == 1);
    CHECK_FALSE(json::parse(verified.out).as_object().at("passed").as_bool());
    CHECK(run_program(job.path(), with_settings(words, disturbed(transport, 2, {"train.steps=5"}))).code == 0);
  }
}

TEST_CASE("the transport below takes its own options and has its own section", "[chaos]") {
  const JobFolder job;
  const auto refused = [&](const std::vector<std::string>& faults, const std::string& transport = "tcp") {
    const Ended ended = job.run(disturbed(transport, 2, faults));
    CHECK(ended.code == 2);
    CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
    return ended.err;
  };
  CHECK_THAT(refused({"transport.tcp.nothing=1"}), Contains("the transport 'tcp' has no key 'nothing'"));
  CHECK_THAT(refused({"transport.shm.nothing=1"}), Contains("[transport.shm] has no effect"));
  CHECK_THAT(refused({}, "pigeon"), Contains("there is no transport plugin 'pigeon'"));
  CHECK_THAT(refused({"kill_rank=1"}), Contains("transport chaos, configuring") && Contains("no at_op"));
  CHECK_THAT(refused({"kill_rank=2", "at_op=1"}), Contains("the job has ranks 0 to 1"));
  CHECK_THAT(refused({"kil_rank=2"}), Contains("did you mean 'kill_rank'?"));
}

TEST_CASE("a transport that moves no host memory is listed, and refused before any process starts", "[chaos]") {
  const JobFolder job;
  if (run_program(job.path(), {"plugins"}).out.find("transport nccl ") == std::string::npos) {
    WARN("transport nccl was not built here");
    return;
  }
  for (const std::vector<std::string>& settings :
       {std::vector<std::string>{"job.strategy=dp", "job.ranks=2", "job.transport=nccl"}, disturbed("nccl", 2, {})}) {
    const Ended ended = job.run(settings);
    CHECK(ended.code == 2);
    CHECK_THAT(ended.err, StartsWith("shardrun: --set job.transport: ") &&
                              Contains("does not move host memory, where this job's tensors are: choose another"));
    CHECK_FALSE(std::filesystem::exists(job.path() / "run"));
  }
  const Ended of_axis = job.run({"job.strategy=dp", "job.ranks=2", "mesh.data=2", "transport.data=nccl"});
  CHECK(of_axis.code == 2);
  CHECK_THAT(of_axis.err, StartsWith("shardrun: --set transport.data: transport nccl does not move host memory"));
}

TEST_CASE("a third party's transport can be disturbed too", "[chaos]") {
  for (const char* transport : {"plain_tcp", "timed"}) {
    INFO(transport);
    const JobFolder job;

    const Ended ended =
        run_to_its_end(job, disturbed(transport, 2, {"kill_rank=1", at_op, "plugins.path=" SHARDRUN_EXAMPLES}));

    CHECK(ended.code == 1);
    CHECK_THAT(error_in_summary(job), StartsWith("rank 1 (pid ") && Contains("SIGKILL") && Contains("at its op 9"));
  }
}
