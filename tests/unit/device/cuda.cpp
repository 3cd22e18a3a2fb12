// The runtime of device `cuda` over a fake of CUDA: what unit tests of every device do not ask for.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/device/choice.h"
#include "core/device/cuda/copies.h"
#include "core/device/cuda/emulated/emulator.h"
#include "core/device/cuda/known_kernels.h"
#include "core/device/cuda/runtime/device.h"
#include "core/device/hash.h"
#include "core/device/memory.h"
#include "core/device/queue.h"
#include "core/device/threads.h"
#include "tests/support/allocations.h"
#include "tests/support/catch.h"
#include "tests/support/cuda/fake_cuda.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::device;
using Catch::Matchers::Contains;
using graph::DType;
using test::fake_cuda::Settings;

namespace {

/// Before the tests of all devices, which find it by the list.
const RegisterDevice cuda_registered = [] {
  cuda::emulated::set_enqueue(test::fake_cuda::enqueue);
  return RegisterDevice(std::make_unique<const cuda::CudaDevice>());
}();

/// Memory of a GPU for `count` floats, and two queues.
struct OnGpu {
  explicit OnGpu(const Settings& settings = {}, std::uint64_t bytes = 1 << 16) {
    test::fake_cuda::set(settings);
    memory = device.allocate(bytes);
    queue = device.open_queue(threads);
    other = device.open_queue(threads);
  }
  ~OnGpu() {
    queue.reset();
    other.reset();
    memory.reset();
    CHECK(test::fake_cuda::held() == 0);
    test::fake_cuda::set({});
  }

  [[nodiscard]] TensorView view(std::int64_t first, std::int64_t count, DType dtype = DType::f32) const {
    TensorView view{.data = memory->data() + first * 4, .dtype = dtype, .rounded = dtype, .rank = 1};
    view.shape[0] = count;
    view.global[0] = count;
    return view;
  }

  cuda::CudaDevice device;
  Threads threads{1};
  std::shared_ptr<const Memory> memory;
  std::unique_ptr<Queue> queue;
  std::unique_ptr<Queue> other;
};

constexpr std::array<std::int64_t, 1> one = {1};

/// A chain of values over both queues, each made by the other's; the last value, as the host reads it.
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

TEST_CASE("cuda: queues that wait for events have the same numbers in any order of the streams", "[device][cuda]") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    OnGpu at({.seed = seed});
    CHECK(chain(at, 40) == 40);
  }
}

TEST_CASE("cuda: a wait that is left out shows as a wrong number", "[device][cuda]") {
  int wrong = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    OnGpu at({.seed = seed, .forget = 7});
    wrong += chain(at, 40) == 40 ? 0 : 1;
  }
  CHECK(wrong >= 5);
}

namespace {

/// Whether floats that are not pinned are written, as they are in the queue's turn, and others read.
bool are_copied(const Settings& settings, std::size_t count) {
  std::vector<float> others(count);
  std::vector<float> given(count);
  std::vector<float> found(count);
  std::iota(others.begin(), others.end(), 3.0F);
  OnGpu at(settings, 2 * count * sizeof(float));  // its streams end before the numbers
  std::byte* const of_others = at.memory->data() + count * sizeof(float);
  {
    const auto pinned = at.device.pin(std::as_writable_bytes(std::span(others)));
    at.queue->write(std::as_bytes(std::span(others)), of_others);
    at.queue->finish();
  }
  at.queue->call(
      [](void* of) {
        auto& numbers = *static_cast<std::vector<float>*>(of);
        std::iota(numbers.begin(), numbers.end(), 1.0F);
      },
      &given);
  at.queue->write(std::as_bytes(std::span(given)), at.memory->data());
  at.queue->read(of_others, std::as_writable_bytes(std::span(found)));
  at.queue->finish();
  const bool are_read = found == others;
  test::fake_cuda::forget(0);
  at.queue->read(at.memory->data(), std::as_writable_bytes(std::span(found)));
  at.queue->finish();
  std::iota(given.begin(), given.end(), 1.0F);
  return are_read && found == given;
}

constexpr std::size_t floats_of_buffer = std::size_t{1} << 20U;

}  // namespace

TEST_CASE("cuda: host memory that is not pinned is copied piece by piece, in the queue's turn", "[device][cuda]") {
#if defined(__SANITIZE_THREAD__)  // takes seconds for a copy
  constexpr std::uint64_t seeds = 1;
#else
  constexpr std::uint64_t seeds = 3;
#endif
  for (const std::size_t count : {floats_of_buffer, floats_of_buffer + 1, 3 * floats_of_buffer + 3}) {
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      CAPTURE(count, seed);
      CHECK(are_copied({.seed = seed}, count));
    }
  }
}

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("cuda: pieces of host memory that are copied out of their turn show as wrong numbers", "[device][cuda]") {
  // Three pieces there and three back, each with two waits, and one behind all. The others only repeat what these
  // ensure.
  for (const std::int64_t wait : {1, 2, 5, 9, 12, 14}) {
    bool is_right = true;
    for (std::uint64_t seed = 1; seed <= 30 && is_right; ++seed) {
      is_right = are_copied({.seed = seed, .forget = wait}, 2 * floats_of_buffer + 3);
    }
    CAPTURE(wait);
    CHECK_FALSE(is_right);
  }
}
#endif

TEST_CASE("cuda: hashes of tensors are those of the same numbers on the cpu", "[device][cuda]") {
  OnGpu at({}, 20 << 20);
  std::vector<float> numbers(5'000'000);
  std::iota(numbers.begin(), numbers.end(), 1.0F);
  at.queue->write(std::as_bytes(std::span(numbers)), at.memory->data());
  std::vector<TensorView> on_gpu;
  std::vector<TensorView> on_host;
  // More than is read at once, in tensors that begin anywhere.
  for (const auto& [first, count] :
       {std::pair(3, 900'001), std::pair(0, 0), std::pair(0, 3), std::pair(7, 4'900'000)}) {
    on_gpu.push_back(at.view(first, count));
    on_host.push_back(on_gpu.back());
    on_host.back().data = numbers.data() + first;
  }
  TensorHashes hashes(on_gpu);
  for (int time = 0; time < 2; ++time) {
    const std::uint64_t before = test::allocations();
    const std::span<const std::uint64_t> found = hashes.compute(*at.queue, at.threads);
    CHECK((test::allocations() == before) == (time > 0));
    TensorHashes expected(on_host);
    CHECK(std::ranges::equal(found, expected.compute(*Device::find("cpu").open_queue(at.threads), at.threads)));
  }
}

TEST_CASE("cuda: pinned memory is read and written directly", "[device][cuda]") {
  OnGpu at;
  std::vector<float> room(64, 3);
  {
    const auto pinned = at.device.pin(std::as_writable_bytes(std::span(room)));
    CHECK(at.device.is_pinned(&room[8], 32));
    CHECK_FALSE(at.device.is_pinned(&room[60], 32));
    at.queue->write(std::as_bytes(std::span(room).first(8)), at.memory->data());
    at.queue->read(at.memory->data(), std::as_writable_bytes(std::span(room).subspan(8, 8)));
    at.queue->fill(at.view(0, 8), 7);
    at.queue->read(at.memory->data(), std::as_writable_bytes(std::span(room).subspan(16, 8)));
    at.queue->finish();
  }
  CHECK_FALSE(at.device.is_pinned(room.data(), 4));
  CHECK(room[15] == 3);
  CHECK(room[23] == 7);
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

TEST_CASE("cuda: times and answers of a queue are there when a queue that waited for it has finished",
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

TEST_CASE("cuda: more answers are asked for than the queue has flags", "[device][cuda]") {
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

TEST_CASE("cuda: boxes of every rank, stride and alignment are copied", "[device][cuda]") {
  struct Case {
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> from;
    std::vector<std::int64_t> to;
    std::int64_t offset;
    std::size_t element_bytes;
  };
  for (const Case& box :
       {Case{{3, 4, 8}, {64, 16, 1}, {32, 8, 1}, 0, 4}, Case{{3, 4, 8}, {64, 16, 1}, {32, 8, 1}, 3, 2},
        Case{{2, 3}, {1, 5}, {3, 1}, 1, 1}, Case{{}, {}, {}, 2, 8}, Case{{5, 1, 7}, {9, 2, 1}, {7, 7, 1}, 0, 4},
        Case{{0, 4}, {4, 1}, {4, 1}, 0, 4}, Case{{4, 6}, {6, 1}, {6, 1}, 0, 2},
        Case{{3, 300}, {301, 1}, {304, 1}, 1, 2}, Case{{2, 2, 515}, {1201, 577, 1}, {1031, 515, 1}, 3, 2}}) {
    OnGpu at;
    std::vector<std::byte> given(8192);
    for (std::size_t i = 0; i < given.size(); ++i) {
      given[i] = static_cast<std::byte>(i * 7 + i / 256);
    }
    std::vector<std::byte> expected(8192, std::byte{1});
    std::vector<std::byte> found(8192);
    const auto offset = static_cast<std::size_t>(box.offset) * box.element_bytes;
    const std::function<void(std::size_t, std::int64_t, std::int64_t)> copy = [&](std::size_t d, std::int64_t from,
                                                                                  std::int64_t to) {
      if (d == box.shape.size()) {
        std::copy_n(
            given.begin() + from * static_cast<std::int64_t>(box.element_bytes) + static_cast<std::int64_t>(offset),
            box.element_bytes,
            expected.begin() + to * static_cast<std::int64_t>(box.element_bytes) + static_cast<std::int64_t>(offset));
        return;
      }
      for (std::int64_t i = 0; i < box.shape[d]; ++i) {
        copy(d + 1, from + i * box.from[d], to + i * box.to[d]);
      }
    };
    copy(0, 0, 0);
    const std::vector<std::byte> ones(8192, std::byte{1});
    std::byte* const to = at.memory->data() + 8192;
    at.queue->write(given, at.memory->data());
    at.queue->write(ones, to);
    at.queue->finish();
    at.queue->copy({.from = at.memory->data() + offset,
                    .to = to + offset,
                    .element_bytes = box.element_bytes,
                    .shape = box.shape,
                    .from_strides = box.from,
                    .to_strides = box.to});
    at.queue->read(to, found);
    at.queue->finish();
    CHECK((found == expected));
  }
}

TEST_CASE("cuda: the pages of an arena that were written are counted", "[device][cuda]") {
  OnGpu at({}, 10 * 4096 + 512);
  CHECK(at.memory->touched_bytes() == 0);
  at.queue->fill(at.view(1024 + 5, 1), 0);
  at.queue->fill(at.view(10 * 1024 + 127, 1), 0);
  at.queue->finish();
  CHECK(at.memory->touched_bytes() == 2 * 4096);
}

TEST_CASE("cuda: memory that a GPU does not have is refused with what is free", "[device][cuda]") {
  OnGpu at({.memory = 1 << 20});
  try {
    static_cast<void>(at.device.allocate(2 << 20));
    FAIL("more memory than there is was allocated");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::io);
    CHECK_THAT(error.message(), Contains("GPU 0 (Fake H200): allocating 2097152 bytes for the arena, with ") &&
                                    Contains("of 1048576 bytes free") &&
                                    Contains("out of memory (cudaErrorMemoryAllocation)"));
  }
}

TEST_CASE("cuda: a failure of work is thrown with the GPU and CUDA's words, again and again", "[device][cuda]") {
  OnGpu at({.fail_at = 20});
  const auto use = [&] {
    for (int i = 0; i < 100; ++i) {
      at.queue->fill(at.view(0, 1), i);
    }
    at.queue->finish();
  };
  for (int time = 0; time < 2; ++time) {
    CHECK_THAT(test::error_of(use), Contains("GPU 0 (Fake H200): ") &&
                                        Contains("an illegal memory access was encountered (cudaErrorIllegalAddress)"));
  }
  CHECK(at.memory->touched_bytes() == 0);
}

TEST_CASE("cuda: calls that a failure has dropped are made in their order", "[device][cuda]") {
  OnGpu at({.fail_at = 20});
  struct Given {
    std::vector<int>* made;
    int number;
  };
  std::vector<int> made;
  std::array<Given, 3> given = {{{&made, 0}, {&made, 1}, {&made, 2}}};
  const std::uint64_t never = at.other->add_gate();
  for (Given& each : given) {
    at.other->call(
        [](void* of) {
          const Given& call = *static_cast<Given*>(of);
          call.made->push_back(call.number);
        },
        &each);
  }
  for (int i = 0; i < 100; ++i) {
    at.queue->fill(at.view(0, 1), i);
  }
  CHECK_THROWS_AS(at.queue->finish(), Error);
  CHECK(made == std::vector<int>{0, 1, 2});
  at.other->open_gate(never);
}

TEST_CASE("cuda: a queue's events are used again, and an old one is past", "[device][cuda]") {
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
  // Behind each stream, the one in which the host copies.
  CHECK(test::fake_cuda::priorities() == std::vector<int>{0, 0, 0, 0, -5, 0});
}

TEST_CASE("cuda: work allocates nothing once there was as much of it before", "[device][cuda]") {
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

TEST_CASE("cuda: an arena is memory that transports can register, where the GPU has such memory", "[device][cuda]") {
  for (const int has : {0, 1, 2, 3}) {  // 2: not for network cards; 3: it is refused
    CAPTURE(has);
    OnGpu at({.memory = (1 << 20) + (1 << 15), .virtual_memory = has}, 100'000);
    CHECK(at.memory->bytes() == 100'000);
    at.queue->fill(at.view(24'999, 1), 3);
    CHECK(is_finite(*at.queue, at.view(24'999, 1)));
    CHECK(at.memory->touched_bytes() == 4096);
    // In whole pieces of 64 KiB, or as cudaMalloc rounds.
    CHECK_THROWS_AS(at.device.allocate(1 << 20), Error);
    CHECK_NOTHROW(at.device.allocate((1 << 20) - 131'072));
    const auto allocate_half_piece = [&] { static_cast<void>(at.device.allocate((1 << 20) - 131'072 + 1000)); };
    if (has == 1 || has == 2) {
      CHECK_THAT(test::error_of(allocate_half_piece), Contains("out of memory"));
    } else {
      CHECK_NOTHROW(allocate_half_piece());
    }
  }
}

TEST_CASE("cuda: a failure names the ops that were not done, and the tensors that they make", "[device][cuda]") {
  OnGpu at({.fail_at = 30});
  const Kernel kernel = {
      .run = [](const KernelCall& call) { cuda::fill_elements(call, call.outputs[0].data, 1, 4, 0); }, .op = "gelu"};
  const graph::Attributes attributes;
  const std::array<std::string, 3> names = {"layer.0/mlp/act", "layer.1/mlp/act", "layer.2/mlp/act"};
  std::vector<std::unique_ptr<const PreparedKernel>> prepared;
  for (const std::string& name : names) {
    prepared.push_back(at.device.prepare(kernel, attributes, {}, {at.view(0, 1)}, {}, name));
  }
  CHECK_THAT(test::error_of([&] {
               for (int i = 0; i < 60; ++i) {
                 at.queue->run(*prepared[static_cast<std::size_t>(i / 20)], false, {});
               }
               at.queue->finish();
             }),
             Contains("(cudaErrorIllegalAddress); the ops that were not done, with the tensors that they make: gelu "
                      "(layer.0/mlp/act), gelu (layer.1/mlp/act) (with CUDA_LAUNCH_BLOCKING=1 the one that failed is "
                      "named)"));
}

TEST_CASE("the units of ranks are chosen by local rank or by a list", "[device][cuda]") {
  test::fake_cuda::set({.gpus = 3});
  const cuda::CudaDevice device;
  CHECK(unit_of(device, parse_device("cuda"), 2, 3) == 2);
  CHECK(unit_of(device, parse_device("cuda:2,0"), 0, 2) == 2);
  CHECK(unit_of(device, parse_device("cuda:1,1,1,1"), 3, 4) == 1);
  CHECK_THROWS_AS(unit_of(device, parse_device("cuda"), 0, 4), Error);
  CHECK_THROWS_AS(unit_of(device, parse_device("cuda:3"), 0, 1), Error);
  CHECK_THROWS_AS(unit_of(device, parse_device("cuda:0"), 1, 0), Error);
  CHECK_THROWS_AS(parse_device("cuda:-1"), Error);
  CHECK(unit_of(Device::find("cpu"), parse_device("cpu"), 5, 8) == 0);
  test::fake_cuda::set({});
}
