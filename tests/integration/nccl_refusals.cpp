// The checks and measurements of the transport nccl on a machine without a GPU, and over fakes of GPUs.

#include <set>
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

TEST_CASE("bench measures nccl in the memory of GPUs, and is refused where there are none", "[nccl]") {
  const JobFolder folder;
  const Installation installed(SHARDRUN_FAKE_LIBRARY);
  const std::vector<std::string> words = {"bench", "--transport", "nccl",    "--ranks", "3",
                                          "--op",  "all",         "--sizes", "4,10000", "--iters",
                                          "2",     "--timeout",   "20",      "--json"};
  const std::vector<std::string> fakes = {"LD_LIBRARY_PATH=" SHARDRUN_FAKE_LIBRARIES, "FAKE_NCCL_REGISTERED=1"};
  const auto with_gpus = [&](const char* number) {
    std::vector<std::string> variables = fakes;
    variables.push_back(std::string("FAKE_CUDA_GPUS=") + number);
    return installed.run(folder.path(), words, variables);
  };
  const Ended measured = with_gpus("3");
  INFO(measured.err);
  REQUIRE(measured.code == 0);
  const json::object report = json::parse(measured.out).as_object();
  std::set<std::string> ops;
  for (const json::value& row : report.at("rows").as_array()) {
    ops.insert(std::string(row.at("op").as_string()));
    CHECK(row.at("wrong") == 0);
  }
  CHECK(ops.size() == 13);
  const Ended none = with_gpus("0");
  CHECK(none.code == 2);
  CHECK_THAT(none.err, Contains("the NVIDIA driver finds no GPU that this process may use"));
}
