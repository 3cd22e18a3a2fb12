// Queues of the device `cuda` over a fake of CUDA: what the tests of all devices do not check.

#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "core/device/cuda/copies.h"
#include "core/device/cuda/known_kernels.h"
#include "tests/support/allocations.h"
#include "tests/support/errors.h"
#include "tests/unit/device/on_gpu.h"

using namespace shardrun;
using namespace shardrun::device;
using Catch::Matchers::Contains;
using graph::DType;
using test::OnGpu;

namespace {

constexpr std::array<std::int64_t, 1> one = {1};

/// A chain of values over both queues, each computed from the other queue's. Returns the last value, read by the host.
float chain(OnGpu& at, int turns) {
  for (int turn = 1; turn <= turns; ++turn) {
    at.queue->fill(at.view(0, 1), turn);
    at.other->wait(at.queue->record());
    at.other->copy({.from = at.view(0, 1).data,
                    .to = at.view(turn, 1).data,
                    .element_bytes = 4,
                    .shape = one,
                    .from_strides = one,
                    .to_strides = one});
    at.queue->wait(at.other->record());
  }
  std::vector<float> found(static_cast<std::size_t>(turns));
  at.other->read(at.view(1, turns).data, std::as_writable_bytes(std::span(found)));
  at.other->finish();
  for (int turn = 1; turn <= turns; ++turn) {
    if (found[static_cast<std::size_t>(turn - 1)] != static_cast<float>(turn)) {
      return found[static_cast<std::size_t>(turn - 1)];
    }
  }
  return static_cast<float>(turns);
}

}  // namespace

TEST_CASE("cuda: queues that wait for events have the same results in any order of the streams", "[device][cuda]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    OnGpu at({.seed = seed});
    CHECK(chain(at, 40) == 40);
  }
}

TEST_CASE("cuda: leaving out a wait gives a wrong number", "[device][cuda]") {
  int wrong = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    OnGpu at({.seed = seed, .forget = 7});
    wrong += chain(at, 40) == 40 ? 0 : 1;
  }
  CHECK(wrong >= 5);
}

TEST_CASE("cuda: gates are opened in any order, by any thread", "[device][cuda]") {
  OnGpu at;
  const std::uint64_t first = at.queue->add_gate();
  at.queue->fill(at.view(0, 1), 1);
  const std::uint64_t second = at.queue->add_gate();
  at.queue->fill(at.view(1, 1), 2);
  at.queue->open_gate(second);
  std::thread opener([&] { at.queue->open_gate(first); });
  std::array<float, 2> found = {};
  at.queue->read(at.memory->data(), std::as_writable_bytes(std::span(found)));
  at.queue->finish();
  opener.join();
  CHECK(found == std::array<float, 2>{1, 2});
}

TEST_CASE("cuda: without stream memory operations the driver runs kernels and only refuses gates", "[device][cuda]") {
  for (const int stream_values : {0, 2}) {
    OnGpu at({.fail_at = 200, .stream_values = stream_values});
    const Kernel kernel = {
        .run = [](const KernelCall& call) { cuda::fill_elements(call, call.outputs[0].data, 1, 4, 0); }, .op = "gelu"};
    const graph::Attributes attributes;
    const auto prepared = at.device.prepare(kernel, attributes, {}, {at.view(1, 1)}, {}, "layer.0/act");
    at.queue->begin_step(1);
    for (int i = 0; i < 40; ++i) {
      at.queue->run(*prepared, false, {});  // more runs than there are between two notes of progress
    }
    CHECK(chain(at, 5) == 5);
    CHECK_THAT(test::error_of([&] { static_cast<void>(at.other->add_gate()); }),
               Contains("GPU 0: adding a gate for a transfer over the host's memory (staging): the NVIDIA driver lacks "
                        "or refuses cuStreamWaitValue32"));
    CHECK_THAT(test::error_of([&] {
                 for (int i = 0; i < 200; ++i) {
                   at.queue->run(*prepared, false, {});
                 }
                 at.queue->finish();
               }),
               Contains("(cudaErrorIllegalAddress); the driver does not note which ops were done"));
  }
}

TEST_CASE("cuda: a queue's times and answers are there once a queue that waited for it has finished",
          "[device][cuda]") {
  OnGpu at;
  std::int64_t begun = 0;
  std::int64_t ended = 0;
  bool finite = true;
  at.queue->stamp(begun);
  at.queue->fill(at.view(0, 100), std::numeric_limits<double>::infinity());
  at.queue->check_finite(at.view(0, 100), finite);
  at.queue->stamp(ended);
  at.other->wait(at.queue->record());
  at.other->finish();
  CHECK_FALSE(finite);
  CHECK(begun > 0);
  CHECK(ended >= begun);
}

TEST_CASE("cuda: numbers that are not finite are found in every type, and integers are finite", "[device][cuda]") {
  OnGpu at;
  const double infinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const double value : {1.5, -2.0, infinity, -infinity, std::nan("")}) {
      at.queue->fill(at.view(0, 33, dtype), value);
      CHECK(is_finite(*at.queue, at.view(0, 33, dtype)) == std::isfinite(value));
    }
  }
  at.queue->fill(at.view(0, 5, DType::i32), -1);
  CHECK(is_finite(*at.queue, at.view(0, 5, DType::i32)));
}

TEST_CASE("cuda: a queue answers more questions than it has flags", "[device][cuda]") {
  OnGpu at;
  at.queue->fill(at.view(0, 4), 1);
  at.queue->fill(at.view(4, 4), std::nan(""));
  std::vector<std::unique_ptr<bool>> finite;
  for (int i = 0; i < 600; ++i) {
    finite.push_back(std::make_unique<bool>(i % 2 == 1));
    at.queue->check_finite(at.view(i % 2 * 4, 4), *finite.back());
  }
  at.queue->finish();
  for (int i = 0; i < 600; ++i) {
    CHECK(*finite[static_cast<std::size_t>(i)] == (i % 2 == 0));
  }
}

TEST_CASE("cuda: a queue reuses its events, and waiting for an old one returns", "[device][cuda]") {
  OnGpu at;
  at.queue->fill(at.view(0, 1), 1);
  const Event old = at.queue->record();
  for (int i = 0; i < 20; ++i) {
    at.queue->fill(at.view(0, 1), i);
    at.queue->finish(at.queue->record());
  }
  const std::int64_t held = test::fake_cuda::held();
  for (int i = 0; i < 200; ++i) {
    at.queue->fill(at.view(0, 1), i);
    at.queue->finish(at.queue->record());
  }
  CHECK(test::fake_cuda::held() == held);
  at.other->wait(old);
  at.queue->finish(old);
}

TEST_CASE("cuda: a queue of transfers has the greatest priority, and tells its stream", "[device][cuda]") {
  OnGpu gpu;
  CHECK(gpu.device.memory_kind() == MemoryKind::cuda);
  CHECK(gpu.queue->native() != nullptr);
  CHECK(gpu.queue->native() != gpu.other->native());
  const std::unique_ptr<Queue> transfers = gpu.device.open_transfer_queue(gpu.threads);
  // After each stream comes the one in which the host copies.
  CHECK(test::fake_cuda::priorities() == std::vector<int>{0, 0, 0, 0, -5, 0});
}

TEST_CASE("cuda: a queue allocates nothing for as much work as it had before", "[device][cuda]") {
  OnGpu at;
  std::vector<float> room(64);
  std::vector<float> other_memory(64);
  const auto pinned = at.device.pin(std::as_writable_bytes(std::span(room)));
  std::int64_t time = 0;
  int calls = 0;
  const Kernel kernel = {
      .run =
          [](const KernelCall& call) { test::fake_cuda::enqueue(call.stream, cuda::known_kernels().front(), [] {}); },
      .op = "gelu"};
  const graph::Attributes attributes;
  const auto prepared = at.device.prepare(kernel, attributes, {at.view(0, 4)}, {at.view(4, 4)}, {}, "layer.0/act");
  const auto step = [&] {
    for (int i = 0; i < 20; ++i) {
      at.queue->write(std::as_bytes(std::span(room)), at.memory->data());
      at.queue->write(std::as_bytes(std::span(other_memory)), at.memory->data() + 256);
      at.queue->run(*prepared, false, {});
      at.queue->stamp(time);
      const std::uint64_t gate = at.other->add_gate();
      const std::uint64_t later = at.other->add_gate();
      at.other->wait(at.queue->record());
      at.other->call([](void* count) { ++*static_cast<int*>(count); }, &calls);
      at.other->open_gate(later);
      at.other->open_gate(gate);
      at.other->read(at.memory->data(), std::as_writable_bytes(std::span(room)));
      at.queue->wait(at.other->record());
    }
    at.queue->finish();
  };
  for (int warm = 0; warm < 4; ++warm) {
    step();
  }
  const std::uint64_t before = test::allocations();
  const std::int64_t made = test::fake_cuda::counts().made;

  for (int more = 0; more < 30; ++more) {
    step();
  }

  CHECK(test::allocations() - before == 0);
  CHECK(test::fake_cuda::counts().made == made);
}

TEST_CASE("cuda: times follow the host's clock where the GPU's runs at another speed", "[device][cuda]") {
  for (const double clock : {0.5, 2.0}) {
    OnGpu at({.clock = clock});
    const auto now = [] {
      return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count();
    };
    std::int64_t before = 0;
    for (int turn = 0; turn < 100; ++turn) {
      std::int64_t time = 0;
      at.queue->fill(at.view(0, 100), turn);
      at.queue->stamp(time);
      const std::int64_t next = now();
      at.queue->finish();
      CHECK(time >= before);
      CHECK(time <= now());
      before = next;
    }
  }
}
