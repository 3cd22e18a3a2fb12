#include "core/device/queue.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "core/device/host_tensor.h"
#include "core/device/memory.h"
#include "core/device/threads.h"
#include "tests/support/catch.h"

using namespace shardrun::device;
using shardrun::graph::DType;

namespace {

/// Memory of a device for a few floats, and a queue.
struct Place {
  explicit Place(const Device& of) : device(of), memory(of.allocate(4096)), queue(of.open_queue(threads)) {}

  [[nodiscard]] TensorView floats(std::int64_t first, std::int64_t count) const {
    TensorView view{.data = memory->data() + first * 4, .dtype = DType::f32, .rounded = DType::f32, .rank = 1};
    view.shape[0] = count;
    view.global[0] = count;
    return view;
  }
  void write(std::int64_t first, const std::vector<float>& values) {
    queue->write(std::as_bytes(std::span(values)), floats(first, 0).data);
    queue->finish();
  }
  [[nodiscard]] std::vector<float> read(std::int64_t first, std::size_t count) {
    std::vector<float> values(count);
    queue->read(floats(first, 0).data, std::as_writable_bytes(std::span(values)));
    queue->finish();
    return values;
  }

  const Device& device;
  Threads threads{2};
  std::shared_ptr<const Memory> memory;
  std::unique_ptr<Queue> queue;
};

/// The signal that ends a child process that reads the byte; 0 if the read is allowed.
int signal_of_read(const std::byte* address) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);  // without the handler of a sanitizer or the test's framework
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    static_cast<void>(*static_cast<const volatile std::byte*>(address));
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

}  // namespace

TEST_CASE("every device gives back what it was given, and fills and copies boxes", "[device]") {
  for (const auto& device : Device::all()) {
    DYNAMIC_SECTION(device->name()) {
      Place at(*device);
      at.write(0, std::vector<float>(1024));
      at.write(0, {1, 2, 3, 4, 5, 6});
      at.queue->fill(at.floats(8, 4), 0.5);
      // The right two columns of [2, 3] to the left two of [2, 4].
      const std::array<std::int64_t, 2> shape = {2, 2};
      const std::array<std::int64_t, 2> from = {3, 1};
      const std::array<std::int64_t, 2> to = {4, 1};
      at.queue->copy({.from = at.floats(1, 0).data,
                      .to = at.floats(16, 0).data,
                      .element_bytes = 4,
                      .shape = shape,
                      .from_strides = from,
                      .to_strides = to});
      CHECK(at.read(0, 6) == std::vector<float>{1, 2, 3, 4, 5, 6});
      CHECK(at.read(8, 5) == std::vector<float>{0.5, 0.5, 0.5, 0.5, 0});
      CHECK(at.read(16, 6) == std::vector<float>{2, 3, 0, 0, 5, 6});
      CHECK(at.memory->touched_bytes() == 4096);
    }
  }
}

TEST_CASE("every device says whether a tensor is finite, and when its work was done", "[device]") {
  for (const auto& device : Device::all()) {
    DYNAMIC_SECTION(device->name()) {
      Place at(*device);
      at.write(0, {1, 2, std::numeric_limits<float>::infinity(), std::nanf("")});
      CHECK(is_finite(*at.queue, at.floats(0, 2)));
      CHECK_FALSE(is_finite(*at.queue, at.floats(0, 3)));
      CHECK_FALSE(is_finite(*at.queue, at.floats(3, 1)));
      std::int64_t before = 0;
      std::int64_t after = 0;
      at.queue->stamp(before);
      at.queue->fill(at.floats(0, 100), 1);
      at.queue->stamp(after);
      at.queue->finish();
      CHECK(before > 0);
      CHECK(after >= before);
    }
  }
}

TEST_CASE("a queue that waits for another's event works after it", "[device]") {
  for (const auto& device : Device::all()) {
    DYNAMIC_SECTION(device->name()) {
      Place at(*device);
      const std::unique_ptr<Queue> other = device->open_queue(at.threads);
      const std::array<std::int64_t, 1> one = {1};
      float last = 0;
      for (int turn = 1; turn <= 50; ++turn) {
        at.queue->fill(at.floats(0, 1), turn);
        other->wait(at.queue->record());
        other->copy({.from = at.floats(0, 0).data,
                     .to = at.floats(1, 0).data,
                     .element_bytes = 4,
                     .shape = one,
                     .from_strides = one,
                     .to_strides = one});
        at.queue->wait(other->record());
      }
      at.queue->read(at.floats(1, 0).data, std::as_writable_bytes(std::span(&last, 1)));
      at.queue->finish();
      CHECK(last == 50);
    }
  }
}

TEST_CASE("a queue makes a call in its turn, and stands at a gate until another thread opens it", "[device]") {
  for (const auto& device : Device::all()) {
    DYNAMIC_SECTION(device->name()) {
      Place at(*device);
      struct Seen {
        std::atomic<int> calls = 0;
        std::thread opener;
      } seen;
      const auto count = [](void* of) { ++static_cast<Seen*>(of)->calls; };
      at.queue->call(count, &seen);
      at.queue->finish();
      CHECK(seen.calls == 1);

      const std::uint64_t gate = at.queue->add_gate();
      seen.opener = std::thread([&] {
        seen.calls = 10;
        at.queue->open_gate(gate);
      });
      at.queue->call(count, &seen);
      at.queue->finish();
      CHECK(seen.calls == 11);
      seen.opener.join();

      at.queue->open_gate(at.queue->add_gate());
      at.queue->fill(at.floats(0, 1), 5);
      CHECK(at.read(0, 1) == std::vector<float>{5});
    }
  }
}

TEST_CASE("a copy in the room is reused once the device has read it", "[device]") {
  Place at(Device::find("unmapped"));
  std::vector<std::byte> room(64);
  Event writes;
  for (int round = 1; round <= 3; ++round) {
    HostTensor written(HostAccess(*at.queue, room, writes), at.floats(round, 1), Access::write);
    elements_of<float>(written.view())[0] = static_cast<float>(round);
    written.store();
  }
  const HostTensor read(HostAccess(*at.queue, room, writes), at.floats(1, 3), Access::read);
  const std::span<float> found = elements_of<float>(read.view());
  CHECK(std::vector<float>(found.begin(), found.end()) == std::vector<float>{1, 2, 3});
}

TEST_CASE("the host has a tensor's elements in place where it can address them, else a copy", "[device]") {
  for (const auto& device : Device::all()) {
    DYNAMIC_SECTION(device->name()) {
      Place at(*device);
      HostTensor written(*at.queue, at.floats(0, 3), Access::write);
      CHECK((written.view().data == at.floats(0, 3).data) == device->is_addressable());
      const std::array<float, 3> values = {7, 8, 9};
      std::memcpy(written.bytes().data(), values.data(), sizeof values);
      written.store();
      CHECK(at.read(0, 3) == std::vector<float>{7, 8, 9});

      const HostTensor read(*at.queue, at.floats(1, 2), Access::read);
      const std::span<float> found = elements_of<float>(read.view());
      CHECK(std::vector<float>(found.begin(), found.end()) == std::vector<float>{8, 9});
      CHECK_THROWS(static_cast<void>(elements_of<std::int32_t>(read.view())));
    }
  }
}

TEST_CASE("the test device's memory is out of the host's reach, and its work is late", "[device]") {
  Place here(Device::find("cpu"));
  CHECK(signal_of_read(here.memory->data()) == 0);
  Place at(Device::find("unmapped"));
  CHECK(signal_of_read(at.memory->data()) == SIGSEGV);
  CHECK(signal_of_read(at.memory->data() + at.memory->bytes() - 1) == SIGSEGV);
  at.write(0, {3});
  float value = 0;
  at.queue->read(at.memory->data(), std::as_writable_bytes(std::span(&value, 1)));
  CHECK(value == 0);
  at.queue->finish();
  CHECK(value == 3);
}
