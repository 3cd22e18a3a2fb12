// The device `cuda` as the program loads it: with no library, and with wrong ones.

#include <string>
#include <vector>

#include "tests/integration/program.h"
#include "tests/support/catch.h"

using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
namespace json = boost::json;
namespace fs = std::filesystem;

namespace {

/// The program as installed beside a library of device `cuda`.
class Installation {
 public:
  /// `library`: empty: there is none.
  explicit Installation(const fs::path& library) {
    fs::create_directories(folder_.path() / "lib/shardrun");
    fs::create_symlink(fs::path(SHARDRUN_PLUGINS), folder_.path() / "lib/shardrun/v1");
    std::error_code other_disk;
    fs::create_hard_link(SHARDRUN_PROGRAM, program(), other_disk);
    if (other_disk) {
      fs::copy_file(SHARDRUN_PROGRAM, program());
    }
    if (!library.empty()) {
      fs::create_symlink(library, folder_.path() / "lib/shardrun/libshardrun_cuda.so");
    }
  }

  /// Runs it in the folder.
  [[nodiscard]] Ended run(const fs::path& in, const std::vector<std::string>& words) const {
    std::string line = "exec '" + program().string() + "'";
    for (const std::string& word : words) {
      line += " '" + word + "'";
    }
    return run_script(in, line);
  }
  [[nodiscard]] fs::path program() const { return folder_.path() / "shardrun"; }

 private:
  TemporaryFolder folder_;
};

std::vector<std::string> on_cuda(std::vector<std::string> words, std::vector<std::string> settings = {},
                                 const std::string& device = "cuda") {
  settings.push_back("job.device=" + device);
  return with_settings(std::move(words), settings);
}

void check_refused(const Ended& ended, const std::string& why) {
  INFO(ended.out);
  CHECK(ended.code == 2);
  CHECK_THAT(ended.err, Contains(why));
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
}
