#include <atomic>
#include <string>
#include <vector>

#include "plugins/loader/transport_queue.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/unit/transports_nccl/fakes.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

namespace {

/// A stream of the fake driver, as a queue of a rank's device.
class StreamQueue final : public plugins::TransportQueue {
 public:
  explicit StreamQueue(std::uint32_t device) : StreamQueue(device, made(device)) {}
  ~StreamQueue() override {
    const DeviceUse use(device_);
    (void)SHARDRUN_DRIVER(cuStreamDestroy)(stream_);
  }

  void call(void (*)(void*), void*) override { throw Error(ErrorCode::internal, "a stream needs no calls"); }
  std::uint64_t add_gate() override { throw Error(ErrorCode::internal, "a stream needs no gates"); }
  void open_gate(std::uint64_t) noexcept override {}

  [[nodiscard]] CUstream stream() const { return stream_; }
  /// Whether the work that it was given until now is done.
  [[nodiscard]] bool is_done() const {
    const DeviceUse use(device_);
    CUevent event = nullptr;
    (void)SHARDRUN_DRIVER(cuEventCreate)(&event, 0);
    (void)SHARDRUN_DRIVER(cuEventRecord)(event, stream_);
    const bool done = SHARDRUN_DRIVER(cuEventQuery)(event) == CUDA_SUCCESS;
    (void)SHARDRUN_DRIVER(cuEventDestroy)(event);
    return done;
  }
  void synchronize() const {
    const DeviceUse use(device_);
    (void)SHARDRUN_DRIVER(cuStreamSynchronize)(stream_);
  }

 private:
  StreamQueue(std::uint32_t device, CUstream stream)
      : TransportQueue(SR_QUEUE_CUDA, stream, device), device_(device), stream_(stream) {}
  static CUstream made(std::uint32_t device) {
    const DeviceUse use(device);
    CUstream stream = nullptr;
    (void)SHARDRUN_DRIVER(cuStreamCreate)(&stream, 0);
    return stream;
  }

  std::uint32_t device_;
  CUstream stream_;
};

/// A queue of a kind that no transport takes.
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
    const DeviceFloats data(rank, std::vector<float>(3, 1.0F + static_cast<float>(rank.rank())));
    plugins::TransportOp op = group.prepare({device_request(SR_OP_ALL_REDUCE, 1, data)}, after(30));
    if (rank.rank() == 0) {
      op.enqueue(first, 30'000'000'000);
      op.join(second);
      CHECK_FALSE(second.is_done());
      CHECK_FALSE(op.test());
    }
    rank.meet("enqueued");
    if (rank.rank() == 1) {
      op.enqueue(first, 30'000'000'000);
      op.join(second);
    }
    rank.meet("both");
    second.synchronize();
    CHECK(data.values() == std::vector<float>(3, 3.0F));
    finish(op);
    rank.meet("done");
  });
  CHECK(fakes.misuses() == 0);
}

TEST_CASE("nccl: queues of other kinds and of other devices are refused") {
  const Fakes fakes;
  run_ranks("nccl", 1, [&](Rank& rank) {
    plugins::TransportGroup group = rank.group();
    const DeviceFloats data(rank, std::vector<float>(3, 1.0F));
    plugins::TransportOp op = group.prepare({device_request(SR_OP_ALL_REDUCE, 1, data)}, after(30));
    const OtherQueue host;
    const StreamQueue elsewhere(1);

    CHECK_THAT(error_of([&] { op.enqueue(host, 30'000'000'000); }), Contains("queues of kind 3 are not offered"));
    CHECK_THAT(error_of([&] { op.join(host); }), Contains("queues of kind 3 are not offered"));
    CHECK_THAT(error_of([&] { op.enqueue(elsewhere, 30'000'000'000); }),
               Contains("its queue is of device 1, and this rank's is 0"));
  });
}

TEST_CASE("nccl: an op begins when its queue reaches it") {
  const Fakes fakes;
  run_ranks("nccl", 2, [&](Rank& rank) {
    const StreamQueue queue(rank.rank());
    plugins::TransportGroup group = rank.group();
    const DeviceFloats data(rank, std::vector<float>(3));
    plugins::TransportOp op = group.prepare({device_request(SR_OP_ALL_REDUCE, 1, data)}, after(30));
    const std::vector<float> ones(3, 1.0F);
    for (int round = 1; round <= 20; ++round) {  // the fake's streams take another order each time
      const DeviceUse use(rank.rank());
      (void)SHARDRUN_DRIVER(cuMemcpyHtoDAsync)(reinterpret_cast<CUdeviceptr>(data.data()), ones.data(), data.bytes(),
                                               queue.stream());
      op.enqueue(queue, 30'000'000'000);
      op.join(queue);
      queue.synchronize();
      CHECK(data.values() == std::vector<float>(3, 2.0F));
      finish(op);
    }
  });
  CHECK(fakes.misuses() == 0);
}

TEST_CASE("nccl: an enqueued op without its peer fails at its timeout, and names the peer") {
  const Fakes fakes;
  run_ranks("nccl", 2, [&](Rank& rank) {
    const StreamQueue queue(rank.rank());
    plugins::TransportGroup group = rank.group();
    const DeviceFloats data(rank, std::vector<float>(3));
    plugins::TransportOp op = group.prepare({device_request(SR_OP_ALL_REDUCE, 1, data)}, after(30));
    if (rank.rank() == 0) {
      op.enqueue(queue, 50'000'000);
      try {
        finish(op);
        FAIL("an op without its peer is complete");
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::timeout);
        CHECK_THAT(error.message(), Contains("all_reduce (sum) of 3 f32 is past its deadline, waiting for member 1"));
      }
    }
    rank.meet("end");
    group.abort("enough");
  });
  CHECK(fakes.misuses() == 0);
}

TEST_CASE("nccl: time in which a queue is held up does not count toward the timeout of its ops") {
  const Fakes fakes;
  run_ranks("nccl", 2, [&](Rank& rank) {
    const StreamQueue queue(rank.rank());
    plugins::TransportGroup one = rank.group(1);
    plugins::TransportGroup two = rank.group(2);
    const DeviceFloats data(rank, std::vector<float>(3, 1.0F));
    plugins::TransportOp before = one.prepare({device_request(SR_OP_ALL_REDUCE, 1, data)}, after(30));
    plugins::TransportOp op = two.prepare({device_request(SR_OP_ALL_REDUCE, 1, data)}, after(30));
    constexpr std::int64_t time = 2'000'000'000;
    if (rank.rank() == 0) {
      before.enqueue(queue, 30'000'000'000);
      op.enqueue(queue, time);
      CHECK_FALSE(op.wait(after(3)));  // longer than the op may take
      CHECK_FALSE(two.error());
    }
    rank.meet("held");
    if (rank.rank() == 1) {
      before.enqueue(queue, 30'000'000'000);
      op.enqueue(queue, 30'000'000'000);
    }
    finish(before);
    finish(op);
    CHECK(data.values() == std::vector<float>(3, 4.0F));
    rank.meet("end");
  });
  CHECK(fakes.misuses() == 0);
}

TEST_CASE("nccl: streams that do not wait for each other give wrong numbers") {
  const Fakes fakes;
  const auto forget = fake<FakeCudaForget>("fake_cuda_forget");
  std::atomic<int> wrong = 0;
  run_ranks("nccl", 2, [&](Rank& rank) {
    plugins::TransportGroup one = rank.group(1);
    plugins::TransportGroup two = rank.group(2);
    const StreamQueue first(rank.rank());
    const StreamQueue second(rank.rank());
    const DeviceFloats data(rank, std::vector<float>(3));
    const DeviceFloats sum(rank, std::vector<float>(3));
    const DeviceFloats sum_of_sums(rank, std::vector<float>(3));
    sdk::OpSpec request = device_request(SR_OP_ALL_REDUCE, 1, data);
    request.recv = sum.buffer();
    plugins::TransportOp op = one.prepare({request}, after(30));
    request.send = sum.buffer();
    request.recv = sum_of_sums.buffer();
    plugins::TransportOp next = two.prepare({request}, after(30));
    // A rank that has seen wrong numbers leaves. The other must leave too: it would wait until its deadline.
    const auto is_over = [&](plugins::TransportOp& each) {
      while (!each.wait(after(0.01))) {
        if (wrong > 0) {
          return false;
        }
      }
      return true;
    };
    for (int round = 1; round <= 20; ++round) {
      data.write(0, std::vector<float>(3, static_cast<float>(round)).data(), data.bytes());
      forget(-1);
      op.enqueue(first, 30'000'000'000);
      op.join(second);
      next.enqueue(second, 30'000'000'000);
      try {
        if (!is_over(op) || !is_over(next)) {
          break;
        }
        wrong += sum_of_sums.values() == std::vector<float>(3, 4 * static_cast<float>(round)) ? 0 : 1;
      } catch (const Error&) {  // what it sends has changed meanwhile
        ++wrong;
        break;
      }
    }
    one.abort("enough");
    two.abort("enough");
  });
  forget(0);
  CHECK(wrong > 0);
}
