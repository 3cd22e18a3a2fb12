// Plans of jobs on the fake GPUs: memory, ranks and times.

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/integration/cuda_jobs.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
namespace json = boost::json;

TEST_CASE("a plan for CUDA needs no GPU", "[cuda]") {
  const JobFolder job;
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const Ended ended = fake.run(job.path(), on_cuda({"plan", "job.ini", "--json"}, {"job.ranks=2", "job.strategy=dp"}),
                               {"FAKE_CUDA_DRIVER=0"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const json::value plan = json::parse(ended.out);
  const json::object& bytes = plan.at("ranks").at(0).at("bytes").as_object();
  CHECK(bytes.at("host").as_int64() >= bytes.at("gradients").as_int64());
  CHECK(bytes.at("device").as_int64() + bytes.at("host").as_int64() == bytes.at("peak").as_int64());
  CHECK(plan.at("transports").at("data").at("transport") == "shm");
  CHECK_FALSE(plan.at("transports").at("data").at("direct").as_bool());
  CHECK(plan.at("machines") == 1);
  const std::string text =
      fake.run(job.path(), on_cuda({"plan", "job.ini"}, {"job.ranks=2", "job.strategy=dp"}), {"FAKE_CUDA_DRIVER=0"})
          .out;
  CHECK_THAT(text, Contains("\nmesh axis data: transport shm, through pinned memory of the host\n"));
  const std::size_t line = text.find("\npeak on host ");
  REQUIRE(line != std::string::npos);
  CHECK_THAT(text.substr(line, text.find('\n', line + 1) - line),
             Contains(fmt::format(" {} ", bytes.at("host").as_int64())));
}

TEST_CASE("plan predicts with the times measured on the fake GPUs", "[cuda]") {
  const JobFolder job;
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const std::vector<std::string> how = {"job.strategy=pp", "job.ranks=2", "train.steps=6"};
  std::vector<std::string> settings = how;
  settings.emplace_back("job.trace=steps");
  const Ended traced = fake.run(job.path(), on_cuda({"job.ini"}, settings));
  INFO(traced.err);
  REQUIRE(traced.code == 0);
  settings = how;
  settings.emplace_back("cluster.measured=run");

  const Ended plan = fake.run(job.path(), on_cuda({"plan", "job.ini", "--json"}, settings));

  INFO(plan.err);
  REQUIRE(plan.code == 0);
  const json::value planned = json::parse(plan.out);
  CHECK(planned.at("timeline").at("costs") == "measured");
  CHECK(planned.at("predicted").at("step_s").to_number<double>() > 0);
  for (const json::value& stage : planned.at("predicted").at("stages").as_array()) {
    CHECK(stage.at("compute_s").to_number<double>() > 0);
  }
}

TEST_CASE("plan compares a job with the memory of this machine's GPUs, or else with [cluster] memory", "[cuda]") {
  const JobFolder job;
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const auto planned = [&](const std::string& device, const std::vector<std::string>& settings,
                           const std::vector<std::string>& variables) {
    const Ended ended = fake.run(job.path(), on_cuda({"plan", "job.ini"}, settings, device), variables);
    CHECK(ended.code == 0);
    return ended.out;
  };
  CHECK_THAT(planned("cuda", {}, {}), Contains("every rank fits: the fullest, rank 0, needs ") &&
                                          Contains(" of the 1.00 GiB of unit 0 (Fake H200): "));
  CHECK_THAT(planned("cuda:1,1", {}, {}), Contains("rank 0, needs ") && Contains(" of the 1.00 GiB of unit 1 "));
  CHECK_THAT(planned("cuda", {}, {"FAKE_CUDA_MEMORY=65536"}), Contains("1 rank does not fit: the fullest, rank 0"));
  CHECK_THAT(planned("cuda", {}, {"FAKE_CUDA_DRIVER=0"}), !Contains(" fit") && !Contains(" machines"));
  for (const std::string device : {"cuda", "cuda:0,0"}) {
    CHECK_THAT(planned(device, {"job.ranks=3", "job.strategy=dp"}, {"FAKE_CUDA_GPUS=2"}),
               Contains("3 ranks need 2 machines: [job] device = " + device +
                        " has units for 2 on each; a run on this machine alone would be refused\nevery rank fits: "));
  }
  CHECK_THAT(planned("cuda", {"cluster.memory=1GiB"}, {"FAKE_CUDA_DRIVER=0"}),
             Contains(" of the 1.00 GiB of [cluster] memory: "));
}

TEST_CASE("ranks = auto is one rank for each GPU that the job names, or else for each GPU of the machine", "[cuda]") {
  const JobFolder job;
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const auto ranks = [&](const std::string& device, std::vector<std::string> settings, const std::string& variable) {
    settings.emplace_back("job.strategy=dp");
    const Ended ended = fake.run(job.path(), on_cuda({"plan", "job.ini", "--json"}, settings, device), {variable});
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    std::size_t count = 0;
    const json::value plan = json::parse(ended.out);
    for (const json::value& alike : plan.at("ranks").as_array()) {
      count += alike.at("members").as_array().size();
    }
    return count;
  };
  const std::string none = "FAKE_CUDA_DRIVER=0";
  CHECK(ranks("cuda", {"job.ranks=auto"}, "FAKE_CUDA_GPUS=2") == 2);
  CHECK(ranks("cuda", {"job.ranks=auto"}, "FAKE_CUDA_GPUS=4") == 4);
  CHECK(ranks("cuda", {"job.ranks=1..3"}, "FAKE_CUDA_GPUS=4") == 3);
  CHECK(ranks("cuda:0,2,2", {"job.ranks=auto"}, none) == 3);
  CHECK(ranks("cuda", {"job.ranks=auto", "mesh.data=2"}, none) == 2);
  check_refused(
      fake.run(job.path(), on_cuda({"plan", "job.ini"}, {"job.ranks=auto"}), {none}),
      "[job] ranks: there is one for each unit of device cuda, and these cannot be counted: there is no NVIDIA driver");
}

TEST_CASE("plan and run add up the memory of ranks that share a fake GPU", "[cuda]") {
  const JobFolder job;
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const std::vector<std::string> settings = {"job.strategy=dp", "job.ranks=2"};
  const auto planned = [&](const std::vector<std::string>& more, const std::vector<std::string>& variables) {
    std::vector<std::string> all = settings;
    all.insert(all.end(), more.begin(), more.end());
    return json::parse(fake.run(job.path(), on_cuda({"plan", "job.ini", "--json"}, all, "cuda:1,1"), variables).out)
        .at("memory");
  };
  const auto needed = planned({}, {}).at("most").to_number<std::int64_t>();
  const std::string enough = std::to_string(needed);
  const std::string too_little = std::to_string(needed - 1);
  const std::vector<std::string> no_driver = {"FAKE_CUDA_DRIVER=0"};

  const json::value alone = json::parse(fake.run(job.path(), on_cuda({"plan", "job.ini", "--json"})).out).at("memory");
  CHECK(needed > alone.at("most").to_number<std::int64_t>());
  CHECK(planned({}, {"FAKE_CUDA_MEMORY=" + enough}).at("fits").as_bool());
  const json::value over = planned({}, {"FAKE_CUDA_MEMORY=" + too_little});
  CHECK(over.at("ranks_over") == 2);
  CHECK(over.at("rank") == 0);
  CHECK(over.at("sharing") == 2);
  CHECK(over.at("whose") == "unit 1 (Fake H200)");
  CHECK(planned({"cluster.memory=" + enough}, no_driver).at("fits").as_bool());
  CHECK(planned({"cluster.memory=" + too_little}, no_driver).at("ranks_over") == 2);
  check_refused(fake.run(job.path(), on_cuda({"job.ini"}, settings, "cuda:1,1"), {"FAKE_CUDA_MEMORY=" + too_little}),
                "2 ranks do not fit: the fullest, ranks 0, 1 that share a unit, need ");
}
