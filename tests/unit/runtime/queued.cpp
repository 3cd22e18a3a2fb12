// Transfers that a device's queue starts and waits for, instead of the host.

#include <algorithm>
#include <cstring>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/partition/agreements.h"
#include "core/partition/partition.h"
#include "core/runtime/collectives.h"
#include "core/runtime/executor.h"
#include "plugins/loader/transport_queue.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/model_cases.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;

/// A function of the device `unmapped`.
extern "C" void* shardrun_test_real_address(const void* address);

namespace {

/// Reduces with another rank whose part equals this one's.
class Twin final : public runtime::Communicator, private runtime::QueuedTransfers {
 public:
  /// `in_queues`: it offers transfers in queues.
  explicit Twin(bool in_queues) : in_queues_(in_queues) {}

  Handle prepare(const partition::Transfer& transfer, const TransferBuffers& buffers, bool) override {
    REQUIRE(transfer.collective == partition::Collective::all_reduce);
    Op& op = ops_.emplace_back();
    op.buffers = buffers;
    op.is_direct = transfer.is_direct;
    op.is_sum = transfer.reduction == Reduction::sum;
    if (transfer.is_direct) {
      op.buffers.send = shardrun_test_real_address(buffers.send);
      op.buffers.recv = shardrun_test_real_address(buffers.recv);
    }
    return ops_.size() - 1;
  }
  void start(Handle handle) override { op(handle).sum(); }
  bool test(Handle) override { return true; }
  void wait(Handle) override {}
  runtime::QueuedTransfers* queued() noexcept override { return in_queues_ ? this : nullptr; }
  double exposed_seconds() const noexcept override { return finished; }
  double hidden_seconds() const noexcept override { return 2.0 * finished; }

  /// Runs of all transfers so far.
  int runs() {
    int all = 0;
    for (Op& each : ops_) {
      const std::lock_guard lock(each.mutex);
      all += each.runs;
    }
    return all;
  }
  /// The number of transfers of the programs that compute.
  std::size_t transfers() const { return static_cast<std::size_t>(std::ranges::count(ops_, true, &Op::is_sum)); }

  int finished = 0;
  std::int64_t waited = 0;
  bool fails = false;
  std::string aborted;              ///< why
  std::string aborted_before_free;  ///< the same when transfers were freed

 private:
  struct Op {
    TransferBuffers buffers;
    bool is_direct = false;
    bool is_sum = true;  ///< else the largest
    std::mutex mutex;
    int runs = 0;
    bool under_way = false;
    bool unfinished = false;
    bool freed = false;
    std::function<void()> open_gate;

    void sum() {
      const std::lock_guard lock(mutex);
      if (freed) {
        return;
      }
      const auto* const from = static_cast<const float*>(buffers.send);
      auto* const to = static_cast<float*>(buffers.recv);
      for (std::size_t i = 0; is_sum && i < buffers.recv_bytes / sizeof(float); ++i) {
        to[i] = 2 * from[i];
      }
      if (!is_sum) {
        std::memmove(buffers.recv, buffers.send, buffers.recv_bytes);
      }
      ++runs;
      end();
    }
    void end() {
      under_way = false;
      if (open_gate) {
        std::exchange(open_gate, {})();
      }
    }
  };

  Op& op(Handle handle) { return *std::next(ops_.begin(), static_cast<std::ptrdiff_t>(handle)); }

  void start(Handle handle, const plugins::TransportQueue& queue) override {
    Op& each = op(handle);
    {
      const std::lock_guard lock(each.mutex);
      REQUIRE_FALSE(each.unfinished);
      REQUIRE(queue.raw().kind == (each.is_direct ? SR_QUEUE_CUDA : SR_QUEUE_HOST));
      each.under_way = true;
      each.unfinished = true;
    }
    REQUIRE(queue.raw().call(
                queue.raw().self, [](void* self) { static_cast<Op*>(self)->sum(); }, &each, nullptr) == SR_OK);
  }
  void join(Handle handle, const plugins::TransportQueue& queue) override {
    Op& each = op(handle);
    const std::lock_guard lock(each.mutex);
    REQUIRE(queue.raw().kind == (each.is_direct ? SR_QUEUE_CUDA : SR_QUEUE_HOST));
    if (each.under_way) {
      std::uint64_t gate = 0;
      REQUIRE(queue.raw().add_gate(queue.raw().self, &gate, nullptr) == SR_OK);
      each.open_gate = [&queue, gate] { queue.raw().open_gate(queue.raw().self, gate); };
    }
  }
  void finish(Handle handle, const Times& stood) override {
    Op& each = op(handle);
    {
      const std::lock_guard lock(each.mutex);
      REQUIRE_FALSE(each.under_way);
      each.unfinished = false;
    }
    ++finished;
    waited += stood.ended - stood.begun;
    if (fails) {
      throw Error(ErrorCode::peer_lost, "the other rank is gone");
    }
  }
  void abort(const std::string& why) noexcept override { aborted = why; }
  void free_all() noexcept override {
    aborted_before_free = aborted;
    for (Op& each : ops_) {
      const std::lock_guard lock(each.mutex);
      each.freed = true;
      each.end();
    }
  }

  bool in_queues_;
  std::list<Op> ops_;
};

ModelCase mlp() { return training_case("mlp", "mlp", {{"hidden", "16"}}, {.features = 3, .outputs = 2}, {.batch = 4}); }

/// `direct`: the transport moves the device's memory.
partition::Programs programs_of(const ModelCase& model, const device::Device& device, bool direct) {
  return partition::programs_of(model.graph, partition::split(model.graph, data_parallel(2)),
                                {.device = device, .moves_device_memory = {direct}, .agreements = true});
}

/// One rank of two, on a device whose queue runs late.
struct Late {
  explicit Late(bool in_queues, bool direct = false)
      : programs(programs_of(model, device, direct)), communicator(in_queues), executor(programs, device) {
    executor.bind(communicator);
    for (const graph::StateId s : model.graph.states.ids()) {
      fill(executor.state(s), 0.5F);
    }
  }

  void fill(const device::TensorView& view, double value) {
    executor.queue().fill(view, value);
    executor.queue().finish();
  }
  void micro(double input) {
    const device::HostAccess host = executor.host(device::Access::write);
    const device::TensorView inputs = executor.input(program, "inputs");
    device::HostTensor x(host, inputs, device::Access::write);
    device::HostTensor y(host.without(inputs), executor.input(program, "targets"), device::Access::write);
    for (device::HostTensor* const tensor : {&x, &y}) {
      std::ranges::fill(device::elements_of<float>(tensor->view()), static_cast<float>(input));
    }
    x.store();
    y.store();
    executor.run(program, device::Scalars{});
  }
  /// Gives the device an agreement on the value that `wish` has when the device reaches it. Returns the
  /// agreement's end.
  device::Event agree_later(std::int32_t& wish) {
    given = {.from = &wish, .to = executor.kept(slot).data()};
    executor.agree_later(
        executor.find(partition::agreement_function, 0), slot,
        [](void* argument) {
          const Given& each = *static_cast<const Given*>(argument);
          std::memcpy(each.to, each.from, sizeof(std::int32_t));
        },
        &given);
    return executor.mark();
  }
  std::int32_t agreed() {
    std::int32_t number = 0;
    std::memcpy(&number, executor.kept(slot).data(), sizeof(number));
    return number;
  }
  std::vector<float> gradient() { return values_of("gradients/layer_0/weights"); }
  std::vector<float> values_of(const std::string& state) {
    const device::HostTensor found(executor.host(device::Access::read), executor.state(model.graph.find_state(state)),
                                   device::Access::read);
    const std::span<const float> values = device::elements_of<float>(found.view());
    return {values.begin(), values.end()};
  }

  struct Given {
    const std::int32_t* from = nullptr;
    std::byte* to = nullptr;
  };
  static constexpr std::size_t slot = 4;

  ModelCase model = mlp();
  const device::Device& device = device::Device::find("unmapped");
  Given given;
  partition::Programs programs;
  Twin communicator;
  runtime::Executor executor;
  std::size_t program = executor.find("micro", 4);
};

}  // namespace

TEST_CASE("the host gives a device a program with its transfers, and waits for what it reads", "[runtime]") {
  const auto trained = [](bool in_queues, bool direct) {
    Late late(in_queues, direct);
    for (int call = 1; call <= 3; ++call) {
      late.micro(0.25 * call);
      if (in_queues) {
        // A transfer's run before was waited for, since it was to be started again. The rest has not begun.
        const int before = (call - 1) * static_cast<int>(late.communicator.transfers());
        CHECK(late.communicator.runs() == before);
        CHECK(late.communicator.finished == before);
      }
    }
    const std::vector<float> gradient = late.gradient();
    CHECK(late.communicator.transfers() > 1);
    CHECK(late.communicator.runs() == 3 * static_cast<int>(late.communicator.transfers()));
    CHECK(late.communicator.finished == (in_queues ? late.communicator.runs() : 0));
    CHECK((late.communicator.waited > 0) == in_queues);
    return gradient;
  };

  const std::vector<float> expected = trained(false, false);
  CHECK(trained(true, false) == expected);
  CHECK(trained(true, true) == expected);
  CHECK(trained(false, true) == expected);
}

TEST_CASE("kernels wait for what a transfer brings, in both memories", "[runtime]") {
  const auto trained = [](bool in_queues, bool direct) {
    Late late(in_queues, direct);
    for (int step = 1; step <= 5; ++step) {
      late.micro(0.25 * step);
      late.executor.run(late.executor.find(graph::Role::once), device::Scalars{.step = step, .learning_rate = 0.1});
    }
    return late.values_of("layer_0/weights");
  };

  const std::vector<float> expected = trained(false, false);
  CHECK(expected.front() != 0.5F);
  CHECK(trained(true, false) == expected);
  CHECK(trained(true, true) == expected);
}

TEST_CASE("reading a device's results throws the error of a failed transfer", "[runtime]") {
  for (const bool by_queue : {false, true}) {
    Late late(true);
    late.micro(1);
    late.communicator.fails = true;
    CHECK(error_of([&] {
            if (by_queue) {
              static_cast<void>(late.executor.queue());
            } else {
              static_cast<void>(late.gradient());
            }
          }).find("the other rank is gone") != std::string::npos);
  }
}

TEST_CASE("a later agreement uses what the rank wants once the device has done the work before it", "[runtime]") {
  for (const bool direct : {false, true}) {
    Late late(true, direct);
    std::int32_t wish = 0;
    late.micro(1);
    const device::Event end = late.agree_later(wish);
    wish = 60;  // the device has not done the work before

    late.executor.reach(end);

    CHECK(late.agreed() == 60);
  }
}

TEST_CASE("a failed transfer names the step that started it, though the host has begun the next", "[runtime]") {
  const auto failed = [](const auto& act) -> std::optional<std::int64_t> {
    try {
      act();
    } catch (const runtime::TransferError& error) {
      CHECK(error.code() == ErrorCode::peer_lost);
      CHECK(error.message() == "the other rank is gone");
      return error.step();
    }
    return std::nullopt;
  };
  for (const bool in_agreement : {false, true}) {
    Late late(true);
    std::int32_t wish = 0;
    late.executor.begin_step(3);
    if (!in_agreement) {
      late.micro(1);
    }
    const device::Event agreed = late.agree_later(wish);
    late.executor.begin_step(4);
    late.communicator.fails = true;

    const std::optional<std::int64_t> step = failed([&] {
      if (in_agreement) {
        late.executor.reach(agreed);
      } else {
        late.micro(1);  // starts transfers again
      }
    });

    CHECK(step == 3);
  }
}

TEST_CASE("the times of transfers do not include agreements", "[runtime]") {
  Late late(true);
  std::int32_t wish = 0;
  late.micro(1);
  late.executor.reach(late.executor.mark());
  const int of_program = late.communicator.finished;
  REQUIRE(of_program > 0);

  late.executor.reach(late.agree_later(wish));

  CHECK(late.communicator.finished == of_program + 1);
  CHECK(late.executor.exposed_seconds() == of_program);
  CHECK(late.executor.hidden_seconds() == 2 * of_program);
}

TEST_CASE("an executor that is destroyed ends its transfers without running them", "[runtime]") {
  const ModelCase model = mlp();
  const device::Device& device = device::Device::find("unmapped");
  const partition::Programs programs = programs_of(model, device, true);
  Twin communicator(true);
  {
    runtime::Executor executor(programs, device);
    executor.bind(communicator);
    executor.run(executor.find("micro", 4), device::Scalars{});
  }
  CHECK(communicator.transfers() > 1);
  CHECK(communicator.runs() == 0);
  CHECK(communicator.aborted.empty());
}

TEST_CASE("a failing rank aborts its queued transfers before they are freed", "[runtime]") {
  const ModelCase model = mlp();
  const device::Device& device = device::Device::find("unmapped");
  const partition::Programs programs = programs_of(model, device, true);
  for (const bool in_queues : {false, true}) {
    Twin communicator(in_queues);
    CHECK(error_of([&] {
            runtime::Executor executor(programs, device);
            executor.bind(communicator);
            throw Error(ErrorCode::numerics, "the loss is NaN");
          }) == "1: the loss is NaN");
    CHECK(communicator.aborted_before_free == (in_queues ? "this rank has failed" : ""));

    runtime::Executor executor(programs, device);
    executor.bind(communicator);
    executor.abort_transfers("told");
    CHECK(communicator.aborted == (in_queues ? "told" : ""));
  }
}

TEST_CASE("the hidden time of transfers does not include waits", "[runtime]") {
  runtime::Waits waits;
  CHECK(waits.outside({10, 30}) == 20);
  waits.add({0, 5});
  waits.add({12, 15});
  waits.add({28, 40});
  CHECK(waits.outside({10, 30}) == 15);
  CHECK(waits.outside({29, 39}) == 0);
  CHECK(waits.outside({50, 60}) == 10);
  for (int i = 0; i < 64; ++i) {
    waits.add({100 + 2 * i, 101 + 2 * i});
  }
  CHECK(waits.outside({10, 110}) == 5);  // what was before the waits that are still known does not count
}
