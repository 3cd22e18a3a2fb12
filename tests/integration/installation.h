#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/integration/program.h"
#include "tests/support/temporary_folder.h"

namespace shardrun::test {

/// The program as installed beside a library of device `cuda`.
class Installation {
 public:
  /// `library`: the device's library; empty: there is none.
  explicit Installation(const std::filesystem::path& library) {
    std::filesystem::create_directories(folder_.path() / "lib/shardrun");
    std::filesystem::create_symlink(std::filesystem::path(SHARDRUN_PLUGINS), folder_.path() / "lib/shardrun/v1");
    std::error_code other_disk;
    std::filesystem::create_hard_link(SHARDRUN_PROGRAM, program(), other_disk);
    if (other_disk) {
      std::filesystem::copy_file(SHARDRUN_PROGRAM, program());
    }
    if (!library.empty()) {
      std::filesystem::create_symlink(library, folder_.path() / "lib/shardrun/libshardrun_cuda.so");
    }
  }

  /// Runs the program in the folder `in`. `variables`: such as "FAKE_CUDA_GPUS=0". Unless they say otherwise, our own
  /// kernels compute everything, because this machine may have cuBLASLt and cuDNN.
  [[nodiscard]] Ended run(const std::filesystem::path& in, const std::vector<std::string>& words,
                          const std::vector<std::string>& variables = {},
                          const std::function<void(pid_t process, std::string_view out)>& watch = {}) const {
    std::string line = "exec env SHARDRUN_CUDA_PRODUCTS=own SHARDRUN_CUDA_DNN=own";
    for (const std::string& variable : variables) {
      line += " " + variable;
    }
    line += " '" + program().string() + "'";
    for (const std::string& word : words) {
      line += " '" + word + "'";
    }
    return run_script(in, line, watch);
  }
  [[nodiscard]] std::filesystem::path program() const { return folder_.path() / "shardrun"; }

 private:
  TemporaryFolder folder_;
};

/// The words of a command line, with settings that choose a device of `cuda`.
[[nodiscard]] inline std::vector<std::string> on_cuda(std::vector<std::string> words,
                                                      std::vector<std::string> settings = {},
                                                      const std::string& device = "cuda") {
  settings.push_back("job.device=" + device);
  return with_settings(std::move(words), settings);
}

}  // namespace shardrun::test
