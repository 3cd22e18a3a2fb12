#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/transport_ranks.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

namespace {

std::string refusal() {
  return error_of([] {
    SharedHost host;
    const Rank rank(host, "nccl", 0, 1);
  });
}

}  // namespace

TEST_CASE("nccl: it presents itself on any machine", "[no_driver][no_nccl][no_device]") {
  plugins::Transport nccl = plugins::Transport::load({SHARDRUN_BUILT_PLUGINS}, "nccl");
  CHECK_FALSE(nccl.props().moves_host_memory);
  CHECK_FALSE(nccl.props().same_host_only);
  REQUIRE(nccl.options().size() == 1);
  const plugins::OpRequest op{
      .opcode = SR_OP_ALL_REDUCE, .dtype = SR_DTYPE_BF16, .reduction = SR_REDUCE_SUM, .count = 5};
  CHECK(nccl.query(op, 4).flags == (SR_OP_INFO_NATIVE | SR_OP_INFO_ASYNC));
  CHECK(nccl.query(op, 4).scratch_bytes == 0);
}

TEST_CASE("nccl: without a driver it says so", "[.][no_driver]") {
  CHECK_THAT(refusal(), Contains("transport nccl, opening") && Contains("libcuda.so.1") &&
                            Contains("there is no NVIDIA driver here") &&
                            Contains("choose a transport for host memory"));
}

TEST_CASE("nccl: without NCCL it says so", "[.][no_nccl]") {
  CHECK_THAT(refusal(), Contains("libnccl.so.2") && Contains("install NCCL 2.14 or newer"));
}

TEST_CASE("nccl: without a device it says so", "[.][no_device]") {
  CHECK_THAT(refusal(), Contains("this machine has no CUDA device that this process may use"));
}
