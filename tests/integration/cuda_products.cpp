// Jobs on the fake GPUs whose products the fake of cuBLASLt computes.

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/cuda_jobs.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
namespace json = boost::json;
namespace fs = std::filesystem;

TEST_CASE("devices says what multiplies matrices, and why", "[cuda]") {
  const JobFolder job;
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const TemporaryFolder damaged;
  std::ofstream(damaged.path() / "libcublasLt.so.13") << "no library";
  struct Case {
    std::vector<std::string> variables;
    std::string found;
  };
  const std::vector<Case> cases = {
      {by_cublaslt, "cuBLASLt 13.1.0"},
      {{"SHARDRUN_CUDA_PRODUCTS=own"}, "own kernels: SHARDRUN_CUDA_PRODUCTS=own"},
      {{"SHARDRUN_CUDA_PRODUCTS=", by_cublaslt[1], "FAKE_CUBLASLT_VERSION=110501"},
       "own kernels: libcublasLt.so.13 does not fit: it is of version 11.5.1, expected 12.0.0 or newer"},
      {{"SHARDRUN_CUDA_PRODUCTS=", "LD_LIBRARY_PATH=" + damaged.path().string()}, "own kernels: "}};
  for (const Case& each : cases) {
    DYNAMIC_SECTION(each.found) {
      const json::array devices =
          json::parse(fake.run(job.path(), {"devices", "--json"}, each.variables).out).as_array();
      REQUIRE(devices.size() == 3);
      CHECK_THAT(std::string(devices[2].at("bf16_products").as_string()), StartsWith(each.found));
    }
  }
  const std::string unknown = "the variable SHARDRUN_CUDA_PRODUCTS is 'fast'; expected own, cublaslt or unfused";
  for (const char* const driver : {"FAKE_CUDA_DRIVER=13000", "FAKE_CUDA_DRIVER=0"}) {
    const std::vector<std::string> variables = {"SHARDRUN_CUDA_PRODUCTS=fast", driver};
    check_refused(fake.run(job.path(), on_cuda({"job.ini"}), variables), unknown);
    check_refused(fake.run(job.path(), on_cuda({"plan", "job.ini"}), variables), unknown);
    CHECK_THAT(fake.run(job.path(), {"devices"}, variables).out, Contains("\ncuda: not available: " + unknown));
  }
  check_refused(
      fake.run(job.path(), on_cuda({"job.ini"}), {by_cublaslt[0], by_cublaslt[1], "FAKE_CUBLASLT_VERSION=110501"}),
      "asks for cuBLASLt, which cannot be used (libcublasLt.so.13 does not fit");
  CHECK_FALSE(fs::exists(job.path() / "run"));
}

TEST_CASE("jobs with cuBLASLt's products have the cpu's losses and the planned peak of memory", "[cuda]") {
  // cuda_runs.cpp has all strategies. The library that multiplies does not depend on them: tests/run has three jobs,
  // one in mixed precision.
  check_splits(50, {"train.steps=4", "train.eval_every=2", "data.microbatches=3"}, by_cublaslt,
               depth<std::size_t>(1, 5, 5));
}

TEST_CASE("ops after products are fused with them without changing the losses", "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  struct Trained {
    std::vector<double> losses;
    int fused = -1;
  };
  const auto train = [&](const std::string& precision, int steps, const std::string& way) {
    const JobFolder job;
    const fs::path count = job.path() / "fused.txt";
    const std::vector<std::string> settings = {"train.precision=" + precision, fmt::format("train.steps={}", steps),
                                               "train.eval_every=0", "train.schedule=constant", "model.bias=true"};
    const Ended ended =
        fake.run(job.path(), on_cuda({"job.ini"}, settings),
                 {"SHARDRUN_CUDA_PRODUCTS=" + way, by_cublaslt[1], "FAKE_CUBLASLT_FUSED=" + count.string()});
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    Trained trained{.losses = job.losses()};
    std::ifstream(count) >> trained.fused;
    return trained;
  };
  // The products of a step in each layer: four in the forward pass and, in bfloat16, the one before GELU's gradient.
  for (const auto& [precision, products] : {std::pair("float32", 4), std::pair("mixed", 5)}) {
    INFO(precision);
    const Trained fused = train(precision, 3, "cublaslt");
    CHECK(fused.fused - train(precision, 1, "cublaslt").fused == (3 - 1) * 2 * products);
    const Trained unfused = train(precision, 3, "unfused");
    CHECK(unfused.fused == 0);
    REQUIRE(fused.losses.size() == unfused.losses.size());
    for (std::size_t i = 0; i < fused.losses.size(); ++i) {
      CHECK(std::abs(fused.losses[i] - unfused.losses[i]) <= (products == 5 ? 2e-2 : 2e-5));
    }
  }
}

TEST_CASE("a cuBLASLt that does not start ends a job only if the job asked for it", "[cuda]") {
  const JobFolder job;
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const std::vector<std::string> words = on_cuda({"job.ini"}, {"train.steps=2"});
  const std::string why = "starting cuBLASLt 13.1.0: cublasLtCreate returned CUBLAS_STATUS_EXECUTION_FAILED";
  const Ended asked =
      fake.run(job.path(), words, {by_cublaslt[0], by_cublaslt[1], "FAKE_CUBLASLT_FAIL=cublasLtCreate"});
  CHECK(asked.code == 1);
  CHECK_THAT(asked.err, Contains(why));

  const Ended ended =
      fake.run(job.path(), words, {"SHARDRUN_CUDA_PRODUCTS=", by_cublaslt[1], "FAKE_CUBLASLT_FAIL=cublasLtCreate"});

  INFO(ended.err);
  CHECK(ended.code == 0);
  const std::size_t at = ended.err.find(why);
  REQUIRE(at != std::string::npos);
  CHECK_THAT(ended.err.substr(at), Contains(": our own kernels multiply\n"));
  CHECK(ended.err.find(why, at + 1) == std::string::npos);
}

TEST_CASE("the plan is the same with cuBLASLt and without, and a failure of cuBLASLt ends the job", "[cuda]") {
  const JobFolder job;
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const std::vector<std::string> words = on_cuda({"plan", "job.ini", "--json"});
  const std::string plan = fake.run(job.path(), words, by_cublaslt).out;
  CHECK(fake.run(job.path(), words).out == plan);
  std::vector<std::string> failing = by_cublaslt;
  failing.insert(failing.end(), {"FAKE_CUBLASLT_FAIL=cublasLtMatmulPreferenceSetAttribute", "FAKE_CUBLASLT_STATUS=7"});

  const Ended ended = fake.run(job.path(), on_cuda({"job.ini"}), failing);

  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("op matmul (") && Contains("): multiplying f32[") &&
                            Contains("setting an attribute returned CUBLAS_STATUS_INVALID_VALUE"));
}
