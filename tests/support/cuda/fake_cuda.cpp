#include "tests/support/cuda/fake_cuda.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "tests/support/cuda/fake_cuda_state.h"

namespace shardrun::test::fake_cuda {
namespace {

thread_local int current_device = no_device;

}  // namespace

void set(const Settings& settings) {
  Fake& fake = state();
  const std::lock_guard lock(fake.mutex);
  fake.settings = settings;
  fake.random.seed(settings.seed);
  fake.sticky = cudaSuccess;
  fake.done = 0;
  fake.waits = 0;
  fake.counts = {};
}

void set_gpus(int count) {
  const std::lock_guard lock(state().mutex);
  state().settings.gpus = count;
}

void set_error(int error) {
  const std::lock_guard lock(state().mutex);
  state().sticky = static_cast<cudaError_t>(error);
  state().changed.notify_all();
}

void set_before_host_function(std::function<void()> act) {
  const std::lock_guard lock(state().mutex);
  state().before_host_function = std::move(act);
}

void forget(std::int64_t number) {
  const std::lock_guard lock(state().mutex);
  state().settings.forget = number;
}

void enqueue(void* stream, const void* kernel, std::function<void()> work) {
  static_cast<void>(with([&](Fake& fake, auto&) {
    if (!fake.kernels.contains(kernel)) {
      std::fprintf(stderr, "fake CUDA: a kernel is launched that was not loaded\n");
      return fake.sticky = cudaErrorLaunchFailure;
    }
    ++fake.counts.kernels;
    fake.give(static_cast<FakeStream*>(stream), {.run = std::move(work)});
    return cudaSuccess;
  }));
}

void enqueue(void* stream, std::shared_ptr<JointWork> work) {
  static_cast<void>(with([&](Fake& fake, auto&) {
    fake.give(static_cast<FakeStream*>(stream), {.joint = std::move(work)});
    return cudaSuccess;
  }));
}

void enqueue(void* stream, std::function<void()> work) {
  static_cast<void>(with([&](Fake& fake, auto&) {
    fake.give(static_cast<FakeStream*>(stream), {.run = std::move(work)});
    return cudaSuccess;
  }));
}

bool is_done(const void* stream) {
  const std::lock_guard lock(state().mutex);
  return static_cast<const FakeStream*>(stream)->work.empty();
}
void await(void* stream) {
  std::unique_lock lock(state().mutex);
  auto* const own = static_cast<FakeStream*>(stream);
  (void)state().await(lock, own, own->given);
}
void nudge() {
  const std::lock_guard lock(state().mutex);
  state().nudge();
}

int device() { return current_device; }
void set_device(int number) { current_device = number; }
int device_of(const void* stream) { return static_cast<const FakeStream*>(stream)->device; }
bool is_on_gpu(const void* memory, std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  return state().is_on_gpu(memory, bytes);
}
std::uint64_t random() {
  const std::lock_guard lock(state().mutex);
  return state().random();
}

std::int64_t held() {
  Fake& fake = state();
  const std::lock_guard lock(fake.mutex);
  return static_cast<std::int64_t>(fake.device.size() + fake.pinned.size() + fake.streams.size()) + fake.events;
}

std::vector<int> priorities() {
  Fake& fake = state();
  const std::lock_guard lock(fake.mutex);
  std::vector<int> all;
  std::ranges::transform(fake.streams, std::back_inserter(all), &FakeStream::priority);
  return all;
}

std::int64_t waits() {
  Fake& fake = state();
  const std::lock_guard lock(fake.mutex);
  return fake.waits;
}

int virtual_memory() {
  Fake& fake = state();
  const std::lock_guard lock(fake.mutex);
  return fake.settings.virtual_memory;
}

bool take_memory(std::int64_t bytes) {
  Fake& fake = state();
  const std::lock_guard lock(fake.mutex);
  if (bytes > 0 && fake.used() + static_cast<std::uint64_t>(bytes) > fake.settings.memory) {
    return false;
  }
  fake.taken += static_cast<std::uint64_t>(bytes);
  ++fake.counts.made;
  return true;
}

void map_memory(void* address, std::size_t bytes) {
  Fake& fake = state();
  const std::lock_guard lock(fake.mutex);
  fake.device[static_cast<const std::byte*>(address)] = bytes;
  fake.mapped.insert(static_cast<const std::byte*>(address));
}

void unmap_memory(void* address) {
  Fake& fake = state();
  const std::lock_guard lock(fake.mutex);
  fake.device.erase(static_cast<const std::byte*>(address));
  fake.mapped.erase(static_cast<const std::byte*>(address));
}

Counts counts() {
  Fake& fake = state();
  const std::lock_guard lock(fake.mutex);
  return fake.counts;
}

}  // namespace shardrun::test::fake_cuda
