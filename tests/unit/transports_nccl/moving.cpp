#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/support/errors.h"
#include "tests/unit/transports_nccl/fakes.h"
#include "tests/unit/transports_nccl/moved.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

namespace {

bool is_offered(const Shape& shape) {
  const bool floating = shape.dtype <= SR_DTYPE_BF16;
  return SHARDRUN_HAS_NCCL_KERNELS != 0 || shape.members == 1 ||
         !(sdk::find_opcode(shape.opcode)->reduces && floating && shape.reduction >= SR_REDUCE_MIN);
}

}  // namespace

TEST_CASE("nccl: every op of every dtype has the right result, in place or not, started at once or later") {
  const std::uint32_t members = GENERATE(range(1U, 5U));
  const Fakes fakes(members % 2 == 0 ? 3 : 0);
  std::vector<std::string> wrong(members);
  run_ranks("nccl", members, [&](Rank& rank) {
    plugins::TransportGroup group = rank.group();
    std::uint64_t id = 0;
    for (const sdk::OpcodeTraits& traits : sdk::opcodes) {
      for (const sdk::DtypeTraits& dtype : sdk::dtypes) {
        for (std::uint32_t reduction = SR_REDUCE_SUM; reduction <= (traits.reduces ? SR_REDUCE_MAX : SR_REDUCE_SUM);
             ++reduction) {
          const Shape shape{.opcode = traits.opcode,
                            .members = members,
                            .count = 7,
                            .dtype = dtype.dtype,
                            .reduction = reduction,
                            .root = members - 1};
          for (const bool in_place : {false, true}) {
            if (traits.collective && is_offered(shape)) {
              Moved moved(rank, group, shape, ++id, in_place);
              wrong[rank.rank()] += moved.run(0) + moved.run(1);
            }
          }
        }
      }
    }
    Moved nothing(rank, group, {.opcode = SR_OP_ALL_TO_ALL, .members = members, .count = 0}, ++id, false);
    wrong[rank.rank()] += nothing.run(0);
  });
  CHECK(wrong == std::vector<std::string>(members));
  CHECK(fakes.misuses() == 0);
  CHECK(fakes.open() == 0);
}

TEST_CASE("nccl: an op of several NCCL calls is one NCCL group") {
  const Fakes fakes;
  std::string log;
  run_ranks("nccl", 2, [&](Rank& rank) {
    plugins::TransportGroup group = rank.group();
    const DeviceFloats send(rank, std::vector<float>(3, 1.0F));
    const DeviceFloats recv(rank, std::vector<float>(3));
    sdk::OpSpec request = device_request(SR_OP_ALL_GATHERV, 1, send);
    request.count = 0;
    request.recv_counts = {1, 2};
    request.send->bytes = sizeof(float) * (1 + rank.rank());
    request.recv = recv.buffer();
    plugins::TransportOp op = group.prepare({request}, after(30));
    rank.meet("prepared");
    if (rank.rank() == 0) {
      (void)fakes.log();
    }
    rank.meet("logged");
    run(op);
    CHECK(recv.values() == std::vector<float>(3, 1.0F));
    rank.meet("done");
    if (rank.rank() == 0) {
      log = fakes.log();
    }
  });
  CHECK_THAT(log, Contains("rank 0: broadcast 1 of 0, broadcast 2 of 1\n"));
  CHECK_THAT(log, Contains("rank 1: broadcast 1 of 0, broadcast 2 of 1\n"));
}

TEST_CASE("nccl: sends and receives of a batch are one NCCL group, and are matched by id") {
  const Fakes fakes;
  std::string log;
  run_ranks("nccl", 2, [&](Rank& rank) {
    plugins::TransportGroup group = rank.group();
    const std::uint32_t other = 1 - rank.rank();
    const DeviceFloats a(rank, std::vector<float>(2, 10.0F + static_cast<float>(rank.rank())));
    const DeviceFloats b(rank, std::vector<float>(5, 20.0F + static_cast<float>(rank.rank())));
    const DeviceFloats from_a(rank, std::vector<float>(2));
    const DeviceFloats from_b(rank, std::vector<float>(5));
    std::vector<sdk::OpSpec> batch = {device_request(SR_OP_SEND, 7, a, other), device_request(SR_OP_SEND, 3, b, other),
                                      device_request(SR_OP_RECV, 3, from_b, other),
                                      device_request(SR_OP_RECV, 7, from_a, other)};
    if (rank.rank() == 1) {
      std::swap(batch[0], batch[1]);
      std::swap(batch[2], batch[3]);
    }
    plugins::TransportOp op = group.prepare(batch, after(30));
    run(op);
    CHECK(from_a.values() == std::vector<float>(2, 10.0F + static_cast<float>(other)));
    CHECK(from_b.values() == std::vector<float>(5, 20.0F + static_cast<float>(other)));
    rank.meet("done");
    if (rank.rank() == 0) {
      log = fakes.log();
      CHECK(rank.transport().wire_bytes() == 7 * sizeof(float));
    }
  });
  CHECK_THAT(log, Contains("rank 0: send 5 to 1, recv 5 from 1, send 2 to 1, recv 2 from 1\n"));
  CHECK_THAT(log, Contains("rank 1: send 5 to 0, recv 5 from 0, send 2 to 0, recv 2 from 0\n"));
}

TEST_CASE("nccl: groups of fewer ranks have communicators of their own") {
  const Fakes fakes;
  run_ranks("nccl", 4, [&](Rank& rank) {
    const std::uint32_t first = rank.rank() / 2 * 2;
    plugins::TransportGroup pair = rank.transport().group({.rank = rank.rank() - first,
                                                           .members = {first, first + 1},
                                                           .name = "pair",
                                                           .id = 5 + first,
                                                           .deadline = sdk::Deadline::from_border(after(30))});
    plugins::TransportGroup all = rank.group();
    const DeviceFloats data(rank, std::vector<float>(4, 1.0F));
    const DeviceFloats of_all(rank, std::vector<float>(4, 1.0F));
    plugins::TransportOp sum = pair.prepare({device_request(SR_OP_ALL_REDUCE, 1, data)}, after(30));
    plugins::TransportOp sum_of_all = all.prepare({device_request(SR_OP_ALL_REDUCE, 1, of_all)}, after(30));
    sum.start(after(30));
    sum_of_all.start(after(30));
    finish(sum_of_all);
    finish(sum);
    CHECK(data.values() == std::vector<float>(4, 2.0F));
    CHECK(of_all.values() == std::vector<float>(4, 4.0F));
  });
  CHECK(fakes.open() == 0);
  CHECK(fakes.misuses() == 0);
}
