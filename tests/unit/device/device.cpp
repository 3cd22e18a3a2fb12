#include "core/device/device.h"

#include <fstream>
#include <string>

#include "core/base/error.h"
#include "core/device/cpu/variant.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::device;

namespace {

void weak(const KernelCall&) {}
void strong(const KernelCall&) {}

const RegisterKernel register_high("reference", "test_levels", {.run = strong}, 2);
const RegisterKernel register_low("reference", "test_levels", {.run = weak}, 1);

}  // namespace

TEST_CASE("devices are found by name and know their element sizes", "[device]") {
  CHECK(Device::find("cpu").element_bytes(graph::DType::f32) == 4);
  CHECK(Device::find("reference").element_bytes(graph::DType::f32) == 8);
  CHECK(Device::find("reference").element_bytes(graph::DType::i32) == 4);
  try {
    static_cast<void>(Device::find("cpy"));
    FAIL("a device that does not exist was found");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::usage);
    CHECK(error.message() == "no device is called 'cpy' (did you mean 'cpu'?); there are cpu, reference");
  }
}

TEST_CASE("an op without a kernel is named", "[device]") {
  try {
    static_cast<void>(Device::find("cpu").kernel("transmogrify"));
    FAIL("a kernel that does not exist was found");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::internal);
    CHECK(error.message() == "device 'cpu' has no kernel for op 'transmogrify'");
  }
}

TEST_CASE("of several kernels the highest level is taken, in whatever order they registered", "[device]") {
  CHECK(Device::find("reference").kernel("test_levels").run == strong);
}

TEST_CASE("the loops are those of the best instruction set that the machine has", "[device]") {
  std::ifstream file("/proc/cpuinfo");
  std::string flags;
  for (std::string line; std::getline(file, line) && flags.empty();) {
    flags = line.starts_with("flags") ? line + " " : "";
  }
  const auto has = [&](const char* flag) { return flags.find(std::string(" ") + flag + " ") != std::string::npos; };
  const bool v3 = has("avx2") && has("fma");
  const bool v4 = v3 && has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl");
  CHECK(device::machine_level() == (v4 ? 4 : v3 ? 3 : 0));

  const std::vector<cpu::LevelKernel> kernels = cpu::kernels_of("gelu");
  REQUIRE(kernels.size() == (v4 ? 3U : v3 ? 2U : 1U));
  CHECK(kernels.back().level == device::machine_level());
  CHECK(Device::find("cpu").kernel("gelu").run == kernels.back().kernel.run);
}
