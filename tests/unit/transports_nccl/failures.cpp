#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/transport_ranks.h"
#include "tests/unit/transports_nccl/fakes.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

namespace {

void set_gpus(int count) { fake<FakeCudaSetGpus>("fake_cuda_set_gpus")(count); }

std::string refusal() {
  return error_of([] {
    SharedHost host;
    const Rank rank(host, "nccl", 0, 1);
  });
}

}  // namespace

TEST_CASE("nccl: properties are known on any machine", "[no_driver][no_nccl][no_device]") {
  plugins::Transport nccl = plugins::Transport::load({SHARDRUN_BUILT_PLUGINS}, "nccl");
  CHECK_FALSE(nccl.props().moves(SR_MEMORY_HOST));
  CHECK_FALSE(nccl.props().has(SR_TRANSPORT_SAME_HOST));
  REQUIRE(nccl.options().size() == 1);
  const sdk::OpSpec op{.opcode = SR_OP_ALL_REDUCE, .dtype = SR_DTYPE_BF16, .reduction = SR_REDUCE_SUM, .count = 5};
  const std::uint32_t own_sums = SR_OP_INFO_ORDERED | SR_OP_INFO_STEPWISE | SR_OP_INFO_ROUNDED_ONCE;
  const bool has_kernels = SHARDRUN_HAS_NCCL_KERNELS != 0;
  CHECK(nccl.query(op, 4).flags == (SR_OP_INFO_ASYNC | (has_kernels ? own_sums : SR_OP_INFO_NATIVE)));
  CHECK(nccl.query(op, 4).scratch_bytes == (has_kernels ? 3 * 2 * sizeof(std::uint16_t) : 0));
  if (!has_kernels) {
    std::vector<float> values(5);
    const sdk::Buffer data{.data = values.data(), .bytes = 5 * sizeof(float), .kind = SR_MEMORY_CUDA};
    for (const bool in_order : {true, false}) {
      const sdk::OpSpec lacking{.opcode = SR_OP_ALL_REDUCE,
                                .dtype = SR_DTYPE_F32,
                                .reduction = in_order ? SR_REDUCE_SUM : SR_REDUCE_MAX,
                                .flags = in_order ? SR_OP_FLAG_IN_ORDER : 0,
                                .count = 5,
                                .send = data,
                                .recv = data};
      CHECK_THAT(error_of([&] { static_cast<void>(nccl.query(lacking, 4)); }),
                 Contains("it does not offer this op (") && Contains("configured where no nvcc was found"));
    }
  }
}

TEST_CASE("nccl: a missing driver is reported", "[.][no_driver]") {
  CHECK_THAT(refusal(), Contains("transport nccl, opening") && Contains("libcuda.so.1") &&
                            Contains("there is no NVIDIA driver here") &&
                            Contains("choose a transport for host memory"));
}

TEST_CASE("nccl: a missing NCCL is reported", "[.][no_nccl]") {
  CHECK_THAT(refusal(), Contains("libnccl.so.2") && Contains("install NCCL 2.14 or newer"));
}

TEST_CASE("nccl: a missing device is reported", "[.][no_device]") {
  CHECK_THAT(refusal(), Contains("this machine has no CUDA device that this process may use"));
}

namespace {

plugins::TransportOp sum(plugins::TransportGroup& group, const DeviceFloats& data, std::uint64_t id = 1) {
  return group.prepare({device_request(SR_OP_ALL_REDUCE, id, data)}, after(30));
}

void check_all_is_well(const Fakes& fakes) {
  CHECK(fakes.misuses() == 0);
  CHECK(fakes.open() == 0);
}

/// Two ranks prepare a sum of 10 numbers. Then the first does `act(op, group)`, and the second starts nothing.
template <class Act>
void check_first_of_two(const Fakes& fakes, const Act& act) {
  run_ranks("nccl", 2, [&](Rank& rank) {
    plugins::TransportGroup group = rank.group();
    const DeviceFloats data(rank, std::vector<float>(10));
    plugins::TransportOp op = sum(group, data);
    rank.meet("prepared");
    if (rank.rank() == 0) {
      act(op, group);
    }
    rank.meet("end");
    group.abort("enough");
  });
  check_all_is_well(fakes);
}

}  // namespace

TEST_CASE("nccl: an abort from another thread ends running ops and the communicator") {
  const Fakes fakes(GENERATE(0, 2));
  run_ranks("nccl", 2, [&](Rank& rank) {
    plugins::TransportGroup group = rank.group();
    const DeviceFloats data(rank, std::vector<float>(10));
    plugins::TransportOp op = sum(group, data);
    plugins::TransportOp other = sum(group, data, 2);
    if (rank.rank() == 0) {
      op.start(after(30));
      CHECK_FALSE(op.wait(after(0.02)));
      std::thread aborting([&] { group.abort("seen enough"); });
      CHECK_THAT(error_of([&] { finish(op); }), Contains("all_reduce (sum) of 10 f32") && Contains("seen enough"));
      aborting.join();
      CHECK_THAT(error_of([&] { other.start(after(30)); }), Contains("seen enough"));
      CHECK(group.error().value_or("") == "seen enough");
    }
    rank.meet("end");
    group.abort("so has the other");
  });
  check_all_is_well(fakes);
}

TEST_CASE("nccl: an op past its deadline fails its group, whether it is polled or not") {
  const bool looked_at = GENERATE(false, true);
  const int polls = GENERATE(0, 1'000'000'000);  // with the second, NCCL never hands its calls to the stream
  const Fakes fakes;
  check_first_of_two(fakes, [&](plugins::TransportOp& op, const plugins::TransportGroup& group) {
    fakes.set_polls(polls);
    op.start(after(0.05));
    fakes.set_polls(0);
    while (!looked_at && !group.error()) {
      std::this_thread::yield();
    }
    CHECK_THAT(error_of([&] { finish(op); }),
               Contains("all_reduce (sum) of 10 f32 is past its deadline, waiting for member 1 (rank 1)"));
  });
}

TEST_CASE("nccl: a lost peer that NCCL reports fails the group, with NCCL's words") {
  const Fakes fakes;
  check_first_of_two(fakes, [&](plugins::TransportOp& op, const auto&) {
    op.start(after(30));
    fakes.fail(0);
    try {
      finish(op);
      FAIL("an op of a lost peer is complete");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::peer_lost);
      CHECK_THAT(error.message(),
                 Contains("group all") && Contains("remote process exited") && Contains("the last words of NCCL"));
    }
    fakes.fail(-1);
  });
}

TEST_CASE("nccl: members with different ops are told so, and can go on") {
  const Fakes fakes;
  run_ranks("nccl", 3, [&](Rank& rank) {
    plugins::TransportGroup group = rank.group();
    const DeviceFloats wrong(rank, std::vector<float>(rank.rank() == 2 ? 11 : 10));
    CHECK_THAT(error_of([&] { (void)sum(group, wrong); }),
               Contains("do not mean the same op") && Contains("all_reduce (sum) of 1"));
    const DeviceFloats data(rank, std::vector<float>(10, 1.0F));
    plugins::TransportOp op = sum(group, data, 2);
    run(op);
    CHECK(data.values() == std::vector<float>(10, 3.0F));
  });
  check_all_is_well(fakes);
}

TEST_CASE("nccl: connecting ends at its deadline, and an absent first member is named") {
  const Fakes fakes;
  run_ranks("nccl", 2, [&](Rank& rank) {
    const std::uint32_t here = rank.rank();
    CHECK_THAT(error_of([&] {
                 (void)rank.transport().group({.rank = here,
                                               .members = {0, 1},
                                               .name = "alone",
                                               .id = 40 + here,  // different ids, so that the ranks do not meet
                                               .deadline = sdk::Deadline::from_border(after(0.05))});
               }),
               Contains("connecting group alone: past the deadline") &&
                   Contains(here == 0 ? "while NCCL connects its 2 members" : "waiting for member 0 (rank 0)"));
  });
  check_all_is_well(fakes);
}

TEST_CASE("nccl: memory of the host or of another device is refused with what was expected") {
  const Fakes fakes;
  run_ranks("nccl", 1, [&](Rank& rank) {
    plugins::TransportGroup group = rank.group();
    const DeviceFloats data(rank, std::vector<float>(10));
    std::vector<float> on_host(10);
    sdk::OpSpec request = request_of(SR_OP_ALL_REDUCE, 1, on_host.size(), on_host);
    CHECK_THAT(error_of([&] { (void)group.prepare({request}, after(30)); }),
               Contains("memory of kind 1, expected CUDA memory (kind 3)"));
    request.send->kind = request.recv->kind = SR_MEMORY_CUDA;
    request.send->device = request.recv->device = 3;
    CHECK_THAT(error_of([&] { (void)group.prepare({request}, after(30)); }),
               Contains("on device 3, and this rank's is 0"));
    CHECK_THAT(error_of([&] { (void)rank.transport().register_memory(on_host.data(), 40, -1); }),
               Contains("CUDA memory alone"));
  });
  check_all_is_well(fakes);
}

TEST_CASE("nccl: a rank without a device of its own is refused") {
  SharedHost host;
  CHECK_THAT(error_of([&] {
               Rank rank(host, "nccl", 4, 5);
               (void)rank.group();
             }),
             Contains("it needs CUDA device 4, and this process may use 4") && Contains("or set device"));
}

TEST_CASE("nccl: the only visible device of a rank is used, whatever its number on the machine") {
  SharedHost host;
  set_gpus(1);
  CHECK(error_of([&] {
          Rank rank(host, "nccl", 3, 4);
          (void)rank.transport().group(
              {.rank = 0, .members = {3}, .name = "alone", .id = 1, .deadline = sdk::Deadline::from_border(after(30))});
        }) == "nothing");
  set_gpus(4);
}

TEST_CASE("nccl: a rank uses the device whose memory its host registers") {
  const Fakes fakes;
  run_ranks("nccl", 2, [&](Rank& rank) {
    const std::uint32_t device = 3 - rank.rank();
    const DeviceMemory memory(device, 12);
    const std::vector<float> ones(3, 1.0F);
    memory.write(0, ones.data(), 12);
    (void)rank.transport().register_memory(memory.data(), 12, -1, SR_MEMORY_CUDA, device);
    plugins::TransportGroup group = rank.group();
    plugins::TransportOp op = group.prepare({device_request(SR_OP_ALL_REDUCE, 1, memory)}, after(30));
    run(op);
    std::vector<float> sums(3);
    memory.read(0, sums.data(), 12);
    CHECK(sums == std::vector<float>(3, 2.0F));
    CHECK_THAT(
        error_of([&] { (void)rank.transport().register_memory(memory.data(), 12, -1, SR_MEMORY_CUDA, rank.rank()); }),
        Contains("memory on device " + std::to_string(rank.rank()) + ", and this rank's is " +
                 std::to_string(device)) &&
            Contains("set device in [transport.nccl] to the memory's device, or leave it at -1"));
  });
  check_all_is_well(fakes);
}

TEST_CASE("nccl: two members on one GPU hear what NCCL needs for it") {
  const Fakes fakes;
  const bool is_allowed = GENERATE(false, true);
  setenv("FAKE_NCCL_VERSION", is_allowed ? "23000" : "22809", 1);
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  run_ranks("nccl", 2, [&](Rank& rank) {
    const DeviceMemory memory(2, 4);
    (void)rank.transport().register_memory(memory.data(), 4, -1, SR_MEMORY_CUDA, 2);
    const std::string error = error_of([&] { (void)rank.group(); });
    if (is_allowed) {
      CHECK(error == "nothing");
    } else {
      CHECK_THAT(error, Contains("member 0 (rank 0) and member 1 (rank 1) are on one GPU") &&
                            Contains("0000:03:00.0") && Contains("use NCCL 2.30 or newer (this is 22809)") &&
                            Contains("NCCL_MULTI_RANK_GPU_ENABLE=1"));
    }
    rank.meet("end");
  });
  unsetenv("FAKE_NCCL_VERSION");
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  check_all_is_well(fakes);
}

TEST_CASE("nccl: an op fails if an error ends it between two polls") {
  const Fakes fakes;
  check_first_of_two(fakes, [&](plugins::TransportOp& op, const auto&) {
    fakes.fail_unseen(0);
    op.start(after(30));
    CHECK_THAT(error_of([&] { finish(op); }), Contains("all_reduce (sum) of 10 f32"));
  });
}

TEST_CASE("nccl: the fakes notice sends and receives of two groups started in different orders") {
  const Fakes fakes;
  run_ranks("nccl", 2, [&](Rank& rank) {
    const std::uint32_t other = 1 - rank.rank();
    plugins::TransportGroup there = rank.group(1);
    plugins::TransportGroup back = rank.group(2);
    const DeviceFloats data(rank, std::vector<float>(10));
    const DeviceFloats got(rank, std::vector<float>(10));
    // Each rank starts its send first.
    plugins::TransportOp send =
        (rank.rank() == 0 ? there : back).prepare({device_request(SR_OP_SEND, 1, data, other)}, after(30));
    plugins::TransportOp recv =
        (rank.rank() == 0 ? back : there).prepare({device_request(SR_OP_RECV, 1, got, other)}, after(30));
    send.start(after(30));
    recv.start(after(30));
    CHECK_THAT(error_of([&] { finish(recv); }), Contains("they may wait for each other forever"));
    rank.meet("end");
    there.abort("enough");
    back.abort("enough");
  });
}

TEST_CASE("nccl: the fakes notice collectives of two groups started in different orders") {
  const Fakes fakes;
  run_ranks("nccl", 2, [&](Rank& rank) {
    plugins::TransportGroup one = rank.group(1);
    plugins::TransportGroup two = rank.group(2);
    const DeviceFloats data(rank, std::vector<float>(10));
    const DeviceFloats more(rank, std::vector<float>(10));
    plugins::TransportOp of_one = sum(one, data);
    plugins::TransportOp of_two = sum(two, more);
    (rank.rank() == 0 ? of_one : of_two).start(after(30));
    (rank.rank() == 0 ? of_two : of_one).start(after(30));
    CHECK_THAT(error_of([&] { finish(of_one); }), Contains("they may wait for each other forever"));
    rank.meet("end");
    one.abort("enough");
    two.abort("enough");
  });
}

TEST_CASE("nccl: an error of the device ends an op with the driver's words") {
  const Fakes fakes;
  const auto set_error = fake<FakeCudaSetError>("fake_cuda_set_error");
  check_first_of_two(fakes, [&](plugins::TransportOp& op, const auto&) {
    op.start(after(30));
    set_error(CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_THAT(error_of([&] { finish(op); }),
               Contains("all_reduce (sum) of 10 f32") && Contains("CUDA_ERROR_ILLEGAL_ADDRESS"));
  });
  set_error(CUDA_SUCCESS);
}
