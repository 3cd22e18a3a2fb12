// NCCL as it is installed, where it is, on a machine without a GPU: the functions that the transport finds in it, and
// how it refuses to connect. It runs over the fake of the driver, so that the transport gets as far as NCCL's refusal.

#include <dlfcn.h>
#include <nccl.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/transport_ranks.h"

using namespace shardrun::test;
using Catch::Contains;

namespace {

/// Why the tests do not run here; "" if they do.
std::string reason_to_skip() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    return "NCCL as installed is not tested: " + std::string(dlerror());
  }
  if (dlsym(library, "fake_nccl_log") != nullptr) {
    return "NCCL as installed is not tested: LD_LIBRARY_PATH leads to the fake of NCCL";
  }
  if (std::filesystem::exists("/dev/nvidiactl")) {
    return "NCCL as installed is not tested: this machine has a GPU, where NCCL would connect";
  }
  return {};
}

bool is_skipped() {
  const std::string reason = reason_to_skip();
  if (!reason.empty()) {
    WARN(reason);
  }
  return !reason.empty();
}

/// A function of the library that reason_to_skip() has opened.
template <class Function>
Function true_function(const char* name) {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  void* const found = library != nullptr ? dlsym(library, name) : nullptr;
  INFO(name);
  REQUIRE(found != nullptr);
  return reinterpret_cast<Function>(found);
}

#define SHARDRUN_TRUE_NCCL(name) true_function<decltype(&name)>(#name)

}  // namespace

TEST_CASE("nccl: the installed NCCL has the header's major version and makes unique ids") {
  if (is_skipped()) {
    return;
  }
  int version = 0;
  REQUIRE(SHARDRUN_TRUE_NCCL(ncclGetVersion)(&version) == ncclSuccess);
  INFO("the library is of version " << version << ", the header of version " << NCCL_VERSION_CODE);
  CHECK(version / 10000 == NCCL_MAJOR);
  CHECK(version >= NCCL_VERSION(2, 14, 0));

  ncclUniqueId one{};
  ncclUniqueId other{};
  REQUIRE(SHARDRUN_TRUE_NCCL(ncclGetUniqueId)(&one) == ncclSuccess);
  REQUIRE(SHARDRUN_TRUE_NCCL(ncclGetUniqueId)(&other) == ncclSuccess);
  CHECK(std::memcmp(one.internal, other.internal, sizeof(one.internal)) != 0);
}

TEST_CASE("nccl: the installed NCCL gives no communicator without a GPU, in blocking calls or others") {
  if (is_skipped()) {
    return;
  }
  ncclUniqueId id{};
  REQUIRE(SHARDRUN_TRUE_NCCL(ncclGetUniqueId)(&id) == ncclSuccess);
  for (const int blocking : {0, 1}) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    ncclComm_t communicator = nullptr;
    CHECK(SHARDRUN_TRUE_NCCL(ncclCommInitRankConfig)(&communicator, 1, id, 0, &config) == ncclUnhandledCudaError);
    CHECK(communicator == nullptr);
    CHECK_THAT(SHARDRUN_TRUE_NCCL(ncclGetErrorString)(ncclUnhandledCudaError), Contains("unhandled cuda error"));
    CHECK_THAT(SHARDRUN_TRUE_NCCL(ncclGetLastError)(nullptr), Contains("Cuda failure"));
  }
}

TEST_CASE("nccl: a group that the installed NCCL cannot connect fails on every rank with NCCL's words") {
  if (is_skipped()) {
    return;
  }
  const auto refusal = Contains("connecting group all: NCCL cannot connect the members: unhandled cuda error");
  run_ranks("nccl", 2, [&](Rank& rank) { CHECK_THAT(error_of([&] { (void)rank.group(); }), refusal); });
  // NCCL keeps the details of its last error once for a process: ranks that are threads may read each other's half.
  run_ranks("nccl", 1, [&](Rank& rank) {
    CHECK_THAT(error_of([&] { (void)rank.group(); }), refusal && Contains("Cuda failure"));
  });
}
