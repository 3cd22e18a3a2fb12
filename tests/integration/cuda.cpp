// The device `cuda` as the program loads it: with no library, with wrong ones, and with one that uses a fake of CUDA
// (tests/support/cuda).

#include <filesystem>
#include <string>
#include <vector>

#include "tests/integration/cuda_jobs.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
namespace json = boost::json;
namespace fs = std::filesystem;

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

TEST_CASE("a device that cannot be used here is refused with what the machine lacks", "[cuda]") {
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

#if defined(SHARDRUN_CUDA_LIBRARY)
TEST_CASE("the CUDA library of this build loads without a driver and reports that there is none", "[cuda]") {
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
