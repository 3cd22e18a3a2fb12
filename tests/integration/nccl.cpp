// Whole jobs whose ranks move memory of the device `cuda` by NCCL: real processes with fakes of CUDA and NCCL
// (tests/support/cuda). The fake NCCL moves no other memory, and fails if it is misused.

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/integration/installation.h"
#include "tests/integration/program.h"
#include "tests/integration/split_jobs.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
namespace json = boost::json;
namespace fs = std::filesystem;

namespace {

class NcclInstallation {
 public:
  /// `device`: the GPUs of the ranks.
  [[nodiscard]] Ended run(const fs::path& in, const std::vector<std::string>& words, std::vector<std::string> settings,
                          std::vector<std::string> variables = {}, const std::string& device = "cuda") const {
    settings.emplace_back("job.transport=nccl");
    variables.insert(variables.begin(),
                     {"LD_LIBRARY_PATH=" SHARDRUN_FAKE_LIBRARIES, "FAKE_CUDA_GPUS=4", "FAKE_NCCL_REGISTERED=1"});
    return installed_.run(in, on_cuda(words, std::move(settings), device), variables);
  }

 private:
  Installation installed_{SHARDRUN_FAKE_LIBRARY};
};

std::string seed_of(std::uint64_t number) { return "FAKE_CUDA_SEED=" + std::to_string(number); }

void check_planned(const JobFolder& job) {
  const json::object summary = job.summary();
  for (const json::value& rank : summary.at("ranks").as_array()) {
    CHECK(rank.at("peak_bytes") == rank.at("planned_bytes"));
    CHECK(rank.at("wire_bytes").as_int64() > 0);
  }
}

}  // namespace

TEST_CASE("every strategy trains over NCCL with the cpu's losses and the planned peak of memory", "[nccl]") {
  const NcclInstallation nccl;
  std::vector<SplitJob> jobs = split_jobs(true);
  jobs.push_back({"dp in mixed precision on 3", {"job.strategy=dp", "job.ranks=3", "train.precision=mixed"}});
  jobs.push_back({"zero1 in order on 3", {"job.strategy=zero1", "job.ranks=3", "job.deterministic=true"}});
  jobs.push_back({"hsdp with tcp between replicas",
                  {"job.strategy=hsdp", "job.ranks=4", "mesh.replica=2", "mesh.shard=2", "transport.replica=tcp"}});
  std::uint64_t seed = 1;
  for (const SplitJob& strategy : jobs) {
    DYNAMIC_SECTION(strategy.name) {
      if (strategy.name == "one rank") {
        SUCCEED("it moves nothing");
        continue;
      }
      const JobFolder there;
      const std::vector<std::string> more = {"train.steps=3", "train.eval_every=2", "data.batch=12", "job.timeout=60"};
      std::vector<std::string> settings = strategy.settings;
      settings.insert(settings.end(), more.begin(), more.end());
      const std::vector<double> of_cpu = on_one_rank(strategy, more).losses();

      const Ended ended = nccl.run(there.path(), {"job.ini"}, settings, {seed_of(seed)});

      INFO(ended.err);
      REQUIRE(ended.code == 0);
      CHECK_THAT(ended.err, !Contains("fake NCCL"));
      const std::vector<double> losses = there.losses();
      REQUIRE(losses.size() == of_cpu.size());
      const double allowed = strategy.name.find("mixed precision") == std::string::npos ? 2e-5 : 2e-2;
      for (std::size_t i = 0; i < losses.size(); ++i) {
        CHECK(std::abs(losses[i] - of_cpu[i]) <= allowed);
      }
      check_planned(there);
    }
    ++seed;
  }
}

TEST_CASE("a plan for NCCL needs neither a GPU nor NCCL", "[nccl]") {
  const JobFolder job;
  const Ended ended =
      Installation(SHARDRUN_FAKE_LIBRARY)
          .run(job.path(),
               on_cuda({"run", "job.ini", "--dump", "program"}, {"job.strategy=dp", "job.ranks=3", "data.batch=6",
                                                                 "job.transport=nccl", "job.deterministic=true"}),
               {"FAKE_CUDA_DRIVER=0"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK_THAT(ended.out, Contains("start #0 all_reduce of gradients/final_norm/gain over data: 6801 -> 6801 elements in "
                                 "the device's memory"));
}

TEST_CASE("a job over NCCL has the same bits whatever the order in which streams run", "[nccl]") {
  const NcclInstallation nccl;
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{"job.strategy=zero2", "job.ranks=2"},
        std::vector<std::string>{"job.strategy=3d", "job.ranks=4", "mesh.data=2", "mesh.pipe=2"}}) {
    std::vector<double> first;
    for (std::uint64_t seed = 1; seed <= depth<std::uint64_t>(6, 3, 2); ++seed) {
      const JobFolder job;
      std::vector<std::string> settings = how;
      settings.insert(settings.end(), {"train.steps=2", "data.batch=4", "data.microbatches=2", "job.timeout=60"});
      const Ended ended = nccl.run(job.path(), {"job.ini"}, settings, {seed_of(seed)});
      INFO(ended.err);
      REQUIRE(ended.code == 0);
      first = seed == 1 ? job.losses() : first;
      CHECK(job.losses() == first);
    }
  }
}

TEST_CASE("plan says for each mesh axis whether its transport moves the GPU's memory", "[nccl]") {
  const NcclInstallation nccl;
  const JobFolder job;
  const std::vector<std::string> settings = {"job.strategy=hsdp", "job.ranks=4", "mesh.replica=2", "mesh.shard=2",
                                             "transport.replica=tcp"};

  const Ended text = nccl.run(job.path(), {"plan", "job.ini"}, settings);
  const Ended data = nccl.run(job.path(), {"plan", "job.ini", "--json"}, settings);

  INFO(data.err);
  REQUIRE(data.code == 0);
  CHECK_THAT(text.out, Contains("\nmesh axis replica: transport tcp, through pinned memory of the host\n"
                                "mesh axis shard: transport nccl, from device to device\n"));
  const json::value plan = json::parse(data.out);
  CHECK_FALSE(plan.at("transports").at("replica").at("direct").as_bool());
  CHECK(plan.at("transports").at("shard").at("direct").as_bool());
  CHECK(plan.at("transports").at("shard").at("transport") == "nccl");
}

TEST_CASE("a deterministic job has the same bits over NCCL and over a transport for host memory", "[nccl]") {
  const NcclInstallation nccl;
  for (const char* precision : {"float32", "mixed"}) {
    const std::vector<std::string> settings = {"job.strategy=zero2",     "job.ranks=3",
                                               "job.deterministic=true", "train.steps=3",
                                               "data.batch=6",           std::string("train.precision=") + precision};
    const JobFolder over_nccl;
    const Ended ended = nccl.run(over_nccl.path(), {"job.ini"}, settings);
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    const JobFolder over_host;
    const Ended staged =
        Installation(SHARDRUN_FAKE_LIBRARY).run(over_host.path(), on_cuda({"job.ini"}, settings), {"FAKE_CUDA_GPUS=4"});
    INFO(staged.err);
    REQUIRE(staged.code == 0);
    CHECK(over_nccl.losses() == over_host.losses());
  }
}

TEST_CASE("NCCL streams that do not wait for each other are noticed", "[nccl]") {
  const NcclInstallation nccl;
  const std::vector<std::string> settings = {"job.strategy=zero2", "job.ranks=2", "train.steps=2", "job.timeout=5"};
  const JobFolder sound;
  REQUIRE(nccl.run(sound.path(), {"job.ini"}, settings).code == 0);
  int noticed = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const JobFolder job;
    const Ended ended = nccl.run(job.path(), {"job.ini"}, settings, {"FAKE_CUDA_FORGET=-1", seed_of(seed)});
    noticed += ended.code != 0 || job.losses() != sound.losses() ? 1 : 0;
  }
  CHECK(noticed == 3);
}

TEST_CASE("verify compares a job over NCCL with the reference", "[nccl]") {
  const NcclInstallation nccl;
  const JobFolder job;
  const Ended ended = nccl.run(job.path(), {"verify", "job.ini", "--steps", "2", "--json"},
                               {"job.strategy=tp", "job.ranks=3", "strategy.sequence=true", "job.timeout=60"});
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(json::parse(ended.out).at("passed").as_bool());
}

TEST_CASE("ranks that share a GPU are told what NCCL needs for it, and train when they have it", "[nccl]") {
  const NcclInstallation nccl;
  const std::vector<std::string> settings = {"job.strategy=dp", "job.ranks=2", "train.steps=2", "job.timeout=30"};
  const JobFolder refused;
  const Ended ended = nccl.run(refused.path(), {"job.ini"}, settings, {}, "cuda:1,1");
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("are on one GPU (machine ") && Contains("NCCL_MULTI_RANK_GPU_ENABLE=1"));

  const JobFolder allowed;
  const Ended trained = nccl.run(allowed.path(), {"job.ini"}, settings,
                                 {"FAKE_NCCL_VERSION=23000", "NCCL_MULTI_RANK_GPU_ENABLE=1"}, "cuda:1,1");
  INFO(trained.err);
  CHECK(trained.code == 0);
}

TEST_CASE("an error of a GPU ends a job over NCCL, and names rank, GPU and CUDA's error", "[nccl]") {
  const NcclInstallation nccl;
  const JobFolder job;
  const Ended ended = nccl.run(job.path(), {"job.ini"}, {"job.strategy=dp", "job.ranks=2", "job.timeout=20"},
                               {"FAKE_CUDA_FAIL_AT=900"});
  INFO(ended.err);
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("rank ") && Contains("GPU ") && Contains("an illegal memory access was encountered"));
}

TEST_CASE("a rank that dies ends a job over NCCL and is named", "[nccl]") {
  const NcclInstallation nccl;
  const JobFolder job;
  const Ended ended =
      nccl.run(job.path(), {"job.ini"}, {"job.strategy=dp", "job.ranks=3", "train.steps=100000", "job.timeout=30"},
               {"FAKE_NCCL_KILL=1:40"});  // rank 1, in its 40th launch
  INFO(ended.err);
  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("rank 1 ") && Contains("signal 9"));
}
