// Training on device `cuda` over a fake of CUDA, in this process: what the host waits for, and what a step that fails
// leaves behind.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/device/cuda/emulated/emulator.h"
#include "core/device/cuda/runtime/device.h"
#include "core/device/host_tensor.h"
#include "core/device/library.h"
#include "core/runtime/communicator.h"
#include "core/train/training.h"
#include "plugins/loader/transport_queue.h"
#include "tests/support/allocations.h"
#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"
#include "tests/support/cuda/fake_cuda.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

const device::RegisterDevice cuda_registered = [] {
  device::cuda::emulated::set_enqueue(fake_cuda::enqueue);
  for (const device::LibraryKernel& each : device::kernels_of_device("cuda-emulated")) {
    const device::RegisterKernel registered("cuda", each.op, each.kernel);
  }
  return device::RegisterDevice(std::make_unique<const device::cuda::CudaDevice>());
}();

/// A training of the small transformer on a fake GPU.
struct OnGpu {
  explicit OnGpu(const std::vector<std::string>& settings = {}) : job(text_job_in(folder, settings)) {
    training.initialize();
    training.begin_at({});
  }

  [[nodiscard]] std::vector<std::byte> bytes(const char* state) {
    runtime::Executor& executor = training.executor();
    const device::HostTensor copy(executor.host(device::Access::read), executor.state(compiled.graph.find_state(state)),
                                  device::Access::read);
    return {copy.bytes().begin(), copy.bytes().end()};
  }
  void fill(const char* state, double value) {
    device::Queue& queue = training.executor().queue();
    queue.fill(training.executor().state(compiled.graph.find_state(state)), value);
    queue.finish();
  }

  TemporaryFolder folder;
  job::Job job;
  compile::Compiled compiled = compile_ready(job, "cuda");
  train::Training training{job, compiled};
};

std::vector<train::StepResult> at_once(OnGpu& at, std::int64_t steps) {
  std::vector<train::StepResult> results;
  for (std::int64_t step = 0; step < steps; ++step) {
    results.push_back(at.training.step(step));
  }
  return results;
}

/// Runs steps as a run does: each is begun before the one before is ended.
std::vector<train::StepResult> late(OnGpu& at, std::int64_t steps) {
  std::vector<train::StepResult> results;
  for (std::int64_t step = 0; step < steps; ++step) {
    at.training.begin_step(step);
    if (step > 0) {
      results.push_back(at.training.end_step(step - 1));
    }
  }
  results.push_back(at.training.end_step(steps - 1));
  return results;
}

}  // namespace

TEST_CASE("steps read late have the same bits as steps read at once", "[train][cuda]") {
  for (const char* microbatches : {"data.microbatches=1", "data.microbatches=3"}) {
    INFO(microbatches);
    OnGpu first({microbatches, "model.dropout=0.1"});
    OnGpu second({microbatches, "model.dropout=0.1"});
    REQUIRE(first.training.is_late());
    const std::vector<train::StepResult> expected = at_once(first, 5);

    const std::vector<train::StepResult> found = late(second, 5);

    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      CHECK(found[i].loss == expected[i].loss);
      CHECK(found[i].gradient_norm == expected[i].gradient_norm);
      CHECK(found[i].learning_rate == expected[i].learning_rate);
    }
    CHECK(second.bytes("layer.1/mlp/up/weights") == first.bytes("layer.1/mlp/up/weights"));
  }
}

TEST_CASE("the host waits once a step, for the step before, while the GPU has the whole next step", "[train][cuda]") {
  OnGpu at;
  static_cast<void>(late(at, 4));
  constexpr std::int64_t steps = 5;
  at.training.begin_step(4);
  const fake_cuda::Counts before = fake_cuda::counts();

  for (std::int64_t step = 5; step < 5 + steps; ++step) {
    at.training.begin_step(step);
    static_cast<void>(at.training.end_step(step - 1));
  }

  const fake_cuda::Counts after = fake_cuda::counts();
  static_cast<void>(at.training.end_step(4 + steps));
  CHECK(after.stands - before.stands == steps);
  CHECK(after.behind - before.behind == after.given - before.given);
}

TEST_CASE("a step creates no CUDA objects and allocates nothing", "[train][cuda]") {
  constexpr std::int64_t of_emulator = 2;  // allocations for the arguments of each kernel that is launched
  for (const char* microbatches : {"data.microbatches=1", "data.microbatches=3"}) {
    INFO(microbatches);
    OnGpu at({microbatches});
    static_cast<void>(late(at, 6));
    at.training.begin_step(6);
    const fake_cuda::Counts before = fake_cuda::counts();
    const auto allocated = static_cast<std::int64_t>(allocations());

    for (std::int64_t step = 7; step < 12; ++step) {
      at.training.begin_step(step);
      static_cast<void>(at.training.end_step(step - 1));
    }

    const std::int64_t more = static_cast<std::int64_t>(allocations()) - allocated;
    const fake_cuda::Counts after = fake_cuda::counts();
    static_cast<void>(at.training.end_step(11));
    CHECK(after.made == before.made);
    CHECK(more == of_emulator * (after.kernels - before.kernels));
  }
}

TEST_CASE("a failing kernel is reported with its step, though the host has begun the next", "[train][cuda]") {
  std::vector<std::int64_t> begins;  // the work given to the GPU before each step
  const auto train = [&](std::int64_t fail_at) {
    fake_cuda::set({.fail_at = fail_at});
    begins.clear();
    const std::string error = error_of([&] {
      OnGpu at;
      for (std::int64_t step = 0; step < 5; ++step) {
        begins.push_back(fake_cuda::counts().given);
        at.training.executor().begin_step(step);
        at.training.begin_step(step);
        if (step > 0) {
          static_cast<void>(at.training.end_step(step - 1));
        }
      }
    });
    fake_cuda::set({});
    return error;
  };
  REQUIRE(train(0) == "nothing");
  const std::vector<std::int64_t> works = begins;
  for (std::size_t step = 1; step < 4; ++step) {
    const std::int64_t within = (works[step] + works[step + 1]) / 2;
    CHECK_THAT(train(within),
               Contains("; the ops of step " + std::to_string(step + 1) + " that were not done, with the tensors"));
  }
}

TEST_CASE("a loss that is not finite is found one step later with the same words, and parameters are unchanged",
          "[train][cuda]") {
  OnGpu first;
  OnGpu second;
  const auto spoil = [](OnGpu& at) { at.fill("layer.1/mlp_norm/gain", 3e38); };
  static_cast<void>(first.training.step(0));
  spoil(first);
  const std::string expected = error_of([&] { static_cast<void>(first.training.step(1)); });
  REQUIRE_THAT(expected, Contains("step 2: the loss is NaN; the first tensor that is not finite: layer.1/") &&
                             Contains("The parameters are those of the step before"));
  static_cast<void>(second.training.step(0));
  spoil(second);
  second.training.begin_step(1);
  const fake_cuda::Counts before = fake_cuda::counts();
  second.training.begin_step(2);
  const fake_cuda::Counts given = fake_cuda::counts();

  const std::string found = error_of([&] { static_cast<void>(second.training.end_step(1)); });

  CHECK(given.stands == before.stands);
  CHECK(given.given > before.given);
  CHECK(fake_cuda::counts().behind - given.behind >= given.given - before.given);  // the GPU had all of step 2
  CHECK(found == expected);
  for (const char* state : {"final_norm/gain", "layer.0/mlp/up/weights", "first_moment/layer.0/mlp/up/weights"}) {
    CHECK(second.bytes(state) == first.bytes(state));
  }
}

TEST_CASE("a gradient that is not finite is found one step later with the same words", "[train][cuda]") {
  OnGpu first({"train.learning_rate=1e30"});
  OnGpu second({"train.learning_rate=1e30"});
  static_cast<void>(first.training.step(0));
  const std::string expected = error_of([&] { static_cast<void>(first.training.step(1)); });
  REQUIRE_THAT(expected, Contains("the gradient's norm is NaN; the first tensor that is not finite: gradients/"));
  second.training.begin_step(0);
  second.training.begin_step(1);
  static_cast<void>(second.training.end_step(0));
  second.training.begin_step(2);

  const std::string found = error_of([&] { static_cast<void>(second.training.end_step(1)); });

  CHECK(found == expected);
}

TEST_CASE("a gradient's norm that is not finite is found one step later with the same words", "[train][cuda]") {
  // The loss is about 1e24, and the squares of the gradients overflow.
  OnGpu first;
  OnGpu second;
  first.fill("final_norm/gain", 1e25);
  second.fill("final_norm/gain", 1e25);
  const std::vector<std::byte> weights = second.bytes("layer.0/mlp/up/weights");
  const std::string expected = error_of([&] { static_cast<void>(first.training.step(0)); });
  REQUIRE_THAT(expected, Contains(", but the gradient's norm is infinite; the first tensor that is not finite: "));
  second.training.begin_step(0);
  second.training.begin_step(1);

  const std::string found = error_of([&] { static_cast<void>(second.training.end_step(0)); });

  CHECK(found == expected);
  CHECK(second.bytes("layer.0/mlp/up/weights") == weights);
}

namespace {

/// Transfers that always bring the same number, until one is started for the third time, which fails.
class SameNumber final : public runtime::Communicator, private runtime::QueuedTransfers {
 public:
  explicit SameNumber(float number) : number_(number) {}

  Handle prepare(const partition::Transfer&, const TransferBuffers& buffers, bool) override {
    ops_.push_back(
        {.received = {static_cast<float*>(buffers.recv), buffers.recv_bytes / sizeof(float)}, .number = number_});
    return ops_.size() - 1;
  }
  void start(Handle) override { FAIL("the host starts a transfer"); }
  bool test(Handle) override { return true; }
  void wait(Handle) override { FAIL("the host waits for a transfer"); }
  runtime::QueuedTransfers* queued() noexcept override { return this; }

 private:
  struct Op {
    std::span<float> received;
    float number = 0;
    int starts = 0;
  };

  void start(Handle transfer, const plugins::TransportQueue& queue) override {
    ++ops_[transfer].starts;
    const auto receive = [](void* of) {
      const Op& op = *static_cast<const Op*>(of);
      std::ranges::fill(op.received, op.number);
    };
    REQUIRE(queue.raw().call(queue.raw().self, receive, &ops_[transfer], nullptr) == SR_OK);
  }
  void join(Handle, const plugins::TransportQueue&) override {}
  void finish(Handle transfer, const Times&) override {
    if (ops_[transfer].starts > 2) {
      throw Error(ErrorCode::peer_lost, "the other rank is gone");
    }
  }
  void abort(const std::string&) noexcept override {}
  void free_all() noexcept override {}

  float number_;
  std::deque<Op> ops_;
};

/// The step that a failed transfer names.
template <typename Act>
std::optional<std::int64_t> step_of_failure(const Act& act) {
  try {
    act();
  } catch (const runtime::TransferError& error) {
    return error.step();
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("a transfer that fails when a step runs again names that step, though the next has begun", "[train][cuda]") {
  // A loss that is not finite, and gradients whose norm overflows.
  for (const float number : {std::numeric_limits<float>::quiet_NaN(), 1e30F}) {
    INFO(number);
    SameNumber transfers(number);
    OnGpu at({"job.ranks=2", "job.strategy=dp"});
    at.training.executor().bind(transfers);
    REQUIRE(at.training.is_late());
    for (const std::int64_t step : {0, 1}) {
      at.training.executor().begin_step(step);
      at.training.begin_step(step);
    }

    const std::optional<std::int64_t> step = step_of_failure([&] { static_cast<void>(at.training.end_step(0)); });

    CHECK(step == 0);
  }
}
