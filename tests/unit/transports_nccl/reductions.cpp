// What the transport does with kernels of its own: minima and maxima that keep NaN, and sums in order.

#include <shardrun/sdk/transport/half.hpp>

#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/unit/transports_nccl/fakes.h"
#include "tests/unit/transports_nccl/moved.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

#if SHARDRUN_HAS_NCCL_KERNELS

TEST_CASE("nccl: a minimum or maximum with a NaN is NaN") {
  const std::uint32_t members = GENERATE(2U, 3U, 4U);
  const Fakes fakes(members % 2 == 0 ? 2 : 0);
  std::vector<std::string> wrong(members);
  run_ranks("nccl", members, [&](Rank& rank) {
    plugins::TransportGroup group = rank.group();
    std::uint64_t id = 0;
    for (const std::uint32_t opcode : {SR_OP_REDUCE, SR_OP_ALL_REDUCE, SR_OP_REDUCE_SCATTER, SR_OP_REDUCE_SCATTERV}) {
      for (const std::uint32_t dtype : {SR_DTYPE_F32, SR_DTYPE_F64, SR_DTYPE_F16, SR_DTYPE_BF16}) {
        for (const std::uint32_t reduction : {SR_REDUCE_MIN, SR_REDUCE_MAX}) {
          for (const std::uint64_t count : {0U, 5U, 300U}) {
            const Shape shape{.opcode = opcode,
                              .members = members,
                              .count = count,
                              .dtype = dtype,
                              .reduction = reduction,
                              .root = 1,
                              .with_nan = true};
            Moved moved(rank, group, shape, ++id, count == 5);
            for (std::uint32_t round = 0; round < members; ++round) {
              wrong[rank.rank()] += moved.run(round);
            }
          }
        }
      }
    }
  });
  CHECK(wrong == std::vector<std::string>(members));
  CHECK(fakes.misuses() == 0);
}

namespace {

float extreme(Rank& rank, plugins::TransportGroup& group, std::uint64_t id, std::uint32_t reduction, float number) {
  const DeviceFloats data(rank, {number});
  sdk::OpSpec request = device_request(SR_OP_ALL_REDUCE, id, data);
  request.reduction = reduction;
  const DeviceMemory scratch(rank.rank(), rank.transport().query(request, 2).scratch_bytes);
  request.scratch = scratch.buffer();
  plugins::TransportOp op = group.prepare({request}, after(30));
  run(op);
  return data.values()[0];
}

}  // namespace

TEST_CASE("nccl: minima and maxima of numbers below 0, of infinities and of the smallest numbers are right") {
  const Fakes fakes;
  const float infinity = std::numeric_limits<float>::infinity();
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> ascending = {{-infinity, -3e38F}, {-2.0F, -1.0F},     {-1.0F, tiny},
                                                     {-tiny, tiny},       {1.0F, 1.0000001F}, {3e38F, infinity}};
  run_ranks("nccl", 2, [&](Rank& rank) {
    plugins::TransportGroup group = rank.group();
    std::uint64_t id = 0;
    for (const std::vector<float>& pair : ascending) {
      for (const std::size_t first : {0U, 1U}) {
        const float own = pair[rank.rank() == 0 ? first : 1 - first];
        CHECK(extreme(rank, group, ++id, SR_REDUCE_MIN, own) == pair[0]);
        CHECK(extreme(rank, group, ++id, SR_REDUCE_MAX, own) == pair[1]);
      }
    }
    CHECK(std::isnan(extreme(rank, group, ++id, SR_REDUCE_MAX, rank.rank() == 0 ? -nan : infinity)));
    CHECK(std::isnan(extreme(rank, group, ++id, SR_REDUCE_MIN, rank.rank() == 0 ? nan : -infinity)));
  });
}

namespace {

/// Numbers whose float32 sum depends on the order.
float number_of(std::uint32_t rank, std::size_t i) {
  const float large = std::ldexp(1.0F, static_cast<int>((rank * 7 + i * 5) % 24));
  return (rank % 2 == 0 ? large : -large) + 1.0F / static_cast<float>(rank + i + 1);
}

float sum_in_order(std::uint32_t members, std::size_t i) {
  float sum = number_of(0, i);
  for (std::uint32_t member = 1; member < members; ++member) {
    sum += number_of(member, i);
  }
  return sum;
}

/// The sum of all ranks' numbers, as this rank gets it.
std::vector<float> summed(Rank& rank, plugins::TransportGroup& group, std::uint64_t id, std::size_t count,
                          bool in_order) {
  std::vector<float> numbers;
  for (std::size_t i = 0; i < count; ++i) {
    numbers.push_back(number_of(rank.rank(), i));
  }
  const DeviceFloats data(rank, numbers);
  sdk::OpSpec request = device_request(SR_OP_ALL_REDUCE, id, data);
  request.flags = in_order ? SR_OP_FLAG_IN_ORDER : 0;
  const DeviceMemory scratch(rank.rank(), rank.transport().query(request, rank.size()).scratch_bytes);
  request.scratch = scratch.buffer();
  plugins::TransportOp op = group.prepare({request}, after(30));
  run(op);
  return data.values();
}

}  // namespace

TEST_CASE("nccl: ordered sums have the bits of the members' order") {
  const Fakes fakes;
  const std::uint32_t members = GENERATE(2U, 3U, 4U);
  run_ranks("nccl", members, [&](Rank& rank) {
    plugins::TransportGroup group = rank.group();
    std::uint64_t id = 0;
    for (const std::size_t count : {1U, 2U, 12U, 1001U}) {
      std::vector<float> expected;
      for (std::size_t i = 0; i < count; ++i) {
        expected.push_back(sum_in_order(members, i));
      }
      CHECK(summed(rank, group, ++id, count, true) == expected);
      const bool is_same = summed(rank, group, ++id, count, false) == expected;
      CHECK((is_same || members > 2));
      CHECK((!is_same || members == 2 || count < 12));
    }
  });
  CHECK(fakes.misuses() == 0);
}

TEST_CASE("nccl: sums and products of f16 and bf16 are rounded once, ordered or not") {
  const Fakes fakes;
  const std::uint32_t members = GENERATE(2U, 3U, 4U);
  const bool in_order = GENERATE(false, true);
  std::vector<std::string> wrong(members);
  run_ranks("nccl", members, [&](Rank& rank) {
    plugins::TransportGroup group = rank.group();
    std::uint64_t id = 0;
    for (const std::uint32_t opcode : {SR_OP_REDUCE, SR_OP_ALL_REDUCE, SR_OP_REDUCE_SCATTER, SR_OP_REDUCE_SCATTERV}) {
      for (const std::uint32_t dtype : {SR_DTYPE_F16, SR_DTYPE_BF16}) {
        for (const std::uint32_t reduction : {SR_REDUCE_SUM, SR_REDUCE_PRODUCT}) {
          for (const bool in_place : {false, true}) {
            const Shape shape{.opcode = opcode,
                              .members = members,
                              .count = 13,
                              .dtype = dtype,
                              .reduction = reduction,
                              .root = members - 1,
                              .rounds = true};
            Moved moved(rank, group, shape, ++id, in_place, in_order);
            wrong[rank.rank()] += moved.run(0) + moved.run(1);
          }
        }
      }
    }
  });
  CHECK(wrong == std::vector<std::string>(members));
  CHECK(fakes.misuses() == 0);
}

TEST_CASE("nccl: an op without the device scratch that it needs is refused with the size") {
  const Fakes fakes;
  run_ranks("nccl", 2, [&](Rank& rank) {
    plugins::TransportGroup group = rank.group();
    const DeviceFloats data(rank, std::vector<float>(10));
    sdk::OpSpec request = device_request(SR_OP_ALL_REDUCE, 1, data);
    request.reduction = SR_REDUCE_MAX;
    CHECK_THAT(error_of([&] { (void)group.prepare({request}, after(30)); }),
               Contains("all_reduce (max) of 10 f32") && Contains("needs 40 bytes of scratch in the device's memory"));
  });
}

TEST_CASE("nccl: a kernel that cannot be launched fails the group, and the rest of the op is not started") {
  const int polls = GENERATE(0, 3);  // with the second, the kernel behind NCCL's calls is launched by whoever polls
  const int number = GENERATE(1, 2);
  const Fakes fakes(polls);
  const auto fail_launch = fake<FakeCudaFailLaunch>("fake_cuda_fail_launch");
  run_ranks("nccl", 2, [&](Rank& rank) {
    plugins::TransportGroup group = rank.group();
    const DeviceFloats data(rank, {1.0F});
    sdk::OpSpec request = device_request(SR_OP_ALL_REDUCE, 1, data);
    request.reduction = SR_REDUCE_MAX;
    const DeviceMemory scratch(rank.rank(), rank.transport().query(request, 2).scratch_bytes);
    request.scratch = scratch.buffer();
    plugins::TransportOp op = group.prepare({request}, after(30));
    rank.meet("prepared");
    if (rank.rank() == 0) {
      fail_launch(number);
      const std::string error = error_of([&] {
        op.start(after(30));
        finish(op);
      });
      CHECK_THAT(error, Contains("all_reduce (max) of 1 f32") && Contains("CUDA_ERROR_LAUNCH_FAILED"));
      CHECK_THAT(group.error().value_or(""), Contains("CUDA_ERROR_LAUNCH_FAILED"));
      CHECK_THAT(error_of([&] { op.start(after(30)); }), Contains("CUDA_ERROR_LAUNCH_FAILED"));
    }
    rank.meet("end");
    fail_launch(0);
    group.abort("enough");
  });
  CHECK(fakes.misuses() == 0);
  CHECK(fakes.open() == 0);
}

#endif

TEST_CASE("nccl: registered memory is registered with each communicator that uses it, until it is deregistered") {
  const Fakes fakes;
  run_ranks("nccl", 2, [&](Rank& rank) {
    const DeviceFloats memory(rank, std::vector<float>(100, 1.0F));
    {
      plugins::Transport& transport = rank.transport();
      const std::uint64_t registration =
          transport.register_memory(memory.data(), memory.bytes(), -1, SR_MEMORY_CUDA, rank.rank());
      plugins::TransportGroup group = rank.group(1);
      plugins::TransportGroup unused = rank.group(2);
      sdk::OpSpec request = device_request(SR_OP_ALL_REDUCE, 1, memory);
      request.send->registration = request.recv->registration = registration;
      plugins::TransportOp op = group.prepare({request}, after(30));
      request.id = 2;
      plugins::TransportOp again = group.prepare({request}, after(30));
      rank.meet("prepared");
      CHECK(fakes.registered() == 2 * memory.bytes());
      run(op);
      run(again);
      CHECK(memory.values() == std::vector<float>(100, 4.0F));

      request.id = 3;
      request.send->registration = request.recv->registration = registration + 1;
      CHECK_THAT(error_of([&] { (void)group.prepare({request}, after(30)); }),
                 Contains("all_reduce (sum) of 100 f32: its buffer of 400 bytes is not in the memory that was "
                          "registered as 2"));
      rank.meet("end");
    }
    rank.meet("freed");
    CHECK(fakes.registered() == 0);
  });
  CHECK(fakes.misuses() == 0);
  CHECK(fakes.open() == 0);
}

TEST_CASE("nccl: a slow registration with NCCL delays neither an abort nor a deadline") {
  const Fakes fakes;
  const bool is_aborted = GENERATE(false, true);
  run_ranks("nccl", 1, [&](Rank& rank) {
    const DeviceFloats memory(rank, std::vector<float>(100, 1.0F));
    const std::uint64_t registration =
        rank.transport().register_memory(memory.data(), memory.bytes(), -1, SR_MEMORY_CUDA, rank.rank());
    plugins::TransportGroup group = rank.group();
    sdk::OpSpec request = device_request(SR_OP_ALL_REDUCE, 1, memory);
    request.send->registration = request.recv->registration = registration;
    fakes.set_polls(1'000'000'000);
    std::thread aborting;
    if (is_aborted) {
      aborting = std::thread([&] { group.abort("seen enough"); });
    }
    CHECK_THAT(
        error_of([&] { (void)group.prepare({request}, is_aborted ? INT64_MAX : after(0.05)); }),
        Contains("all_reduce (sum) of 100 f32") &&
            Contains(is_aborted ? "seen enough" : "registering 400 bytes of memory with NCCL is past the deadline"));
    if (is_aborted) {
      aborting.join();
    }
    fakes.set_polls(0);
  });
  CHECK(fakes.registered() == 0);
  CHECK(fakes.misuses() == 0);
  CHECK(fakes.open() == 0);
}
