// The device `cuda` as the program loads it: with no library, with wrong ones, and with one over a fake of CUDA
// (tests/support/cuda).

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/integration/installation.h"
#include "tests/integration/program.h"
#include "tests/integration/split_jobs.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::Matches;
using Catch::Matchers::StartsWith;
namespace json = boost::json;
namespace fs = std::filesystem;

namespace {

void check_refused(const Ended& ended, const std::string& why) {
  INFO(ended.out);
  CHECK(ended.code == 2);
  CHECK_THAT(ended.err, Contains(why));
}

/// The variables with which the fake of cuBLASLt multiplies.
const std::vector<std::string> by_cublaslt = {"SHARDRUN_CUDA_PRODUCTS=cublaslt",
                                              "LD_LIBRARY_PATH=" SHARDRUN_FAKE_CUBLASLT};

/// The losses of a job on the fake GPUs are the cpu's, and it has touched the memory that was planned.
void check_losses(const JobFolder& there, const JobFolder& here, const SplitJob& strategy) {
  const std::vector<double> losses = there.losses();
  const std::vector<double> of_cpu = here.losses();
  REQUIRE(losses.size() == of_cpu.size());
  const double allowed = strategy.name.ends_with("mixed precision") ? 2e-2 : 2e-5;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    CHECK(std::abs(losses[i] - of_cpu[i]) <= allowed);
    CHECK(there.metrics()[i].at("step") == here.metrics()[i].at("step"));
    CHECK(there.metrics()[i].contains("val_loss") == here.metrics()[i].contains("val_loss"));
  }
  const json::object summary = there.summary();
  for (const json::value& rank : summary.at("ranks").as_array()) {
    CHECK(rank.at("peak_bytes") == rank.at("planned_bytes"));
  }
}

}  // namespace

TEST_CASE("a build without a library for CUDA refuses the device, and runs jobs on the cpu", "[cuda]") {
  const JobFolder job;
  const Installation plain({});
  for (const char* command : {"run", "plan", "verify"}) {
    INFO(command);
    check_refused(plain.run(job.path(), on_cuda({command, "job.ini"})),
                  "--set job.device: [job] device: this build has no device 'cuda': there is no library " +
                      (plain.program().parent_path() / "lib/shardrun/libshardrun_cuda.so").string());
  }
  check_refused(plain.run(job.path(), on_cuda({"job.ini"})), "'cmake --build --preset release --target shardrun_cuda'");
  check_refused(plain.run(job.path(), on_cuda({"job.ini"}, {}, "gpu")),
                "no device is called 'gpu' (did you mean 'cuda'?); there are cpu, reference, cuda");
  CHECK_FALSE(fs::exists(job.path() / "run"));
  CHECK(plain.run(job.path(), with_settings({"job.ini"}, {"train.steps=1"})).code == 0);
  CHECK_THAT(plain.run(job.path(), {"devices"}).out,
             Contains("\ncuda: not available: this build has no device 'cuda'"));
  const json::array devices = json::parse(plain.run(job.path(), {"devices", "--json"}).out).as_array();
  REQUIRE(devices.size() == 3);
  CHECK(devices[2].at("name") == "cuda");
  CHECK(devices[2].at("units").as_array().empty());
  CHECK_THAT(std::string(devices[2].at("lacks").as_string()), StartsWith("this build has no device 'cuda'"));
}

TEST_CASE("libraries that do not fit the program are refused", "[cuda]") {
  const JobFolder job;
  check_refused(Installation(SHARDRUN_OTHER_BUILD).run(job.path(), on_cuda({"job.ini"})),
                "is of build 0.0.9-0123456789ab, and this program is of build ");
  check_refused(Installation(job.path() / "corpus.txt").run(job.path(), on_cuda({"job.ini"})), "cannot be loaded: ");
  check_refused(
      Installation(fs::path(SHARDRUN_PLUGINS) / "shardrun_strategy_dp.so").run(job.path(), on_cuda({"job.ini"})),
      "does not export shardrun_device_v1");
  const fs::path copy = job.path() / "copied.so";
  fs::copy_file(SHARDRUN_FAKE_LIBRARY, copy);
  fs::permissions(copy, fs::perms::others_write, fs::perm_options::add);
  check_refused(Installation(copy).run(job.path(), on_cuda({"job.ini"})), "is not trusted: everyone may write to it");
}

TEST_CASE("a machine that lacks something for CUDA is refused with what it lacks", "[cuda]") {
  const JobFolder job;
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  struct Case {
    std::vector<std::string> variables;
    std::string device;
    std::vector<std::string> settings;
    std::string lacks;
  };
  const std::vector<Case> cases = {
      {{"FAKE_CUDA_DRIVER=0"}, "cuda", {}, "there is no NVIDIA driver on this machine (its library libcuda.so.1"},
      {{"FAKE_CUDA_DRIVER=12040"}, "cuda", {}, "it supports CUDA 12.4, and this build needs 13.0: update the driver"},
      {{"FAKE_CUDA_GPUS=0"}, "cuda", {}, "the NVIDIA driver finds no GPU"},
      {{"FAKE_CUDA_CAPABILITY=75"}, "cuda", {}, "has compute capability 7.5, and this build has kernels for 8.0"},
      {{}, "cuda", {"job.ranks=3", "job.strategy=dp"}, "3 ranks are on this machine, which has 0 (Fake H200, "},
      {{}, "cuda:0,7", {}, "cuda:7 is not there; this machine has 0 (Fake H200, compute capability 9.0), 1 (Fake"},
      {{}, "cuda:1", {"job.ranks=2", "job.strategy=dp"}, "cuda:1 names the units of 1: name one for each rank"},
      {{}, "cuda:", {}, "expected the numbers of units after the colon, such as cuda:0,2; found 'cuda:'"},
      {{}, "cuda:1,", {}, "found 'cuda:1,'"},
      {{}, "cpu:0", {}, "device cpu has no units to choose from: write cpu alone"},
      {{"FAKE_CUDA_MEMORY=65536"}, "cuda", {}, "1 rank does not fit: the fullest, rank 0, needs "},
      {{"FAKE_CUDA_WITHOUT=matmul"},
       "cuda",
       {},
       "this build has no kernels of device cuda for these ops of the job: matmul: choose device cpu"}};
  for (const Case& each : cases) {
    DYNAMIC_SECTION(each.lacks) {
      const Ended ended = fake.run(job.path(), on_cuda({"job.ini"}, each.settings, each.device), each.variables);

      check_refused(ended, each.lacks);
      CHECK_FALSE(fs::exists(job.path() / "run"));
    }
  }
}

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
  const std::string text =
      fake.run(job.path(), on_cuda({"plan", "job.ini"}, {"job.ranks=2", "job.strategy=dp"}), {"FAKE_CUDA_DRIVER=0"})
          .out;
  CHECK_THAT(text, Contains("\nmesh axis data: transport shm, through pinned memory of the host\n") &&
                       Contains(fmt::format("\npeak on host {:>19}", bytes.at("host").as_int64())));
}

TEST_CASE("the GPUs are listed", "[cuda]") {
  const JobFolder job;
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  CHECK_THAT(
      fake.run(job.path(), {"devices"}).out,
      Contains("\ncuda (2 units): computes in f32, bf16; bf16 products: own kernels: SHARDRUN_CUDA_PRODUCTS=own; "
               "attention and convolutions: own kernels: SHARDRUN_CUDA_DNN=own; not addressable by the host\n"
               "    cuda:0 Fake H200, 1.00 GiB, compute capability 9.0\n    cuda:1 Fake H200"));
  const json::array devices = json::parse(fake.run(job.path(), {"devices", "--json"}).out).as_array();
  REQUIRE(devices.size() == 3);
  CHECK(devices[2].at("lacks").is_null());
  CHECK(devices[2].at("units").as_array().size() == 2);
  CHECK(devices[2].at("units").at(1).at("memory") == 1 << 30);
}

TEST_CASE("devices says what multiplies, and why", "[cuda]") {
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
  const std::string unknown =
      "the variable SHARDRUN_CUDA_PRODUCTS is 'fast'; expected own, cublaslt, unpadded or unfused";
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

namespace {

/// Jobs of all strategies with these settings. Each has a seed of its own, from `seed` on.
void check_splits(std::uint64_t seed, const std::vector<std::string>& more, std::vector<std::string> variables) {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  variables.emplace_back();
  for (const SplitJob& strategy : split_jobs()) {
    DYNAMIC_SECTION(strategy.name) {
      const JobFolder there;
      const JobFolder here;
      std::vector<std::string> settings = strategy.settings;
      settings.insert(settings.end(), more.begin(), more.end());
      variables.back() = "FAKE_CUDA_SEED=" + std::to_string(seed);

      const Ended ended = fake.run(there.path(), on_cuda({"job.ini"}, settings, "cuda:0,0,1,1"), variables);
      const Ended expected = here.run(settings);

      INFO(ended.err);
      REQUIRE(ended.code == 0);
      REQUIRE(expected.code == 0);
      check_losses(there, here, strategy);
    }
    ++seed;
  }
}

}  // namespace

TEST_CASE("jobs whose products are the library's have the cpu's losses, and touch what was planned", "[cuda]") {
  check_splits(50, {"train.steps=4", "train.eval_every=2", "data.microbatches=3"}, by_cublaslt);
}

TEST_CASE("ops after products are fused with them, and the losses are those without", "[cuda]") {
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
  // A step's products of each layer: four of the forward pass, and in bfloat16 the one before GELU's gradient.
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

TEST_CASE("a library of products that does not start ends a job only if it was asked for", "[cuda]") {
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

TEST_CASE("a job has the same plan whatever multiplies, and the library's failure ends it", "[cuda]") {
  const JobFolder job;
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const std::vector<std::string> words = on_cuda({"plan", "job.ini", "--json"});
  const std::string plan = fake.run(job.path(), words, by_cublaslt).out;
  CHECK(fake.run(job.path(), words).out == plan);
  std::vector<std::string> failing = by_cublaslt;
  failing.insert(failing.end(), {"FAKE_CUBLASLT_FAIL=cublasLtMatmulAlgoGetHeuristic", "FAKE_CUBLASLT_STATUS=7"});

  const Ended ended = fake.run(job.path(), on_cuda({"job.ini"}), failing);

  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("op matmul (") && Contains("): multiplying f32[") &&
                            Contains("cublasLtMatmulAlgoGetHeuristic returned CUBLAS_STATUS_INVALID_VALUE"));
}

TEST_CASE("every strategy trains on the fake GPUs with the cpu's losses, and touches what was planned", "[cuda]") {
  check_splits(1, {"train.steps=6", "train.eval_every=3", "data.microbatches=3"}, {});
}

TEST_CASE("a job has the same bits in every order in which streams may run", "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  for (const bool by_library : {false, true}) {
    std::vector<double> first;
    for (int seed = 1; seed <= (by_library ? 5 : 20); ++seed) {
      const JobFolder job;
      std::vector<std::string> variables = by_library ? by_cublaslt : std::vector<std::string>{};
      variables.push_back("FAKE_CUDA_SEED=" + std::to_string(seed));
      const Ended ended =
          fake.run(job.path(),
                   on_cuda({"job.ini"}, {"job.strategy=zero2", "job.ranks=2", "train.steps=2", "data.microbatches=2"}),
                   variables);
      INFO(ended.err);
      REQUIRE(ended.code == 0);
      first = seed == 1 ? job.losses() : first;
      CHECK(job.losses() == first);
    }
  }
}

TEST_CASE("streams that do not wait for each other give other numbers", "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const std::vector<std::string> words =
      on_cuda({"job.ini"}, {"job.strategy=zero2", "job.ranks=2", "train.steps=2", "job.timeout=3"});
  const JobFolder sound;
  REQUIRE(fake.run(sound.path(), words).code == 0);
  int noticed = 0;
  for (int seed = 1; seed <= 3; ++seed) {
    const JobFolder job;
    const Ended ended = fake.run(job.path(), words, {"FAKE_CUDA_FORGET=-1", "FAKE_CUDA_SEED=" + std::to_string(seed)});
    noticed += ended.code != 0 || job.losses() != sound.losses() ? 1 : 0;
  }
  CHECK(noticed == 3);
}

TEST_CASE("verify compares a split job on the fake GPUs with the reference", "[cuda]") {
  const JobFolder job;
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const Ended ended = fake.run(
      job.path(), on_cuda({"verify", "job.ini", "--steps", "2", "--json"}, {"job.strategy=zero3", "job.ranks=2"}));
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  CHECK(json::parse(ended.out).at("passed").as_bool());
}

TEST_CASE("plan predicts with the times that the fake GPUs took", "[cuda]") {
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

TEST_CASE("a loss on the fake GPUs that is not finite ends the job with the first tensor", "[cuda]") {
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

TEST_CASE("a NaN on the fake GPUs is told in the cpu's words though the host reads it later", "[cuda]") {
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
    CHECK(read_json_lines(there.path() / rank).front().at("step") == 3);  // the GPU had been given it
    CHECK(read_json_lines(here.path() / rank).front().at("step") == 2);
  }
}

TEST_CASE("a job on the fake GPUs that has less time than the least margin ends after the first agreement, and saves",
          "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  for (const std::vector<std::string>& ranks : {std::vector<std::string>{"job.ranks=1"},
                                                {"job.ranks=1", "job.restarts=1"},
                                                {"job.ranks=2", "job.strategy=dp"}}) {
    INFO(fmt::format("{}", fmt::join(ranks, " ")));
    std::vector<std::string> settings = ranks;
    settings.insert(settings.end(), {"train.steps=100000", "train.eval_every=0", "job.time_limit=1"});
    settings.emplace_back("checkpoint.every=50000");
    const JobFolder job;

    const Ended ended = fake.run(job.path(), on_cuda({"job.ini"}, settings));

    INFO(ended.err);
    CHECK(ended.code == 75);
    CHECK_THAT(ended.out, Contains("[job] time_limit"));
    CHECK(job.summary().at("steps") == 2);  // the second was begun before the first was read
    CHECK(job.summary().at("checkpoints").at("last_step") == 2);
  }
}

TEST_CASE("a job on the fake GPUs that is asked to stop saves all steps that it has begun, and goes on from there",
          "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  for (const char* ranks : {"job.ranks=1", "job.ranks=2"}) {
    INFO(ranks);
    std::vector<std::string> settings = {ranks, "train.steps=100000", "train.schedule=constant", "train.log_every=1",
                                         "checkpoint.every=50000"};
    if (settings.front() == "job.ranks=2") {
      settings.emplace_back("job.strategy=dp");
    }
    const JobFolder job;
    bool asked = false;
    const Ended stopped =
        fake.run(job.path(), on_cuda({"job.ini"}, settings), {}, [&](pid_t process, std::string_view out) {
          if (!asked && out.find("step 5/") != std::string_view::npos) {
            asked = ::kill(process, SIGTERM) == 0;
          }
        });
    REQUIRE(asked);
    INFO(stopped.err);
    CHECK(stopped.code == 75);
    const std::size_t steps = job.metrics().size();
    CHECK(job.summary().at("steps") == steps);
    for (std::size_t i = 0; i < steps; ++i) {
      CHECK(job.metrics()[i].at("step") == i + 1);
    }
    settings[1] = "train.steps=" + std::to_string(steps + 4);

    const Ended resumed = fake.run(job.path(), on_cuda({"run", "job.ini", "--resume"}, settings));

    INFO(resumed.err);
    CHECK(resumed.code == 0);
    CHECK(job.summary().at("first_step") == steps);
  }
}

TEST_CASE("one rank on a fake GPU that may be restarted runs to its end", "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const JobFolder job;
  const Ended trained =
      fake.run(job.path(), on_cuda({"job.ini"}, {"job.restarts=1", "checkpoint.every=50", "train.steps=5"}));
  INFO(trained.err);
  CHECK(trained.code == 0);
  CHECK(job.summary().at("status") == "finished");
  CHECK(job.metrics().size() == 5);
  write_file(job.path() / "heat.ini",
             "[job]\ntask = iterate\noutput = heat\n[model]\nname = heat1d\ncells = 103\n[iterate]\nsteps = 20\n");

  const Ended iterated = fake.run(job.path(), on_cuda({"heat.ini"}, {"job.restarts=1", "checkpoint.every=50"}));

  INFO(iterated.err);
  CHECK(iterated.code == 0);
  CHECK(read_json(job.path() / "heat/summary.json").at("steps") == 20);
}

TEST_CASE("plan says whether a job fits the GPUs of this machine, or [cluster] memory where there are none", "[cuda]") {
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
               Contains("3 ranks need 2 machines: [job] device = " + device + " has units for 2 on each\n"));
  }
  CHECK_THAT(planned("cuda", {"cluster.memory=1GiB"}, {"FAKE_CUDA_DRIVER=0"}),
             Contains(" of the 1.00 GiB of [cluster] memory: "));
}

TEST_CASE("ranks = auto is one rank for each GPU that the job names, or that there are", "[cuda]") {
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

TEST_CASE("plan and a run sum what the ranks that share a fake GPU need of it", "[cuda]") {
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

TEST_CASE("verify --in-process runs the ranks of every strategy on one fake GPU, and needs no processes", "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  for (const SplitJob& strategy : split_jobs()) {
    DYNAMIC_SECTION(strategy.name) {
      const JobFolder job;
      const std::vector<std::string> words = {"verify", "job.ini", "--steps", "2", "--json", "--in-process"};
      std::vector<std::string> settings = strategy.settings;
      settings.emplace_back("data.batch=4");

      const Ended ended = fake.run(job.path(), on_cuda(words, settings, "cuda:0,0,0,0"), {"FAKE_CUDA_GPUS=1"});

      INFO(ended.err);
      REQUIRE(ended.code == 0);
      CHECK(json::parse(ended.out).at("passed").as_bool());
      CHECK_THAT(ended.err, !Contains("starting "));
    }
  }
  const JobFolder job;
  const Ended failed = fake.run(
      job.path(), on_cuda({"verify", "job.ini", "--in-process"}, {"job.strategy=dp", "job.ranks=2"}, "cuda:0,0"),
      {"FAKE_CUDA_FAIL_AT=500"});
  CHECK(failed.code == 1);
  CHECK_THAT(failed.err, Contains("cudaErrorIllegalAddress"));
}

TEST_CASE("a failure of a GPU ends the job with the rank, the GPU, CUDA's words and the ops", "[cuda]") {
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

TEST_CASE("a job that a failed GPU has ended goes on from its checkpoint on the cpu", "[cuda]") {
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

#if defined(SHARDRUN_CUDA_LIBRARY)
TEST_CASE("the library of this build loads where there is no driver, and says so", "[cuda]") {
  if (fs::exists("/dev/nvidiactl")) {
    WARN("this machine has a driver");
    return;
  }
  const JobFolder job;
  const Installation real(SHARDRUN_CUDA_LIBRARY);
  CHECK_THAT(real.run(job.path(), {"devices"}).out, Contains("\ncuda: not available: there is no NVIDIA driver"));
  CHECK(real.run(job.path(), with_settings({"job.ini"}, {"train.steps=1"})).code == 0);
  CHECK(real.run(job.path(), on_cuda({"job.ini"})).code == 2);
}
#endif
