// What the program says of jobs and checks with nccl on a machine without a GPU.

#include <string>
#include <vector>

#include "tests/integration/installation.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
namespace json = boost::json;

TEST_CASE("plugins check skips nccl, which does not move host memory, and says whether it opens", "[nccl]") {
  const std::string file = SHARDRUN_PLUGINS "/shardrun_transport_nccl.so";
  const JobFolder folder;
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const std::string why = "it does not move host memory, which is all that these cases have: nothing was checked; ";
  const std::vector<std::string> with_gpus = {"LD_LIBRARY_PATH=" SHARDRUN_FAKE_LIBRARIES};

  const Ended here = fake.run(folder.path(), {"plugins", "check", file, "--json"}, with_gpus);
  const Ended bare = fake.run(folder.path(), {"plugins", "check", file}, {with_gpus[0], "FAKE_CUDA_GPUS=0"});

  CHECK(here.code == 2);
  CHECK_THAT(here.err, Contains("  skipped all cases\n         " + why + "it opens here\nnothing was checked\n"));
  const json::value summary = json::parse(here.out);
  CHECK_FALSE(summary.at("passed").as_bool());
  CHECK(summary.at("problems") == 0);
  REQUIRE(summary.at("cases").as_array().size() == 1);
  CHECK(summary.at("cases").at(0).at("skipped").as_bool());
  CHECK(bare.code == 2);
  CHECK_THAT(bare.out, Contains("  skipped all cases\n         " + why + "nor does it open here: ") &&
                           Contains("this machine has no CUDA device that this process may use") &&
                           EndsWith("\nnothing was checked\n") && !Contains("FAILED") && !Contains("problem"));
}

TEST_CASE("bench refuses nccl, which does not move host memory", "[nccl]") {
  const JobFolder folder;
  const Ended ended = run_program(folder.path(), {"bench", "--transport", "nccl"});
  CHECK(ended.code == 2);
  CHECK(ended.out.empty());
  CHECK_THAT(ended.err, Contains("bench: transport nccl does not move host memory, which is all that bench measures"));
}
