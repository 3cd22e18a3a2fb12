// Jobs on the fake GPUs that fail: losses that are not finite, and failures of a GPU.

#include <filesystem>
#include <string>
#include <vector>

#include "tests/integration/cuda_jobs.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::Matches;
namespace json = boost::json;
namespace fs = std::filesystem;

TEST_CASE("a loss that is not finite on the fake GPUs ends the job and names the first bad tensor", "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  for (const std::vector<std::string>& variables : {std::vector<std::string>{}, by_cublaslt}) {
    const JobFolder job;
    const Ended ended =
        fake.run(job.path(),
                 on_cuda({"job.ini"}, {"job.strategy=dp", "job.ranks=2", "train.learning_rate=1e15", "train.clip=0"}),
                 variables);
    CHECK(ended.code == 1);
    CHECK_THAT(ended.err, Contains("the loss is NaN; the first tensor that is not finite: layer.0/"));
  }
}

TEST_CASE("a NaN on the fake GPUs is reported in the same words as on the cpu, though it is read a step later",
          "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const std::vector<std::string> settings = {"job.strategy=zero2", "job.ranks=2", "train.learning_rate=1e15",
                                             "train.clip=0", "train.eval_every=0"};
  const JobFolder there;
  const JobFolder here;

  const Ended found = fake.run(there.path(), on_cuda({"job.ini"}, settings));
  const Ended expected = here.run(settings);

  CHECK(found.code == 1);
  const std::size_t at = expected.err.find("step 2: the loss is NaN");
  REQUIRE(at != std::string::npos);
  const std::string words = expected.err.substr(at, expected.err.find(". The parameters", at) - at);
  INFO(found.err);
  CHECK_THAT(found.err, Contains(words));
  CHECK(there.losses().size() == here.losses().size());
  for (const char* rank : {"run/flight/rank-0.jsonl", "run/flight/rank-1.jsonl"}) {
    CHECK(read_json_lines(there.path() / rank).front().at("step") == 3);  // the GPU had the work of this step already
    CHECK(read_json_lines(here.path() / rank).front().at("step") == 2);
  }
}

TEST_CASE("a failing GPU ends the job and names the rank, the GPU, CUDA's error and the ops", "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  struct Case {
    std::string failure;
    std::string text;
  };
  for (const Case& each : {Case{"700", "an illegal memory access was encountered (cudaErrorIllegalAddress); the ops"},
                           Case{"100", "no CUDA-capable device is detected (cudaErrorNoDevice); the ops"},
                           Case{"214", "uncorrectable ECC error encountered (cudaErrorECCUncorrectable); the ops"}}) {
    DYNAMIC_SECTION(each.text) {
      const JobFolder job;
      const Ended ended =
          fake.run(job.path(), on_cuda({"job.ini"}, {"job.strategy=dp", "job.ranks=2", "job.timeout=20"}, "cuda:1,0"),
                   {"FAKE_CUDA_FAIL_AT=900", "FAKE_CUDA_FAILURE=" + each.failure});
      INFO(ended.err);
      CHECK(ended.code == 1);
      CHECK_THAT(ended.err, Contains("rank ") && Contains("GPU ") && Contains("(Fake H200): ") && Contains(each.text) &&
                                Contains(" were not done, with the tensors that they make: "));
      CHECK_THAT(ended.err, Matches("[^]*: [a-z_]+ \\([a-z0-9_./]+\\)[^]*"));
    }
  }
}

TEST_CASE("a job that ended with a failing GPU resumes from its checkpoint on the cpu", "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const JobFolder job;
  const std::vector<std::string> settings = {"job.strategy=dp", "job.ranks=2", "train.steps=200", "checkpoint.every=2"};
  const Ended failed = fake.run(job.path(), on_cuda({"job.ini"}, settings), {"FAKE_CUDA_FAIL_AT=5000"});
  INFO(failed.err);
  REQUIRE(failed.code == 1);
  CHECK_THAT(failed.err, Contains(" (Fake H200): ") && Contains(", with the tensors that they make: "));
  REQUIRE(fs::exists(job.path() / "run/checkpoints"));
  std::vector<std::string> rest = settings;
  rest[2] = "train.steps=40";

  const Ended resumed = fake.run(job.path(), with_settings({"run", "job.ini", "--resume"}, rest));

  INFO(resumed.err);
  CHECK(resumed.code == 0);
  CHECK(job.summary().at("status") == "finished");
  CHECK(job.summary().at("first_step").as_int64() >= 2);
}
