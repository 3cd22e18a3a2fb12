// What jobs over NCCL are told where there is no GPU.

#include <string>
#include <vector>

#include "tests/integration/installation.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;

TEST_CASE("a refusal of device cuda that advises device cpu also names transports that the cpu can use", "[nccl]") {
  const Installation without_library({});
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const std::vector<std::string> no_driver = {"FAKE_CUDA_DRIVER=0"};
  struct Case {
    const Installation& installation;
    std::vector<std::string> variables;
    std::vector<std::string> settings;
    bool names_transports = true;
  };
  const std::vector<std::string> over_nccl = {"job.ranks=2", "job.strategy=dp", "job.transport=nccl"};
  const std::vector<std::string> mixed = {"job.ranks=4",    "job.strategy=hsdp", "job.transport=gloo",
                                          "mesh.replica=2", "mesh.shard=2",      "transport.shard=nccl"};
  const std::vector<Case> cases = {{without_library, {}, over_nccl},
                                   {fake, no_driver, over_nccl},
                                   {fake, no_driver, mixed},
                                   {fake, {"FAKE_CUDA_WITHOUT=matmul"}, over_nccl},
                                   {fake, no_driver, {"job.ranks=2", "job.strategy=dp", "job.transport=gloo"}, false},
                                   {fake, no_driver, {"job.ranks=1", "job.transport=nccl"}, false}};
  for (const Case& each : cases) {
    const JobFolder job;

    const Ended ended = each.installation.run(job.path(), on_cuda({"job.ini"}, each.settings), each.variables);

    INFO(ended.err);
    CHECK(ended.code == 2);
    CHECK_THAT(ended.err,
               EndsWith(each.names_transports ? "choose device cpu and, in place of nccl, a transport for host memory, "
                                                "such as gloo or shm\n"
                                              : "choose device cpu\n"));
  }
  const JobFolder job;
  CHECK_THAT(
      fake.run(job.path(), on_cuda({"job.ini"}, {"job.ranks=auto", "job.transport=nccl"}), no_driver).err,
      Contains("choose device cpu and, in place of nccl, a transport for host memory, such as gloo or shm. Write "
               "a number, or name the units"));
}
