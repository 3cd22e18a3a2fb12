// Jobs of a convolutional network, and of one with attention, on the device `cuda`, over fakes of CUDA and of cuDNN.

#include <algorithm>
#include <string>
#include <vector>

#include "tests/integration/example_programs.h"
#include "tests/integration/images.h"
#include "tests/integration/installation.h"
#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
namespace json = boost::json;

namespace {

/// The variables that let the fake of cuDNN compute convolutions.
const std::vector<std::string> by_cudnn = {"SHARDRUN_CUDA_DNN=cudnn", "LD_LIBRARY_PATH=" SHARDRUN_FAKE_CUDNN};

std::vector<std::string> settings_of(const std::filesystem::path& folder, std::vector<std::string> split) {
  split.push_back("data.arrays=" + (folder / "x.npy").string() + ", " + (folder / "y.npy").string());
  for (const char* const setting : {"model.rows=13", "model.channels=6", "data.batch=20", "data.microbatches=2",
                                    "train.steps=4", "job.output=out"}) {
    split.emplace_back(setting);
  }
  return split;
}

/// The arguments with which the program on fake GPUs runs conv_net.
std::vector<std::string> network(const std::string& command, std::vector<std::string> settings) {
  settings.emplace_back("plugins.path=" SHARDRUN_EXAMPLE_PROGRAMS);
  std::vector<std::string> words = {command, example("conv_net")};
  if (command == "plan") {
    words.emplace_back("--json");
  }
  return on_cuda(std::move(words), std::move(settings), "cuda:0,1");
}

}  // namespace

TEST_CASE("a convolutional network over cuDNN has the cpu's losses and the planned peak of memory", "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const TemporaryFolder folder;
  write_images(folder.path());
  const std::vector<std::vector<std::string>> splits = {
      {"job.strategy=single", "job.ranks=1"},
      {"job.strategy=dp", "job.ranks=2"},
      {"job.strategy=zero2", "job.ranks=2", "train.precision=mixed"},
      {"job.strategy=dp", "job.ranks=2", "train.precision=mixed", "train.gradients=bfloat16"},
      {"job.strategy=named", "job.ranks=2", "mesh.a=2", "sharding.rows=a"}};
  for (const std::vector<std::string>& split : splits) {
    DYNAMIC_SECTION(split[0] << " " << split.back()) {
      const std::vector<std::string> settings = settings_of(folder.path(), split);
      const std::vector<double> expected = losses_of(folder.path(), example("conv_net"), settings);
      std::vector<double> first;
      for (int seed = 1; seed <= depth(2, split == splits[1] ? 2 : 1, 1); ++seed) {
        std::vector<std::string> variables = by_cudnn;
        variables.push_back("FAKE_CUDA_SEED=" + std::to_string(seed));

        const Ended ended = fake.run(folder.path(), network("run", settings), variables);

        INFO(ended.err);
        REQUIRE(ended.code == 0);
        std::vector<double> losses;
        for (const json::object& line : read_json_lines(folder.path() / "out/metrics.jsonl")) {
          losses.push_back(line.at("loss").to_number<double>());
        }
        const bool is_mixed = std::ranges::find(split, "train.precision=mixed") != split.end();
        REQUIRE(losses.size() == expected.size());
        for (std::size_t i = 0; i < losses.size(); ++i) {
          CHECK(losses[i] == Approx(expected[i]).margin(is_mixed ? 3e-2 : 2e-5));
        }
        first = first.empty() ? losses : first;
        CHECK(losses == first);
        const json::object summary = read_json(folder.path() / "out/summary.json");
        for (const json::value& rank : summary.at("ranks").as_array()) {
          CHECK(rank.at("peak_bytes") == rank.at("planned_bytes"));
        }
      }
    }
  }
}

TEST_CASE("the plan is the same with cuDNN and without, and a failure of cuDNN ends the job", "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  const TemporaryFolder folder;
  write_images(folder.path());
  const std::vector<std::string> settings = settings_of(folder.path(), {"job.strategy=single", "job.ranks=1"});
  const std::vector<std::string> plan = network("plan", settings);
  const Ended by_library = fake.run(folder.path(), plan, by_cudnn);
  INFO(by_library.err);
  REQUIRE(by_library.code == 0);
  CHECK(fake.run(folder.path(), plan).out == by_library.out);
  std::vector<std::string> failing = by_cudnn;
  failing.emplace_back("FAKE_CUDNN_FAIL=cudnnBackendGetAttribute");

  const Ended ended = fake.run(folder.path(), network("run", settings), failing);

  CHECK(ended.code == 1);
  CHECK_THAT(ended.err, Contains("op conv (") && Contains("): conv f32[10, 1, 13, 10] * [6, 1, 3, 3] -> ") &&
                            Contains("cudnnBackendGetAttribute (202) returned CUDNN_STATUS_EXECUTION_FAILED"));
  CHECK(
      fake.run(folder.path(), network("run", settings), {by_cudnn[0], by_cudnn[1], "FAKE_CUDNN_VERSION=80907"}).code ==
      2);
}

TEST_CASE("jobs with cuDNN's attention have the cpu's losses and the planned peak of memory", "[cuda]") {
  const Installation fake(SHARDRUN_FAKE_LIBRARY);
  constexpr int steps = depth(4, 2, 2);
  for (const std::vector<std::string>& split :
       std::vector<std::vector<std::string>>{{"job.ranks=1", "job.strategy=single"},
                                             {"job.ranks=2", "job.strategy=zero2"},
                                             {"job.ranks=2", "job.strategy=tp"}}) {  // each rank has heads of its own
    DYNAMIC_SECTION(split[1]) {
      const JobFolder there;
      const JobFolder here;
      std::vector<std::string> settings = split;
      settings.insert(settings.end(), {"model.width=32", "model.heads=4", "train.precision=mixed",
                                       "data.microbatches=2", "train.steps=" + std::to_string(steps)});

      const Ended ended = fake.run(there.path(), on_cuda({"job.ini"}, settings, "cuda:0,1"), by_cudnn);
      const Ended expected = here.run(settings);

      INFO(ended.err);
      REQUIRE(ended.code == 0);
      REQUIRE(expected.code == 0);
      const std::vector<double> losses = there.losses();
      REQUIRE(losses.size() == steps);
      for (std::size_t i = 0; i < losses.size(); ++i) {
        CHECK(losses[i] == Approx(here.losses().at(i)).margin(2e-2));
      }
      const json::object summary = there.summary();
      for (const json::value& rank : summary.at("ranks").as_array()) {
        CHECK(rank.at("peak_bytes") == rank.at("planned_bytes"));
      }
      // cuDNN computes the attention: if it fails, the job fails.
      std::vector<std::string> failing = by_cudnn;
      failing.emplace_back("FAKE_CUDNN_FAIL=cudnnBackendGetAttribute");
      const Ended failed = fake.run(there.path(), on_cuda({"job.ini"}, settings, "cuda:0,1"), failing);
      CHECK(failed.code == 1);
      CHECK_THAT(failed.err, Contains("op attention (") && Contains("): attention bf16["));
    }
  }
}
