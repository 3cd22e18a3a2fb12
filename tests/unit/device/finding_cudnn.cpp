// Finding cuDNN if some of its files are missing or damaged. Each case is a separate process, because a process looks
// for cuDNN only once.

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/device/cuda/runtime/cudnn.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

/// Runs the test case with this tag in a process with these variables. Returns what it writes and how it ended.
std::string output_of(const std::string& tag, const std::string& variables) {
  const std::string program = fs::read_symlink("/proc/self/exe").string();
  FILE* const pipe = popen(("env " + variables + " '" + program + "' '" + tag + "' 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  std::array<char, 4096> piece = {};
  for (std::size_t read = 1; read > 0;) {
    read = std::fread(piece.data(), 1, piece.size(), pipe);
    text.append(piece.data(), read);
  }
  return text + "exit status " + std::to_string(pclose(pipe));
}

/// A folder with cuDNN's files, some of which are no libraries.
struct Damaged {
  explicit Damaged(const std::vector<std::string>& files) {
    for (const auto& each : fs::directory_iterator(std::getenv("LD_LIBRARY_PATH"))) {
      fs::create_symlink(each.path(), folder.path() / each.path().filename());
    }
    for (const std::string& file : files) {
      fs::remove(folder.path() / file);
      std::ofstream(folder.path() / file) << "no library";
    }
  }
  [[nodiscard]] std::string variables(const std::string& dnn) const {
    return "LD_LIBRARY_PATH=" + folder.path().string() + " SHARDRUN_CUDA_DNN=" + dnn;
  }

  test::TemporaryFolder folder;
};

}  // namespace

TEST_CASE("prints which cuDNN is found", "[.found]") {
  const std::string text = test::error_of([] { std::puts(device::cuda::find_cudnn().text.c_str()); });
  std::puts(text.c_str());
}

TEST_CASE("an incomplete cuDNN is not used, and is refused if it was asked for", "[unit]") {
  for (const char* const part : {"libcudnn_graph.so.9", "libcudnn_heuristic.so.9", "libcudnn_engines_precompiled.so.9",
                                 "libcudnn_engines_runtime_compiled.so.9"}) {
    const Damaged damaged({part});
    CHECK_THAT(output_of("[.found]", damaged.variables("")),
               Contains("own kernels: libcudnn.so.9 does not fit: ") && Contains(part) && Contains("exit status 0"));
    CHECK_THAT(output_of("[.found]", damaged.variables("cudnn")),
               Contains("asks for cuDNN, which cannot be used (libcudnn.so.9 does not fit: ") && Contains(part));
  }
}

TEST_CASE("without NVRTC our own kernels compute attention, and cuDNN is refused if it was asked for", "[unit]") {
  const Damaged damaged({"libnvrtc.so.13", "libnvrtc.so"});
  CHECK_THAT(output_of("[.found]", damaged.variables("")),
             Contains("cuDNN 9.19.0, without NVRTC: own kernels attend (") && Contains("libnvrtc.so: "));
  CHECK_THAT(output_of("[.found]", damaged.variables("cudnn")),
             Contains("asks for cuDNN, which cannot be used (") && Contains("libnvrtc.so: "));
}

TEST_CASE("a cuDNN that does not start is replaced by our own kernels if it was not asked for", "[unit]") {
  CHECK_THAT(output_of("[.own]", "-u SHARDRUN_CUDA_DNN FAKE_CUDNN_FAIL=cudnnCreate"),
             Contains("shardrun: cuDNN 9.19.0: cudnnCreate returned CUDNN_STATUS_EXECUTION_FAILED") &&
                 Contains(": our own kernels attend and convolve\n") && Contains("exit status 0"));
}

TEST_CASE("a plan that works only with the handle is reported once", "[unit]") {
  CHECK_THAT(output_of("[handle]", ""),
             Contains("shardrun: cuDNN 9.19.0 computes conv f32[11, ") &&
                 Contains(" by a plan made with its handle, as all from now on. The plan made with the GPU's "
                          "properties: loading the kernels failed: cuDNN 9.19.0: cudnnBackendExecute returned "
                          "CUDNN_STATUS_EXECUTION_FAILED: FAKE_CUDNN_WANTS_HANDLE") &&
                 Contains("exit status 0"));
}

TEST_CASE("a shape that cuDNN has no engine for is named", "[unit]") {
  CHECK_THAT(output_of("[.own]", "FAKE_CUDNN_NONE=1"),
             Contains("shardrun: our own kernel computes conv f32[2, 3, 9, 7] * [4, 3, 3, 2] -> [2, 4, 5, 3]: cuDNN "
                      "9.19.0 has no engine for it that keeps our limits\n") &&
                 Contains("exit status 0"));
}
