#include <cuda.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "plugins/conformance/values.h"
#include "plugins/loader/transport_queue.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/unit/transports_nccl/fakes.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;
using conformance::Shape;

namespace {

bool is_offered(const Shape& shape) {
  const bool floating = shape.dtype <= SR_DTYPE_BF16;
  return !(sdk::find_opcode(shape.opcode)->reduces && floating && shape.reduction >= SR_REDUCE_MIN);
}

/// One collective on one rank, with the data of the conformance suite.
class Moved {
 public:
  Moved(Rank& rank, plugins::TransportGroup& group, const Shape& shape, std::uint64_t id, bool in_place)
      : rank_(rank.rank()), shape_(shape), spec_(conformance::op_of(shape, rank_)) {
    const std::size_t size = sdk::dtype_size(shape.dtype);
    const std::size_t sends = sdk::send_elements(spec_, rank_, shape.members) * size;
    const std::size_t receives = sdk::recv_elements(spec_, rank_, shape.members) * size;
    const bool one_buffer = in_place && sdk::detail::in_place_offset(spec_, rank_) && sends != 0 && receives != 0;
    sent_.resize(one_buffer ? std::max(sends, receives) : sends);
    received_.resize(one_buffer ? 0 : receives);
    send_ = sent_.data() + (one_buffer ? sdk::recv_block(spec_, rank_, rank_).offset * size : 0);
    recv_ = one_buffer ? sent_.data() + sdk::send_block(spec_, rank_, rank_).offset * size : received_.data();
    plugins::OpRequest request;
    request.opcode = spec_.opcode;
    request.dtype = spec_.opcode == SR_OP_BARRIER ? 0 : spec_.dtype;
    request.reduction = sdk::find_opcode(spec_.opcode)->reduces ? spec_.reduction : 0;
    request.peer = spec_.peer;
    request.id = id;
    request.count = spec_.count;
    request.send_counts = spec_.send_counts;
    request.recv_counts = spec_.recv_counts;
    if (spec_.opcode != SR_OP_BARRIER) {
      request.send = plugins::HostBuffer{.data = send_, .bytes = sends, .kind = SR_MEMORY_CUDA, .device = rank_};
      request.recv = plugins::HostBuffer{.data = recv_, .bytes = receives, .kind = SR_MEMORY_CUDA, .device = rank_};
    }
    op_.push_back(group.prepare({request}, after(30)));
  }

  /// What is wrong with what arrived, or nothing.
  std::string run(std::uint32_t round) {
    conformance::write_elements(shape_.dtype, conformance::sent(shape_, rank_, round), send_);
    test::run(op_[0]);
    const std::vector<double> expected = conformance::expected(shape_, rank_, round);
    const bool same = conformance::read_elements(shape_.dtype, recv_, expected.size()) == expected;
    return same ? "" : sdk::describe(spec_) + " on member " + std::to_string(rank_);
  }

 private:
  std::uint32_t rank_;
  Shape shape_;
  sdk::OpSpec spec_;
  std::vector<unsigned char> sent_;
  std::vector<unsigned char> received_;
  unsigned char* send_ = nullptr;
  unsigned char* recv_ = nullptr;
  std::vector<plugins::TransportOp> op_;
};

}  // namespace

TEST_CASE("nccl: every op of every dtype moves what it should, in place and not, handed over at once or later") {
  const Fakes fakes(GENERATE(0, 3));
  const std::uint32_t members = GENERATE(1U, 2U, 3U, 4U);
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

TEST_CASE("nccl: an op that is made of several calls is one group") {
  const Fakes fakes;
  std::string log;
  run_ranks("nccl", 2, [&](Rank& rank) {
    plugins::TransportGroup group = rank.group();
    std::vector<float> send(3, 1.0F);
    std::vector<float> recv(3);
    plugins::OpRequest request = device_request(rank, SR_OP_ALL_GATHERV, 1, send);
    request.count = 0;
    request.recv_counts = {1, 2};
    request.send->bytes = sizeof(float) * (1 + rank.rank());
    request.recv = device_buffer(rank, recv);
    plugins::TransportOp op = group.prepare({request}, after(30));
    rank.meet("prepared");
    if (rank.rank() == 0) {
      (void)fakes.log();
    }
    rank.meet("logged");
    run(op);
    CHECK(recv == std::vector<float>(3, 1.0F));
    rank.meet("done");
    if (rank.rank() == 0) {
      log = fakes.log();
    }
  });
  CHECK_THAT(log, Contains("rank 0: broadcast 1 of 0, broadcast 2 of 1\n"));
  CHECK_THAT(log, Contains("rank 1: broadcast 1 of 0, broadcast 2 of 1\n"));
}

TEST_CASE("nccl: sends and receives of a batch are one group, and find each other by their ids") {
  const Fakes fakes;
  std::string log;
  run_ranks("nccl", 2, [&](Rank& rank) {
    plugins::TransportGroup group = rank.group();
    const std::uint32_t other = 1 - rank.rank();
    std::vector<float> a(2, 10.0F + static_cast<float>(rank.rank()));
    std::vector<float> b(5, 20.0F + static_cast<float>(rank.rank()));
    std::vector<float> from_a(2);
    std::vector<float> from_b(5);
    std::vector<plugins::OpRequest> batch = {
        device_request(rank, SR_OP_SEND, 7, a, other), device_request(rank, SR_OP_SEND, 3, b, other),
        device_request(rank, SR_OP_RECV, 3, from_b, other), device_request(rank, SR_OP_RECV, 7, from_a, other)};
    if (rank.rank() == 1) {
      std::swap(batch[0], batch[1]);
      std::swap(batch[2], batch[3]);
    }
    plugins::TransportOp op = group.prepare(batch, after(30));
    run(op);
    CHECK(from_a == std::vector<float>(2, 10.0F + static_cast<float>(other)));
    CHECK(from_b == std::vector<float>(5, 20.0F + static_cast<float>(other)));
    rank.meet("done");
    if (rank.rank() == 0) {
      log = fakes.log();
      CHECK(rank.transport().wire_bytes() == 7 * sizeof(float));
    }
  });
  CHECK_THAT(log, Contains("rank 0: send 5 to 1, recv 5 from 1, send 2 to 1, recv 2 from 1\n"));
  CHECK_THAT(log, Contains("rank 1: send 5 to 0, recv 5 from 0, send 2 to 0, recv 2 from 0\n"));
}

TEST_CASE("nccl: groups of some ranks have communicators of their own") {
  const Fakes fakes;
  run_ranks("nccl", 4, [&](Rank& rank) {
    const std::uint32_t first = rank.rank() / 2 * 2;
    plugins::TransportGroup pair = rank.transport().group({.name = "pair",
                                                           .id = 5 + first,
                                                           .rank = rank.rank() - first,
                                                           .members = {first, first + 1},
                                                           .deadline = after(30)});
    plugins::TransportGroup all = rank.group();
    std::vector<float> data(4, 1.0F);
    std::vector<float> of_all(4, 1.0F);
    plugins::TransportOp sum = pair.prepare({device_request(rank, SR_OP_ALL_REDUCE, 1, data)}, after(30));
    plugins::TransportOp sum_of_all = all.prepare({device_request(rank, SR_OP_ALL_REDUCE, 1, of_all)}, after(30));
    sum.start(after(30));
    sum_of_all.start(after(30));
    finish(sum_of_all);
    finish(sum);
    CHECK(data == std::vector<float>(4, 2.0F));
    CHECK(of_all == std::vector<float>(4, 4.0F));
  });
  CHECK(fakes.open() == 0);
  CHECK(fakes.misuses() == 0);
}

// The name of a function of the driver, which may be a macro with a version.
#define SHARDRUN_TEXT_OF(name) #name
#define SHARDRUN_TEXT(name) SHARDRUN_TEXT_OF(name)

namespace {

/// A stream of the fake driver, as a queue of a rank's device.
class StreamQueue final : public plugins::TransportQueue {
 public:
  explicit StreamQueue(std::uint32_t device) : StreamQueue(device, made()) {}
  ~StreamQueue() override { fake<decltype(&cuStreamDestroy)>(SHARDRUN_TEXT(cuStreamDestroy))(stream_); }

  void call(void (*)(void*), void*) override { throw Error(ErrorCode::internal, "a stream needs no calls"); }
  std::uint64_t add_gate() override { throw Error(ErrorCode::internal, "a stream needs no gates"); }
  void open_gate(std::uint64_t) noexcept override {}

  /// Whether the work that it was given until now is done.
  [[nodiscard]] bool is_done() const {
    CUevent event = nullptr;
    fake<decltype(&cuEventCreate)>(SHARDRUN_TEXT(cuEventCreate))(&event, 0);
    fake<decltype(&cuEventRecord)>(SHARDRUN_TEXT(cuEventRecord))(event, stream_);
    const bool done = fake<decltype(&cuEventQuery)>(SHARDRUN_TEXT(cuEventQuery))(event) == CUDA_SUCCESS;
    fake<decltype(&cuEventDestroy)>(SHARDRUN_TEXT(cuEventDestroy))(event);
    return done;
  }

 private:
  StreamQueue(std::uint32_t device, CUstream stream) : TransportQueue(SR_QUEUE_CUDA, stream, device), stream_(stream) {}
  static CUstream made() {
    CUstream stream = nullptr;
    fake<decltype(&cuStreamCreate)>(SHARDRUN_TEXT(cuStreamCreate))(&stream, 0);
    return stream;
  }

  CUstream stream_;
};

/// A queue of a kind that no one takes.
class OtherQueue final : public plugins::TransportQueue {
 public:
  OtherQueue() : TransportQueue(3) {}
  void call(void (*)(void*), void*) override {}
  std::uint64_t add_gate() override { return 1; }
  void open_gate(std::uint64_t) noexcept override {}
};

}  // namespace

TEST_CASE("nccl: an op is enqueued in a stream, and another stream waits for it") {
  const Fakes fakes(GENERATE(0, 3));
  run_ranks("nccl", 2, [&](Rank& rank) {
    CHECK(rank.transport().props().queue_kinds == 1U << SR_QUEUE_CUDA);
    CHECK(rank.transport().props().memory_kinds == 1U << SR_MEMORY_CUDA);
    const StreamQueue first(rank.rank());
    const StreamQueue second(rank.rank());
    plugins::TransportGroup group = rank.group();
    std::vector<float> data(3, 1.0F + static_cast<float>(rank.rank()));
    plugins::TransportOp op = group.prepare({device_request(rank, SR_OP_ALL_REDUCE, 1, data)}, after(30));
    if (rank.rank() == 0) {
      op.enqueue(first, 30'000'000'000);
      op.join(second);
      CHECK_FALSE(first.is_done());
      CHECK_FALSE(second.is_done());
      CHECK_FALSE(op.test());
    }
    rank.meet("enqueued");
    if (rank.rank() == 1) {
      op.enqueue(first, 30'000'000'000);
      op.join(second);
    }
    rank.meet("both");
    CHECK(second.is_done());
    CHECK(data == std::vector<float>(3, 3.0F));
    finish(op);
    rank.meet("done");
  });
  CHECK(fakes.misuses() == 0);
}

TEST_CASE("nccl: queues of other kinds and of other devices are refused") {
  const Fakes fakes;
  run_ranks("nccl", 1, [&](Rank& rank) {
    plugins::TransportGroup group = rank.group();
    std::vector<float> data(3, 1.0F);
    plugins::TransportOp op = group.prepare({device_request(rank, SR_OP_ALL_REDUCE, 1, data)}, after(30));
    const OtherQueue host;
    const StreamQueue elsewhere(1);

    CHECK_THAT(error_of([&] { op.enqueue(host, 30'000'000'000); }), Contains("queues of kind 3 are not offered"));
    CHECK_THAT(error_of([&] { op.join(host); }), Contains("queues of kind 3 are not offered"));
    CHECK_THAT(error_of([&] { op.enqueue(elsewhere, 30'000'000'000); }),
               Contains("its queue is of device 1, and this rank's is 0"));
  });
}
